"""What a limit of a pool carries is what conservation says, and nothing within what theorems allow is called full."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import InputError
from penstock.system.batch_time import Composition
from penstock.theory.hypotheses import AMPLE
from penstock.theory.network.hypotheses import BY_TOKENS, FROM_OUTSIDE
from penstock.theory.network.pool_limits import PoolLimit, transfer_loads

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SECOND = ps.Affine(c=1.0, a=0.0)
"""Any batch takes a second."""
CHAT = ps.Workload.poisson(1.0, ps.Geometric(129, max=2_000), ps.Geometric(112, max=1_000))


def limits_of(network: ps.Network, pool: str = "pool") -> dict[str, PoolLimit]:
    found = next(each for each in ps.certify(network).pools if each.name == pool)
    return {limit.name: limit for limit in found.limits}


def two_calls(server: ps.Server, rate: float, replicas: int = 1) -> ps.Network:
    """A call of a job's own lengths, and one time of two another one at the same pool."""
    stages = {
        "first": ps.Stage("pool", "job", "job", then={"again": 0.5, "end": 0.5}),
        "again": ps.Stage("pool", 300, ps.Geometric(80, max=800)),
    }
    return ps.Network({"pool": ps.Pool(server, replicas)}, [ps.Workflow("w", CHAT.with_rate(rate), stages)])


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "tensorrt-llm"])
@pytest.mark.parametrize("lengths", [(129, 112), (ps.Geometric(129, max=300), ps.Geometric(112, max=200))])
def test_limits_of_replicas_that_serve_one_call_are_those_of_one_server(policy: str, lengths: tuple) -> None:  # type: ignore[type-arg]
    server = ps.Server(TP1, 512, 64, policy=policy, kv_tokens=20_000)
    alone = ps.certify(ps.Workload.poisson(1.0, *lengths), server)
    network = ps.Network.single(ps.Workload.poisson(3.0, *lengths), server, replicas=3)
    found = limits_of(network)
    assert list(found) == [bound.name for bound in alone.bounds]
    by_name = {bound.name: 1 / bound.max_rate for bound in alone.bounds}
    assert found["token budget"].load == pytest.approx(by_name["token budget"])
    # Of prompts a pool knows the mean alone, so what batches can be made of is more.
    assert 0.9 * by_name["max batch size"] < found["max batch size"].load <= by_name["max batch size"] * (1 + 1e-9)
    memory = found["KV memory"]
    if lengths == (129, 112):
        assert (memory.load, memory.standard_error) == (pytest.approx(by_name["KV memory"]), 0)
    else:
        # What is drawn rounds up to blocks and knows squares, which the formula bounds from below.
        assert by_name["KV memory"] < memory.load < 1.6 * by_name["KV memory"]
        assert 0 < memory.standard_error < 0.01 * memory.load


def test_the_memory_of_calls_that_depend_on_their_job_is_that_of_all_stages_together() -> None:
    """E[g] of a call is known by formula where blocks are of one token, up to the sampling error."""
    server = ps.Server(TP1, 4_096, 256, policy="vllm", kv_tokens=40_000, block_size=1)
    found = limits_of(two_calls(server, 1.0))["KV memory"]

    def mean(prompt: np.ndarray, output: np.ndarray) -> float:
        decodes = output - 1.0
        return float((prompt + prompt * decodes + decodes * (decodes + 1) / 2).mean())

    outputs = ps.Geometric(80, max=800).sample(np.random.default_rng(5), 2**19)
    prompts, own = CHAT.lengths.sample(np.random.default_rng(6), 2**19)
    needed = mean(prompts, own) + 0.5 * mean(np.full(outputs.size, 300), outputs)
    asked = found.load * (40_000 - 1) / float(TP1.table(4_096)[1:].min())
    error = found.standard_error / found.load
    assert asked == pytest.approx(needed, rel=4 * error + 0.01)
    assert error < 0.02


