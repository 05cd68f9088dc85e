"""What the tests of watching share: a stand-in for the statistics, pages, and servers on loopback."""

import dataclasses
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.live import watching
from penstock.live.reading import Answer, Change, Estimate, LimitLoad, Reading, TimeUntil
from penstock.live.scrape import Scrape


class FakeWatch:
    """Says what was read last, and figures that are always the same: what the command does with them is tested."""

    verdict = "undecided"

    def __init__(self, server: Any, settings: watching.Settings) -> None:
        self.server = server
        self.settings = settings
        self.scrapes: dict[str, list[Scrape]] = {}
        self.notes: dict[str, list[str]] = {}

    def take(self, scrape: Scrape) -> None:
        self.scrapes.setdefault(scrape.engine, []).append(scrape)

    def note(self, engine: str, text: str) -> None:
        texts = self.notes.setdefault(engine, [])
        if text not in texts:
            texts.append(text)

    def answer(self) -> Answer:
        names = [*dict.fromkeys([*self.scrapes, *self.notes])]
        readings = [self._reading(name, 1, self.scrapes.get(name, [])) for name in names]
        scrapes = [scrape for of_engine in self.scrapes.values() for scrape in of_engine]
        together = dataclasses.replace(
            self._reading("all", len(self.scrapes), scrapes), running=sum(r.running or 0 for r in readings)
        )
        return Answer(max(scrape.time_s for scrape in scrapes), together, tuple(readings))

    def _reading(self, name: str, engines: int, scrapes: list[Scrape]) -> Reading:
        first, last = (scrapes[0], scrapes[-1]) if scrapes else (Scrape(name, 0.0),) * 2
        return Reading(
            name,
            engines,
            last.time_s,
            last.time_s - first.time_s,
            len(scrapes),
            first.time_s,
            self.verdict,  # type: ignore[arg-type]
            "the drift may still have either sign",
            self.settings.alpha,
            arrival_rate=Estimate(12.34, 11.2, 13.4),
            changes=(Change(last.time_s, 8.0, 12.34),),
            prompt=Estimate(812.0, 780.0, 844.0),
            output=Estimate(211.0, 190.0, 230.0),
            cached_share=0.25,
            running=last.running,
            waiting=last.waiting,
            kv_used=last.kv_used,
            preemptions_per_s=0.02,
            batch_s=Estimate(0.031, 0.03, 0.032),
            host_s=Estimate(0.004, 0.003, 0.005),
            loads=(
                LimitLoad("token budget", Estimate(0.62, 0.58, 0.66)),
                LimitLoad("KV memory", Estimate(0.31, 0.3, 0.32)),
            ),
            load=Estimate(0.62, 0.58, 0.66),
            margin=Estimate(0.38, 0.34, 0.42),
            binding="token budget",
            backlog_tokens=41_234.0,
            until=(TimeUntil("queue of 200", Estimate(260.0, 130.0, float("inf"))),),
            drain_s=Estimate(12.0, 9.0, 17.0),
            replicas=3,
            replicas_low=2,
            replicas_high=3,
            watch_s=340.0,
            notes=tuple(self.notes.get(name, ())),
        )


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWatch]:
    monkeypatch.setattr(watching, "Watch", FakeWatch)
    monkeypatch.setattr(FakeWatch, "verdict", "undecided")
    return FakeWatch


@dataclasses.dataclass
class Told:
    """What a server answers."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    length: int | None = None
    """What Content-Length says, where that is not the length of the body."""
    wait: threading.Event | None = None
    """Answers only when this is set."""
    drip_s: float | None = None
    """Seconds between single bytes."""

    def zipped(self) -> "Told":
        return dataclasses.replace(
            self, body=gzip.compress(self.body), headers={**self.headers, "Content-Encoding": "gzip"}
        )


class Server:
    """A server on loopback that says what it is told to say, and keeps what it was asked."""

    def __init__(self, answer: Callable[[str], Told], port: int = 0) -> None:
        asked: list[str] = []
        headers: list[dict[str, str]] = []
        left = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                headers.append({name.lower(): value for name, value in self.headers.items()})
                told = answer(self.path)
                if told.wait is not None:
                    told.wait.wait(30)
                    return
                self.send_response(told.status)
                for name, value in told.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(told.body) if told.length is None else told.length))
                self.end_headers()
                if told.drip_s is None:
                    self.wfile.write(told.body)
                    return
                for index in range(len(told.body)):
                    if left.wait(told.drip_s):
                        return
                    self.wfile.write(told.body[index : index + 1])
                    self.wfile.flush()

            def log_message(self, *_: object) -> None: ...

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...

        self.asked, self.headers, self._left = asked, headers, left
        self._server = Quiet(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.name = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._left.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server which answers always the same, or as a function says."""
    servers: list[Server] = []

    def start(answer: Told | bytes | Callable[[str], Told], port: int = 0) -> Server:
        def told(path: str) -> Told:
            if callable(answer):
                return answer(path)
            return answer if isinstance(answer, Told) else Told(answer)

        servers.append(Server(told, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
