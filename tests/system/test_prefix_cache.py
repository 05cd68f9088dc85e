"""Engines cache what prompts have in common unless told otherwise; where they cannot, a note says so."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import penstock as ps
from penstock.capacity import recommend
from penstock.scenario.scenario import build
from penstock.system.prefix_cache import cache_notes, names_for, network_notes
from tests.asked_once import asked_once

SLOW = ps.Affine(0.01, 1e-4)
ALIKE = ps.Workload.from_arrays(
    np.arange(40) * 3.0, [200] * 40, [5] * 40, hash_ids=[list(range(12))] * 40, hash_block=16
)
"""Prompts of 200 tokens, of which 192 are the same."""


MEMORY = ps.Memory(1_000)


def server(policy: str = "vllm", memory: ps.Memory | None = MEMORY, **more: Any) -> ps.Server:
    return ps.Server(SLOW, 256, 64, policy=policy, memory=memory, **more)


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_an_engine_caches_what_hash_ids_name_unless_told_otherwise(policy: str) -> None:
    """The engine has its cache on, so the default is what `prefix_caching: true` does."""
    unsaid = ps.simulate(ALIKE, server(policy))
    told = ps.simulate(ALIKE, server(policy, ps.Memory(1_000, prefix_caching=True)))
    off = ps.simulate(ALIKE, server(policy, ps.Memory(1_000, prefix_caching=False)))
    assert unsaid.reused_tokens == told.reused_tokens == 39 * 192
    assert unsaid.requests.equals(told.requests)
    assert off.reused_tokens == 0
    assert unsaid.server.caches_prefixes
    assert not cache_notes(ALIKE, server(policy))
    assert not cache_notes(ALIKE, server(policy, ps.Memory(1_000, prefix_caching=False)))


@pytest.mark.parametrize("context", ["grow", "reuse"])
@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_an_engine_finds_the_context_of_a_job_whether_it_grows_or_is_to_be_reused(policy: str, context: str) -> None:
    turns = [("pool", 100, 60)] * 4
    flow = ps.Workflow.chain("w", ps.Workload.poisson(0.2, 1, 1), turns, context=context)

    def found(caching: bool | None) -> float:
        pool = ps.Pool(server(policy, ps.Memory(2_000, prefix_caching=caching)))
        return ps.simulate(ps.Network({"pool": pool}, [flow]), jobs=50).found_share

    assert found(None) == found(True) > 0.5
    assert found(False) == 0


def test_a_policy_of_the_paper_reuses_a_context_only_where_that_is_said() -> None:
    turns = [("pool", 100, 60)] * 4
    shares = []
    for context in ("grow", "reuse"):
        flow = ps.Workflow.chain("w", ps.Workload.poisson(0.2, 1, 1), turns, context=context)
        network = ps.Network({"pool": ps.Pool(ps.Server(SLOW, 256))}, [flow])
        shares.append(ps.simulate(network, jobs=50).found_share)
    assert shares[0] == 0 < shares[1]


def test_without_names_nothing_changes() -> None:
    """What has nothing in common is served as before, preemptions and all."""
    workload = ps.Workload.poisson(2.0, 200, 50)
    unsaid, off = (
        ps.simulate(workload, server(memory=ps.Memory(60, prefix_caching=caching)), requests=500)
        for caching in (None, False)
    )
    assert unsaid.preemptions > 0
    assert unsaid.requests.equals(off.requests)


@pytest.mark.parametrize(
    ("system", "said"),
    [
        (server(memory=None), "KV memory, which has no size here; give kv_tokens"),
        (server("sglang", None), "KV memory, which has no size here; give kv_tokens"),
        (server("tensorrt-llm"), "tensorrt-llm has no prefix cache here"),
        (server("sarathi"), "sarathi caches no prefixes unless asked to"),
    ],
)
def test_ids_that_nobody_makes_use_of_are_told_in_front(system: ps.Server, said: str) -> None:
    answer = ps.check(ALIKE, system, estimate_memory=False)
    assert said in answer.front[0]
    assert answer.front[0] in answer.as_dict()["warnings"]
    assert answer.page().notes[0] == answer.front[0]
    assert answer.run.reused_tokens == 0
    network = ps.Network.single(ALIKE, system)
    assert said in network_notes(network)[0]
    if not system.by_lines:
        assert said in ps.check(network).as_dict()["warnings"][0]


@pytest.mark.parametrize("command", ["check", "simulate", "max-rate", "recommend"])
def test_ids_that_are_drawn_at_random_are_told_once(
    command: str, tmp_path: Path, penstock: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "\n".join(f"{i},{64 + i % 3},{8 + i % 5},1 2 {9 + i}" for i in range(40))
    (tmp_path / "turns.csv").write_text(f"arrival_s,prompt_tokens,output_tokens,hash_ids\n{rows}\n")
    document = {
        "workload": {"trace": "turns.csv", "hash_block": 16, "rate": 0.5, "arrivals": "poisson"},
        "server": {"batch_time": {"c_ms": 10, "a_ms": 20, "b0": 128}, "policy": "vllm", "max_num_batched_tokens": 512,
                   "max_num_seqs": 4, "kv_tokens": 4_000},
        "simulate": {"requests": 200},
    }  # fmt: skip
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(document))
    more = ("--precision", 0.2) if command in ("max-rate", "recommend") else ()
    asked_once(monkeypatch, recommend, "recommend")
    code, page, _ = penstock(command, str(scenario), *more, "--why")
    assert not code
    assert " ".join(page.split()).count("hash ids are left out") == 1
    _, said, _ = penstock(command, str(scenario), *more, "--json")
    assert sum("hash ids are left out" in warning for warning in json.loads(said)["warnings"]) == 1


def test_ids_that_are_drawn_at_random_are_told_in_front() -> None:
    drawn = ALIKE.with_rate(0.3, "poisson")
    assert "hash ids are left out" in cache_notes(drawn, server())[0]
    for without in (server("sarathi", None), server("sarathi"), server("vllm", ps.Memory(1_000, prefix_caching=False))):
        assert not cache_notes(drawn, without)


def test_each_policy_that_takes_the_place_of_another_has_its_own_default() -> None:
    """The memory of a network's engine is no word of the user that its prefixes be cached."""
    network = ps.Network.single(ALIKE, server())
    engine = network.pools["pool"].server
    assert engine.caches_prefixes
    assert not engine.with_policy("sarathi").caches_prefixes
    assert not engine.with_policy("tensorrt-llm").caches_prefixes
    assert engine.with_policy("sglang").caches_prefixes


