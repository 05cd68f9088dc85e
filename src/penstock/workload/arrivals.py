"""When requests arrive: renewal processes, modulated ones, and the replay of recorded times.

A process yields its times in blocks, for ever or until a recording ends. Each has a long-run `rate`, and says
whether it is a sequence of independent, identically distributed gaps, which Theorem 1(b) asks for.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError

BLOCK = 65_536
"""Arrivals generated at a time; fixed, so that the first n requests do not depend on how many are asked for."""

Seconds = npt.NDArray[np.float64]


def _check_rate(rate: float) -> None:
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"the arrival rate is {rate} requests/s, but must be positive: nothing would ever arrive")


class Arrivals(abc.ABC):
    """A stream of arrival times."""

    rate: float
    """Long-run requests per second."""

    iid: bool
    """Whether gaps are independent and identically distributed."""

    finite: bool = False
    """Whether the stream ends (a recording)."""

    @abc.abstractmethod
    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield rising arrival times in seconds, at most `BLOCK` at a time."""

    @abc.abstractmethod
    def with_rate(self, rate: float) -> Self:
        """Return the same pattern, sped up or slowed down to a rate."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Say in a few words what it is."""


class Renewal(Arrivals):
    """Independent, identically distributed gaps."""

    iid = True

    @abc.abstractmethod
    def _gaps(self, rng: np.random.Generator) -> Seconds:
        """Return `BLOCK` gaps in seconds."""

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield running sums of gaps."""
        last = 0.0
        while True:
            gaps = self._gaps(rng)
            gaps[0] += last
            times = np.cumsum(gaps)
            last = times[-1]
            yield times

    def with_rate(self, rate: float) -> Self:
        """Return the same process at another rate."""
        return dataclasses.replace(self, rate=rate)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class Poisson(Renewal):
    """Exponential gaps: arrivals of many independent users."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def _gaps(self, rng: np.random.Generator) -> Seconds:
        return rng.standard_exponential(BLOCK) / self.rate

    def describe(self) -> str:
        """Say what it is."""
        return "Poisson arrivals"


@dataclasses.dataclass(frozen=True)
class Deterministic(Renewal):
    """Equal gaps."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield multiples of the gap, each rounded once."""
        first = 1
        while True:
            yield np.arange(first, first + BLOCK) / self.rate
            first += BLOCK

    def _gaps(self, rng: np.random.Generator) -> Seconds:
        return np.full(BLOCK, 1 / self.rate)

    def describe(self) -> str:
        """Say what it is."""
        return "evenly spaced arrivals"


@dataclasses.dataclass(frozen=True)
class GammaRenewal(Renewal):
    """Gamma-distributed gaps: burstier than Poisson for a coefficient of variation above 1, smoother below.

    Parameters
    ----------
    rate
        Requests per second.
    cv
        Standard deviation of a gap over its mean.
    """

    rate: float
    cv: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not (np.isfinite(self.cv) and self.cv > 0):
            raise InputError(f"the cv of gamma arrivals is {self.cv}, but must be positive; for even gaps use deterministic")

    def _gaps(self, rng: np.random.Generator) -> Seconds:
        return rng.standard_gamma(1 / self.cv**2, BLOCK) * (self.cv**2 / self.rate)

    def describe(self) -> str:
        """Say what it is."""
        return f"gamma arrivals (cv {self.cv:g})"


