"""Simulated networks: what every run of them must satisfy, whatever the pools, routers and orders."""

import copy
import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import InputError
from penstock.simulation.simulate import RunOptions, run_network, simulate_jobs
from penstock.system.orders import ORDERS
from tests.network_examples import REVERSED, UNIT, dag, fork_join, rybko_stolyar, self_reflection

EXAMPLES = {"dag": dag, "fork_join": fork_join, "self_reflection": self_reflection, "crossing": rybko_stolyar}
KEPT = ("replica", "arrival", "first_token", "finish", "cached")


def same(one: ps.Run, other: ps.Run) -> bool:
    """Whether two runs are equal to the last tick."""
    assert one.rows is not None
    assert other.rows is not None
    columns = all((getattr(one.rows, name) == getattr(other.rows, name)).all() for name in KEPT)
    counts, others = one.by_replica, other.by_replica
    counters = all((getattr(counts, name) == getattr(others, name)).all() for name in ("batches", "busy", "tokens"))
    return columns and counters and np.array_equal(one.queue_rows, other.queue_rows) and one.end == other.end


@pytest.mark.parametrize("name", EXAMPLES)
def test_compression_changes_nothing(name: str) -> None:
    network = EXAMPLES[name](0.8)
    jobs = network.jobs(2_000)
    assert same(simulate_jobs(network, jobs), simulate_jobs(network, jobs, compress=False))


@pytest.mark.parametrize("name", EXAMPLES)
def test_sections_of_the_times_between_tokens_add_up_to_all_and_change_nothing(name: str) -> None:
    network = EXAMPLES[name](0.8)
    plain = ps.simulate(network, jobs=2_000, seed=3)
    run = run_network(network, 2_000, 3, RunOptions(), gap_sections=40)
    whole = ps.simulate(network, jobs=2_000, seed=3, record="summary")
    assert all((getattr(plain.rows, name) == getattr(run.rows, name)).all() for name in KEPT)
    assert len(run.gap_sections) == 40
    assert run.tbt_s == whole.tbt_s
    assert sum(part.total for part in run.gap_sections) == whole.gaps.total  # type: ignore[union-attr]
    assert sum(part.size for part in run.gap_sections) == whole.gaps.size  # type: ignore[union-attr]
    assert min(part.size for part in run.gap_sections[1:]) > 0


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_copied_network_runs_as_the_original_does(order: str) -> None:
    """As another process would have it, and jobs that the copy draws itself."""
    network = rybko_stolyar(0.8, REVERSED if order == "priority" else order)
    run = ps.simulate(network, jobs=500)
    for copied in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert same(run, ps.simulate(copied, jobs=500))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_run_in_windows_is_the_run_in_one_go(name: str) -> None:
    """``record='jobs'`` hands the kernel blocks and drops what is done: same ends, same series, same counters."""
    network = EXAMPLES[name](0.8)
    whole = ps.simulate(network, jobs=70_000, tick_s=1.0)
    windows = ps.simulate(network, jobs=70_000, tick_s=1.0, record="jobs")
    assert (whole.finish == windows.finish).all()
    assert np.array_equal(whole.queue_rows, windows.queue_rows)
    assert whole.n_batches == windows.n_batches
    with pytest.raises(InputError, match="did not keep its requests"):
        _ = windows.requests


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_summary_has_the_latency_of_the_rows_within_a_thousandth(name: str) -> None:
    """And the same jobs; times between tokens are those that all batches show."""
    network = EXAMPLES[name](0.8)
    whole = ps.simulate(network, jobs=3_000, record="batches")
    summary = ps.simulate(network, jobs=3_000, record="summary")
    assert summary.jobs.equals(whole.jobs)
    exact = whole.stages().filter(pl.col("metric").is_in(["ttft_s", "e2e_s"]))
    rounded = summary.stages()
    names = ["stage", "pool", "metric", "requests"]
    assert rounded.select(names).equals(exact.select(names))
    for column in ("mean", "p50", "p90", "p95", "p99"):
        error = 1e-12 if column == "mean" else 1e-3
        assert rounded[column].to_list() == pytest.approx(exact[column].to_list(), rel=error)
        assert summary.tbt_s[column] == pytest.approx(whole.tbt_s[column], rel=error)


