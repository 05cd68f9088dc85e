"""Policies that weigh prefill against decode as the queues stand: for servers whose max batch size
binds.

Under a max batch size k no fixed budget reaches the whole stability region (Section 6 of the
paper): a large batch is the cheapest per token, but spends a whole batch time on k decodes at most.
These policies choose the budget anew for each batch. Their parameters follow from the batch times
and the limits; the first of them can be given.
"""

import bisect
import functools
from collections.abc import Callable

import numpy as np
from numba import njit

from penstock.inputs.arrays import Floats, Ints
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST
from penstock.system import hull
from penstock.system.batch_time import BatchTime

Parameters = Callable[[BatchTime, int, int | None, str], tuple[float, ...]]

MOST_BUDGETS = 40
"""So many budgets are weighed for a batch at most, besides those that the best mixes of batches
need.
"""

STARVES_DECODES = (
    "starves decodes where the max batch size counts running requests (scope running, as in "
    "engines), for there only prompts can wait in numbers: on 200 servers it carried 0.51 to 1.00 "
    "of the bound on any policy, and priced 0.87 to 1.00; use that, or sarathi with the token "
    "budget that `recommend` finds"
)
"""What is wrong with MaxWeight in scope ``running``, after its name."""

_LEARN = 0.0  # in place of a mean length: learn it
_NEVER = 1e300  # in place of a number of decoding requests
_CLOSE = 1e-3  # share of a batch time
_TIE = 1e-12  # values closer than this share of them are equal: the batch found first is taken


def budgets(batch_time: BatchTime, token_budget: int, max_batch_size: int | None = None) -> Ints:
    """Return the loads at which one more token changes the batch time, and the largest."""
    # More than `MOST_BUDGETS` are thinned to as many, in steps of about equal ratio; the region's
    # corners stay. Where what is in a batch counts too, they are of the part by token load.
    seconds = batch_time.by_tokens.table(token_budget)
    loads = np.append(np.flatnonzero(np.diff(seconds[1:])) + 1, token_budget)
    if loads.size > MOST_BUDGETS:
        even = np.geomspace(loads[0], token_budget, MOST_BUDGETS)
        thinned = loads[np.unique(np.searchsorted(loads, even - 0.5))]
        slots = min(max_batch_size or token_budget, token_budget)
        decodes_alone = batch_time.by_tokens.best_load(slots)[0]
        loads = np.unique(np.r_[thinned, decodes_alone, _corner_loads(seconds, slots)])
    return loads


def _corner_loads(seconds: Floats, slots: int) -> Ints:
    """Return token loads from k_max on at which the lower envelope of batch times has a corner."""
    # With k_max requests a batch of b tokens is worth a linear function of b, so worth / t_b is
    # largest at one of them whatever the tokens of each phase are worth: they are the corners of
    # the region for long prompts. Where there are many, so many stay that the envelope rises by
    # `_CLOSE` at most.
    scale = np.array([seconds.size, seconds.max()])
    corners = hull.corners(
        np.column_stack([np.arange(slots, seconds.size), seconds[slots:]]) / scale
    )

    def rise(first: int, last: int) -> float:
        load, time = corners[first : last + 1].T
        return float(np.max(np.interp(load, load[[0, -1]], time[[0, -1]]) / time)) - 1

    chosen = [0]
    if len(corners) <= MOST_BUDGETS:
        chosen = list(range(len(corners)))
    while (first := chosen[-1]) < len(corners) - 1:
        further = range(first + 2, len(corners))
        chosen.append(
            first + 1 + bisect.bisect(further, _CLOSE, key=functools.partial(rise, first))
        )
    return np.asarray((corners[chosen, 0] * scale[0]).round(), np.int64)


def maxweight_parameters(
    batch_time: BatchTime, token_budget: int, max_batch_size: int | None, scope: str
) -> tuple[float, ...]:
    """Return mean prompt and decode tokens (0: learn it), budgets, and 1 / their times, 1/s."""
    loads = budgets(batch_time, token_budget, max_batch_size)
    pairs = np.column_stack([loads, 1 / batch_time.by_tokens(loads)])
    return (_LEARN, _LEARN, *pairs.ravel().tolist())


