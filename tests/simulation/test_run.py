"""A run's tables and figures follow from what happened."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.simulation.distribution import LEADING_BITS, Distribution, Fold, exact_sum

ONE_SECOND = ps.PiecewiseConstant(c=1.0, a=0.0, b0=1)


def two_requests() -> ps.Run:
    """Two requests of 4 + 3 tokens at 0 s and 0.5 s, batches of 1 s and at most 4 tokens."""
    recording = ps.Workload.from_arrays([0.0, 0.5], [4, 4], [3, 3])
    return ps.simulate(recording, ps.Server(ONE_SECOND, 4), record="batches")


def test_a_run_worked_by_hand() -> None:
    """0 s: prompt 1. 1 s: decode 1, 3 tokens of prompt 2. 2 s: decode 1, prompt 2. 3 s and 4 s: decode 2."""
    run = two_requests()
    assert run.batches["prefill_tokens"].to_list() == [4, 3, 1, 0, 0]
    assert run.batches["decode_tokens"].to_list() == [0, 1, 1, 1, 1]
    assert run.batches["requests"].to_list() == [1, 2, 2, 1, 1]
    assert (run.requests["first_token_ns"] / 1e9).to_list() == [1.0, 3.0]
    assert (run.requests["finish_ns"] / 1e9).to_list() == [3.0, 5.0]
    latency = {row["metric"]: row for row in run.latency().iter_rows(named=True)}
    assert latency["ttft_s"]["mean"] == (1.0 + 2.5) / 2
    assert latency["e2e_s"]["mean"] == pytest.approx((3.0 + 4.5) / 2)
    assert latency["tbt_s"]["p99"] == 1.0
    assert (run.seconds, run.utilisation, run.tokens, run.tokens_per_s) == (5.0, 1.0, 12, 12 / 5)


def test_the_series_counts_before_a_batch_is_formed_and_after_what_ends_then() -> None:
    run = two_requests()
    at = {row["time_s"]: row for row in run.series.iter_rows(named=True)}
    second = min(at, key=lambda time: abs(time - 1.0))
    assert abs(second - 1.0) < 0.01
    before, after = (max(t for t in at if t < 1.0), min(t for t in at if t > 1.0))
    assert (at[before]["requests"], at[before]["unprocessed_tokens"], at[before]["uncompleted_tokens"]) == (2, 8, 12)
    assert (at[after]["requests"], at[after]["unprocessed_tokens"], at[after]["uncompleted_tokens"]) == (2, 4, 8)
    assert run.series.height <= 2000
    steps = np.diff(run.series_rows[:, 0])
    assert (steps == steps[0]).all()


def test_compositions_add_up_to_the_busy_time_and_to_the_batches() -> None:
    workload = ps.Workload.poisson(rate=2.0, prompt=ps.Geometric(500), output=ps.Geometric(100))
    run = ps.simulate(workload, ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512), requests=2000)
    table = run.compositions
    assert table["batches"].sum() == run.n_batches
    assert table["seconds"].sum() == pytest.approx(run.busy * run.tick_s)
    assert table["share"].sum() == pytest.approx(1.0)
    tokens = table["batches"] * (table["prefill_tokens"] + table["decode_tokens"])
    assert tokens.sum() == run.tokens


def test_growth_is_the_slope_of_the_backlog_while_requests_arrive() -> None:
    """Twice the capacity: half of what arrives is left over."""
    server = ps.Server(ps.Affine(c=0.0, a=0.01), 50, convention="paper")
    run = ps.simulate(ps.Workload.deterministic(rate=2.0, prompt=50, output=50), server, until=10_000.0)
    assert run.growth_tokens_per_s == pytest.approx(100.0, rel=1e-3)


def test_a_run_too_short_for_a_slope_has_none() -> None:
    run = ps.simulate(ps.Workload.from_arrays([0.0], [4], [1]), ps.Server(ONE_SECOND, 4))
    assert np.isnan(run.growth_tokens_per_s)
    latency = run.latency()
    assert latency.filter(pl.col("metric") == "tbt_s")["mean"].to_list() == [None]


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_of_a_distribution_are_those_of_its_samples(samples: list[int], share: float) -> None:
    distribution = Distribution.of(np.array(samples))
    assert distribution.quantile(share) == pytest.approx(np.quantile(samples, share), rel=1e-12, abs=1e-6)
    assert distribution.mean == pytest.approx(np.mean(samples), rel=1e-12)


@given(st.lists(st.integers(0, 2**61), max_size=50))
def test_sums_do_not_overflow(samples: list[int]) -> None:
    assert exact_sum(np.array(samples, np.int64)) == sum(samples)


@pytest.mark.parametrize("policy", ps.POLICIES)
@pytest.mark.parametrize("budget", [64, 4096])
def test_every_composition_is_counted_as_often_as_batches_had_it(policy: str, budget: int) -> None:
    """Also those beyond the compositions that have a counter of their own."""
    affine = ps.Affine(c=0.01, a=0.0001)
    workload = ps.Workload.poisson(rate=20.0, prompt=ps.Geometric(300), output=ps.Geometric(30))
    run = ps.simulate(workload, ps.Server(affine, budget, policy=policy), requests=500, record="batches", drain=True)
    pairs = ["prefill_tokens", "decode_tokens"]
    counted = run.batches.group_by(pairs).len("batches").sort(pairs)
    assert run.compositions.select(*pairs, "batches").sort(pairs).cast(pl.Int64).equals(counted.cast(pl.Int64))
    if budget == 4096 and policy != "fastertransformer":
        assert (counted["prefill_tokens"] * (budget + 1) + counted["decode_tokens"]).max() > 2**17  # type: ignore[operator]


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 62)), min_size=1, max_size=50))
def test_a_fold_keeps_the_leading_digits_of_spans_of_any_length_and_their_exact_sum(
    spans: list[tuple[int, int]],
) -> None:
    begin = np.array([start for start, _ in spans])
    length = [min((1 << digits) + start % (1 << digits), 2**62) for start, digits in spans]
    fold = Fold()
    fold.add(begin, begin + np.array(length))
    fold.add(begin, np.full(begin.size, -1))  # these have not ended
    folded = fold.distribution
    assert folded.total == sum(length)
    assert folded.size == len(length)
    kept = np.repeat(folded.values, folded.counts).tolist()
    for value, exact in zip(kept, sorted(length), strict=True):
        assert abs(value - exact) <= exact >> LEADING_BITS


@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
def test_a_run_of_a_server_has_the_tables_of_its_network_of_one(policy: str) -> None:
    """In either loop; priorities and arrivals are those of the workload."""
    rng = np.random.default_rng(3)
    arrival_s, priority = np.sort(rng.uniform(0, 100, 200)), rng.integers(0, 2, 200)
    workload = ps.Workload.from_arrays(arrival_s, rng.integers(1, 900, 200), rng.integers(1, 60, 200), priority)
    server = ps.Server(
        ps.Affine(c=0.02, a=1e-4), 512, 16, policy=policy, order="priority" if policy == "vllm" else "fcfs"
    )
    alone, network = ps.simulate(workload, server), ps.simulate(ps.Network.single(workload, server))
    assert alone.rows is not None
    np.testing.assert_array_equal(alone.rows.jobs.arrival_s, workload.requests(200).arrival_s)
    for table in ("jobs", "series"):
        assert getattr(alone, table).equals(getattr(network, table))
    for table in ("stages", "priorities", "replicas", "workflows"):
        assert getattr(alone, table)().equals(getattr(network, table)()), table
    assert alone.priorities()["priority"].unique().to_list() == [0, 1]
