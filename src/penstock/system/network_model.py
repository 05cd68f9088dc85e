"""What the theory sees of a network: mean tokens, routes, rates and capacities."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Bools, Floats, Ints
from penstock.system.server import Server


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaRates:
    """Replicas of a pool that differ."""

    capacity: Floats  # shape (replicas,), tokens/s of each: max b/t_b
    full_batch: Floats  # shape (replicas,), tokens/s with batches filled to the token budget
    # Shape (replicas,), weights in proportion to which a router that does not look at the replicas
    # sends them requests; None: equal ones.
    shares: Floats | None = None


class StageTokens(NamedTuple):
    """Mean forward tokens of a request at each stage; shape (stages,)."""

    prefill: Floats
    decode: Floats
    least_prefill: Floats | None  # as in `NetworkModel`


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkModel:
    """A network reduced to its means."""

    stages: tuple[str, ...]  # names, `workflow.stage`
    pools: tuple[str, ...]
    pool: Ints  # shape (stages,), the pool at which each stage is served
    prefill: Floats  # shape (stages,), mean forward tokens of a request (m_p)
    decode: Floats  # shape (stages,), mean forward tokens of a request (m_d)
    external: Floats  # shape (stages,), jobs/s that begin there (alpha)
    # Shape (stages, stages): mean number of requests of the second stage that the end of one of the
    # first releases. Probabilities where jobs branch; a row adds up to more than 1 after a fork,
    # and an edge into a join of k branches counts 1/k.
    onward: Floats
    # Shape (stages,), requests/s (lambda): the solution of lambda = alpha + onward^T lambda
    # (eq:traffic).
    visits: Floats
    replicas: Ints  # shape (pools,)
    capacity: Floats  # shape (pools,), tokens/s of the whole pool: replicas x max b/t_b
    # Shape (pools,), tokens/s with batches filled to the token budget: replicas x b_max / t_bmax.
    full_batch: Floats
    branches: Ints  # shape (stages,), branches that a stage waits for at most; 0: it is no join
    # Jobs from which means were sampled (loops with a cap, growing contexts); None: they are exact.
    sampled: int | None
    standard_error: Floats  # shape (pools,), of the offered tokens/s; zeros where means are exact
    # For each pool its replicas where they differ, None where they are alike; empty: all are.
    # `capacity` and `full_batch` are their sums.
    unequal: tuple[ReplicaRates | None, ...] = ()
    # Shape (stages,), what is left of `prefill` if requests find all of their prompts that they
    # may; None: what they find does not depend on the run.
    least_prefill: Floats | None = None
    # Shape (pools,), load of each pool if requests find nothing of their prompts but what they
    # surely do, where its limits are known; None: `rho` is `offered` over `capacity`.
    loads_without_cache: Floats | None = None

    def replica_rates(self, pool: int) -> ReplicaRates | None:
        """Return the replicas of a pool where they differ, else None."""
        return self.unequal[pool] if self.unequal else None

    @property
    def joins(self) -> Bools:
        """Shape (stages,), whether each stage waits for branches."""
        return self.branches > 0

    @functools.cached_property
    def offered(self) -> Floats:
        """Shape (pools,), forward tokens that arrive per second at each pool."""
        return self._at_pools(self.prefill)

    @functools.cached_property
    def least_offered(self) -> Floats:
        """Shape (pools,), the same if requests find all of their prompts that they may."""
        return self._at_pools(self.prefill if self.least_prefill is None else self.least_prefill)

    def _at_pools(self, prefill: Floats) -> Floats:
        tokens = self.visits * (prefill + self.decode)
        return np.asarray(np.bincount(self.pool, tokens, len(self.pools)), np.float64)

    @property
    def rho(self) -> Floats:
        """Shape (pools,), load of each pool (eq:load-dag), if prompts are found only as is sure."""
        if self.loads_without_cache is not None:
            return self.loads_without_cache
        return self.offered / self.capacity


def unequal_rates(servers: Sequence[tuple[Server, int]]) -> ReplicaRates | None:
    """Return what the replicas of a pool process, where they differ."""
    if len(servers) == 1:
        return None
    counts = [count for _, count in servers]
    capacity = [server.capacity for server, _ in servers]
    full = [server.full_batch_rate for server, _ in servers]
    return ReplicaRates(np.repeat(capacity, counts), np.repeat(full, counts))
