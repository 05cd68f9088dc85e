"""The highest stable rate of a server: by theorem where these leave no gap, else by simulation."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping

from penstock.capacity.max_rate import SIMULATION, max_rate
from penstock.errors import InputError
from penstock.simulation.progress import Progress, in_parts, silent
from penstock.system.server import Server
from penstock.theory.ends import taken_as_exact
from penstock.workload.workload import Workload

PRECISION = 0.02
"""Relative distance that is left between the highest rate known to be stable and the lowest known
not to be.
"""


@dataclasses.dataclass(frozen=True)
class StableRate:
    """How much a server carries, and how that is known."""

    rate: float | None  # highest rate known to be stable, requests/s; None where there is none
    # Lowest rate above it that is not: unstable, or too close to the limit to tell.
    above: float | None
    known: str  # the theorem, `simulation`, or why there is no rate

    @property
    def by_theorem(self) -> bool:
        """Whether no simulation was needed."""
        return self.rate is not None and self.known != SIMULATION


@dataclasses.dataclass(frozen=True, eq=False)
class RateMap:
    """Stable rates over token budget and max batch size."""

    server: Server  # its two limits vary
    # By token budget and max batch size (None: no limit).
    cells: Mapping[tuple[int, int | None], StableRate]

    @property
    def best(self) -> tuple[int, int | None] | None:
        """Token budget and max batch size of the highest rate, smallest of equals; None: none."""
        known = {
            limits: found.rate for limits, found in self.cells.items() if found.rate is not None
        }
        return min(known, key=lambda limits: -known[limits]) if known else None


def stable_rate(
    workload: Workload, server: Server, *, progress: Progress | None = None
) -> StableRate:
    """Return a server's highest stable rate: `max_rate` with another precision."""
    server = taken_as_exact(server)
    found = max_rate(workload, server, precision=PRECISION, seed=workload.seed, progress=progress)
    return StableRate(found.rate, found.above, found.known)


def rate_map(
    workload: Workload, server: Server, others: Iterable[Server], progress: Progress | None = None
) -> RateMap | None:
    """Return a server's stable rate at every pair of limits that others have; None: one pair."""
    # Recorded arrivals keep their pattern, not thinned to a share.
    budgets, sizes = zip(*((one.token_budget, one.max_batch_size) for one in others), strict=True)
    ascending = sorted(set(sizes), key=lambda size: (size is None, size or 0))
    limits = list(itertools.product(sorted(set(budgets)), ascending))
    if len(limits) < 2:
        return None
    cells = {}
    for (budget, size), part in in_parts(progress, limits):
        try:
            limited = dataclasses.replace(server, token_budget=budget, max_batch_size=size)
            cells[budget, size] = stable_rate(workload, limited, progress=part)
        except InputError as error:
            cells[budget, size] = StableRate(None, None, str(error))
    (progress or silent)(1.0)
    return RateMap(server, cells)
