"""A fleet that follows the day has what each interval needs, in time, and says where intervals depend on each other."""

import dataclasses
import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.planning.aim import Aim
from penstock.planning.day import DayPlan, _ahead, plan_day
from penstock.planning.day_run import simulate_day
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.evaluate import evaluate
from penstock.planning.rates import RateProfile, profile
from penstock.planning.scenario import day_of, read_day, read_plan

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp2").batch_time, 512)
WORKLOAD = ps.Workload.poisson(5.0, ps.Geometric(600), ps.Geometric(100), seed=3)
WAVE = RateProfile(11 + 9 * np.sin(np.arange(24) / 12 * np.pi))


def planned(rates=WAVE, targets=("ttft_p99<2s",), **changed):
    asked = {"requests": 2_000, "most_replicas": 40, "check": False}
    return plan_day(
        rates, WORKLOAD, Deployment(Kind(SERVER, accelerators=2, price=3.0), 1), targets, **(asked | changed)
    )


@functools.cache
def wave():
    return planned()


@pytest.mark.parametrize("router", ["random", "round-robin", pytest.param("jsq", marks=pytest.mark.slow)])
def test_each_interval_has_the_fewest_replicas_that_simulation_finds_enough(router):
    rates = RateProfile([2.0, 21.0, 6.5, 0.0, 13.0])
    one = Deployment(SERVER, 1, router=router)
    aim = Aim.of(["ttft_p90<500ms"])
    found = plan_day(rates, WORKLOAD, one, aim, check=False)
    for period in found.periods:
        if period.rate:
            offered = WORKLOAD.with_rate(period.rate)
            answers = (evaluate(offered, one.with_replicas(n), aim).answer for n in range(1, 40))
            assert period.replicas == next(n for n, answer in enumerate(answers, 1) if answer == "met")
    assert found.periods[3].replicas == 1
    assert found.periods[3].certified == 0


def test_a_day_of_24_rates_takes_few_simulations():
    assert len(wave().evaluations) <= 12


def test_the_certificate_asks_for_the_fewest_replicas_that_theory_allows():
    most = ps.certify(WORKLOAD, SERVER).max_rate
    for period in wave().periods:
        assert period.rate / period.certified < most
        assert period.certified == 1 or period.rate / (period.certified - 1) >= most
        assert period.certified <= period.replicas
        assert period.rho == pytest.approx(period.rate / most / period.replicas)


def test_the_static_fleet_is_that_of_the_peak_and_following_the_day_costs_less():
    found = wave()
    answer = found.as_dict()
    counts = [period.replicas for period in found.periods]
    assert answer["accelerator_hours"]["static"] == 24 * 2 * max(counts)
    assert answer["accelerator_hours"]["planned"] == pytest.approx(2 * sum(counts))
    assert answer["cost"]["planned"] == pytest.approx(3.0 * 2 * sum(counts))
    assert found.saving == pytest.approx(1 - sum(counts) / 24 / max(counts))
    assert answer["accelerator_hours"]["certified"] == 2 * sum(period.certified for period in found.periods)


@given(
    replicas=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    startup=st.floats(0, 10),
    at=st.floats(0, 0.999),
)
def test_replicas_are_held_as_soon_as_they_have_to_start(replicas, startup, at):
    """At any time the fleet is the most that is needed until a replica asked for now would serve."""
    startup = min(round(startup, 3), float(len(replicas)))
    held = _ahead(replicas, 1.0, startup)
    now = round(at * len(replicas), 3) + 2**-20
    fleet = [n for start, n in held if start <= now][-1]
    needed = [replicas[int(then) % len(replicas)] for then in np.linspace(now, now + startup, 400)]
    assert fleet >= max(needed)
    assert fleet <= max([*needed, replicas[int(now + startup + 2e-3) % len(replicas)], replicas[int(now - 2e-3)]])
    assert held[0][0] == 0
    assert all(a[1] != b[1] for a, b in itertools.pairwise(held))


def test_a_startup_time_is_paid_for_and_asked_for_ahead():
    now, early = wave(), planned(startup_minutes=20)
    rises = sum(
        max(b.replicas - a.replicas, 0) for a, b in zip(now.periods, [*now.periods[1:], now.periods[0]], strict=True)
    )
    assert early.accelerator_hours() == pytest.approx(now.accelerator_hours() + rises * 2 * 20 / 60)
    assert {start % 3600 for start, _ in early.schedule} <= {0.0, 2400.0}


