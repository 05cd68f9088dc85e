"""Scrapes in, an answer out: everything that watching knows of engines, folded scrape by scrape."""

from collections.abc import Mapping

from penstock.errors import InputError
from penstock.live.conclusions import conclude
from penstock.live.description import Description
from penstock.live.reading import Answer
from penstock.live.scrape import Scrape
from penstock.live.seen import Seen
from penstock.live.settings import Settings
from penstock.live.state import Engine
from penstock.system.server import Server


class Watch:
    """Engines that are watched.

    Parameters
    ----------
    server
        What each engine is: batch time, token budget, max batch size, KV memory. None: not known;
        then there is no load, and nothing is said of the future.
    settings
        What is asked.
    limits
        ``token_budget``, ``max_batch_size``, ``kv_tokens``: of engines without a server, once
        their iterations tell how long batches take.
    """

    def __init__(
        self,
        server: Server | None,
        settings: Settings,
        limits: Mapping[str, int | None] | None = None,
    ) -> None:
        self._settings = settings
        self._description = Description(server, limits or {})
        self._engines: dict[str, Engine] = {}

    def take(self, scrape: Scrape) -> None:
        """Take one scrape; scrapes of one engine that come out of order are left out, with a
        note.
        """
        self._engine(scrape.engine).take(scrape)

    def note(self, engine: str, text: str) -> None:
        """Keep a note on an engine: what its source met (a page torn, nobody answered)."""
        self._engine(engine).history.note(text)

    def refine(self, seen: Seen) -> None:
        """Take the batch times that iterations tell, for every engine."""
        self._description.refine(seen)

    def answer(self, *, ahead: bool = True) -> Answer:
        """Return what follows from all scrapes taken so far.

        Parameters
        ----------
        ahead
            Whether the time until limits are reached is wanted: most of the work.

        Raises
        ------
        InputError
            If nothing was ever watched.
        """
        if not self._engines:
            raise InputError("no engine was watched yet, so there is nothing to say; take a scrape")
        states = [engine.state() for engine in self._engines.values()]
        readings = tuple(conclude([state], self._settings, ahead) for state in states)
        together = readings[0]
        if len(states) > 1:
            together = conclude(states, self._settings, ahead)
        return Answer(together.time_s, together, readings)

    def _engine(self, name: str) -> "Engine":
        if name not in self._engines:
            self._engines[name] = Engine(name, self._description)
        return self._engines[name]
