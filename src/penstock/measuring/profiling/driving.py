"""Drive a real engine in real time, or as fast as it goes, through requests; keep what happened.

The time of a batch is a period: from the end of the batch before it, or from when there was
something to do, to when its tokens were read. So it holds what the engine's loop costs besides the
forward pass, as batch times must.
"""

import dataclasses
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.measuring.profiling.batching import Batch
from penstock.measuring.profiling.engine import RealEngine
from penstock.simulation.progress import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """Batches that ran.

    Attributes
    ----------
    begin_s, end_s
        Shape (batches,), seconds since the start.
    sums
        Shape (batches, 6): prefill tokens, decode tokens, requests, squares, pairs, context
        (`Batch.sums`).
    """

    begin_s: Floats
    end_s: Floats
    sums: Ints

    @property
    def seconds(self) -> Floats:
        """Shape (batches,): how long each took."""
        return self.end_s - self.begin_s


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """What happened to requests that arrived in real time.

    Attributes
    ----------
    arrival_s, first_token_s, finish_s
        Shape (requests,), seconds since the start; arrivals as planned.
    gaps_s
        Seconds between successive tokens of a request, pooled.
    batches
        The batches.
    """

    arrival_s: Floats
    first_token_s: Floats
    finish_s: Floats
    gaps_s: Floats
    batches: Batches


class _Steps:
    """Batches that an engine runs from now on, and when."""

    def __init__(self, engine: RealEngine) -> None:
        self.engine, self.clock = engine, engine.clock
        self.times: list[tuple[float, float]] = []
        self.batches: list[Batch] = []
        self.start, self.now = self.clock(), 0.0

    def wait(self, until: float) -> None:
        """Wait until so many seconds after the start."""
        while (left := until - self._passed()) > 0:
            self.clock.wait(left)

    def next(self) -> Batch:
        """Run a batch; it began when the one before it ended, or when there was something to do."""
        self.batches.append(self.engine.step())
        self.times.append((self.now, self._passed()))
        return self.batches[-1]

    @property
    def done(self) -> Batches:
        """The batches in columns."""
        begin, end = np.array(self.times, np.float64).reshape(-1, 2).T
        sums = np.array([batch.sums for batch in self.batches], np.int64).reshape(-1, 6)
        return Batches(begin, end, sums)

    def _passed(self) -> float:
        self.now = self.clock() - self.start
        return self.now


def drive(
    engine: RealEngine,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    *,
    most_seconds: float = float("inf"),
    progress: Progress | None = None,
) -> Timeline:
    """Submit requests when their time has come, and step the engine until all have left.

    Parameters
    ----------
    engine
        An idle engine.
    arrival_s, prompt_tokens, output_tokens
        Shape (requests,): seconds since the start, not falling; tokens.
    most_seconds
        Give up after so long.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If it takes longer than that.
    """
    count, clock = arrival_s.size, engine.clock
    arrivals, prompts, outputs = arrival_s.tolist(), prompt_tokens.tolist(), output_tokens.tolist()
    first, last = [-1.0] * count, [0.0] * count
    gaps: list[float] = []
    came = 0
    clock.between_batches()
    with without_garbage_collection():
        steps = _Steps(engine)
        while came < count or engine.busy:
            if not engine.busy:
                steps.wait(arrivals[came])
            while came < count and arrivals[came] <= steps.now:
                engine.submit(came, prompts[came], outputs[came])
                came += 1
            for request in steps.next().puts_out:
                if first[request] < 0:
                    first[request] = steps.now
                else:
                    gaps.append(steps.now - last[request])
                last[request] = steps.now
            clock.between_batches()
            if steps.now > most_seconds:
                raise InputError(
                    f"the engine is not done after {steps.now:,.0f} s, with {count - came:,} "
                    "requests still to come; the machine is much slower than when it was "
                    "measured: lower the load, or let nothing else run on it"
                )
            if progress is not None and len(steps.batches) % 32 == 0:
                progress(min(came / count, 0.999))
    return Timeline(arrival_s, np.array(first), np.array(last), np.array(gaps), steps.done)


@dataclasses.dataclass(frozen=True)
class Episode:
    """Requests to be submitted before steps: (step, prompt tokens, output tokens), in order."""

    requests: tuple[tuple[int, int, int], ...]


def run_episode(engine: RealEngine, episode: Episode) -> Batches:
    """Run an episode to its end as fast as the engine goes."""
    came, step = 0, 0
    requests = episode.requests
    engine.clock.between_batches()
    steps = _Steps(engine)
    while came < len(requests) or engine.busy:
        if not engine.busy:
            step = max(step, requests[came][0])
        while came < len(requests) and requests[came][0] <= step:
            engine.submit(came, *requests[came][1:])
            came += 1
        steps.next()
        engine.clock.between_batches()
        step += 1
    return steps.done


def joined(parts: Sequence[Batches]) -> Batches:
    """Put measurements after one another; each part counts its own seconds."""
    columns = zip(*((part.begin_s, part.end_s, part.sums) for part in parts), strict=True)
    return Batches(*(np.concatenate(column) for column in columns))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python from pausing for its garbage while the clock runs."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
