"""The multiset that the kernel counts with."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel import counting
from penstock.kernel.compiled_code import from_python

# Gaps in ticks and compositions (prefill << 32 | decode): small numbers, large ones, and some that differ high up only.
keys = st.one_of(st.integers(0, 50), st.integers(0, 2**62), st.integers(0, 50).map(lambda n: n << 32))

add = from_python(counting.add)


def listed(multiset):
    found, counts = counting.contents(multiset)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


@given(st.lists(st.tuples(keys, st.integers(1, 9)), max_size=60))
def test_it_holds_what_was_added_in_rising_order_also_after_doubling(added):
    """And `add` says which keys are new. 60 keys in 128 places: at most half full, as it must be."""
    multiset, expected = counting.new_multiset(128), Counter()
    for key, weight in added:
        assert add(multiset, key, weight) == (key not in expected)
        expected[key] += weight
    assert listed(multiset) == sorted(expected.items())
    larger = counting.doubled(multiset)
    assert larger.size == 2 * multiset.size
    assert listed(larger) == sorted(expected.items())
    for key in expected:
        assert add(larger, key, 1) == 0


def test_a_new_one_is_empty():
    assert listed(counting.new_multiset()) == []


@pytest.mark.parametrize("shift", [0, 1, 16, 32, 35])
def test_keys_that_differ_in_any_few_bits_are_told_apart_and_spread(shift):
    """A look-up passes over few others, whether low bits differ (gaps) or high ones (prefill tokens, at bit 32)."""
    places = 2048
    multiset = counting.new_multiset(places)
    wanted = np.arange(places // 2) << shift
    assert sum(add(multiset, key, 1) for key in wanted) == wanted.size
    assert listed(multiset) == [(key, 1) for key in wanted.tolist()]
    used = multiset[::2] != counting.EMPTY
    run, longest = 0, 0
    for taken in np.concatenate([used, used]):
        run = run + 1 if taken else 0
        longest = max(longest, run)
    assert longest < places // 8
