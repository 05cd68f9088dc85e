"""What must be true of arrival processes."""

import itertools

import numpy as np
import pytest
from scipy import stats

from penstock.errors import InputError
from penstock.workload.arrivals import BLOCK, Deterministic, GammaRenewal, OnOff, Poisson, Replay, WanderingRate

BURSTS = OnOff(rate=2.5, gamma_shape=0.5, on_mean_s=20, on_cv=0.6, off_mean_s=40, off_cv=1, burst_log_sd=0.6)
WANDERING = WanderingRate(rate=5, gamma_shape=0.9, step_s=30, log_sd=0.3, correlation=0.8)
ENDLESS = [Poisson(3), Deterministic(3), GammaRenewal(3, 0.2), GammaRenewal(3, 4), BURSTS, WANDERING]


def blocks(process, count, seed=1):
    return list(itertools.islice(process.blocks(np.random.default_rng(seed)), count))


def times(process, count=1, seed=1):
    return np.concatenate(blocks(process, count, seed))


def name(process):
    return process.describe()


@pytest.mark.parametrize("process", ENDLESS, ids=name)
def test_times_come_in_equal_blocks_and_never_fall(process):
    found = blocks(process, 4)
    assert [block.size for block in found] == [BLOCK] * 4
    whole = np.concatenate(found)
    assert whole[0] >= 0
    assert (np.diff(whole) >= 0).all()


@pytest.mark.parametrize("process", ENDLESS, ids=name)
def test_the_same_seed_gives_the_same_times_and_another_seed_others(process):
    assert times(process).tolist() == times(process).tolist()
    if not isinstance(process, Deterministic):
        assert times(process).tolist() != times(process, seed=2).tolist()


@pytest.mark.parametrize("process", ENDLESS, ids=name)
def test_the_long_run_rate_is_the_rate(process):
    """Forty blocks, each long against the memory of the process, so their lengths are nearly independent."""
    ends = np.array([0, *(block[-1] for block in blocks(process, 40))])
    per_block = np.diff(ends) * process.rate / BLOCK
    assert per_block.mean() == pytest.approx(1, abs=max(4 * stats.sem(per_block), 1e-4))
    assert stats.sem(per_block) < 0.02, "an interval so wide says nothing"


@pytest.mark.parametrize("process", ENDLESS, ids=name)
def test_another_rate_stretches_time_and_changes_nothing_else(process):
    faster = process.with_rate(10 * process.rate)
    assert faster.rate == 10 * process.rate
    np.testing.assert_allclose(times(faster) * 10, times(process), rtol=1e-9)


@pytest.mark.parametrize("cv", [0.2, 1, 5])
def test_gamma_gaps_have_the_cv_asked_for(cv):
    gaps = np.diff(times(GammaRenewal(3, cv), 10)) * 3  # mean 1, so the mean of (gap - 1)^2 is cv^2
    squares = (gaps - 1) ** 2
    assert squares.mean() == pytest.approx(cv**2, abs=4 * stats.sem(squares))
    assert stats.sem(squares) < 0.03 * cv**2


@pytest.mark.parametrize(
    "process",
    [Poisson(7), GammaRenewal(7, 1), WanderingRate(rate=7, gamma_shape=1, step_s=3, log_sd=0, correlation=0)],
    ids=name,
)
def test_three_ways_to_ask_for_a_poisson_process_give_independent_exponential_gaps(process):
    gaps = np.diff(times(process)) * 7
    assert stats.kstest(gaps, "expon").pvalue > 1e-3
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / np.sqrt(gaps.size)


def test_deterministic_times_are_multiples_of_the_gap_rounded_once():
    found = times(Deterministic(7), 2)
    assert found.tolist() == [n / 7 for n in range(2 * BLOCK)]


def test_bursts_fill_their_windows_and_silences_are_silent():
    """With lengths that hardly vary, a cycle is 10 s of arrivals at 6/s and 20 s of nothing."""
    process = OnOff(rate=2, gamma_shape=1, on_mean_s=10, on_cv=1e-3, off_mean_s=20, off_cv=1e-3, burst_log_sd=0)
    early = times(process)
    early = early[early < 3000]
    phase = early % 30
    assert ((phase < 10.3) | (phase > 29.7)).all()
    assert early.size == pytest.approx(6000, abs=4 * np.sqrt(6000))
    assert np.histogram(phase, 5, (0.3, 9.7))[0].min() > 0.85 * early.size / 5


def test_a_wandering_rate_has_the_spread_and_the_memory_asked_for():
    """Counts in steps are Poisson given the rate, so at 1,000 arrivals per step they show it."""
    process = WanderingRate(rate=100, gamma_shape=1, step_s=10, log_sd=0.4, correlation=0.7)
    found = times(process, 100)
    counts = np.histogram(found, np.arange(0, found[-1], 10))[0]
    log = np.log(counts)
    assert log.std() == pytest.approx(0.4, abs=0.03)
    assert np.corrcoef(log[:-1], log[1:])[0, 1] == pytest.approx(0.7, abs=0.05)


