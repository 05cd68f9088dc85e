"""Loads of the links between two pools, by hand."""

import math

import pytest

from penstock.errors import InputError
from penstock.theory.network.transfer_loads import transfer_loads


def test_bytes_that_cross_are_held_against_the_links_of_either_side() -> None:
    found = transfer_loads(4.0, 1_000, 1e5, [1e8, 1e8, 3e8], 8e8)
    assert (found.bytes_per_s, found.sending, found.receiving) == (4e8, 0.8, 0.5)
    assert found.load == 0.8
    assert found.max_scale == 1.25
    free = transfer_loads(4.0, 1_000, 1e5, math.inf, [math.inf, 1.0])
    assert (free.load, free.max_scale) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((-1, 1, 1, 1, 1), "the rate is -1"),
        ((1, math.nan, 1, 1, 1), "prompt_tokens is nan"),
        ((1, 1, 1, [], 1), "bandwidths of the sending replicas"),
        ((1, 1, 1, 1, [1, 0]), "bandwidths of the receiving replicas"),
    ],
)
def test_numbers_of_a_transfer_that_cannot_be_are_refused(numbers: tuple, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=said) as caught:
        transfer_loads(*numbers)
    assert "\n" not in str(caught.value)
