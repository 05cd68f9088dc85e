"""The mean field of a server that decodes first: a pool of decodes, and the chain of the prefill backlog beside it.

Let n be the requests in decode, Q the prompt tokens that wait and b_max the token budget. A batch has n decodes and
min(Q, b_max - n) prompt tokens, so from batch to batch

    Q' = (Q + n - b_max)+ + A,    A compound Poisson(rate t_b) of prompts.

The mean field closes this with the pool's mean, n = rate D tau (Little's law), where D is the mean number of decode
iterations and tau the mean batch time as a decode sees it. For each tau that gives the batch time of the chain, and a
fixed point is a tau that gives itself. What is taken beside the means:

* **The pool** is Poisson, as that of an infinite server, so that steps of t_b are smoothed as they are in truth.
* **The remainder** R = (Q + n - b_max)+ that a full batch leaves is 0, or exponential. That E[Q^2] stays as it is says

      2 (b_max - n - rate E[P] t_bmax) E[R] = E[A^2] - E[X^2],    X = min(Q, b_max - n),

  and that E[Q] does, E[X] = E[A]: together they give P(R > 0) and E[R | R > 0].
* **The pool follows the backlog** over many more than h = D E[P] / (E[P] + D) batches. Then drift and standard
  deviation of what k batches fall behind, S_k, come down by E[P] / (E[P] + D), with all tokens P + D of a request in
  its variance. By how much that raises E[R] is the ratio of two of Spitzer's sums of E[(S_k)+] / k (`_follows`).
* **A decode begins as its prompt ends**, when other prompts are more likely to wait than in a mean batch.
"""

import math

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]

_POOL_PARTS = 40
_ROUNDS = 8
_CELLS = 24  # of a batch's room for prompts
_NORMAL_EDGES = np.linspace(-2.8, 2.8, 11)
_NORMAL_SHARES = np.diff([math.erf(z / math.sqrt(2)) for z in _NORMAL_EDGES])
_NORMAL_SHARES /= _NORMAL_SHARES.sum()
_SCAN, _STEPS = 24, 12
_AHEAD = 6  # quantiles of what is ahead
_EXPONENTIAL = -np.log1p(-(np.arange(_AHEAD) + 0.5) / _AHEAD)
_EXPONENTIAL /= _EXPONENTIAL.mean()

WORK_FIELDS = 10
RATE, PROMPT, PROMPT_SQUARE, DECODES, DECODES_SQUARE, REQUEST_SQUARE = range(6)
ALONE, MIXED, PER_PROMPT_TOKEN, WITH_PREFILL = range(6, WORK_FIELDS)
"""What arrives: requests/s; E[P], E[P^2], E[D], E[D^2], E[(P + D)^2], tokens. Then seconds beside those by token load:
of a decode in a batch without prefill and with it, of a prompt token, and of a batch for having prefill."""

POINT_FIELDS = 10
TAU, POOL, REMAINDER, LEFT, RESIDUAL, TTFT, IDLE, RISING, SEEN, BATCH_SQUARE = range(POINT_FIELDS)
"""A fixed point: batch time as a decode sees it, pool, E[R | R > 0], P(R > 0), mean time left of a batch, TTFT, share
of the arrivals that find nothing, and whether the fixed point repels."""


@njit(cache=True)
def _integral(sums: Floats, load: float) -> float:
    """Return the integral of t_b up to a load, where t_b holds from b - 1/2 to b + 1/2 and goes on at the ends."""
    last = sums.size - 1
    if load <= 0.5:
        return float((load - 0.5) * (sums[1] - sums[0]))
    if load >= last + 0.5:
        return float(sums[last] + (load - last - 0.5) * (sums[last] - sums[last - 1]))
    place = int(load - 0.5)
    return float(sums[place] + (load - 0.5 - place) * (sums[place + 1] - sums[place]))


@njit(cache=True)
def _mean_time(sums: Floats, low: float, high: float) -> float:
    """Return the mean t_b over loads from low to high."""
    if high - low < 1e-6:
        place = min(max(int(low + 0.5), 1), sums.size - 1)
        return float(sums[place] - sums[place - 1])
    return float((_integral(sums, high) - _integral(sums, low)) / (high - low))


@njit(cache=True)
def _full(work: Floats, sums: Floats, pool: float) -> float:
    """Return the time of a full batch beside such a pool."""
    last = sums.size - 1
    beside = work[MIXED] * pool + work[PER_PROMPT_TOKEN] * max(last - pool, 0.0) + work[WITH_PREFILL]
    return float(sums[last] - sums[last - 1] + beside)


