"""Replicas that differ: what a pool of them carries, by its router.

The paper's parallel-server proposition is for identical servers. For servers that differ the shares
that a router sends to each set of them decide. Replica k carries C_k tokens/s in full batches; a
request has m forward tokens on average, whichever replica it goes to. For a set M of replicas let
phi(M) be the largest share of the arrivals that goes into M while all of M are busy and all others
are empty, in the fluid model.

**Stable**, for work-conserving replicas, i.i.d. arrivals and bounded i.i.d. lengths that the router
does not go by, if for every set M

    lambda m phi(M) < sum of C_k over M.

**Unstable** under that router, if some set M gets a share psi(M) of the arrivals in any case, and
lambda m psi(M) is above what M can carry in batches of any size.

The proof, in `docs/theory/servers-that-differ.md`, is the paper's for one Lyapunov function, the
tokens in all replicas: at each time they fall by what the busy ones process, less what goes there.

* To the least of a measure that vanishes only at an empty replica and rises with its work (as
  ``jsq`` does): phi is 0 but for all replicas together. The total decides.
* In fixed shares (``random``, ``round-robin``): phi = psi, the sum of the shares. Each replica's
  own load decides: with equal shares R times the slowest replica is what a pool of R carries, and
  with shares in proportion to C_k the total.
* To the less of two (``power-of-two``): of j replicas, a request goes there exactly if both that
  are drawn are among them (while the others are empty): phi = psi = j (j - 1) / (R (R - 1)). The j
  slowest decide, for the worst j.

Which of these a router does is what it `sends` (`penstock.system.routing.Router`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.system.network_model import NetworkModel
from penstock.system.routing import ROUTERS, Router, resolve_router
from penstock.theory.hypotheses import CRITICAL_BAND, Verdict


@dataclasses.dataclass(frozen=True)
class ReplicaLoads:
    """What a pool of replicas that differ is asked for under its router."""

    # Largest lambda m phi(M) over the full batches of M: below 1 the pool is stable, for
    # work-conserving replicas. None: nothing is known of the router.
    sufficient: float | None
    necessary: float  # largest lambda m psi(M) over the best batches of M: above 1 it is unstable
    # The set M of the first (of the second, where the first is None), by their places.
    replicas: tuple[int, ...]
    why: str

    @property
    def verdict(self) -> Verdict:
        """Say ``stable`` (work-conserving replicas), ``unstable`` (any policy), or ``unknown``."""
        if self.necessary > 1 + CRITICAL_BAND:
            return "unstable"
        if self.sufficient is not None and self.sufficient < 1 - CRITICAL_BAND:
            return "stable"
        return "unknown"


def replica_loads(
    offered_tokens_per_s: float,
    full_batch: npt.ArrayLike,
    router: str | Router,
    *,
    capacity: npt.ArrayLike | None = None,
    shares: npt.ArrayLike | None = None,
) -> ReplicaLoads:
    """Return what a pool of replicas that differ is asked for under a router.

    Parameters
    ----------
    offered_tokens_per_s
        Forward tokens that arrive at the pool per second.
    full_batch
        Shape (replicas,), tokens/s of each with batches filled to its token budget, b_max / t_bmax.
    router
        One of `penstock.system.routing`, or its name.
    capacity
        Shape (replicas,), tokens/s of each in its best batches, max over b of b / t_b; None: those
        are the full ones.
    shares
        Shape (replicas,), weights in proportion to which ``random`` or ``round-robin`` sends
        requests; None: equal ones.

    Raises
    ------
    InputError
        If numbers cannot be used, or shares are given to a router that does not go by any.

    >>> replica_loads(30, [10, 30], "jsq").sufficient, replica_loads(30, [10, 30], "random").verdict
    (0.75, 'unstable')
    >>> replica_loads(30, [10, 30], "random", shares=[1, 3]).sufficient
    0.75
    """
    full = _rates("full_batch", full_batch)
    best = full if capacity is None else _rates("capacity", capacity)
    if best.size != full.size or (best < full * (1 - CRITICAL_BAND)).any():
        raise InputError(
            f"the capacities are {checks.shown(capacity)}, but each replica has one that is at "
            f"least that of its full batches, {checks.shown(full.tolist())}; give these"
        )
    offered = checks.number(
        "offered_tokens_per_s", offered_tokens_per_s, 0, 1e18, "tokens/s", "it is what arrives"
    )
    router = resolve_router(router)
    weights = _shares(router, shares, full.size)
    everyone = tuple(range(full.size))
    in_all = offered / float(full.sum()), offered / float(best.sum())
    if router.sends == "to the least":
        return ReplicaLoads(*in_all, everyone, "all replicas together")
    if router.by_shares:
        return _by_shares(offered, full, best, weights)
    if router.sends == "to the less of two":
        return _of_slowest(offered, full, best)
    what = f"nothing is known of what {router.in_words} sends to each replica"
    return ReplicaLoads(None, in_all[1], everyone, what)


def loads_at(model: NetworkModel, pool: int, offered: float, router: Router) -> ReplicaLoads | None:
    """Return the same of a pool, by its number; None: its replicas are alike."""
    rates = model.replica_rates(pool)
    if rates is None:
        return None
    return replica_loads(
        offered, rates.full_batch, router, capacity=rates.capacity, shares=rates.shares
    )


def _by_shares(offered: float, full: Floats, best: Floats, shares: Floats) -> ReplicaLoads:
    """Return the loads where each replica gets its own share."""
    loads, least = offered * shares / full, offered * shares / best
    worst = int(np.argmax(loads))
    return ReplicaLoads(
        float(loads[worst]),
        float(least.max()),
        (worst,),
        f"replica {worst} gets {shares[worst]:.4g} of the requests and has "
        f"{full[worst] / full.sum():.4g} of the capacity",
    )


def _of_slowest(offered: float, full: Floats, best: Floats) -> ReplicaLoads:
    """Return the loads where a request goes to some replicas if both that are drawn are of them."""
    count = full.size
    if count == 1:
        return ReplicaLoads(offered / full[0], offered / best[0], (0,), "the only replica")
    number = np.arange(1, count + 1)
    share = number * (number - 1) / (count * (count - 1))
    slowest = np.argsort(full, kind="stable")
    loads = offered * share / np.cumsum(full[slowest])
    least = offered * share / np.cumsum(np.sort(best))
    worst = int(np.argmax(loads))
    chosen = tuple(sorted(slowest[: worst + 1].tolist()))
    why = "all replicas together"
    if worst + 1 < count:
        why = (
            f"the {worst + 1:,} slowest of {count:,} replicas get {share[worst]:.4g} of the "
            f"requests and have {full[list(chosen)].sum() / full.sum():.4g} of the capacity"
        )
    return ReplicaLoads(float(loads[worst]), float(least.max()), chosen, why)


def _shares(router: Router, shares: npt.ArrayLike | None, count: int) -> Floats:
    """Return the shares, which add up to 1."""
    if shares is None:
        return np.full(count, 1 / count)
    if not router.by_shares:
        usual = ", ".join(name for name, other in ROUTERS.items() if other.by_shares)
        raise InputError(
            f"shares are given to the router {router.name!r}, which goes by the state of the "
            f"replicas; leave them out, or take one of {usual}"
        )
    weights = checks.array("shares", shares).astype(np.float64)
    if weights.shape != (count,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise InputError(
            f"shares are {checks.shown(shares)}, but each of the {count:,} replicas has one of at "
            "least 0; give one for each"
        )
    if not weights.any():
        raise InputError("all shares are 0, so nobody is served; give one above 0")
    return np.asarray(weights / weights.sum())


def _rates(name: str, rates: npt.ArrayLike | Sequence[float]) -> Floats:
    """Return tokens/s of each replica."""
    column = np.atleast_1d(np.asarray(rates, np.float64))
    if column.ndim != 1 or column.size == 0 or not (np.isfinite(column) & (column > 0)).all():
        raise InputError(
            f"{name} is {checks.shown(rates)}, but each replica carries a finite number of "
            "tokens/s above 0; give one for each"
        )
    return column
