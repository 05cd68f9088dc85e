"""Print what MaxWeight carries on rough measured tables, and what adaptive policies carry in scope
``running``.

``python benchmarks/studies/adaptive_limits.py tables`` draws 120 tables (scope ``batch``) and
prints the largest of five shares of the region's boundary at which `penstock.verdict` says stable
(half an hour of processor time). ``running`` takes four servers of a preset and the 200 points of
``adaptive_sweep.py`` in scope ``running``, and prints which share of the boundary each policy
carries of a backlog, Sarathi-Serve also at the best multiple of b0 (40 minutes on two cores).
"""

import concurrent.futures
import dataclasses
import sys
from collections.abc import Iterator

import numpy as np
from adaptive_sweep import LONGEST, POINTS, Point

import penstock as ps
from penstock.theory.region import linear_program

TABLES = 120
SHARES = (0.97, 0.95, 0.9, 0.85, 0.8)
BEHIND = 0.02  # share of the boundary
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
    for point in map(Point.draw, range(POINTS)):
        yield (
            str(point),
            (dataclasses.replace(point.server, scope="running"), point.prompt, point.output),
        )


def carried(case: Case) -> dict[str, float]:
    """Return the share of the boundary that each policy carries of a backlog."""
    server, prompt, output = case
    direction = (prompt.mean_tokens, server.tokens_per_request(0, output.mean_tokens))
    best = linear_program(server, direction, prompt=prompt)
    requests = min(max(20_000, 60 * (server.max_batch_size or 1)), 400_000)
    rng = np.random.default_rng(1)
    tokens = [
        np.minimum(rng.geometric(1 / each.mean_tokens, requests), each.max) for each in case[1:]
    ]
    backlog = ps.Workload.from_arrays(np.zeros(requests), *tokens)
    prices = best.prices
    worth = (
        tokens[0] * prices.seconds_per_prefill_token
        + prices.seconds_per_prefill_request
        + server.tokens_per_request(0, tokens[1]) * prices.seconds_per_decode_token
    )

    def share(tried: ps.Server) -> float:
        """Return the seconds' worth, at the region's prices, of what ends in a second."""
        ends = ps.simulate(backlog, tried).requests["finish_ns"].to_numpy() / 1e9
        order = np.argsort(ends, kind="stable")[requests // 4 : 3 * requests // 4]
        return float(worth[order[1:]].sum() / (ends[order[-1]] - ends[order[0]]))

    policies = [policy for policy in ps.POLICIES if ps.POLICIES[policy].batching.own_budget]
    b0 = server.batch_time.b0
    budgets = [*range(b0, server.token_budget, b0), server.token_budget]
    fixed = [share(dataclasses.replace(server, policy="sarathi", token_budget=b)) for b in budgets]
    own = {policy: share(server.with_policy(policy)) for policy in policies}
    return {"sarathi": fixed[-1], f"sarathi {budgets[np.argmax(fixed)]}": max(fixed), **own}


def running() -> None:
    """Print a row for each server, and how often `priced` is behind."""
    names, cases = zip(*of_running(), strict=True)
    behind = 0
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for name, shares in zip(names, pool.map(carried, cases), strict=True):
            lost = max(v for k, v in shares.items() if "maxweight" not in k) - shares["priced"]
            behind += lost > BEHIND
            row = (f"{policy} {share:.3f}" for policy, share in shares.items())
            print("behind" if lost > BEHIND else "      ", name, *row, flush=True)
    print(f"priced is behind the best of sarathi and pool-controlled by {BEHIND:.0%} at {behind}")


if __name__ == "__main__":
    {"tables": tables, "running": running}[sys.argv[1]]()