def test_whole_days_at_one_rate_have_the_latency_of_the_steady_state():
    flat = RateProfile(np.full(6, 6.0))
    found = simulate_day(flat, WORKLOAD, Deployment(SERVER, 2), [2] * 6)
    _, steady = ps.estimate(WORKLOAD.with_rate(3.0), SERVER, requests=50_000, confidence=0.999)
    for metric in ("ttft_s", "e2e_s"):
        interval = steady.estimates[metric]["mean"]
        mean = np.mean([of[metric]["mean"] for of in found.latency])
        assert interval.low * 0.98 < mean < interval.high * 1.02
    expected = 6 * 3600 * 3.0 * found.days
    assert abs(found.requests - expected) < 5 * np.sqrt(expected)


def test_a_simulated_day_sees_what_an_overload_leaves_to_the_next_hour():
    """Planned by itself the second hour is light; it has the backlog of the first."""
    carries = ps.certify(WORKLOAD, SERVER).max_rate
    rates = RateProfile([0.1, 1.3 * carries, 0.3 * carries, 0.1, 0.1, 0.1])
    found = plan_day(rates, WORKLOAD, Deployment(SERVER, 1), ["ttft_p99<2s"], requests=1_000, most_replicas=1)
    assert [period.met for period in found.periods] == [True, False, True, True, True, True]
    assert found.periods[1].backlog == pytest.approx(0.3 * carries * 3600, rel=1e-6)
    assert found.periods[2].backlog == 0
    assert found.check.latency[2]["ttft_s"]["mean"] > 100 * found.check.latency[4]["ttft_s"]["mean"]
    assert {one.period for one in found.check.above} >= {1, 2}
    assert any("backlog" in said for said in found.notices)
    assert any("miss the targets" in said for said in found.notices)


def test_intervals_too_short_for_queues_to_settle_are_said():
    tight = planned(RateProfile([7.6, 4.0], interval_s=20.0), ["ttft_p99<20s"], requests=10_000)
    assert any("settle slowly" in said for said in tight.notices)
    assert not planned(RateProfile([7.6, 4.0]), ["ttft_p99<20s"], requests=10_000).notices


def test_replicas_that_see_each_others_queues_are_not_checked_alone():
    rates = RateProfile([3.0, 9.0])
    one = Deployment(SERVER, 1, router="jsq")
    found = plan_day(rates, WORKLOAD, one, ["ttft_p99<2s"], requests=1_000)
    assert found.check is None
    assert any("jsq" in said for said in found.notices)


def test_prompts_and_output_on_their_own_replicas_are_why_there_is_no_check():
    one = Deployment(SERVER, 2, prefill_replicas=1)
    found = plan_day(RateProfile([2.0]), WORKLOAD, one, ["ttft_p99<9s"], requests=500)
    assert found.check is None
    assert "prompts and output tokens are served by replicas of their own" in found.notices[0]


def test_a_day_has_the_numbers_of_replicas_that_are_allowed():
    """Of those the fewest that meet the targets, and the least of them where nothing arrives."""
    rates = RateProfile([2.0, 21.0, 6.5, 0.0, 13.0])
    every, some = planned(rates), planned(rates, replicas=[2, 3, 7])
    for free, period in zip(every.periods, some.periods, strict=True):
        assert period.replicas == next(n for n in (2, 3, 7) if n >= free.replicas)
    with pytest.raises(ps.InputError, match="none of 1 to 40"):
        planned(rates, replicas=[99])


