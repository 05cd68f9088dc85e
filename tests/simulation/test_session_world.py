"""Sums of times between tokens are exact beyond 64 bits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.simulation.session import _exact_sum

PAIRS = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), max_size=40)


@given(pairs=PAIRS)
def test_products_add_up_exactly_however_large(pairs: list[tuple[int, int]]) -> None:
    values, counts = (np.array([pair[place] for pair in pairs], np.int64) for place in (0, 1))
    assert _exact_sum(values, counts) == sum(value * count for value, count in pairs)