def test_only_renewal_processes_are_called_independent():
    assert all(process.iid for process in ENDLESS[:4])
    assert not any(process.iid for process in (BURSTS, WANDERING, Replay(np.arange(3.0))))


# Recordings


def test_a_recording_is_replayed_once_as_it_is():
    recorded = np.cumsum(np.random.default_rng(0).exponential(size=BLOCK + 10))
    found = blocks(Replay(recorded), 99)
    assert [block.size for block in found] == [BLOCK, 10]
    assert np.concatenate(found).tolist() == recorded.tolist()


def test_the_rate_of_a_recording_is_one_over_its_mean_gap():
    assert Replay(np.array([5.0, 6, 9, 11])).rate == 0.5
    assert Replay(times(Deterministic(4))).rate == pytest.approx(4, rel=1e-12)


def test_a_stretched_recording_keeps_its_pattern_and_its_first_time():
    recorded = np.array([3.0, 3.0, 4.0, 8.0])
    slower = Replay(recorded).with_rate(0.3)
    assert slower.rate == pytest.approx(0.3)
    np.testing.assert_allclose(slower.times_s - 3, 2 * (recorded - 3))
    assert recorded.tolist() == [3, 3, 4, 8]


@pytest.mark.parametrize("recorded", [[4.0], [4.0, 4.0]])
def test_a_recording_that_spans_no_time_has_no_rate_and_cannot_be_stretched(recorded):
    process = Replay(np.array(recorded))
    assert np.isnan(process.rate)
    with pytest.raises(InputError, match=r"arrive at one instant.*resample"):
        process.with_rate(1)


def test_a_recording_is_a_copy_so_the_callers_array_may_change():
    mine = np.array([0.0, 1.0])
    process = Replay(mine)
    mine[0] = 99
    assert process.times_s.tolist() == [0, 1]


# Refusals

NOT_NUMBERS = ["3", None, True, np.bool_(True), [1], 1j]
NOT_POSITIVE = [0, -1, float("nan"), float("inf"), -float("inf"), 10**400]


@pytest.mark.parametrize("value", NOT_NUMBERS + NOT_POSITIVE, ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        Poisson, Deterministic, Poisson(1).with_rate, Replay(np.arange(3.0)).with_rate, BURSTS.with_rate,
        WANDERING.with_rate, lambda rate: GammaRenewal(rate, 1), lambda cv: GammaRenewal(1, cv),
        lambda on: OnOff(2, 1, on, 1, 1, 1, 0), lambda cv: OnOff(2, 1, 1, 1, 1, cv, 0),
        lambda shape: WanderingRate(2, shape, 1, 0, 0), lambda step: WanderingRate(2, 1, step, 0, 0),
    ],
)  # fmt: skip
def test_what_is_no_positive_number_is_refused_in_one_line_with_value_and_limits(make, value):
    with pytest.raises(InputError) as caught:
        make(value)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "must be a number from" in message
    assert str(value)[:20] in message


@pytest.mark.parametrize("value", ["x", None, float("nan"), 1.5, -1.5])
def test_a_correlation_outside_its_range_is_refused(value):
    with pytest.raises(InputError, match=r"correlation is .*, but must be a number from -0.9999 to 0.9999"):
        WanderingRate(2, 1, 1, 0.1, value)


@pytest.mark.parametrize(
    ("recorded", "part"),
    [
        ([], "arrival_s is empty"),
        ([[0, 1], [2, 3]], r"has the shape \(2, 2\)"),
        ([[0], [1, 2]], r"arrival_s is \[\[0\], \[1, 2\]\], but must be"),
        (["a"], r"arrival_s is \['a'\]"),
        ([None, 1], r"arrival_s is \[None, 1\]"),
        ([True, False], r"arrival_s is \[True, False\]"),
        ([0, float("nan")], r"arrival_s\[1\] is nan"),
        ([0, float("inf")], r"arrival_s\[1\] is inf"),
        ([0, 2, 1], r"arrival_s\[2\] = 1 s is before the request ahead of it; sort"),
        ([-1.5e308, 1.5e308], r"arrival_s\[0\] is -1.5e\+308, .* at most 1e\+12"),
        ([0, 1, 1e300], r"arrival_s\[2\] is 1e\+300"),
    ],
)
def test_times_that_cannot_be_replayed_are_refused_in_one_line(recorded, part):
    with pytest.raises(InputError, match=part) as caught:
        Replay(recorded)
    assert len(str(caught.value).splitlines()) == 1
