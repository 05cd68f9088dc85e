"""Batches whose time depends on what is in them: fixed-point arithmetic, and closed forms over
equal batches.

A cost is a time in units of 2^-BITS ticks, a whole number. A batch takes its cost rounded to the
nearest tick. In a run of equal decode batches the context grows by one token per request and batch,
so each costs as much more than the one before it; sums of the rounded times are sums of floors of
an arithmetic progression, which take logarithmic time.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from penstock.kernel.compiled_code import uncounted

BITS = 20
HALF = 1 << (BITS - 1)

_FEW = 256

MOST_COST = 2**61
"""No batch may cost more: its cost stays within 64 bits."""

# What each of these adds to a batch's cost.
REQUEST, SELF, CROSS, DECODE, MIXED, PREFILL = range(6)
N_TERMS = 6

Ints = npt.NDArray[np.int64]


class Terms(NamedTuple):
    """What a batch costs, in units of 2^-BITS ticks."""

    linear: Ints
    """Shape (token budget + 1,): by token load."""
    per: Ints
    """Shape (N_TERMS,): per request; per pair of new tokens of a request; per pair of a new prompt
    token and one before it; per token before a decode, in a batch of decodes alone and in one with
    prefill.
    """


TERMS = types.NamedUniTuple(types.int64[::1], 2, Terms)


@uncounted(inline=True)
def cost_of(
    terms: Terms, prefill: int, decodes: int, requests: int, squares: int, pairs: int, context: int
) -> Any:
    """Return what a batch costs, by its tokens in each phase and its requests.

    ``squares``, ``pairs``: over prompts of n new tokens each, the sums of n^2 and of n times the
    tokens processed before; ``context``: over decodes, the sum of tokens processed before.
    """
    per = terms.per
    before, extra = per[DECODE], 0
    if prefill > 0:
        before, extra = per[MIXED], per[PREFILL]
    return (
        terms.linear[prefill + decodes]
        + extra
        + per[REQUEST] * requests
        + per[SELF] * (squares + decodes)
        + per[CROSS] * pairs
        + before * context
    )


@uncounted(inline=True)
def rise_of(terms: Terms, decodes: int) -> Any:
    """Return by how much the next of equal decode batches costs more."""
    return terms.per[DECODE] * decodes


@uncounted(inline=True)
def ticks_of(cost: int) -> Any:
    """Return a batch's ticks."""
    return (cost + HALF) >> BITS


@uncounted()
def ticks_of_run(cost: int, rise: int, batches: int) -> Any:
    """Return the ticks of so many batches, the first of which costs ``cost`` and each next one
    ``rise`` more.

    The sum over i < n of floor((a i + b) / m), by Euclid's algorithm on a and m, or one by one
    where that is quicker.
    """
    if batches < _FEW:
        few = 0
        for i in range(batches):
            few += ticks_of(cost + i * rise)
        return few
    total, n, m, a, b = 0, batches, 1 << BITS, rise, cost + HALF
    while n > 0:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a %= m
        b %= m
        top = a * n + b
        n = top // m
        b = top % m
        a, m = m, a  # where a was 0, n is 0 now
    return total


@uncounted()
def batches_done(cost: int, rise: int, ticks: int, most: int) -> Any:
    """Return how many of at most ``most`` such batches have ended when so many ticks have passed.

    They never get shorter, so the first and the last of them bound the number.
    """
    high = min(most, ticks // max(ticks_of(cost), 1))  # `high` + 1 have not
    low = min(high, ticks // max(ticks_of(cost + rise * high), 1))  # `low` have
    while low < high:
        middle = (low + high + 1) // 2
        if ticks_of_run(cost, rise, middle) <= ticks:
            low = middle
        else:
            high = middle - 1
    return low


@uncounted()
def batches_begun(cost: int, rise: int, ticks: int, most: int) -> Any:
    """Return how many of at most ``most`` such batches begin before so many ticks (at least one)
    have passed.
    """
    return min(batches_done(cost, rise, ticks - 1, most) + 1, most)