def test_a_run_says_what_it_did_not_keep_and_which_replicas_there_are() -> None:
    network = fork_join(0.4)
    run = ps.simulate(network, jobs=5)
    pool = next(iter(network.pools))
    with pytest.raises(InputError, match="did not count times between tokens; simulate with record='summary'"):
        _ = run.tbt_s
    with pytest.raises(InputError, match="did not keep its batches; simulate with record='batches'"):
        run.at(pool, 0)
    batches = ps.simulate(network, jobs=5, record="batches")
    with pytest.raises(InputError, match="simulate with record='allocations'"):
        ps.audit(batches.at(pool, 0))
    with pytest.raises(InputError, match="unknown pool 'gpus'"):
        batches.at("gpus", 0)
    with pytest.raises(InputError, match="replica is 99"):
        batches.at(pool, 99)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_seed_gives_the_same_run_and_another_a_different_one(name: str) -> None:
    network = EXAMPLES[name](0.8)
    once, again, other = (ps.simulate(network, jobs=500, seed=seed) for seed in (7, 7, 8))
    assert same(once, again)
    assert not (once.finish == other.finish).all()


@settings(max_examples=15)
@given(
    name=st.sampled_from(list(EXAMPLES)),
    order=st.sampled_from([name for name in ps.ORDERS if name != "priority"]),
    policy=st.sampled_from(["fastertransformer", "vllm-vanilla", "orca", "sarathi"]),
    router=st.sampled_from(list(ps.ROUTERS)),
    replicas=st.integers(1, 3),
    slots=st.none() | st.integers(1, 12),
    affinity=st.booleans(),
)
def test_lengths_and_paths_do_not_depend_on_how_requests_are_served(
    name: str, order: str, policy: str, router: str, replicas: int, slots: int | None, affinity: bool
) -> None:
    """And the books are kept: causality, tokens, joins, and an empty network at the end."""
    plain = EXAMPLES[name](0.4)
    server = ps.Server(UNIT.batch_time, 64, slots, policy, convention="paper")
    pools = {pool: ps.Pool(server, replicas, router, order, affinity) for pool in plain.pools}
    network = ps.Network(pools, plain.workflows)
    run = ps.simulate(network, jobs=40, tick_s=1.0, seed=3, drain=True)
    rows = run.rows
    assert rows is not None
    drawn = plain.jobs(40, seed=3)
    for column in ("stage", "prompt", "output", "pending", "child", "coin"):
        assert (getattr(rows.jobs, column) == getattr(drawn, column)).all()
    assert run.finished == run.arrived == 40
    assert (rows.arrival < rows.first_token).all()
    assert (rows.first_token <= rows.finish).all()
    parents = np.flatnonzero(drawn.child)
    children = parents + drawn.child[parents]
    assert (rows.arrival[children] >= rows.finish[parents]).all()
    joins = np.flatnonzero(drawn.pending > 1)
    for join in joins:
        assert rows.arrival[join] == max(rows.finish[p] for p in parents if p + drawn.child[p] == join or
                                       _later_sibling(drawn, p, join))  # fmt: skip
    assert run.tokens == drawn.prompt.sum() + drawn.output.sum()
    assert run.series_rows[-1, 0] <= run.end
    assert (run.by_replica.busy <= run.end).all()
    if affinity:
        where = pl.DataFrame({"job": drawn.job, "pool": network.stage_pool[drawn.stage], "replica": rows.replica})
        assert where.group_by("job", "pool").agg(pl.col("replica").n_unique())["replica"].max() == 1


def _later_sibling(jobs: Any, parent: int, child: int) -> bool:
    """Whether a request is among the further ones that a parent's end releases."""
    place = parent + jobs.child[parent]
    while jobs.sibling[place]:
        place += jobs.sibling[place]
        if place == child:
            return True
    return False


@pytest.mark.parametrize("policy", ["fastertransformer", "vllm-vanilla", "orca", "sarathi", "maxweight"])
@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_one_server_alone_is_the_single_server_to_the_nanosecond(policy: str, convention: str) -> None:
    a100 = ps.hardware("codellama-34b-a100-tp1").batch_time
    server = ps.Server(a100, 512, 64, policy, convention=convention)  # type: ignore[arg-type]
    workload = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
    alone = ps.simulate(workload, server, requests=3_000)
    network = ps.simulate(ps.Network.single(workload, server), jobs=3_000, drain=True)
    assert alone.rows is not None
    assert network.rows is not None
    assert (alone.rows.first_token == network.rows.first_token).all()
    assert (alone.rows.finish == network.rows.finish).all()
    assert network.tokens == alone.tokens
    assert network.n_batches == alone.n_batches
    # both stop at the last finish, and sample the same instants until they have 2,000
    assert network.end == alone.end
    assert np.array_equal(network.series_rows, alone.series_rows)