def test_verdicts_certificates_and_rates_see_the_same_cache() -> None:
    """At ten times the rate prompts in full are too much, and what is left of them is not."""
    fast = ALIKE.with_rate(60.0)
    off = server(memory=ps.Memory(1_000, prefix_caching=False))
    assert ps.certify(fast, off).verdict == "unstable"
    assert ps.certify(fast, server()).verdict == "unknown"
    assert ps.verdict(fast, off).verdict == "unstable"
    assert ps.verdict(fast, server()).verdict == "stable"
    assert ps.max_rate(ALIKE, server(), precision=0.1).rate > 1.3 * ps.max_rate(ALIKE, off, precision=0.1).rate
    assert ps.lower_bounds(fast, server())["ttft_s"]["mean"] < ps.lower_bounds(fast, off)["ttft_s"]["mean"]


@pytest.mark.parametrize(("ids", "blocks"), [(16, 16), (512, 16), (48, 32), (16, 64), (20, 30)])
def test_ids_of_any_block_size_name_the_blocks_of_the_server_as_far_as_they_are_known(ids: int, blocks: int) -> None:
    """Two prompts of which n blocks are the same have all server blocks in common that lie in those."""
    rng = np.random.default_rng(0)
    common = [int(n) for n in rng.integers(0, 5, 30)]
    rows = [list(range(n)) + [1_000 + 10 * i + j for j in range(5 - n)] for i, n in enumerate(common)]
    workload = ps.Workload.from_arrays(np.arange(30.0), [5 * ids] * 30, [1] * 30, hash_ids=rows, hash_block=ids)
    assert workload.prefixes is not None
    named = workload.prefixes.in_blocks(blocks)
    assert (np.diff(named.bounds) == 5 * ids // blocks).all()
    lists = [named.ids[a:b].tolist() for a, b in zip(named.bounds[:-1], named.bounds[1:], strict=True)]
    for i, one in enumerate(lists):
        assert len(set(one)) == len(one)
        for j, other in enumerate(lists[:i]):
            alike = min(common[i], common[j]) * ids // blocks
            assert [a == b for a, b in zip(one, other, strict=True)] == [k < alike for k in range(len(one))]


def test_a_cache_of_small_blocks_finds_what_large_ids_name() -> None:
    rows = [[1, 2]] * 4
    workload = ps.Workload.from_arrays(np.arange(4) * 9.0, [1100] * 4, [5] * 4, hash_ids=rows, hash_block=512)
    for blocks, size in ((100, 512), (1_000, 16)):
        assert ps.simulate(workload, server(memory=ps.Memory(blocks, size))).reused_tokens == 3 * 1024
    one = names_for(workload.prefixes, [server("sglang", ps.Memory(9_000, 1)).serving(True)])  # type: ignore[arg-type]
    assert one is workload.prefixes  # a tree of tokens takes ids as they are


CASES = Path(__file__).parents[2].parent / "shared" / "data" / "user_cases"


@pytest.mark.skipif(not CASES.exists(), reason="the user cases are not beside the repository")
def test_the_agent_of_a_user_has_the_caches_of_its_engines() -> None:
    """Nothing is said of caches in the one, all in the other: both are the same system."""
    from penstock.document import read_document

    plain, cached = (build(read_document(CASES / f"{name}.yaml"), CASES).network for name in ("agent", "agent_cached"))
    assert not network_notes(plain)
    first, second = (ps.simulate(network, jobs=100) for network in (plain, cached))
    assert first.found_share == second.found_share > 0.1
    off = dataclasses.replace(
        plain,
        pools={
            name: ps.Pool(
                dataclasses.replace(pool.server, memory=dataclasses.replace(pool.server.memory, prefix_caching=False)),
                pool.replicas,
            )
            for name, pool in plain.pools.items()
        },
    )
    assert ps.simulate(off, jobs=100).found_share == 0
