"""A state of the page answered part by part, each as it comes: theory, a short run, and what
`penstock check` says.

One thread per state. It ends where it next reports progress after a newer state took its place,
and only one of them tests or simulates at a time.
"""

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from penstock.checking.answer import Answer
from penstock.checking.check import check
from penstock.checking.head_of_answer import head_of_answer
from penstock.errors import InputError
from penstock.serving import theory
from penstock.serving.controls import Case, Controls, Values, field_of
from penstock.simulation.progress import Progress

Part = dict[str, Any]

ANSWER = "answer"
"""The name of threads that work one out."""

_STILL_S = 0.15
"""Without a newer state before a test begins: while a slider moves, theory alone follows."""

_MOST_AT_ONCE = 16
"""Answers: a page asks for one, and gives one up where it moves on."""
_STEP = 0.01  # of the progress that is told
_SERIES_POINTS = 400


class _Left(Exception):
    """Nobody waits for the answer any more."""


class TooMany(Exception):
    """So many answers are being worked out that one more is not begun."""


class Answers:
    """Answers states of the page."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._turn = threading.Lock()
        self._free = threading.Semaphore(_MOST_AT_ONCE)

    def parts(self, query: dict[str, str]) -> AsyncGenerator[Part]:
        """Return the parts of an answer as they come; who stops asking stops the work."""
        # Work begins with the first part asked for. A scenario that cannot be used has one part:
        # the message and the field that it is about.
        if not self._free.acquire(blocking=False):
            raise TooMany(
                f"{_MOST_AT_ONCE} answers are being worked out, which is the most; ask again"
            )
        left = threading.Event()
        # Given back once: when the work ends, or when nothing holds `left` as nobody began.
        give_back = weakref.finalize(left, self._free.release)
        return self._until_left(query, left, give_back)

    def warm(self) -> None:
        """Compile and load what the first state would wait for, in a thread of its own."""

        def run() -> None:
            for _ in self._parts(self._controls.values, lambda _: None, threading.Event()):
                pass

        threading.Thread(target=run, daemon=True).start()

    async def _until_left(
        self, query: dict[str, str], left: threading.Event, give_back: Callable[[], object]
    ) -> AsyncGenerator[Part]:
        """Begin, and yield parts until there are no more, or nobody asks for them."""
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[Part | None] = asyncio.Queue()

        def hand(part: Part | None) -> None:
            if not left.is_set() and not loop.is_closed():
                loop.call_soon_threadsafe(parts.put_nowait, part)

        # As a daemon: a simulation does not keep the command from ending.
        arguments = (query, hand, left, give_back)
        threading.Thread(target=self._run, args=arguments, name=ANSWER, daemon=True).start()
        try:
            while (part := await parts.get()) is not None:
                yield part
        finally:
            left.set()

    def _run(
        self,
        query: dict[str, str],
        hand: Callable[[Part | None], None],
        left: threading.Event,
        give_back: Callable[[], object],
    ) -> None:
        last = -1.0

        def shown(share: float) -> None:
            nonlocal last
            if abs(share - last) >= _STEP:
                last = share
                hand({"part": "progress", "share": share})

        try:
            for part in self._parts(self._controls.values_of(query), shown, left):
                hand(part)
        except _Left:
            pass
        except InputError as error:
            message = str(error)
            hand({"part": "refused", "message": message, "field": field_of(message)})
        except Exception as error:  # a bug: the page says so, the terminal has the traceback
            message = f"Penstock failed ({type(error).__name__}); please report it"
            hand({"part": "refused", "message": message, "field": None})
            raise
        finally:
            give_back()
            hand(None)

    def _parts(self, values: Values, shown: Progress, left: threading.Event) -> Iterator[Part]:
        def going(share: float) -> None:
            if left.is_set():
                raise _Left
            shown(share)

        case = self._controls.case(values)
        yield {"part": "theory", "scenario": case.text, **theory.theory(case)}
        yield {"part": "bounds", **theory.bounds(case)}
        if left.wait(_STILL_S):
            raise _Left
        with self._turn:
            going(0.0)
            yield {"part": "estimate", **theory.estimate(case)}
            yield _simulated(case, going)


def _simulated(case: Case, going: Progress) -> Part:
    """Return what `penstock check` says."""
    of = case.scenario
    asked: dict[str, Any] = {"until": of.until, "targets": case.targets, "progress": going}
    if of.is_network:
        answer = check(of.network, jobs=of.arrivals, outages=of.outages, **asked)
    else:
        answer = check(of.workload, of.server, requests=of.arrivals, **asked)
    return {
        "part": "simulation",
        **theory.as_data(head_of_answer(answer, of), answer.verdict),
        "answer": answer.as_dict(),
        "latency": _latency(answer),
        "queue": _queue(answer),
    }


def _latency(answer: Answer) -> Part | None:
    """Return latency by metric and statistic as `penstock check --json` has it, None if refused."""
    said = answer.as_dict()
    if said["latency"] is None:
        return None
    return {"values": said["latency"], "intervals": said["latency_interval"]}


def _queue(answer: Answer) -> Part:
    """Return the requests in the system over time."""
    series = answer.run.series
    series = series.gather_every(-(-series.height // _SERIES_POINTS))
    return {name: series[name].to_list() for name in ("time_s", "requests")}