def pool_parameters(
    batch_time: BatchTime, token_budget: int, max_batch_size: int | None, scope: str
) -> tuple[float, ...]:
    """Return the numbers of decoding requests L = .9 k and U = 1.2 k, then the budgets."""
    low, high = (
        (_NEVER, _NEVER) if max_batch_size is None else (0.9 * max_batch_size, 1.2 * max_batch_size)
    )
    return (low, high, *budgets(batch_time, token_budget, max_batch_size).astype(float).tolist())


def maxweight(queue, limits, params):  # type: ignore[no-untyped-def]
    """Take the batch worth most per second, by requests in each phase (MaxWeight back-pressure)."""
    # With Zp and Zd requests in prefill and decode, of m_p and m_d tokens on average, x prefill and
    # y decode tokens are worth [x (Zp - Zd) / m_p + y Zd / m_d] / t_{x+y}: x / m_p requests change
    # queues, y / m_d leave. Ready decodes may wait, so more than k may come to be in decode.
    prompt, decode = _means(
        params, queue.arrived, queue.arrived_tokens, queue.finished, queue.finished_decodes
    )
    return _worth_most(
        (queue.waiting - queue.decoding) * decode,
        queue.decoding * prompt,
        queue.prompts,
        queue.prompt_tokens,
        queue.head_tokens,
        queue.decoding,
        limits,
        params,
    )


def maxweight_tokens(queue, limits, params):  # type: ignore[no-untyped-def]
    """MaxWeight by tokens: x prefill and y decode tokens are worth [x Wp + y Wd] / t_{x+y}."""
    # Wp counts the prompt tokens that wait, Wd the decode iterations to come of requests in decode.
    return _worth_most(
        float(queue.waiting_tokens),
        float(queue.decode_tokens),
        queue.prompts,
        queue.prompt_tokens,
        queue.head_tokens,
        queue.decoding,
        limits,
        params,
    )


@njit(boundscheck=True, inline="always")
def _means(params, arrived, arrived_tokens, finished, finished_decodes):  # type: ignore[no-untyped-def]
    """Return the mean prompt and decode tokens: as given, or as learnt."""
    # Until a request finishes a decode token counts as a whole one: to learn of decodes, serve
    # some.
    prompt, decode = params[0], params[1]
    if prompt <= 0:
        prompt = arrived_tokens / arrived if arrived > 0 else 1.0
    if decode <= 0:
        decode = finished_decodes / finished if finished_decodes > 0 else 1.0
    return prompt, decode


@njit(inline="always")
def _worth_most(by_prefill, by_decode, prompts, prompt_tokens, head, decoding, limits, params):  # type: ignore[no-untyped-def]
    """Return the batch with most (x by_prefill + y by_decode) / t, over budgets and prompts."""
    # The phase whose token is worth more fills the budget first; each budget is the smallest for
    # its batch.
    slots = limits.batch_size
    if by_prefill <= 0:
        prompts, prompt_tokens = 0, 0
    decoding = min(decoding, slots)
    roomy = prompts + decoding <= slots
    prefill_first = by_prefill > by_decode
    tokens, decodes = float(prompt_tokens), float(decoding)
    bar, best_x, best_y, best_budget, smaller = -1.0, 0.0, decodes, decodes, 0.0
    for entry in range(2, params.size - 1, 2):
        budget = params[entry]
        if prefill_first:
            x = min(tokens, budget)
            y = min(decodes, budget - x)
            if not roomy:
                y = min(y, float(slots - _prompts_in(x, prompts, prompt_tokens, head)))
        elif roomy:
            y = min(decodes, budget)
            x = min(tokens, budget - y)
        else:
            x, y = _share_slots(
                (by_prefill, by_decode),
                prompts,
                prompt_tokens,
                head,
                decoding,
                budget,
                slots,
                smaller,
            )
        value = (x * by_prefill + y * by_decode) * params[entry + 1]
        if value > bar and x + y > smaller:
            bar, best_x, best_y, best_budget = value * (1 + _TIE), x, y, budget
        if tokens + decodes <= budget:
            break
        smaller = budget
    if (
        best_x < best_budget - best_y and not prefill_first
    ):  # whole prompts: as many as there are slots, however long
        return int(best_budget - best_y) if best_x > 0 else 0, int(best_y), DECODE_FIRST
    # So many tokens, from as many as hold them.
    return (
        int(best_x),
        int(best_budget) - int(best_x),
        PREFILL_FIRST,
    )


