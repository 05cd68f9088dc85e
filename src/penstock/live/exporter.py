"""What watching found, as metrics that Prometheus scrapes: for alerts and autoscalers.

What is not known has no sample. If nothing was read for a while, only the time of the last scrape
is left, so that no autoscaler acts on figures that are old.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from penstock import checks
from penstock.errors import InputError
from penstock.live.reading import TOGETHER, Answer, Estimate, Reading, Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

LOOPBACK = "127.0.0.1"
_OLD_S = 60.0
_OLD_ROUNDS = 3
_ENDS = ("value", "low", "high")


class Exporter:
    """A server of metrics, from its construction on.

    Parameters
    ----------
    place
        ``PORT`` on loopback, or ``ADDRESS:PORT``.
    every_s
        Seconds between rounds; what is three rounds and a minute old is not given any more.

    Raises
    ------
    InputError
        If nothing can listen there.
    """

    def __init__(self, place: str, every_s: float) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        host, port = _host_and_port(place)
        registry = CollectorRegistry()
        registry.register(self)
        self._old_s = max(_OLD_S, _OLD_ROUNDS * every_s)
        self._answer: Answer | None = None
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(
                f"--export cannot listen on {place} ({error.strerror}), so nothing could be "
                "scraped; give a free port, or another address of this machine"
            ) from None
        self.port: int = self._server.server_port

    def show(self, answer: Answer) -> None:
        """Give these figures from now on."""
        self._answer = answer

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> "Iterator[Metric]":
        """Yield the metrics, as prometheus_client asks for them."""
        answer = self._answer
        if answer is None:
            return
        together = dataclasses.replace(answer.together, engine=TOGETHER)  # also if it is one alone
        readings = [together, *answer.engines]
        yield _gauge(
            "last_scrape_timestamp_seconds",
            "Unix time of the last scrape of an engine.",
            [((reading.engine,), reading.time_s) for reading in readings],
        )
        if time.time() - answer.time_s <= self._old_s:
            yield from _figures(readings)


def _figures(readings: list[Reading]) -> "Iterator[Metric]":
    """Yield all that is known of engines."""
    estimates = {
        "load": ("Load of the limit that binds; 1: as much as it carries.", "load"),
        "margin": ("1 less the load.", "margin"),
        "drift": ("Requests per second by which more arrive than are carried.", "drift"),
        "arrival_rate": ("Requests per second that arrive.", "arrival_rate"),
        "drain_seconds": ("Seconds until the backlog is gone, if it goes.", "drain_s"),
    }
    for name, (text, field) in estimates.items():
        rows = [((reading.engine,), getattr(reading, field)) for reading in readings]
        yield from _with_interval(name, text, rows)
    loads = [((r.engine, load.limit), load.load) for r in readings for load in r.loads]
    yield from _with_interval("limit_load", "Load by limit.", loads, "limit")
    times = [((r.engine, until.limit), until.seconds) for r in readings for until in r.until]
    text = "Seconds until a limit is reached; +Inf: perhaps never."
    yield from _with_interval("until_seconds", text, times, "limit")
    words = get_args(Verdict)
    verdicts = [((r.engine, word), float(r.verdict == word)) for r in readings for word in words]
    yield _gauge("verdict", "1 for the verdict of the drift test, else 0.", verdicts, "verdict")
    numbers = {
        "replicas_wanted": ("Engines needed to stay at the load asked for.", "replicas"),
        "replicas_wanted_low": ("Lower end of its interval.", "replicas_low"),
        "replicas_wanted_high": ("Upper end of its interval.", "replicas_high"),
        "backlog_tokens": ("Tokens still to be computed.", "backlog_tokens"),
        "preempted": ("Requests whose memory was taken back, and that wait.", "preempted"),
        "engines": ("Engines that are watched.", "engines"),
    }
    for name, (text, field) in numbers.items():
        values = [((reading.engine,), getattr(reading, field)) for reading in readings]
        yield _gauge(name, text, [(key, value) for key, value in values if value is not None])


def _with_interval(
    name: str, text: str, rows: Sequence[tuple[tuple[str, ...], Estimate | None]], *labels: str
) -> "Iterator[Metric]":
    """Yield a figure, and the ends of its interval as metrics of their own."""
    known = [(key, estimate) for key, estimate in rows if estimate is not None]
    for end in _ENDS:
        ending = "" if end == "value" else f"_{end}"
        values = [(key, getattr(estimate, end)) for key, estimate in known]
        yield _gauge(f"{name}{ending}", text, values, *labels)


def _gauge(
    name: str, text: str, rows: Sequence[tuple[tuple[str, ...], float]], *labels: str
) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"penstock_{name}", text, labels=("engine", *labels))
    for key, value in rows:
        family.add_metric(list(key), value)
    return family


def _host_and_port(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InputError(
            f"--export is {checks.shown(place)}, but must be a port such as 9400, or an address "
            "and a port such as 0.0.0.0:9400"
        )
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
