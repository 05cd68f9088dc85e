"""The mean field of a server that decodes first: a chain of the prompt tokens in a batch, with a
pool of decodes.

Let n be the requests in decode, q the prompt tokens that wait as a batch begins and b_max the token
budget. A batch has n decodes and min(q, b_max - n) prompt tokens and takes t; from batch to batch

    q' = (q + n - b_max)+ + A,    A compound Poisson(rate t) of prompts.

The next batch is the longer, the longer this one was, so q is taken as a Markov chain on a grid of
`CELLS` loads from 0 to b_max, and one state F of the full batches that leave prompt tokens behind.
n has a mean in each state:

* **The pool** m(q) = E[n | q]. Prompts that end in a batch begin to decode in the next one, so with
  b(q) the prompts that end in a batch of q, P(D >= j) the requests with at least j decodes, and T
  the chain beside a decode,

      w = sum over j >= 1 of P(D >= j) b T^j,    m(q) = w(q) / P(q),    TBT = sum w t / sum w.

  The first `LAGS` terms are exact, and the rest of a request ends at a fixed rate. sum w = E[D]
  E[b] is Little's law. A fixed point is a mean pool E[m] that gives itself.
* **The spread of the pool.** n is negative binomial, Var(n | q) = g m(q). Requests that arrive in a
  long batch begin to decode together, which makes later batches long: g follows from the covariance
  of n and A where t is linear in both, which solves X = M X M' + noise (`_spread`). A decode sees g
  others more than a batch does.
* **An idle server.** Let n be so distributed over the time in which no prompt is served. That as
  many batches begin from idleness as end in it says: a batch after which no prompt waits is the
  last with probability rate t / (rate t + 1 / P(n = 0) - 1).
* **Full batches.** How long a run of them lasts follows from the balance of prompt tokens. The
  remainder R = (q + n - b_max)+ is exponential; that E[q^2] stays as it is gives its mean,

      2 (b_max - n - rate E[P] t_bmax) E[R] = E[A^2] - E[X^2],    X = min(q, b_max - n).

* **The pool follows the backlog** over k batches by E[min(D, k)]. Then drift and standard deviation
  of what k batches fall behind, S_k, come down by E[P] / (E[P] + E[min(D, k)]). By how much that
  raises E[R] is the ratio of two of Spitzer's sums of E[(S_k)+] / k (`_follows`).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.inputs.arrays import Floats, Ints
from penstock.kernel import compiled_code as compiled_code

CELLS = 40
FULL = CELLS  # the state of full batches
LAGS = 16
_LEVELS_A_DOUBLING = 3
_MOST_PROMPTS = 0.25  # on average, where the distribution of their tokens is taken term by term

_POOL_PARTS = 40
_MANY = 12  # requests of a pool that is taken as normal
_NORMAL_EDGES = np.linspace(-2.8, 2.8, 11)
_NORMAL_SHARES = np.diff([math.erf(z / math.sqrt(2)) for z in _NORMAL_EDGES])
_NORMAL_SHARES /= _NORMAL_SHARES.sum()
_SCAN, _STEPS, _SETTLE = 16, 14, 8
_MOST_FOLLOWED = 100.0
_RARE = 1e-13  # runs of full batches, of all batches
_AHEAD = 6  # quantiles of what is ahead
_EXPONENTIAL = -np.log1p(-(np.arange(_AHEAD) + 0.5) / _AHEAD)
_EXPONENTIAL /= _EXPONENTIAL.mean()

WORK_FIELDS = 10
RATE, PROMPT, PROMPT_SQUARE, DECODES, DECODES_SQUARE, REQUEST_SQUARE = range(6)
ALONE, MIXED, PER_PROMPT_TOKEN, WITH_PREFILL = range(6, WORK_FIELDS)
"""What arrives: requests/s; E[P], E[P^2], E[D], E[D^2], E[(P + D)^2], tokens. Then seconds beside
those by token load: of a decode in a batch without prefill and with it, of a prompt token, and of a
batch for having prefill.
"""

POINT_FIELDS = 9
POOL, BATCH, LEFT, TTFT, FIRST_DECODE, DECODING, RISING, DISPERSION, VARIATION = range(POINT_FIELDS)
"""A fixed point: mean pool over time, E[t], share of full batches that leave something; means over
requests of the time to the end of the prompt, of the first decode and of all decodes; whether the
point repels; g; and Var(t) / E[t]^2.
"""


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


class _Grid(NamedTuple):
    """Loads of a batch, prompt tokens; one prompt on them; and those of a Poisson number of prompts
    by its mean.
    """

    loads: Floats
    below: Ints
    upper: Floats
    one: Floats
    arrivals: Floats
    least: float


class _Chain(NamedTuple):
    """The states of the chain: E[t], E[t^2] and E[t] beside a decode; what happens in them; and
    `numbers`.
    """

    times: Floats
    over: Floats
    rows: Floats
    go: Floats
    beside: Floats
    landing: Floats
    idle: Floats
    share: Floats
    ends: Floats
    decoding: Floats
    shape: Floats
    numbers: Floats


(
    MEAN,
    SQUARE,
    IDLE,
    BIRTHS,
    REMAINDER,
    FULL_TIME,
    ROOM,
    DRIFT,
    FULL_POOL,
    RUN,
    SPREAD_BY,
    FIRST,
    ALL,
) = range(13)


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
def _mean_time(sums: Floats, low: float, high: float) -> float:
    """Return the mean t_b over loads from low to high."""
    if high - low < 1e-6:
        load = min(max(int(low + 0.5), 1), sums.size - 1)
        return float(sums[load] - sums[load - 1])
    return float((_integral(sums, high) - _integral(sums, low)) / (high - low))


@njit(cache=True)
def _full(work: Floats, sums: Floats, pool: float) -> float:
    """Return the time of a full batch beside such a pool."""
    last = sums.size - 1
    beside = (
        work[MIXED] * pool + work[PER_PROMPT_TOKEN] * max(last - pool, 0.0) + work[WITH_PREFILL]
    )
    return float(sums[last] - sums[last - 1] + beside)


@njit(cache=True)
def _pool_parts(
    mean: float, dispersion: float, most: float, low: Floats, high: Floats, share: Floats
) -> int:
    """Fill ranges of the pool with their probabilities; return how many.

    Negative binomial where it is small, Poisson for a dispersion of 1; else normal.
    """
    if mean < _MANY:
        count = min(int(mean + 6 * math.sqrt(mean * dispersion)) + 5, low.size)
        chance = math.exp(-mean * _of_none(dispersion))
        for i in range(count):
            low[i] = high[i] = min(float(i), most)
            share[i] = chance
            chance *= (mean + (dispersion - 1) * i) / dispersion / (i + 1)
        return count
    spread = min(math.sqrt(mean * dispersion), mean / 2.8)
    for i in range(_NORMAL_SHARES.size):
        low[i] = min(mean + spread * _NORMAL_EDGES[i], most)
        high[i] = min(mean + spread * _NORMAL_EDGES[i + 1], most)
        share[i] = _NORMAL_SHARES[i]
    return _NORMAL_SHARES.size


@njit(cache=True)
def _of_none(dispersion: float) -> float:
    """Return -log P(n = 0) over E[n]."""
    return math.log(dispersion) / (dispersion - 1) if dispersion > 1.001 else 1.0


@njit(cache=True)
def _follows(
    work: Floats, lengths: Lengths, tau: float, room: float, full: float, budget: float
) -> float:
    """Return by which factor E[R] grows as the pool follows the backlog: a ratio of two sums."""
    rate, prompt, decodes = work[RATE], work[PROMPT], work[DECODES]
    short = room - rate * prompt * full  # drift of a batch while the pool stays
    if decodes * prompt / (prompt + decodes) < 1e-6:
        return 1.0
    product = (work[REQUEST_SQUARE] - work[PROMPT_SQUARE] - work[DECODES_SQUARE]) / decodes
    both, stays_put = 0.0, 0.0
    before, last_both, last_put = 0.0, 0.0, 0.0
    k = 1.0
    while k < 1e9:
        within, within_square = 0.0, 0.0  # decodes of a request in k batches
        for i in range(lengths.decodes.size):
            tokens = min(lengths.decodes[i], k)
            within += lengths.decode_weights[i] * tokens
            within_square += lengths.decode_weights[i] * tokens**2
        keeps = prompt / (prompt + within)
        settle = keeps * within
        older = rate * tau * (decodes - within)  # requests that last longer
        long = keeps * (budget - older - rate * full * (prompt + within))
        stays = -math.expm1(-k / settle) * settle / k
        seconds = rate * (tau + (k - 1) * full)
        start = rate * prompt * (full - tau)
        square = work[PROMPT_SQUARE] + within_square + product * within
        square = work[PROMPT_SQUARE] * stays + keeps**2 * square * (1 - stays)
        mean = k * (long + (short - long) * stays) + start
        followed = _excess(mean, math.sqrt(seconds * square))
        put = _excess(k * short + start, math.sqrt(seconds * work[PROMPT_SQUARE]))
        length = math.log((k + 0.5) / (before + 0.5)) / 2
        both += followed / k if k - before == 1 else (followed + last_both) * length
        stays_put += put / k if k - before == 1 else (put + last_put) * length
        if k > 4 and followed < 1e-5 * both:
            break
        before, last_both, last_put = k, followed, put
        k += max(1.0, math.floor(k * 0.15))
    return min(both / stays_put, _MOST_FOLLOWED) if stays_put > 0 else 1.0


@njit(cache=True)
def _reaches_over(work: Floats, pool: float, full: float, budget: float) -> float:
    """Return the share of the time that the pool's own fluctuation fills batches, as in heavy
    traffic.

    There the work V is a diffusion. Above the pool n* at which batches are full it drifts down at a
    fixed rate and is exponential; below it is held by the pool, which is normal about n. Both
    densities meet at n*.
    """
    rate, decodes = work[RATE], work[DECODES]
    drift = budget - rate * full * (work[PROMPT] + decodes)
    if pool <= 0 or drift <= 0:
        return 1.0
    above = rate * full * work[REQUEST_SQUARE] / (2 * drift)
    z = min(max((budget * decodes / (work[PROMPT] + decodes) - pool) / math.sqrt(pool), 0.0), 30.0)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = (
        math.sqrt(pool)
        * work[DECODES_SQUARE]
        / (2 * decodes)
        * (1 - 0.5 * math.erfc(z / math.sqrt(2)))
    )
    lasts, pool_lasts = 2 * above / drift, work[DECODES_SQUARE] / (2 * decodes)  # batches
    slow = (lasts / (lasts + pool_lasts)) ** 2
    return float(1 - slow * below / (above * density + below))


@njit(cache=True)
def _excess(drift: float, spread: float) -> float:
    """Return E[(S)+] of a normal S with mean -drift."""
    z = drift / spread
    return spread * (
        math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * 0.5 * math.erfc(z / math.sqrt(2))
    )


@njit(cache=True)
def _between(loads: Floats, tokens: float) -> int:
    """Return the cell at or below so many tokens; `CELLS` beyond the last."""
    if tokens > loads[-1]:
        return CELLS
    at_or_below = int(np.searchsorted(loads, tokens, side="right")) - 1
    return min(at_or_below, CELLS - 2)


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
def _grid(lengths: Lengths, prompt: float, budget: float, least: float, most: float) -> _Grid:
    """Return the grid, with prompts of a number from least to most on average."""
    loads = _loads(prompt, budget)
    below, upper = np.empty((CELLS, CELLS), np.int64), np.zeros((CELLS, CELLS))
    for i in range(CELLS):
        for j in range(CELLS):
            k = below[i, j] = _between(loads, loads[i] + loads[j])
            if k < CELLS:
                upper[i, j] = (loads[i] + loads[j] - loads[k]) / (loads[k + 1] - loads[k])
    # One prompt, shared out between the loads beside it so that the mean stays.
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
    arrivals = np.zeros((math.ceil(_LEVELS_A_DOUBLING * doublings) + 2, CELLS))
    grid = _Grid(loads, below, upper, one, arrivals, least)
    two, three = np.empty(CELLS), np.empty(CELLS)
    _added(grid, one, one, two)
    _added(grid, two, one, three)
    for level in range(arrivals.shape[0]):
        if level >= _LEVELS_A_DOUBLING:
            half = arrivals[level - _LEVELS_A_DOUBLING]
            _added(grid, half, half, arrivals[level])
            continue
        number = least * 2 ** (level / _LEVELS_A_DOUBLING)
        none = math.exp(-number)
        arrivals[level] = none * (number * one + number**2 / 2 * two)
        arrivals[level] += (1 - none * (1 + number + number**2 / 2)) * three
        arrivals[level, 0] += none
    return grid


@njit(cache=True)
def _added(grid: _Grid, a: Floats, b: Floats, row: Floats) -> None:
    """Fill the distribution of a sum, which keeps its mean; what exceeds the grid is left out."""
    row[:] = 0.0
    for i in range(CELLS):
        if a[i] < 1e-14:
            continue
        for j in range(CELLS):
            k = grid.below[i, j]
            if k == CELLS:
                break
            row[k] += a[i] * b[j] * (1 - grid.upper[i, j])
            row[k + 1] += a[i] * b[j] * grid.upper[i, j]


@njit(cache=True)
def _arrived(grid: _Grid, number: float, row: Floats) -> None:
    """Fill the distribution of the tokens of so many prompts on average."""
    steps = _LEVELS_A_DOUBLING * math.log2(max(number / grid.least, 1.0))
    level = min(int(steps), grid.arrivals.shape[0] - 2)
    low = grid.least * 2 ** (level / _LEVELS_A_DOUBLING)
    high = low * 2 ** (1 / _LEVELS_A_DOUBLING)
    upper = min(max((number - low) / (high - low), 0.0), 1.0)
    for k in range(CELLS):
        row[k] = (1 - upper) * grid.arrivals[level, k] + upper * grid.arrivals[level + 1, k]


@njit(cache=True)
def _times(
    work: Floats, sums: Floats, loads: Floats, pools: Floats, g: float, times: Floats
) -> None:
    """Fill E[t], E[t^2] and E[t] beside a decode of batches with so many prompt tokens."""
    budget = float(sums.size - 1)
    low, high, share = np.empty(_POOL_PARTS), np.empty(_POOL_PARTS), np.empty(_POOL_PARTS)
    for k in range(CELLS):
        many = pools[k] >= _MANY
        parts = _pool_parts(pools[k], g, budget, low, high, share)
        half = (loads[k] - loads[k - 1]) / 2 if k else 0.0
        half = half if half > 0.75 else 0.0
        mean, square, whole, beside, whole_beside = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(parts):
            for sees in range(2):  # what a batch has, and what a decode finds
                others = sees * (g if many else 1.0)
                at, to = min(low[i] + others, budget), min(high[i] + others, budget)
                if k == 0 and to == 0:
                    continue
                top = min(to + loads[k] + half, budget)
                seconds = _mean_time(sums, min(max(at + loads[k] - half, 1.0), top), top)
                seconds += (work[MIXED] if k else work[ALONE]) * (at + to) / 2
                seconds += work[PER_PROMPT_TOKEN] * loads[k] + (work[WITH_PREFILL] if k else 0.0)
                if sees:
                    weight = share[i] * (1.0 if many or g < 1.001 else 1 + i * (g - 1) / pools[k])
                    beside += weight * seconds
                    whole_beside += weight
                else:
                    mean += share[i] * seconds
                    square += share[i] * seconds**2
                    whole += share[i]
        times[2, k] = beside / whole_beside
        times[0, k] = mean / whole if whole > 1e-12 else times[2, k]
        times[1, k] = square / whole if whole > 1e-12 else times[2, k] ** 2


@njit(cache=True)
def _spread(
    work: Floats, pool: float, births: float, idle: float, of_decode: float, of_token: float
) -> float:
    """Return Var(n) where t is linear, dt = of_decode dn + of_token dA.

    With N prompts that end in a batch, n' = (1 - 1 / E[D]) n + N on average, and (N, A)' is what
    arrives in t. So the covariance of (n, A, N) is X = M X M' + noise; a batch after idleness has
    (0, P, 1) whatever was before.
    """
    rate, prompt = work[RATE], work[PROMPT]
    begin, stay = min(work[DECODES], 1.0), max(1 - 1 / work[DECODES], 0.0)
    total = rate * (prompt * of_token + of_decode * work[DECODES])
    slower = min(0.98 / total, 1.0) if total > 0 else 1.0
    m = np.zeros((3, 3))
    m[0, 0], m[0, 2] = stay, begin
    m[2, 0], m[2, 1] = rate * of_decode * slower, rate * of_token * slower
    m[1] = prompt * m[2]
    alone = np.array([0.0, prompt, 1.0])
    mean = np.array([pool, prompt * births, births])
    noise = np.zeros((3, 3))
    noise[0, 0] = stay * (1 - stay) * pool + begin * (1 - begin) * births
    noise[1, 1] = births * work[PROMPT_SQUARE]
    noise[1, 2] = noise[2, 1] = births * prompt
    noise[2, 2] = births
    system = np.eye(9)
    for i in range(3):
        for j in range(3):
            noise[i, j] -= idle * (alone[i] * mean[j] + (mean[i] - idle * alone[i]) * alone[j])
            for k in range(9):
                system[3 * i + j, k] -= m[i, k // 3] * m[j, k % 3]
    linear = min(max((1.06 - total) / 0.08, 0.0), 1.0)  # else nothing is known beyond Poisson
    return float(pool + linear * (np.linalg.solve(system, noise.ravel())[0] - pool))


@njit(cache=True)
def _transitions(work: Floats, sums: Floats, grid: _Grid, pool: float, chain: _Chain) -> None:
    """Fill where batches lead, all but what full ones leave: `go` of a batch, `beside` as a decode
    sees it.
    """
    rate, prompt, decodes = work[RATE], work[PROMPT], work[DECODES]
    budget, numbers, loads = float(sums.size - 1), chain.numbers, grid.loads
    pools = np.minimum(pool * chain.shape, budget * decodes / (prompt + decodes))
    own = 1.0 if decodes > 0 else 0.0
    room = max(budget - pools[FULL] - own, 1.0)
    full = _full(work, sums, pools[FULL] + own)
    numbers[FULL_TIME], numbers[ROOM], numbers[FULL_POOL] = full, room, pools[FULL]
    numbers[DRIFT] = max(room - rate * prompt * full, 1e-3)
    _times(work, sums, loads, pools, numbers[SPREAD_BY], chain.times)
    chain.times[0, FULL], chain.times[1, FULL], chain.times[2, FULL] = full, full**2, full
    for k in range(1, CELLS):  # a cell that the room cuts is full in part
        wide = loads[min(k + 1, CELLS - 1)] - loads[k]
        wide = wide if wide > 0 else loads[k] - loads[k - 1]
        past = (loads[k] + wide / 2 - room) / ((wide + loads[k] - loads[k - 1]) / 2)
        chain.over[k] = min(max(past, 0.0), 1.0)
    if loads[-1] >= room:
        chain.over[-1] = 1.0
    first, last = chain.times[0, 0], 1.0
    if decodes > 0:
        busy = math.expm1(min(pools[0] * _of_none(numbers[SPREAD_BY]), 500.0))
        last = rate * first / (rate * first + busy)
    inside = 1 - chain.over
    for c in range(CELLS):
        row = chain.rows[c]
        _arrived(grid, rate * chain.times[2, c], row)
        chain.beside[c, :CELLS] = row * inside
        chain.beside[c, FULL] = max(1 - chain.beside[c, :CELLS].sum(), 0.0)
        _arrived(grid, rate * chain.times[0, c], row)
        chain.idle[c] = row[0] * last
        chain.go[c, :CELLS] = row * inside + chain.idle[c] * grid.one * inside
        chain.go[c, 0] -= chain.idle[c]
        chain.go[c, FULL] = max(1 - chain.go[c, :CELLS].sum(), 0.0)


@njit(cache=True)
def _shares(work: Floats, grid: _Grid, chain: _Chain) -> None:
    """Fill how often each kind of batch is: runs of full ones end where their remainder does."""
    rate, prompt, numbers, loads = work[RATE], work[PROMPT], chain.numbers, grid.loads
    remains = numbers[REMAINDER] if numbers[REMAINDER] > 0 else work[PROMPT_SQUARE] / (2 * prompt)
    row, landing = np.empty(CELLS), chain.landing
    _arrived(grid, rate * numbers[FULL_TIME], row)
    # Where a run of full batches lands: new arrivals, and an exponential remainder.
    landing[:] = 0.0
    for k in range(CELLS):
        wide = loads[min(k + 1, CELLS - 1)] - loads[max(k - 1, 0)]
        for i in range(k + 1):
            landing[k] += row[i] * math.exp((loads[i] - loads[k]) / max(remains, 1.0))
        landing[k] *= wide * (1 - chain.over[k])
    landing /= landing.sum()
    balance = np.eye(CELLS)
    for c in range(CELLS):
        for k in range(CELLS):
            balance[k, c] -= chain.go[c, k] + chain.go[c, FULL] * landing[k]
    balance[-1] = 1.0
    right = np.zeros(CELLS)
    right[-1] = 1.0
    share = np.maximum(np.linalg.solve(balance, right), 0.0)
    # A run of full batches lasts until it has made up for the tokens that the others gain.
    cells = chain.times[0, :CELLS]
    gains = (share * (prompt * (rate * cells + chain.idle) - loads)).sum()
    spills = (share * chain.go[:CELLS, FULL]).sum()
    run = max(gains / (spills * numbers[DRIFT]), 1.0) if spills > _RARE else 1.0
    whole = share.sum() + spills * run
    chain.share[:CELLS] = share / whole
    chain.share[FULL] = spills * run / whole
    numbers[RUN] = run
    numbers[MEAN] = (chain.share * chain.times[0]).sum()
    numbers[SQUARE] = (chain.share * chain.times[1]).sum()
    numbers[IDLE] = (chain.share[:CELLS] * chain.idle).sum()
    numbers[BIRTHS] = rate * numbers[MEAN] + numbers[IDLE]


@njit(cache=True)
def _decoding(work: Floats, grid: _Grid, lengths: Lengths, chain: _Chain) -> None:
    """Fill in which batches prompts end, and in which their decodes are."""
    rate, prompt, numbers, loads = work[RATE], work[PROMPT], chain.numbers, grid.loads
    inside = 1 - chain.over
    mixed, row = np.zeros(CELLS), np.empty(CELLS)
    for c in range(CELLS):
        mixed += chain.share[c] * rate * chain.times[0, c] * chain.rows[c]
    _added(grid, grid.one, mixed, row)
    births, ends = numbers[BIRTHS], chain.ends
    ended = chain.share[FULL] / numbers[RUN] * chain.landing
    # the batch after full ones ends at least the prompt that they left
    ends[:CELLS] = (row + numbers[IDLE] * grid.one) * inside
    ends[:CELLS] += ended * (loads / prompt + np.exp(-loads / prompt))
    ends[FULL] = 0.0
    ends[:] *= min(births / ends.sum(), 1.0)
    ends[FULL] = births - ends.sum()
    chain.beside[FULL, :CELLS] = chain.landing / numbers[RUN]
    chain.beside[FULL, FULL] = 1 - 1 / numbers[RUN]
    at = ends @ chain.beside
    numbers[FIRST] = (at * chain.times[2]).sum() / births
    decoding = chain.decoding
    decoding[:] = 0.0
    for lag in range(LAGS):
        if lengths.lags[lag] == 0:
            break
        decoding += lengths.lags[lag] * at
        at = at @ chain.beside
    if lengths.late[0] > 0:
        system = np.eye(CELLS + 1) - (1 - 1 / lengths.late[1]) * chain.beside.T
        decoding += lengths.late[0] * np.linalg.solve(system, at)
    numbers[ALL] = (decoding * chain.times[2]).sum() / births


@njit(cache=True)
def _remainder(work: Floats, grid: _Grid, lengths: Lengths, budget: float, chain: _Chain) -> None:
    """Fill E[R | R > 0], by the balance of E[q^2]."""
    rate, prompt, numbers, loads = work[RATE], work[PROMPT], chain.numbers, grid.loads
    room, full, drift = numbers[ROOM], numbers[FULL_TIME], numbers[DRIFT]
    share = chain.share[:CELLS]
    served = chain.share[FULL] * room**2 + (share * loads**2).sum()
    arriving = numbers[BIRTHS] * work[PROMPT_SQUARE] + (rate * prompt) ** 2 * numbers[SQUARE]
    factor = _follows(work, lengths, numbers[MEAN], room, full, budget) - 1
    factor = 1 + factor * _reaches_over(work, numbers[FULL_POOL], full, budget)
    remainder = max(arriving - served, 0.0) / (2 * drift) / chain.share[FULL]
    # Where full batches are rare that is a small difference of large numbers: no more than by one
    # run
    overshoot = max(numbers[RUN] * drift - room + (chain.landing * loads).sum(), 1.0)
    past = np.maximum(lengths.prompts - room, 0.0)
    mean = (lengths.prompt_weights * past).sum()
    of_one = (lengths.prompt_weights * past**2).sum() / mean if mean > 0 else 0.0
    step = rate * full * work[PROMPT_SQUARE] + drift**2
    most = (overshoot * (2 * overshoot + of_one) / numbers[RUN] + step) / (2 * drift)
    numbers[REMAINDER] = factor * min(remainder, most)


@njit(cache=True)
def _dispersion(work: Floats, grid: _Grid, number: float, chain: _Chain) -> float:
    """Return Var(n | q) over E[n], from slopes of t by regression over the batches."""
    share, numbers = chain.share, chain.numbers
    tokens = np.empty(CELLS + 1)
    tokens[:CELLS] = grid.loads
    tokens[FULL] = numbers[ROOM]
    away = tokens - (share * tokens).sum()
    pool_away = chain.decoding - share * number
    per_decode = max((share * (chain.times[2] - chain.times[0])).sum() / numbers[SPREAD_BY], 0.0)
    cross = (share * away * (chain.times[0] - numbers[MEAN])).sum()
    per_token = cross - per_decode * (away * pool_away).sum()
    per_token = max(per_token, 0.0) / max((share * away**2).sum(), 1e-12)
    all_of_it = _spread(work, number, numbers[BIRTHS], numbers[IDLE], per_decode, per_token)
    for c in range(CELLS + 1):
        if share[c] > 1e-9:
            all_of_it -= pool_away[c] ** 2 / share[c]
    return float(min(max(all_of_it / number, 1.0), 1.0 + 5 * number))


@njit(cache=True)
def _turn(
    work: Floats,
    sums: Floats,
    grid: _Grid,
    lengths: Lengths,
    pool: float,
    spreads: bool,
    chain: _Chain,
) -> float:
    """Return the mean pool of the chain in which it is so large, and fill its shape for the next
    turn.
    """
    numbers, share, decoding = chain.numbers, chain.share, chain.decoding
    _transitions(work, sums, grid, pool, chain)
    _shares(work, grid, chain)
    _decoding(work, grid, lengths, chain)
    if share[FULL] > 1e-12:
        _remainder(work, grid, lengths, float(sums.size - 1), chain)
    number = decoding.sum()
    if number <= 0:
        return 0.0
    if spreads:
        numbers[SPREAD_BY] = (numbers[SPREAD_BY] + _dispersion(work, grid, number, chain)) / 2
    pools = (decoding + 1e-9 * number) / (share + 1e-9)
    if share[0] > 0:  # over the time without prompts, idle or not
        first = share[0] * chain.times[0, 0]
        pools[0] = decoding[0] * chain.times[0, 0] / (first + numbers[IDLE] / work[RATE])
    chain.shape[:] = (chain.shape + pools / number) / 2
    return float(number)


@njit(cache=True)
def _last_batch(
    work: Floats,
    sums: Floats,
    chain: _Chain,
    need: float,
    missed: float,
    parts: tuple[int, Floats, Floats, Floats],
) -> float:
    """Return the mean time of the batch that ends a prompt with so many tokens left, beside those
    that came later.
    """
    budget, seconds, none = float(sums.size - 1), 0.0, math.exp(-missed)
    count, low, high, share = parts
    for later in range(2):
        chance = 1 - none if later else none
        if chance < 1e-4:
            continue
        tokens = need + (missed * work[PROMPT] / chance if later else 0.0)
        for i in range(count):
            at, to = min(low[i] + tokens, budget), min(high[i] + tokens, budget)
            seconds += chance * share[i] * _mean_time(sums, at, to)
    beside = work[MIXED] * chain.numbers[FULL_POOL] + work[WITH_PREFILL]
    return float(seconds + work[PER_PROMPT_TOKEN] * min(need, chain.numbers[ROOM]) + beside)


@njit(cache=True)
def _in_line(
    work: Floats, sums: Floats, lengths: Lengths, chain: _Chain, running: float, left_over: bool
) -> float:
    """Return the mean time from the end of the batch that runs to that of a prompt's last, behind
    other prompts.
    """
    rate, prompt, decodes = work[RATE], work[PROMPT], work[DECODES]
    budget, full, room = float(sums.size - 1), chain.numbers[FULL_TIME], chain.numbers[ROOM]
    low, high, share = np.empty(_POOL_PARTS), np.empty(_POOL_PARTS), np.empty(_POOL_PARTS)
    pool, g = chain.numbers[FULL_POOL], chain.numbers[SPREAD_BY]
    parts = (_pool_parts(pool, g, budget, low, high, share), low, high, share)
    keeps = prompt / (prompt + decodes)
    settle = max(keeps * decodes, 1e-9)
    nobody = math.exp(-rate * running / 2)
    beside = rate * running / 2 * prompt / max(1 - nobody, 1e-12)
    seconds, whole = 0.0, 0.0
    for p in range(lengths.prompts.size):
        for i in range(_AHEAD if left_over else 1):
            ahead = _EXPONENTIAL[i] * chain.numbers[REMAINDER] if left_over else 0.0
            for j in range(_AHEAD + 1):
                chance = lengths.prompt_weights[p] * (nobody if j == 0 else (1 - nobody) / _AHEAD)
                need = lengths.prompts[p] + ahead + (_EXPONENTIAL[j - 1] * beside if j else 0.0)
                if not left_over and need + rate * running / 2 * prompt < 0.98 * room:
                    continue  # the next batch has room for it
                k = need / room
                stays = -math.expm1(-k / settle) * settle / k
                a_batch = budget * keeps + (room - budget * keeps) * stays
                before = math.ceil(need / a_batch) - 1
                missed = rate * (running / 2 + before * full)
                last = _last_batch(work, sums, chain, need - before * a_batch, missed, parts)
                seconds += chance * (before * full + last)
                whole += chance
    return seconds / whole if whole > 0 else full


@njit(cache=True)
def _first_token(work: Floats, sums: Floats, grid: _Grid, lengths: Lengths, chain: _Chain) -> float:
    """Return the mean time to the end of the prompt: what is left of the batch that runs, and those
    that follow.
    """
    rate, numbers, share = work[RATE], chain.numbers, chain.share
    budget, full = float(sums.size - 1), numbers[FULL_TIME]
    # 1. Arrivals while no batch is full, whose prompts end with the next one or do not fit into it
    waited = rate * (numbers[SQUARE] - share[FULL] * full**2) / 2
    mixed, row = np.zeros(CELLS), np.empty(CELLS)
    spilled, during = 0.0, 0.0
    for c in range(CELLS):
        number = share[c] * rate * chain.times[0, c]
        mixed += number * chain.rows[c]
        past = number * max(1 - (chain.rows[c] * (1 - chain.over)).sum(), 0.0)
        spilled += past
        during += past * chain.times[0, c]
    _added(grid, grid.one, mixed, row)
    row *= 1 - chain.over
    waited += (row * chain.times[0, :CELLS]).sum()
    number = rate * (numbers[MEAN] - share[FULL] * full)
    behind = max(number - row.sum(), 0.0)
    if behind > 1e-9 * numbers[BIRTHS]:
        running = during / spilled if spilled > 0 else numbers[MEAN]
        waited += behind * _in_line(work, sums, lengths, chain, running, False)
    # 2. Arrivals that find nobody
    for p in range(lengths.prompts.size):
        batches = math.ceil(lengths.prompts[p] / budget)
        rest = lengths.prompts[p] - (batches - 1) * budget
        alone = (batches - 1) * _full(work, sums, 0.0) + _mean_time(sums, rest, rest)
        alone += work[WITH_PREFILL] + work[PER_PROMPT_TOKEN] * rest
        waited += numbers[IDLE] * lengths.prompt_weights[p] * alone
    # 3. Arrivals behind what full batches leave
    if share[FULL] * rate * full > 1e-9 * numbers[BIRTHS]:
        wait = full / 2 + _in_line(work, sums, lengths, chain, full, True)
        waited += share[FULL] * rate * full * wait
    return float(waited / numbers[BIRTHS])


@njit(cache=True)
def _root(
    work: Floats,
    sums: Floats,
    grid: _Grid,
    lengths: Lengths,
    chain: _Chain,
    ends: Floats,
    gains: Floats,
) -> float:
    """Return the mean pool between two that gives itself (regula falsi, Illinois)."""
    a, b, gain_a, gain_b = ends[0], ends[1], gains[0], gains[1]
    for step in range(_STEPS):
        middle = (a * gain_b - b * gain_a) / (gain_b - gain_a)
        gain = _turn(work, sums, grid, lengths, middle, False, chain) - middle
        if step > 1 and abs(gain) < 1e-4 * middle:
            break
        if (gain > 0) == (gain_b > 0):
            gain_a *= 0.5
        else:
            a, gain_a = b, gain_b
        b, gain_b = middle, gain
    return float(b)


@njit(cache=True)
def _settled(
    work: Floats, sums: Floats, grid: _Grid, lengths: Lengths, chain: _Chain, pool: float
) -> None:
    """Let the pool spread, and find where it gives itself again from there (secants)."""
    before, gain_before = 0.0, 0.0
    for turn in range(_SETTLE):
        spread = chain.numbers[SPREAD_BY]
        gain = _turn(work, sums, grid, lengths, pool, True, chain) - pool
        if abs(gain) < 1e-4 * pool and abs(chain.numbers[SPREAD_BY] / spread - 1) < 1e-3:
            break
        step = gain
        if turn and abs(gain_before - gain) > 1e-12:
            step = gain * (pool - before) / (gain_before - gain)
        if step * gain <= 0 or abs(step) > 0.3 * pool:  # no secant of a fixed point that attracts
            step = min(max(gain, -0.3 * pool), 0.3 * pool)
        before, gain_before = pool, gain
        pool += step


@njit(cache=True)
def fixed_points(work: Floats, lengths: Lengths, sums: Floats, points: Floats) -> int:
    """Fill the fixed points, lowest first; return how many."""
    rate, decodes = work[RATE], work[DECODES]
    budget, seconds = float(sums.size - 1), np.diff(sums)
    shortest = seconds.min() + min(work[ALONE], work[MIXED])
    longest = seconds.max() + work[PER_PROMPT_TOKEN] * budget + work[WITH_PREFILL]
    longest += max(work[ALONE], work[MIXED]) * budget * decodes / (work[PROMPT] + decodes)
    grid = _grid(lengths, work[PROMPT], budget, rate * shortest, rate * longest)
    chain = _Chain(
        np.zeros((3, CELLS + 1)), np.zeros(CELLS), np.zeros((CELLS, CELLS)),
        np.zeros((CELLS, CELLS + 1)),
        np.zeros((CELLS + 1, CELLS + 1)), np.zeros(CELLS), np.zeros(CELLS), np.zeros(CELLS + 1),
        np.zeros(CELLS + 1), np.zeros(CELLS + 1), np.ones(CELLS + 1), np.zeros(13),
    )  # fmt: skip
    chain.numbers[SPREAD_BY] = 1.0
    if decodes == 0:
        for _ in range(4):
            _turn(work, sums, grid, lengths, 0.0, False, chain)
        _fill(work, sums, grid, lengths, chain, points[0])
        return 1
    # Scan pools from the least to the most: where the chain's own pool crosses the one assumed, one
    # gives itself.
    low = rate * decodes * shortest
    high = rate * decodes * longest + decodes / (1 + decodes)
    count, ends, gains = 0, np.zeros(2), np.array([low, 0.0])
    for i in range(_SCAN):
        ends[1] = 0.999 * low + (high - low) * (i + 1.0) / _SCAN
        for _ in range(1 if i else 4):
            gains[1] = _turn(work, sums, grid, lengths, ends[1], False, chain) - ends[1]
        if (gains[0] > 0) != (gains[1] > 0) and count < points.shape[0]:
            shape = chain.shape.copy()
            pool = _root(work, sums, grid, lengths, chain, ends, gains)
            if gains[1] < 0:
                _settled(work, sums, grid, lengths, chain, pool)
            _fill(work, sums, grid, lengths, chain, points[count])
            points[count, RISING] = 1.0 if gains[1] > 0 else 0.0
            chain.shape[:] = shape
            chain.numbers[SPREAD_BY] = 1.0
            count += 1
        ends[0], gains[0] = ends[1], gains[1]
    return count


@njit(cache=True)
def _fill(
    work: Floats, sums: Floats, grid: _Grid, lengths: Lengths, chain: _Chain, point: Floats
) -> None:
    """Fill a fixed point's fields."""
    numbers = chain.numbers
    point[POOL] = work[RATE] * numbers[ALL]
    point[BATCH], point[LEFT] = numbers[MEAN], chain.share[FULL]
    point[TTFT] = _first_token(work, sums, grid, lengths, chain)
    point[FIRST_DECODE], point[DECODING] = numbers[FIRST], numbers[ALL]
    point[DISPERSION] = numbers[SPREAD_BY]
    point[VARIATION] = max(numbers[SQUARE] / numbers[MEAN] ** 2 - 1, 0.0)