@njit(inline="always")
def _share_slots(worth, prompts, prompt_tokens, head, decoding, budget, slots, smaller):  # type: ignore[no-untyped-def]
    """Return prefill and decode tokens of the best batch above ``smaller`` if slots are short."""
    # A prompt takes a slot whatever is left of it. n prompts leave room for y = min(slots - n, Zd,
    # b) decodes and x = min(b - y, their tokens, on average). As n rises beyond the free slots, x
    # grows by a prompt at a time until the budget is full, then by the token that the decode
    # leaves: the best n is at an end of such a stretch, or the least that fills more than the
    # smaller budget.
    fits = min(decoding, budget)
    free = min(prompts, slots - fits)
    mean_prompt = (prompt_tokens - head) / max(prompts - 1, 1)
    least = full = free
    if mean_prompt > 1:
        least = max(
            free,
            min(
                prompts,
                int(np.floor((smaller - slots + mean_prompt - head) / (mean_prompt - 1))) + 1,
            ),
        )
        full = max(
            free,
            min(prompts, int(np.floor((budget - slots + mean_prompt - head) / (mean_prompt - 1)))),
        )
    best, best_x, best_y = -1.0, 0.0, 0
    for n in (free, max(free, 1), least, full, min(prompts, full + 1)):
        y = min(fits, slots - n)
        x = min(float(budget - y), head + (n - 1) * mean_prompt) if n > 0 else 0.0
        value = x * worth[0] + y * worth[1]
        if x + y > smaller and value > best + _TIE * best:
            best, best_x, best_y = value, x, y
    return best_x, best_y


@njit(inline="always")
def _prompts_in(tokens, prompts, prompt_tokens, head):  # type: ignore[no-untyped-def]
    """Return how many of the oldest prompts hold so many tokens, on average."""
    if tokens <= head or prompts < 2:
        return 1
    return min(prompts, 1 + int(np.ceil((tokens - head) * (prompts - 1) / (prompt_tokens - head))))


def pool_controlled(queue, limits, params):  # type: ignore[no-untyped-def]
    """Decodes first, with a budget by the number of requests in decode, which it keeps bounded."""
    # Below L the whole budget; from L to U the smallest that fits the decodes and a prompt's slot;
    # from U on decodes alone. Where no lower max batch size binds, this is Sarathi-Serve.
    decode = min(queue.decoding, limits.batch_size, limits.token_budget)
    budget = limits.token_budget
    if limits.batch_size < limits.token_budget and queue.decoding >= params[0]:
        if queue.decoding >= params[1]:
            return 0, decode, DECODE_FIRST
        if queue.prompts > 0 and decode > 1:
            decode = min(decode, limits.batch_size - 1)
        for entry in range(2, params.size):
            if params[entry] >= decode:
                budget = int(params[entry])
                break
    prefill = min(queue.prompt_tokens, budget - decode)
    return prefill, decode, DECODE_FIRST


# -- at the prices of the region

