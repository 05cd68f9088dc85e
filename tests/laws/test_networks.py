"""Theorem and flood test never contradict each other in random networks of engines, memory, limits, routers, kinds of
servers, prefix caches and transfers.
"""

import contextlib
import dataclasses

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.system.batch_time import Composition
from penstock.system.engines import ENGINES
from penstock.system.routing import ROUTERS
from penstock.workload.lengths import Length

POLICIES = (*ENGINES, "sarathi", "orca", "vllm-vanilla", "fastertransformer")


def some_length(rng: np.random.Generator, longest: int) -> Length:
    mean = int(np.exp(rng.uniform(0, np.log(longest))))
    chosen = [ps.Constant(mean), ps.Geometric(mean, max=6 * mean), ps.Uniform(max(1, mean // 2), mean + mean // 2)]
    return chosen[rng.integers(len(chosen))]


def some_server(rng: np.random.Generator) -> ps.Server:
    """Of a policy or an engine; mostly with KV memory, often with batches that take longer for what is in them."""
    policy = str(rng.choice(POLICIES))
    budget = int(rng.choice([256, 600, 1_000]))
    slots = int(rng.choice([4, 16, 64, 200]))
    linear = ps.PiecewiseConstant(
        float(rng.choice([0, 0.01])), float(rng.choice([0.01, 0.03])), int(rng.choice([1, 32]))
    )
    time = linear
    if rng.random() < 0.3:
        pairs = float(rng.choice([1e-7, 1e-6]))
        time = Composition(linear, self_attention=pairs, cross_attention=pairs, decode_attention=1e-6)
    params: dict[str, object] | tuple[()] = ()
    if policy == "vllm" and rng.random() < 0.3:
        params = {"drafts": int(rng.integers(1, 5)), "acceptance": float(rng.choice([0.0, 0.5, 0.9]))}
    memory = int(rng.choice([1_500, 4_000, 20_000])) if rng.random() < 0.85 else None
    return ps.Server(time, budget, slots, policy=policy, kv_tokens=memory, policy_params=params)


def some_pool(rng: np.random.Generator) -> ps.Pool:
    """One kind of server or two, behind any router."""
    router, affinity = str(rng.choice(list(ROUTERS))), bool(rng.random() < 0.2)
    first = some_server(rng)
    if rng.random() < 0.4:
        kinds = [(first, int(rng.integers(1, 3))), (another(rng, first), int(rng.integers(1, 3)))]
        return ps.Pool(kinds, router=router, affinity=affinity)
    return ps.Pool(first, int(rng.choice([1, 1, 2, 3])), router, affinity=affinity)


def another(rng: np.random.Generator, server: ps.Server) -> ps.Server:
    """The same with other limits and a machine of another speed."""
    linear = ps.PiecewiseConstant(0.0, float(rng.choice([0.005, 0.1])), 32)
    budget = int(rng.choice([256, 600]))
    if server.memory is None:
        return dataclasses.replace(server, batch_time=linear, token_budget=budget)
    blocks = server.memory.blocks * int(rng.integers(1, 4))
    memory = dataclasses.replace(server.memory, blocks=blocks)
    return dataclasses.replace(server, batch_time=linear, token_budget=budget, memory=memory)


def caching(pool: ps.Pool) -> ps.Pool:
    """The same pool with prefix caches where its servers may have them."""
    kinds = []
    for server, count in pool.servers:
        memory = server.memory and dataclasses.replace(server.memory, prefix_caching=True)
        kinds.append((dataclasses.replace(server, memory=memory), count))
    return ps.Pool(kinds, router=pool.router, affinity=pool.affinity)


def some_network(rng: np.random.Generator) -> ps.Network:
    """One or two pools, one to three calls, at a load near the tightest of its limits; some with contexts that are
    reused, some prefilled at one pool and decoded at another.
    """
    pools = {name: some_pool(rng) for name in ("one", "two")[: rng.integers(1, 3)]}
    names, count = list(pools), int(rng.integers(len(pools), 4))
    context = str(rng.choice(["new", "new", "grow", "reuse"]))
    apart = rng.random() < 0.5
    stages = {}
    for place in range(count):
        following = {} if place == count - 1 else {str(place + 1): float(rng.choice([0.3, 1.0]))}
        ends = 1 - sum(following.values())
        then = following | ({"end": ends} if ends else {})
        pool = names[place % len(names)]
        prompt: Length | int = some_length(rng, 100)
        transfer = 0.0
        receives = all(server.policy.memory.receives for server, _ in pools[pool].servers)
        if apart and receives and place == count - 1 > 0:
            prompt, transfer = 0, float(rng.choice([0.0, 0.1, 10.0]))
        stages[str(place)] = ps.Stage(pool, prompt, some_length(rng, 100), then=then, transfer_ms_per_token=transfer)
    if context == "reuse" and rng.random() < 0.7:
        with contextlib.suppress(InputError):  # of a scheduler that has no cache
            pools = {name: caching(pool) for name, pool in pools.items()}
    workflow = ps.Workflow("w", ps.Workload.poisson(1.0, 1, 1, seed=1), stages, context=context)
    network = ps.Network(pools, [workflow])
    load = float(rng.choice([0.2, 0.6, 0.9, 1.1, 1.5]))
    return network.with_load(load * ps.certify(network).max_load)


def verdicts(seed: int) -> set[str]:
    """What theory and test say; nothing of networks that an engine refuses."""
    rng = np.random.default_rng(seed)
    try:
        network = some_network(rng)
        found = {ps.certify(network).verdict}
        return found | {ps.verdict(network, resolution=0.05, seed=seed, most_jobs=60_000).verdict}
    except InputError:
        return set()


def contradicting(seeds: range) -> list[int]:
    said = {seed: verdicts(seed) for seed in seeds}
    assert sum(bool(found) for found in said.values()) > 0.3 * len(seeds)
    assert any("unstable" in found for found in said.values())
    return [seed for seed, found in said.items() if {"stable", "unstable"} <= found]


def test_theorem_and_flood_do_not_contradict_each_other() -> None:
    assert contradicting(range(4)) == []


@pytest.mark.slow
def test_theorem_and_flood_do_not_contradict_each_other_in_a_thousand_networks() -> None:
    assert contradicting(range(4, 1_004)) == []


@pytest.mark.parametrize("requests", [7, 1000])
@pytest.mark.parametrize("record", ["summary", "batches"])
def test_a_run_has_the_same_quantiles_as_of_a_server_and_as_of_a_network_of_one(requests: int, record: str) -> None:
    workload = ps.Workload.poisson(3.0, ps.Geometric(100, max=400), ps.Geometric(50, max=200))
    server = ps.Server(ps.Affine(0.01, 1e-4), 256)
    alone = ps.simulate(workload, server, requests=requests, record=record)
    network = ps.simulate(ps.Network.single(workload, server), jobs=requests, record=record)
    stages = {row["metric"]: row for row in network.stages().iter_rows(named=True)}
    for row in alone.latency().iter_rows(named=True):
        other = network.tbt_s if row["metric"] == "tbt_s" else stages[row["metric"]]
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            assert row[statistic] == pytest.approx(other[statistic], rel=1e-12), (row["metric"], statistic)


def some_clients_or_rate(rng: np.random.Generator) -> ps.Workload:
    """Requests of clients, or at a rate, recorded or drawn, some longer than small memories hold."""
    prompt, output = ps.Geometric(100, max=900), ps.Geometric(40, max=300)
    workload = ps.Workload.poisson(float(rng.choice([1.0, 8.0])), prompt, output, seed=int(rng.integers(1_000)))
    if rng.random() < 0.5:
        workload = ps.Workload.from_arrays(*workload.requests(200)[:3])
    if rng.random() < 0.6:
        return workload.with_clients(int(rng.choice([1, 7, 300])), float(rng.choice([0.0, 0.3])))
    return workload


def alike(alone: ps.Run, network: ps.Run) -> list[str]:
    """Return in what a run of a server differs from that of its network of one."""
    assert alone.rows is not None
    assert network.rows is not None
    pairs = {
        name: (getattr(alone.rows, name), getattr(network.rows, name))
        for name in ("arrival", "prompt_tokens", "output_tokens", "first_token", "finish", "dropped")
    }
    for name in ("arrived", "finished", "dropped", "unfinished", "end", "last_arrival", "busy", "tokens", "n_batches"):
        pairs[f"the run's {name}"] = getattr(alone, name), getattr(network, name)
    pairs["ends of jobs"] = alone.finish, network.finish
    return [name for name, (one, other) in pairs.items() if not np.array_equal(one, other)]


@pytest.mark.parametrize("until", [None, 20.0])
@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm", "sglang"])
def test_clients_and_requests_that_never_fit_are_those_of_a_server_in_a_network_of_one(
    policy: str, until: float | None
) -> None:
    """To the nanosecond: who is left out, who is sent when, and what becomes of it."""
    rng = np.random.default_rng(len(policy))
    time = ps.Affine(0.01, 1e-4)
    dropped = clients = 0
    for _ in range(16):
        blocks = int(rng.choice([15, 200])) * (1 if policy != "sglang" else 16)
        memory = ps.Memory(blocks, 1 if policy == "sglang" else 16, too_long="drop")
        server = ps.Server(time, 256, 16, policy, memory=memory if rng.random() < 0.8 else None)
        workload = some_clients_or_rate(rng)
        count = None if until is not None or (rng.random() < 0.5 and workload.rows) else 150
        if until is not None and workload.rows is None and isinstance(workload, ps.ClosedLoop):
            continue
        alone = ps.simulate(workload, server, requests=count, until=until)
        network = ps.simulate(ps.Network.single(workload, server), jobs=count, until=until)
        assert alike(alone, network) == []
        dropped += alone.dropped
        clients += isinstance(workload, ps.ClosedLoop)
    assert dropped > 0
    assert clients > 0


def test_a_client_of_a_network_waits_for_the_whole_job() -> None:
    """Each of several calls, some of them at once, before the next job is sent."""
    stages = {
        "plan": ps.Stage("one", 100, 10, then=["left", "right"]),
        "left": ps.Stage("one", 50, ps.Uniform(1, 40)),
        "right": ps.Stage("two", 50, ps.Uniform(1, 40), delay_ms=300),
    }
    server = ps.Server(ps.Affine(0.01, 1e-4), 256)
    loop = ps.Workload.closed(3, 1, 1, pause_s=0.5, seed=2)
    network = ps.Network({"one": ps.Pool(server), "two": ps.Pool(server)}, [ps.Workflow("agents", loop, stages)])
    run = ps.simulate(network, jobs=60)
    assert (run.arrived, run.finished) == (60, 60)
    ends = np.sort(run.finish)
    assert run.arrival[:3].tolist() == [0, 0, 0]
    assert (run.arrival[3:] == ends[:57] + round(0.5 / run.tick_s)).all()


def test_a_job_is_left_out_of_which_one_request_never_fits() -> None:
    """At the pool whose memory says so; the others go on as if it had not come."""
    time = ps.Affine(0.01, 1e-4)
    small = ps.Server(time, 256, 8, "vllm", memory=ps.Memory(20, too_long="drop"))
    large = ps.Server(time, 256, 8, "vllm", memory=ps.Memory(1_000))
    arrivals = ps.Workload.from_arrays([0.0, 1.0, 2.0], [10, 10, 10], [5, 400, 5])
    stages = {"first": ps.Stage("large", "job", "job", then="second"), "second": ps.Stage("small", 10, "job")}
    pools = {"large": ps.Pool(large), "small": ps.Pool(small)}
    run = ps.simulate(ps.Network(pools, [ps.Workflow("chain", arrivals, stages)]))
    assert (run.arrived, run.finished, run.dropped) == (2, 2, 1)
    assert (run.finish >= 0).tolist() == [True, False, True]
    assert run.requests["job"].to_list() == [0, 0, 1, 1, 2, 2]
    assert run.requests["finish_ns"].is_null().to_list() == [False, False, True, True, False, False]
    pools["small"] = ps.Pool(ps.Server(time, 256, 8, "vllm", memory=ps.Memory(20)))
    with pytest.raises(InputError, match=r"request 3 has 10 prompt .* at pool 'small': it needs .*too_long: drop"):
        ps.simulate(ps.Network(pools, [ps.Workflow("chain", arrivals, stages)]))


@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
def test_what_never_fits_has_its_place_in_every_table_of_a_server_and_of_its_network(policy: str) -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(20, 60, 200)
    prompt[::7] = 500
    workload = ps.Workload.from_arrays(np.arange(200) * 0.05, prompt, rng.integers(3, 9, 200))
    memory = ps.Memory(25, admission="completion" if policy == "sarathi" else None, too_long="drop")
    server = ps.Server(ps.PiecewiseConstant(0.01, 1e-4, 64), 128, 16, policy, memory=memory)
    alone = ps.simulate(workload, server, record="allocations")
    run = ps.simulate(ps.Network.single(workload, server), record="allocations")
    assert alone.dropped == run.dropped == 29
    assert run.allocations.drop("pool", "replica").equals(alone.allocations)
    prefill = alone.allocations.group_by("request").agg(pl.col("prefill_tokens").sum()).sort("request")
    assert prefill["request"].to_list() == np.flatnonzero(prompt < 500).tolist()
    assert prefill["prefill_tokens"].to_list() == prompt[prompt < 500].tolist()
    for one in (alone, run):
        assert one.jobs.height == 200
        assert one.jobs["finish_ns"].null_count() == 29
        assert one.workflows().select("jobs", "unfinished").row(0) == (171, 0)


@pytest.mark.parametrize(("output", "declared"), [(90, 1_000), (5, 1_000), (500, 1_000), (90, 90)])
def test_a_longest_context_cuts_what_is_declared_as_it_cuts_outputs(output: int, declared: int) -> None:
    """Engines with ``max_model_len``, at a server and in its network."""
    lengths = np.full(20, 10), np.full(20, output), None, np.full(20, declared)
    workload = ps.Workload.from_arrays(np.arange(20) * 0.5, *lengths)
    limits = {"max_model_len": 100}
    server = ps.Server(ps.PiecewiseConstant(0.01, 1e-4, 64), 128, 4, "vllm", policy_params=limits, memory=ps.Memory(40))
    alone, run = ps.simulate(workload, server), ps.simulate(ps.Network.single(workload, server))
    assert (alone.tokens, alone.n_batches, alone.end) == (run.tokens, run.n_batches, run.end)
    assert np.array_equal(alone.finish, run.finish)