@njit(cache=True)
def _pool_parts(mean: float, most: float, low: Floats, high: Floats, share: Floats) -> int:
    """Fill ranges of a Poisson pool with their probabilities; return how many."""
    if mean < 12:
        count, chance = min(int(mean + 6 * math.sqrt(mean)) + 5, low.size), math.exp(-mean)
        for i in range(count):
            low[i] = high[i] = min(float(i), most)
            share[i] = chance
            chance *= mean / (i + 1)
        return count
    spread = math.sqrt(mean)
    for i in range(_NORMAL_SHARES.size):
        low[i] = min(mean + spread * _NORMAL_EDGES[i], most)
        high[i] = min(mean + spread * _NORMAL_EDGES[i + 1], most)
        share[i] = _NORMAL_SHARES[i]
    return _NORMAL_SHARES.size


@njit(cache=True)
def _arrived(number: float, room: float, prompts: Floats, single: Floats, found: Floats) -> None:
    """Fill the distribution of the prompt tokens that arrive, by cells of the room (Panjer's recursion).

    ``number`` is the mean number of prompts; what fills the room is left out.
    """
    width = room / _CELLS
    single[:] = 0.0
    for prompt in prompts:
        cell = prompt / width
        place = int(cell)
        if place < _CELLS:
            single[place] += (1 - cell + place) / prompts.size
            if place + 1 < _CELLS:
                single[place + 1] += (cell - place) / prompts.size
    found[0] = math.exp(-number * (1 - single[0]))
    for j in range(1, _CELLS):
        total = 0.0
        for i in range(1, j + 1):
            total += i * single[i] * found[j - i]
        found[j] = total * number / j


@njit(cache=True)
def _follows(work: Floats, tau: float, room: float, full: float, budget: float) -> float:
    """Return by which factor E[R] grows as the pool follows the backlog: a ratio of two of Spitzer's sums."""
    rate, prompt = work[RATE], work[PROMPT]
    keeps = prompt / (prompt + work[DECODES])
    short = room - rate * prompt * full  # drift of a batch while the pool stays
    long = keeps * (budget - rate * full * (prompt + work[DECODES]))  # and once it has followed
    settle = keeps * work[DECODES]
    if settle < 1e-6:
        return 1.0
    both, stays_put = 0.0, 0.0
    before, last_both, last_put = 0.0, 0.0, 0.0
    k = 1.0
    while k < 1e9:
        stays = -math.expm1(-k / settle) * settle / k
        seconds = rate * (tau + (k - 1) * full)
        start = rate * prompt * (full - tau)
        square = work[PROMPT_SQUARE] * stays + keeps**2 * work[REQUEST_SQUARE] * (1 - stays)
        followed = _excess(k * (long + (short - long) * stays) + start, math.sqrt(seconds * square))
        put = _excess(k * short + start, math.sqrt(seconds * work[PROMPT_SQUARE]))
        length = math.log((k + 0.5) / (before + 0.5)) / 2
        both += followed / k if k - before == 1 else (followed + last_both) * length
        stays_put += put / k if k - before == 1 else (put + last_put) * length
        if k > 4 and followed < 1e-5 * both:
            break
        before, last_both, last_put = k, followed, put
        k += max(1.0, math.floor(k * 0.15))
    return both / stays_put if stays_put > 0 else 1.0


@njit(cache=True)
def _reaches_over(work: Floats, pool: float, full: float, budget: float) -> float:
    """Return the share of the time that the pool's own fluctuation fills batches, as in heavy traffic.

    There the work V is a diffusion. Above the pool n* at which batches are full it drifts down at a fixed rate and is
    exponential; below it is held by the pool, which is normal about n. Both densities meet at n*.
    """
    rate, decodes = work[RATE], work[DECODES]
    drift = budget - rate * full * (work[PROMPT] + decodes)
    if pool <= 0 or drift <= 0:
        return 1.0
    above = rate * full * work[REQUEST_SQUARE] / (2 * drift)
    z = min(max((budget * decodes / (work[PROMPT] + decodes) - pool) / math.sqrt(pool), 0.0), 30.0)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = math.sqrt(pool) * work[DECODES_SQUARE] / (2 * decodes) * (1 - 0.5 * math.erfc(z / math.sqrt(2)))
    lasts, pool_lasts = 2 * above / drift, work[DECODES_SQUARE] / (2 * decodes)  # batches
    slow = (lasts / (lasts + pool_lasts)) ** 2
    return float(1 - slow * below / (above * density + below))


@njit(cache=True)
def _excess(drift: float, spread: float) -> float:
    """Return E[(S)+] of a normal S with mean -drift."""
    z = drift / spread
    return spread * (math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * 0.5 * math.erfc(z / math.sqrt(2)))


