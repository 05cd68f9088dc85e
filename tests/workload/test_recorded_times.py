"""What times look like that are no arrival times: each is told, and real traces are not doubted falsely."""

from pathlib import Path

import numpy as np
import pytest

from penstock import read_trace
from penstock.workload.arrivals import Replay
from penstock.workload.recorded_times import overloaded

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
CASES = SHARED / "user_cases" / "broken"
REAL = ("azure_llm_2023_code.csv", "azure_llm_2023_conv.csv", "ragpulse_0_trace.jsonl.gz")
MOONCAKE = "mooncake_fast25_conversation_trace.jsonl.gz"


def real(name):
    path = SHARED / "traces" / name
    if not path.exists():
        pytest.skip(f"the real data ({name}) is not here")
    return read_trace(path).arrivals


def poisson(requests=4_000, rate=1.0):
    return np.cumsum(np.random.default_rng(0).exponential(1 / rate, requests))


def doubts(times, unit="s"):
    return Replay(times, unit).doubts


@pytest.mark.parametrize("name", REAL)
def test_real_traces_are_not_doubted(name):
    assert real(name).doubts == []


def test_mooncake_is_stamped_every_three_seconds_and_that_is_said():
    (said,) = real(MOONCAKE).doubts
    assert "stamped every 3 s: 12,031 requests come at 1,180 instants" in said


@pytest.mark.parametrize("name", [*REAL[:2], MOONCAKE])
def test_real_traces_in_whole_seconds_are_told_from_exact_ones(name):
    assert "stamped every" in doubts(np.floor(real(name).times_s))[0]


def test_rare_requests_in_whole_seconds_share_no_instants_and_are_not_doubted():
    assert doubts(np.floor(real(REAL[2]).times_s)) == []


@pytest.mark.parametrize("name", [*REAL, MOONCAKE])
def test_a_gap_is_named_with_its_request_and_the_rate_without_it(name):
    times = real(name).times_s.copy()
    rate = Replay(times).rate
    half = times.size // 2
    times[half:] += 10 * (times[-1] - times[0])
    said = doubts(times)[-1]
    assert f"after request {half:,}." in said
    assert f"without it, it is {rate:.4g}." in said


@pytest.mark.parametrize("name", [*REAL, MOONCAKE])
@pytest.mark.parametrize(("unit", "other"), [("s", "milliseconds"), ("ms", "microseconds"), ("us", "nanoseconds")])
def test_times_a_thousand_times_as_long_are_asked_about(name, unit, other):
    said = doubts(1000 * real(name).times_s, unit)[-1]
    assert f"If they are {other} it is" in said


@pytest.mark.parametrize("name", [*REAL[:2], MOONCAKE])
@pytest.mark.parametrize(("unit", "other"), [("ms", "seconds"), ("us", "milliseconds"), ("ns", "microseconds")])
def test_times_a_thousandth_as_long_are_asked_about(name, unit, other):
    said = doubts(real(name).times_s / 1000, unit)[-1]
    assert f"If they are {other} it is" in said


def test_dates_have_no_unit_to_doubt(tmp_path):
    path = tmp_path / "rare.csv"
    rows = [f"2024-01-{day:02d} 00:00:00,5,5" for day in range(1, 29)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    assert read_trace(path).front == []


def test_a_rate_that_is_given_leaves_no_doubt_of_the_unit():
    times = poisson(rate=1e-3)
    assert doubts(times)
    assert Replay(times, "s").with_rate(1e-3).doubts == []


@pytest.mark.parametrize(("name", "said"), [
    ("coarse.csv", "stamped every 10 s: 399 requests come at 5 instants"),
    ("gap.csv", "without it, it is 0.9465"), ("ms_as_s.csv", "If they are milliseconds it is 1.019"),
    ("moon_s.jsonl", "If they are seconds it is 1:"),
])  # fmt: skip
def test_times_that_users_had_are_told_for_what_they_are(name, said):
    if not CASES.exists():
        pytest.skip("the cases are not here")
    (told,) = read_trace(CASES / name).front
    assert said in told


def test_requests_in_bursts_at_random_instants_are_on_no_grid():
    assert doubts(np.repeat(poisson(200), 20)) == []


@pytest.mark.parametrize("times", [np.zeros(50), np.arange(3.0), np.array([0.0, 0, 0, 5]), np.array([7.0])])
def test_few_instants_are_not_doubted(times):
    assert doubts(times) == []


def ramp():
    return np.append(np.linspace(0, 20_000, 680), 20_000 + np.linspace(0.2, 1_200, 6_000))


@pytest.mark.parametrize("floored", [False, True])
def test_a_stretch_that_is_too_much_is_found_exactly(floored):
    times = np.floor(ramp()) if floored else ramp()
    found = overloaded(times, 3.4)
    assert found.begin_s == pytest.approx(20_000, abs=1)
    assert found.seconds == pytest.approx(1_200, abs=2)
    assert found.rate == pytest.approx(5.0, rel=0.01)


def test_a_rate_that_rises_evenly_is_found_too():
    rising = 8_000 * np.sqrt(np.arange(8_000) / 8_000)
    found = overloaded(rising, 1.4)
    assert found.begin_s + found.seconds == pytest.approx(8_000, rel=0.01)
    assert found.rate > 1.6


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("shape", [1.0, 1 / 16])
def test_gaps_that_are_alike_have_no_such_stretch(load, shape):
    gaps = np.random.default_rng(2).gamma(shape, 1 / shape, 8_000)
    assert overloaded(np.cumsum(gaps), 1 / load) is None


def test_a_gap_is_no_rate_that_changes():
    times = poisson()
    times[2_000:] += 1e6
    assert overloaded(times) is None
