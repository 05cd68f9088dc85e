"""Whether the work that arrives exceeds what is carried."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from penstock.live.drift import FEWEST, drift, requests_to_decide


@pytest.mark.parametrize("alpha", [0.01, 0.05])
@pytest.mark.parametrize("error", [0.0, 0.03])
def test_at_a_load_of_one_either_verdict_is_as_rare_as_alpha_at_all_looks_at_once(alpha, error):
    rng, runs = np.random.default_rng(0), 10_000
    looks = np.unique(np.geomspace(FEWEST, 10**7, 600).astype(int))
    low, high = np.array([drift(1.0, n, 1.0, error, alpha).always for n in looks]).T
    work = np.cumsum(rng.gamma(np.diff(looks, prepend=0), size=(runs, looks.size)), axis=1)
    load = work / looks + error * rng.standard_normal((runs, 1))  # what is carried is off all along
    unstable, stable = (load * low > 1).any(axis=1), (load * high < 1).any(axis=1)
    assert max(unstable.sum(), stable.sum()) <= stats.binom.ppf(0.999, runs, alpha)


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