def test_constant_lengths_have_no_error_however_jobs_branch() -> None:
    server = ps.Server(TP1, 512, 64, policy="vllm", kv_tokens=20_000)
    stages = {
        "first": ps.Stage("pool", 200, 100, then={"again": 0.4, "end": 0.6}),
        "again": ps.Stage("pool", 300, 50, then={"first": 0.5, "end": 0.5}),
    }
    network = ps.Network(
        {"pool": ps.Pool(server)}, [ps.Workflow("w", ps.Workload.poisson(1, 1, 1), stages, first="first")]
    )
    found = limits_of(network)["KV memory"]
    assert found.standard_error == pytest.approx(0, abs=1e-12)
    visits = 1 / (1 - 0.2)
    held = sum(
        n * (math.ceil(p / 16) + sum(math.ceil((p + j) / 16) for j in range(1, o)))
        for n, p, o in ((visits, 200, 100), (0.4 * visits, 300, 50))
    )
    assert found.load == pytest.approx(held * float(TP1.table(512)[1:].min()) / (20_000 // 16 - 1))


@pytest.mark.parametrize(("load", "expected"), [(0.9, "stable"), (1.1, "unstable")])
def test_memory_that_is_full_at_a_known_rate_is_certified_and_tested_so(load: float, expected: str) -> None:
    """Requests of 1 prompt and 20 output tokens reserve 20 blocks for 20 batches, of 200 that a replica has."""
    memory = ps.Memory(200, block_size=1, admission="completion")
    server = ps.Server(SECOND, 512, policy="sarathi", memory=memory)
    rate = load * 3 * 10 / 20
    network = ps.Network(
        {"pool": ps.Pool(server, 3)},
        [ps.Workflow("w", ps.Workload.poisson(rate, 1, 1), {"s": ps.Stage("pool", 1, 20)})],
    )
    found = ps.certify(network)
    assert limits_of(network)["KV memory"].load == pytest.approx(load)
    assert found.margin == pytest.approx(1 - load)
    assert found.bottleneck.binding == ("KV memory",)
    assert ps.verdict(network, resolution=0.05, seed=1).verdict == expected
    if expected == "unstable":
        assert found.verdict == "unstable"
        assert found.theorem == "KV memory (Nie, Si, Zhou; Little's law)"
        assert "KV memory lets pool pool carry at most 0.909 times what arrives" in found.reason
        assert found.certified_load is None
    else:
        assert found.verdict == "unknown"
        assert f"{AMPLE} (pool: any number of requests may hold memory" in found.reason


def test_memory_that_surely_holds_all_that_run_leaves_the_theorems_as_they_are() -> None:
    """The same certificate as without memory, and with one block less no certificate."""
    stages = {"s": ps.Stage("pool", ps.Uniform(10, 60), ps.Uniform(1, 41), then="t"), "t": ps.Stage("next", 100, 20)}
    workflow = ps.Workflow("w", ps.Workload.poisson(0.5, 1, 1), stages)

    def certified(blocks: int | None) -> ps.NetworkCertificate:
        server = ps.Server(SECOND, 64, 64, policy="sarathi", kv_blocks=blocks, block_size=10 if blocks else None)
        pools = {"pool": ps.Pool(server), "next": ps.Pool(ps.Server(SECOND, 512))}
        return ps.certify(ps.Network(pools, [workflow]))

    ample, plain = certified(64 * 10), certified(None)
    assert ample.verdict == plain.verdict == "stable"
    assert ample.certified_load == plain.certified_load
    assert AMPLE in [h.name for h in ample.hypotheses]
    tight = certified(64 * 10 - 1)
    assert tight.verdict == "unknown"
    assert "pool: 64 requests of up to 10 blocks need 640" in tight.reason


def test_attention_counts_in_loads_and_nothing_is_certified_beside_it() -> None:
    """The token load alone is a tenth of what the server needs: no certificate may go by it."""
    slow = Composition(ps.Affine(0.01, 1e-5), self_attention=1e-7, cross_attention=1e-7, decode_attention=1e-7)
    server = ps.Server(slow, 512)
    long = ps.Workload.poisson(1.0, ps.Uniform(2_000, 3_000), ps.Uniform(100, 300))
    alone = ps.certify(long, server)
    for scale, expected in ((0.4, "unknown"), (0.9, "unknown"), (1.1, "unstable")):
        workload = long.with_rate(2 * scale * alone.max_rate)
        workflow = ps.Workflow("w", workload, {"s": ps.Stage("pool", "job", "job", then="end")})
        found = ps.certify(ps.Network({"pool": ps.Pool(server, 2)}, [workflow]))
        assert found.rho == pytest.approx(scale, rel=0.01)
        assert found.verdict == expected, found.reason
        failed = [h.name for h in found.hypotheses if not h.held]
        assert BY_TOKENS in failed


def test_engines_that_go_beyond_the_token_budget_are_not_called_full_at_it() -> None:
    """SGLang decodes all that run: 256 requests in batches of 64 tokens."""
    server = ps.Server(ps.Affine(0.01, 1e-4), 64, 256, policy="sglang", kv_tokens=200_000)
    workload = ps.Workload.poisson(1.0, 20, 200)
    within = server.batch_time.capacity(64) / 219
    found = ps.certify(ps.Network.single(workload.with_rate(1.2 * within), server, replicas=1))
    assert found.rho < 0.8
    assert found.verdict == "unknown"
    assert ps.certify(ps.Network.single(workload.with_rate(2.4 * within), server, replicas=2)).verdict == "unknown"


def test_drafts_that_bring_several_outputs_carry_so_many_times_the_decodes() -> None:
    plain = ps.Server(TP1, 512, 32, policy="vllm", kv_tokens=20_000)
    options = {"drafts": 3, "acceptance": 0.8}
    drafting = dataclasses.replace(plain, policy_params=options)
    more = drafting.policy.outputs_per_decode
    assert more > 2
    few, many = (limits_of(ps.Network.single(CHAT, each, replicas=2)) for each in (plain, drafting))
    for name in ("max batch size", "KV memory"):
        assert many[name].load == pytest.approx(few[name].load / more, rel=1e-6)
    assert many["token budget"].load == few["token budget"].load


def test_what_engines_find_of_a_context_is_not_known_and_named() -> None:
    turns = [("pool", 100, 50)] * 3
    server = ps.Server(SECOND, 64, 64, policy="vllm")
    for context, held in (("grow", True), ("reuse", False)):
        workflow = ps.Workflow.chain("w", ps.Workload.poisson(0.01, 1, 1), turns, context=context)
        found = ps.certify(ps.Network({"pool": ps.Pool(server, affinity=True)}, [workflow]))
        assert (FROM_OUTSIDE in [h.name for h in found.hypotheses]) is not held
        if not held:
            assert found.verdict == "unknown"


@settings(max_examples=25, deadline=None)
@given(
    kv_blocks=st.integers(40, 400), slots=st.integers(1, 40), rate=st.floats(0.01, 3.0), replicas=st.integers(1, 4),
    policy=st.sampled_from(["vllm", "sarathi", "orca", "sglang"]),
)  # fmt: skip
def test_a_rate_is_unstable_by_theorem_exactly_if_it_exceeds_a_limit(
    kv_blocks: int, slots: int, rate: float, replicas: int, policy: str
) -> None:
    server = ps.Server(SECOND, 128, slots, policy=policy, kv_blocks=kv_blocks)
    stages = {"s": ps.Stage("pool", 100, 60, then={"t": 0.5, "end": 0.5}), "t": ps.Stage("pool", 40, 20)}
    network = ps.Network(
        {"pool": ps.Pool(server, replicas)}, [ps.Workflow("w", ps.Workload.poisson(rate, 1, 1), stages)]
    )
    found = ps.certify(network)
    loads = [limit.load for limit in found.pools[0].limits]
    assert found.max_load == pytest.approx(1 / max(loads))
    assert (found.verdict == "unstable") == (max(loads) > 1)
    assert found.verdict != "stable"
    twice = ps.certify(network.with_load(2.0))
    assert [limit.load for limit in twice.pools[0].limits] == pytest.approx([2 * load for load in loads])


def test_bytes_that_cross_are_held_against_the_links_of_either_side() -> None:
    found = transfer_loads(4.0, 1_000, 1e5, [1e8, 1e8, 3e8], 8e8)
    assert (found.bytes_per_s, found.sending, found.receiving) == (4e8, 0.8, 0.5)
    assert found.load == 0.8
    assert found.max_scale == 1.25
    free = transfer_loads(4.0, 1_000, 1e5, math.inf, [math.inf, 1.0])
    assert (free.load, free.max_scale) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((-1, 1, 1, 1, 1), "the rate is -1"),
        ((1, math.nan, 1, 1, 1), "prompt_tokens is nan"),
        ((1, 1, 1, [], 1), "bandwidths of the sending replicas"),
        ((1, 1, 1, 1, [1, 0]), "bandwidths of the receiving replicas"),
    ],
)
def test_numbers_of_a_transfer_that_cannot_be_are_refused(numbers: tuple, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=said) as caught:
        transfer_loads(*numbers)
    assert "\n" not in str(caught.value)