def test_a_scenarios_day_is_within_the_plans_own_fleet_and_its_search(tmp_path):
    aim = Aim.of(["ttft_p99<2s"], requests=1_000)
    fleet = Deployment(SERVER, 4)

    def day_with(**asked: object) -> DayPlan:
        day = read_day({"rates": [1.0, 20.0], "check": False, **asked}, WORKLOAD, Path())
        return day_of(day, WORKLOAD, fleet, aim, [2, 4, 8])

    found = day_with()
    assert found.periods[0].replicas == 2
    assert found.deployment is fleet
    assert found.static_hours == 2 * 4
    held = day_with(most_replicas=2)
    assert [period.replicas for period in held.periods] == [2, 2]
    assert held.static_hours == 2 * 4
    assert "(plan.day.most_replicas)" in held.notices[0]
    more = day_with(least_replicas=5)
    assert [period.replicas for period in more.periods] == [8, 8]
    for wrong in ({"least_replicas": 9}, {"most_replicas": 1}, {"least_replicas": 4, "most_replicas": 2}):
        with pytest.raises(ps.InputError) as error:
            day_with(**wrong)
        assert "\n" not in str(error.value)


def test_an_overloaded_interval_never_settles_and_has_a_json_form():
    found = planned(RateProfile([3.0, 30.0]), most_replicas=1)
    assert found.periods[1].settles_s == np.inf
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["periods"][1]["settles_s"] is None
    assert not any("inf" in said for said in found.notices)


def test_disaggregated_fleets_grow_in_their_ratio():
    one = Deployment(SERVER, 3, prefill_replicas=1)
    found = plan_day(RateProfile([2.0, 14.0]), WORKLOAD, one, ["ttft_p99<3s"], requests=500, most_requests=1_000)
    assert all(period.replicas % 3 == 0 and period.met for period in found.periods)
    assert found.periods[1].replicas > found.periods[0].replicas


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.01, 50), min_size=1, max_size=30), st.sampled_from([60.0, 600.0, 3600.0]), st.integers(0, 9)
)
def test_rates_counted_from_arrivals_are_those_that_made_them(rates, interval_s, seed):
    """Arrivals evenly spaced within each interval, the last one reaching to its end."""
    counts = np.maximum(np.round(np.array(rates) * 20), 1).astype(int)
    times = np.concatenate([(place + np.arange(n) / n) * interval_s for place, n in enumerate(counts)])
    workload = ps.Workload.from_arrays(times, np.ones(times.size, int), np.ones(times.size, int), seed=seed)
    if times[-1] == 0:
        return
    found = RateProfile.of_trace(workload, interval_s=interval_s)
    assert found.rates[:-1] == pytest.approx(counts[: found.rates.size - 1] / interval_s)


def test_several_days_of_a_trace_are_averaged_by_hour():
    hours = np.arange(48)
    counts = np.where(hours % 24 < 12, 10, 40) + np.where(hours < 24, 0, 20)
    times = np.concatenate([(hour + np.arange(n) / n) * 3600 for hour, n in zip(hours, counts, strict=True)])
    found = RateProfile.of_trace(ps.Workload.from_arrays(times, np.ones(times.size, int), np.ones(times.size, int)))
    assert found.rates[:23] * 3600 == pytest.approx(np.where(np.arange(23) < 12, 20, 50))
    assert found.rates.size == 24


@pytest.mark.skipif(not SHARED.exists(), reason="the traces are not here")
def test_real_traces_have_profiles():
    week = RateProfile.of_trace(ps.read_trace(SHARED / "ragpulse_0_trace.jsonl.gz"))
    assert week.rates.size == 24
    assert week.rates.min() < week.rates.mean() / 2, "an application of an office sleeps at night"
    code = ps.read_trace(SHARED / "azure_llm_2023_code.csv")
    minutes = RateProfile.of_trace(code, interval_s=300.0)
    assert minutes.rates.mean() == pytest.approx(code.rate, rel=0.1)
    assert RateProfile.of_trace(code).rates.size == 1


def test_rates_are_read_from_a_file_by_hour(tmp_path):
    (tmp_path / "rates.csv").write_text("hour,rate\n0,2\n0.5,3\n1.0,4.5\n")
    found = profile("rates.csv", WORKLOAD, tmp_path)
    assert found.rates.tolist() == [2, 3, 4.5]
    assert found.interval_s == 1800
    assert found.with_peak(9.0).rates.tolist() == [4, 6, 9]
    assert found.clock(1) == "00:30"