# Where the max batch size counts the requests of a batch, a stock of decodes beyond it is kept,
# lest a batch lack some; where it counts those that run, decodes take the slots of prompts. Per
# max batch size: the number of decodes at which nothing is tilted, and how much prefill gains over
# decode with each that is lacking. Fitted on the points 200 to 399 of
# `benchmarks/studies/adaptive_sweep.py`, judged on 0 to 199 (docs/adaptive.md).
_STOCK = {"batch": (1.2, 0.4), "running": (0.95, 2.5)}
_SLOTS_LEFT = 1.5  # to prompts at least, where running requests count
_MOST_TILT = 0.5
_CAP = 2.5  # stocks: with so many in decode no prompt is served (Theorem 3 asks for a cap)

# Corners at which a mean request is worth as much as at the best, less this share, are mixed: so
# the prices do not jump as means are learnt, and at a corner of the region favour neither side.
_NEARLY_BEST = 0.03
# The share of a mean request's worth, spread over its prompt, that a prefill token gains: where
# decodes lack, for it may be worth nothing; and always. A decode gains twice the latter.
_STARVED, _LEAST = 0.3, 1e-4
_CORNERS = 6  # of the parameters: from this one on
_BESIDE, _ALONE = 2, 3  # kinds of batches, by their prompts: those that fill them


def priced_parameters(
    batch_time: BatchTime, token_budget: int, max_batch_size: int | None, scope: str
) -> tuple[float, ...]:
    """Return mean prompt and decode tokens (0: learn it), the stock of decodes and its tilt,
    whether there are more loads than are weighed, the corners of the prices, and the loads with 1 /
    their times, 1/s.
    """
    slots = min(max_batch_size or token_budget, token_budget)
    loads = budgets(batch_time, token_budget, max_batch_size)
    corners = price_corners(batch_time, slots, loads)
    thinned = np.count_nonzero(np.diff(batch_time.by_tokens.table(token_budget)[1:])) >= loads.size
    stock, steep = _STOCK[scope]
    stock *= slots
    if scope == "running":
        stock = min(stock, max(slots - _SLOTS_LEFT, 1.0))
    return (
        *(_LEARN, _LEARN),
        *(stock, steep / slots, float(thinned)),
        *(float(len(corners)), *corners.ravel().tolist()),
        *np.column_stack([loads, 1 / batch_time.by_tokens(loads)]).ravel().tolist(),
    )


def price_corners(batch_time: BatchTime, slots: int, loads: Ints) -> Floats:
    """Return the corners of all prices of a prefill token, of a prompt that ends and of a decode
    under which no batch of these loads earns more than its time; seconds, shape (corners, 3).
    """
    # Of each load the batch without decodes and the one with the most, and the best of decodes
    # alone (`penstock.theory.region`). A corner of the prices is a facet of the hull of what the
    # batches have per second and of all below.
    from scipy.spatial import ConvexHull  # takes a while to load

    seconds = batch_time.by_tokens
    alone, _ = seconds.best_load(slots)
    prompts = np.minimum(loads, slots)
    beside = loads[loads > slots]
    one = np.ones_like(beside)
    batches = np.vstack([
        [0, 0, alone],
        np.column_stack([loads, prompts, 0 * loads]),
        np.column_stack([beside - slots + 1, one, (slots - 1) * one]),
    ])  # fmt: skip
    per_second = batches / seconds(np.r_[alone, loads, beside])[:, None]
    most = per_second.max(axis=0)
    below = [per_second / most * np.array(kept) for kept in np.ndindex(2, 2, 2)]
    equations = ConvexHull(np.vstack(below)).equations
    normals, offsets = equations[:, :3], -equations[:, 3:]
    outer = (normals > -_TIE).all(axis=1) & (offsets[:, 0] > _TIE)
    prices = np.maximum(normals[outer] / offsets[outer], 0.0)
    same = np.unique(prices.round(9), axis=0, return_index=True)[1]
    return np.asarray(prices[same] / most)