@dataclasses.dataclass(frozen=True)
class Modulated(Arrivals):
    """A gamma renewal stream whose rate changes: bursts, or a level that wanders.

    The rate is constant on segments; in *operational* time (the integral of the rate) gaps are gamma with mean 1.
    """

    rate: float
    gamma_shape: float

    iid = False

    @abc.abstractmethod
    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        """Yield (durations in seconds, rates per second) of successive segments, many at a time."""

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield arrivals: operational times mapped back through the segments."""
        rate_rng, gap_rng = rng.spawn(2)
        clock = 0.0  # operational time of the last arrival
        begin_s, begin_op = 0.0, 0.0  # where the segments in hand begin
        pending = np.empty(0)
        for durations, rates in self._segments(rate_rng):
            ends_s = begin_s + np.cumsum(durations)
            ends_op = begin_op + np.cumsum(durations * rates)
            while not pending.size or pending[-1] <= ends_op[-1]:
                gaps = gap_rng.standard_gamma(self.gamma_shape, BLOCK) / self.gamma_shape
                gaps[0] += clock
                more = np.cumsum(gaps)
                clock = more[-1]
                pending = np.concatenate([pending, more])
            now, pending = np.split(pending, [np.searchsorted(pending, ends_op[-1], side="right")])
            segment = np.searchsorted(ends_op, now, side="left")
            times = ends_s[segment] - (ends_op[segment] - now) / rates[segment]
            yield from (times[i : i + BLOCK] for i in range(0, times.size, BLOCK))
            begin_s, begin_op = ends_s[-1], ends_op[-1]


@dataclasses.dataclass(frozen=True)
class OnOff(Modulated):
    """Bursts and silences of gamma-distributed length; each burst has a rate of its own.

    Parameters
    ----------
    on_mean_s, on_cv, off_mean_s, off_cv
        Length of bursts and of silences at the base rate, seconds.
    burst_log_sd
        Standard deviation of the logarithm of a burst's rate.
    """

    on_mean_s: float
    on_cv: float
    off_mean_s: float
    off_cv: float
    burst_log_sd: float

    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        count = 1024
        share = self.on_mean_s / (self.on_mean_s + self.off_mean_s)
        while True:
            on = rng.gamma(1 / self.on_cv**2, self.on_mean_s * self.on_cv**2, count)
            off = rng.gamma(1 / self.off_cv**2, self.off_mean_s * self.off_cv**2, count)
            level = np.exp(self.burst_log_sd * rng.standard_normal(count) - self.burst_log_sd**2 / 2)
            durations = np.stack([on, off], axis=1).ravel()
            rates = np.stack([self.rate / share * level, np.zeros(count)], axis=1).ravel()
            yield durations, rates

    def with_rate(self, rate: float) -> Self:
        """Return the same bursts, stretched in time so that the long-run rate is the one asked for."""
        _check_rate(rate)
        stretch = self.rate / rate
        return dataclasses.replace(
            self, rate=rate, on_mean_s=self.on_mean_s * stretch, off_mean_s=self.off_mean_s * stretch
        )

    def describe(self) -> str:
        """Say what it is."""
        return "bursts and silences"


@dataclasses.dataclass(frozen=True)
class WanderingRate(Modulated):
    """A rate whose logarithm is a first-order autoregression over equal steps.

    Parameters
    ----------
    step_s
        Length of a step, seconds.
    log_sd
        Stationary standard deviation of the log rate.
    correlation
        Between one step and the next.
    """

    step_s: float
    log_sd: float
    correlation: float

    def _segments(self, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds]]:
        count = 1024
        level = self.log_sd * rng.standard_normal()
        while True:
            shocks = rng.standard_normal(count) * self.log_sd * np.sqrt(1 - self.correlation**2)
            levels = np.empty(count)
            for i, shock in enumerate(shocks):
                levels[i] = level = self.correlation * level + shock
            yield np.full(count, self.step_s), self.rate * np.exp(levels - self.log_sd**2 / 2)

    def with_rate(self, rate: float) -> Self:
        """Return the same wandering, stretched in time so that the long-run rate is the one asked for."""
        _check_rate(rate)
        return dataclasses.replace(self, rate=rate, step_s=self.step_s * self.rate / rate)

    def describe(self) -> str:
        """Say what it is."""
        return "arrivals at a wandering rate"


@dataclasses.dataclass(frozen=True, eq=False)
class Replay(Arrivals):
    """Recorded arrival times, once.

    Parameters
    ----------
    times_s
        Shape (requests,), seconds, not falling.
    """

    times_s: Seconds

    iid = False
    finite = True

    @property
    def rate(self) -> float:  # type: ignore[override]
        """Requests over the time they span; NaN where they span none."""
        span = float(self.times_s[-1] - self.times_s[0])
        return self.times_s.size / span if span > 0 else float("nan")

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield the recorded times."""
        yield from (self.times_s[i : i + BLOCK] for i in range(0, self.times_s.size, BLOCK))

    def with_rate(self, rate: float) -> Self:
        """Return the recording, stretched."""
        _check_rate(rate)
        if not np.isfinite(self.rate):
            raise InputError(
                f"all {self.times_s.size} recorded requests arrive at one instant, so their times cannot be stretched to "
                f"{rate:g} requests/s; resample them with arrivals 'poisson'"
            )
        first = self.times_s[0]
        return dataclasses.replace(self, times_s=first + (self.times_s - first) * (self.rate / rate))

    def describe(self) -> str:
        """Say what it is."""
        return "recorded arrivals, replayed once"
