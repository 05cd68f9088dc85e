"""When requests arrive: renewal processes, modulated ones, and the replay of recorded times.

A process yields its times in blocks, for ever or until a recording ends. Each has a long-run
`rate`, and says whether it is a sequence of independent, identically distributed gaps, which
Theorem 1(b) asks for.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Self

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.workload.recorded_times import time_doubts

BLOCK = 65_536
"""Arrivals generated at a time; fixed, so that the first n requests do not depend on how many are
asked for.
"""

MOST_ARRIVALS = 10**10
"""Requests, or jobs, that a run can be asked for: they take hours."""

Seconds = npt.NDArray[np.float64]

_HIGHEST_RATE = 1e9
_LATEST_S = 1e12  # in simulated time; a run takes what its ticks can count
_SEGMENTS = 1024  # of a rate that changes, drawn at a time


_SPEED = "below, nothing arrives in years; above, gaps are shorter than a nanosecond"
_RATE = Range(1e-9, _HIGHEST_RATE, "requests/s", _SPEED, "the arrival rate")
_LENGTH = Range(1e-9, _LATEST_S, "s", "times are counted in nanoseconds")
_EVEN = "it is no percentage; for even gaps use deterministic arrivals"
_CV = Range(1e-3, 50, "", _EVEN)
_CV_OF_GAMMA = Range(1e-3, 50, "", _EVEN, "the cv of gamma arrivals")
_SHAPE = Range(1e-6, 1e6, "", "1 gives exponential gaps, less burstier ones")
_OF_BURSTS = Range(0, 5, "", "beyond, almost all arrivals come in a few bursts")
_OF_STEPS = Range(0, 5, "", "beyond, almost all arrivals come in a few steps")
_CORRELATION = Range(-0.9999, 0.9999, "", "at 1 the rate would never come back")


class Arrivals(abc.ABC):
    """A stream of arrival times."""

    rate: float
    """Long-run requests per second."""

    iid: bool
    """Whether gaps are independent and identically distributed."""

    @abc.abstractmethod
    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield arrival times, s, never falling, `BLOCK` at a time; the last block may be short."""

    @abc.abstractmethod
    def with_rate(self, rate: float) -> Self:
        """Return the same pattern, sped up or slowed down to a rate."""

    @property
    def doubts(self) -> list[str]:
        """What its times look like that are no arrival times."""
        return []

    words: ClassVar[str] = "arrivals"
    """What it is, in a few words."""

    def describe(self) -> str:
        """Say in a few words what it is."""
        return self.words


def _running_sums(gaps: Callable[[], Seconds]) -> Iterator[Seconds]:
    last = 0.0
    while True:
        block = gaps()
        block[0] += last
        times = np.cumsum(block)
        last = times[-1]
        yield times


@dataclasses.dataclass(frozen=True)
class _AtRate(Checked, Arrivals):
    """Arrivals without end at a rate that is given."""

    rate: Annotated[float, _RATE]

    def with_rate(self, rate: float) -> Self:
        """Return the same pattern at another rate."""
        return dataclasses.replace(self, rate=rate)


@dataclasses.dataclass(frozen=True)
class Poisson(_AtRate):
    """Exponential gaps: arrivals of many independent users."""

    iid = True
    words = "Poisson arrivals"

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield running sums of exponential gaps."""
        # As rng.standard_exponential, which would not let other threads work meanwhile.
        return _running_sums(lambda: rng.exponential(size=BLOCK) / self.rate)


@dataclasses.dataclass(frozen=True)
class Deterministic(_AtRate):
    """Equal gaps."""

    iid = True
    words = "evenly spaced arrivals"

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield 0, 1, 2, ... gaps, each time rounded once."""
        first = 0
        while True:
            yield np.arange(first, first + BLOCK) / self.rate
            first += BLOCK


@dataclasses.dataclass(frozen=True)
class GammaRenewal(_AtRate):
    """Gamma gaps: burstier than Poisson for a coefficient of variation above 1, smoother below."""

    cv: Annotated[float, _CV_OF_GAMMA]  # standard deviation of a gap over its mean

    iid = True

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield running sums of gamma gaps."""
        return _running_sums(
            lambda: rng.standard_gamma(1 / self.cv**2, BLOCK) * (self.cv**2 / self.rate)
        )

    def describe(self) -> str:
        """Say what it is."""
        return f"gamma arrivals (cv {self.cv:g})"


@dataclasses.dataclass(frozen=True)
class Modulated(_AtRate):
    """A gamma renewal stream whose rate changes: bursts, or a level that wanders.

    The rate is constant on segments; in *operational* time (the integral of the rate) gaps are
    gamma with mean 1.
    """

    gamma_shape: Annotated[float, _SHAPE]  # of the gaps in operational time; 1: exponential

    iid = False

    @abc.abstractmethod
    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        """Yield (durations in seconds, rates per second) of successive segments, many at a time."""

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield arrivals: operational times mapped back through the segments."""
        rate_rng, gap_rng = rng.spawn(2)
        segments = self._segments(rate_rng)
        ends_s, ends_op, rates = np.zeros(1), np.zeros(1), np.ones(1)  # of the segments in hand
        last = 0.0
        for now in _running_sums(
            lambda: gap_rng.standard_gamma(self.gamma_shape, BLOCK) / self.gamma_shape
        ):
            while ends_op[-1] < now[-1]:
                durations, new_rates = next(segments)
                ends_s = np.concatenate([ends_s, ends_s[-1] + np.cumsum(durations)])
                ends_op = np.concatenate([ends_op, ends_op[-1] + np.cumsum(durations * new_rates)])
                rates = np.concatenate([rates, new_rates])
            # The first that ends then or later, so its rate is not 0.
            segment = np.searchsorted(ends_op, now)
            times = ends_s[segment] - (ends_op[segment] - now) / rates[segment]
            times = np.maximum.accumulate(np.maximum(times, last))  # rounding, where segments meet
            last = times[-1]
            yield times
            ends_s, ends_op, rates = (
                ends_s[segment[-1] :],
                ends_op[segment[-1] :],
                rates[segment[-1] :],
            )