def test_intervals_of_a_file_without_hours_are_as_long_as_asked(tmp_path):
    (tmp_path / "plain.csv").write_text("rate\n2\n3\n")
    (tmp_path / "hours.csv").write_text("hour,rate\n0,2\n1,3\n")
    aim, one = Aim.of(["ttft_p99<2s"], requests=500), Deployment(SERVER, 1)

    def interval(**given):
        day = read_day({"check": False, **given}, WORKLOAD, tmp_path)
        return day_of(day, WORKLOAD, one, aim, range(1, 9)).profile.interval_s

    assert interval(rates="plain.csv", interval_minutes=15) == 900
    assert interval(rates="plain.csv") == 3600
    assert interval(rates="hours.csv", interval_minutes=60) == 3600
    with pytest.raises(ps.InputError, match="steps of 60 minutes, but intervals of 30 minutes") as error:
        interval(rates="hours.csv", interval_minutes=30)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", ["nan", "inf", "", "-1", "fast"])
def test_a_rate_that_is_none_is_named_with_its_row(tmp_path, bad):
    (tmp_path / "rates.csv").write_text(f"hour,rate\n0,1\n1,{bad}\n2,3\n")
    with pytest.raises(ps.InputError, match="line 3 has the rate "):
        RateProfile.read(tmp_path / "rates.csv")


def test_a_day_too_long_to_simulate_is_planned_without():
    """Requests of whole days would not fit into memory; the fleet is known all the same."""
    quick = ps.Server(ps.Affine(c=1e-4, a=1e-7), token_budget=4_096)
    workload = ps.Workload.poisson(1.0, 10, 2)
    found = plan_day(profile([400.0] * 24, workload), workload, Deployment(quick, 1), ["ttft_p50<1s"], requests=1_000)
    assert found.check is None
    assert any(notice.startswith("whole days are not simulated: 1 days have") for notice in found.notices)


def test_a_plan_with_a_day_is_for_its_highest_rate(tmp_path):
    text = "{workload: {poisson: {rate: 1.0, prompt: 300, output: 50}}, server: {token_budget: 256, "
    text += "batch_time: {affine: {c_ms: 10, a_ms_per_token: .1}}}, "
    text += "plan: {targets: [ttft_p99<2s], day: [2, 8, 4], search: {replicas: 8}}}"
    (tmp_path / "day.yaml").write_text(text)
    asked = read_plan(tmp_path / "day.yaml")
    assert (asked.workload.rate, asked.scenario.workload.rate) == (8.0, 1.0)
    assert asked.workload.notices == ("the plan is for the highest rate of the day, 8 requests/s from 01:00",)


def test_a_scenario_says_what_a_day_is(tmp_path):
    aim = Aim.of(["ttft_p99<2s"], requests=1_000)
    given = {"rates": [1.0, 2.0], "peak_rate": 8.0, "interval_minutes": 30, "startup_minutes": 5, "check": False}
    fleet = Deployment(SERVER, 1)
    found = day_of(read_day(given, WORKLOAD, tmp_path), WORKLOAD, fleet, aim, range(1, 9))
    assert found.profile.rates.tolist() == [4.0, 8.0]
    assert (found.profile.interval_s, found.startup_s) == (1800.0, 300.0)
    recorded = dataclasses.replace(WORKLOAD.with_rate(2.0), name="poisson")
    for wrong in ("trace", "nothing.csv", {"rates": [1], "trace": "a.csv"}, {}, 7j, {"hours": [1]}, [1, True]):
        with pytest.raises(ps.InputError) as error:
            day_of(read_day(wrong, recorded, tmp_path), recorded, fleet, aim, range(1, 9))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("rates", [[], [0.0, 0.0], [-1.0], [float("nan")], ["a"], [[1.0]], [1e9]])
def test_rates_that_are_none_are_refused_in_one_line(rates):
    with pytest.raises(ps.InputError) as error:
        RateProfile(rates)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "speed\n1\n", "rate\nfast\n", "hour,rate\n0,1\n1,2\n3,4\n", "\x00"])
def test_files_without_rates_are_refused_in_one_line(tmp_path, text):
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(ps.InputError, match=r"rates\.csv") as error:
        RateProfile.read(tmp_path / "rates.csv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"most_replicas": 0}, {"least_replicas": 99}, {"startup_minutes": -1}])
def test_a_fleet_that_cannot_be_is_refused(wrong):
    with pytest.raises(ps.InputError):
        planned(**wrong)
