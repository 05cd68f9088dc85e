"""Whether the work that arrives exceeds what is carried."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.live.drift import FEWEST, drift, radius, requests_to_decide


def test_a_sum_stays_within_the_radius_at_all_times_at_once():
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(400):
        walk = np.cumsum(rng.exponential(1.0, 3_000) - 1.0)
        outside += any(abs(walk[n]) > radius(n + 1.0, 0.05) for n in range(FEWEST, 3_000, 7))
    assert outside <= 32  # 20 are allowed; more than 32 has probability .004


@given(st.floats(0.1, 3.0), st.floats(0.0, 1e5), st.floats(0.5, 20.0), st.floats(0.0, 0.3))
def test_a_verdict_agrees_with_the_interval_that_always_holds(load, requests, variance, error):
    test = drift(load, requests, variance, error, 0.05)
    low, high = test.always
    assert low <= test.load.low <= load <= test.load.high <= high
    assert (test.verdict == "unstable") == (low > 1 and requests >= FEWEST)
    assert (test.verdict == "stable") == (high < 1 and requests >= FEWEST)


@pytest.mark.parametrize("load", [0.6, 0.9, 1.1, 1.5])
def test_so_many_requests_decide_and_fewer_do_not(load):
    needed = requests_to_decide(load, 2.0, 0.0, 0.05)
    assert drift(load, needed, 2.0, 0.0, 0.05).verdict != "undecided"
    assert drift(load, max(needed / 1.2, FEWEST - 1), 2.0, 0.0, 0.05).verdict == "undecided"


def test_a_load_of_one_is_never_told():
    assert requests_to_decide(1.0, 1.0, 0.0, 0.05) == math.inf
    assert requests_to_decide(1.05, 1.0, 0.05, 0.05) == math.inf
