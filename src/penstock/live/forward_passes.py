"""Forward-pass metrics: messages that SGLang, or vLLM under Dynamo, publishes for each iteration.

Three frames over ZeroMQ (topic, sequence, MessagePack), read by what `penstock fit` reads them
with. A publisher drops what nobody takes in time; the messages of each are numbered, so it shows.
``wall_time`` is that of the model alone or of the whole iteration, and no message says which: what
it leaves out is found from the engine's counters (`penstock.live.pace`).
"""

import json
from typing import Any
from urllib.parse import urlsplit

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.source import Source as File
from penstock.live.iterations import Came
from penstock.live.iterations_seen import Queued
from penstock.live.scrape import number_in
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.engine_logs import PASSES

_VERSION = 1
_MOST_BYTES = 1 << 20  # of a message
_MOST_WAITING = 100_000  # messages that are kept between two rounds
_MOST_AT_ONCE = 20_000
_QUEUE = ("sum_prefill_tokens", "num_decode_requests", "sum_decode_kv_tokens")


class Passes:
    """A subscription to one publisher, at ``tcp://HOST:PORT``."""

    def __init__(self, url: str) -> None:
        self.name = url
        _check_address(url)
        self._socket = _subscribed(url)
        self._last: dict[tuple[Any, Any], int] = {}
        self._queued: Queued | None = None
        self._idle = False

    def take(self) -> Came:
        """Return the messages that have come."""
        import zmq

        records: list[bytes] = []
        lost = unreadable = 0
        anew = heard = False
        for _ in range(_MOST_AT_ONCE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = _decoded(frames[-1])
            missed = self._missed(message) if message else None
            if missed is None:
                unreadable += 1
                continue
            if missed < 0:
                anew, lost, unreadable = True, 0, 0
                records.clear()
            lost += max(missed, 0)
            heard = True
            self._queued = _queued(message)
            self._idle = message["wall_time"] == 0
            if not self._idle:
                records.append(json.dumps(message).encode())
        # An idle engine may be silent; one that served when it was heard last cannot be.
        known = self._queued if heard or self._idle else None
        return Came(records, anew=anew, lost=lost, unreadable=unreadable, queued=known)

    def batches(self, file: File) -> MeasuredBatches:
        """Read messages, each a line of JSON."""
        return PASSES.read(file)

    def close(self) -> None:
        """End the subscription."""
        self._socket.close(0)

    def _missed(self, message: dict[str, Any]) -> int | None:
        """Return how many of its engine's messages were lost before it; below 0: it began anew."""
        # None: it is not numbered as it should be.
        engine = (message.get("worker_id"), message.get("dp_rank"))
        number = message.get("counter_id", 0)
        if not isinstance(number, int) or not all(isinstance(part, str | int) for part in engine):
            return None
        last = self._last.get(engine, number - 1)
        self._last[engine] = number
        if number == last == 0:  # not numbered
            return 0
        return number - last - 1 if number > last else -1


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        good = False
    if not good or not url.isprintable():
        raise InputError(
            f"--iterations is {checks.shown(url)}, but must be where an engine publishes its "
            "forward-pass metrics, such as tcp://localhost:20380"
        )


def _subscribed(url: str) -> Any:
    import zmq

    socket: Any = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, _MOST_WAITING)
    socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    try:
        socket.connect(url)
    except zmq.ZMQError as error:
        socket.close(0)
        raise InputError(
            f"--iterations {checks.shown(url)} cannot be connected to ({error}); check host and "
            "port"
        ) from None
    return socket


def _decoded(payload: bytes) -> dict[str, Any]:
    """Return a message as JSON can hold it, empty if it is none that is known."""
    import msgspec

    try:
        message = msgspec.msgpack.decode(payload)
        json.dumps(message, allow_nan=False)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(message, dict) or message.get("version") != _VERSION:
        return {}
    if not isinstance(message.get("scheduled_requests"), dict):
        return {}
    return {} if number_in(message, "wall_time") is None else message


def _queued(message: dict[str, Any]) -> Queued | None:
    """Return what waits, None where a message does not say it."""
    queue = message.get("queued_requests")
    if not isinstance(queue, dict):
        return None
    prompts, preempted, tokens = (number_in(queue, name, 0) for name in _QUEUE)
    if prompts is None or preempted is None or tokens is None:
        return None
    return Queued(prompts, preempted, tokens)
