"""No request ends before the earliest, in any run; alone on idle servers some do just then."""

import numpy as np
import pytest

import penstock as ps
from penstock.theory.latency_bounds import earliest_ends, earliest_of_jobs

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
FORKED = {
    "plan": ps.Stage("one", ps.Uniform(10, 900), ps.Geometric(40, max=200), then=["web", "paper"]),
    "web": ps.Stage("two", 300, ps.Uniform(1, 30), delay_ms=ps.Uniform(1, 3_000), then="write"),
    "paper": ps.Stage("two", ps.Uniform(100, 1_500), 40, then="write"),
    "write": ps.Stage("one", 200, 60, join=True, then={"plan": 0.2, "end": 0.8}),
}
CHAIN = [("one", 200, 30), ("two", ps.Uniform(50, 700), 20), ("one", 90, 50)]


@pytest.mark.parametrize("policy", ["sarathi", "vllm-vanilla", "vllm", "sglang", "drafts"])
@pytest.mark.parametrize("context", ["new", "reuse"])
def test_no_request_of_a_run_ends_before_the_earliest(policy: str, context: str) -> None:
    options = {"drafts": 3, "acceptance": 1.0} if policy == "drafts" else ()
    engine = "vllm" if policy == "drafts" else policy
    server = ps.Server(TP1, 512, 64, policy=engine, policy_params=options)
    convention = ps.Server(TP1, 1_024, convention="paper")
    arrivals = ps.Workload.poisson(0.8, 1, 1, seed=3)
    workflow = ps.Workflow("w", arrivals, FORKED, first="plan") if context == "new" else (
        ps.Workflow.chain("w", arrivals, CHAIN, context="reuse")
    )  # fmt: skip
    pools = {"one": ps.Pool(server, 2, affinity=context == "reuse"), "two": ps.Pool(convention)}
    run = ps.simulate(ps.Network(pools, [workflow]), jobs=400, seed=0)
    assert run.rows is not None
    jobs = run.rows.jobs
    took = (run.rows.finish - run.arrival[jobs.job]) * run.tick_s
    earliest = earliest_ends(run.network, jobs)
    assert (earliest > 0).all()
    assert (took >= earliest * (1 - 1e-9) - 1e-6).all()
    whole = earliest_of_jobs(run.network, jobs)
    assert ((run.finish - run.arrival) * run.tick_s >= whole * (1 - 1e-9) - 1e-6).all()
    assert whole.mean() > 0.2 * took.mean()


def test_a_job_alone_ends_at_the_earliest() -> None:
    """One prompt in one batch, decodes of one token each, a join that waits for the longer branch."""
    server = ps.Server(TP1, 1_024, policy="sarathi")
    stages = {
        "plan": ps.Stage("one", 300, 20, then=["web", "paper"]),
        "web": ps.Stage("two", 200, 10, delay_ms=5_000, then="write"),
        "paper": ps.Stage("three", 128, 30, then="write"),
        "write": ps.Stage("one", 100, 5, join=True),
    }
    pools = {name: ps.Pool(server) for name in ("one", "two", "three")}
    workflow = ps.Workflow("w", ps.Workload.deterministic(1e-3, 1, 1), stages, first="plan")
    run = ps.simulate(ps.Network(pools, [workflow]), jobs=3, seed=0)
    assert run.rows is not None
    expected = earliest_of_jobs(run.network, run.rows.jobs)
    np.testing.assert_allclose((run.finish - run.arrival) * run.tick_s, expected, rtol=1e-7)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_no_call_of_a_talk_ends_before_the_earliest_whatever_a_cache_finds(policy: str, caching: bool) -> None:
    memory = ps.Memory(20_000, block_size=1 if policy == "sglang" else 16, prefix_caching=caching)
    fast, slow = (ps.Server(ps.Affine(0.01, a), 512, 64, policy=policy, memory=memory) for a in (1e-4, 4e-4))
    talk = ps.Workflow.chain("w", ps.Workload.poisson(1.0, 1, 1, seed=3), [("p", 700, 60)] * 3, context="reuse")
    network = ps.Network({"p": ps.Pool([(fast, 1), (slow, 1)], router="session")}, [talk])
    run = ps.simulate(network, jobs=200, seed=0)
    assert run.rows is not None
    assert (run.rows.cached > 0).any() == caching
    took = (run.rows.finish - run.arrival[run.rows.jobs.job]) * run.tick_s
    assert (took >= earliest_ends(network, run.rows.jobs) * (1 - 1e-9) - 1e-6).all()


def test_a_request_alone_whose_memory_is_sent_ends_at_the_earliest() -> None:
    server = ps.Server(ps.Affine(0.01, 1e-4), 512, 64, policy="vllm", kv_tokens=10_000)
    pair = ps.Workflow.disaggregated(
        ps.Workload.deterministic(1e-2, 200, 51), prefill="p", decode="d", transfer_ms=3, transfer_ms_per_token=0.1
    )
    run = ps.simulate(ps.Network({"p": ps.Pool(server), "d": ps.Pool(server)}, [pair]), jobs=3, seed=0)
    assert run.rows is not None
    expected = 0.03 + 0.003 + 0.02 + 50 * 0.0101
    earliest = earliest_of_jobs(run.network, run.rows.jobs)
    np.testing.assert_allclose(earliest, expected, rtol=1e-9)
    np.testing.assert_allclose((run.finish - run.arrival) * run.tick_s, expected, rtol=1e-7)
