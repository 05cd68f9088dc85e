"""What a client would have measured follows from the simulation of the same load pattern."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.predict import (
    NOTHING,
    Overhead,
    Requests,
    predict,
    requests_of,
    simulated,
    sustained_rate,
)

SERVER = ps.Server(
    ps.Composition(ps.Affine(0.007, 2e-5), decode_attention=4e-8, per_request=2e-5), 8192, 256, policy="vllm"
)


def row(**known: Any) -> dict[str, Any]:
    """Return a row of a benchmark: 60 s of requests with 500 + 100 tokens unless told otherwise."""
    usual = {
        "row": 0,
        "pattern": "constant",
        "rate": 5.0,
        "duration_s": 60.0,
        "completed": 300,
        "incomplete": 3,
        "prompt_tokens": 500.0,
        "output_tokens": 100.0,
    }
    return dict.fromkeys(COLUMNS) | usual | known


@pytest.mark.parametrize(
    ("policy", "kv_tokens", "preempts"),
    [("vllm", None, False), ("sarathi", None, False), ("vllm", 4_000, True), ("sglang", 4_000, True)],
)
def test_each_client_of_a_closed_loop_sends_its_next_request_when_its_own_has_ended(
    policy: str, kv_tokens: int | None, preempts: bool
) -> None:
    """Whoever ends first goes on first: sglang puts a request that it retracts behind all that wait."""
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(1, 300, 400), rng.integers(2, 400, 400)
    server = ps.Server(SERVER.batch_time, 8192, 256, policy=policy, kv_tokens=kv_tokens)
    pause = 3_000_000  # ticks
    load = Requests(np.zeros(400), prompt, output, 20, None)
    run = simulated(load, server, Overhead(fixed=pause * 1e-9))
    assert run.rows is not None
    assert (run.preemptions > 0) == preempts
    arrivals = np.concatenate([np.zeros(20, np.int64), np.sort(run.rows.finish)[: 400 - 20] + pause])
    assert (run.rows.arrival == arrivals).all()
    open_loop = ps.simulate(ps.Workload.from_arrays(arrivals * run.tick_s, prompt, output), server)
    assert open_loop.rows is not None
    assert (open_loop.rows.finish == run.rows.finish).all()
    assert (open_loop.rows.first_token == run.rows.first_token).all()
    assert predict(load, server, NOTHING)["ttft_mean_s"] > 0


def test_who_comes_while_nobody_is_there_waits_until_what_sleeps_has_woken_up() -> None:
    load = requests_of(row(rate=0.5, duration_s=200.0, completed=100), SERVER)
    awake, asleep = (predict(load, SERVER, Overhead(idle=idle))["ttft_mean_s"] for idle in (0.0, 0.01))
    assert asleep - awake == pytest.approx(0.01)
    busy = requests_of(row(rate=20.0, completed=1200), SERVER)
    awake, asleep = (predict(busy, SERVER, Overhead(idle=idle))["ttft_mean_s"] for idle in (0.0, 0.01))
    assert asleep - awake < 0.0005


def test_one_request_at_a_time_takes_its_prefill_and_its_decodes_and_the_overhead() -> None:
    load = requests_of(row(pattern="closed", rate=None, in_flight=1, completed=50), SERVER)
    predicted = predict(load, SERVER, Overhead(fixed=0.003))
    prefill = float(SERVER.batch_time.of_batch(prefill=[(500, 0)]))  # type: ignore[attr-defined]
    decodes = [float(SERVER.batch_time.of_batch(decode=[500 + i])) for i in range(99)]  # type: ignore[attr-defined]
    assert predicted["ttft_p50_s"] == pytest.approx(prefill + 0.003, rel=1e-6)
    assert predicted["itl_mean_s"] == pytest.approx(np.mean(decodes), rel=1e-6)
    assert predicted["e2e_mean_s"] == pytest.approx(prefill + sum(decodes) + 0.003, rel=1e-6)


def test_requests_that_a_benchmark_cuts_off_are_left_out() -> None:
    long = row(
        output_tokens=1600.0, output_low=1000.0, output_high=3000.0, duration_s=30.0, completed=60, incomplete=90
    )
    load = requests_of(long, SERVER)
    run = simulated(load, SERVER)
    assert run.rows is not None
    finished = run.rows.finish >= 0
    assert 0 < finished.sum() < finished.size
    assert load.output_tokens.mean() == pytest.approx(2000, rel=0.12)  # as it was asked for, although shorter ones end
    assert load.output_tokens[finished].mean() < 1800
    assert predict(load, SERVER, NOTHING)["requests_per_s"] == pytest.approx(finished.sum() / 30.0)


def test_the_lengths_of_few_requests_have_the_means_that_were_measured() -> None:
    few = row(
        pattern="closed", in_flight=1, rate=None, completed=12, incomplete=1, prompt_tokens=430.0, duration_s=12.0
    )
    load = requests_of(few | {"prompt_low": 250.0, "prompt_high": 750.0}, SERVER)
    run = simulated(load, SERVER)
    assert run.rows is not None
    assert load.prompt_tokens[np.flatnonzero(run.rows.finish >= 0)].mean() == pytest.approx(430, rel=0.02)


def test_a_benchmark_that_waits_for_all_finishes_all() -> None:
    run = simulated(requests_of(row(incomplete=0, pattern="poisson"), SERVER), SERVER)
    assert (run.arrived, run.finished) == (300, 300)


def test_gamma_gaps_have_the_rate_and_the_burstiness_of_the_tool() -> None:
    load = requests_of(row(incomplete=0, pattern="poisson", completed=20_000, rate=50.0, burstiness=0.25), SERVER)
    gaps = np.diff(load.arrival_s)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.05)


def test_random_arrivals_are_as_many_as_the_benchmark_counted_in_its_time() -> None:
    """A run of 18 s at a nominal rate of 1 that served 24 requests had 24 arrivals, and not 18."""
    short = {"pattern": "poisson", "rate": 1.0, "duration_s": 18.0, "completed": 20}
    cut = requests_of(row(**short, incomplete=4), SERVER)
    assert cut.arrival_s.size == 24
    assert cut.arrival_s.max() <= 18
    whole = requests_of(row(**short, incomplete=0, e2e_mean_s=1.0, e2e_p99_s=1.5), SERVER)
    assert whole.arrival_s.size == 20
    assert 16.5 <= whole.arrival_s.max() <= 17.5


def test_arrivals_that_a_row_records_are_repeated_up_to_its_end() -> None:
    recorded = {"pattern": "poisson", "rate": 1.0, "arrival_s": [0.0, 0.5, 2.5, 9.0], "completed": 4}
    whole = requests_of(row(**recorded, duration_s=10.0, incomplete=0), SERVER)
    assert whole.arrival_s.tolist() == [0.0, 0.5, 2.5, 9.0]
    cut = requests_of(row(**recorded, duration_s=8.0, incomplete=1), SERVER)
    assert cut.arrival_s.tolist() == [0.0, 0.5, 2.5]
    loop = row(**recorded | {"pattern": "closed", "in_flight": 1, "rate": None}, incomplete=0)
    assert requests_of(loop, SERVER).arrival_s.tolist() == [0.0] * 4


def test_a_burst_at_the_start_comes_at_once() -> None:
    load = requests_of(row(burst=7), SERVER)
    assert (load.arrival_s == 0).sum() == 7
    assert np.diff(load.arrival_s)[6:] == pytest.approx(0.2)


def test_a_median_is_predicted_by_a_median_and_a_mean_over_requests_by_such_a_mean() -> None:
    """Gaps beside prompts are long and few, and requests with few tokens count as much as those with many."""
    load = requests_of(row(rate=15.0, pattern="poisson", incomplete=0, completed=900, output_std=100.0), SERVER)
    predicted, run = predict(load, SERVER, NOTHING), simulated(load, SERVER)
    assert run.rows is not None
    decode = (run.rows.finish - run.rows.first_token) * run.tick_s
    gaps = run.rows.output_tokens - 1
    assert predicted["itl_mean_s"] == pytest.approx(decode.sum() / gaps.sum())
    assert predicted["tpot_mean_s"] == pytest.approx((decode[gaps > 0] / gaps[gaps > 0]).mean())
    assert predicted["itl_p50_s"] == pytest.approx(run.latency().filter(metric="tbt_s")["p50"].item())
    assert predicted["itl_p50_s"] < 0.95 * predicted["itl_mean_s"]


def test_streams_delay_the_first_token_by_as_many_times_their_overhead() -> None:
    load = requests_of(row(pattern="poisson", duration_s=1000.0, completed=5000), SERVER)
    without, with_streams = (predict(load, SERVER, Overhead(per_stream=each)) for each in (0.0, 1e-3))
    streams = (with_streams["ttft_mean_s"] - without["ttft_mean_s"]) / 1e-3
    assert streams == pytest.approx(without["requests_per_s"] * 99 * without["itl_mean_s"], rel=0.15)


def test_a_server_carries_what_it_is_stable_at_and_no_more() -> None:
    limit = sustained_rate(requests_of(row(), SERVER), SERVER)
    below, above = (
        ps.simulate(ps.Workload.deterministic(share * limit, 500, 100), SERVER, requests=4000) for share in (0.95, 1.1)
    )
    assert below.e2e.quantile(0.99) * below.tick_s < 15
    assert above.tokens_per_s == pytest.approx(limit * 599, rel=0.05)


def test_memory_that_holds_requests_back_shows_as_time_to_first_token() -> None:
    load = requests_of(row(pattern="closed", in_flight=200, rate=None, completed=2000, incomplete=200), SERVER)
    short = dataclasses.replace(SERVER, memory=ps.Memory.of_tokens(40_000), policy_params=())
    ample, scarce = (predict(load, server, NOTHING) for server in (SERVER, short))
    assert scarce["ttft_p50_s"] > 5 * ample["ttft_p50_s"]
    assert scarce["itl_mean_s"] < ample["itl_mean_s"]


def test_a_client_with_a_limit_sends_the_next_request_when_one_has_ended() -> None:
    """At most four are under way, nobody waits while there is room, and all are sent in the end."""
    load = requests_of(row(rate=20.0, duration_s=15.0, completed=300, incomplete=0, client_limit=4), SERVER)
    assert load.most_under_way == 4
    recorded = {"client_limit": 4, "arrival_s": [0.0, 0.5, 2.5], "e2e_each_s": [None] * 3}
    assert requests_of(row(**recorded), SERVER).most_under_way is None, "they were held back before"
    run = simulated(load, SERVER)
    assert run.rows is not None
    arrival, finish = run.rows.arrival * run.tick_s, run.rows.finish * run.tick_s
    assert (np.diff(arrival) >= 0).all()
    under_way = [(np.array(finish[:request]) > arrival[request] + 2e-3).sum() for request in range(arrival.size)]
    assert max(under_way) <= 3, "of those before it"
    late = arrival > load.arrival_s + 2e-3
    assert late.mean() > 0.9
    ended = np.sort(finish)
    for request in np.flatnonzero(late):
        assert np.abs(ended - arrival[request]).min() < 5e-3, "it is sent when another ends"
    closed = simulated(dataclasses.replace(load, arrival_s=np.zeros(300), in_flight=4, most_under_way=None), SERVER)
    assert closed.rows is not None
    assert finish.max() == pytest.approx(closed.rows.finish.max() * run.tick_s, rel=0.05)


def test_what_requests_declare_is_what_a_scheduler_reserves_for() -> None:
    server = ps.Server(SERVER.batch_time, 8192, 256, policy="sglang", kv_tokens=4_000)
    known = row(rate=20.0, duration_s=15.0, completed=300, incomplete=0)
    few = predict(requests_of(known, server), server, NOTHING)
    many = predict(requests_of(known | {"declared_tokens": 3_000.0}, server), server, NOTHING)
    assert many["ttft_mean_s"] > 1.2 * few["ttft_mean_s"]


@pytest.mark.parametrize("pattern", [{"pattern": "constant"}, {"pattern": "closed", "rate": None, "in_flight": 4}])
def test_prefixes_that_a_cache_holds_are_not_computed_again(pattern: dict[str, Any]) -> None:
    memory = ps.Memory.of_tokens(100_000, 16)
    slow = ps.Composition(ps.Affine(0.007, 1e-4))
    server = ps.Server(slow, 8192, 256, policy="vllm", memory=dataclasses.replace(memory, prefix_caching=True))
    known = row(incomplete=0, prefix_hits=0.8, **pattern)
    load = requests_of(known, server)
    assert load.prefixes is not None
    hit, missed = (predict(one, server, NOTHING) for one in (load, dataclasses.replace(load, prefixes=None)))
    assert hit["ttft_mean_s"] < 0.6 * missed["ttft_mean_s"]
    assert sustained_rate(load, server) > 1.5 * sustained_rate(dataclasses.replace(load, prefixes=None), server)
