"""A policy runs in vLLM's real scheduler exactly as it runs in the simulation, and nothing of vLLM's is lost."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps

pytestmark = pytest.mark.vllm

OWN = Path(__file__).parent / "own_policies.py"
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
MAXWEIGHT = ps.Server(TP1, 256, 24, policy="maxweight").params
ALL = [
    ("sarathi", ()),
    ("orca", ()),
    ("vllm-vanilla", ()),
    ("fastertransformer", ()),
    ("maxweight", MAXWEIGHT),
    (f"{OWN}:shares", (100, 5, 0)),
    (f"{OWN}:shares", (40, 200, 1)),
]

Make = Callable[..., Any]


def crowd(vllm: ModuleType, seed: int, requests: int = 80, priorities: int = 1) -> list[Any]:
    """More requests than a server can take at once."""
    return vllm.lognormal(requests, 12.0, seed, prompt=(120, 1500), output=(30, 150), priorities=priorities)


def simulated(calls: list[Any], budget: int, max_seqs: int, policy: str, params: Any) -> tuple[list[Any], list[int]]:
    """Return (first token, finish) of each request and the start of each batch, ns."""
    workload = ps.Workload.from_arrays(
        [c.arrival_ns / 1e9 for c in calls], [c.prompt_tokens for c in calls], [c.output_tokens for c in calls]
    )
    own = () if policy in ps.POLICIES else params  # those of Penstock's policies follow from the server
    run = ps.simulate(workload, ps.Server(TP1, budget, max_seqs, policy, policy_params=own), record="batches")
    zero = calls[0].arrival_ns
    times = run.requests.select(["first_token_ns", "finish_ns"]) + zero
    return times.rows(), (run.batches["start_ns"] + zero).to_list()


def served(vllm: ModuleType, scheduler: Any, calls: list[Any], depth: int = 1) -> tuple[list[Any], list[int]]:
    """Return the same of vLLM's scheduler."""
    steps = vllm.serve(scheduler, calls, depth=depth)
    return [(c.first_token_ns, c.finish_ns) for c in calls], [step["start_ns"] for step in steps]


def assert_nothing_is_lost(scheduler: Any, calls: list[Any]) -> None:
    assert all(c.first_token_ns > c.arrival_ns and c.finish_ns >= c.first_token_ns for c in calls)
    assert not scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == scheduler.cache_config.num_gpu_blocks - 1


@pytest.mark.parametrize(("policy", "params"), ALL)
def test_with_ample_memory_every_request_is_served_at_the_simulations_nanosecond(
    vllm: ModuleType, scheduler: Make, policy: str, params: Any
) -> None:
    calls = crowd(vllm, seed=1)
    expected = simulated(calls, 256, 24, policy, params)
    engine = scheduler(policy, params, 256, 24)
    assert served(vllm, engine, calls) == expected
    assert_nothing_is_lost(engine, calls)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(8, 400),
    seqs=st.integers(1, 8),
    shares=st.tuples(st.integers(1, 300), st.integers(1, 12), st.integers(0, 1)),
)
def test_any_shares_of_prefill_and_decode_are_served_as_simulated(
    vllm: ModuleType, scheduler: Make, seed: int, budget: int, seqs: int, shares: tuple[int, int, int]
) -> None:
    calls = crowd(vllm, seed, requests=20)
    expected = simulated(calls, budget, seqs, f"{OWN}:shares", shares)
    assert served(vllm, scheduler(f"{OWN}:shares", shares, budget, seqs), calls) == expected


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("order", "priorities", "caching", "num_blocks"),
    [("fcfs", 1, False, 130), ("priority", 3, False, 130), ("fcfs", 1, True, 5_000)],
)
def test_sarathi_is_vllms_own_order_preemptions_and_async_scheduling_included(
    vllm: ModuleType, scheduler: Make, order: str, priorities: int, caching: bool, num_blocks: int, depth: int
) -> None:
    calls = crowd(vllm, seed=2, priorities=priorities)
    if caching:
        calls = vllm.conversations(80, 12.0, 3, people=6, block_size=16)
    same = {"policy": order, "prefix_caching": caching}
    theirs, ours = copy.deepcopy(calls), copy.deepcopy(calls)
    unmodified = vllm.make_scheduler(
        256, 24, num_blocks, cls=vllm.Scheduler if depth == 1 else vllm.AsyncScheduler, **same
    )
    steps = vllm.serve(unmodified, theirs, depth=depth)
    engine = scheduler("sarathi", (), 256, 24, num_blocks, **same)
    assert vllm.serve(engine, ours, depth=depth) == steps
    assert ours == theirs
    assert caching or sum(c.preemptions for c in ours) > 0
    assert_nothing_is_lost(engine, ours)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("policy", "params"), ALL)
