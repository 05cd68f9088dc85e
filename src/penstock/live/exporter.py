"""What watching found, as metrics that Prometheus scrapes: for alerts and autoscalers.

What is not known has no sample. If nothing was read for a while, only the time of the last scrape
is left, so that no autoscaler acts on figures that are old.
"""

import asyncio
import dataclasses
import http
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from penstock import checks
from penstock.errors import InputError
from penstock.live.callers import refusal
from penstock.live.reading import TOGETHER, Answer, Estimate, Reading, Verdict

if TYPE_CHECKING:
    from prometheus_client import Metric

LOOPBACK = "127.0.0.1"
_OLD_S = 60.0
_OLD_ROUNDS = 3
_PATIENCE_S = 5.0  # for a whole request and its answer
_MOST_OPEN = 64  # connections; Prometheus needs one
_MOST_BYTES = 16_384  # of a request
_ENDS = ("value", "low", "high")


class Exporter:
    """A server of metrics from its construction on, at ``PORT`` of loopback or ``ADDRESS:PORT``.

    What is three rounds and a minute old is not given any more.
    """

    def __init__(self, place: str, every_s: float) -> None:
        from prometheus_client import CollectorRegistry

        self._host, port = _host_and_port(place)
        registry = CollectorRegistry()
        registry.register(self)
        self._registry = registry
        self._old_s = max(_OLD_S, _OLD_ROUNDS * every_s)
        self._answer: Answer | None = None
        try:
            family = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)[0][0]
            self._listening = socket.create_server((self._host, port), family=family)
        except OSError as error:
            raise InputError(
                f"--export cannot listen on {place} ({error.strerror}), so nothing could be "
                "scraped; give a free port, or another address of this machine"
            ) from None
        self.address, self.port = self._listening.getsockname()[:2]
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.start_server(self._take, sock=self._listening, limit=_MOST_BYTES)
        try:
            asyncio.run_coroutine_threadsafe(server, self._loop).result()
        except BaseException:
            self.close()
            raise

    def show(self, answer: Answer) -> None:
        """Give these figures from now on."""
        self._answer = answer

    def close(self) -> None:
        """Stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listening.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; whoever sends half of one costs no thread, and not for long."""
        self._open += 1
        try:
            if self._open <= _MOST_OPEN:
                async with asyncio.timeout(_PATIENCE_S):
                    writer.write(self._answer_to(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass
        finally:
            self._open -= 1
            writer.close()

    def _answer_to(self, request: bytes) -> bytes:
        """Return the answer to a request, whose body, if it has one, is not read."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        first, *lines = request.decode("latin-1").split("\r\n")
        pairs = ((key, value) for key, _, value in (line.partition(":") for line in lines))
        private = not _is_loopback(self.address)
        refused = refusal(pairs, self._host, private_names=private)
        if refused is not None:
            return _http(refused.status, "text/plain", refused.reason.encode())
        if first.split(" ")[0] != "GET":
            return _http(405, "text/plain", b"there are metrics to GET, and nothing else")
        return _http(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

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


def _http(status: int, kind: str, content: bytes) -> bytes:
    phrase = http.HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + content


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _host_and_port(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise InputError(
            f"--export is {checks.shown(place)}, but must be a port such as 9400, or an address "
            "and a port such as 0.0.0.0:9400"
        )
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
