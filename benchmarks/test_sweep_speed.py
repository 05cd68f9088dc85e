"""How fast sweeps are: points per second, and what a second worker adds."""

import os
import time
from collections.abc import Callable

import penstock as ps

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
POINTS = 1_000 if FULL else 40
REQUESTS = 100_000 if FULL else 20_000
ROUNDS = 3 if FULL else 1

Record = Callable[[str, float, str], None]


def seconds(jobs: int, points: int, **server: object) -> float:
    """Run Sarathi-Serve with ten token budgets at many rates on the look-alike of Azure's
    conversations.
    """
    scenario = {
        "workload": {"preset": "azure-conv", "arrivals": "poisson"},
        "server": {"hardware": "codellama-34b-a100-tp1", **server},
        "simulate": {"requests": REQUESTS},
    }
    budgets = [128, 256, 384, 512, 640, 768, 896, 1024, 1536, 2048]
    rates = [1 + i * len(budgets) / points for i in range(points // len(budgets))]
    begun = time.perf_counter()
    rows = ps.sweep(scenario, {"server.token_budget": budgets, "workload.rate": rates}, jobs=jobs)
    assert rows.height == points
    assert rows["error"].is_null().all()
    return time.perf_counter() - begun


def test_a_thousand_points_where_a_theorem_speaks(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    taken = benchmark.pedantic(lambda: seconds(2, POINTS), rounds=1)
    record(f"{POINTS:,} x {REQUESTS:,} requests", taken, "s on two workers")


def test_a_thousand_points_where_stability_is_tested(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    """A max batch size below the token budget: no theorem speaks, and the sequential test is
    asked.
    """
    taken = benchmark.pedantic(lambda: seconds(2, POINTS, max_batch_size=100), rounds=1)
    record(f"{POINTS:,} x {REQUESTS:,} requests", taken, "s on two workers")


def test_two_workers_are_nearly_twice_as_fast_as_one(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    """In pairs of runs, one after the other, so that whatever else runs on the machine slows
    both.
    """
    points = max(POINTS // 5, 20)
    seconds(2, points)  # start the workers

    def ratio() -> float:
        return seconds(1, points) / seconds(2, points)

    ratios = benchmark.pedantic(lambda: sorted(ratio() for _ in range(2 * ROUNDS + 1)), rounds=1)
    record("two workers", ratios[ROUNDS], "x as fast as one")
