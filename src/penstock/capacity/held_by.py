"""What holds a server back: `region`, `max-rate` and `recommend` say it alike."""

import dataclasses

from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.simulation.quick import memory_estimate
from penstock.system.server import Server
from penstock.theory.operating_point import OperatingPoint, operating_point
from penstock.workload.workload import Workload

AMPLE = 16
"""Times the memory, with which memory limits nothing."""

_MORE = 0.02  # share that ample memory must carry more, for memory to be the limit


def point_with_memory(
    workload: Workload, server: Server, above: float | None = None
) -> OperatingPoint:
    """Return where a workload lies in the region of a server, with what KV memory carries where it
    is full before another limit binds.

    ``above``: requests/s at which the server is not stable, where that is known; then the test
    judges what a flood cannot.
    """
    rate = None
    try:
        full = memory_estimate(workload, server)
        rate = full.rate if full.limit == "KV memory" else None
    except InputError:  # no memory, or no estimate for such a workload
        if above is not None and _carries_with_ample_memory(workload, server, above * (1 + _MORE)):
            rate = above
    return operating_point(workload, server, memory_rate=rate)


def _carries_with_ample_memory(workload: Workload, server: Server, rate: float) -> bool:
    """Return whether a server with far more KV memory is stable at a rate."""
    if server.memory is None:
        return False
    more = dataclasses.replace(server.memory, blocks=AMPLE * server.memory.blocks)
    ample = dataclasses.replace(server, memory=more, gpu=None)
    return verdict(workload.with_rate(rate), ample, seed=workload.seed).verdict == "stable"


def held_by(point: OperatingPoint) -> str:
    """Say which limits hold a server back, and what more of them would bring."""
    if point.binding == ("batch time",):
        return "the speed of its batches: no limit that you set, only faster hardware helps"
    limits = f"the {' and the '.join(point.binding)}"
    reason = _reason(point)
    return f"{limits}: {reason}" if reason else limits


def _reason(point: OperatingPoint) -> str:
    if point.kv_memory_rate is not None:
        return (
            f"the server carries about {point.kv_memory_rate:,.4g} requests/s once it is full (an "
            "estimate)"
        )
    if point.bound.name == "front end":
        return f"{point.bound.why}; twice its processes take in twice the requests"
    if point.bound.name == "KV memory":
        return point.bound.why
    price = point.prices.tokens_per_s_per_slot
    if price:
        return (
            f"one more slot lets the best policy carry {price:,.1f} tokens/s more; others may "
            "carry less"
        )
    return ""
