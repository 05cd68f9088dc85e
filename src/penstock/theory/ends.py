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
from penstock.theory.load import Demand, demand_of, load
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
    if not isinstance(server.batch_time, Composition):
        return None
    return server.batch_time.uncertainty


def taken_as_exact(server: Server) -> Server:
    """Return the same server with its batch times as they are, and no doubt of them."""
    batch_time = server.batch_time
    if known_of(server) is None or not isinstance(batch_time, Composition):
        return server
    return _with(server, dataclasses.replace(batch_time, uncertainty=None))


def server_ends(workload: Workload, server: Server) -> Ends[Server] | None:
    """Return the ends of a server for what arrives; None: its batch times are taken as exact."""
    doubt = known_of(server)
    if doubt is None:
        return None
    servers = _others_of(load(workload, server).server, doubt)
    loads = [_tightest(demand_of(load(workload, other))) for other in servers]
    slow, fast = _places_of(loads, doubt)
    return Ends(servers[slow], servers[fast], doubt.origin, doubt.calibrated, servers, doubt.ends)


def network_ends(network: Network) -> Ends[Network] | None:
    """Return the ends of a network; None: all its batch times are taken as exact."""
    doubts: dict[tuple[str, int], Known] = {}  # by pool, and kind of server there
    others: dict[tuple[str, int], list[Server]] = {}
    for name, pool in network.pools.items():
        for kind, (server, _) in enumerate(pool.servers):
            doubt = known_of(server)
            if doubt is not None:
                doubts[name, kind] = doubt
                others[name, kind] = _others_of(server, doubt)
    if not doubts:
        return None
    count = max(map(len, others.values()))
    together = [dict.fromkeys(network.pools, place) for place in range(count)]
    loads = np.array([_pool_loads(_changed(network, others, places)) for places in together])
    slow, fast = {}, {}
    for (name, _), doubt in reversed(doubts.items()):  # the first kind of a pool decides
        of_pool = loads[:, list(network.pools).index(name)]
        slow[name], fast[name] = _places_of(of_pool.tolist(), doubt)
    origins = dict.fromkeys(doubt.origin for doubt in doubts.values())
    return Ends(
        _changed(network, others, slow),
        _changed(network, others, fast),
        "; ".join(origins),
        all(doubt.calibrated for doubt in doubts.values()),
    )


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
    return [_tightest(demand) for demand in demands]


def _tightest(demand: Demand) -> float:
    """Return how much of its tightest limit a pool is asked for."""
    limits = limits_of(demand)
    if not limits:
        return 0.0
    return tightest(limits).load


def _with(server: Server, batch_time: Composition) -> Server:
    """Return a server with other batch times."""
    return dataclasses.replace(server, batch_time=batch_time)


def _others_of(server: Server, doubt: Known) -> list[Server]:
    """Return a server with each of the batch times that may be true."""
    batch_time = server.batch_time
    assert isinstance(batch_time, Composition)
    return [_with(server, other) for other in doubt.others(batch_time)]


def _places_of(loads: list[float], doubt: Known) -> tuple[int, int]:
    """Return where the ends stand in a list of loads: the slow one has the higher."""
    rising = np.argsort(loads, kind="stable")
    low, high = (round(end * (len(loads) - 1)) for end in doubt.ends)
    return int(rising[high]), int(rising[low])