@pytest.mark.parametrize("replicas", [2, 8])
def test_the_shortest_queue_beats_a_random_one_on_p99_ttft(replicas: int) -> None:
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
    conversation = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
    workload = conversation.with_rate(0.9 * replicas * ps.certify(conversation, server).max_rate)

    def p99(router: str) -> float:
        stages = ps.simulate(ps.Network.single(workload, server, replicas, router), jobs=20_000).stages()
        return float(stages.filter(pl.col("metric") == "ttft_s")["p99"][0])

    assert p99("jsq") < 0.7 * p99("random")
    assert p99("tokens") < p99("jsq")


def test_reuse_costs_new_tokens_only_where_the_context_is() -> None:
    """On one replica all of the context is found; on several, without affinity, less of it."""
    arrivals = ps.Workload.poisson(2.0, 1, 1, seed=4)
    stages = {
        "ask": ps.Stage("p", 100, 20, then="use"),
        "use": ps.Stage("p", 50, 30, delay_ms=500, then={"use": 0.6, "end": 0.4}),
    }
    server = ps.Server(ps.Affine(5e-3, 1e-4), 256)

    def cached(replicas: int, affinity: bool, keep: float | None = None) -> float:
        workflow = ps.Workflow("w", arrivals, stages, context="reuse")
        network = ps.Network(
            {"p": ps.Pool(server, replicas, "random", affinity=affinity)}, [workflow], retention_s=keep
        )
        rows = ps.simulate(network, jobs=2_000).rows
        assert rows is not None
        if (replicas == 1 or affinity) and keep is None:
            assert (rows.cached == rows.jobs.reuse).all()
        return float(rows.cached.sum() / rows.jobs.reuse.sum())

    assert cached(1, False) == cached(4, True) == 1.0
    assert 0.4 < cached(4, False) < 0.9
    assert cached(4, True, keep=0.4) == 0.0  # every call comes half a second after the one before
    assert cached(4, True, keep=10.0) == 1.0


def test_progress_is_told_and_ends_at_one() -> None:
    shares: list[float] = []
    ps.simulate(self_reflection(0.5), jobs=5_000, progress=shares.append)
    assert shares[-1] == 1.0
    assert all(0 <= share <= 1 for share in shares)
    ps.simulate(self_reflection(0.5), until=1_000.0, progress=shares.append)
    assert shares[-1] == 1.0


def test_a_run_up_to_a_time_stops_there_and_counts_what_is_unfinished() -> None:
    run = ps.simulate(rybko_stolyar(0.9, REVERSED), until=500.0, tick_s=1.0)
    rows = run.rows
    assert rows is not None
    assert run.end == 500
    assert 0 < run.finished < run.arrived
    for column in (rows.arrival, rows.first_token, rows.finish):
        assert column.max() <= 500
    assert run.requests.filter(pl.col("arrival_ns").is_null())["replica"].is_null().all()
    assert (run.by_replica.busy <= 500).all()
    assert run.series_rows[-1, 0] == 500
    table = run.workflows()
    assert table["jobs"].sum() == run.arrived
    assert table["unfinished"].sum() == run.arrived - run.finished


def test_tables_say_what_the_rows_say() -> None:
    network = fork_join(0.8)
    run = ps.simulate(network, jobs=30_000, tick_s=1.0)
    rows = run.rows
    assert rows is not None
    e2e = run.finish - run.arrival
    assert run.workflows()["mean"][0] == pytest.approx(e2e.mean())
    assert run.workflows()["p99"][0] == np.quantile(e2e, 0.99)
    stages = {(stage, metric): row for stage, _, metric, *row in run.stages().iter_rows()}
    join = np.flatnonzero(rows.jobs.pending > 1)
    waits = []
    for place in join:
        branches = rows.finish[place - 2 : place]  # search and analyse stand before it
        waits += list(branches.max() - branches)
    count, mean, *_ = stages[("research.synthesise", "join_wait_s")]
    assert count == len(waits)
    assert mean == pytest.approx(np.mean(waits))
    assert {metric for stage, metric in stages if stage == "research.plan"} == {"ttft_s", "e2e_s", "tpot_s"}
    requests = run.requests
    assert requests["finish_ns"].to_list() == (rows.finish * 10**9).tolist()
    assert requests["stage"][0] == "research.plan"
    replicas = run.replicas()
    assert replicas["pool"].to_list() == ["planner", "searcher", "analyst", "writer"]
    assert (replicas["load"] < replicas["busy"] + 1e-9).all()
    loads = network.model().rho
    assert replicas["load"].to_numpy() == pytest.approx(loads, rel=0.1)
    series = run.queues
    assert set(series["what"].unique()) == {"job_tokens", "prefill", "decode", "unprocessed_tokens"}
    assert series.filter(pl.col("what") == "job_tokens")["value"].to_list() == run.queue_rows[:, -1].tolist()


