"""What certain answers cost: verdicts near the critical load, and searches for the highest stable
rate.
"""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
SEEDS = 200 if FULL else 3
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 1024, policy="sarathi", convention="paper")

Record = Callable[[str, float, str], None]


@pytest.mark.parametrize("rho", [0.95, 0.98, 1.02, 1.05])
def test_verdicts_near_the_boundary(benchmark, record: Record, rho: float) -> None:  # type: ignore[no-untyped-def]
    workload = ps.Workload.poisson(
        rho * TP1.capacity(1024) / 241, ps.Geometric(129), ps.Geometric(112)
    )
    ps.verdict(workload, SERVER)
    found = benchmark.pedantic(
        lambda: [ps.verdict(workload, SERVER, seed=seed) for seed in range(SEEDS)], rounds=1
    )
    right = "stable" if rho < 1 else "unstable"
    wrong = sum(f.verdict != right for f in found)
    assert wrong <= 0.02 * SEEDS
    record("wrong", wrong / SEEDS, "of the verdicts")
    record("arrivals under watch", float(np.median([f.arrivals for f in found])), "(median)")
    record("speed", SEEDS / benchmark.stats["median"], "verdicts/s")


@pytest.mark.parametrize("policy", ps.POLICIES)
def test_highest_stable_rate(benchmark, record: Record, policy: str) -> None:  # type: ignore[no-untyped-def]
    """The capacities of Figure 1 at a token budget of 1,024, to 1%."""
    server = SERVER.with_policy(policy)
    workload = ps.Workload.poisson(14.0, 129, 112)
    ps.verdict(workload, server)
    found = benchmark.pedantic(lambda: ps.max_rate(workload, server), rounds=3 if FULL else 1)
    record("rate", found.rate, "requests/s")
    record("searches", 1 / benchmark.stats["median"], "a second")


def test_what_a_verdict_costs_beside_the_run(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    """Beside the 20,000 requests that `check` simulates by default, at load .9."""
    workload = ps.Workload.poisson(
        0.9 * TP1.capacity(1024) / 241, ps.Geometric(129), ps.Geometric(112)
    )
    ratios = []
    for _ in range(15 if FULL else 3):
        begun = time.process_time()
        ps.verdict(workload, SERVER)
        between = time.process_time()
        ps.simulate(workload, SERVER, requests=20_000)
        ratios.append((between - begun) / (time.process_time() - between))
    benchmark.pedantic(lambda: ps.verdict(workload, SERVER), rounds=1)
    record("verdict over run", float(np.median(ratios)), "x (median, paired)")