def test_with_tight_memory_it_preempts_and_loses_nothing(
    vllm: ModuleType, scheduler: Make, policy: str, params: Any, depth: int
) -> None:
    calls = crowd(vllm, seed=4)
    engine = scheduler(policy, params, 256, 24, num_blocks=110)
    vllm.serve(engine, calls, depth=depth)
    assert_nothing_is_lost(engine, calls)
    few = policy == "fastertransformer"  # it admits nobody while somebody decodes, so memory suffices
    assert (sum(c.preemptions for c in calls) > 0) != few


@pytest.mark.parametrize(("policy", "params"), ALL)
def test_async_scheduling_computes_no_token_twice(vllm: ModuleType, scheduler: Make, policy: str, params: Any) -> None:
    calls = crowd(vllm, seed=5)
    engine = scheduler(policy, params, 256, 24)
    steps = vllm.serve(engine, calls, depth=2)
    assert sum(step["tokens"] for step in steps) == sum(c.prompt_tokens + c.output_tokens - 1 for c in calls)
    assert_nothing_is_lost(engine, calls)


def test_prompts_that_share_blocks_are_all_served_when_memory_is_tight(vllm: ModuleType, scheduler: Make) -> None:
    calls = vllm.conversations(80, 12.0, 6, people=6, block_size=16)
    engine = scheduler("vllm-vanilla", (), 128, 16, num_blocks=60, prefix_caching=True)
    vllm.serve(engine, calls)
    assert_nothing_is_lost(engine, calls)


def test_a_prompt_that_vllm_refuses_for_reasons_of_its_own_does_not_stop_the_decodes(
    vllm: ModuleType, scheduler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = crowd(vllm, seed=7, requests=40)
    engine = scheduler("vllm-vanilla", (), 256, 24, num_blocks=110)
    monkeypatch.setattr(engine, "_admissible", lambda budget: [r.num_tokens for r in engine.waiting])
    vllm.serve(engine, calls)
    assert_nothing_is_lost(engine, calls)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Keep what the policy of a scheduler is shown."""

    def watch(engine: Any) -> list[Any]:
        queues: list[Any] = []
        compose = engine._compose
        monkeypatch.setattr(engine, "_compose", lambda queue, *a: (queues.append(queue), compose(queue, *a))[1])
        return queues

    return watch


def test_the_policy_is_offered_the_prompts_that_memory_holds(
    vllm: ModuleType, scheduler: Make, offered: Callable[[Any], list[Any]]
) -> None:
    """And counts of all the others: waiting, their tokens, those of the oldest, arrived and finished."""
    engine = scheduler(f"{OWN}:curious", (), 256, 24, num_blocks=19)
    queues = offered(engine)
    vllm.serve(engine, [vllm.Call(0, 160, 3), vllm.Call(0, 130, 3), vllm.Call(0, 20, 3)])
    assert [tuple(q) for q in queues] == [
        (1, 160, 0, 3, 310, 160, 0, 3, 310, 0, 0),
        (0, 0, 1, 2, 150, 130, 2, 3, 310, 0, 0),
        (0, 0, 1, 2, 150, 130, 1, 3, 310, 0, 0),
        (2, 150, 0, 2, 150, 130, 0, 3, 310, 1, 2),
        (0, 0, 2, 0, 0, 0, 4, 3, 310, 1, 2),
        (0, 0, 2, 0, 0, 0, 2, 3, 310, 1, 2),
    ]


def test_the_policy_is_not_offered_tokens_that_the_prefix_cache_holds(
    vllm: ModuleType, scheduler: Make, offered: Callable[[Any], list[Any]]
) -> None:
    engine = scheduler("sarathi", (), 256, 24, prefix_caching=True)
    queues = offered(engine)
    history = tuple(range(100, 110))
    vllm.serve(engine, [vllm.Call(0, 165, 1, 0, history), vllm.Call(10**9, 165, 1, 0, history)])
    assert [q.prompt_tokens for q in queues] == [165, 5]


def test_the_policy_is_not_offered_prompts_that_wait_for_something_else(
    vllm: ModuleType, scheduler: Make, offered: Callable[[Any], list[Any]]
) -> None:
    engine = scheduler("vllm-vanilla", (), 256, 24)
    queues = offered(engine)
    grammar, plain = (vllm.as_request(i, vllm.Call(0, 100 + i, 3), 16, False) for i in range(2))
    grammar.status = type(grammar.status).WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    for request in (grammar, plain):
        engine.add_request(request)
    assert engine.schedule().num_scheduled_tokens == {plain.request_id: 101}
    assert queues[0].prompts == 1


def test_decodes_that_vllm_holds_back_are_not_offered_to_the_policy(
    vllm: ModuleType, scheduler: Make, offered: Callable[[Any], list[Any]]
) -> None:
    """A pipeline's stage still has them: vLLM gives such a request the step from which on it may decode again."""
    engine = scheduler("sarathi", (), 256, 24)
    queues = offered(engine)
    vllm.serve(engine, [vllm.Call(0, 10, 9), vllm.Call(0, 10, 9)])
    assert [q.decoding for q in queues] == [0] + [2] * 8
    for i in (2, 3):
        engine.add_request(vllm.as_request(i, vllm.Call(0, 10, 9), 16, False))
    engine.schedule()
    for request in engine.running:
        request.next_decode_eligible_step = engine.current_step + 3
    assert [len(engine.schedule().num_scheduled_tokens) for _ in range(3)] == [0, 0, 2]
    assert [q.decoding for q in queues[9:]] == [0, 2]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("lonely", r"policy 'lonely' failed \(ZeroDivisionError.*decoding=0.*mend it"),
        ("backwards", "asks for -1 prefill"),
        ("idle", "wants an empty step although there is work"),
    ],
)
def test_an_error_in_a_policy_is_reported_and_leaves_the_scheduler_whole(
    vllm: ModuleType, scheduler: Make, policy: str, message: str
) -> None:
    calls = crowd(vllm, seed=8, requests=10)
    engine = scheduler(f"{OWN}:{policy}", (), 256, 24)
    with pytest.raises(ps.InputError, match=message):
        vllm.serve(engine, calls)
    assert engine.max_num_scheduled_tokens == 256
    assert [len(engine.running), len(engine.waiting)] == [0, 1]


