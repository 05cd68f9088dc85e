"""Beside a prefix cache one load is shown, with its name, and the margin is what it leaves."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.checking.backlog import Backlog
from penstock.checking.pools import pool_answers
from penstock.simulation.event_session import EventSession
from penstock.system.prefix_cache import as_serving
from penstock.workload.prefixes import Prefixes

SLOW = ps.Affine(0.01, 1e-4)


def recorded(rows: int = 150, shared: int = 8, rate: float = 20.0, seed: int = 0) -> ps.Workload:
    """Sessions of five prompts each, of which every one has the blocks of the one before and two more."""
    rng = np.random.default_rng(seed)
    ids, session = [], 0
    for row in range(rows):
        session += row % 5 == 0
        blocks = shared + 2 * (row % 5)
        ids.append([1_000_000 + i if i < 2 else session * 1_000 + i for i in range(blocks)])
    prompt = np.array([16 * len(row) for row in ids]) + rng.integers(1, 16, rows)
    return ps.Workload.from_arrays(
        np.arange(rows) / rate, prompt, rng.integers(2, 30, rows), hash_ids=ids, hash_block=16
    )


def server(policy: str = "vllm", blocks: int = 2_000, **memory: Any) -> ps.Server:
    size = 1 if policy == "sglang" else 16
    return ps.Server(SLOW, 256, 256, policy=policy, memory=ps.Memory(blocks * 16 // size, size, **memory))


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_rho_and_margin_of_a_document_are_of_one_load_which_the_run_measured(policy: str) -> None:
    workload = recorded()
    answer = ps.check(workload, server(policy), estimate_memory=False)
    document = answer.as_dict()
    load, run = document["load"], answer.run
    assert answer.certificate.binding.name == "token budget"
    assert document["certificate"]["margin"] == pytest.approx(1 - load["rho"], abs=1e-12)
    assert load["rho_at_least"] <= load["rho"] == load["rho_measured"] < load["rho_without_cache"]
    # Nobody was preempted, so what is left is what batches had.
    assert run.preemptions == 0
    computed = run.tokens / run.finished * load["arrival_rate"] / load["capacity_tokens_per_s"]
    assert load["rho"] == pytest.approx(computed, rel=1e-3)
    text = str(answer.page().sections[0].facts[0])
    assert "measured" in text
    assert f"{load['rho_without_cache']:.3f} without the prefix cache" in text


def test_without_a_cache_the_load_is_what_it_was() -> None:
    off = server(prefix_caching=False)
    workload = recorded(rate=5.0)
    answer = ps.check(workload, off, estimate_memory=False)
    load = answer.as_dict()["load"]
    assert load["rho"] == answer.certificate.load.rho
    assert load["rho_at_least"] is load["rho_without_cache"] is load["rho_measured"] is None
    assert load["rho"] == ps.certify(workload, off).rho


def test_a_certificate_alone_shows_the_least_load_and_the_margin_that_goes_with_it() -> None:
    certificate = ps.certify(recorded(), server())
    assert certificate.measured is None
    assert certificate.margin == pytest.approx(1 - certificate.rho, abs=1e-12)
    assert certificate.rho == certificate.rho_at_least < certificate.load.rho
    assert certificate.load_as_dict()["rho"] == certificate.rho


def test_no_verdict_goes_by_what_was_measured() -> None:
    certificate = ps.certify(recorded(), server())
    measured = certificate.with_found(0.1, as_serving(recorded(), server()))
    assert measured.rho > certificate.rho
    assert (measured.verdict, measured.bounds, measured.max_rate, measured.certified_rate) == (
        certificate.verdict, certificate.bounds, certificate.max_rate, certificate.certified_rate,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(data=st.data(), block=st.integers(1, 20))
def test_what_is_computed_once_is_the_same_whoever_comes_first(data: st.DataObject, block: int) -> None:
    """Names follow from all tokens before them, so the blocks computed are the nodes of a tree."""
    paths = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=1, max_size=12))
    beyond = data.draw(st.lists(st.integers(0, block), min_size=len(paths), max_size=len(paths)))

    def computed(order: list[int]) -> int:
        rows = [[hash(tuple(paths[row][: k + 1])) % 2**40 for k in range(len(paths[row]))] for row in order]
        prompt = np.array([len(paths[row]) * block + beyond[row] for row in order])
        counts = np.array([len(row) for row in rows], np.int64)
        flat = np.array([name for row in rows for name in row], np.int64)
        whole = Prefixes.of(flat, counts, np.maximum(prompt, 1), block)
        per_row = whole.computed_once(np.maximum(prompt, 1))
        assert (per_row >= 1).all()
        assert (per_row <= np.maximum(prompt, 1)).all()
        return int(per_row[prompt % block > 0].sum()) if block > 1 else 0

    forward = computed(list(range(len(paths))))
    backward = computed(list(range(len(paths)))[::-1])
    nodes = {tuple(path[: k + 1]) for path in paths for k in range(len(path))}
    if block > 1 and all(0 < more < block for more in beyond):
        assert forward == backward == len(nodes) * block + sum(beyond)


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
@pytest.mark.parametrize("seed", range(3))
def test_no_cache_finds_more_than_what_others_computed(policy: str, seed: int) -> None:
    workload = recorded(seed=seed, rate=4.0)
    assert workload.prefixes is not None
    run = ps.simulate(workload, server(policy, 50_000))
    prompt = run.requests["prompt_tokens"].to_numpy()
    assert run.preemptions == 0
    assert 0 < run.reused_tokens <= prompt.sum() - workload.prefixes.computed_once(prompt).sum()
    assert run.found_share == pytest.approx(run.reused_tokens / prompt.sum())


def test_a_verdict_finds_in_a_recording_what_one_pass_finds() -> None:
    """The recording goes on with other prompts, so a large cache does not know all of the next time."""
    unlike = ps.Workload.from_arrays(
        np.arange(200) / 5, [640] * 200, [5] * 200, hash_ids=[[40 * i + k for k in range(40)] for i in range(200)],
        hash_block=16,
    )  # fmt: skip
    large = server(blocks=100_000)
    assert ps.certify(unlike, large).rho == pytest.approx(ps.certify(unlike, large).load.rho)
    off = dataclasses.replace(large, memory=ps.Memory(100_000, prefix_caching=False))
    rate = ps.max_rate(unlike, off, precision=0.05).rate
    for share, expected in ((0.94, "stable"), (1.11, "unstable")):
        assert ps.verdict(unlike.with_rate(share * rate), large).verdict == expected


@pytest.mark.slow
def test_where_much_is_found_the_measured_load_is_1_where_the_highest_rate_is() -> None:
    large, alike = server(blocks=100_000), recorded(1_000)
    rate = ps.max_rate(alike, large, precision=0.02).rate
    assert ps.check(alike.with_rate(rate), large, estimate_memory=False).certificate.rho == pytest.approx(1, rel=0.06)


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_a_recording_that_goes_on_has_names_for_what_came_of_it_and_no_more(policy: str) -> None:
    """5,000 rows that share one block had names for 20,005,000 requests, which filled 320 MB."""
    rows = 5_000
    workload = ps.Workload.from_arrays(
        np.arange(rows) / 5, [20] * rows, [5] * rows, hash_ids=[[7]] * rows, hash_block=16
    )
    serving = as_serving(workload, server(policy, blocks=4_000))
    session = Backlog(workload, serving, "prefill", 10, (100.0, 25.0), (1.0, 1.0)).session
    assert isinstance(session, EventSession)
    assert session.named > 4_000 * rows
    ids = session.world.ids
    assert session.offered <= ids.size < 2 * session.offered
    assert (np.diff(ids[::rows]) > 0).all()  # each time another
    assert session.world.again.prefix.tolist() == list(range(session.world.again.size))


def agents(context: str, rate: float = 1.0, policy: str = "vllm", **memory: Any) -> ps.Network:
    """Two pools, a fork, a join and a loop."""
    stages = {
        "plan": ps.Stage("big", 600, ps.Geometric(60, max=400), then=["web", "code"]),
        "web": ps.Stage("small", 900, ps.Geometric(50, max=300), delay_ms=500, then="merge"),
        "code": ps.Stage("small", 300, ps.Geometric(90, max=600), delay_ms=2000, then="merge"),
        "merge": ps.Stage("big", 200, ps.Geometric(80, max=500), join=True, then={"plan": 0.3, "end": 0.7}),
    }
    flow = ps.Workflow("agent", ps.Workload.poisson(rate, 1, 1), stages, context=context)
    pools = {"big": ps.Pool(server(policy, 20_000, **memory), 2), "small": ps.Pool(server(policy, 20_000, **memory))}
    return ps.Network(pools, [flow])


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_each_pool_of_a_network_shows_the_load_that_its_run_measured(policy: str) -> None:
    loads = {}
    for caching in (None, False):
        network = agents("grow", 0.5, policy, prefix_caching=caching)
        certificate, run = ps.certify(network), ps.simulate(network, jobs=1_000)
        assert run.recomputed_tokens == 0
        tokens = np.bincount(run.by_replica.pool, run.by_replica.tokens)
        loads[caching] = [*zip(pool_answers(network, certificate, run), certificate.pools, tokens, strict=True)]
    for (pool, loaded, tokens), (without, _, in_full) in zip(loads[None], loads[False], strict=True):
        assert pool.rho_at_least == loaded.rho <= pool.rho < pool.rho_without_cache == pytest.approx(without.rho)
        assert pool.margin == pytest.approx(1 - pool.rho)
        # Theorems and limits go by the least.
        assert loaded.margin == pytest.approx(1 - loaded.rho, abs=1e-6)
        # The share that batches had of all tokens, here and in the run without a cache.
        assert pool.rho / without.rho == pytest.approx(tokens / in_full, rel=0.02)
        assert without.found_share is without.rho_at_least is without.rho_without_cache is None


def test_the_document_of_a_network_shows_one_load() -> None:
    answer = ps.check(agents("reuse"), jobs=200, resolution=0.1)
    load = answer.as_dict()["load"]
    assert load["margin"] == pytest.approx(1 - load["rho"])
    assert load["rho_at_least"] <= load["rho"] < load["rho_without_cache"]
    assert load["max_load"] == pytest.approx(answer.certificate.max_load)
    assert answer.loads == {pool.name: pool.rho for pool in answer.pools}
    assert "measured" in str(answer.page().sections[0].facts[0])


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
@pytest.mark.parametrize("seed", range(3))
def test_no_replica_finds_more_of_a_context_than_its_pool_has_computed(policy: str, seed: int) -> None:
    """Of a context some may come from the other pool only, where nobody has it."""
    network = agents("reuse", 0.3, policy)
    run = ps.simulate(network, jobs=300, seed=seed)
    assert run.rows is not None
    most, jobs = network.found_at_most(run.rows.jobs), run.rows.jobs
    for index in range(2):
        here = network.stage_pool[jobs.stage] == index
        cached = int(run.rows.cached[here].sum())
        assert 0 < cached <= most[here].sum() < np.minimum(jobs.reuse, jobs.prompt - 1)[here].sum()
