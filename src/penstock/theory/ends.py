"""The slow and the fast end of batch times that are not exact, by what they let any policy carry.

Of batch times that may be true (`penstock.system.uncertain`), the ends are those at which the best
policy carries the least and the most; of draws, at the quantiles of their 90%.
"""

import dataclasses
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from penstock.system.batch_time import Composition
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.system.uncertain import Known
from penstock.theory.bounds import bounds
from penstock.theory.load import load
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
    server = as_serving(workload, server)
    servers = others_of(server, known)
    loads = [
        1 / min(bound.max_rate for bound in bounds(workload, one, load(workload, one)))
        for one in servers
    ]
    slow, fast = places_of(loads, known)
    return Ends(servers[slow], servers[fast], known.origin, known.calibrated, servers, known.ends)


def _with(server: Server, batch_time: Composition) -> Server:
    return dataclasses.replace(server, batch_time=batch_time)


def others_of(server: Server, known: Known) -> list[Server]:
    """Return a server with each of the batch times that may be true."""
    batch_time = server.batch_time
    assert isinstance(batch_time, Composition)
    return [_with(server, other) for other in known.others(batch_time)]


def places_of(loads: list[float], known: Known) -> tuple[int, int]:
    """Return where the ends stand in a list of loads: the slow one has the higher."""
    rising = np.argsort(loads, kind="stable")
    low, high = (round(end * (len(loads) - 1)) for end in known.ends)
    return int(rising[high]), int(rising[low])
