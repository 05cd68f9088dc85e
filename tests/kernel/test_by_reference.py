"""Named tuples by reference: fields are read, and elements of arrays written, through one pointer."""

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import types

from penstock.kernel.by_reference import Address, reference_at
from penstock.kernel.compiled_code import entry


class Pair(NamedTuple):
    """Two arrays."""

    whole: Any
    reals: Any


PAIR = types.NamedTuple([types.int64[::1], types.float64[:, ::1]], Pair)  # type: ignore[no-untyped-call]
pair_at = reference_at(PAIR)


@numba.njit
def fill(pair: Any, row: int) -> Any:
    for place in range(pair.whole.size):
        pair.whole[place] += 7
        pair.reals[row, place] = pair.whole[place] / 2
    return pair.whole[0]


def test_arrays_are_those_of_the_tuple() -> None:
    pair = Pair(np.arange(3), np.zeros((2, 3)))
    call = entry(lambda pair, row: fill(pair_at(pair), row), types.int64(types.int64, types.int64))
    address = Address()
    assert call(address.of(pair), 1) == 7
    assert pair.whole.tolist() == [7, 8, 9]
    assert pair.reals.tolist() == [[0, 0, 0], [3.5, 4, 4.5]]
    others = pair._replace(whole=np.arange(5, 7))
    assert call(address.of(others), 0) == 12  # other arrays at the same address
    assert others.reals.tolist() == [[6, 6.5, 0], [3.5, 4, 4.5]]


def test_a_field_that_there_is_not_is_refused_when_it_is_compiled() -> None:
    @numba.njit
    def wrong(pair: Any) -> Any:
        return pair_at(pair).nothing

    with pytest.raises(numba.TypingError, match="nothing"):
        wrong(0)
