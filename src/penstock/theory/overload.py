"""Who is lost in the long run where queues have limits, clients leave, and come again.

With a limit on the queue, or patience that ends, every load is stable: who is there is bounded, or
leaves at a rate of its own. What no policy can carry is lost then: at least 1 - capacity / offered.
Clients who come again offer more than arrives: a fixed point of the fluid, of which there may be
several, or none.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats


class Loss(NamedTuple):
    """What becomes of Poisson arrivals at a queue in the long run."""

    lost: float  # share that is refused, or leaves
    waiting: float  # mean number that waits
    wait_s: float  # mean time until service, of those who are served or leave


def least_lost(rate: float, capacity: float) -> float:
    """Return the share of ``rate`` that is lost at least where ``capacity`` is carried at most."""
    return max(0.0, 1 - capacity / rate)


def with_limit(rate: float, service_s: float, servers: int, most: int) -> Loss:
    """Return M/M/c/K: arrivals at a ``rate``, ``servers`` that take ``service_s`` each, and room
    for ``most`` requests, those in service included.

    P(n) is proportional to a^n / n! up to c, and to (a/c)^(n-c) beyond; who comes at n = K is lost
    (PASTA).
    """
    n = np.arange(1, most + 1)
    chance = _chances(np.log(rate * service_s / np.minimum(n, servers)))
    waiting = float(chance @ np.maximum(np.arange(most + 1) - servers, 0))
    lost = float(chance[-1])
    return Loss(lost, waiting, waiting / (rate * (1 - lost)))


def with_patience(rate: float, service_s: float, servers: int, patience_s: float) -> Loss:
    """Return M/M/c+M (Erlang A): arrivals at a ``rate``, ``servers`` that take ``service_s`` each,
    and clients who wait for ``patience_s`` at most, on average.

    A birth and death chain: from n > c requests go at c / S + (n - c) / P (Palm, 1957). Each
    arrival is served or leaves, so the share that leaves is waiting / (P rate).
    """
    # No more than twice as many wait as would if none were served, or a few.
    most = servers + math.ceil(2 * rate * patience_s + 50)
    n = np.arange(1, most + 1)
    leaves = np.minimum(n, servers) / service_s + np.maximum(n - servers, 0) / patience_s
    chance = _chances(np.log(rate / leaves))
    waiting = float(chance @ np.maximum(np.arange(most + 1) - servers, 0))
    return Loss(waiting / (patience_s * rate), waiting, waiting / rate)


def _chances(steps: Floats) -> Floats:
    """Return the distribution of a birth and death chain from the logarithms of its ratios."""
    weights = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(weights - weights.max())
    return np.asarray(weights / weights.sum())


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
        tries = 1 / (1 - lost) if lost < 1 else math.inf
        if math.isfinite(retries):
            tries = sum(lost**k for k in range(int(retries) + 1))
        return rate * tries - offered

    grid = rate * np.geomspace(1.0, most, 4_000)
    values = [beyond(offered) for offered in grid]
    points = [float(rate)] if abs(values[0]) < 1e-12 * rate else []
    for place in range(len(grid) - 1):
        if values[place] > 0 >= values[place + 1] or values[place] < 0 <= values[place + 1]:
            low, high = grid[place], grid[place + 1]
            for _ in range(60):
                middle = (low + high) / 2
                same = (beyond(middle) > 0) == (values[place] > 0)
                low, high = (middle, high) if same else (low, middle)
            points.append(float(low))
    return tuple(points)
