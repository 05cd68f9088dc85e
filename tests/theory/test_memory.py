"""What KV memory is estimated to carry is what a simulated server under a backlog carries, within the error stated."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
CHAT = ps.Workload.poisson(1.0, 129, 112)
GEOMETRIC = ps.Workload.poisson(1.0, ps.Geometric(129, max=2_000), ps.Geometric(112, max=2_000))
CONVERSATION = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
CODE = ps.Workload.preset("azure-code").with_rate(1.0, "poisson")
LONG_OUTPUTS = ps.Workload.poisson(1.0, ps.Geometric(200, max=2_000), ps.Geometric(600, max=6_000))
RECORDED = ps.Workload.poisson(1.0, ps.Empirical(*CONVERSATION.lengths.sample(np.random.default_rng(5), 4_000)))


def server(kind: str, blocks: int, size: int = 16, budget: int = 512, slots: int = 512, **rules: Any) -> ps.Server:
    """Return a server whose memory admits as ``kind`` says, or as an engine of that name does."""
    if kind == "tensorrt-llm":
        options = {"policy_params": {"chunked_context": True}}
    else:
        options = {}
    engine = kind in ps.ENGINES
    memory = ps.Memory(blocks, size, too_long="drop", **rules if engine else {"admission": kind, **rules})
    return ps.Server(TP1, budget, slots, kind if engine else "sarathi", memory=memory, **options)  # type: ignore[arg-type]


def under_backlog(workload: ps.Workload, server: ps.Server, count: int = 8_000) -> tuple[float, ps.Run]:
    """Serve requests that are all there at once; return the rate at which the middle half of them leaves."""
    requests = workload.requests(count)
    at_once = ps.Workload.from_arrays(np.linspace(0, 1e-6, count), requests.prompt_tokens, requests.output_tokens)
    run = ps.simulate(at_once, server, drain=True)
    assert run.rows is not None
    finish = np.sort(run.rows.finish[run.rows.finish >= 0])
    low, high = finish.size // 4, 3 * finish.size // 4
    return (high - low) / float(finish[high] - finish[low]) * 1e9 * count / finish.size, run


def test_slots_of_equal_size_turn_over_once_in_a_request() -> None:
    """Constant lengths and batch times, memory reserved: the formula is exact."""
    memory = ps.Memory(100, admission="completion")
    estimate = ps.memory_estimate(CHAT, ps.Server(ps.Affine(0.02, 0.0), 512, memory=memory))
    assert estimate.free_blocks == 10  # six requests of 15 blocks
    assert estimate.rate == pytest.approx(6 / 112 / 0.02, rel=2e-3)
    assert estimate.batch_time_s == pytest.approx(0.02)
    assert (estimate.preemptions, estimate.recomputed_share, estimate.limit) == (0.0, 0.0, "KV memory")


def test_attention_is_part_of_what_a_full_memory_carries() -> None:
    composed = ps.hardware("llama-2-70b-a100-tp2").batch_time
    long = ps.Workload.poisson(1.0, ps.Geometric(1_000, max=8_000), ps.Geometric(250, max=2_000))
    limited = ps.Server(composed, 8_192, 256, "vllm", memory=ps.Memory(2_154, too_long="drop"))
    estimate = ps.memory_estimate(long, limited)
    without = ps.memory_estimate(long, dataclasses.replace(limited, batch_time=composed.by_tokens))
    assert estimate.rate < without.rate
    assert estimate.rate == pytest.approx(ps.max_rate(long, limited, precision=0.02).rate, rel=0.1)


@pytest.mark.parametrize(
    ("workload", "blocks"),
    [(CHAT, 451), (GEOMETRIC, 120), (GEOMETRIC, 452), (GEOMETRIC, 1_506), (CONVERSATION, 2_573), (CODE, 995),
     (LONG_OUTPUTS, 1_503), (LONG_OUTPUTS, 5_011), (RECORDED, 2_636)],
    ids=["constant", "few geometric", "geometric", "many geometric", "conversation", "code", "long outputs",
         "many long outputs", "recorded"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["completion", "input", "vllm"])
def test_the_estimate_is_within_a_tenth_of_a_server_under_a_backlog(
    workload: ps.Workload, blocks: int, kind: str
) -> None:
    engine = server(kind, blocks)
    rate, run = under_backlog(workload, engine)
    estimate = ps.memory_estimate(workload, engine)
    assert estimate.rate == pytest.approx(rate, rel=0.1)
    assert estimate.token_load == pytest.approx(run.tokens / run.n_batches, rel=0.2)
    assert estimate.batch_time_s == pytest.approx(run.busy / run.n_batches / 1e9, rel=0.1)
    assert (estimate.preemptions == 0) == (run.preemptions == 0)


@pytest.mark.parametrize(
    "rules",
    [{"size": 1, "blocks": 1_506 * 16}, {"size": 64, "blocks": 376}, {"size": 256, "blocks": 94},
     {"watermark": 0.05}, {"preemption": "swap"}, {"preemption": "swap", "swap_s": 1e-3}, {"budget": 2_048}],
    ids=repr,
)  # fmt: skip
def test_the_estimate_knows_block_sizes_watermarks_swapping_and_budgets(rules: dict[str, Any]) -> None:
    engine = server("input", **{"blocks": 1_506, **rules})
    assert ps.memory_estimate(GEOMETRIC, engine).rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


@pytest.mark.parametrize("capacity", ["guaranteed_no_evict", "max_utilization"])
def test_tensorrt_llm_is_estimated_too(capacity: str) -> None:
    engine = dataclasses.replace(
        server("tensorrt-llm", 452),
        policy_params={"chunked_context": True, "capacity": capacity},  # type: ignore[arg-type]
    )
    assert ps.memory_estimate(GEOMETRIC, engine).rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


@pytest.mark.parametrize(("slots", "limit"), [(20, "max batch size"), (60, "max batch size"), (512, "KV memory")])
def test_whichever_of_memory_and_max_batch_size_is_less_sets_the_rate(slots: int, limit: str) -> None:
    engine = server("vllm", 1_506, slots=slots)
    estimate = ps.memory_estimate(GEOMETRIC, engine)
    assert estimate.limit == limit
    assert estimate.running <= slots
    assert estimate.rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


def test_many_requests_are_preempted_as_often_as_their_outputs_outweigh_their_prompts() -> None:
    """In the limit of many requests that finish one by one, each is preempted E[D] / E[P] times."""
    workload = ps.Workload.poisson(1.0, ps.Geometric(10**6), ps.Geometric(10**6))
    few, many = (
        ps.memory_estimate(workload, ps.Server(TP1, 10**6, memory=ps.Memory(count * 3 * 10**6 // 2, 1))).preemptions
        for count in (10, 1_000)
    )
    assert few < 0.8
    assert 0.95 < many < 1.0


@given(
    prompt=st.integers(1, 400),
    output=st.integers(1, 300),
    of=st.floats(2, 60),
    size=st.sampled_from([1, 16, 100]),
    kind=st.sampled_from(["completion", "input", "vllm"]),
    spread=st.booleans(),
    slots=st.integers(1, 256),
)
@settings(max_examples=12, deadline=None)
def test_no_estimate_is_above_what_no_policy_can_exceed(
    prompt: int, output: int, of: float, size: int, kind: str, spread: bool, slots: int
) -> None:
    """But for what a sample of the lengths is off by."""
    lengths = (ps.Geometric(prompt, max=4_000), ps.Geometric(output, max=4_000)) if spread else (prompt, output)
    workload = ps.Workload.poisson(1.0, *lengths)
    engine = server(kind, int(of * ((prompt + output) // size + 1)) + 2, size, slots=slots)
    estimate = ps.memory_estimate(workload, engine)
    assert 0 < estimate.rate <= ps.certify(workload, engine).max_rate * 1.03
    assert 0 <= estimate.recomputed_share < 1
    assert estimate.token_load <= 512


def test_the_same_estimate_twice() -> None:
    assert ps.memory_estimate(CODE, server("vllm", 995)) == ps.memory_estimate(CODE, server("vllm", 995))


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (ps.Server(TP1, 512), "no KV memory"),
        (ps.Server(TP1, 512, policy="orca", kv_blocks=500), "not for orca"),
        (ps.Server(TP1, 512, policy="sglang", kv_blocks=500), "not for sglang"),
        (server("optimistic", 500), "admission input or completion"),
        (ps.Server(TP1, 512, kv_blocks=14), "needs 15 blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_tell_is_an_error(engine: ps.Server, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.memory_estimate(CHAT, engine)


def test_prompts_that_share_their_beginnings_have_no_estimate() -> None:
    replay = ps.Workload.from_arrays([0.0, 1.0], [64, 64], [9, 9], hash_ids=[[1], [1]], hash_block=64)
    engine = ps.Server(TP1, 512, memory=ps.Memory(500, prefix_caching=True))
    with pytest.raises(ps.InputError, match="prefix caching"):
        ps.memory_estimate(replay, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "blocks"),
    [(CHAT, 451), (GEOMETRIC, 452), (GEOMETRIC, 1_506), (CONVERSATION, 887), (CONVERSATION, 2_573), (CODE, 995),
     (LONG_OUTPUTS, 1_503), (LONG_OUTPUTS, 5_011), (RECORDED, 2_636)],
    ids=["constant", "geometric", "many geometric", "few conversations", "conversation", "code", "long outputs",
         "many long outputs", "recorded"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["completion", "input", "vllm"])
def test_the_estimate_is_within_a_tenth_of_the_highest_stable_rate(
    workload: ps.Workload, blocks: int, kind: str
) -> None:
    """By the sequential test."""
    found = ps.max_rate(workload, server(kind, blocks))
    estimate = ps.memory_estimate(workload, server(kind, blocks)).rate
    print(f"{found.rate:.3f} to {found.above:.3f}, estimate {estimate:.3f} ({estimate / found.rate - 1:+.1%})")
    assert estimate == pytest.approx(found.rate, rel=0.1)


LONG = ps.Workload.poisson(1.4, ps.Geometric(500, max=4_000), ps.Geometric(2_000, max=20_000))
TP2 = ps.hardware("codellama-34b-a100-tp2").batch_time


@pytest.mark.parametrize(("slots", "carried"), [(1_024, 1.19), (128, 2.09)])
def test_a_smaller_max_batch_size_can_carry_more_and_the_estimate_knows(slots: int, carried: float) -> None:
    """With 1,024 requests are preempted all the time; 128 fit. The rates are of the sequential test."""
    engine = ps.Server(TP2, 2_048, slots, "vllm", kv_blocks=24_000)
    assert ps.memory_estimate(LONG, engine).rate == pytest.approx(carried, rel=0.03)
    assert ps.verdict(LONG.with_rate(0.95 * carried), engine, resolution=0.02).verdict == "stable"
    assert ps.verdict(LONG.with_rate(1.05 * carried), engine, resolution=0.02).verdict == "unstable"


def test_a_server_that_starts_empty_carries_more_than_one_that_is_full() -> None:
    engine = ps.Server(TP2, 2_048, 1_024, "vllm", kv_blocks=24_000)
    run = ps.simulate(LONG, engine, requests=4_000, record="summary")
    assert run.preemptions == 0
    assert ps.verdict(LONG, engine).verdict == "unstable"


def test_letting_prompts_in_by_the_piece_halves_what_a_full_server_carries() -> None:
    """vLLM's pull request 37307."""
    pieces, whole = (
        under_backlog(CONVERSATION, server(kind, 2_500, budget=2_048), 4_000) for kind in ("optimistic", "input")
    )
    assert pieces[0] < 0.55 * whole[0]
    assert pieces[1].recomputed_tokens > 0.6 * pieces[1].tokens
    assert whole[1].recomputed_tokens < 0.15 * whole[1].tokens
