"""What the tests of watching share: servers on loopback."""

import dataclasses
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


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
