"""Arrivals with a burst among them, and the search for how large it may be."""

import math
from collections.abc import Callable

import numpy as np

from penstock.workload.workload import Workload


def bisected(
    holds: Callable[[float], bool], low: float, high: float, faster: float, precision: float
) -> float:
    """Return about the largest value at which something holds that does at ``low``."""
    above = low * faster
    while above < high and holds(above):
        low, above = above, above * faster
    above = min(above, high)
    while above > low * (1 + precision):
        middle = math.sqrt(low * above)
        low, above = (middle, above) if holds(middle) else (low, middle)
    return low


def with_burst(workload: Workload, rate: float, arrivals: int, burst: int, seed: int) -> Workload:
    """Return so many arrivals at a rate, with others all at once after a quarter of them."""
    # Other arrivals at each rate: seeds that happen to hold at one would hold at the next.
    seeds = np.random.SeedSequence([workload.seed, seed, round(rate * 1e6)])
    drawn = workload.with_rate(rate).with_seed(int(seeds.generate_state(1)[0]))
    requests = drawn.requests(arrivals + burst)
    first = arrivals // 4
    arrival_s = requests.arrival_s[:arrivals]
    arrival_s = np.insert(arrival_s, first, np.full(burst, arrival_s[first]))
    return Workload.from_arrays(
        arrival_s, requests.prompt_tokens, requests.output_tokens, requests.priority,
        requests.declared, seed=workload.seed,
    ).with_patience(workload.patience)  # fmt: skip
