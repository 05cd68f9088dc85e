"""Clocks for real engines: real time, and time that keeps step with a machine whose pace changes.

On a shared host the neighbours slow a machine down by 10% and more, for seconds or minutes. A queue
at load rho multiplies that by about 1 / (1 - rho), so that at .8 a run says more of the neighbours
than of the queue. A paced clock counts in units of the machine's own work: several times a second,
between two batches, it stands still while a second engine runs the same few batches, and then goes
on at the pace that those had.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

EVERY_S = 0.25
"""Real seconds between two looks at the pace; it changes within a second."""
# The rest of a wait is spent looking at the clock: sleep ends late by about a tenth of that.
_SPIN_S = 0.002
_FIRST = 40  # looks that say what the usual pace is


class Clock:
    """Real time.

    Attributes
    ----------
    paces
        Real seconds that a second of this clock took, in order; empty if it is always 1.
    """

    paces: Sequence[float] = ()

    def __call__(self) -> float:
        """Return seconds since some moment."""
        return time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Wait so long, or a little less."""
        if seconds > _SPIN_S:
            time.sleep(seconds - _SPIN_S)

    def between_batches(self) -> None:
        """Take the opportunity to do what must not disturb a batch."""


class PacedClock(Clock):
    """Time in units of the same work.

    Parameters
    ----------
    work
        What to time, always the same, a tenth of a second or so; it must not wait.
    now
        Real seconds since some moment.

    Notes
    -----
    A second is a real one when the work takes the time that it took in the median of its first
    forty runs.
    """

    def __init__(
        self, work: Callable[[], object], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._work, self._now = work, now
        work()  # first times are slow
        self._usual = float(np.median([self._timed() for _ in range(_FIRST)]))
        self.paces: list[float] = []
        self._passed = 0.0
        self._look()

    def __call__(self) -> float:
        """Return seconds since some moment."""
        return self._passed + (self._now() - self._since) / self.paces[-1]

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is time to look at the pace."""
        super().wait(min(seconds * self.paces[-1], EVERY_S))
        self.between_batches()

    def between_batches(self) -> None:
        """Look at the pace if it is time."""
        if self._now() - self._since >= EVERY_S:
            self._passed = self()
            self._look()

    def _look(self) -> None:
        self.paces.append(self._timed() / self._usual)
        self._since = self._now()

    def _timed(self) -> float:
        begin = self._now()
        self._work()
        return self._now() - begin
