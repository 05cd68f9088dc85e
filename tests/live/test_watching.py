"""Scrapes in, an answer out."""

import dataclasses
import math
import re

import numpy as np
import pytest
from scipy import stats

import penstock as ps
from penstock.errors import InputError
from penstock.live.settings import Settings
from penstock.live.view import watch_page
from penstock.live.watching import Watch
from tests.live.engines_simulated import FIXED, HOST_S, SPREAD, capacity, engine, scrapes
from tests.live.simulated_scrapes import simulated_scrapes


def watch(taken, server="known", **settings):
    """What is said after some scrapes."""
    watching = Watch(engine() if server == "known" else server, Settings(**settings))
    for scrape in taken:
        watching.take(scrape)
    return watching.answer()


@pytest.mark.parametrize(("load", "verdict"), [(0.6, "stable"), (0.8, "stable"), (1.2, "unstable"), (1.5, "unstable")])
@pytest.mark.parametrize("lengths", [FIXED, SPREAD])
def test_the_load_is_found_with_the_hosts_time_and_judged(load, verdict, lengths):
    together = watch(scrapes(load, 600.0, seed=2, lengths=lengths)).together
    assert together.verdict == verdict
    assert together.load.low <= load <= together.load.high
    assert together.binding == "token budget"
    assert together.replicas_low <= math.ceil(load / 0.8) <= together.replicas_high


def test_lengths_that_are_looked_at_no_more_have_had_their_part_of_alpha(monkeypatch):
    """Else each 200 requests anew had a chance to be far off, and some of many would be."""
    monkeypatch.setattr("penstock.live.lengths._WINDOW", 200.0)
    taken = scrapes(0.6, 900.0, seed=2, lengths=SPREAD)
    reached = []
    for seconds in (300, 900):
        together = watch([scrape for scrape in taken if scrape.time_s < seconds]).together
        high = float(re.search(r"and ([\d.]+) at every look", together.reason)[1])
        reached.append((high - together.load.value) / (together.load.high - together.load.value))
    assert reached[1] > 1.1 * reached[0]


