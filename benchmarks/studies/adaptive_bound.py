"""Bound what any policy carries where prompts are cut into chunks, at points of the sweep where
MaxWeight fails.

`penstock.region` lets a slot hold as many prefill tokens as fit. A prompt ends, though, and its
last chunk leaves the slot half empty or takes one of a decode. Let a chunk of s tokens be worth p_s
seconds and a decode token q, such that no batch is worth more than the time it takes. A request is
then worth at least

    E[min over all ways to cut its prompt of the sum of p_s] + q m_d,

and no policy carries more requests per second than 1 over that. Any prices give a bound. Good ones
are the optimum of a linear program, found by cutting planes: the batch that is worth most beyond
its time, and the cheapest way to cut each prompt, are dynamic programs. Prices are linear between
knots.

Run ``python benchmarks/studies/adaptive_bound.py NUMBER ...`` with numbers of points of
``adaptive_sweep.py``; it prints the bound and what MaxWeight carries, as shares of the
region's boundary, with lengths 10 and 3 times as long and as drawn.
"""

import sys

import numpy as np
import numpy.typing as npt
from adaptive_sweep import LONGEST, Point
from scipy.optimize import linprog

import penstock as ps

KNOTS = 24
ROUNDS = 200
CLOSE = 2e-3  # the bound is within this share of the best that such prices give

Floats = npt.NDArray[np.float64]


def densities(length: ps.Geometric | ps.Constant) -> Floats:
    """Return the probability of each length from 0 to the longest."""
    if isinstance(length, ps.Constant):
        return np.r_[np.zeros(length.max), 1.0]
    reached = (1 - 1 / length.mean_tokens) ** np.arange(length.max)
    return np.r_[0.0, -np.diff(reached), reached[-1]]


def cheapest_cuts(price: Floats, share: Floats) -> tuple[float, Floats]:
    """Return the mean worth of a prompt cut at the least price, and how many chunks of each size it
    gives.
    """
    most = price.size - 1
    worth, size = np.zeros(share.size), np.zeros(share.size, int)
    for tokens in range(1, share.size):
        sizes = np.arange(1, min(most, tokens) + 1)
        total = price[sizes] + worth[tokens - sizes]
        size[tokens], worth[tokens] = sizes[total.argmin()], total.min()
    left, chunks = share.copy(), np.zeros(price.size)
    for tokens in range(share.size - 1, 0, -1):
        chunks[size[tokens]] += left[tokens]
        left[tokens - size[tokens]] += left[tokens]
    return float(share @ worth), chunks


def dearest_batches(
    price: Floats, decode: float, seconds: Floats, slots: int
) -> list[tuple[float, Floats, int, int]]:
    """Return batches worth most per second: that worth, the chunks of each size, decode tokens,
    load.
    """
    budget = price.size - 1
    loads = np.arange(budget + 1)
    rest = loads[:, None] - loads
    fits = (rest >= 0) & (loads > 0)
    worth = [np.where(loads == 0, 0.0, -np.inf)]
    last = [np.zeros(budget + 1, int)]
    for _ in range(slots):
        total = np.where(fits, worth[-1][np.maximum(rest, 0)] + price, -np.inf)
        last.append(total.argmax(axis=1))
        worth.append(total.max(axis=1))
    found = []
    for prompts in range(slots + 1):
        for y in range(min(slots - prompts, budget) + 1):
            if prompts + y == 0:
                continue
            x = loads[: budget - y + 1]
            per_second = (worth[prompts][x] + decode * y) / np.where(x + y > 0, seconds[x + y], 1.0)
            found.append((float(per_second.max()), prompts, y, int(per_second.argmax())))
    batches = []
    for value, prompts, y, tokens in sorted(found, reverse=True)[:6]:
        chunks, load = np.zeros(budget + 1), tokens + y
        for n in range(prompts, 0, -1):
            chunks[last[n][tokens]] += 1
            tokens -= last[n][tokens]
        batches.append((value, chunks, y, load))
    return batches


