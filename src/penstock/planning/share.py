"""One replica's share of a stream, behind a router that does not look at queues."""

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools
from penstock.system.routing import Router
from penstock.workload.arrivals import BLOCK, Arrivals, GammaRenewal, Poisson, Seconds
from penstock.workload.workload import Workload

_LEAST_CV = 1e-3  # that gamma gaps may have


def share_of(workload: Workload, router: Router, replicas: int) -> Workload:
    """Return what one replica of a pool gets from a router that does not look at queues."""
    # At random: each with probability 1 / replicas, which leaves a Poisson process Poisson. Of a
    # recording the replica gets its requests, at their times.
    if replicas == 1:
        return workload
    arrivals, rows = workload.arrivals, workload.rows
    if arrivals is None:
        raise InputError(
            f"{workload.name} has lengths but no arrival times; give it a rate and arrivals: "
            "poisson"
        )
    if rows is None:
        share: Arrivals = _Share(arrivals, router, replicas)
        cv = arrivals.cv if isinstance(arrivals, GammaRenewal) else 1.0
        cv /= math.sqrt(replicas)
        if isinstance(arrivals, Poisson) and router.sends == "at random":
            share = arrivals.with_rate(share.rate)
        elif isinstance(arrivals, Poisson | GammaRenewal) and cv >= _LEAST_CV:
            # a sum of gamma gaps is gamma, so others' requests need not be drawn
            share = share if router.sends == "at random" else GammaRenewal(share.rate, cv)
        return dataclasses.replace(workload, arrivals=share)
    if workload.prefixes is not None:
        raise InputError(
            f"{workload.name} has prompts with shared prefixes, which a router sends to replicas "
            "that another has; resample it with arrivals: poisson"
        )
    chosen = _chosen(np.random.default_rng((workload.seed, 7)), rows, 0, router, replicas)
    if chosen.sum() < 2:
        raise InputError(
            f"{rows:,} recorded requests leave {chosen.sum()} for one of {replicas:,} replicas, "
            "too few to see anything; resample them with arrivals: poisson"
        )
    mine = workload.requests(rows).where(np.flatnonzero(chosen))
    return Workload.from_arrays(
        mine.arrival_s, mine.prompt_tokens, mine.output_tokens, mine.priority,
        seed=workload.seed, name=workload.name,
    )  # fmt: skip


def _chosen(
    rng: np.random.Generator, size: int, before: int, router: Router, replicas: int
) -> Bools:
    """Return which of ``size`` requests, after ``before`` others, the first replica gets."""
    if router.sends == "in turns":
        return np.asarray(np.arange(before, before + size) % replicas == 0)
    return rng.random(size) * replicas < 1


@dataclasses.dataclass(frozen=True)
class _Share(Arrivals):
    """One replica's share of a stream."""

    words: ClassVar[str] = "one replica's share"

    whole: Arrivals
    router: Router
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
        waiting, before = np.empty(0), 0
        for times in self.whole.blocks(rng):
            mine = times[_chosen(coin, times.size, before, self.router, self.replicas)]
            before += times.size
            waiting = np.concatenate([waiting, mine])
            while waiting.size >= BLOCK:
                yield waiting[:BLOCK]
                waiting = waiting[BLOCK:]

    def with_rate(self, rate: float) -> "_Share":
        """Return the same share of a faster or slower stream."""
        return dataclasses.replace(self, whole=self.whole.with_rate(rate * self.replicas))
