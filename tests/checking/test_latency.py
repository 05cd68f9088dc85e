"""Intervals hold the values of the steady state as often as they say; runs too short for that are told apart."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.checking.batch_means import DOUBT, LEAST_REQUESTS, RELAXATIONS, Batches, Waits, relaxation_requests
from penstock.checking.enough_requests import estimate
from penstock.checking.latency import steady_state
from penstock.checking.targets import Estimate, Target, share
from penstock.errors import InputError
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.simulation.simulate import RunOptions, run_server
from penstock.words import LIMITED, METRICS

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
CODE = ps.Workload.preset("azure-code").with_rate(1.2, arrivals="poisson")  # load 0.745
SARATHI = ps.Server(TP1, 512)
TOKENS = 20  # mean prompt of the queue below
ONE_BY_ONE = ps.Server(ps.Affine(c=0.0, a=1 / TOKENS), 1)  # a token at a time, first come first served


def queue(rho: float, seed: int) -> ps.Workload:
    """Geometric prompts and one output token: M/M/1 but for the size of a token; its times to first token are known."""
    return ps.Workload.poisson(rho, ps.Geometric(TOKENS), 1, seed=seed)


def exact(rho: float) -> dict[str, float]:
    """Mean and percentiles of the time in the queue above, in mean service times.

    It is a geometric number of tokens with mean TOKENS / (1 - rho), less the part of the service in progress that is
    over: half a token for each of the geometrically many terms of Pollaczek-Khinchine (exact for the mean).
    """
    mean = 1 / (1 - rho) - rho / (1 - rho) / (2 * TOKENS)
    tokens = {
        p: math.log(1 - share) / math.log(1 - (1 - rho) / TOKENS)
        for p, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    return {"mean": mean} | {p: n / TOKENS * (1 - rho / (2 * TOKENS)) for p, n in tokens.items()}


def held(rho: float, requests: int, seeds: int) -> dict[str, int]:
    """Count the runs whose interval held the exact value; one without an upper end holds all above the lower."""
    known, count = exact(rho), dict.fromkeys(exact(rho), 0)
    for seed in range(seeds):
        run = ps.simulate(queue(rho, seed), ONE_BY_ONE, requests=requests)
        found = steady_state(run, rho=rho).estimates["ttft_s"]
        for name, value in known.items():
            low, high = found[name].low, found[name].high
            count[name] += (low is None or low <= value) and (high is None or value <= high)
    return count


def test_nine_intervals_of_ten_at_least_hold_the_exact_value() -> None:
    assert min(held(rho=0.7, requests=5_000, seeds=30).values()) >= 27


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.5, 0.7, 0.8, 0.9])
def test_nine_intervals_of_ten_hold_the_exact_value_at_any_load(rho: float) -> None:
    assert min(held(rho, requests=20_000, seeds=200).values()) >= 180


def test_constant_service_has_the_mean_of_pollaczek_and_khinchine() -> None:
    """M/D/1: 1 + rho / (2 (1 - rho)) service times."""
    server, rho = ps.Server(ps.Affine(c=0.0, a=1.0), 1), 0.8
    inside = 0
    for seed in range(20):
        run = ps.simulate(ps.Workload.poisson(rho, 1, 1, seed=seed), server, requests=10_000)
        mean = steady_state(run).estimates["ttft_s"]["mean"]
        inside += mean.low is not None and mean.high is not None and mean.low <= 1 + rho / (2 * (1 - rho)) <= mean.high
    assert inside >= 18


@pytest.mark.slow
def test_intervals_of_a_real_workload_hold_what_a_long_run_finds() -> None:
    long = ps.simulate(CODE.with_seed(10**6), SARATHI, requests=4_000_000, record="summary").latency()
    known = {row["metric"]: row for row in long.iter_rows(named=True)}
    count = {(metric, s): 0 for metric in METRICS for s in ("mean", "p50", "p90", "p95", "p99")}
    for seed in range(100):
        _, found = estimate(CODE.with_seed(seed), SARATHI, requests=10_000)
        for metric, s in count:
            e, value = found.estimates[metric][s], known[metric][s]
            # a summary rounds quantiles by 0.05%
            count[metric, s] += (e.low or 0) <= value * 1.0005 and value <= (e.high or math.inf) * 1.0005
    assert min(count.values()) >= 90


def test_a_run_too_short_for_its_load_says_so_and_bounds_nothing_from_above() -> None:
    run = ps.simulate(queue(0.95, 1), ONE_BY_ONE, requests=2_000)
    found = steady_state(run, rho=0.95)
    assert found.too_short
    assert any("relaxation time" in notice for notice in found.notices)
    assert all(e.high is None for of in found.estimates.values() for e in of.values())


def test_a_run_as_long_as_the_notice_asks_for_is_long_enough() -> None:
    long_enough = math.ceil(1.3 * DOUBT * RELAXATIONS * relaxation_requests(0.8, 2.0))  # the variability is measured
    found = steady_state(ps.simulate(queue(0.8, 0), ONE_BY_ONE, requests=long_enough), rho=0.8)
    assert not found.too_short
    assert not any("relaxation" in notice for notice in found.notices)


@pytest.mark.parametrize("rho", [0.9, 0.95, 0.99])
def test_the_relaxation_time_is_that_of_mm1_in_heavy_traffic(rho: float) -> None:
    """M/M/1 relaxes in 1 / (1 - sqrt(rho))^2 service times, rho as many requests."""
    assert relaxation_requests(rho, 2.0) == pytest.approx(rho / (1 - math.sqrt(rho)) ** 2, rel=2 * (1 - rho))


def test_without_a_steady_state_there_is_no_upper_bound_and_no_longer_run() -> None:
    run, found = estimate(queue(1.1, 0), ONE_BY_ONE, requests=1_000, precision=0.05)
    assert run.arrived == 1_000
    assert found.estimates["ttft_s"]["mean"].high is None
    assert any("no steady state" in notice for notice in found.notices)


def test_a_start_below_the_rest_is_removed() -> None:
    noise = np.random.default_rng(0).normal(size=5_000)
    removed, goes_on = intervals.warmup(noise + np.minimum(np.arange(5_000) / 100, 10))
    assert 800 <= removed <= 1_200
    assert not goes_on


def test_a_burst_at_the_start_is_no_warmup() -> None:
    noise = np.random.default_rng(0).normal(size=5_000)
    noise[:1_000] += 10
    assert intervals.warmup(noise) == (0, False)


def test_a_warmup_over_more_than_half_of_the_run_is_noticed() -> None:
    rising = np.random.default_rng(0).normal(size=5_000) + np.arange(5_000)
    assert intervals.warmup(rising) == (2_500, True)


def test_a_quantile_on_a_value_that_many_samples_share_is_that_value() -> None:
    rng = np.random.default_rng(0)
    batches = [Distribution.of(rng.choice([1, 5], size=500, p=[0.3, 0.7])) for _ in range(20)]
    whole = intervals.merged(batches)
    assert intervals.quantile_interval(batches, whole, 0.99, 0.95)[:2] == (5, 5)
    assert intervals.quantile_interval(batches, whole, 0.3, 0.95)[:2] == (1, 5)


def bursty(length: float, rng: np.random.Generator, *, samples: int = 20_000) -> np.ndarray:
    """Return samples that are 0 but for a tenth, in bursts of a mean length, each of one exponential height."""
    cycles = int(0.2 * samples / length) + 100
    lengths = np.stack([rng.geometric(1 / 9 / length, cycles), rng.geometric(1 / length, cycles)], axis=1)
    heights = np.stack([np.zeros(cycles), rng.exponential(1e6, cycles)], axis=1)
    values = np.repeat(heights.ravel(), lengths.ravel()).astype(np.int64)
    start = rng.integers(values.size - samples)
    return values[start : start + samples]


@pytest.mark.parametrize(("length", "most"), [(2, 100), (10, 80), (20, 25), (100, 2)])
def test_an_upper_end_needs_bursts_and_then_holds(length: float, most: int) -> None:
    """The 99th percentile is ln 10 mean heights; beyond it are 200 samples, in 200 / length bursts on average."""
    rng = np.random.default_rng(round(length))
    ends = []
    for _ in range(100):
        parts = [Distribution.of(part) for part in np.split(bursty(length, rng), 20)]
        ends.append(intervals.quantile_interval(parts, intervals.merged(parts), 0.99, 0.95).high)
    given_ends = [end for end in ends if end is not None]
    assert len(given_ends) <= most
    assert sum(end < math.log(10) * 1e6 for end in given_ends) <= max(0.05 * len(given_ends), 1)
    if length == 2:
        assert len(given_ends) >= 95


def test_bursts_of_unequal_length_count_less() -> None:
    """100 bursts at random; geometric lengths count by E[T]^2 / E[T^2], about a half."""
    rng = np.random.default_rng(0)
    known = []
    for _ in range(40):
        sums = rng.negative_binomial(rng.poisson(5, 20) + 1e-9, 0.01)  # of some five geometric lengths a batch
        error = intervals.standard_error((sums - sums.mean()) / 10_000)
        known.append(intervals.effective_bursts(sums.mean() / 10_000, error))
    assert 40 <= np.median(known) <= 60


def test_few_bursts_of_waits_raise_the_upper_end_of_e2e_or_take_it() -> None:
    rng = np.random.default_rng(0)
    parts = [Distribution.of(rng.exponential(1e6, 1_000).astype(np.int64)) for _ in range(20)]
    whole = intervals.merged(parts)
    alone = intervals.quantile_interval(parts, whole, 0.99, 0.95)
    few = intervals.quantile_interval(parts, whole, 0.99, 0.95, 4)
    none = intervals.quantile_interval(parts, whole, 0.99, 0.95, 1)
    assert alone.low == few.low == none.low
    assert alone.high is not None
    assert few.high is not None
    assert few.high > alone.high
    assert none.high is None
    assert (few.bursts, none.bursts) == (4, 1)


def test_more_confidence_needs_more_bursts() -> None:
    needed = [intervals.bursts_needed(confidence, 20) for confidence in (0.9, 0.95, 0.99, 0.999)]
    assert needed == sorted(set(needed))
    assert needed[1] == 10


def test_a_percentile_without_an_upper_end_says_how_many_bursts_were_seen_and_needed() -> None:
    found = steady_state(ps.simulate(queue(0.8, 0), ONE_BY_ONE, requests=5_000), rho=0.8)
    p99 = found.estimates["ttft_s"]["p99"]
    assert not found.too_short
    assert p99.high is None
    assert p99.bursts is not None
    assert p99.bursts < 10
    (notice,) = [notice for notice in found.notices if "separate bursts of long latencies" in notice]
    assert f"ttft p99 ({max(int(p99.bursts), 1)} burst" in notice
    assert "about 10 separate bursts of long latencies; simulate" in notice


def test_in_heavy_traffic_as_many_bursts_are_seen_as_are_expected() -> None:
    """A run of 200,000 requests, so that the count is known to a factor of two."""
    found = steady_state(ps.simulate(queue(0.9, 1), ONE_BY_ONE, requests=200_000))
    for statistic in ("p90", "p95"):
        bursts = found.estimates["ttft_s"][statistic].bursts
        assert bursts is not None
        expected = (1 - share(statistic)) * found.jobs / relaxation_requests(0.9, 2.0)
        assert 0.5 <= bursts / expected <= 2


@pytest.mark.parametrize("runs", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_few_upper_ends_of_the_mean_wait_lie_below_the_exact_one_near_saturation(runs: int) -> None:
    """About 30 relaxation times: batches alone put 7% of the upper ends below it, at 2.5% nominal."""
    rho, ends = 0.9, []
    for seed in range(runs):
        found = steady_state(ps.simulate(queue(rho, seed), ONE_BY_ONE, requests=10_000), rho=rho)
        ends.append(found.estimates["ttft_s"]["mean"].high)
    told = [end for end in ends if end is not None]
    assert len(told) >= 0.9 * runs
    assert sum(end < exact(rho)["mean"] for end in told) <= 0.04 * len(told)


def waiting(relaxations: float, spread: float) -> Waits:
    """20 batches of a mean wait of 10,000 ticks above the least, whose standard error is a share of it."""
    means = 10_000 * (1 + spread * np.sqrt(20) * np.tile([1, -1], 10) / np.sqrt(20 / 19))
    parts = [Distribution.of(np.array([1, 2 * int(mean) + 1])) for mean in means]
    return Waits(Batches.of(parts), relaxations)


def test_a_run_whose_waits_spread_less_than_in_heavy_traffic_was_lucky_with_all_its_means() -> None:
    """Over 100 relaxation times a mean wait has an error of a tenth of it, t = 2.093 errors below the true one."""
    assert waiting(100 * DOUBT, 0.02).luck(0.95) == pytest.approx(1 / (10 - 2.093) / 0.02, rel=1e-3)
    assert waiting(100 * DOUBT, 0.2).luck(0.95) == 1
    assert waiting(math.inf, 0.02).luck(0.95) == 1  # nothing is known of the load
    assert waiting(4 * DOUBT, 0.02).luck(0.95) == math.inf
    assert waiting(100, 0.02).most_bursts("p99", 0.95) == pytest.approx(1)
    assert waiting(math.inf, 0.02).most_bursts("p99", 0.95) > 2


def test_a_mean_that_may_be_lucky_has_a_higher_upper_end_or_none_and_the_same_lower_end() -> None:
    samples = waiting(100, 0.02).batches
    plain, lucky, unknown = (samples.estimate("mean", 0.95, 1e-9, False, luck=luck) for luck in (1, 3, math.inf))
    assert plain.low == lucky.low == unknown.low
    assert plain.high is not None
    assert lucky.high is not None
    assert plain.value is not None
    assert lucky.high - plain.value == pytest.approx(3 * (plain.high - plain.value))
    assert unknown.high is None


@pytest.mark.parametrize("policy", ["sarathi", "vllm-vanilla"])
def test_a_run_in_sections_is_the_run_and_its_gaps_add_up(policy: str) -> None:
    server = ps.Server(TP1, 512, policy=policy)
    run = run_server(CODE, server, 3_000, RunOptions(drain=True), gap_sections=40)
    whole = ps.simulate(CODE, server, requests=3_000)
    assert run.requests.equals(whole.requests)
    assert run.series.equals(whole.series)
    assert len(run.gap_sections) == 40
    together = intervals.merged(run.gap_sections)
    np.testing.assert_array_equal(together.values, whole.gaps.values)
    np.testing.assert_array_equal(together.counts, whole.gaps.counts)
    assert together.total == whole.gaps.total


def test_the_mean_time_between_tokens_needs_no_sections_but_its_percentiles_do() -> None:
    run = ps.simulate(CODE, SARATHI, requests=5_000)
    found = steady_state(run)
    whole, tbt = run.latency().row(1, named=True), found.estimates["tbt_s"]
    assert found.warmup_jobs < 100
    assert tbt["mean"].value == pytest.approx(whole["mean"], rel=0.01)
    assert tbt["mean"].low is not None
    assert tbt["mean"].high is not None
    assert tbt["p99"] == Estimate(pytest.approx(whole["p99"]))


def test_a_quick_estimate_is_a_run_of_20_000_requests_and_the_same_each_time() -> None:
    found = ps.estimate_latency(CODE, SARATHI)
    assert found == ps.estimate_latency(CODE, SARATHI)
    assert found != ps.estimate_latency(CODE.with_seed(5), SARATHI)
    assert found.jobs + found.warmup_jobs == 20_000
    run = ps.simulate(CODE, SARATHI, requests=20_000)
    mean = steady_state(run).estimates["e2e_s"]["mean"].value
    assert found.estimates["e2e_s"]["mean"].value == mean


def test_a_quick_estimate_of_one_request_after_another_is_the_time_of_its_batches() -> None:
    """A prompt of 1,000 in batches of 512, then 9 decodes alone."""
    found = ps.estimate_latency(ps.Workload.deterministic(0.01, 1_000, 10), SARATHI).estimates
    prompt = float(TP1(512) + TP1(488))
    assert found["ttft_s"]["mean"].value == pytest.approx(prompt, rel=1e-4)
    assert found["tbt_s"]["mean"].value == pytest.approx(float(TP1(1)), rel=1e-4)
    assert found["e2e_s"]["mean"].value == pytest.approx(prompt + 9 * float(TP1(1)), rel=1e-4)


@pytest.mark.parametrize("limits", [{}, {"kv_blocks": 450, "max_batch_size": 30, "policy": "vllm"}])
def test_a_quick_estimate_without_a_steady_state_says_so_and_has_no_upper_ends(limits: dict[str, Any]) -> None:
    """Overload that a theorem knows of, and one that only runs show."""
    rate = 6.0 if limits else 20.0
    found = ps.estimate_latency(ps.Workload.poisson(rate, 129, 112), ps.Server(TP1, 512, **limits))
    assert found.too_short
    assert found.notices
    assert all(of["mean"].high is None for of in found.estimates.values())


def test_a_quick_estimate_of_a_recording_is_of_its_first_requests() -> None:
    recorded = ps.Workload.from_arrays(np.arange(500.0), np.full(500, 100), np.full(500, 5))
    found = ps.estimate_latency(recorded, SARATHI)
    assert found.jobs + found.warmup_jobs == 500


def test_doubling_stops_once_every_mean_is_precise() -> None:
    run, found = estimate(CODE, SARATHI, requests=1_000, precision=0.1, most_requests=64_000)
    assert found.precision <= 0.1
    assert 1_000 < run.arrived < 64_000
    assert found.confidence == 0.95


def test_a_spent_budget_is_told_with_what_was_not_reached() -> None:
    hard = Target.parse("e2e_p50<3.4s")  # close to what a long run finds
    run, found = estimate(CODE, SARATHI, requests=1_000, precision=0.001, targets=[hard], most_requests=3_000)
    assert run.arrived == 3_000
    assert (
        "3,000 requests were not enough to know every mean to 0.001 of its value or to decide e2e_p50<3.4s"
        in found.notices
    )


def test_looking_several_times_widens_each_interval() -> None:
    """Bonferroni: five looks at 95% together are 99% each."""
    easy = Target.parse("ttft_p50<100s")
    _, once = estimate(CODE, SARATHI, requests=5_000, confidence=0.99)
    _, often = estimate(CODE, SARATHI, requests=5_000, targets=[easy])
    mean = once.estimates["ttft_s"]["mean"]
    assert often.estimates["ttft_s"]["mean"].low == pytest.approx(mean.low)
    assert often.estimates["ttft_s"]["mean"].high == pytest.approx(mean.high)


def test_targets_are_met_missed_or_undecided() -> None:
    targets = [Target.parse(text) for text in ("ttft_p90<60s", "e2e_mean<1s", "tbt_p99.9<1s")]
    _, found = estimate(CODE, SARATHI, requests=10_000, targets=targets)
    assert [found.judge(target) for target in targets] == ["met", "missed", "met"]
    target = Target.parse("ttft_p99<2s")
    assert target.judge(Estimate(1.9, 1.5, 2.5)) == "undecided"
    assert target.judge(Estimate(1.0, 0.5, None)) == "undecided"
    assert target.judge(Estimate(5.0, 2.5, None)) == "missed"
    assert target.judge(Estimate(None)) == "undecided"
    with pytest.raises(InputError, match=r"ttft_p12<1s needs the p12, .* give the target"):
        found.judge(Target.parse("ttft_p12<1s"))


def test_the_time_per_output_token_is_that_of_each_request_as_benchmarks_define_it() -> None:
    """(last token - first token) / (output tokens - 1), whatever the length; one token has none."""
    server, targets = ps.Server(ps.Affine(0.01, 1e-4), 256, 32), [Target.parse("tpot_p99<50ms")]
    workload = ps.Workload.poisson(4.0, 100, ps.Uniform(1, 40))
    run = ps.simulate(workload, server, requests=4_000, drain=True)
    rows = run.rows.where(run.rows.output_tokens > 1)  # type: ignore[union-attr]
    each = (rows.finish - rows.first_token) * run.tick_s / (rows.output_tokens - 1)
    found = steady_state(run, targets=targets)
    used = np.flatnonzero(run.rows.output_tokens[found.warmup_jobs :] > 1)  # type: ignore[union-attr]
    assert found.estimates["tpot_s"]["mean"].value == pytest.approx(each[-used.size :].mean(), rel=1e-6)
    assert found.estimates["tpot_s"]["p99"].value == pytest.approx(np.quantile(each[-used.size :], 0.99), rel=0.01)
    assert "tpot_s" not in steady_state(run).estimates
    network = ps.simulate(ps.Network.single(workload, server), jobs=4_000)
    alone = steady_state(network, targets=targets).estimates["tpot_s"]  # type: ignore[arg-type]
    assert alone["mean"].value == pytest.approx(found.estimates["tpot_s"]["mean"].value, rel=0.02)


def test_a_recording_is_never_run_beyond_its_end() -> None:
    drawn = CODE.requests(3_000)
    recording = ps.Workload.from_arrays(*drawn)
    run, found = estimate(recording, SARATHI, requests=1_000, precision=0.001)
    assert run.arrived == 3_000
    assert any("not enough" in notice for notice in found.notices)
    assert estimate(recording, SARATHI)[0].arrived == 3_000


def test_requests_behind_the_first_unfinished_one_are_left_out() -> None:
    run = ps.simulate(CODE, SARATHI, until=2_000.0)
    assert run.unfinished > 0
    assert run.rows is not None
    found = steady_state(run)
    first = int(np.flatnonzero(run.rows.finish < 0)[0])
    assert first - 20 < found.jobs + found.warmup_jobs <= first


def test_a_few_requests_have_values_but_no_intervals() -> None:
    found = steady_state(ps.simulate(CODE, SARATHI, requests=LEAST_REQUESTS - 1))
    assert found.too_short
    assert found.precision == math.inf
    assert all(e.value is not None and e.low is None and e.high is None for e in found.estimates["ttft_s"].values())
    assert any("too few" in notice for notice in found.notices)


def test_a_metric_without_samples_has_no_value() -> None:
    found = steady_state(ps.simulate(queue(0.5, 0), ONE_BY_ONE, requests=1_000))
    assert found.estimates["tbt_s"]["p99"] == Estimate(None)
    assert found.precision < math.inf


def test_the_json_form_has_an_interval_around_each_value() -> None:
    _, found = estimate(CODE, SARATHI, requests=5_000)
    document = json.loads(json.dumps(found.as_dict()))
    for metric in METRICS:
        for name, (low, high) in document["intervals"][metric].items():
            value = document["latency"][metric][name]
            assert low is None or low <= value
            assert high is None or value <= high
    assert document["requests"] + document["warmup_requests"] == 5_000


def test_what_cannot_be_estimated_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="record='requests'"):
        steady_state(ps.simulate(CODE, SARATHI, requests=1_000, record="summary"))
    with pytest.raises(InputError, match="never ends"):
        estimate(CODE, SARATHI)
    with pytest.raises(InputError, match="precision is 5, but must be a number"):
        estimate(CODE, SARATHI, requests=1_000, precision=5)
    with pytest.raises(InputError, match="confidence is 95"):
        estimate(CODE, SARATHI, requests=1_000, confidence=95)
    with pytest.raises(InputError, match="most_requests is 10"):
        estimate(CODE, SARATHI, requests=1_000, most_requests=10)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ttft_p99<2s", Target("ttft_s", "p99", 2.0)),
        (" TBT_s_mean <= 200 ms ", Target("tbt_s", "mean", 0.2)),
        ("e2e_p99.9 < 1.5e3us", Target("e2e_s", "p99.9", 0.0015)),
        ("e2e_p050<1s", Target("e2e_s", "p50", 1.0)),
        ("tpot_p99<50ms", Target("tpot_s", "p99", 0.05)),
    ],
)
def test_a_target_is_read_as_it_is_written(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@given(
    st.sampled_from(list(LIMITED)),
    st.one_of(st.just("mean"), st.integers(1, 999).map(lambda tenths: f"p{tenths / 10:g}")),
    st.floats(1e-9, 1e9),
)
def test_a_target_can_be_written_and_read_again(metric: str, statistic: str, limit_s: float) -> None:
    target = Target(metric, statistic, limit_s)
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ttft_p99>2s", "upper limits"),
        ("ttft_p99=2s", "no '<'"),
        ("ttff_p99<2s", "did you mean 'ttft'"),
        ("<2s", "unknown metric"),
        ("ITL_p99<100ms", "which is called tbt here; write it like tbt_p99<100ms"),
        ("ttft<2s", "mean or a percentile"),
        ("ttft_s<2s", "mean or a percentile"),
        ("ttft_max<2s", "unknown statistic 'max'"),
        ("ttft_p100<2s", "between p0 and p100"),
        ("ttft_p0<2s", "between p0 and p100"),
        ("ttft_p99<2", "no unit"),
        ("ttft_p99<2min", "the unit 'min'"),
        ("ttft_p99<", "no number"),
        ("ttft_p99<soon", "no number"),
        ("ttft_p99<1.2.3s", "no number"),
        ("ttft_p99<0s", "no latency is below 0"),
        ("ttft_p99<-1s", "no latency is below 0"),
        ("ttft_p99<1e999s", "needs no limit"),
    ],
)
def test_a_target_that_cannot_be_read_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        Target.parse(text)
    assert "\n" not in str(refused.value)
    assert repr(text) in str(refused.value)


def test_a_percentile_far_below_its_limit_is_bounded_by_the_share_of_samples_within_it() -> None:
    """Too few bursts lie beyond p99 to bound it from above, and enough samples within twice of it to say more."""
    server = ps.Server(ps.Affine(0.01, 1e-4), 512, 64)
    workload = ps.Workload.poisson(9.0, ps.Geometric(300, max=3000), ps.Geometric(60, max=600), seed=4)
    run = ps.simulate(workload, server, requests=4_000)
    usual = ps.steady_state(run, rho=0.5).estimates["ttft_s"]["p99"]
    assert usual.value is not None
    assert usual.low is not None
    assert usual.high is None
    far, near, below = (ps.Target("ttft_s", "p99", times * usual.value) for times in (3.0, 1.001, 0.9))
    bounded = {target: ps.steady_state(run, targets=[target], rho=0.5) for target in (far, near, below)}
    assert bounded[far].judge(far) == "met"
    assert bounded[far].estimates["ttft_s"]["p99"].high == far.limit_s
    assert bounded[near].judge(near) == "undecided"
    assert bounded[below].judge(below) in ("undecided", "missed")
    assert ps.steady_state(run, targets=[far]).estimates["ttft_s"]["p99"].high is None, "rho is not known"