@njit(cache=True)
def _chain(work: Floats, tau: float, prompts: Floats, sums: Floats, found: Floats, low: Floats, high: Floats) -> float:
    """Return the batch time that the chain has where decodes see tau, and fill a fixed point's fields."""
    rate, prompt = work[RATE], work[PROMPT]
    budget = float(sums.size - 1)
    own = 1.0 if work[DECODES] > 0 else 0.0  # the decode that looks
    pool = min(rate * work[DECODES] * tau, budget * work[DECODES] / (prompt + work[DECODES]))
    room = max(budget - pool - own, 1.0)
    full = _full(work, sums, pool + own)
    single, share, chance = np.empty(_CELLS), np.empty(_POOL_PARTS), np.empty(_CELLS)
    _arrived(rate * tau, room, prompts, single, chance)
    width = room / _CELLS
    alone, more = 0.0, 1.0
    for c in range(_CELLS):
        alone += chance[c] * c * width
        more -= chance[c]
    alone += more * room  # E[min(A, room)]
    arriving = rate * prompt * tau
    factor = 1 + (_follows(work, tau, room, full, budget) - 1) * _reaches_over(work, pool, full, budget)
    drift = max(room - rate * prompt * full, 1e-3)
    batch_square = found[BATCH_SQUARE] if found[BATCH_SQUARE] > 0 else tau * tau
    arriving_square = rate * tau * work[PROMPT_SQUARE] + (rate * prompt) ** 2 * batch_square
    mean_left, left, beside = work[PROMPT_SQUARE] / (2 * prompt), 0.0, np.empty(_CELLS)
    for _ in range(_ROUNDS):
        fade = math.exp(-width / mean_left)
        behind, chance_behind, with_it, with_square, alone_square = 0.0, 0.0, 0.0, 0.0, 0.0
        for c in range(_CELLS):  # P(cell <= R + A < cell + 1) where R is exponential
            chance_behind = chance_behind * fade + chance[c]
            beside[c] = chance_behind * (1 - fade)
            behind += beside[c]
            with_it += beside[c] * (c + 0.5) * width
            with_square += beside[c] * ((c + 0.5) * width) ** 2
            alone_square += chance[c] * (c * width) ** 2
        with_it += (1 - behind) * room
        with_square += (1 - behind) * room * room
        alone_square += more * room * room
        left = min(max((arriving - alone) / max(with_it - alone, 1e-9), 1e-9), 1.0)
        served_square = left * with_square + (1 - left) * alone_square
        remainder = factor * max(arriving_square - served_square, 0.0) / (2 * drift)
        mean_left = 0.5 * mean_left + 0.5 * max(remainder / left, width)
    whole = (1 - left) * more + left * (1 - behind)
    parts = _pool_parts(pool, budget - own, low, high, share)
    mean, square = 0.0, 0.0
    for i in range(parts):
        here, here_square, rest = 0.0, 0.0, 1.0
        for c in range(_CELLS):
            weight = (1 - left) * chance[c] + left * beside[c]
            if weight < 1e-9:
                continue
            at, spread = own + c * width, width / 2 if c else 0.0
            if at + low[i] == 0:
                at = 1.0
            seconds = _mean_time(sums, low[i] + at - spread, high[i] + at + spread)
            seconds += (work[MIXED] if c else work[ALONE]) * ((low[i] + high[i]) / 2 + own)
            seconds += work[PER_PROMPT_TOKEN] * c * width + (work[WITH_PREFILL] if c else 0.0)
            here += weight * seconds
            here_square += weight * seconds * seconds
            rest -= weight
        mean += share[i] * (here + max(rest, 0.0) * full)
        square += share[i] * (here_square + max(rest, 0.0) * full * full)
    found[TAU], found[POOL], found[REMAINDER], found[LEFT] = tau, pool, mean_left, left
    found[RESIDUAL] = square / (2 * mean)
    found[BATCH_SQUARE] = square
    seen = min(whole * full / mean, 1.0)  # by a prompt that ends: as by arrivals, in time
    run = max(mean_left / drift, 1.0)
    settle = run * (1 - whole)
    stays = 0.0
    if settle > 0 and own:  # mean over the decodes of a request, of constant and of geometric number
        length, spread = work[DECODES] / settle, min(work[DECODES_SQUARE] / work[DECODES] ** 2 - 1, 1.0)
        stays = -(1 - spread) * math.expm1(-length) / length + spread / (1 + length)
    short = (mean - whole * full) / max(1 - whole, 1e-9)
    found[SEEN] = mean + max(seen - whole, 0.0) * stays * max(full - short, 0.0)
    return mean


