"""A publisher of forward-pass metrics on loopback, as engines have one."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq

from penstock.live.iterations import IterationSource
from penstock.live.iterations_seen import Seen


class Publisher:
    """Publishes once somebody has subscribed."""

    def __init__(self) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # tells of every subscriber, not of the first alone
        self._subscribed = False
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    def expect_subscriber(self) -> None:
        """Wait for one more before anything is sent."""
        self._subscribed = False

    def send(self, messages: Iterable[Any]) -> None:
        """Publish messages; bytes go out as they are."""
        if not self._subscribed:
            self._subscribed = bool(self._socket.poll(5_000)) and bool(self._socket.recv())
        for message in messages:
            payload = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
            self._socket.send_multipart((b"", (0).to_bytes(8, "big"), payload))

    def close(self) -> None:
        self._socket.close(0)


def read_until(source: IterationSource, is_done: Callable[[Seen], bool]) -> Seen:
    """Read until what was published has come."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        seen = source.read().seen
        assert seen is not None
        if is_done(seen):
            return seen
        time.sleep(0.005)
    raise AssertionError(f"it did not come: {seen}")