def hats(server: ps.Server, slots: int) -> Floats:
    """Return the price of a chunk of each size for a price of 1 at one knot and 0 at the others;
    (sizes, knots).
    """
    budget = server.token_budget
    corners = (
        np.flatnonzero(np.diff(server.batch_time.table(budget)[1:])) + 2 - slots
    )  # beside k - 1 decodes
    knots = np.unique(np.r_[1:9, np.geomspace(1, budget, KNOTS).round(), corners])
    knots = knots[(knots >= 1) & (knots <= budget)]
    columns = [np.interp(np.arange(1, budget + 1), knots, unit) for unit in np.eye(knots.size)]
    return np.vstack([np.zeros(knots.size), np.column_stack(columns)])


def most_requests(
    server: ps.Server, prompt: ps.Geometric | ps.Constant, output: ps.Geometric
) -> float:
    """Return requests/s that no policy exceeds."""
    budget = server.token_budget
    slots = min(server.max_batch_size or budget, budget)
    full = float(server.batch_time(budget))
    seconds = server.batch_time.table(budget) / full
    share, price_of = densities(prompt), hats(server, slots)
    knots = price_of.shape[1]
    # Unknown: the price at each knot, that of a decode token, and the worth of a request, as large
    # as it can be.
    rows = list(
        np.eye(knots, knots + 2)[:-1] - np.eye(knots, knots + 2, 1)[:-1]
    )  # no larger chunk is cheaper
    limits, best = [0.0] * len(rows), 0.0
    bounds = [(0, 1)] * (knots + 1) + [(0, budget * share.size)]
    for _ in range(ROUNDS):
        solved = linprog(
            np.r_[np.zeros(knots + 1), -1.0], np.array(rows), limits, bounds=bounds, method="highs"
        )
        price, decode, hoped = price_of @ solved.x[:-2], solved.x[-2], solved.x[-1]
        worth, chunks = cheapest_cuts(price, share)
        batches = dearest_batches(price, decode, seconds, slots)
        if batches[0][0] > 0:  # scale the prices to what the dearest batch allows
            best = max(best, (worth + decode * output.mean) / batches[0][0])
        if hoped <= best * (1 + CLOSE):
            break
        rows += [np.r_[-chunks @ price_of, -output.mean, 1.0]]
        rows += [np.r_[held @ price_of, float(y), 0.0] for _, held, y, _ in batches]
        limits += [0.0, *(seconds[load] for *_, load in batches)]
    return 1 / (best * full)


def carried(
    server: ps.Server, prompt: ps.Geometric | ps.Constant, output: ps.Geometric
) -> tuple[str, float]:
    """Return what MaxWeight carries, as shares of the region's boundary, and the boundary in
    requests/s.
    """
    boundary = ps.region(server, prompt=prompt, output=output).max_rate
    workload = ps.Workload.poisson(boundary, prompt, output)
    found = ps.max_rate(workload, server.with_policy("maxweight"), precision=0.005)
    return f"{found.rate / boundary:.3f} to {found.above / boundary:.3f}", boundary


def main() -> None:
    """Print a row for each point, then some for prompts of one length at the server and outputs of
    the first.
    """
    points = [Point.draw(int(number)) for number in sys.argv[1:]]
    for point in points:
        shares = []
        for times in (10, 3, 1):
            prompt, output = (
                ps.Geometric(
                    times * length.mean_tokens, max=round(times * LONGEST * length.mean_tokens)
                )
                for length in (point.prompt, point.output)
            )
            share, boundary = carried(point.server, prompt, output)
            shares.append(f"x{times} {share}")
        most = most_requests(point.server, prompt, output) / boundary
        print(f"{point}  any policy at most {most:.4f}; maxweight", *shares, flush=True)
    for tokens in (14, 26, 29):
        share, boundary = carried(points[0].server, ps.Constant(tokens), points[0].output)
        most = most_requests(points[0].server, ps.Constant(tokens), points[0].output) / boundary
        print(f"prompts of {tokens}: any policy at most {most:.4f}; maxweight {share}")


if __name__ == "__main__":
    main()
