"""Certificates of networks say what a theorem says, name the pool, and never say stable where a hypothesis fails."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_models import (
    BAD_ORDER,
    GOOD_ORDER,
    faster,
    long_calls_first,
    loop,
    network_model,
    ring,
    route,
    router_named,
    rybko_stolyar,
)

import penstock as ps
from penstock.errors import InputError
from penstock.system.network import Network, Pool
from penstock.system.network_model import NetworkModel
from penstock.system.orders import ORDERS, Order
from penstock.system.routing import ROUTERS
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.hypotheses import FILLS, SLOTS, Hypothesis
from penstock.theory.network.certificate import of_pools
from penstock.theory.network.demand import network_demand
from penstock.theory.network.fluid import network_path
from penstock.theory.network.hypotheses import PoolRules, pool_rules
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow


def rules(model: NetworkModel, **fields: object) -> list[PoolRules]:
    return [PoolRules(**fields) for _ in model.pools]  # type: ignore[arg-type]


def ranked(model: NetworkModel, ranking: tuple[str, ...] | list[str]) -> list[PoolRules]:
    """Static priority at each pool, highest first."""
    pool = dict(zip(model.stages, model.pool.tolist(), strict=True))
    here = [tuple(name for name in ranking if pool[name] == s) for s in range(len(model.pools))]
    return [PoolRules(order="priority", ranking=own) for own in here]


def fork_join(rho: float, order: str = "fcfs") -> tuple[NetworkModel, list[PoolRules]]:
    """Planned, searched at three pools, merged; the last pool is the busiest (Figure "agentic workflows" (b))."""
    onward = np.zeros((5, 5))
    onward[0, 1:4], onward[1:4, 4] = 1, 1 / 3
    joins = [False] * 4 + [True]
    model = network_model(range(5), [100, 200, 300, 400, 450], [50] * 5, [1, 0, 0, 0, 0], onward, 500, joins=joins)
    model = faster(model, rho)
    return model, [PoolRules(order=order, ranking=(name,) if order == "priority" else None) for name in model.stages]


@st.composite
def acyclic(draw: st.DrawFn, rho: float) -> NetworkModel:
    """Up to five pools, of which the busiest has this load; jobs go to later pools, or come back to the same."""
    pools = draw(st.integers(1, 5))
    count = draw(st.integers(pools, 8))
    pool = sorted(
        [*range(pools), *draw(st.lists(st.integers(0, pools - 1), min_size=count - pools, max_size=count - pools))]
    )
    weights = np.array(
        draw(st.lists(st.lists(st.integers(0, 3), min_size=count, max_size=count), min_size=count, max_size=count))
    )
    weights = weights * (np.subtract.outer(pool, pool) <= 0)
    onward = 0.8 * weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)
    external = [1.0, *draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=count - 1, max_size=count - 1))]
    lengths = st.lists(st.integers(0, 30), min_size=count, max_size=count)
    model = network_model(pool, [1 + n for n in draw(lengths)], draw(lengths), external, onward)
    return faster(model, rho / model.rho.max())


@pytest.mark.parametrize(
    ("rho", "verdict"), [(0.5, "stable"), (0.999, "stable"), (1.0, "critical"), (1.001, "unstable")]
)
@pytest.mark.parametrize("order", sorted(ORDERS))
@given(data=st.data())
@settings(max_examples=5)
def test_without_cycles_a_network_is_stable_exactly_if_every_load_is_below_1(
    rho: float, verdict: str, order: str, data: st.DataObject
) -> None:
    model = data.draw(acyclic(rho))
    ranking = {
        s: tuple(n for n, p in zip(model.stages, model.pool, strict=True) if p == s) for s in range(len(model.pools))
    }
    given_rules = [PoolRules(order=order, ranking=ranking[s] if order == "priority" else None) for s in ranking]
    found = of_pools(model, given_rules)
    assert found.verdict == verdict
    assert found.rho == pytest.approx(rho)
    assert found.margin == pytest.approx(1 - rho)
    assert found.bottleneck.name == model.pools[int(np.argmax(model.rho))]
    assert found.max_load == pytest.approx(1 / rho)
    assert found.certified_load == pytest.approx(1 / rho)
    assert found.any_policy is None
    if verdict == "stable":
        assert found.theorem == ("multi-class theorem" if len(model.pools) == 1 else "DAG theorem")
    if verdict != "stable":
        assert found.bottleneck.name in found.reason


@given(model=st.sampled_from([0.3, 0.8, 0.97]).flatmap(acyclic), random=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_pools_drain_no_later_than_the_certificate_says(model: NetworkModel, random: object) -> None:
    """Wherever a backlog is, under any priority order."""
    ranking = [name for name, rate in zip(model.stages, model.visits, strict=True) if rate > 0]
    random.shuffle(ranking)  # type: ignore[attr-defined]
    found = of_pools(model, rules(model))
    start = {name: float(random.randint(0, 3)) for name in ranking}  # type: ignore[attr-defined]
    start[ranking[0]] = 1.0
    path = network_path(model, ranking, start)
    assert path.drained
    backlog = np.array([start.get(name, 0.0) for name in model.stages])
    visits = np.linalg.solve(np.eye(len(backlog)) - model.onward.T, backlog)
    work = np.bincount(model.pool, visits * (model.prefill + model.decode), len(model.pools)) / model.capacity
    for s, pool in enumerate(found.pools):
        own = path.requests[:, path.pool == s].sum(axis=1)
        assert pool.drain_s is not None
        assert path.time_s[own > 0].max(initial=0) <= pool.drain_s * work.max() * (1 + 1e-9)
        assert (path.slope[path.time_s > pool.drain_s * work.max() * (1 + 1e-9)][:, path.pool == s] == 0).all()


def test_drain_times_add_up_along_a_chain() -> None:
    found = of_pools(faster(route([0, 1], [1, 2]), 0.25), rules(route([0, 1], [1, 2])))
    assert [pool.drain_s for pool in found.pools] == pytest.approx([1 / 0.75, (1 + 1 / 0.75) / 0.5])


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_a_fork_join_with_one_pool_near_saturation_is_stable_and_just_beyond_unstable(order: str) -> None:
    found = of_pools(*fork_join(0.99, order))
    assert (found.verdict, found.theorem) == ("stable", "fork-join theorem")
    assert (found.bottleneck.name, found.order[0], found.order[-1]) == ("s4", ("s0",), ("s4",))
    assert found.certified_load == pytest.approx(1 / 0.99)
    beyond = of_pools(*fork_join(1.01, order))
    assert (beyond.verdict, beyond.theorem) == ("unstable", "Theorem 1(a)")
    assert "tokens arrive at pool s4 1.010 times as fast as any policy can process them" in beyond.reason


def test_the_bound_on_a_join_counts_the_fullest_branch_only_where_all_pools_serve_in_order_of_arrival() -> None:
    (found,) = of_pools(*fork_join(0.9)).joins
    assert (found.stage, found.branches, found.k_fcfs) == ("w.4", 3, True)
    at_most = "done branches that wait: at most 2 for each unfinished request in"
    assert found.bound == f"{at_most} the fullest branch, and a constant number more"
    (other,) = of_pools(*fork_join(0.9, "priority")).joins
    assert other.bound == f"{at_most} any branch"
    model, fcfs = fork_join(0.9)
    (spread,) = of_pools(dataclasses.replace(model, replicas=np.array([1, 2, 1, 1, 1])), fcfs).joins
    assert not spread.k_fcfs


def test_decodes_alone_overtake_prompts_so_no_bound_on_a_join_counts_the_fullest_branch_beside_them() -> None:
    """In a line with both, decodes go in order of entering decode; a prompt waits while they fill the batches."""
    model, fcfs = fork_join(0.9)
    beside = dataclasses.replace(model, pool=np.array([0, 1, 2, 1, 4]), prefill=model.prefill * [1, 1, 1, 0, 1])
    (found,) = of_pools(beside, fcfs).joins
    assert not found.k_fcfs
    (alone,) = of_pools(dataclasses.replace(beside, pool=model.pool), fcfs).joins
    assert alone.k_fcfs
    for fields in ({"decode_first": False}, {"delays_vary": True}):
        (found,) = of_pools(model, [dataclasses.replace(rule, **fields) for rule in fcfs]).joins
        assert not found.k_fcfs


def test_a_join_of_branches_with_loops_waits_for_as_many_as_were_forked() -> None:
    again = {"then": {"draft": 0.5, "merge": 0.5}}
    stages = {
        "plan": Stage("planner", 10, 10, then=["draft", "search"]),
        "draft": Stage("writer", 10, 10, **again),
        "search": Stage("searcher", 10, 10, then="merge"),
        "merge": Stage("merger", 10, 10, join=True),
    }
    pools = {stage.pool: Pool(SERVER) for stage in stages.values()}
    network = Network(pools, [Workflow("task", ps.Workload.poisson(1, 1, 1), stages)])
    (found,) = certify(network).joins
    assert (found.branches, found.k_fcfs) == (2, False)
    stages["draft"] = Stage("writer", 10, 10, then="merge")
    (found,) = certify(Network(pools, [Workflow("task", ps.Workload.poisson(1, 1, 1), stages)])).joins
    assert (found.branches, found.k_fcfs) == (2, True)
    stages["draft"] = Stage("writer", 10, 10, then="merge", delay_ms=ps.Geometric(100))
    (found,) = certify(Network(pools, [Workflow("task", ps.Workload.poisson(1, 1, 1), stages)])).joins
    assert not found.k_fcfs


def test_under_decode_first_stages_that_only_decode_go_before_all_with_a_prompt() -> None:
    """The order of the stages says otherwise; simulated, this grows at load .9 and drains at .5."""
    decode_last = network_model(
        [0, 1, 1, 0],
        [64, 0, 64, 0],
        [0, 512, 0, 512],
        [1, 0, 1, 0],
        [[0, 1, 0, 0], [0] * 4, [0, 0, 0, 1], [0] * 4],
        768,
        stages=("A.1", "A.2", "B.1", "B.2"),
    )
    for rho, verdict in ((0.9, "unstable"), (0.57, "unstable"), (0.56, "stable")):
        model = faster(decode_last, rho * 768 / 576)
        assert of_pools(model, rules(model, order="decode-first")).verdict == verdict


def test_round_robin_spreads_no_stage_evenly_beside_one_without_tokens() -> None:
    """Each job takes two turns, so of two replicas one gets all the work; simulated, it grows at load .9."""
    stages = {"mark": Stage("pool", 0, 0, then="work"), "work": Stage("pool", 150, 50)}
    rate = 0.9 * 2 * SERVER.token_budget / float(SERVER.batch_time(SERVER.token_budget)) / 200
    for router, verdict in (("round-robin", "unknown"), ("random", "stable"), ("jsq", "stable")):
        pools = {"pool": Pool(SERVER, replicas=2, router=router)}
        workload = ps.Workload.poisson(rate, 1, 1)
        found = certify(Network(pools, [Workflow("task", workload, stages)]))
        assert found.verdict == verdict, router


def test_requests_that_come_back_to_random_replicas_must_be_like_those_before_them() -> None:
    again = {"then": {"call": 0.5, "end": 0.5}}
    for prompt, context, verdict in ((10, "new", "stable"), ("job", "new", "unknown"), (10, "grow", "unknown")):
        stages = {"call": Stage("pool", prompt, 10, **again)}
        task = Workflow("task", ps.Workload.poisson(1, 10, 1), stages, context=context)
        found = certify(Network({"pool": Pool(SERVER, replicas=4, router="random")}, [task]))
        hypothesis = next(h for h in found.hypotheses if h.name == "replicas drain as one server would")
        assert hypothesis.held == (verdict == "stable")
        assert found.verdict == verdict


def test_in_a_cycle_lengths_that_come_with_the_job_are_no_new_draws() -> None:
    """Where only one request of a job has them, they are."""
    for first, second, held in ((10, 10, True), ("job", 10, True), ("job", "job", False)):
        there = {"1": Stage("one", first, 10, then="2"), "2": Stage("two", second, 10)}
        back = {"1": Stage("two", 10, 10, then="2"), "2": Stage("one", 10, 10)}
        workflows = [Workflow(n, ps.Workload.poisson(1, 10, 1), s) for n, s in (("there", there), ("back", back))]
        found = certify(Network({"one": Pool(SERVER), "two": Pool(SERVER)}, workflows))
        assert found.verdict == ("stable" if held else "unknown")
    again = {"1": Stage("one", "job", 10, then="2"), "2": Stage("two", 10, 10, then={"1": 0.5, "end": 0.5})}
    workflow = Workflow("again", ps.Workload.poisson(1, 10, 1), again)
    found = certify(Network({"one": Pool(SERVER), "two": Pool(SERVER)}, [workflow]))
    assert "again.1: lengths come with the job" in found.reason


@pytest.mark.parametrize(
    ("rho", "verdict"), [(0.54, "stable"), (0.5588, "stable"), (0.56, "unstable"), (0.99, "unstable")]
)
def test_the_bad_priority_of_the_rybko_stolyar_network_fails_above_its_virtual_station(
    rho: float, verdict: str
) -> None:
    found = of_pools(rybko_stolyar(rho), ranked(rybko_stolyar(), BAD_ORDER))
    assert found.verdict == verdict
    assert found.certified_load == pytest.approx(608 / 1088 / rho, rel=1e-5)
    assert found.virtual_station is not None
    if verdict == "unstable":
        assert found.theorem is not None
        assert found.theorem.startswith("virtual station")
        assert "never serves B.2 and A.2 at the same time" in found.reason
        assert f"it fails above {608 / 1088 / rho:.4f} times this load" in found.reason


@pytest.mark.parametrize("name", [SLOTS, FILLS])
def test_a_virtual_station_says_nothing_where_the_fluid_model_does_not_hold(name: str) -> None:
    fails = (Hypothesis(name, False, "it does not"),)
    static = [dataclasses.replace(rule, replica=fails) for rule in ranked(rybko_stolyar(), BAD_ORDER)]
    found = of_pools(rybko_stolyar(0.9), static)
    assert (found.verdict, found.virtual_station) == ("unknown", None)
    sure, model = ranked(rybko_stolyar(), BAD_ORDER), rybko_stolyar(0.9)
    less = dataclasses.replace(model, least_prefill=model.prefill * 0)
    assert of_pools(less, sure).verdict == "unknown"


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.999])
def test_the_reversed_priority_is_stable_by_the_linear_program(rho: float) -> None:
    found = of_pools(rybko_stolyar(rho), ranked(rybko_stolyar(), GOOD_ORDER))
    assert found.verdict == "stable"
    assert found.theorem == "linear program (Dai and Vande Vate 2000)"
    assert found.certified_load == pytest.approx(1 / rho)
    assert "jobs go round between s0 - s1" in found.reason
    assert found.order == (("s0", "s1"),)
    assert [pool.drain_s for pool in found.pools] == [None, None]


@pytest.mark.parametrize(
    ("order", "decode_first", "limit"),
    [
        ("fcfs", True, 608 / 1088),
        ("hlpps", True, 608 / 1088),
        ("back-pressure", True, 608 / 1088),
        ("round-robin", True, 608 / 1088),
        ("fcfs", False, 608 / 1120),
        ("back-pressure-phase", True, 608 / 1120),
        ("someone's own", True, 608 / 1120),
        ("decode-first", True, 1.0),  # the static order of stages as listed, which is the good one at the first pool
    ],
)
def test_orders_that_are_not_static_are_certified_as_far_as_any_order_is(
    order: str, decode_first: bool, limit: float
) -> None:
    below = of_pools(rybko_stolyar(limit * 0.999), rules(rybko_stolyar(), order=order, decode_first=decode_first))
    assert below.verdict == "stable"
    assert below.certified_load == pytest.approx(1 / 0.999, rel=1e-5)
    if limit < 1:
        above = of_pools(rybko_stolyar(0.9), rules(rybko_stolyar(), order=order, decode_first=decode_first))
        assert (above.verdict, above.theorem) == ("unknown", None)
        assert above.certified_load == pytest.approx(limit / 0.9, rel=1e-5)
        assert "of pools are certified' (jobs go round between s0 - s1; the linear program certifies" in above.reason


def test_what_others_have_shown_of_an_order_is_said_and_not_claimed() -> None:
    found = of_pools(rybko_stolyar(0.9), rules(rybko_stolyar(), order="hlpps"))
    assert "under HLPPS are stable below load 1 (Bramson 1996), which is not shown here" in found.reason


def test_a_ring_without_a_virtual_station_is_unstable_by_its_fluid_paths() -> None:
    model = ring(3, long=0.9, rho=0.7)
    found = of_pools(model, ranked(model, long_calls_first(model)))
    assert (found.verdict, found.theorem) == ("unstable", "fluid path of a static priority")
    assert found.virtual_station is None
    assert f"by {(0.63 / 0.37) ** 3:.4g}" in found.reason
    assert of_pools(faster(model, 0.78), ranked(model, long_calls_first(model))).verdict == "stable"


@pytest.mark.parametrize("rho", [0.3, 0.9, 0.99])
def test_self_reflection_is_stable_under_any_order_of_stages(rho: float) -> None:
    model = loop(2, 0.4, [400, 650], [250, 40], rho)
    for order in ("fcfs", "hlpps", "round-robin"):
        assert of_pools(model, rules(model, order=order)).verdict == "stable"


@pytest.mark.parametrize("replicas", [2, 8, 64])
@pytest.mark.parametrize("router", ["jsq", "random", "tokens", "work", "measure", "round-robin", "power-of-two"])
def test_parallel_replicas_of_one_stage_are_stable_up_to_their_summed_capacity(router: str, replicas: int) -> None:
    model = network_model([0], [129], [112], [1.0], [[0.0]], replicas=[replicas])
    for rho, verdict in ((0.95, "stable"), (1.05, "unstable")):
        found = of_pools(faster(model, rho / 241), rules(model, router=router_named(router)))
        assert found.verdict == verdict
    assert of_pools(faster(model, 0.5 / 241), rules(model, router=router_named(router))).theorem == (
        "multi-class theorem, parallel-server proposition"
        + ("" if router in ("jsq", "random") else " with its remark on routers")
    )


@pytest.mark.parametrize(
    ("onward", "affinity", "known"),
    [
        (np.zeros((2, 2)), False, ("jsq", "tokens", "work", "measure", "random", "power-of-two")),
        (np.zeros((2, 2)), True, ("jsq", "tokens", "work", "measure", "random")),
        ([[0, 1], [0, 0]], False, ("jsq", "tokens", "work", "measure")),
        ([[0, 1], [0, 0]], True, ("jsq", "tokens", "work", "measure", "random")),
    ],
)
def test_two_stages_of_a_pool_of_replicas_are_covered_for_routers_that_keep_them_balanced(
    onward: np.ndarray, affinity: bool, known: tuple[str, ...]
) -> None:
    model = network_model([0, 0], [10, 20], [5, 5], [0.01, 0.01], onward, replicas=[4])
    for router in ("jsq", "tokens", "work", "measure", "random", "round-robin", "power-of-two", "my own"):
        found = of_pools(model, rules(model, router=router_named(router), affinity=affinity))
        assert found.verdict == ("stable" if router in known else "unknown"), router
        assert (found.certified_load is None) == (router not in known)


def test_replicas_in_a_cycle_need_a_router_that_spares_busy_ones() -> None:
    model = rybko_stolyar(0.5, replicas=4)
    assert of_pools(model, rules(model)).verdict == "stable"
    for fields in ({"router": ROUTERS["random"]}, {"affinity": True}, {"router": ROUTERS["round-robin"]}):
        assert of_pools(model, rules(model, **fields)).verdict == "unknown"


@pytest.mark.parametrize(
    ("router", "verdict"), [("random", "unstable"), ("jsq", "unknown"), ("round-robin", "unknown")]
)
def test_the_bad_priority_is_known_to_fail_at_replicas_that_all_get_the_same_shares(router: str, verdict: str) -> None:
    """Behind the shortest queue, simulated, four replicas stand loads at which one server fails: some run dry first."""
    model = rybko_stolyar(0.6, replicas=4)
    static = [dataclasses.replace(rule, router=router_named(router)) for rule in ranked(model, BAD_ORDER)]
    found = of_pools(model, static)
    assert (found.verdict, found.virtual_station is not None) == (verdict, verdict == "unstable")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (FILLS, "vllm-vanilla leaves room in batches while requests wait"),
        (FILLS, "nothing is known of mine"),
        (SLOTS, "8 is below the token budget"),
    ],
)
def test_a_pool_that_may_leave_batches_short_is_named_and_nothing_is_certified(name: str, why: str) -> None:
    model = faster(route([0, 1], [1, 1]), 0.5)
    short = PoolRules(replica=(Hypothesis(name, False, why),))
    found = of_pools(model, [short, PoolRules()])
    assert (found.verdict, found.theorem, found.certified_load) == ("unknown", None, None)
    assert f"'{name}" in found.reason
    assert f"(s0: {why}" in found.reason
    assert of_pools(faster(model, 3), [short, PoolRules()]).verdict == "unstable"


def test_a_claim_about_a_policy_is_reported_as_trust() -> None:
    claim = Hypothesis(FILLS, True, "mine fills the token budget", checked=False)
    found = of_pools(route([0], [0.5]), [PoolRules(replica=(claim,))])
    assert found.verdict == "stable"
    assert found.reason.endswith("if what is taken on trust holds: work-conserving policy at every pool")


def test_hypotheses_of_the_caller_count() -> None:
    failed = Hypothesis("i.i.d. arrivals", False, "recorded")
    assert of_pools(route([0], [0.5]), [PoolRules()], [failed]).verdict == "unknown"
    assert of_pools(route([0], [1.5]), [PoolRules()], [failed]).verdict == "unstable"


def test_full_batches_that_carry_less_than_others_certify_only_what_they_carry() -> None:
    model = dataclasses.replace(route([0], [0.9]), full_batch=np.array([0.8]))
    found = of_pools(model, [PoolRules()])
    assert found.verdict == "unknown"
    assert found.certified_load == pytest.approx(0.8 / 0.9)
    assert found.max_load == pytest.approx(1 / 0.9)
    assert "smaller ones carry more" in found.reason


def test_sampled_means_too_near_load_1_are_not_judged() -> None:
    def sampled(rho: float) -> Certificate:
        model = dataclasses.replace(route([0], [rho]), sampled=65_536, standard_error=np.array([0.01]))
        return of_pools(model, [PoolRules()])

    assert [sampled(rho).verdict for rho in (0.95, 0.97, 1.03, 1.05)] == ["stable", "unknown", "unknown", "unstable"]
    assert "is 0.9700 +- 0.0400 by 65,536 sampled jobs, too near 1 to tell" in sampled(0.97).reason


def test_attention_sampled_too_near_load_1_is_not_judged() -> None:
    """The error comes from what attention takes; the means themselves are exact."""
    server = ps.Server(ps.Composition(ps.Affine(c=0.01, a=1e-4), decode_attention=1e-7), 512, policy="vllm")
    lengths = ps.Geometric(600, max=2_400), ps.Geometric(100, max=400)

    def twice(rate: float) -> ps.Network:
        stages = {"one": ps.Stage("pool", "job", "job", then="two"), "two": ps.Stage("pool", "job", "job")}
        workflow = ps.Workflow("w", ps.Workload.poisson(rate, *lengths), stages)
        return ps.Network({"pool": ps.Pool(server, 2)}, [workflow])

    load = ps.certify(twice(1.0)).pools[0].rho
    certificate = ps.certify(twice(1.0 / load))
    assert certificate.verdict == "unknown"
    assert "by sampled jobs, too near 1 to tell" in certificate.reason


def test_loops_whose_later_visits_differ_are_not_certified_by_their_means() -> None:
    model = dataclasses.replace(loop(2, 0.4, [10, 10], [5, 5], 0.5), sampled=65_536)
    found = of_pools(model, rules(model))
    assert (found.verdict, found.certified_load) == ("unknown", None)
    assert "stages forget the way to them" in found.reason
    chain = dataclasses.replace(route([0, 1], [0.5, 0.5]), sampled=65_536)
    assert of_pools(chain, rules(chain)).verdict == "stable"
    rough = dataclasses.replace(chain, capacity=chain.capacity * 2, full_batch=chain.capacity * 0.51)
    rough = dataclasses.replace(rough, standard_error=np.array([0.01, 0.01]))
    found = of_pools(rough, rules(rough))
    assert (found.verdict, found.certified_load) == ("unknown", pytest.approx(0.51 / 0.54))


def test_an_upper_bound_on_the_load_proves_stability_and_no_overload() -> None:
    def found(load: float, least: float) -> Certificate:
        model = route([0], [load])
        prefill = (model.prefill + model.decode) * least / load - model.decode
        return of_pools(dataclasses.replace(model, least_prefill=prefill), [PoolRules()])

    assert found(0.9, 0.8).verdict == "stable"
    between = found(1.5, 0.8)
    assert between.verdict == "unknown"
    assert "if replicas reuse nothing, the load of pool s0 is 1.500" in between.reason
    assert "reuse all that they may 0.800" in between.reason
    overloaded = found(1.5, 1.2)
    assert overloaded.verdict == "unstable"
    assert "1.200 times as fast" in overloaded.reason


def test_rules_and_rankings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="1 rules for 2 pools; give one per pool"):
        of_pools(rybko_stolyar(0.5), [PoolRules()])
    wrong = [PoolRules(order="priority", ranking=("A.1", "A.2")), PoolRules(order="priority", ranking=("A.2", "B.1"))]
    with pytest.raises(
        InputError, match=re.escape("the ranking of pool 's0' has the stages A.1, A.2, but it serves A.1, B.2")
    ):
        of_pools(rybko_stolyar(0.5), wrong)


SERVER = ps.Server(ps.PiecewiseConstant(c=1.0, a=0.0, b0=768), token_budget=768, convention="paper")


def tasks(name: str, first: str, second: str, rate: float, prompt: ps.Geometric | None = None) -> Workflow:
    return Workflow(
        name,
        ps.Workload.poisson(rate=rate, prompt=1, output=1),
        {
            "1": Stage(first, 32, prompt or 32, then="2"),
            "2": Stage(second, 512, 32),
        },
    )


def pair(rho: float, orders: tuple[Order | str, Order | str], prompt: ps.Geometric | None = None) -> Network:
    rate = rho * 768 / 608
    pools = {"one": Pool(SERVER, order=orders[0]), "two": Pool(SERVER, order=orders[1])}
    return Network(pools, [tasks("A", "one", "two", rate, prompt), tasks("B", "two", "one", rate, prompt)])


def test_what_has_no_load_is_not_certified() -> None:
    workload = ps.Workload.from_arrays([2, 2, 2], [10, 10, 10], [5, 5, 5])
    network = Network.single(workload, ps.Server(ps.Affine(c=0.01, a=1e-4), 512))
    with pytest.raises(InputError, match="has no arrival rate, since all its recorded jobs begin at one instant; give"):
        certify(network)
    with pytest.raises(InputError, match="certify takes a Workload and a Server, or a Network alone, not"):
        certify(workload)  # type: ignore[call-overload]


def test_a_network_is_certified_as_its_model_is() -> None:
    bad = (Order.priority(["B.2", "A.1"]), Order.priority(["A.2", "B.1"]))
    assert certify(pair(0.54, bad)).verdict == "stable"
    found = certify(pair(0.9, bad))
    assert found.verdict == "unstable"
    assert "never serves B.2 and A.2 at the same time" in found.reason
    assert certify(pair(0.9, ("fcfs", "fcfs"))).verdict == "unknown"


def test_contexts_that_grow_round_a_loop_without_end_are_limited_by_its_visits() -> None:
    def bounded(most_visits: int | None, output: int | ps.Geometric) -> Hypothesis:
        ways = {"ask": 0.5, "end": 0.5}
        stages = {"ask": ps.Stage("pool", 100, output, then=ways, most_visits=most_visits)}
        workflow = ps.Workflow("loop", ps.Workload.poisson(0.1, 1, 1), stages, context="grow")
        found = certify(ps.Network({"pool": ps.Pool(ps.Server(ps.Affine(0.01, 1e-4), 256))}, [workflow]))
        return next(h for h in found.hypotheses if h.name == "bounded lengths")

    assert bounded(3, 20).held
    assert "limit it by `most_visits`" in bounded(None, 20).why
    assert "give their distributions a `max`" in bounded(None, ps.Geometric(20)).why


def test_unbounded_lengths_leave_stability_unknown_and_instability_certain() -> None:
    bad = (Order.priority(["B.2", "A.1"]), Order.priority(["A.2", "B.1"]))
    found = certify(pair(0.5, bad, ps.Geometric(32)))
    assert found.verdict == "unknown"
    assert "bounded lengths' (those of A have no upper limit" in found.reason
    assert certify(pair(0.9, bad, ps.Geometric(32))).verdict == "unstable"


def test_a_single_pool_is_certified_as_a_server_is() -> None:
    server = ps.Server(ps.PiecewiseConstant(c=11.28e-3, a=35.47e-3, b0=128), token_budget=512)
    for rate in (5.0, 13.0, 13.8, 14.5):
        workload = ps.Workload.poisson(rate=rate, prompt=129, output=112)
        one = ps.certify(workload, server)
        found = certify(Network.single(workload, server))
        assert (found.verdict, found.rho) == (one.verdict, pytest.approx(one.rho))
        many = certify(Network.single(workload.with_rate(8 * rate), server, replicas=8))
        assert (many.verdict, many.rho) == (one.verdict, pytest.approx(one.rho))


def test_recorded_arrivals_and_policies_that_leave_room_are_not_certified() -> None:
    server = ps.Server(ps.PiecewiseConstant(c=11.28e-3, a=35.47e-3, b0=128), token_budget=512, policy="vllm-vanilla")
    found = certify(Network.single(ps.Workload.poisson(rate=5.0, prompt=129, output=112), server))
    assert "vllm-vanilla leaves room" in found.reason
    recorded = ps.Workload.from_arrays([0.0, 1.0, 2.0, 3.5], [10] * 4, [10] * 4)
    other = certify(Network.single(recorded, dataclasses.replace(server, policy=ps.POLICIES["sarathi"])))
    assert other.verdict == "unknown"
    assert "i.i.d. arrivals" in other.reason


def test_rules_of_pools_say_what_orders_and_policies_do() -> None:
    @ps.policy(work_conserving=True)
    def mine(queue, limits, params):  # type: ignore[no-untyped-def]
        return queue.prompt_tokens, queue.decoding, ps.PREFILL_FIRST

    own = dataclasses.replace(SERVER, policy=mine, max_batch_size=100)
    workload = ps.Workload.poisson(rate=1.0, prompt=10, output=10)
    network = Network({"a": Pool(own, 3, "random", affinity=True), "b": Pool(SERVER, order="hlpps")}, [
        Workflow("w", workload, {"x": Stage("a", 10, 10, then="y"), "y": Stage("b", 10, 10)})
    ])  # fmt: skip
    first, second = pool_rules(network, network_demand(network)[1])
    fills, slots = (next(h for h in first.replica if h.name == name) for name in (FILLS, SLOTS))
    assert (fills.held, fills.checked, first.decode_first, slots.held) == (True, False, False, False)
    assert fills.why.startswith("mine fills the token budget")
    assert (first.router.name, first.affinity, first.phases) == ("random", True, True)
    assert (second.order, second.phases, second.k_fcfs) == ("hlpps", False, False)
    assert all(h.checked for h in second.replica)


def test_a_network_of_one_server_is_certified_as_the_server_is() -> None:
    """Also where its max batch size binds: what no policy carries, and what the drift certificate adds."""
    a100 = ps.hardware("codellama-34b-a100-tp1").batch_time
    server = ps.Server(a100, 2048, 64)
    for rate, verdict in ((5.5, "unstable"), (4.0, "unknown"), (3.0, "stable")):
        workload = ps.Workload.poisson(rate, 200, 300)
        alone, network = ps.certify(workload, server), ps.certify(ps.Network.single(workload, server))
        assert network.verdict == alone.verdict == verdict
        assert network.max_load == pytest.approx(alone.max_rate / rate, rel=1e-6)
        assert network.margin == pytest.approx(alone.margin, abs=1e-6)


def test_round_robin_is_not_certified_where_lengths_depend_on_one_another() -> None:
    """With contexts that grow a fork delivers long and short requests by turns: one replica gets all the long."""
    fast, slow = ps.Server(ps.Affine(1e-3, 0.0), 20_000), ps.Server(ps.Affine(0.01, 1e-4), 512)
    stages = {
        "plan": ps.Stage("fast", 10, 10, then=["b", "c"]),
        "b": ps.Stage("fast", 10, 10, then="d"),
        "c": ps.Stage("fast", 4_000, 10, delay_ms=100, then="d"),
        "d": ps.Stage("slow", 10, 10),
    }
    rate = 0.75 * 2 * slow.batch_time.capacity(512) / 4_200
    workflow = ps.Workflow("w", ps.Workload.poisson(rate, 1, 1), stages, context="grow")
    for router, verdict in (("round-robin", "unknown"), ("jsq", "stable")):
        pools = {"fast": ps.Pool(fast), "slow": ps.Pool(slow, 2, router)}
        assert ps.certify(ps.Network(pools, [workflow])).verdict == verdict
