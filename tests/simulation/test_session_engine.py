"""Servers with memory and engines as users meet them: what never fits, priorities, and laws that no limit breaks."""

import numpy as np
import pytest

import penstock as ps
from penstock.simulation.session import Session
from penstock.workload import arrivals

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
MANY = ps.Workload.poisson(rate=3.0, prompt=ps.Geometric(300, max=900), output=ps.Geometric(60, max=200), seed=3)


def test_memory_that_never_binds_changes_nothing() -> None:
    """The loop for engines and the plain one are two programs; where limits do not bind they agree to the tick."""
    for policy in ("sarathi", "orca", "vllm-vanilla", "fastertransformer", "maxweight", "pool-controlled"):
        for scope in ("running", "batch"):
            plain = ps.Server(TP1, 256, 24, policy=policy, scope=scope)
            ample = ps.Server(TP1, 256, 24, policy=policy, scope=scope, kv_blocks=10**6)
            runs = [ps.simulate(MANY, server, requests=1500) for server in (plain, ample)]
            np.testing.assert_array_equal(runs[0].rows.finish, runs[1].rows.finish)
            assert runs[0].gaps.total == runs[1].gaps.total
            assert runs[0].series.equals(runs[1].series)
            assert runs[0].compositions.equals(runs[1].compositions)


@pytest.mark.parametrize(
    "batch_time", [ps.Affine(0.01, 1e-5), ps.Composition(ps.Affine(0.01, 1e-5), decode_attention=1e-7)]
)
def test_compositions_are_counted_right_however_many_requests_come_to_run(batch_time: ps.BatchTime) -> None:
    """Room for those that run is doubled in mid-run here; the plain loop keeps one for each decode of a batch."""
    flood = ps.Workload.poisson(rate=300.0, prompt=8, output=ps.Uniform(50, 300), seed=3)
    plain, ample = (
        ps.simulate(
            flood, ps.Server(batch_time, 64, policy="vllm-vanilla", kv_blocks=blocks), requests=3_000, drain=True
        )
        for blocks in (None, 10**6)
    )
    assert plain.compositions.equals(ample.compositions)
    assert ample.compositions["batches"].sum() == ample.n_batches
    assert ample.compositions["seconds"].sum() == pytest.approx(ample.busy * ample.tick_s)


@pytest.mark.parametrize(
    "batch_time", [ps.Affine(0.01, 1e-6), ps.Composition(ps.Affine(0.01, 1e-6), decode_attention=1e-8)]
)
@pytest.mark.parametrize("kv_blocks", [None, 10**6])
def test_room_for_rare_compositions_is_made_as_often_as_they_fill_it(
    batch_time: ps.BatchTime, kv_blocks: int | None
) -> None:
    """Nearly every batch of long prompts is one of its kind: the run goes on, and all are counted."""
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(1, 8_000, 4_000), rng.integers(1, 40, 4_000)
    workload = ps.Workload.from_arrays(np.cumsum(rng.exponential(0.02, 4_000)), prompt, output)
    run = ps.simulate(workload, ps.Server(batch_time, 16_384, 200, kv_blocks=kv_blocks))
    assert run.compositions["batches"].sum() == run.n_batches
    assert run.compositions.height > 1_500
    assert run.compositions["seconds"].sum() == pytest.approx(run.busy * run.tick_s)


@pytest.mark.parametrize(("policy", "setting"), [("vllm", "async_scheduling"), ("sglang", "overlap_schedule")])
def test_a_step_ahead_takes_hardly_more_steps_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, policy: str, setting: str
) -> None:
    """A run of decodes is one step although the batch after it is composed ahead, and an arrival costs no more."""
    call = Session.call
    steps: list[int] = []

    def counted(session: Session) -> int:
        before = int(session.clock.steps)
        status = call(session)
        steps[-1] += before - int(session.clock.steps)
        return status

    monkeypatch.setattr(Session, "call", counted)
    for ahead in (False, True):
        steps.append(0)
        server = ps.Server(TP1, 512, 64, policy=policy, policy_params={setting: ahead})
        ps.simulate(MANY, server, requests=2_000)
    assert steps[1] < 1.05 * steps[0]


@pytest.mark.parametrize(("policy", "blocks"), [("vllm", 300), ("sglang", 2_000)])
def test_a_summary_of_a_streamed_run_equals_the_run_with_rows(
    monkeypatch: pytest.MonkeyPatch, policy: str, blocks: int
) -> None:
    """Also where the next block comes while a batch is in progress that is followed by one not composed yet."""
    monkeypatch.setattr(arrivals, "BLOCK", 500)
    server = ps.Server(TP1, 256, 24, policy=policy, kv_blocks=blocks)
    rows, summary = (ps.simulate(MANY, server, requests=40_000, record=r) for r in ("requests", "summary"))
    assert rows.preemptions == summary.preemptions > 100
    assert rows.end == summary.end
    assert rows.e2e.total == summary.e2e.total
    assert rows.gaps.total == summary.gaps.total
    assert rows.series.equals(summary.series)


def test_a_request_that_never_fits_is_named() -> None:
    workload = ps.Workload.from_arrays([0.0, 1.0], [100, 2000], [10, 10])
    with pytest.raises(ps.InputError, match=r"request 1 has 2,000 prompt .* it needs 126 blocks of 16"):
        ps.simulate(workload, ps.Server(TP1, 256, policy="vllm", kv_blocks=100))


