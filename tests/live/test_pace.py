"""How long batches take."""

import pytest

from penstock.live.history import History
from penstock.live.lengths import lengths
from penstock.live.pace import pace
from tests.live.engines_simulated import HOST_S, SPREAD, engine, scrapes


@pytest.mark.parametrize("load", [0.6, 0.9, 1.2])
def test_the_time_of_the_host_is_found(load):
    history = History("a")
    for scrape in scrapes(load, 300.0, seed=3, lengths=SPREAD):
        history.take(scrape)
    means = lengths(history)
    assert means is not None
    found = pace(history.intervals, engine().batch_time, means.prompt.value)
    assert found is not None
    assert found.host_s is not None
    assert found.host_s.value == pytest.approx(HOST_S, abs=0.015 * found.batch_s.value)


def test_an_engine_that_was_never_busy_says_nothing():
    history = History("a")
    for scrape in scrapes(0.02, 60.0):
        history.take(scrape)
    assert pace(history.intervals, engine().batch_time, 100.0) is None
