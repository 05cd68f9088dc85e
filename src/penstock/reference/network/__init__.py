"""A network of servers simulated in plain Python, one event after another: the specification of the
network kernel.

Everything random (paths, lengths, delays, the routers' coins) is given, so a run is a pure function
of its jobs. It is slow on purpose: every line should be checkable against the rules, and the fast
kernel must equal it event for event.

>>> from penstock.reference.network import Jobs, Network, Pool, simulate
>>> # (arrival, [(stage, prompt, output), ...])
>>> jobs = Jobs.chains([(0, [(0, 3, 2)]), (1, [(0, 2, 1)])])
>>> network = Network([Pool(batch_time=lambda tokens: 2, token_budget=4)], stage_pool=[0])
>>> [(request.first_token, request.finish) for request in simulate(jobs, network).requests]
[(2, 4), (4, 4)]
"""

from penstock.reference.network.model import Jobs, Network, Pool
from penstock.reference.network.orders import BY_LINE, BY_PHASE, ORDERS, SPLIT
from penstock.reference.network.simulation import History, Instant, simulate
from penstock.reference.seam_policies import POLICIES, Limits, Queue

__all__ = [
    "BY_LINE",
    "BY_PHASE",
    "ORDERS",
    "POLICIES",
    "SPLIT",
    "History",
    "Instant",
    "Jobs",
    "Limits",
    "Network",
    "Pool",
    "Queue",
    "simulate",
]
