"""A fixed point is a mean pool that gives itself: all of them, and the latencies there."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.theory.mean_field.chain import (
    CELLS,
    FULL,
    Costs,
    Grid,
    PoolParts,
    Work,
    added,
    full_time,
    grid_of,
    mean_time,
    pool_parts,
)
from penstock.theory.mean_field.stationary import Feedback, Turn, turn_of

_MOST_POINTS = 7
_SCAN = 16
_STEPS = 14
_SETTLE = 8
_AHEAD = 6  # quantiles of what is ahead
_EXPONENTIAL = -np.log1p(-(np.arange(_AHEAD) + 0.5) / _AHEAD)
_EXPONENTIAL /= _EXPONENTIAL.mean()


class Point(NamedTuple):
    """A fixed point.

    Attributes
    ----------
    pool
        Requests in decode, mean over time.
    batch
        E[t], seconds.
    left
        Share of full batches that leave something.
    ttft, first_decode, decoding
        Means over requests of the time to the end of the prompt, of the first decode and of all
        decodes, seconds.
    dispersion
        g.
    variation
        Var(t) / E[t]^2.
    repels
        Whether a pool nearby goes away from it.
    """

    pool: float
    batch: float
    left: float
    ttft: float
    first_decode: float
    decoding: float
    dispersion: float
    variation: float
    repels: bool


@njit(cache=True)
def fixed_points(work: Work, costs: Costs) -> list[Point]:
    """Return the fixed points, lowest first."""
    rate, decodes, budget = work.rate, work.decodes, costs.budget
    seconds = np.diff(costs.sums)
    shortest = seconds.min() + min(costs.alone, costs.mixed)
    longest = seconds.max() + costs.per_prompt_token * budget + costs.with_prefill
    longest += max(costs.alone, costs.mixed) * budget * decodes / (work.prompt + decodes)
    grid = grid_of(work, budget, rate * shortest, rate * longest)
    feedback = Feedback(np.ones(CELLS + 1), 1.0, 0.0)
    points = []
    if decodes == 0:
        for _ in range(4):
            turn = turn_of(work, costs, grid, 0.0, feedback, False)
            feedback = turn.feedback
        points.append(_point(work, costs, grid, turn, False))
        return points
    # Scan pools from the least to the most: where the chain's own pool crosses the one assumed, one
    # gives itself.
    low = rate * decodes * shortest
    high = rate * decodes * longest + decodes / (1 + decodes)
    before, gain_before = 0.0, low
    for i in range(_SCAN):
        pool = 0.999 * low + (high - low) * (i + 1.0) / _SCAN
        for _ in range(1 if i else 4):
            turn = turn_of(work, costs, grid, pool, feedback, False)
            feedback = turn.feedback
        gain = turn.pool - pool
        if (gain_before > 0) != (gain > 0) and len(points) < _MOST_POINTS:
            root, turn = _root(work, costs, grid, feedback, (before, pool), (gain_before, gain))
            if gain < 0:
                turn = _settled(work, costs, grid, turn.feedback, root)
            points.append(_point(work, costs, grid, turn, gain > 0))
            feedback = Feedback(feedback.shape, 1.0, turn.feedback.remainder)
        before, gain_before = pool, gain
    return points


@njit(cache=True)
def _root(
    work: Work,
    costs: Costs,
    grid: Grid,
    feedback: Feedback,
    pools: tuple[float, float],
    gains: tuple[float, float],
) -> tuple[float, Turn]:
    """Return the mean pool between two that gives itself, and a turn there (regula falsi,
    Illinois).
    """
    a, b = pools
    gain_a, gain_b = gains
    for step in range(_STEPS):
        middle = (a * gain_b - b * gain_a) / (gain_b - gain_a)
        turn = turn_of(work, costs, grid, middle, feedback, False)
        feedback = turn.feedback
        gain = turn.pool - middle
        if step > 1 and abs(gain) < 1e-4 * middle:
            break
        if (gain > 0) == (gain_b > 0):
            gain_a *= 0.5
        else:
            a, gain_a = b, gain_b
        b, gain_b = middle, gain
    return b, turn


@njit(cache=True)
def _settled(work: Work, costs: Costs, grid: Grid, feedback: Feedback, pool: float) -> Turn:
    """Let the pool spread, and return where it gives itself again from there (secants)."""
    before, gain_before = 0.0, 0.0
    for index in range(_SETTLE):
        spread = feedback.dispersion
        turn = turn_of(work, costs, grid, pool, feedback, True)
        feedback = turn.feedback
        gain = turn.pool - pool
        if abs(gain) < 1e-4 * pool and abs(feedback.dispersion / spread - 1) < 1e-3:
            break
        step = gain
        if index and abs(gain_before - gain) > 1e-12:
            step = gain * (pool - before) / (gain_before - gain)
        if step * gain <= 0 or abs(step) > 0.3 * pool:  # no secant of a fixed point that attracts
            step = min(max(gain, -0.3 * pool), 0.3 * pool)
        before, gain_before = pool, gain
        pool += step
    return turn


@njit(cache=True)
def _point(work: Work, costs: Costs, grid: Grid, turn: Turn, repels: bool) -> Point:
    """Return what a turn says of its fixed point."""
    shares, decoding = turn.shares, turn.decoding
    return Point(
        work.rate * decoding.all,
        shares.mean,
        shares.share[FULL],
        _first_token(work, costs, grid, turn),
        decoding.first,
        decoding.all,
        turn.feedback.dispersion,
        max(shares.square / shares.mean**2 - 1, 0.0),
        repels,
    )


# The time to the first token.


@njit(cache=True)
def _first_token(work: Work, costs: Costs, grid: Grid, turn: Turn) -> float:
    """Return the mean time to the end of the prompt: what is left of the batch that runs, and those
    that follow.
    """
    rate, shares, full = work.rate, turn.shares, turn.chain.full_time
    # 1. Arrivals while no batch is full, whose prompts end with the next one or do not fit into it
    waited = rate * (shares.square - shares.share[FULL] * full**2) / 2
    ending, behind, running = _arrivals_before_full(work, grid, turn)
    waited += ending
    if behind > 1e-9 * shares.births:
        waited += behind * _in_line(work, costs, turn, running, False)
    # 2. Arrivals that find nobody
    lengths = work.lengths
    for p in range(lengths.prompts.size):
        batches = math.ceil(lengths.prompts[p] / costs.budget)
        rest = lengths.prompts[p] - (batches - 1) * costs.budget
        alone = (batches - 1) * full_time(costs, 0.0) + mean_time(costs.sums, rest, rest)
        alone += costs.with_prefill + costs.per_prompt_token * rest
        waited += shares.idle * lengths.prompt_weights[p] * alone
    # 3. Arrivals behind what full batches leave
    if shares.share[FULL] * rate * full > 1e-9 * shares.births:
        wait = full / 2 + _in_line(work, costs, turn, full, True)
        waited += shares.share[FULL] * rate * full * wait
    return float(waited / shares.births)


@njit(cache=True)
def _arrivals_before_full(work: Work, grid: Grid, turn: Turn) -> tuple[float, float, float]:
    """Return, of arrivals while no batch is full: the seconds of the batches that end their
    prompts, how many prompts the next batch does not end, and the time of the batch before.
    """
    states, shares = turn.chain, turn.shares
    mixed = np.zeros(CELLS)
    spilled, during = 0.0, 0.0
    for c in range(CELLS):
        number = shares.share[c] * work.rate * states.times[c]
        mixed += number * states.rows[c]
        past = number * max(1 - (states.rows[c] * (1 - states.over)).sum(), 0.0)
        spilled += past
        during += past * states.times[c]
    row = added(grid, grid.one, mixed) * (1 - states.over)
    number = work.rate * (shares.mean - shares.share[FULL] * states.full_time)
    running = during / spilled if spilled > 0 else shares.mean
    return (row * states.times[:CELLS]).sum(), max(number - row.sum(), 0.0), running


@njit(cache=True)
def _in_line(work: Work, costs: Costs, turn: Turn, running: float, left_over: bool) -> float:
    """Return the mean time from the end of the batch that runs to that of a prompt's last, behind
    other prompts.
    """
    lengths, full, room = work.lengths, turn.chain.full_time, turn.chain.room
    parts = pool_parts(turn.chain.full_pool, turn.feedback.dispersion, costs.budget)
    keeps = work.prompt / (work.prompt + work.decodes)
    settle = max(keeps * work.decodes, 1e-9)
    arriving = work.rate * running / 2
    nobody = math.exp(-arriving)
    beside = arriving * work.prompt / max(1 - nobody, 1e-12)
    of_decodes = costs.mixed * turn.chain.full_pool + costs.with_prefill
    seconds, whole = 0.0, 0.0
    for p in range(lengths.prompts.size):
        for i in range(_AHEAD if left_over else 1):
            ahead = _EXPONENTIAL[i] * turn.feedback.remainder if left_over else 0.0
            for j in range(_AHEAD + 1):
                chance = lengths.prompt_weights[p] * (nobody if j == 0 else (1 - nobody) / _AHEAD)
                need = lengths.prompts[p] + ahead + (_EXPONENTIAL[j - 1] * beside if j else 0.0)
                if not left_over and need + arriving * work.prompt < 0.98 * room:
                    continue  # the next batch has room for it
                k = need / room
                stays = -math.expm1(-k / settle) * settle / k
                a_batch = costs.budget * keeps + (room - costs.budget * keeps) * stays
                before = math.ceil(need / a_batch) - 1
                missed = work.rate * (running / 2 + before * full)
                need -= before * a_batch
                last = _last_batch(costs, parts, work.prompt, need, missed)
                last += costs.per_prompt_token * min(need, room)
                last += of_decodes
                seconds += chance * (before * full + last)
                whole += chance
    return seconds / whole if whole > 0 else full


@njit(cache=True)
def _last_batch(costs: Costs, parts: PoolParts, prompt: float, need: float, missed: float) -> float:
    """Return the mean t_b of the batch that ends a prompt with so many tokens left, beside those
    that came later.
    """
    seconds = 0.0
    none = math.exp(-missed)
    for later in range(2):
        chance = 1 - none if later else none
        if chance < 1e-4:
            continue
        tokens = need + (missed * prompt / chance if later else 0.0)
        for i in range(parts.share.size):
            low = min(parts.low[i] + tokens, costs.budget)
            high = min(parts.high[i] + tokens, costs.budget)
            seconds += chance * parts.share[i] * mean_time(costs.sums, low, high)
    return seconds