def test_or_it_is_dropped_and_counted_when_asked() -> None:
    workload = ps.Workload.from_arrays([0.0, 1.0, 2.0], [100, 2000, 100], [10, 10, 10])
    run = ps.simulate(workload, ps.Server(TP1, 256, memory=ps.Memory(100, too_long="drop")))
    assert (run.dropped, run.arrived, run.finished) == (1, 2, 2)
    assert run.requests["prompt_tokens"].to_list() == [100, 2000, 100]
    assert run.requests["finish_ns"].is_null().to_list() == [False, True, False]


def test_a_prompt_that_cannot_be_cut_must_fit_into_a_batch() -> None:
    workload = ps.Workload.from_arrays([0.0], [300], [10])
    with pytest.raises(ps.InputError, match="takes a prompt whole"):
        ps.simulate(workload, ps.Server(TP1, 256, 8, policy="tensorrt-llm"))


def test_priority_goes_first_without_memory_limits_too() -> None:
    workload = ps.Workload.from_arrays([0.0] * 4, [100] * 4, [5] * 4, [3, 2, 1, 0])
    run = ps.simulate(workload, ps.Server(TP1, 128, 1, order="priority"))
    assert np.argsort(run.rows.finish).tolist() == [3, 2, 1, 0]


def test_priorities_cannot_be_drawn_at_random() -> None:
    workload = ps.Workload.from_arrays([0.0, 1.0], [1, 1], [1, 1], [0, 1])
    with pytest.raises(ps.InputError, match="has priorities of its own"):
        workload.with_rate(2.0, arrivals="poisson")


def test_tokens_that_were_done_again_count_as_tokens() -> None:
    run = ps.simulate(MANY, ps.Server(TP1, 256, 24, policy="vllm", kv_blocks=150), requests=2000)
    once = int(run.rows.prompt_tokens.sum()) + int(run.rows.output_tokens.sum()) - 2000
    assert run.tokens == once + run.recomputed_tokens
    last = run.series.row(-1, named=True)
    late = run.rows.finish * run.tick_s > last["time_s"]
    assert last["requests"] == late.sum()
    assert 0 <= last["unprocessed_tokens"] <= last["uncompleted_tokens"] <= run.rows.output_tokens[late].sum()


def test_verdict_and_max_rate_work_under_memory_and_engines() -> None:
    server = ps.Server(TP1, 512, 64, policy="vllm", kv_blocks=600)
    found = ps.max_rate(MANY, server, precision=0.05)
    free = ps.max_rate(MANY, ps.Server(TP1, 512, 64, policy="vllm"), precision=0.05)
    assert found.above < free.rate
    assert ps.verdict(MANY.with_rate(found.rate * 0.9), server).verdict == "stable"
    assert ps.verdict(MANY.with_rate(found.above * 1.1), server).verdict == "unstable"


def test_allocations_name_requests_as_the_rows_do_where_some_were_dropped() -> None:
    workload = ps.Workload.from_arrays([0, 1, 2], [100, 5, 6], [1, 1, 1])
    server = ps.Server(TP1, 512, memory=ps.Memory(2, 16, too_long="drop"))
    run = ps.simulate(workload, server, record="allocations")
    assert run.allocations["request"].to_list() == [1, 2]
    assert run.requests["finish_ns"].is_null().to_list() == [True, False, False]


@pytest.mark.parametrize("more", [{}, {"order": "priority"}, {"kv_blocks": 100}])
def test_a_policy_sees_the_same_parameters_and_is_told_the_same_whatever_else_there_is(more: dict[str, object]) -> None:
    @ps.policy
    def idle_if_given(queue, limits, params):  # type: ignore[no-untyped-def]
        return (queue.prompt_tokens if params.size == 0 else 0), queue.decoding, ps.DECODE_FIRST

    workload = ps.Workload.from_arrays([0.0, 1.0], [20, 20], [2, 2])
    assert ps.simulate(workload, ps.Server(TP1, 512, 64, idle_if_given, **more)).unfinished == 0  # type: ignore[arg-type]
    with pytest.raises(ps.InputError, match=r"empty batch at 0 s with 1 prompt \(20 tokens\) and 0 decoding"):
        ps.simulate(workload, ps.Server(TP1, 512, 64, idle_if_given, policy_params=[1.0], **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("pause_s", [0.0, 0.7])
def test_a_closed_loop_at_an_engine_with_ample_memory_is_that_of_its_policy(pause_s: float) -> None:
    """Each client waits for its answer: the same requests are sent and served at the same ticks."""
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(1, 600, 90), rng.integers(1, 60, 90)
    runs = [
        ps.simulate(ps.Workload.from_arrays(None, prompt, output).with_clients(7, pause_s), server)
        for server in (
            ps.Server(TP1, 512, 128, policy="sarathi"),
            ps.Server(TP1, 512, 128, policy="vllm", policy_params={"async_scheduling": False}),
        )
    ]
    assert all(run.finished == 90 for run in runs)
    for column in ("arrival_ns", "first_token_ns", "finish_ns"):
        assert runs[0].requests[column].to_list() == runs[1].requests[column].to_list()