@pytest.mark.parametrize("runs", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_burst_at_the_beginning_is_no_overload(runs):
    """The first intervals do not tell yet how much arrivals scatter."""
    alarms = 0
    for seed in range(runs):
        workload = ps.Workload.gamma(0.95 * capacity(), 3.0, *FIXED, seed=seed)
        run = ps.simulate(workload, engine(HOST_S), until=60.0, record="batches")
        watching = Watch(engine(), Settings(alpha=0.05))
        for scrape in simulated_scrapes(run, np.arange(5.0, 60.0, 5.0)):
            watching.take(scrape)
            if watching.answer(ahead=False).together.verdict == "unstable":
                alarms += 1
                break
    assert alarms <= stats.binom.ppf(0.999, runs, 0.05)


def test_limits_that_are_reached_together_are_all_named():
    answer = watch(scrapes(0.6, 300.0, seed=2))
    together = answer.together
    assert "of the token budget, which binds first" in str(watch_page(answer))
    loads = tuple(dataclasses.replace(each, load=together.load) for each in together.loads)
    tied = dataclasses.replace(answer, together=dataclasses.replace(together, loads=loads))
    names = " and the ".join(each.limit for each in loads)
    assert len(loads) > 1
    assert f"of the {names}, which bind first" in str(watch_page(tied))


def test_a_step_is_noticed_and_the_load_is_that_after_it():
    rate = capacity()
    gaps = np.random.default_rng(4).exponential(1.0, 6_000)
    at_s = np.cumsum(gaps / np.where(np.arange(6_000) < 0.6 * rate * 300, 0.6 * rate, 1.2 * rate))
    workload = ps.Workload.from_arrays(
        at_s[at_s < 600], np.full((at_s < 600).sum(), 100), np.full((at_s < 600).sum(), 42)
    )
    run = ps.simulate(workload, engine(HOST_S), until=600.0, record="batches")
    together = watch(simulated_scrapes(run, np.arange(5.0, 600.0, 5.0))).together
    (change,) = together.changes
    assert abs(change.time_s - 300) < 30
    assert change.before < 0.8 * rate < change.after
    assert together.verdict == "unstable"


def test_time_until_the_queue_limit_is_about_right():
    taken = scrapes(1.3, 400.0, seed=5)
    seen = [scrape for scrape in taken if scrape.time_s <= 60]
    (until, _) = watch(seen, queue_limit=150).together.until
    hit = next(scrape.time_s for scrape in taken if scrape.waiting >= 150) - seen[-1].time_s
    assert until.seconds.low <= hit <= until.seconds.high
    assert until.seconds.high < 8 * until.seconds.low


def test_a_stable_engine_drains_and_reaches_no_limit():
    together = watch(scrapes(0.6, 300.0), queue_limit=500, ttft_s=20.0).together
    assert all(until.seconds.value == math.inf for until in together.until)


def test_of_engines_behind_one_router_that_share_unevenly_the_worst_is_judged():
    one, two = scrapes(0.6, 400.0, seed=6), scrapes(1.2, 400.0, seed=7)
    other = [dataclasses.replace(scrape, engine="other") for scrape in two]
    answer = watch([*one, *other])
    assert [reading.verdict for reading in answer.engines] == ["stable", "unstable"]
    assert answer.together.engine == "all"
    assert answer.together.load == answer.engines[1].load
    assert answer.together.even_load.value == pytest.approx(0.9, abs=0.08)
    assert answer.together.arrival_rate.value == pytest.approx(1.8 * capacity(), rel=0.1)


def test_an_engine_that_died_has_no_part_in_the_sum():
    alive, dead = scrapes(0.6, 400.0, seed=6), scrapes(0.6, 100.0, seed=7)
    other = [dataclasses.replace(scrape, engine="dead") for scrape in dead]
    together = watch([*alive, *other, dataclasses.replace(alive[-1], engine="once")]).together
    assert together.engines == 1
    assert together.load.value == pytest.approx(0.6, abs=0.05)
    assert sum("left out of the sum" in note for note in together.notes) == 2


def test_the_drift_is_what_arrives_beyond_what_is_carried():
    together = watch(scrapes(1.2, 300.0, seed=2)).together
    assert together.drift.value == pytest.approx(0.2 * capacity(), abs=0.6)
    assert together.drift.low < together.drift.value < together.drift.high


def test_without_a_batch_time_a_queue_shows_what_is_carried():
    together = watch(scrapes(1.3, 600.0, seed=8), server=None).together
    assert together.binding == "as seen"
    assert together.load.value == pytest.approx(1.3, rel=0.1)
    assert any("while requests waited" in note for note in together.notes)


def test_without_a_batch_time_or_a_queue_the_load_is_unknown():
    together = watch(scrapes(0.6, 300.0), server=None).together
    assert together.verdict == "unknown"
    assert together.load is None
    assert "no batch time" in together.reason


def test_clients_that_go_away_are_noticed():
    """Their tokens came out, but no request that finished has them."""
    taken = [
        dataclasses.replace(scrape, output_tokens=scrape.output_tokens + 60 * scrape.time_s)
        for scrape in scrapes(0.6, 200.0)
    ]
    assert any("clients" in note for note in watch(taken).together.notes)


def test_nothing_watched_is_refused():
    with pytest.raises(InputError, match="no engine could be read"):
        Watch(engine(), Settings()).answer()


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"target_load": 1.5}, {"queue_limit": -1.0}, {"ttft_s": math.nan}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        Settings(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "every"), [(SPREAD, 5.0), (FIXED, 15.0)])
def test_false_alarms_are_rarer_than_alpha_at_every_look(lengths, every):
    """At a load of .95 with 1,000 seeds, looks at every scrape, a tenth of them lost, all of them late."""
    alarms = 0
    for seed in range(1_000):
        rng = np.random.default_rng(seed)
        watching = Watch(engine(), Settings(alpha=0.05))
        for scrape in scrapes(0.95, 600.0, seed, every, lengths):
            if rng.random() < 0.1:
                continue
            watching.take(scrape)
            if watching.answer(ahead=False).together.verdict == "unstable":
                alarms += 1
                break
    assert alarms < 50


@pytest.mark.slow
@pytest.mark.parametrize(("load", "lengths", "watched_s"), [(1.1, SPREAD, 100), (1.2, FIXED, 100), (1.3, SPREAD, 60)])
def test_the_time_until_a_limit_is_in_its_interval_nine_times_of_ten(load, lengths, watched_s, capsys):
    inside = cases = 0
    for seed in range(200):
        taken = scrapes(load, 2_000.0, seed, lengths=lengths)
        seen = [scrape for scrape in taken if scrape.time_s <= watched_s]
        if any(scrape.waiting >= 150 for scrape in seen):
            continue
        hit = next((scrape.time_s for scrape in taken if scrape.waiting >= 150), math.inf) - seen[-1].time_s
        until = watch(seen, queue_limit=150).together.until[0].seconds
        cases += 1
        inside += until.low - 5 <= hit <= until.high + 5
    with capsys.disabled():
        print(f"\nload {load}: {inside} of {cases}")
    assert cases > 100
    assert inside >= 0.87 * cases
