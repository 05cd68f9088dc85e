"""When the arrivals changed."""

import numpy as np

from penstock.live.changes import last_change


def looks(arrivals: np.ndarray, seconds: float = 5.0) -> list[int]:
    """The looks at which a change is seen, looking after every interval."""
    lengths = np.full(len(arrivals), seconds)
    return [k for k in range(1, len(arrivals) + 1) if last_change(arrivals[:k], lengths[:k], 1.0, k) is not None]


def test_steady_arrivals_rarely_seem_to_change():
    rng = np.random.default_rng(0)
    seen = sum(bool(looks(rng.poisson(20, 120).astype(float))) for _ in range(100))
    assert seen <= 4  # one of a hundred is allowed; more than 4 has probability .004


def test_a_doubled_rate_is_seen_within_six_scrapes_where_it_happened():
    rng = np.random.default_rng(1)
    for _ in range(20):
        arrivals = np.r_[rng.poisson(20, 40), rng.poisson(40, 20)].astype(float)
        first = looks(arrivals)[0]
        assert 41 <= first <= 46
        index = last_change(arrivals[:first], np.full(first, 5.0), 1.0, first)
        assert index is not None
        assert abs(index - 40) <= 2


def test_a_scrape_that_takes_longer_is_no_change():
    seconds = np.array([5.0, 5.0, 5.0, 60.0, 5.0])
    assert last_change(4 * seconds, seconds, 1.0, 5) is None


def test_an_engine_without_requests_has_no_change():
    assert last_change(np.zeros(9), np.ones(9), 1.0, 9) is None