def test_an_error_inside_vllm_leaves_budget_and_order_as_they_were(
    vllm: ModuleType, scheduler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scheduler("sarathi", (), 256, 24)
    monkeypatch.setattr(engine.kv_cache_manager, "allocate_slots", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        vllm.serve(engine, crowd(vllm, seed=9, requests=10))
    assert engine.max_num_scheduled_tokens == 256
    assert [len(engine.running), len(engine.waiting)] == [0, 1]


@pytest.mark.parametrize(
    ("policy", "params", "configuration", "message"),
    [
        ("sarati", (), {}, "did you mean 'sarathi'"),
        ("sarathi", ("x",), {}, "PENSTOCK_POLICY_PARAMS is 'x'"),
        ("maxweight", (), {}, "set PENSTOCK_POLICY_PARAMS to the numbers"),
        ("sarathi", (), {"chunked_prefill": False}, "enable_chunked_prefill"),
        ("sarathi", (), {"long_prefill_token_threshold": 64}, "long_prefill_token_threshold"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    scheduler: Make, policy: str, params: Any, configuration: dict[str, Any], message: str
) -> None:
    with pytest.raises(ps.InputError, match=message):
        scheduler(policy, params, 256, 24, **configuration)


@pytest.mark.parametrize(
    ("version", "needed", "message"),
    [
        ("0.31.2", (), "vLLM is 0.31.2, but Penstock's scheduler was tested with 0.32 and 0.33 only"),
        ("0.34.0", ("no_such_name",), "vLLM is 0.34.0, but Penstock's scheduler was tested with 0.32 and 0.33 only"),
        ("0.33.0", ("no_such_name",), "vLLM is 0.33.0 and lacks no_such_name"),
    ],
)
def test_another_vllm_is_refused_at_the_start_by_version_and_by_what_it_lacks(
    scheduler: Make, monkeypatch: pytest.MonkeyPatch, version: str, needed: tuple[str, ...], message: str
) -> None:
    from penstock import vllm_plugin

    monkeypatch.setattr(vllm_plugin.vllm, "__version__", version)
    monkeypatch.setattr(vllm_plugin, "_NEEDED", needed)
    with pytest.raises(ps.InputError, match=message):
        scheduler("sarathi", (), 256, 24)


def test_vllm_finds_the_class_by_its_name(vllm: ModuleType) -> None:
    from penstock.vllm_plugin import PenstockScheduler

    config = vllm.SchedulerConfig.default_factory(scheduler_cls="penstock.vllm_plugin.PenstockScheduler")
    assert config.get_scheduler_cls() is PenstockScheduler
    assert issubclass(PenstockScheduler, vllm.AsyncScheduler)
