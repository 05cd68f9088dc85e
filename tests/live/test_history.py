"""What is believed of two scrapes, and what is not."""

import dataclasses

import pytest

from penstock.live.history import History
from penstock.live.scrape import Scrape

FIRST = Scrape(
    "a", 100.0, running=4, waiting=2, finished=10, first_tokens=12, prompt_tokens=1_200, output_tokens=400,
    finished_output_tokens=300, batches=50,
)  # fmt: skip


def later(seconds: float = 5.0, **grown: float) -> Scrape:
    """The same engine later, with counters that grew."""
    changes = {name: getattr(FIRST, name) + value for name, value in grown.items()}
    return dataclasses.replace(FIRST, time_s=FIRST.time_s + seconds, **changes)


def taken(*scrapes: Scrape) -> History:
    """A history of them."""
    history = History("a")
    for scrape in scrapes:
        history.take(scrape)
    return history


def test_arrivals_are_those_that_left_and_those_that_are_in_it_more_than_before():
    (interval,) = taken(
        FIRST, later(finished=7, running=1, waiting=3, first_tokens=8, prompt_tokens=800, output_tokens=90)
    ).intervals
    assert interval.arrivals == 11
    assert interval.seconds == 5


def test_a_counter_of_arrivals_is_preferred():
    first = dataclasses.replace(FIRST, arrived=100.0)
    second = dataclasses.replace(later(finished=7), arrived=120.0)
    assert taken(first, second).intervals[0].arrivals == 20


def test_requests_turned_away_have_arrived():
    first = dataclasses.replace(FIRST, refused=1.0)
    second = dataclasses.replace(later(finished=7), refused=4.0)
    assert taken(first, second).intervals[0].arrivals == 10


def test_requests_refused_are_counted_from_the_first_on():
    """The engine's counter does not exist before it refuses one."""
    history = taken(FIRST, later(finished=7), dataclasses.replace(later(10, finished=9), refused=3.0))
    assert history.refused_per_s == 3 / 10
    assert taken(FIRST, later(finished=7)).refused_per_s is None


def test_who_had_a_first_token_and_neither_finished_nor_runs_has_left():
    """30 first tokens, 15 finished, 5 to 8 of the others run: at least 7 have left in 5 s."""
    grown = {"first_tokens": 30, "prompt_tokens": 3_000, "output_tokens": 900}
    assert taken(FIRST, later(finished=15, running=1, **grown)).left_per_s == pytest.approx(7 / 5)
    assert taken(FIRST, later(finished=24, running=1, **grown)).left_per_s == 0.0
    unknown = dataclasses.replace(later(finished=15, **grown), first_tokens=None)
    assert taken(FIRST, unknown).left_per_s is None


@pytest.mark.parametrize("counter", ["finished", "first_tokens", "output_tokens", "batches"])
def test_a_counter_that_falls_is_an_engine_that_started_anew(counter):
    restarted = later(finished=3, first_tokens=3, prompt_tokens=300, output_tokens=50, batches=5)
    history = taken(FIRST, dataclasses.replace(restarted, **{counter: 1.0}))
    assert not history.intervals
    assert any("started anew" in note for note in history.notes)


def test_after_a_restart_it_goes_on():
    restarted = dataclasses.replace(later(5), finished=0, first_tokens=0, prompt_tokens=0, output_tokens=0, batches=0)
    again = dataclasses.replace(
        later(10),
        finished=2,
        first_tokens=2,
        prompt_tokens=200,
        output_tokens=50,
        batches=5,
        finished_output_tokens=300,
    )
    assert taken(FIRST, restarted, again).intervals[0].arrivals == 2


def test_scrapes_out_of_order_are_left_out_with_a_note():
    history = taken(FIRST, later(5, finished=1), later(3, finished=1))
    assert len(history.intervals) == 1
    assert any("no later" in note for note in history.notes)


@pytest.mark.parametrize(
    "wrong",
    [{"running": -1.0}, {"finished": float("nan")}, {"waiting": float("inf")}, {"kv_used": 1.7}],
)
def test_what_cannot_be_is_left_out_with_a_note(wrong):
    history = taken(FIRST, dataclasses.replace(later(5, finished=1), **wrong), later(10, finished=2))
    assert [interval.seconds for interval in history.intervals] == [10]
    assert any("left out" in note for note in history.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_tokens": 4_000, "prompt_tokens": 400_000, "output_tokens": 9_000},
        {"first_tokens": 30},
        {"waiting": -2, "running": -4},
    ],
)
def test_counts_that_contradict_each_other_are_left_out_with_a_note(wrong):
    history = taken(FIRST, later(5, **wrong))
    assert not history.intervals
    assert any("left out" in note for note in history.notes)


def test_lost_scrapes_cost_nothing_but_a_note():
    times = [5.0, 10.0, 15.0, 20.0, 60.0]
    history = taken(FIRST, *(later(time, finished=time) for time in times))
    assert sum(interval.arrivals for interval in history.intervals) == 60
    assert any("late or lost" in note for note in history.notes)


def test_without_gauges_arrivals_are_not_known_and_a_note_says_so():
    blind = [dataclasses.replace(scrape, waiting=None) for scrape in (FIRST, later(5, finished=3))]
    history = taken(*blind)
    assert not history.intervals
    assert any("not known" in note for note in history.notes)