def priced(queue, limits, params):  # type: ignore[no-untyped-def]
    """Take the batch worth most per second, at the region's prices for the mean lengths."""
    prompt, decode = _means(
        params, queue.arrived, queue.arrived_tokens, queue.finished, queue.finished_decodes
    )
    # -- the prices: a mean of the corners at which a mean request is worth the most, or close to it
    loads = _CORNERS + 3 * int(params[_CORNERS - 1])
    most = 0.0
    for corner in range(_CORNERS, loads, 3):
        worth = params[corner] * prompt + params[corner + 1] + params[corner + 2] * decode
        most = max(most, worth)
    token = end = step = weights = 0.0
    for corner in range(_CORNERS, loads, 3):
        worth = params[corner] * prompt + params[corner + 1] + params[corner + 2] * decode
        weight = worth - (1 - _NEARLY_BEST) * most
        if weight > 0:
            weights += weight
            token += weight * params[corner]
            end += weight * params[corner + 1]
            step += weight * params[corner + 2]
    # -- how far prefill is put before decode: as decodes lack, where they are the dearer, or (below
    # 0) are in excess
    tilt = min(max((params[2] - queue.decoding) * params[3], -_MOST_TILT), _MOST_TILT)
    if tilt > 0:
        tilt *= max(1 - token / step, 0.0) if step > 0 else 0.0
    a_token = most / max(prompt, 1.0)
    token = (1 + tilt) * token / weights + (_LEAST + _STARVED * max(tilt, 0.0)) * a_token
    end *= (1 + tilt) / weights
    step = (1 - tilt) * step / weights + 2 * _LEAST * a_token

    # -- the batch: of each load those with the prompts for which decodes leave slots, with one at
    # least, with as few as fill it beside decodes, and as fill it alone; where slots abound one
    # will do
    slots, head = limits.batch_size, queue.head_tokens
    decoding, prompts = min(queue.decoding, slots), min(queue.prompts, slots)
    if queue.decoding >= _CAP * params[2]:
        prompts = 0
    mean = (queue.prompt_tokens - head) / (prompts - 1) if prompts > 1 else prompt
    mean = max(mean, 1.0)
    per_token = 1 / mean  # prompts
    abound = _BESIDE if step >= token + end * per_token else _ALONE
    best, best_x, best_y, smaller = -1.0, 0.0, 0, 0.0
    for entry in range(loads, params.size - 1, 2):
        load = int(params[entry])
        beside = max(1 + int(np.ceil((load - min(decoding, load) - head) * per_token)), 1)
        first, last = 0, _ALONE if prompts > 0 else 0
        if prompts > 0 and min(beside, prompts) + decoding <= slots:
            first = last = abound
        for kind in range(first, last + 1):
            n, y = max(slots - decoding, kind), decoding
            if kind == _BESIDE:
                n = beside
                if n + decoding > slots:
                    n = 1 + int(np.ceil((load - slots + 1 - head) / max(mean - 1, _TIE)))
            elif kind == _ALONE:
                n = 1 + int(np.ceil((load - head) * per_token))
            n = min(max(n, min(kind, 1)), prompts)
            if kind == _ALONE:
                y = max(load - int(np.ceil(head + (n - 1) * mean)), 0)
            y = min(y, decoding, slots - n, load)
            x = ends = 0.0
            if n > 0:
                x = min(head + (n - 1) * mean, float(load - y))
                ends = (x >= head) + max(x - head, 0.0) * per_token
            # Between two loads of many a batch takes a time between theirs.
            per_s = params[entry + 1]
            if params[4] > 0 and entry > loads and smaller < x + y < load:
                part = (x + y - smaller) / (load - smaller)
                per_s = 1 / ((1 - part) / params[entry - 1] + part / per_s)
            worth = (x * token + ends * end + y * step) * per_s
            if worth > best and x + y > smaller:
                best, best_x, best_y = worth * (1 + _TIE), x, y
        if queue.prompt_tokens + decoding <= load:
            break
        smaller = float(load)
    # So many prompt tokens, of as many prompts as hold them; a decode less for each beyond n.
    tokens = int(best_x + 0.5)
    return tokens, int(best_x + best_y + 0.5) - tokens, PREFILL_FIRST
