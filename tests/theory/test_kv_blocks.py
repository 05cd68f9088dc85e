"""What requests hold of the KV memory is never less than what is counted, and what fits is what is served."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.kv_blocks import block_iterations, fits, peak_blocks, reserves
from penstock.workload.lengths import Empirical, Independent, Lengths, Recorded, Tabulated

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
CONVENTIONS = st.sampled_from(["paper", "engine"])


def held(prompt: int, output: int, budget: int, size: int, convention: str) -> int:
    """Serve one request alone, the short chunk first, and add up the blocks that it holds in each iteration."""
    total = cached = 0
    while cached < prompt:
        cached += (prompt - cached) % budget or budget
        total += -(-cached // size)
    for _ in range(output - (convention == "engine")):
        cached += 1
        total += -(-cached // size)
    return total


def counted(lengths: Lengths, budget: int, memory: ps.Memory, convention: Any) -> float:
    return block_iterations(lengths, ps.Server(TP1, budget, convention=convention, memory=memory), memory)


@given(
    prompt=st.integers(1, 300),
    output=st.integers(1, 50),
    budget=st.integers(1, 100),
    size=st.integers(1, 40),
    convention=CONVENTIONS,
)
@settings(max_examples=200, deadline=None)
def test_blocks_of_a_request_are_added_up_over_its_iterations(
    prompt: int, output: int, budget: int, size: int, convention: str
) -> None:
    """Exact for one token to a block, and where the prompt takes one iteration; else rounding up is missing."""
    exact = held(prompt, output, budget, size, convention)
    earlier = math.ceil(prompt / budget) - 1
    for lengths in (
        Independent(ps.Constant(prompt), ps.Constant(output)),
        Empirical([prompt, prompt], [output, output]),
    ):
        found = counted(lengths, budget, ps.Memory(10**6, size), convention)
        assert exact - earlier <= found <= exact + 1e-9
        assert size > 1 or found == exact


@given(chunks=st.lists(st.integers(1, 40), min_size=1, max_size=12), size=st.integers(1, 20))
def test_no_way_of_cutting_a_prompt_holds_less(chunks: list[int], size: int) -> None:
    prefill = int((-(-np.cumsum(chunks) // size)).sum())
    assert held(sum(chunks), 1, max(chunks), size, "engine") <= prefill


@pytest.mark.parametrize(
    "lengths",
    [
        Independent(ps.Uniform(1, 900), ps.Geometric(50, max=400)),
        Independent(ps.LogNormal(700, 1.5), ps.Gamma(90, 2)),
        *(Independent(Tabulated(1, np.ones(900)), Tabulated(5, np.arange(200.0)), c) for c in (-1, -0.7, 0, 0.7)),
        Empirical([1, 700, 513], [100, 1, 3]),
        Recorded([1, 700, 513], [100, 1, 3]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("convention", ["paper", "engine"])
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("admission", ["input", "completion"])
def test_the_mean_is_never_more_than_that_of_a_sample(
    lengths: Lengths, convention: Any, size: int, admission: Any
) -> None:
    memory = ps.Memory(10**6, size, admission=admission)
    prompt, output = lengths.sample(np.random.default_rng(0), 5_000)
    last = convention == "engine"
    if admission == "completion":
        each = (-(-prompt // 256) + output - last) * -(-(prompt + output - last) // size)
    else:
        each = np.array(
            [held(p, o, 256, size, convention) for p, o in zip(prompt.tolist(), output.tolist(), strict=True)]
        )
    known = counted(lengths, 256, memory, convention)
    error = 4 * float(each.std()) / math.sqrt(each.size)
    assert 0 < known <= each.mean() + error
    if isinstance(lengths, Empirical):
        assert known >= (1 - 1 / 16) * (each.mean() - error)


@pytest.mark.parametrize("policy", ps.POLICIES)
@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_no_simulated_request_holds_less_memory_than_is_counted(policy: str, convention: Any) -> None:
    """KV tokens in use, integrated over a run, are at least requests * E[g] * the least batch time."""
    server = ps.Server(TP1, 200, 20, policy, convention=convention)
    requests = ps.Workload.poisson(2.0, ps.Uniform(1, 600), ps.Uniform(1, 60)).requests(400)
    run = ps.simulate(ps.Workload.from_arrays(*requests), server, record="allocations")
    rows = run.allocations
    tokens = (rows["prefill_tokens"] + rows["decode_tokens"]).to_numpy()
    seconds = run.batches["duration_ns"].to_numpy()[rows["batch"].to_numpy()] / 1e9
    order = np.lexsort((rows["batch"].to_numpy(), rows["request"].to_numpy()))
    owner, cached = rows["request"].to_numpy()[order], np.cumsum(tokens[order])
    first = np.searchsorted(owner, owner)
    cached = cached - (cached - tokens[order])[first]
    integral = float((cached * seconds[order]).sum())
    recorded = Recorded(requests.prompt_tokens, requests.output_tokens)
    least = block_iterations(recorded, server, ps.Memory(10**6, 1))
    assert integral >= 400 * least * float(TP1.table(200)[1:].min())


@pytest.mark.parametrize("engine", [None, *ps.ENGINES])
@pytest.mark.parametrize("size", [1, 16])
def test_what_fits_is_what_is_served(engine: str | None, size: int) -> None:
    """The simulator drops the same requests; and each that is served holds no more blocks than its peak."""
    memory = ps.Memory(5_000 // size, size, too_long="drop")
    server = ps.Server(TP1, 300, 64, engine or "sarathi", memory=memory)
    requests = ps.Workload.poisson(1.0, ps.Uniform(1, 4_500), ps.Uniform(1, 900)).requests(300)
    run = ps.simulate(ps.Workload.from_arrays(*requests), server)
    fitting = fits(requests.prompt_tokens, requests.output_tokens, server)
    assert ((run.rows.finish >= 0) == fitting).all()  # type: ignore[union-attr]
    most = peak_blocks(requests.prompt_tokens, requests.output_tokens, server, memory)[fitting]
    assert fitting.any()
    assert (most <= memory.blocks).all()


def test_a_request_that_can_never_fit_is_refused_and_told() -> None:
    chat = ps.Workload.poisson(1.0, 129, 112)
    with pytest.raises(ps.InputError, match=r"129 prompt and 112 output tokens needs 15 blocks of 16, .* has 14"):
        ps.certify(chat, ps.Server(TP1, 512, 128, kv_blocks=14))
    assert ps.certify(chat, ps.Server(TP1, 512, 128, kv_blocks=15)).bounds[-1].name == "KV memory"
    with pytest.raises(ps.InputError, match="needs 16 blocks"):
        ps.certify(chat, ps.Server(TP1, 512, 128, kv_blocks=15, convention="paper"))
    with pytest.raises(ps.InputError, match="needs 15 blocks"):
        ps.certify(chat, ps.Server(TP1, 512, 128, "vllm", kv_blocks=15))
    with pytest.raises(ps.InputError, match="is more than tensorrt-llm takes"):
        ps.certify(chat, ps.Server(TP1, 128, 128, "tensorrt-llm"))
    for certified in (ps.certify, lambda *case: ps.certify(ps.Network.single(*case))):
        for kv_blocks in (None, 100):
            short = ps.Server(TP1, 512, 128, "vllm", policy_params={"max_model_len": 129}, kv_blocks=kv_blocks)
            with pytest.raises(ps.InputError, match="no room for an output: its max_model_len is 129"):
                certified(chat, short)
    assert ps.certify(chat, dataclasses.replace(short, policy_params={"max_model_len": 130})).bounds


def test_the_largest_request_is_that_of_one_row_not_the_longest_prompt_with_the_longest_output() -> None:
    """The longest prompt and output may come together where they are drawn apart, and here never do."""
    workload = ps.Workload.from_arrays([0, 1], [10, 900], [800, 20])
    assert ps.certify(workload, ps.Server(TP1, 512, kv_tokens=919, block_size=1)).bounds
    with pytest.raises(ps.InputError, match="900 prompt and 20 output"):
        ps.certify(workload, ps.Server(TP1, 512, kv_tokens=918, block_size=1))


def test_who_reserves_memory_to_completion() -> None:
    engines = {name for name in ps.ENGINES if reserves(ps.Server(TP1, 512, 64, name))}
    assert engines == {"tensorrt-llm"}
    busy = {"capacity": "max_utilization"}
    assert not reserves(ps.Server(TP1, 512, 64, "tensorrt-llm", policy_params=busy))
    assert not reserves(ps.Server(TP1, 512, 64, kv_blocks=10))
    assert reserves(ps.Server(TP1, 512, 64, memory=ps.Memory(10, admission="completion")))
