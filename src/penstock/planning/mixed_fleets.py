"""Fleets of two kinds of replica: which may stand together, and how many there are of each."""

import bisect

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.planning.space import Family
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.network import Network
from penstock.system.routing import ROUTERS
from penstock.system.server import Server
from penstock.theory.certificate import DIFFER
from penstock.theory.kv_blocks import STANDARD_ERRORS
from penstock.theory.network.unequal_replicas import ReplicaLoads, replica_loads
from penstock.words import counted, digits

_BESIDE = 6
"""Costs of a batch beside its token load."""


def no_worse(server: Server, other: Server, longest: int) -> bool:
    """Return whether a server is at least as good as another in every respect."""
    # No batch of requests of at most ``longest`` tokens takes longer, and KV memory is no smaller.
    budget = max(server.most_tokens, other.most_tokens)
    costs, others = (_costs(each.batch_time, budget) for each in (server, other))
    if costs is None or others is None or not _holds_no_less(server, other):
        return False
    later, beside = np.split(costs - others, [budget])
    own, before, alone, mixed, of_request, with_prefill = beside.tolist()
    # What a token costs more, at most: of a prompt with new tokens and those before them, and of a
    # decode.
    dearest = max(
        own,
        own * min(budget, longest),
        own + before * longest,
        own + max(alone, mixed) * longest,
    )
    of_token = max(dearest, 0.0) + max(of_request, 0.0)
    worst = later + np.arange(1, budget + 1) * of_token + max(with_prefill, 0.0)
    return bool((worst <= 0).all())


def _holds_no_less(server: Server, other: Server) -> bool:
    """Return whether the KV memory of a server holds all that another's does."""
    if server.memory is None:
        return True
    if other.memory is None or server.memory.block_size != other.memory.block_size:
        return False
    return (server.usable_blocks or 0) >= (other.usable_blocks or 0)


def _costs(batch_time: BatchTime, tokens: int) -> Floats | None:
    """Return seconds of 1 .. ``tokens`` tokens, then a `Composition`'s costs beside token load."""
    # None: it counts otherwise.
    by_tokens = batch_time.by_tokens.table(tokens)[1:]
    if batch_time.by_load:
        return np.concatenate([by_tokens, np.zeros(_BESIDE)])
    if not isinstance(batch_time, Composition):
        return None
    beside = (
        batch_time.self_attention,
        batch_time.cross_attention,
        *batch_time.of_decodes,
        batch_time.per_request,
        batch_time.with_prefill,
    )
    return np.concatenate([by_tokens, beside])


class MixedLoad:
    """What all replicas of a family of two kinds in one pool are asked for, by their number.

    A load above 1 is unstable under any policy: the necessary half of
    `penstock.theory.network.unequal_replicas`. Where more replicas may harm, what the router sends
    to each is left out, because the load of the slow ones may rise then.
    """

    def __init__(self, network: Network, family: Family, more_helps: bool) -> None:
        model = network.model()
        rates = model.replica_rates(0)
        assert rates is not None  # of kinds that differ
        error = STANDARD_ERRORS * float(model.standard_error[0])
        self._offered = max(float(model.least_offered[0]) - error, 0.0)
        self._rates = [(rates.full_batch[n], rates.capacity[n]) for n in (0, -1)]
        self._family = family
        # in turns one replica may get all the long requests, where lengths depend on one another
        router = family.smallest.router
        by_total = not more_helps or router.sends == "in turns"
        self._router = ROUTERS["jsq"] if by_total else router

    def first_below(self, most: float) -> int:
        """Return the index of the fewest replicas with a load below a limit, or the end."""
        counts = self._family.counts
        return bisect.bisect_left(counts, True, key=lambda n: self._at(n).necessary < most)

    def why_not(self, index: int) -> str:
        """Say why so many replicas are not stable; nothing below the first."""
        if index < 0:
            return ""
        few = self._at(self._family.counts[index])
        asked = f"a load of {digits(few.necessary)}, whatever the policy ({few.why})"
        return f"{DIFFER}: {counted(self._family.counts[index], 'replica')} have {asked}"

    def _at(self, replicas: int) -> ReplicaLoads:
        """Return what is asked of so many."""
        full, capacity = np.repeat(self._rates, [replicas, self._family.smallest.others], axis=0).T
        return replica_loads(self._offered, full, self._router, capacity=capacity)
