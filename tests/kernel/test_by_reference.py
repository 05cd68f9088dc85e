"""Named tuples by reference: fields are read, and elements of arrays written, through one pointer."""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import types

from penstock.kernel.by_reference import reference_to


class Pair(NamedTuple):
    """Two arrays and a number."""

    whole: Any
    reals: Any
    shift: Any


PAIR = types.NamedTuple([types.int64[::1], types.float64[:, ::1], types.int64], Pair)  # type: ignore[no-untyped-call]


@numba.njit
def fill(pair: Any, row: int) -> Any:
    for place in range(pair.whole.size):
        pair.whole[place] += pair.shift
        pair.reals[row, place] = pair.whole[place] / 2
    return pair.whole[0]


@numba.njit(types.int64(PAIR, types.int64))
def fill_by_reference(pair: Any, row: int) -> Any:
    return fill(reference_to(pair), row)


def test_arrays_are_those_of_the_tuple_and_numbers_too() -> None:
    pair = Pair(np.arange(3), np.zeros((2, 3)), 7)
    assert fill_by_reference(pair, 1) == 7
    assert pair.whole.tolist() == [7, 8, 9]
    assert pair.reals.tolist() == [[0, 0, 0], [3.5, 4, 4.5]]


def test_a_field_that_there_is_not_is_refused_when_it_is_compiled() -> None:
    @numba.njit
    def wrong(pair: Any) -> Any:
        return reference_to(pair).nothing

    with pytest.raises(numba.TypingError, match="nothing"):
        wrong(Pair(np.arange(3), np.zeros((2, 3)), 7))