@dataclasses.dataclass(frozen=True)
class OnOff(Modulated):
    """Bursts and silences of gamma-distributed length; each burst has a rate of its own."""

    on_mean_s: Annotated[float, _LENGTH]
    on_cv: Annotated[float, _CV]
    off_mean_s: Annotated[float, _LENGTH]
    off_cv: Annotated[float, _CV]
    burst_log_sd: Annotated[
        float, _OF_BURSTS
    ]  # standard deviation of the logarithm of a burst's rate

    words = "bursts and silences"

    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        rate_on = self.rate * (self.on_mean_s + self.off_mean_s) / self.on_mean_s
        while True:
            on = rng.gamma(1 / self.on_cv**2, self.on_mean_s * self.on_cv**2, _SEGMENTS)
            off = rng.gamma(1 / self.off_cv**2, self.off_mean_s * self.off_cv**2, _SEGMENTS)
            level = np.exp(
                self.burst_log_sd * rng.standard_normal(_SEGMENTS) - self.burst_log_sd**2 / 2
            )
            rates = np.stack([rate_on * level, np.zeros(_SEGMENTS)], axis=1)
            yield np.stack([on, off], axis=1).ravel(), rates.ravel()

    def with_rate(self, rate: float) -> Self:
        """Return the same bursts, stretched in time to the long-run rate that is asked for."""
        rate = _RATE.number(rate)
        stretch = self.rate / rate
        return dataclasses.replace(
            self,
            rate=rate,
            on_mean_s=self.on_mean_s * stretch,
            off_mean_s=self.off_mean_s * stretch,
        )


@dataclasses.dataclass(frozen=True)
class WanderingRate(Modulated):
    """A rate whose logarithm is a first-order autoregression over equal steps."""

    step_s: Annotated[float, _LENGTH]  # length of a step
    log_sd: Annotated[float, _OF_STEPS]  # stationary standard deviation of the log rate
    correlation: Annotated[float, _CORRELATION]  # between one step and the next

    words = "arrivals at a wandering rate"

    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        level = self.log_sd * rng.standard_normal()
        while True:
            shocks = rng.standard_normal(_SEGMENTS) * self.log_sd * np.sqrt(1 - self.correlation**2)
            levels = np.empty(_SEGMENTS)
            for index, shock in enumerate(shocks):
                levels[index] = level = self.correlation * level + shock
            yield np.full(_SEGMENTS, self.step_s), self.rate * np.exp(levels - self.log_sd**2 / 2)

    def with_rate(self, rate: float) -> Self:
        """Return the same wandering, stretched in time to the long-run rate that is asked for."""
        rate = _RATE.number(rate)
        return dataclasses.replace(self, rate=rate, step_s=self.step_s * self.rate / rate)


@dataclasses.dataclass(frozen=True, eq=False)
class Replay(Arrivals):
    """Recorded arrival times, once."""

    times_s: Seconds  # shape (requests,), not falling
    unit: str | None = None  # as their file counts them; None: that is not in doubt
    fractions: bool = False  # of a unit that the file's format has whole

    iid = False
    words = "recorded arrivals, replayed once"

    def __post_init__(self) -> None:
        times = checks.column("arrival_s", self.times_s).astype(np.float64)
        fits = np.abs(times) <= _LATEST_S
        if not fits.all():
            row = int(np.argmin(fits))
            raise InputError(
                f"arrival_s[{row}] is {times[row]:g}, but an arrival is a number of seconds, at "
                f"most {_LATEST_S:g}; mend or drop that row"
            )
        falls = np.diff(times) < 0
        if falls.any():
            row = int(np.argmax(falls)) + 1
            raise InputError(
                f"arrival_s[{row}] = {times[row]:g} s is before the request ahead of it; sort by "
                "arrival"
            )
        object.__setattr__(self, "times_s", times)

    @property
    def rate(self) -> float:  # type: ignore[override]
        """One over the mean gap; NaN where all arrive so near one instant that no process would."""
        span = float(self.times_s[-1] - self.times_s[0])
        gaps = self.times_s.size - 1
        return gaps / span if span > 0 and gaps / span <= _HIGHEST_RATE else float("nan")

    @functools.cached_property
    def doubts(self) -> list[str]:
        """What these times look like that are no arrival times."""
        return time_doubts(self.times_s, self.rate, self.unit, fractions=self.fractions)

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield the recorded times."""
        yield from (self.times_s[i : i + BLOCK] for i in range(0, self.times_s.size, BLOCK))

    def with_rate(self, rate: float) -> Self:
        """Return the recording, stretched."""
        rate = _RATE.number(rate)
        if not np.isfinite(self.rate):
            raise InputError(
                f"all {self.times_s.size} recorded requests arrive at one instant, so their times "
                "cannot be stretched "
                f"to {rate:g} requests/s; resample them with arrivals 'poisson'"
            )
        first = self.times_s[0]
        return dataclasses.replace(
            self,
            times_s=first + (self.times_s - first) * (self.rate / rate),
            unit=None,
            fractions=False,
        )
