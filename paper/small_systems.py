"""Small systems to audit a policy in, the smallest first, and random ones."""

import itertools
from typing import NamedTuple

import numpy as np

import penstock as ps


class System(NamedTuple):
    """Requests (arrival ticks, prompt and output tokens) and a token budget."""

    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    budget: int

    def run(self, policy):
        """Serve it, a tick a batch."""
        server = ps.Server(ps.Affine(c=1.0, a=0.0), self.budget, policy=policy, convention="paper")
        workload = ps.Workload.from_arrays(self.arrival, self.prompt, self.output)
        return ps.simulate(workload, server, record="allocations", tick_s=1.0)

    def __str__(self):
        """Return its requests in words: ``A 1+2 at 0`` has a prompt token, two output tokens, and comes at tick 0."""
        requests = zip(self.arrival, self.prompt, self.output, strict=True)
        words = (f"{chr(65 + i)} {prompt}+{output} at {at}" for i, (at, prompt, output) in enumerate(requests))
        return f"{', '.join(words)}; token budget {self.budget}"


def small_systems(requests, tokens, gap):
    """Yield all systems up to so many requests, tokens of all together and ticks between arrivals.

    Those with the fewest requests come first, then with the fewest tokens, the smallest budget, the closest arrivals.
    """
    for n in range(1, min(requests, tokens // 2) + 1):
        gaps = sorted(itertools.product(range(gap + 1), repeat=n - 1), key=sum)
        for total in range(2 * n, tokens + 1):
            for budget, between in itertools.product(range(1, total + 1), gaps):
                arrival = (0, *itertools.accumulate(between))
                for fences in itertools.combinations(range(1, total), 2 * n - 1):
                    lengths = tuple(b - a for a, b in itertools.pairwise((0, *fences, total)))
                    yield System(arrival, lengths[:n], lengths[n:], budget)


def random_systems(systems, requests, tokens, gap, token_budget, seed):
    """Yield so many larger ones, crowded and sparse, of short and of long requests; the others are the most of each."""
    rng = np.random.default_rng(seed)
    for _ in range(systems):
        n = int(rng.integers(1, requests + 1))
        gaps = rng.integers(0, rng.integers(1, gap + 1) + 1, n - 1)
        prompt, output = (tuple(rng.integers(1, most + 1, n).tolist()) for most in rng.integers(1, tokens + 1, 2))
        yield System((0, *np.cumsum(gaps).tolist()), prompt, output, int(rng.integers(1, token_budget + 1)))
