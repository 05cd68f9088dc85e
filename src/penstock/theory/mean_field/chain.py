"""The mean field of a server that decodes first: a chain of the prompt tokens in a batch, with a
pool of decodes.

Let n be the requests in decode, q the prompt tokens that wait as a batch begins and b_max the token
budget. A batch has n decodes and min(q, b_max - n) prompt tokens and takes t; from batch to batch

    q' = (q + n - b_max)+ + A,    A compound Poisson(rate t) of prompts.

The next batch is the longer, the longer this one was, so q is taken as a Markov chain on a grid of
`CELLS` loads from 0 to b_max, and one state F of the full batches that leave prompt tokens behind.
n has a mean in each state (`stationary`). Here is where each batch leads, beside such pools:

* **The spread of the pool.** n is negative binomial, Var(n | q) = g m(q). A decode sees g others
  more than a batch does.
* **An idle server.** Let n be so distributed over the time in which no prompt is served. That as
  many batches begin from idleness as end in it says: a batch after which no prompt waits is the
  last with probability rate t / (rate t + 1 / P(n = 0) - 1).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.inputs.arrays import Floats, Ints
from penstock.kernel import compiled_code as compiled_code

CELLS = 40
FULL = CELLS  # the state of full batches
_LEVELS_A_DOUBLING = 3
_A_LEVEL = 2 ** (1 / _LEVELS_A_DOUBLING)
_MOST_PROMPTS = 0.25  # on average, where the distribution of their tokens is taken term by term

_MOST_PARTS = 40
_MANY = 12  # requests of a pool that is taken as normal
_NORMAL_EDGES = np.linspace(-2.8, 2.8, 11)
_NORMAL_SHARES = np.diff([math.erf(z / math.sqrt(2)) for z in _NORMAL_EDGES])
_NORMAL_SHARES /= _NORMAL_SHARES.sum()


class Lengths(NamedTuple):
    """Prompts and decodes as a few values with weights, and how many decodes requests have.

    Attributes
    ----------
    prompts, prompt_weights, decodes, decode_weights
        Values, tokens, and their probabilities.
    lags
        P(D >= j) for j from 1 to `LAGS`.
    late
        P(D > `LAGS`) and, of those, E[D - `LAGS`].
    """

    prompts: Floats
    prompt_weights: Floats
    decodes: Floats
    decode_weights: Floats
    lags: Floats
    late: Floats


class Work(NamedTuple):
    """What arrives.

    Attributes
    ----------
    lengths
        Of prompts and decodes.
    rate
        Requests/s.
    prompt, prompt_square, decodes, decodes_square, request_square
        E[P], E[P^2], E[D], E[D^2], E[(P + D)^2], tokens.
    """

    lengths: Lengths
    rate: float
    prompt: float
    prompt_square: float
    decodes: float
    decodes_square: float
    request_square: float


class Costs(NamedTuple):
    """What batches take, seconds.

    Attributes
    ----------
    sums
        Running sums of t_b by token load b, from 0 to the budget.
    budget
        Most tokens of a batch.
    alone, mixed, per_prompt_token, with_prefill
        Beside t_b: of a decode in a batch without prefill and with it, of a prompt token, and of a
        batch for having prefill.
    """

    sums: Floats
    budget: float
    alone: float
    mixed: float
    per_prompt_token: float
    with_prefill: float


class Grid(NamedTuple):
    """Loads of a batch, prompt tokens; one prompt on them; and mean Poisson numbers of prompts,
    with the tokens of each.
    """

    loads: Floats
    below: Ints
    upper: Floats
    one: Floats
    numbers: Floats
    arrivals: Floats


class PoolParts(NamedTuple):
    """Ranges of the requests in a pool, and their probabilities."""

    low: Floats
    high: Floats
    share: Floats


class Chain(NamedTuple):
    """Where batches lead, all but what full ones leave.

    Attributes
    ----------
    times, squares, decode_times
        E[t], E[t^2] and E[t] beside a decode, by state.
    over
        Share of a cell that the room cuts, which is full.
    rows
        Prompt tokens that arrive in a batch.
    go, beside
        Probabilities of the next state, of a batch and as a decode sees it.
    idle
        Probability that the server is idle next.
    full_time, full_pool
        Of full batches: E[t] and the mean pool.
    room, drift
        Prompt tokens that fit into a full batch, and those more than arrive in it.
    """

    times: Floats
    squares: Floats
    decode_times: Floats
    over: Floats
    rows: Floats
    go: Floats
    beside: Floats
    idle: Floats
    full_time: float
    full_pool: float
    room: float
    drift: float


@njit(cache=True)
def chain(work: Work, costs: Costs, grid: Grid, pools: Floats, dispersion: float) -> Chain:
    """Return where batches lead beside such mean pools, by state."""
    rate, loads = work.rate, grid.loads
    own = 1.0 if work.decodes > 0 else 0.0
    room = max(costs.budget - pools[FULL] - own, 1.0)
    full = full_time(costs, pools[FULL] + own)
    drift = max(room - rate * work.prompt * full, 1e-3)
    times, squares, decode_times = _times(costs, loads, pools, dispersion)
    times[FULL] = decode_times[FULL] = full
    squares[FULL] = full**2

    last = 1.0  # probability that a batch after which no prompt waits is the last
    if work.decodes > 0:
        busy = math.expm1(min(pools[0] * _of_none(dispersion), 500.0))
        last = rate * times[0] / (rate * times[0] + busy)

    over = _over(loads, room)
    inside = 1 - over
    one = grid.one
    decodes_see = arrived(grid, rate * decode_times[:CELLS])
    rows = arrived(grid, rate * times[:CELLS])
    idle = rows[:, 0] * last
    go = np.empty((CELLS, CELLS + 1))
    beside = np.empty((CELLS, CELLS + 1))
    for c in range(CELLS):
        for k in range(CELLS):
            beside[c, k] = decodes_see[c, k] * inside[k]
            go[c, k] = rows[c, k] * inside[k] + idle[c] * one[k] * inside[k]
        go[c, 0] -= idle[c]
        beside[c, FULL] = max(1 - beside[c, :CELLS].sum(), 0.0)
        go[c, FULL] = max(1 - go[c, :CELLS].sum(), 0.0)
    return Chain(
        times, squares, decode_times, over, rows, go, beside, idle, full, pools[FULL], room, drift
    )


@njit(cache=True)
def _over(loads: Floats, room: float) -> Floats:
    """Return which share of a cell is full: a cell that the room cuts is full in part."""
    over = np.zeros(CELLS)
    for k in range(1, CELLS):
        narrow = loads[k] - loads[k - 1]
        wide = loads[k + 1] - loads[k] if k + 1 < CELLS else narrow
        past = (loads[k] + wide / 2 - room) / ((wide + loads[k] - loads[k - 1]) / 2)
        over[k] = min(max(past, 0.0), 1.0)
    if loads[-1] >= room:
        over[-1] = 1.0
    return over


# What batches take.


@njit(cache=True)
def _integral(sums: Floats, load: float) -> float:
    """Return the integral of t_b up to a load, where t_b holds from b - 1/2 to b + 1/2 and goes on
    at the ends.
    """
    last = sums.size - 1
    if load <= 0.5:
        return float((load - 0.5) * (sums[1] - sums[0]))
    if load >= last + 0.5:
        return float(sums[last] + (load - last - 0.5) * (sums[last] - sums[last - 1]))
    below = int(load - 0.5)
    return float(sums[below] + (load - 0.5 - below) * (sums[below + 1] - sums[below]))


@njit(cache=True)
def mean_time(sums: Floats, low: float, high: float) -> float:
    """Return the mean t_b over loads from low to high."""
    if high - low < 1e-6:
        load = min(max(int(low + 0.5), 1), sums.size - 1)
        return float(sums[load] - sums[load - 1])
    return float((_integral(sums, high) - _integral(sums, low)) / (high - low))


@njit(cache=True)
def full_time(costs: Costs, pool: float) -> float:
    """Return the time of a full batch beside such a pool."""
    prompt_tokens = max(costs.budget - pool, 0.0)
    beside = costs.mixed * pool + costs.per_prompt_token * prompt_tokens + costs.with_prefill
    return float(costs.sums[-1] - costs.sums[-2] + beside)


@njit(cache=True)
def pool_parts(mean: float, dispersion: float, most: float) -> PoolParts:
    """Return the pool in ranges: negative binomial where it is small, Poisson for a dispersion of
    1; else normal.
    """
    if mean < _MANY:
        count = min(int(mean + 6 * math.sqrt(mean * dispersion)) + 5, _MOST_PARTS)
        requests = np.empty(count)
        share = np.empty(count)
        chance = math.exp(-mean * _of_none(dispersion))
        for i in range(count):
            requests[i] = min(float(i), most)
            share[i] = chance
            chance *= (mean + (dispersion - 1) * i) / dispersion / (i + 1)
        return PoolParts(requests, requests, share)
    spread = min(math.sqrt(mean * dispersion), mean / 2.8)
    edges = np.minimum(mean + spread * _NORMAL_EDGES, most)
    return PoolParts(edges[:-1], edges[1:], _NORMAL_SHARES.copy())


@njit(cache=True)
def _of_none(dispersion: float) -> float:
    """Return -log P(n = 0) over E[n]."""
    return math.log(dispersion) / (dispersion - 1) if dispersion > 1.001 else 1.0


@njit(cache=True)
def _times(
    costs: Costs, loads: Floats, pools: Floats, dispersion: float
) -> tuple[Floats, Floats, Floats]:
    """Return E[t], E[t^2] and E[t] beside a decode of batches with so many prompt tokens."""
    times = np.empty(CELLS + 1)
    squares = np.empty(CELLS + 1)
    decode_times = np.empty(CELLS + 1)
    sums, budget = costs.sums, costs.budget
    for k in range(CELLS):
        lows, highs, share = pool_parts(pools[k], dispersion, budget)
        half = (loads[k] - loads[k - 1]) / 2 if k else 0.0
        if half <= 0.75:
            half = 0.0
        per_decode = costs.mixed if k else costs.alone
        prefill = costs.per_prompt_token * loads[k] + costs.with_prefill if k else 0.0
        # A decode sees others beside itself, and is more often in a pool of many.
        others = dispersion if pools[k] >= _MANY else 1.0
        tilts = dispersion >= 1.001 and pools[k] < _MANY
        whole, mean, square, whole_beside, beside = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(share.size):
            low, high = lows[i], highs[i]
            if k or high > 0:
                seconds = _part_time(sums, low, high, loads[k], half)
                seconds += per_decode * (low + high) / 2
                seconds += prefill
                whole += share[i]
                mean += share[i] * seconds
                square += share[i] * seconds**2
            low, high = min(low + others, budget), min(high + others, budget)
            seconds = _part_time(sums, low, high, loads[k], half)
            seconds += per_decode * (low + high) / 2
            seconds += prefill
            weight = share[i] * (1 + i * (dispersion - 1) / pools[k]) if tilts else share[i]
            whole_beside += weight
            beside += weight * seconds
        decode_times[k] = beside / whole_beside
        times[k] = mean / whole if whole > 1e-12 else decode_times[k]
        squares[k] = square / whole if whole > 1e-12 else decode_times[k] ** 2
    return times, squares, decode_times


@njit(cache=True)
def _part_time(sums: Floats, low: float, high: float, load: float, half: float) -> float:
    """Return the mean t_b of a part of a pool beside a cell of prompt tokens."""
    top = min(high + load + half, float(sums.size - 1))
    return mean_time(sums, min(max(low + load - half, 1.0), top), top)


# What arrives meanwhile.


@njit(cache=True)
def grid_of(work: Work, budget: float, least: float, most: float) -> Grid:
    """Return the grid, with prompts of a number from least to most on average."""
    loads = _loads(work.prompt, budget)
    below = np.empty((CELLS, CELLS), np.int64)
    upper = np.zeros((CELLS, CELLS))
    for i in range(CELLS):
        for j in range(CELLS):
            k = below[i, j] = _between(loads, loads[i] + loads[j])
            if k < CELLS:
                upper[i, j] = (loads[i] + loads[j] - loads[k]) / (loads[k + 1] - loads[k])
    # One prompt, shared out between the loads beside it so that the mean stays.
    lengths = work.lengths
    one = np.zeros(CELLS)
    for i in range(lengths.prompts.size):
        k = _between(loads, lengths.prompts[i])
        if k < CELLS:
            part = (lengths.prompts[i] - loads[k]) / (loads[k + 1] - loads[k])
            one[k] += lengths.prompt_weights[i] * (1 - part)
            one[k + 1] += lengths.prompt_weights[i] * part
    # Few prompts on average are taken term by term; each doubling of the number adds what half as
    # many bring to itself.
    least = min(least, _MOST_PROMPTS)
    doublings = max(math.log2(most / least), 1.0)
    levels = math.ceil(_LEVELS_A_DOUBLING * doublings) + 2
    numbers = least * 2 ** (np.arange(levels) / _LEVELS_A_DOUBLING)
    arrivals = np.zeros((levels, CELLS))
    grid = Grid(loads, below, upper, one, numbers, arrivals)
    two = added(grid, one, one)
    three = added(grid, two, one)
    for level in range(levels):
        if level >= _LEVELS_A_DOUBLING:
            half = arrivals[level - _LEVELS_A_DOUBLING]
            arrivals[level] = added(grid, half, half)
            continue
        number = numbers[level]
        none = math.exp(-number)
        arrivals[level] = none * (number * one + number**2 / 2 * two)
        arrivals[level] += (1 - none * (1 + number + number**2 / 2)) * three
        arrivals[level, 0] += none
    return grid


@njit(cache=True)
def _loads(prompt: float, budget: float) -> Floats:
    """Return loads from 0 to the budget, finest near 0: each step is by the same factor longer."""
    first = min(max(1.0, prompt / 4), budget / (CELLS - 1))
    low, high = 1e-9, 10.0
    for _ in range(60):
        growth = math.sqrt(low * high)
        if first * ((1 + growth) ** (CELLS - 1) - 1) / growth > budget:
            high = growth
        else:
            low = growth
    loads = np.empty(CELLS)
    for k in range(CELLS):
        loads[k] = budget * ((1 + low) ** k - 1) / ((1 + low) ** (CELLS - 1) - 1)
    return loads


@njit(cache=True)
def _between(loads: Floats, tokens: float) -> int:
    """Return the cell at or below so many tokens; `CELLS` beyond the last."""
    if tokens > loads[-1]:
        return CELLS
    at_or_below = int(np.searchsorted(loads, tokens, side="right")) - 1
    return min(at_or_below, CELLS - 2)


@njit(cache=True)
def added(grid: Grid, a: Floats, b: Floats) -> Floats:
    """Return the distribution of a sum, which keeps its mean; what exceeds the grid is left out."""
    below, upper = grid.below, grid.upper
    row = np.zeros(CELLS)
    for i in range(CELLS):
        if a[i] < 1e-14:
            continue
        for j in range(CELLS):
            k = below[i, j]
            if k == CELLS:
                break
            row[k] += a[i] * b[j] * (1 - upper[i, j])
            row[k + 1] += a[i] * b[j] * upper[i, j]
    return row


@njit(cache=True)
def arrived(grid: Grid, prompts: Floats) -> Floats:
    """Return the distributions of the tokens of so many prompts on average, a row each."""
    numbers, arrivals = grid.numbers, grid.arrivals
    rows = np.empty((prompts.size, CELLS))
    for i in range(prompts.size):
        steps = _LEVELS_A_DOUBLING * math.log2(max(prompts[i] / numbers[0], 1.0))
        level = min(int(steps), numbers.size - 2)
        low = numbers[level]
        upper = min(max((prompts[i] - low) / (low * _A_LEVEL - low), 0.0), 1.0)
        for k in range(CELLS):
            rows[i, k] = (1 - upper) * arrivals[level, k] + upper * arrivals[level + 1, k]
    return rows
