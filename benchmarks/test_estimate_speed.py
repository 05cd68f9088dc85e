"""What a quick estimate costs, and the bounds that no policy undercuts."""

import itertools
import os
import time
from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps
from penstock.theory.latency_bounds import lower_bounds

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
ROUNDS = 40 if FULL else 5
LENGTHS = {
    "chat": (ps.Geometric(129), ps.Geometric(112)),
    "code": (ps.LogNormal(2_000, 1.0, max=8_000), ps.LogNormal(30, 1.5, max=1_000)),
    "fixed": (500, 200),
}
HARDWARE = ("codellama-34b-a100-tp1", "codellama-34b-a100-tp4", "llama-2-70b-h100-tp4")

Record = Callable[[str, float, str], None]


def points() -> list[tuple[ps.Workload, ps.Server]]:
    """Return every combination of lengths, hardware and token budget at loads .3, .6 and .9."""
    found = []
    for (prompt, output), hardware, budget in itertools.product(
        LENGTHS.values(), HARDWARE, (256, 512, 2_048)
    ):
        server = ps.Server(ps.hardware(hardware).batch_time, budget)
        workload = ps.Workload.poisson(1e-3, prompt, output)
        full = ps.certify(workload, server).max_rate
        found += [(workload.with_rate(load * full), server) for load in (0.3, 0.6, 0.9)]
    return found


@pytest.mark.parametrize("asked", [ps.estimate_latency, lower_bounds])
def test_milliseconds_of_a_point(benchmark, record: Record, asked: Callable[..., object]) -> None:  # type: ignore[no-untyped-def]
    """Each point asked for once, after compilation; lengths and batch times have been seen
    before.
    """
    grid = points()
    for workload, server in grid:
        asked(workload, server)
    took = []

    def once() -> None:
        for workload, server in grid:
            begun = time.perf_counter()
            asked(workload, server)
            took.append(time.perf_counter() - begun)

    benchmark.pedantic(once, rounds=ROUNDS)
    each = np.array(took).reshape(-1, len(grid)).min(axis=0) * 1e3
    record("median point", float(np.median(each)), "ms")
    record("slowest point", float(each.max()), "ms")
    record("points", 1e3 / float(each.mean()), "a second")
