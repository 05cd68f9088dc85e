"""A run on its way: blocks of arrivals go into a session, and what became of them comes out."""

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.distribution import Distribution
from penstock.simulation.progress import Progress, silent

_Item = TypeVar("_Item")
_STEPS = 500_000  # batches between two reports of progress: a blink
_WINDOW = 2**18  # arrivals that go into the kernel at a time
_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass
class Running:
    """A run of a session, of a server or a network.

    A ``whole`` run keeps all that arrives in memory until the end; else latencies are folded, and
    only what has not finished stays.
    """

    session: Any
    whole: bool
    drain: bool
    total: int | None  # arrivals; None: the run stops at a tick
    progress: Progress = silent
    gap_sections: int = 0
    passed: list[Any] = dataclasses.field(default_factory=list)
    gaps: list[Distribution] = dataclasses.field(default_factory=list)
    last_arrival: int = 0  # tick
    arrived: int = 0

    def through(self, blocks: Iterator[Any]) -> None:
        """Run block after block; the last two together, as a batch may outlast a short last one."""
        full: list[Any] = []
        held: list[Any] = []
        if self.whole:
            self._serve(list(blocks), final=True)
            return
        with contextlib.closing(drawn_ahead(blocks)) as coming:
            for block in coming:
                if held and sum(map(_size, held)) < _WINDOW:
                    held.append(block)
                    continue
                if full:
                    self._serve(full, final=False)
                full, held = held, [block]
        self._serve(full + held, final=True)

    def _serve(self, blocks: Sequence[Any], final: bool) -> None:
        session = self.session
        if blocks:
            session.add(type(blocks[0]).joined(blocks))
        known = session.arrivals.size
        if known:
            self.last_arrival = int(session.arrivals[-1])
        self.run(known, final)
        passed = session.fold(everything=final)
        if self.whole:
            self.passed.append(passed)
            return
        for (ttft, e2e), columns in zip(session.folds, session.latencies(passed), strict=True):
            arrival, first_token, finish = columns
            ttft.add(arrival, first_token)
            e2e.add(arrival, finish)
        self.passed.append(session.ends_of(passed))

    def run(self, known: int, final: bool) -> None:
        """Go on until so many arrivals are used up; final ones to the end, or the last arrival."""
        session = self.session
        stops = final and not self.drain and session.stop == NEVER
        until = self.last_arrival if stops else session.stop
        for count in [*self._section_ends(known), known]:
            while not session.run(final and count == known, until, _STEPS, count):
                self._report()
            if self.gap_sections:
                self.gaps.append(session.gaps())
        self._report()

    def _section_ends(self, known: int) -> Ints:
        """Return the arrivals up to which the sections go, but for the last."""
        ends = np.arange(1, self.gap_sections) * known // max(self.gap_sections, 1)
        return np.unique(ends[ends > 0])

    @property
    def sections(self) -> tuple[Distribution, ...]:
        """Times between tokens of each section."""
        pairs = itertools.pairwise([Distribution.of(_NONE), *self.gaps])
        return tuple(later.since(earlier) for earlier, later in pairs)

    def _report(self) -> None:
        if self.total is None:
            self.progress(self.session.now / self.session.stop)
        else:
            self.progress(self.session.share_of(self.total))


def _size(block: Any) -> int:
    return int(block.arrival_s.size)


def drawn_ahead(items: Iterator[_Item]) -> Generator[_Item, None, None]:
    """Yield items while a thread draws the next: compiled code and NumPy let both go on."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
