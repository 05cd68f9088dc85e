"""Runs in which requests are refused and clients leave: what is counted adds up."""

import dataclasses

import numpy as np
import pytest

import penstock as ps

TIMES = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVERS = {
    "sarathi": ps.Server(TIMES, 512, 64),
    "orca, priorities": ps.Server(TIMES, 512, 64, "orca", order="priority"),
    "vllm": ps.Server(TIMES, 512, 64, "vllm", kv_tokens=30_000),
    "vllm, at once": ps.Server(TIMES, 512, 64, "vllm", kv_tokens=30_000, policy_params={"async_scheduling": False}),
    "tensorrt-llm": ps.Server(TIMES, 512, 64, "tensorrt-llm", kv_tokens=30_000),
}
BUSY = ps.Workload.poisson(8.0, 400, ps.Geometric(60), seed=1)
ENGINE = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)


@ENGINE
def test_every_token_is_for_somebody_who_is_served_or_left_or_is_done_again(server):
    workload = BUSY.with_patience(ps.Patience(ttft_ms=ps.Geometric(4_000), e2e_ms=ps.Geometric(20_000), retries=1))
    run = ps.simulate(workload, server, requests=3_000)
    done = run.rows.finish >= 0
    needed = run.rows.prompt_tokens[done] + run.rows.output_tokens[done] - server.outputs_of_prefill
    assert run.tokens == needed.sum() + run.recomputed_tokens + run.rows.wasted.sum()
    assert (run.rows.tries > 0).any()
    assert not run.rows.refusals.any()
    assert done.sum() + (run.rows.failed < 0).sum() == 3_000


@ENGINE
def test_who_is_served_has_its_first_token_and_its_end_in_time(server):
    patience = ps.Patience(ttft_ms=3_000, e2e_ms=15_000)
    run = ps.simulate(BUSY.with_patience(patience), server, requests=3_000)
    done = run.rows.finish >= 0
    assert done.any()
    assert ((run.rows.first_token - run.rows.arrival)[done] <= 3 * 10**9).all()
    assert ((run.rows.finish - run.rows.arrival)[done] <= 15 * 10**9).all()


@ENGINE
@pytest.mark.parametrize("kind", ["requests", "waiting", "prompt_tokens", "ttft_ms"])
def test_limits_and_patience_that_never_bind_change_nothing(server, kind):
    """Every request is served at the same nanosecond as without them."""
    calm = BUSY.with_rate(3.0)
    plain = ps.simulate(calm, server, requests=1_500)
    limit = None
    if kind in server.policy.queue.limits:
        limit = ps.QueueLimit(**{kind: 10**8})
    guarded = dataclasses.replace(server, queue_limit=limit)
    run = ps.simulate(calm.with_patience(ps.Patience(e2e_ms=1e8, retries=3)), guarded, requests=1_500)
    assert np.array_equal(plain.rows.finish, run.rows.finish)
    assert np.array_equal(plain.rows.first_token, run.rows.first_token)
    assert plain.gaps.total == run.gaps.total


@ENGINE
def test_equal_batches_are_one_step_to_the_bit(server):
    workload = BUSY.with_patience(ps.Patience(ttft_ms=ps.Geometric(4_000), e2e_ms=ps.Geometric(20_000), retries=1))
    one, other = (ps.simulate(workload, server, requests=2_000, compress=compress) for compress in (True, False))
    assert np.array_equal(one.rows.finish, other.rows.finish)
    assert one.series.equals(other.series)
    assert one.n_batches == other.n_batches
    assert one.latency().equals(other.latency())


def test_a_summary_folds_what_a_whole_run_says():
    workload = BUSY.with_patience(ps.Patience(ttft_ms=3_000, retries=2, backoff_ms=300))
    server = dataclasses.replace(SERVERS["vllm"], queue_limit=ps.QueueLimit(requests=90))
    whole = ps.simulate(workload, server, requests=40_000)
    folded = ps.simulate(workload, server, requests=40_000, record="summary")
    assert folded.finished == (whole.rows.finish >= 0).sum()
    assert folded.ttft.mean == pytest.approx(whole.ttft.mean, rel=1e-3)


def test_no_more_than_the_limit_are_ever_there():
    for kind, most in {"requests": 40, "waiting": 12}.items():
        server = dataclasses.replace(SERVERS["sarathi"], queue_limit=ps.QueueLimit(**{kind: most}))
        run = ps.simulate(BUSY, server, requests=3_000)
        assert run.series["requests"].max() <= most + (64 if kind == "waiting" else 0)
        assert run.rows.refusals.sum() > 100


def test_clients_of_a_closed_loop_go_on_when_they_are_refused():
    loop = ps.Workload.closed(50, 400, ps.Geometric(60), pause_s=1.0)
    server = dataclasses.replace(SERVERS["vllm"], queue_limit=ps.QueueLimit(requests=20))
    run = ps.simulate(loop, server, requests=2_000)
    assert run.finished + (run.rows.failed < 0).sum() == 2_000
    assert run.rows.refusals.sum() > 0


def test_a_job_fails_with_its_first_call_that_does():
    workload = ps.Workload.poisson(4.0, 1, 1).with_patience(ps.Patience(ttft_ms=2_000))
    calls = [("pool", 400, ps.Geometric(60)), ("pool", 300, 20)]
    network = ps.Network({"pool": ps.Pool(SERVERS["vllm"])}, [ps.Workflow.chain("two", workload, calls)])
    run = ps.simulate(network, jobs=1_500)
    first, second = (run.requests.filter(run.requests["stage"] == f"two.{name}") for name in "12")
    lost = first["failed"].is_not_null()
    assert lost.any()
    assert (second.filter(lost)["failed"] == "lost").all()
    assert run.finished == 1_500 - (first["failed"].is_not_null() | second["failed"].is_not_null()).sum()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policy": "sglang", "kv_tokens": 30_000}, "what sglang does then is not modelled"),
        (
            {"policy": "vllm", "kv_tokens": 30_000, "policy_params": {"drafts": 2, "acceptance": 0.5}},
            "what vllm with drafts does then is not modelled",
        ),
    ],
)
def test_clients_do_not_leave_where_it_is_not_known_what_an_engine_does(change, says):
    server = ps.Server(TIMES, 512, 64, **change)
    with pytest.raises(ps.InputError, match=says):
        ps.simulate(BUSY.with_patience(ps.Patience(ttft_ms=900)), server, requests=50)


def test_outages_and_orders_beside_patience_are_refused():
    impatient = BUSY.with_patience(ps.Patience(ttft_ms=900))
    network = ps.Network.single(impatient, SERVERS["vllm"], 2)
    with pytest.raises(ps.InputError, match="outages beside limits"):
        ps.simulate(network, jobs=500, outages=[ps.Outage("pool", 0, 10, 20)])
    calls = [("pool", 400, 60), ("pool", 300, 20)]
    pool = ps.Pool(SERVERS["sarathi"], order="hlpps")
    ordered = ps.Network({"pool": pool}, [ps.Workflow.chain("two", impatient, calls)])
    with pytest.raises(ps.InputError, match="whose lines have no limits"):
        ps.simulate(ordered, jobs=500)
    apart = ps.Workflow.disaggregated(impatient, prefill="one", decode="other")
    both = ps.Network({name: ps.Pool(SERVERS["vllm"]) for name in ("one", "other")}, [apart])
    with pytest.raises(ps.InputError, match="not modelled in a network that sends KV memory"):
        ps.simulate(both, jobs=500)
