"""Costs in fixed point, and closed forms over equal batches, against sums of Python's integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel import composition, counting, recording
from penstock.kernel.compiled_code import from_python
from penstock.kernel.composition import BITS, HALF, Terms
from penstock.kernel.recording import CARRY
from penstock.kernel.records import CLOCK, table

# Parts of the kernel, as Python can call them.
batches_begun, batches_done, cost_of, rise_of, ticks_of, ticks_of_run, count_run, count_stall = (
    from_python(part)
    for part in (
        composition.batches_begun,
        composition.batches_done,
        composition.cost_of,
        composition.rise_of,
        composition.ticks_of,
        composition.ticks_of_run,
        recording.count_run,
        recording.count_stall,
    )
)

costs = st.integers(HALF, 2**44) | st.integers(HALF, 2**24)
rises = st.integers(0, 2**36) | st.integers(0, 2**22) | st.integers(0, 30)
numbers = st.integers(1, 400)


def ticks(cost: int, rise: int, batches: int) -> list[int]:
    """Return the ticks of each batch: its cost over 2^BITS, to the nearest."""
    return [(cost + i * rise + 2 ** (BITS - 1)) // 2**BITS for i in range(batches)]


@given(costs, rises, numbers)
def test_ticks_of_a_run_are_the_sum_of_those_of_its_batches(cost: int, rise: int, batches: int) -> None:
    each = ticks(cost, rise, batches)
    assert [ticks_of(cost + i * rise) for i in range(batches)] == each
    assert [ticks_of_run(cost, rise, n) for n in (0, 1, batches)] == [0, each[0], sum(each)]


@given(costs, rises, numbers, st.integers(0, 2**20), st.integers(-1, 1))
def test_batches_that_have_ended_and_begun_are_those_whose_times_add_up(
    cost: int, rise: int, batches: int, share: int, off: int
) -> None:
    """At any tick, and at and around the very ends of batches."""
    each = ticks(cost, rise, batches)
    ends = np.cumsum(each).tolist()
    for now in (share * ends[-1] // 2**20 + 1, ends[share % batches] + off):
        assert batches_done(cost, rise, now, batches) == sum(end <= now for end in ends)
        if now >= 1:
            assert batches_begun(cost, rise, now, batches) == sum(start < now for start in [0, *ends[:-1]])


@given(costs, rises, numbers, st.integers(1, 300), st.integers(3, 11))
def test_times_of_a_run_are_counted_as_one_by_one(cost: int, rise: int, batches: int, count: int, bits: int) -> None:
    """To the same leading digits, with the same exact sum."""
    states = table(CLOCK, 2)
    contents = []
    for state, at_once in zip(states, (True, False), strict=True):
        stalls = counting.new_multiset(2048)
        if at_once:
            count_run(state, stalls, cost, rise, batches, count, bits)
        else:
            for gap in ticks(cost, rise, batches)[1:]:
                count_stall(state, stalls, gap, count, bits)
        contents.append([column.tolist() for column in counting.contents(stalls)])
    assert contents[0] == contents[1]
    assert states[0] == states[1]
    assert int(states[0].stall_sum) + CARRY * int(states[0].stall_carry) == count * sum(ticks(cost, rise, batches)[1:])


amounts = st.integers(0, 2**20)


@given(st.lists(amounts, min_size=6, max_size=6), *[amounts] * 6)
def test_a_batch_costs_the_sum_of_its_terms_and_equal_ones_rise_by_their_decodes(
    per: list[int], linear: int, prefill: int, requests: int, squares: int, pairs: int, context: int
) -> None:
    decodes, request, self_, cross, decode, mixed, beside = 3, *per
    prefill %= 5
    terms = Terms(np.full(9, linear), np.array(per))
    attention = self_ * (squares + decodes) + cross * pairs + (mixed if prefill else decode) * context
    cost = cost_of(terms, prefill, decodes, requests, squares, pairs, context)
    assert cost == linear + (beside if prefill else 0) + request * requests + attention
    if prefill == 0:
        after = cost_of(terms, 0, decodes, requests, squares, pairs, context + decodes)
        assert after - cost == rise_of(terms, decodes)
