"""The slow and the fast end of a network whose batch times are not exact.

Each pool goes by what it carries itself, and all pools are slow, or fast, at once: what is wrong
with the model of one is often wrong with that of the others.
"""

import dataclasses

import numpy as np

from penstock.system.network import Network
from penstock.system.server import Server
from penstock.theory.ends import Ends, known_of, others_of, places_of
from penstock.theory.network.pool_limits import pool_limits


def network_ends(network: Network) -> Ends[Network] | None:
    """Return the ends of a network; None: all its batch times are taken as exact."""
    doubtful = {
        (name, index): known
        for name, pool in network.pools.items()
        for index, (server, _) in enumerate(pool.servers)
        if (known := known_of(server)) is not None
    }
    if not doubtful:
        return None
    others = {
        (name, index): others_of(network.pools[name].servers[index][0], known)
        for (name, index), known in doubtful.items()
    }
    count = max(map(len, others.values()))
    loads = np.array([_pool_loads(_changed(network, others, at)) for at in _same(network, count)])
    slow, fast = {}, {}
    for place, name in enumerate(network.pools):
        first = next((known for (pool, _), known in doubtful.items() if pool == name), None)
        if first is not None:
            slow[name], fast[name] = places_of(loads[:, place].tolist(), first)
    origins = dict.fromkeys(known.origin for known in doubtful.values())
    return Ends(
        _changed(network, others, slow),
        _changed(network, others, fast),
        "; ".join(origins),
        all(known.calibrated for known in doubtful.values()),
    )


def _same(network: Network, count: int) -> list[dict[str, int]]:
    """Return all pools at one place, for each of so many places."""
    return [dict.fromkeys(network.pools, place) for place in range(count)]


def _changed(
    network: Network, others: dict[tuple[str, int], list[Server]], places: dict[str, int]
) -> Network:
    """Return a network whose servers have the batch times that stand at a place."""
    pools = {}
    for name, pool in network.pools.items():
        kinds = list(pool.servers)
        for index, (server, replicas) in enumerate(kinds):
            choice = others.get((name, index))
            if choice is not None:
                server = choice[places[name] % len(choice)]
            kinds[index] = (server, replicas)
        pools[name] = dataclasses.replace(pool, servers=tuple(kinds))
    return dataclasses.replace(network, pools=pools)


def _pool_loads(network: Network) -> list[float]:
    """Return how much of its tightest limit each pool is asked for."""
    limits = pool_limits(network, network.model())
    return [of.tightest.load if of.limits else 0.0 for of in limits]
