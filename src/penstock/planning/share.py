"""One replica's share of a stream, behind a router that does not look at queues."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.workload.arrivals import BLOCK, Arrivals, GammaRenewal, Poisson, Seconds
from penstock.workload.workload import Workload

_LEAST_CV = 1e-3  # that gamma gaps may have


def share_of(workload: Workload, router: str, replicas: int) -> Workload:
    """Return what one replica of a pool gets from a router that does not look at queues."""
    # ``random``: each with probability 1 / replicas, which leaves a Poisson process Poisson.
    # ``round-robin``: in turn. Of a recording the replica gets its requests, at their times.
    if replicas == 1:
        return workload
    if workload.arrivals is None:
        raise InputError(
            f"{workload.name} has lengths but no arrival times; give it a rate and arrivals: "
            "poisson"
        )
    rows = workload.rows
    if rows is None:
        return dataclasses.replace(
            workload, arrivals=_share_of(workload.arrivals, router, replicas)
        )
    if workload.prefixes is not None:
        raise InputError(
            f"{workload.name} has prompts with shared prefixes, which a router sends to replicas "
            "that another has; "
            "resample it with arrivals: poisson"
        )
    kept = np.flatnonzero(
        _chosen(np.random.default_rng((workload.seed, 7)), rows, 0, router, replicas)
    )
    if kept.size < 2:
        raise InputError(
            f"{rows:,} recorded requests leave {kept.size} for one of {replicas:,} replicas, too "
            "few to see anything; "
            "resample them with arrivals: poisson"
        )
    mine = workload.requests(rows).where(kept)
    return Workload.from_arrays(
        mine.arrival_s,
        mine.prompt_tokens,
        mine.output_tokens,
        mine.priority,
        seed=workload.seed,
        name=workload.name,
    )


def _share_of(arrivals: Arrivals, router: str, replicas: int) -> Arrivals:
    """Return one replica's share of a stream, without drawing others' where gaps are known."""
    if isinstance(arrivals, Poisson) and router == "random":
        return arrivals.with_rate(arrivals.rate / replicas)
    if (
        isinstance(arrivals, Poisson | GammaRenewal) and router == "round-robin"
    ):  # a sum of gamma gaps is gamma
        cv = arrivals.cv if isinstance(arrivals, GammaRenewal) else 1.0
        if cv / math.sqrt(replicas) >= _LEAST_CV:
            return GammaRenewal(arrivals.rate / replicas, cv / math.sqrt(replicas))
    return _Share(arrivals, router, replicas)


def _chosen(
    rng: np.random.Generator, size: int, before: int, router: str, replicas: int
) -> npt.NDArray[np.bool_]:
    """Return which of ``size`` requests, after ``before`` others, the first replica gets."""
    if router == "round-robin":
        turn: npt.NDArray[np.bool_] = np.arange(before, before + size) % replicas == 0
        return turn
    return rng.random(size) * replicas < 1


@dataclasses.dataclass(frozen=True)
class _Share(Arrivals):
    """One replica's share of a stream."""

    whole: Arrivals
    router: str
    replicas: int

    @property
    def rate(self) -> float:  # type: ignore[override]
        """Requests/s at the replica."""
        return self.whole.rate / self.replicas

    @property
    def iid(self) -> bool:  # type: ignore[override]
        """Whether its gaps are: sums of so many of the whole are independent where those are."""
        return self.whole.iid

    def blocks(self, rng: np.random.Generator) -> Iterator[Seconds]:
        """Yield the times of the requests that the replica gets."""
        coin = rng.spawn(1)[0]
        kept, before = np.empty(0), 0
        for times in self.whole.blocks(rng):
            mine = times[_chosen(coin, times.size, before, self.router, self.replicas)]
            before += times.size
            kept = np.concatenate([kept, mine])
            while kept.size >= BLOCK:
                yield kept[:BLOCK]
                kept = kept[BLOCK:]

    def with_rate(self, rate: float) -> "_Share":
        """Return the same share of a faster or slower stream."""
        return dataclasses.replace(self, whole=self.whole.with_rate(rate * self.replicas))

    def describe(self) -> str:
        """Say what it is."""
        return f"1 of {self.replicas:,} shares ({self.router}) of {self.whole.describe()}"