@njit(cache=True)
def _first_token(work: Floats, prompts: Floats, sums: Floats, found: Floats, low: Floats, high: Floats) -> None:
    """Fill the mean TTFT: what is left of the batch that runs, full batches, and the one that ends the prompt."""
    rate, prompt, decodes = work[RATE], work[PROMPT], work[DECODES]
    budget = float(sums.size - 1)
    pool, tau, residual = found[POOL], found[TAU], found[RESIDUAL]
    full = _full(work, sums, pool)
    share = np.empty(_POOL_PARTS)
    parts = _pool_parts(pool, budget, low, high, share)
    room, keeps = max(budget - pool, 1.0), prompt / (prompt + decodes)
    settle = max(keeps * decodes, 1e-9)
    left = min(found[LEFT] * full / tau, 1.0)  # a batch that leaves something is full
    nobody = math.exp(-rate * residual)
    beside = rate * residual * prompt / max(1 - nobody, 1e-12)
    waiting, idle, nothing_ahead, beside_prefill = 0.0, 0.0, 0.0, 0.0
    for own in prompts:
        more = (work[PER_PROMPT_TOKEN] * min(own, room) + work[WITH_PREFILL] + work[MIXED] * pool) / prompts.size
        waiting, beside_prefill = waiting + more, beside_prefill + more
        idle += (work[PER_PROMPT_TOKEN] * min(own, budget) + work[WITH_PREFILL]) / prompts.size
        batches = math.ceil(own / budget)
        rest = own - (batches - 1) * budget
        idle += ((batches - 1) * full + _mean_time(sums, rest, rest)) / prompts.size
        for i in range(_AHEAD + 1):
            of_left = 1 - left if i == 0 else left / _AHEAD
            ahead = 0.0 if i == 0 else _EXPONENTIAL[i - 1] * found[REMAINDER]
            for j in range(_AHEAD + 1):
                weight = of_left * (nobody if j == 0 else (1 - nobody) / _AHEAD)
                if weight < 1e-7:
                    continue
                need = own + ahead + (0.0 if j == 0 else _EXPONENTIAL[j - 1] * beside)
                k = need / room
                stays = -math.expm1(-k / settle) * settle / k
                rate_of = budget * keeps + (room - budget * keeps) * stays
                batches = math.ceil(need / rate_of)
                rest = need - (batches - 1) * rate_of
                missed = rate * (residual + (batches - 1) * full)
                last, none = 0.0, math.exp(-missed)
                for later in range(2):
                    chance = none if later == 0 else 1 - none
                    if chance < 1e-4:
                        continue
                    rest += 0.0 if later == 0 else missed * prompt / chance
                    for part in range(parts):
                        last += chance * share[part] * _mean_time(sums, low[part] + rest, high[part] + rest)
                waiting += weight * ((batches - 1) * full + last) / prompts.size
                if i + j == 0:
                    nothing_ahead += ((batches - 1) * full + last) / prompts.size
    waiting += residual
    found[IDLE] = min(math.exp(-rate * (waiting + decodes * found[SEEN])), (1 - left) * nobody)
    found[TTFT] = waiting + found[IDLE] * (idle - nothing_ahead - beside_prefill - residual)


@njit(cache=True)
def fixed_points(work: Floats, prompts: Floats, sums: Floats, found: Floats) -> int:
    """Fill the fixed points, lowest first; return how many."""
    low, high = np.empty(_POOL_PARTS), np.empty(_POOL_PARTS)
    row = np.zeros(POINT_FIELDS)
    first = sums[1] - sums[0] + min(work[ALONE], work[MIXED])
    last = (sums.size - 1) / (work[RATE] * (work[PROMPT] + work[DECODES]))
    count, before, gain_before = 0, 0.999 * first, 1e-3 * first
    for i in range(_SCAN):
        tau = first + (last - first) * (i + 1.0) / _SCAN
        gain = _chain(work, tau, prompts, sums, row, low, high) - tau
        if (gain > 0) != (gain_before > 0) and count < found.shape[0]:
            a, b, gain_a, gain_b = before, tau, gain_before, gain
            for _ in range(_STEPS):  # regula falsi, Illinois
                middle = (a * gain_b - b * gain_a) / (gain_b - gain_a)
                found_there = _chain(work, middle, prompts, sums, row, low, high) - middle
                if abs(found_there) < 1e-6 * middle:
                    break
                if (found_there > 0) == (gain_b > 0):
                    gain_a *= 0.5
                else:
                    a, gain_a = b, gain_b
                b, gain_b = middle, found_there
            _first_token(work, prompts, sums, row, low, high)
            row[RISING] = 1.0 if gain > 0 else 0.0
            found[count] = row
            count += 1
        before, gain_before = tau, gain
    return count
