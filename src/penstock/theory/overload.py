"""Who is lost in the long run where queues have limits, clients leave, and come again.

With a limit on the queue, or patience that ends, every load is stable: who is there is bounded, or
leaves at a rate of its own. What no policy can carry is lost then: at least 1 - capacity / offered.
Clients who come again offer more than arrives: a fixed point of the fluid, of which there may be
several, or none.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize


def least_lost(rate: float, capacity: float) -> float:
    """Return the share of ``rate`` that is lost at least where ``capacity`` is carried at most."""
    return max(0.0, 1 - capacity / rate)


def lost_in_queue(
    rate: float,
    service_s: float,
    servers: int,
    *,
    most: int | None = None,
    patience_s: float = math.inf,
) -> float:
    """Return the share that M/M/c/K+M loses: arrivals at a ``rate``, ``servers`` that take
    ``service_s`` each, room for ``most`` requests, those in service included (None: for all), and
    clients who wait for ``patience_s`` at most, on average.

    A birth and death chain: from n > c requests go at c / S + (n - c) / P (Erlang A, Palm 1957).
    Who comes at n = K is lost (PASTA), and so is who leaves: the mean number that waits over P.
    """
    if most is None:  # no more than twice as many wait as would if none were served, or a few
        most = servers + math.ceil(2 * rate * patience_s + 50)
    n = np.arange(most + 1)
    wait = np.maximum(n - servers, 0)
    leaves = np.minimum(n, servers) / service_s + wait / patience_s
    weights = np.concatenate([[0.0], np.cumsum(np.log(rate / leaves[1:]))])
    chance = np.exp(weights - weights.max())
    chance /= chance.sum()
    return float(chance[-1] + chance @ wait / (patience_s * rate))


def offered_with_retries(
    rate: float, served: Callable[[float], float], retries: float = math.inf, most: float = 100.0
) -> tuple[float, ...]:
    """Return the rates that are offered in the long run, retries included, rising: fixed points of
    Lambda = ``rate`` (1 + p + ... + p^``retries``) with the lost share p = 1 - served(Lambda) /
    Lambda.

    ``served`` is what is carried where so much is offered. Without an end of retries there is none
    where less is served than arrives: then ever more is offered. Where work for those who leave is
    lost there may be three, of which the middle one tips: the system is metastable. Rates up to
    ``most`` times the rate are looked at.
    """

    def beyond(offered: float) -> float:
        lost = min(max(1 - served(offered) / offered, 0.0), 1.0)
        tries = retries + 1 if lost == 1 else (1 - lost ** (retries + 1)) / (1 - lost)
        return rate * tries - offered

    grid = rate * np.geomspace(1.0, most, 4_000)
    above = np.array([beyond(offered) > 1e-12 * rate for offered in grid])
    turns = np.flatnonzero(above[:-1] != above[1:])
    points = [optimize.bisect(beyond, grid[place], grid[place + 1]) for place in turns]
    return (*([] if above[0] else [float(rate)]), *points)
