"""How long the requests are that come."""

import dataclasses

import pytest

from penstock.live.history import History
from penstock.live.lengths import lengths
from tests.live.engines_simulated import FIXED, SPREAD, scrapes


def seen(*args, **options):
    """What is known of the lengths after some scrapes."""
    history = History("a")
    for scrape in scrapes(*args, **options):
        history.take(scrape)
    return lengths(history), history


def test_long_outputs_are_not_missed_though_they_finish_late():
    """Under overload those that have finished are too short; those that came out are right."""
    found, history = seen(1.3, 120.0, seed=1, lengths=SPREAD)
    assert found is not None
    last = history.last
    finished = last.finished_output_tokens / last.finished
    assert finished < 40  # of 42
    assert abs(found.output.value - 42) < 3
    assert abs(found.prompt.value - 100) < 8


def test_equal_lengths_are_found_exactly_but_for_the_ends():
    found, _ = seen(0.8, 400.0)
    assert found is not None
    assert found.prompt.value == pytest.approx(100)
    assert found.output.value == pytest.approx(42, rel=0.01)


def test_nothing_is_said_before_enough_have_finished():
    found, _ = seen(0.5, 10.0, lengths=FIXED)
    assert found is None


def test_requests_whose_tokens_are_not_known_make_nothing_shorter():
    """Where a page was damaged, its tokens are not known; its requests do not count without them."""
    history = History("a")
    for count, scrape in enumerate(scrapes(1.2, 200.0, lengths=FIXED)):
        damaged = {"prompt_tokens": None, "output_tokens": None} if count % 4 == 2 else {}
        history.take(dataclasses.replace(scrape, **damaged))
    found = lengths(history)
    assert found is not None
    assert found.prompt.value == pytest.approx(100)
    assert found.output.value == pytest.approx(42, rel=0.03)
