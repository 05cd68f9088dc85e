"""The slow and the fast end of batch times that are not exact, by what they let any policy carry.

Of batch times that may be true (`penstock.system.uncertain`), the ends are those at which the best
policy carries the least and the most; of draws, at the quantiles of their 90%. Each pool goes by
what it carries itself, and all pools are slow, or fast, at once: what is wrong with the model of
one is often wrong with that of the others.
"""

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.server import Server
from penstock.system.uncertain import Known
from penstock.theory.limits import limits_of, tightest
from penstock.theory.load import demand_of, load
from penstock.workload.workload import Workload

System = TypeVar("System")


@dataclasses.dataclass(frozen=True)
class Ends(Generic[System]):
    """A system with slow and with fast batch times."""

    slow: System  # with batch times that are taken as exact, as at the fast end
    fast: System
    origin: str  # what the interval comes from, as a clause
    calibrated: bool  # rows of the deployment corrected all of these batch times
    # Of a server: all batch times that may be true, and which quantiles are the ends.
    others: Sequence[System] = ()
    quantiles: tuple[float, float] = (0.0, 1.0)


def known_of(server: Server) -> Known | None:
    """Return how well the batch times of a server are known; None: they are taken as exact."""
    batch_time = server.batch_time
    return batch_time.uncertainty if isinstance(batch_time, Composition) else None


def taken_as_exact(server: Server) -> Server:
    """Return the same server with its batch times as they are, and no doubt of them."""
    batch_time = server.batch_time
    if known_of(server) is None or not isinstance(batch_time, Composition):
        return server
    return _with(server, dataclasses.replace(batch_time, uncertainty=None))


def server_ends(workload: Workload, server: Server) -> Ends[Server] | None:
    """Return the ends of a server for what arrives; None: its batch times are taken as exact."""
    known = known_of(server)
    if known is None:
        return None
    servers = _others_of(load(workload, server).server, known)
    asked = [tightest(limits_of(demand_of(load(workload, one)))).load for one in servers]
    slow, fast = _places_of(asked, known)
    return Ends(servers[slow], servers[fast], known.origin, known.calibrated, servers, known.ends)


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
        (name, index): _others_of(network.pools[name].servers[index][0], known)
        for (name, index), known in doubtful.items()
    }
    count = max(map(len, others.values()))
    loads = np.array([_pool_loads(_changed(network, others, at)) for at in _same(network, count)])
    slow, fast = {}, {}
    for place, name in enumerate(network.pools):
        first = next((known for (pool, _), known in doubtful.items() if pool == name), None)
        if first is not None:
            slow[name], fast[name] = _places_of(loads[:, place].tolist(), first)
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
    from penstock.theory.network.demand import network_demand  # servers need not wait for it

    _, demands = network_demand(network)
    return [tightest(limits_of(one)).load if one.tokens else 0.0 for one in demands]


def _with(server: Server, batch_time: Composition) -> Server:
    return dataclasses.replace(server, batch_time=batch_time)


def _others_of(server: Server, known: Known) -> list[Server]:
    """Return a server with each of the batch times that may be true."""
    batch_time = server.batch_time
    assert isinstance(batch_time, Composition)
    return [_with(server, other) for other in known.others(batch_time)]


def _places_of(loads: list[float], known: Known) -> tuple[int, int]:
    """Return where the ends stand in a list of loads: the slow one has the higher."""
    rising = np.argsort(loads, kind="stable")
    low, high = (round(end * (len(loads) - 1)) for end in known.ends)
    return int(rising[high]), int(rising[low])
