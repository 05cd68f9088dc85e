"""Networks that several tests look at, reduced to their means, and strategies that draw others."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from penstock.system.network_model import NetworkModel
from penstock.system.routing import ROUTERS, Router

BAD_ORDER = ("A.2", "B.2", "A.1", "B.1")
"""Of the Rybko-Stolyar network: long calls first."""
GOOD_ORDER = ("A.1", "B.1", "A.2", "B.2")


def network_model(
    pool: Sequence[int],
    prefill: Sequence[float],
    decode: Sequence[float],
    external: Sequence[float],
    onward: Sequence[Sequence[float]] | np.ndarray,
    capacity: float | Sequence[float] = 1.0,
    *,
    stages: Sequence[str] | None = None,
    replicas: Sequence[int] | None = None,
    joins: Sequence[bool] | None = None,
) -> NetworkModel:
    """Return the means of a network with pools s0, s1, ... whose full batches are their fastest."""
    count, pools = len(pool), max(pool) + 1
    routes = np.array(onward, np.float64).reshape(count, count)
    rates = np.broadcast_to(np.array(capacity, np.float64), pools).copy()
    return NetworkModel(
        stages=tuple(stages or (f"w.{k}" for k in range(count))),
        pools=tuple(f"s{s}" for s in range(pools)),
        pool=np.array(pool),
        prefill=np.array(prefill, np.float64),
        decode=np.array(decode, np.float64),
        external=np.array(external, np.float64),
        onward=routes,
        visits=np.linalg.solve(np.eye(count) - routes.T, np.array(external, np.float64)),
        replicas=np.array(replicas or [1] * pools),
        capacity=rates,
        full_batch=rates,
        branches=np.where(joins or [False] * count, (routes > 0).sum(axis=0), 0),
        sampled=None,
        standard_error=np.zeros(pools),
    )


def rybko_stolyar(rho: float = 1.0, replicas: int = 1) -> NetworkModel:
    """The network of Section 5.4: batches of 768 tokens, each of one slot."""
    rate = rho * 768 / 608
    return network_model(
        [0, 1, 1, 0],
        [32, 512, 32, 512],
        [32] * 4,
        [rate, 0, rate, 0],
        [[0, 1, 0, 0], [0] * 4, [0, 0, 0, 1], [0] * 4],
        768,
        stages=("A.1", "A.2", "B.1", "B.2"),
        replicas=[replicas, replicas],
    )


def ring(servers: int, long: float, rho: float = 1.0) -> NetworkModel:
    """Types A, B, ... with a short call of 1 - ``long`` at a server of their own and a long one at the next server."""
    count = 2 * servers
    onward = np.zeros((count, count))
    onward[np.arange(0, count, 2), np.arange(1, count, 2)] = 1
    return network_model(
        [s for i in range(servers) for s in (i, (i + 1) % servers)],
        [1 - long, long] * servers,
        [0] * count,
        [rho, 0] * servers,
        onward,
        stages=[f"{'ABCDEF'[i]}.{call}" for i in range(servers) for call in (1, 2)],
    )


def long_calls_first(model: NetworkModel) -> list[str]:
    """The order under which a ring fails."""
    return sorted(model.stages, key=lambda name: name[-1], reverse=True)


def lu_kumar(seconds: Sequence[float]) -> NetworkModel:
    """One job per second goes through four stages, the first and last at one server, the others at another."""
    return network_model([0, 1, 1, 0], seconds, [0] * 4, [1, 0, 0, 0], np.eye(4, k=1))


def route(pools: Sequence[int], prefill: Sequence[float], decode: Sequence[float] | None = None) -> NetworkModel:
    """One job per second goes through stages one after the other."""
    count = len(pools)
    external = [1.0] + [0.0] * (count - 1)
    return network_model(pools, prefill, decode or [0.0] * count, external, np.eye(count, k=1))


def loop(pools: int, again: float, prefill: Sequence[float], decode: Sequence[float], rho: float) -> NetworkModel:
    """Stages each at a pool of its own, one after the other, then again with a probability; all pools have one load."""
    onward = np.eye(pools, k=1)
    onward[-1, 0] = again
    first = [1.0] + [0.0] * (pools - 1)
    found = network_model(range(pools), prefill, decode, first, onward)
    return dataclasses.replace(found, capacity=found.offered / rho, full_batch=found.offered / rho)


def router_named(name: str) -> Router:
    """The router of this name, or one of a user's own."""
    if name == "measure":
        return Router.measure(prefill=1, decode=1)
    return ROUTERS.get(name) or Router(name, function=lambda replicas, request, params: 0)


def faster(model: NetworkModel, factor: float) -> NetworkModel:
    """The same network with all rates of arrival times a factor."""
    return dataclasses.replace(model, external=model.external * factor, visits=model.visits * factor)


@st.composite
def routes(draw: st.DrawFn, pools: int, most_stages: int = 6) -> NetworkModel:
    """Up to three types of jobs, each with a route of its own through the pools, all of which are visited."""
    count = draw(st.integers(pools, most_stages))
    pool = draw(st.lists(st.integers(0, pools - 1), min_size=count, max_size=count))
    pool[:pools] = draw(st.permutations(range(pools)))
    starts = {0, *draw(st.lists(st.integers(1, count - 1), max_size=2))}
    onward = np.eye(count, k=1)
    onward[[start - 1 for start in starts if start], :] = 0
    external = [draw(st.sampled_from([0.5, 1.0, 2.0])) if k in starts else 0.0 for k in range(count)]
    tokens = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    return network_model(pool, tokens, [0] * count, external, onward)


@st.composite
def branching(draw: st.DrawFn, pools: int, most_stages: int = 6) -> NetworkModel:
    """Stages that jobs go between at random, loops included, and leave with probability .1 at least."""
    count = draw(st.integers(pools, most_stages))
    pool = draw(st.lists(st.integers(0, pools - 1), min_size=count, max_size=count))
    pool[:pools] = range(pools)
    chances = st.lists(st.sampled_from([0, 0, 0, 1, 2, 5]), min_size=count, max_size=count)
    weights = np.array([draw(chances) for _ in range(count)], np.float64)
    onward = 0.9 * weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    external = [1.0, *draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=count - 1, max_size=count - 1))]
    lengths = st.lists(st.integers(1, 20), min_size=count, max_size=count)
    return network_model(pool, draw(lengths), draw(lengths), external, onward)
