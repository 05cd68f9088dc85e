"""Necessary conditions bind whatever the policy does."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.limits import Bound, bounds
from penstock.theory.load import load

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512, 128)
CHAT = ps.Workload.poisson(1.0, 129, 112)


def of(workload: ps.Workload, server: ps.Server) -> tuple[Bound, ...]:
    return bounds(load(workload, server))


def test_each_limit_that_can_bind_has_a_bound() -> None:
    assert [b.name for b in of(CHAT, ps.Server(TP1, 512))] == ["token budget"]
    assert [b.name for b in of(CHAT, ps.Server(TP1, 512, 512))] == ["token budget"]
    assert [b.name for b in of(CHAT, SERVER)] == ["token budget", "max batch size"]
    limited = dataclasses.replace(SERVER, memory=ps.Memory(1_000))
    assert [b.name for b in of(CHAT, limited)] == ["token budget", "max batch size", "KV memory"]


def test_the_max_batch_size_never_carries_more_than_the_token_budget_alone() -> None:
    for slots in (1, 20, 128, 400):
        budget, size = of(CHAT, dataclasses.replace(SERVER, max_batch_size=slots))
        assert size.max_rate <= budget.max_rate * (1 + 1e-9)


def test_the_kv_bound_is_what_one_request_after_another_can_reach() -> None:
    """Memory for one request, batch times that never vary: Little's law leaves the mean use of the memory only."""
    server = ps.Server(ps.Affine(0.01, 0.0), 512, kv_tokens=240, block_size=1)
    bound = of(CHAT, server)[-1]
    assert bound.max_rate == pytest.approx(240 / 0.01 / (129 + sum(range(130, 241))))
    assert bound.max_rate > 1 / (112 * 0.01)  # one request at a time: 112 iterations


def test_memory_reserved_to_completion_carries_less() -> None:
    grows, kept = (
        of(CHAT, ps.Server(TP1, 512, memory=ps.Memory(600, admission=admission)))[-1]  # type: ignore[arg-type]
        for admission in ("input", "completion")
    )
    assert kept.max_rate == pytest.approx(600 / 15 / 112 / float(TP1(1)))
    assert kept.max_rate < 0.85 * grows.max_rate


def test_whole_blocks_carry_less_than_tokens() -> None:
    """Of a block of 512 tokens, requests of 129 to 240 tokens leave more than half empty."""
    tokens, large = (of(CHAT, ps.Server(TP1, 512, kv_tokens=10_240, block_size=size))[-1].max_rate for size in (1, 512))
    assert large == pytest.approx(20 / 112 / float(TP1(1)))
    assert large < 0.4 * tokens


def test_where_larger_batches_are_faster_tokens_done_anew_do_not_count_against_the_bound() -> None:
    """Batches of two tokens take a tenth of those of one, so one decode beside a token that is lost is faster."""
    odd = ps.Measured((1, 2), (1.0, 0.1))
    plain = ps.Server(odd, 2, 1)
    assert of(CHAT, dataclasses.replace(plain, memory=ps.Memory(20)))[1].max_rate > 5 * of(CHAT, plain)[1].max_rate


@given(
    prompt=st.integers(1, 300),
    output=st.integers(1, 40),
    spread=st.booleans(),
    blocks=st.integers(2, 60),
    size=st.sampled_from([1, 8, 16, 100]),
    budget=st.integers(16, 300),
    slots=st.integers(1, 40),
    policy=st.sampled_from(["sarathi", "orca", "vllm-vanilla", "fastertransformer", "vllm", "sglang"]),
    admission=st.sampled_from(["input", "completion", "optimistic"]),
    seed=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_no_server_with_memory_does_more_than_the_bounds_say(
    prompt: int, output: int, spread: bool, blocks: int, size: int, budget: int, slots: int, policy: str,
    admission: Any, seed: int,
) -> None:  # fmt: skip
    """All requests are there at the start: seconds are at least requests over the bound of these very requests."""
    engine = policy in ps.ENGINES
    rules = {} if engine else {"admission": admission}
    memory = ps.Memory(blocks, size, too_long="drop", **rules)
    budget = max(budget, size)  # sglang's chunks are whole blocks
    server = ps.Server(TP1, budget, min(slots, budget), policy, memory=memory)
    lengths = (ps.Geometric(prompt, max=300), ps.Geometric(output, max=60)) if spread else (prompt, output)
    requests = ps.Workload.poisson(1.0, *lengths, seed=seed).requests(150)
    at_once = requests._replace(arrival_s=np.linspace(0.0, 1e-6, 150))
    run = ps.simulate(ps.Workload.from_arrays(*at_once), server, drain=True)
    if run.dropped == 150:
        return
    recorded = ps.Workload.from_arrays(np.linspace(0, 149, 150), *requests[1:])
    for bound in of(recorded, server):
        assert 150 / bound.max_rate <= run.seconds * (1 + 1e-6), bound