def test_what_cannot_be_simulated_is_refused_in_one_line() -> None:
    network = self_reflection(0.5)
    recorded = ps.Network.single(ps.Workload.from_arrays([0.0, 1.0], [5, 5], [5, 5]), UNIT)
    late = ps.Network.single(ps.Workload.from_arrays([0.0, 9e9], [5, 5], [5, 5]), UNIT)
    simulate: Any = ps.simulate

    @ps.policy
    def idle(queue, limits, params):  # type: ignore[no-untyped-def]
        return 0, 0, ps.DECODE_FIRST

    @ps.policy
    def negative(queue, limits, params):  # type: ignore[no-untyped-def]
        return -1, 0, ps.DECODE_FIRST

    @ps.order
    def boundless(lines, params, weights):  # type: ignore[no-untyped-def]
        weights[0, 0] = 1.0 / max(lines[0, 0] - lines[0, 0], 0.0) if lines[0, 0] < 0 else 1e308 * 10.0
        return 0

    crossing = rybko_stolyar(0.5)

    def with_pool(pool: ps.Pool) -> ps.Network:
        return ps.Network(dict.fromkeys(crossing.pools, pool), crossing.workflows)

    for call, said in (
        (lambda: simulate(UNIT, jobs=5), "or a Network alone"),
        (lambda: simulate(network), "the network never ends"),
        (lambda: simulate(network, jobs=5, until=3.0), "give one of them"),
        (lambda: simulate(network, jobs=0), "jobs is 0"),
        (lambda: simulate(network, until=-1.0), "until is -1"),
        (lambda: simulate(network, jobs=5, record="batch"), "unknown record 'batch'; did you mean"),
        (lambda: simulate(network, jobs=5, tick_s=10.0), "less than half a tick"),
        (lambda: simulate(late), "an arrival of 9e\\+09 s is more ticks"),
        (lambda: simulate(recorded, jobs=5), "has 2 and is replayed once"),
        (lambda: simulate(with_pool(ps.Pool(UNIT.with_policy(idle))), jobs=5), "batch at 0 s while requests wait"),
        (lambda: simulate(with_pool(ps.Pool(UNIT.with_policy(negative))), jobs=5), "negative number of tokens"),
        (lambda: simulate(with_pool(ps.Pool(UNIT, order=boundless)), jobs=5), "gave a weight that is not finite"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_every_pool_may_have_a_policy_of_its_own() -> None:
    pools = {}
    for name in ("fastertransformer", "vllm-vanilla", "orca", "sarathi", "maxweight"):
        pools[name] = ps.Pool(UNIT.with_policy(name))
    workflow = ps.Workflow.chain("w", ps.Workload.poisson(0.1, 1, 1), [(name, 5, 5) for name in pools])
    assert ps.simulate(ps.Network(pools, [workflow]), jobs=5).finished == 5


def test_one_replica_of_an_engine_is_that_engine_alone() -> None:
    """Long prompts, short outputs and little memory."""
    rng = np.random.default_rng(8)
    workload = ps.Workload.from_arrays(np.arange(150) * 0.05, rng.integers(900, 2_000, 150), rng.integers(1, 120, 150))
    memory = ps.Memory(281, 16, watermark=0.0)
    server = ps.Server(ps.Affine(c=0.01, a=1e-5), 512, 16, policy="vllm", memory=memory)
    alone = ps.simulate(workload, server).requests
    network = ps.simulate(ps.Network.single(workload, server)).requests
    for column in ("arrival_ns", "first_token_ns", "finish_ns", "preemptions"):
        assert network[column].to_list() == alone[column].to_list()
    assert alone["preemptions"].sum() > 0


def test_pools_that_wait_for_each_others_memory_for_ever_are_said_to() -> None:
    """KV memory goes both ways, each side keeps what it sends until the other has room, and neither has."""
    server = ps.Server(ps.Affine(c=0.1, a=1e-3), 64, 8, policy="vllm", memory=ps.Memory(12, 16))
    calls = ps.Workload.from_arrays([0.0] * 8, [150] * 8, [20] * 8)
    there = ps.Workflow.disaggregated(calls, prefill="x", decode="y", transfer_ms_per_token=0.1, name="there")
    back = ps.Workflow.disaggregated(calls, prefill="y", decode="x", transfer_ms_per_token=0.1, name="back")
    pools = {"x": ps.Pool(server), "y": ps.Pool(server)}
    with pytest.raises(ps.InputError, match=r"14 requests wait for ever from 2.8.* pools send each other KV memory"):
        ps.simulate(ps.Network(pools, [there, back]))
    assert ps.simulate(ps.Network(pools, [there])).finished == 8
