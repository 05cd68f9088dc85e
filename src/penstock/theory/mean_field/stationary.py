"""How often the chain is in each of its states, and the pool of decodes that follows.

* **The pool** m(q) = E[n | q]. Prompts that end in a batch begin to decode in the next one, so with
  b(q) the prompts that end in a batch of q, P(D >= j) the requests with at least j decodes, and T
  the chain beside a decode,

      w = sum over j >= 1 of P(D >= j) b T^j,    m(q) = w(q) / P(q),    TBT = sum w t / sum w.

  The first `LAGS` terms are exact, and the rest of a request ends at a fixed rate. sum w = E[D]
  E[b] is Little's law.
* **The spread of the pool.** Requests that arrive in a long batch begin to decode together, which
  makes later batches long: g follows from the covariance of n and A where t is linear in both,
  which solves X = M X M' + noise (`_spread`).
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

from penstock.inputs.arrays import Floats
from penstock.theory.mean_field.chain import (
    CELLS,
    FULL,
    Chain,
    Costs,
    Grid,
    Work,
    added,
    arrived,
    chain,
)

LAGS = 16
_MOST_FOLLOWED = 100.0
_RARE = 1e-13  # runs of full batches, of all batches


class Feedback(NamedTuple):
    """What a turn hands to the next: m(q) over the mean pool, g, and E[R | R > 0], tokens."""

    shape: Floats
    dispersion: float
    remainder: float


class Shares(NamedTuple):
    """How often each kind of batch is.

    Attributes
    ----------
    share
        By state.
    landing
        Of the batch after a run of full ones, by cell.
    run
        Batches in a run of full ones.
    mean, square
        E[t] and E[t^2].
    idle, births
        Times a batch that the server falls idle, and requests.
    """

    share: Floats
    landing: Floats
    run: float
    mean: float
    square: float
    idle: float
    births: float


class Decoding(NamedTuple):
    """Requests in decode by state, and the mean seconds of the first decode and of all decodes."""

    pools: Floats
    first: float
    all: float


class Turn(NamedTuple):
    """The chain beside an assumed pool, and the mean pool that it has then."""

    pool: float
    chain: Chain
    shares: Shares
    decoding: Decoding
    feedback: Feedback


@njit(cache=True)
def turn_of(
    work: Work, costs: Costs, grid: Grid, pool: float, feedback: Feedback, spreads: bool
) -> Turn:
    """Return the chain in which the mean pool is so large; let the pool spread too if asked to."""
    most = costs.budget * work.decodes / (work.prompt + work.decodes)
    pools = np.minimum(pool * feedback.shape, most)
    states = chain(work, costs, grid, pools, feedback.dispersion)
    shares = _shares(work, grid, states, feedback.remainder)
    decoding = _decoding(work, grid, states, shares)
    remainder = feedback.remainder
    if shares.share[FULL] > 1e-12:
        remainder = _remainder(work, costs, grid, states, shares)
    number = decoding.pools.sum()
    if number <= 0:
        unchanged = Feedback(feedback.shape, feedback.dispersion, remainder)
        return Turn(0.0, states, shares, decoding, unchanged)

    dispersion = feedback.dispersion
    if spreads:
        spread = _dispersion(work, grid, states, shares, decoding.pools, dispersion)
        dispersion = (dispersion + spread) / 2
    pools = (decoding.pools + 1e-9 * number) / (shares.share + 1e-9)
    if shares.share[0] > 0:  # over the time without prompts, idle or not
        first = shares.share[0] * states.times[0]
        pools[0] = decoding.pools[0] * states.times[0] / (first + shares.idle / work.rate)
    shape = (feedback.shape + pools / number) / 2
    return Turn(number, states, shares, decoding, Feedback(shape, dispersion, remainder))


@njit(cache=True)
def _shares(work: Work, grid: Grid, states: Chain, remainder: float) -> Shares:
    """Return how often each kind of batch is: runs of full ones end where their remainder does."""
    remains = remainder if remainder > 0 else work.prompt_square / (2 * work.prompt)
    landing = _landing(work, grid, states, remains)
    go = states.go
    balance = np.eye(CELLS)
    for c in range(CELLS):
        for k in range(CELLS):
            balance[k, c] -= go[c, k] + go[c, FULL] * landing[k]
    balance[-1] = 1.0
    right = np.zeros(CELLS)
    right[-1] = 1.0
    cells = np.maximum(np.linalg.solve(balance, right), 0.0)
    # A run of full batches lasts until it has made up for the tokens that the others gain.
    arriving = work.prompt * (work.rate * states.times[:CELLS] + states.idle)
    gains = (cells * (arriving - grid.loads)).sum()
    spills = (cells * go[:, FULL]).sum()
    run = max(gains / (spills * states.drift), 1.0) if spills > _RARE else 1.0
    whole = cells.sum() + spills * run
    share = np.empty(CELLS + 1)
    share[:CELLS] = cells / whole
    share[FULL] = spills * run / whole
    mean = (share * states.times).sum()
    square = (share * states.squares).sum()
    idle = (share[:CELLS] * states.idle).sum()
    return Shares(share, landing, run, mean, square, idle, work.rate * mean + idle)


@njit(cache=True)
def _landing(work: Work, grid: Grid, states: Chain, remains: float) -> Floats:
    """Return where a run of full batches lands: new arrivals, and an exponential remainder."""
    loads = grid.loads
    row = arrived(grid, np.array([work.rate * states.full_time]))[0]
    landing = np.zeros(CELLS)
    for k in range(CELLS):
        wide = loads[min(k + 1, CELLS - 1)] - loads[max(k - 1, 0)]
        for i in range(k + 1):
            landing[k] += row[i] * math.exp((loads[i] - loads[k]) / max(remains, 1.0))
        landing[k] *= wide * (1 - states.over[k])
    return landing / landing.sum()  # type: ignore[no-any-return]


@njit(cache=True)
def _decoding(work: Work, grid: Grid, states: Chain, shares: Shares) -> Decoding:
    """Return in which batches decodes are: from where prompts end, the chain beside a decode."""
    lengths = work.lengths
    beside = np.empty((CELLS + 1, CELLS + 1))
    beside[:CELLS] = states.beside
    beside[FULL, :CELLS] = shares.landing / shares.run
    beside[FULL, FULL] = 1 - 1 / shares.run
    at = _ends(work, grid, states, shares) @ beside
    first = (at * states.decode_times).sum() / shares.births
    pools = np.zeros(CELLS + 1)
    for lag in range(LAGS):
        if lengths.lags[lag] == 0:
            break
        pools += lengths.lags[lag] * at
        at = at @ beside
    if lengths.late[0] > 0:
        system = np.eye(CELLS + 1) - (1 - 1 / lengths.late[1]) * beside.T
        pools += lengths.late[0] * np.linalg.solve(system, at)
    return Decoding(pools, first, (pools * states.decode_times).sum() / shares.births)


@njit(cache=True)
def _ends(work: Work, grid: Grid, states: Chain, shares: Shares) -> Floats:
    """Return in which batches prompts end."""
    loads, births = grid.loads, shares.births
    rows = states.rows
    mixed = np.zeros(CELLS)
    for c in range(CELLS):
        number = shares.share[c] * work.rate * states.times[c]
        for k in range(CELLS):
            mixed[k] += number * rows[c, k]
    row = added(grid, grid.one, mixed)
    ended = shares.share[FULL] / shares.run * shares.landing
    ends = np.zeros(CELLS + 1)
    ends[:CELLS] = (row + shares.idle * grid.one) * (1 - states.over)
    # The batch after full ones ends at least the prompt that they left
    ends[:CELLS] += ended * (loads / work.prompt + np.exp(-loads / work.prompt))
    ends *= min(births / ends.sum(), 1.0)
    ends[FULL] = births - ends.sum()
    return ends


# How the pool spreads.


@njit(cache=True)
def _dispersion(
    work: Work, grid: Grid, states: Chain, shares: Shares, pools: Floats, dispersion: float
) -> float:
    """Return Var(n | q) over E[n], from slopes of t by regression over the batches."""
    share, number = shares.share, pools.sum()
    tokens = np.empty(CELLS + 1)
    tokens[:CELLS] = grid.loads
    tokens[FULL] = states.room
    away = tokens - (share * tokens).sum()
    pool_away = pools - share * number
    per_decode = max((share * (states.decode_times - states.times)).sum() / dispersion, 0.0)
    cross = (share * away * (states.times - shares.mean)).sum()
    per_token = cross - per_decode * (away * pool_away).sum()
    per_token = max(per_token, 0.0) / max((share * away**2).sum(), 1e-12)
    variance = _spread(work, shares, number, per_decode, per_token)
    for c in range(CELLS + 1):
        if share[c] > 1e-9:
            variance -= pool_away[c] ** 2 / share[c]
    return float(min(max(variance / number, 1.0), 1.0 + 5 * number))


@njit(cache=True)
def _spread(work: Work, shares: Shares, pool: float, of_decode: float, of_token: float) -> float:
    """Return Var(n) where t is linear, dt = of_decode dn + of_token dA.

    With N prompts that end in a batch, n' = (1 - 1 / E[D]) n + N on average, and (N, A)' is what
    arrives in t. So the covariance of (n, A, N) is X = M X M' + noise; a batch after idleness has
    (0, P, 1) whatever was before.
    """
    rate, prompt, idle, births = work.rate, work.prompt, shares.idle, shares.births
    begin = min(work.decodes, 1.0)
    stay = max(1 - 1 / work.decodes, 0.0)
    total = rate * (prompt * of_token + of_decode * work.decodes)
    slower = min(0.98 / total, 1.0) if total > 0 else 1.0
    m = np.zeros((3, 3))
    m[0, 0] = stay
    m[0, 2] = begin
    m[2, 0] = rate * of_decode * slower
    m[2, 1] = rate * of_token * slower
    m[1] = prompt * m[2]
    alone = np.array([0.0, prompt, 1.0])
    mean = np.array([pool, prompt * births, births])
    noise = np.zeros((3, 3))
    noise[0, 0] = stay * (1 - stay) * pool + begin * (1 - begin) * births
    noise[1, 1] = births * work.prompt_square
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


# What full batches leave behind.


@njit(cache=True)
def _remainder(work: Work, costs: Costs, grid: Grid, states: Chain, shares: Shares) -> float:
    """Return E[R | R > 0], by the balance of E[q^2]."""
    lengths, loads, full, drift = work.lengths, grid.loads, states.full_time, states.drift
    share = shares.share[:CELLS]
    served = shares.share[FULL] * states.room**2 + (share * loads**2).sum()
    arriving = shares.births * work.prompt_square
    arriving += (work.rate * work.prompt) ** 2 * shares.square
    factor = _follows(work, costs, states, shares.mean) - 1
    factor = 1 + factor * _reaches_over(work, costs, states)
    remainder = max(arriving - served, 0.0) / (2 * drift) / shares.share[FULL]
    # Where full batches are rare that is a small difference of large numbers: no more than by one
    # run
    overshoot = max(shares.run * drift - states.room + (shares.landing * loads).sum(), 1.0)
    past = np.maximum(lengths.prompts - states.room, 0.0)
    mean = (lengths.prompt_weights * past).sum()
    of_one = (lengths.prompt_weights * past**2).sum() / mean if mean > 0 else 0.0
    step = work.rate * full * work.prompt_square + drift**2
    most = (overshoot * (2 * overshoot + of_one) / shares.run + step) / (2 * drift)
    return float(factor * min(remainder, most))


@njit(cache=True)
def _follows(work: Work, costs: Costs, states: Chain, tau: float) -> float:
    """Return by which factor E[R] grows as the pool follows the backlog: a ratio of two sums."""
    rate, prompt, decodes, full = work.rate, work.prompt, work.decodes, states.full_time
    short = states.room - rate * prompt * full  # drift of a batch while the pool stays
    if decodes * prompt / (prompt + decodes) < 1e-6:
        return 1.0
    product = (work.request_square - work.prompt_square - work.decodes_square) / decodes
    both, stays_put = 0.0, 0.0
    before, last_both, last_put = 0.0, 0.0, 0.0
    k = 1.0
    while k < 1e9:
        within, within_square = _decodes_within(work, k)
        keeps = prompt / (prompt + within)
        settle = keeps * within
        older = rate * tau * (decodes - within)  # requests that last longer
        long = keeps * (costs.budget - older - rate * full * (prompt + within))
        stays = -math.expm1(-k / settle) * settle / k
        seconds = rate * (tau + (k - 1) * full)
        start = rate * prompt * (full - tau)
        square = work.prompt_square + within_square + product * within
        square = work.prompt_square * stays + keeps**2 * square * (1 - stays)
        mean = k * (long + (short - long) * stays) + start
        followed = _excess(mean, math.sqrt(seconds * square))
        put = _excess(k * short + start, math.sqrt(seconds * work.prompt_square))
        if k - before == 1:
            both += followed / k
            stays_put += put / k
        else:
            length = math.log((k + 0.5) / (before + 0.5)) / 2
            both += (followed + last_both) * length
            stays_put += (put + last_put) * length
        if k > 4 and followed < 1e-5 * both:
            break
        before, last_both, last_put = k, followed, put
        k += max(1.0, math.floor(k * 0.15))
    return min(both / stays_put, _MOST_FOLLOWED) if stays_put > 0 else 1.0


@njit(cache=True)
def _decodes_within(work: Work, batches: float) -> tuple[float, float]:
    """Return E[min(D, k)] and E[min(D, k)^2] of k batches."""
    lengths = work.lengths
    mean, square = 0.0, 0.0
    for i in range(lengths.decodes.size):
        tokens = min(lengths.decodes[i], batches)
        mean += lengths.decode_weights[i] * tokens
        square += lengths.decode_weights[i] * tokens**2
    return mean, square


@njit(cache=True)
def _excess(drift: float, spread: float) -> float:
    """Return E[(S)+] of a normal S with mean -drift."""
    z = drift / spread
    return spread * (
        math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * 0.5 * math.erfc(z / math.sqrt(2))
    )


@njit(cache=True)
def _reaches_over(work: Work, costs: Costs, states: Chain) -> float:
    """Return the share of the time that the pool's own fluctuation fills batches, as in heavy
    traffic.

    There the work V is a diffusion. Above the pool n* at which batches are full it drifts down at a
    fixed rate and is exponential; below it is held by the pool, which is normal about n. Both
    densities meet at n*.
    """
    pool, full, decodes = states.full_pool, states.full_time, work.decodes
    drift = costs.budget - work.rate * full * (work.prompt + decodes)
    if pool <= 0 or drift <= 0:
        return 1.0
    above = work.rate * full * work.request_square / (2 * drift)
    fills = costs.budget * decodes / (work.prompt + decodes)  # n*
    z = min(max((fills - pool) / math.sqrt(pool), 0.0), 30.0)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    nearer = 1 - 0.5 * math.erfc(z / math.sqrt(2))
    below = math.sqrt(pool) * work.decodes_square / (2 * decodes) * nearer
    lasts = 2 * above / drift  # batches
    pool_lasts = work.decodes_square / (2 * decodes)
    slow = (lasts / (lasts + pool_lasts)) ** 2
    return float(1 - slow * below / (above * density + below))
