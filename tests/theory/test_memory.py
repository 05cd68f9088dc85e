"""What a formula says that KV memory carries is what a server under a backlog carries, as far as stated."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.memory import full_server

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
    estimate = full_server(CHAT, ps.Server(ps.Affine(0.02, 0.0), 512, memory=memory))
    assert estimate.rate == pytest.approx(6 / 112 / 0.02, rel=2e-3)  # six requests of 15 blocks
    assert estimate.limit == "KV memory"


def test_attention_is_part_of_what_a_full_memory_carries() -> None:
    composed = ps.hardware("llama-2-70b-a100-tp2").batch_time
    long = ps.Workload.poisson(1.0, ps.Geometric(1_000, max=8_000), ps.Geometric(250, max=2_000))
    limited = ps.Server(composed, 8_192, 256, "vllm", memory=ps.Memory(2_154, too_long="drop"))
    estimate = full_server(long, limited)
    without = full_server(long, dataclasses.replace(limited, batch_time=composed.by_tokens))
    assert estimate.rate < without.rate
    assert estimate.rate == pytest.approx(ps.max_rate(long, limited, precision=0.02).rate, rel=0.1)


@pytest.mark.parametrize(
    ("workload", "blocks"),
    [(GEOMETRIC, 120), (GEOMETRIC, 452), (GEOMETRIC, 1_506), (CONVERSATION, 2_573), (CODE, 995),
     (LONG_OUTPUTS, 1_503), (LONG_OUTPUTS, 5_011), (RECORDED, 2_636)],
    ids=["few geometric", "geometric", "many geometric", "conversation", "code", "long outputs",
         "many long outputs", "recorded"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["completion", "input", "vllm"])
def test_the_estimate_is_within_a_tenth_of_a_server_under_a_backlog(
    workload: ps.Workload, blocks: int, kind: str
) -> None:
    engine = server(kind, blocks)
    rate, run = under_backlog(workload, engine)
    estimate = full_server(workload, engine)
    assert estimate.rate == pytest.approx(rate, rel=0.1)
    assert estimate.token_load == pytest.approx(run.tokens / run.n_batches, rel=0.2)


@pytest.mark.parametrize(
    "rules",
    [{"size": 1, "blocks": 1_506 * 16}, {"size": 64, "blocks": 376}, {"size": 256, "blocks": 94},
     {"watermark": 0.05}, {"budget": 2_048}],
    ids=repr,
)  # fmt: skip
def test_the_estimate_knows_block_sizes_watermarks_and_budgets(rules: dict[str, Any]) -> None:
    engine = server("input", **{"blocks": 1_506, **rules})
    assert full_server(GEOMETRIC, engine).rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


@pytest.mark.parametrize("capacity", ["guaranteed_no_evict", "max_utilization"])
def test_tensorrt_llm_is_estimated_too(capacity: str) -> None:
    engine = dataclasses.replace(
        server("tensorrt-llm", 452),
        policy_params={"chunked_context": True, "capacity": capacity},  # type: ignore[arg-type]
    )
    assert full_server(GEOMETRIC, engine).rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


@pytest.mark.parametrize(("slots", "limit"), [(20, "max batch size"), (60, "max batch size"), (512, "KV memory")])
def test_whichever_of_memory_and_max_batch_size_is_less_sets_the_rate(slots: int, limit: str) -> None:
    engine = server("vllm", 1_506, slots=slots)
    estimate = full_server(GEOMETRIC, engine)
    assert estimate.limit == limit
    assert estimate.rate == pytest.approx(under_backlog(GEOMETRIC, engine)[0], rel=0.1)


@given(
    prompt=st.integers(1, 400),
    output=st.integers(2, 300),
    of=st.floats(2, 60),
    size=st.sampled_from([1, 16, 100]),
    kind=st.sampled_from(["completion", "input", "vllm"]),
    slots=st.integers(1, 256),
)
@settings(max_examples=12, deadline=None)
def test_no_estimate_is_above_what_no_policy_can_exceed(
    prompt: int, output: int, of: float, size: int, kind: str, slots: int
) -> None:
    """But for what a sample of the lengths is off by."""
    workload = ps.Workload.poisson(1.0, ps.Geometric(prompt, max=4_000), ps.Geometric(output, max=4_000))
    engine = server(kind, int(of * ((prompt + output) // size + 1)) + 2, size, slots=slots)
    estimate = full_server(workload, engine)
    assert 0 < estimate.rate <= ps.certify(workload, engine).max_rate * 1.03
    assert estimate.token_load <= 512


def test_the_same_estimate_twice() -> None:
    assert full_server(CODE, server("vllm", 995)) == full_server(CODE, server("vllm", 995))


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
        full_server(CHAT, engine)


def test_prompts_that_share_their_beginnings_have_no_estimate() -> None:
    replay = ps.Workload.from_arrays([0.0, 1.0], [64, 64], [9, 9], hash_ids=[[1], [1]], hash_block=64)
    engine = ps.Server(TP1, 512, memory=ps.Memory(500, prefix_caching=True))
    with pytest.raises(ps.InputError, match="prefix caching"):
        full_server(replay, engine)
