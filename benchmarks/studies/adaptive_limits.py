"""Print what MaxWeight carries on rough measured tables, and what adaptive policies carry in scope
``running``.

``python benchmarks/studies/adaptive_limits.py tables`` draws 120 tables (scope ``batch``) and
prints the largest of five shares of the region's boundary at which `penstock.verdict` says stable
(half an hour of processor time). ``running`` takes four servers of a preset and the first 20 points
of ``adaptive_sweep.py`` whose max batch size is below the token budget, and prints
`penstock.max_rate` as a share of the boundary, for each policy (15 minutes); that search begins at
0.98.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator

import numpy as np
from adaptive_sweep import LONGEST, Point

import penstock as ps

TABLES = 120
SHARES = (0.97, 0.95, 0.9, 0.85, 0.8)
POLICIES = ("sarathi", "pool-controlled", "maxweight", "maxweight-tokens")
PRESET = (
    (1024, 64, 2000, 200),
    (512, 64, 500, 200),
    (1024, 100, 1516, 990),
    (2048, 128, 1000, 100),
)

Case = tuple[ps.Server, ps.Geometric, ps.Geometric]


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def lengths(mean: float) -> ps.Geometric:
    """Return geometric lengths, cut."""
    return ps.Geometric(mean, max=round(LONGEST * mean))


def table(number: int) -> Case:
    """Draw batch times with noise of 2% to 40%: at loads evenly spread, in equal ratios or at
    random; half rise.
    """
    rng = np.random.default_rng([77, number])
    budget = int(between(rng, 256, 4096))
    rows = int(between(rng, 12, min(400, budget)))
    kind = rng.integers(3)
    if kind == 0:
        loads = np.unique(np.geomspace(1, budget, rows).round())
    elif kind == 1:
        loads = np.unique(np.linspace(1, budget, rows).round())
    else:
        loads = np.unique(
            np.r_[1, np.sort(rng.choice(np.arange(2, budget), rows, replace=False)), budget]
        )
    fixed, token = between(rng, 2e-3, 5e-2), between(rng, 2e-5, 4e-4)
    seconds = (fixed + token * loads) * np.exp(rng.normal(0, between(rng, 0.02, 0.4), loads.size))
    if rng.random() < 0.5:
        seconds = np.maximum.accumulate(seconds)
    slots = int(between(rng, 8, budget / 3))
    prompt, output = round(between(rng, 30, 4000)), round(between(rng, 30, 1500))
    server = ps.Server(
        ps.Measured(loads, seconds), budget, slots, scope="batch", convention="paper"
    )
    return server, lengths(prompt), lengths(output)


def tables() -> None:
    """Print a row for each table."""
    for number in range(TABLES):
        server, prompt, output = table(number)
        bound = ps.region(server, prompt=prompt, output=output).max_rate
        rises = (np.diff(server.batch_time.seconds) >= 0).all()  # type: ignore[attr-defined]
        carried = 0.0
        for share in SHARES:
            workload = ps.Workload.poisson(share * bound, prompt, output)
            if ps.verdict(workload, server.with_policy("maxweight")).verdict == "stable":
                carried = share
                break
        print(number, "rises" if rises else "dips", carried, flush=True)


def of_running() -> Iterator[tuple[str, Case]]:
    """Yield servers whose max batch size counts running requests."""
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    for budget, slots, prompt, output in PRESET:
        yield f"preset {budget} {slots} {prompt}/{output}", (
            ps.Server(batch_time, budget, slots), lengths(prompt), lengths(output)
        )  # fmt: skip
    points = (Point.draw(number) for number in itertools.count())
    binding = (
        point for point in points if (point.server.max_batch_size or 0) < point.server.token_budget
    )
    for point in itertools.islice(binding, 20):
        yield (
            str(point),
            (dataclasses.replace(point.server, scope="running"), point.prompt, point.output),
        )


def running() -> None:
    """Print a row for each server."""
    for name, (server, prompt, output) in of_running():
        bound = ps.region(server, prompt=prompt, output=output).max_rate
        workload = ps.Workload.poisson(bound, prompt, output)
        rates = (
            ps.max_rate(workload, server.with_policy(policy), precision=0.02).rate
            for policy in POLICIES
        )
        print(
            name,
            *(f"{policy} {rate / bound:.3f}" for policy, rate in zip(POLICIES, rates, strict=True)),
            flush=True,
        )


if __name__ == "__main__":
    {"tables": tables, "running": running}[sys.argv[1]]()
