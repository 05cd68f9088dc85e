"""Scrapes in, an answer out: everything that watching knows of engines, folded scrape by scrape."""

import dataclasses

from penstock.live.reading import Answer
from penstock.live.scrape import Scrape
from penstock.system.server import Server


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is asked of a watch.

    Attributes
    ----------
    alpha
        Probability of a wrong verdict, over all looks.
    queue_limit
        Requests in the queue until which the time is wanted.
    ttft_s
        Seconds to the first token until which the time is wanted.
    target_load
        The load at which replicas needed are counted.
    """

    alpha: float = 0.05
    queue_limit: float | None = None
    ttft_s: float | None = None
    target_load: float = 0.8


class Watch:
    """Engines that are watched.

    Parameters
    ----------
    server
        What each engine is: batch time, token budget, max batch size, KV memory. None: not known;
        then load and capacity are known only from what a busy engine was seen to carry.
    settings
        What is asked.
    """

    def __init__(self, server: Server | None, settings: Settings) -> None:
        self._server = server
        self._settings = settings

    def take(self, scrape: Scrape) -> None:
        """Take one scrape; scrapes of one engine that come out of order are left out, with a
        note.
        """
        raise NotImplementedError

    def note(self, engine: str, text: str) -> None:
        """Keep a note on an engine: what its source met (a page torn, nobody answered)."""
        raise NotImplementedError

    def answer(self) -> Answer:
        """Return what follows from all scrapes taken so far."""
        raise NotImplementedError
