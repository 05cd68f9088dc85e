"""The network kernel against its specification, event for event, on thousands of small random networks."""

import dataclasses
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_systems import (
    OWN_POLICIES,
    POLICIES,
    Request,
    System,
    draw_pool,
    draw_system,
    reference_jobs,
    reference_of,
)

import penstock.simulation.running
from penstock.errors import InputError
from penstock.scenario.scenario import read_scenario
from penstock.simulation.rows import FAILED
from penstock.simulation.simulate import simulate, simulate_jobs
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.system.presets import hardware
from penstock.system.routing import Router
from penstock.system.server import Server
from penstock.workload.lengths import Geometric, LogNormal
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload
from tests.reference import markov_chain, simulation

EXAMPLES = Path(__file__).parents[2] / "examples"
A100 = hardware("codellama-34b-a100-tp1").batch_time
RANDOMS = st.randoms(use_true_random=False)


def kernel(system, compress, record="requests"):
    network, jobs = system.network(), system.kernel_jobs()
    options = {"until": system.until, "compress": compress, "record": record, "outages": system.kernel_outages()}
    return simulate_jobs(network, jobs, tick_s=1.0, **options)


def differences(system):
    """Return what differs, as ``(what, compress, by the reference, by the kernel)``: nothing, if all is well."""
    found, history = [], None
    for compress in (False, True):
        run = kernel(system, compress)
        history = history or system.reference(instants=run.series_rows[:, 0].tolist())
        for what, (ours, theirs) in compared(system, history, run).items():
            if ours != theirs.tolist():
                found.append((what, compress, ours, theirs.tolist()))
    return found


def compared(system, history, run):
    """Return what the reference says and what the kernel says of everything that both know."""
    end, arrival = history.end, system.columns["arrival"]
    came = [request for request in history.requests if arrival[request.job] <= end]
    first = [
        0,
        *accumulate(sum(each.replicas for each in (spec, *spec.others)) for spec in system.pools),
    ]  # replicas of all pools are counted through
    places = [r.replica if r.replica is None else r.replica - first[system.stage_pool[r.stage]] for r in came]
    known = ("first_token", "finish")
    none = np.zeros(len(came), np.int64)
    preemptions = run.rows.preemptions
    if preemptions is None:
        preemptions = none
    counts = {
        what: ([getattr(r, what) for r in came], getattr(run.rows, what))
        for what in (("refusals", "wasted") if system.limits else ())
    }
    return {
        "preemptions": ([r.preemptions for r in came], preemptions),
        **{what: ([number(getattr(r, what), end) for r in came], getattr(run.rows, what)) for what in known},
        "ready": ([number(r.came if system.limits else r.reached, end) for r in came], run.rows.arrival),
        "tries": ([r.tries for r in came], none if run.rows.tries is None else run.rows.tries),
        "failed": (
            [CODES[r.failed or ("lost" if r.lost else None)] for r in came],
            none if run.rows.failed is None else run.rows.failed,
        ),
        **counts,
        "cached": ([r.cached for r in came], run.rows.cached),
        "replica": (
            [number(place, len(history.replicas)) for place in places],
            np.where(run.rows.arrival >= 0, np.maximum(run.rows.replica, -1), -1),
        ),
        "arrival": ([tick for tick in arrival if tick <= end], run.arrival),
        "n_batches": (
            [sum(b.end <= end for b in replica.batches) for replica in history.replicas],
            run.by_replica.batches,
        ),
        "busy": ([sum(min(b.end, end) - b.start for b in r.batches) for r in history.replicas], run.by_replica.busy),
        "tokens": (
            [sum(b.token_load for b in r.batches if b.end <= end and not b.died) for r in history.replicas],
            run.by_replica.tokens,
        ),
        "series": ([counted(instant) for instant in history.instants], without_progress(run)),
        "end": (end, np.array(run.end)),
    }


CODES = {None: 0, **{reason: code for code, reason in FAILED.items()}}


def number(tick, end):
    """Return a tick as the kernel writes it; one after the end is known ahead, but not reached."""
    return -1 if tick is None or tick > end else tick


def without_progress(run):
    """Return the kernel's series without the tokens in the batches in progress."""
    servers = run.by_replica.pool.size
    return np.delete(run.queue_rows, slice(-1 - servers, -1), axis=1)


def counted(instant):
    """Return an instant as a row of the kernel's series."""
    phases = [count for stage in zip(instant.prefill, instant.decode, strict=True) for count in stage]
    return [instant.tick, *phases, *instant.unprocessed_tokens, instant.future_tokens]


def assert_endless(system, error):
    """Both end where requests preempt each other for ever, as equal ones admitted by their first chunk may."""
    assert "preempts for ever" in str(error), system
    with pytest.raises(InputError, match="preempt each other for ever"):
        system.reference()


def assert_agree(system):
    try:
        found = differences(system)
    except InputError as error:
        assert_endless(system, error)
        return
    for what, compress, ours, theirs in found:
        pytest.fail(f"{what}, compress={compress}: reference {ours}, kernel {theirs}\n{system}")


# ---------------------------------------------------------------- random networks


@given(RANDOMS)
@settings(max_examples=15)
def test_kernel_and_reference_agree_on_every_event_of_random_networks(random):
    assert_agree(draw_system(random))


def test_kernel_and_reference_agree_on_every_event_of_seeded_networks():
    """Seeds draw more evenly than hypothesis, which draws what shrinks well."""
    for seed in range(20):
        assert_agree(draw_system(Random(seed)))


@given(RANDOMS)
@settings(max_examples=12)
def test_kernel_and_reference_agree_under_policies_and_orders_of_a_users_own(random):
    """They jump about with all that they can see, so that a step of equal batches that are not would show."""
    own = (*OWN_POLICIES, "sarathi")
    assert_agree(draw_system(random, policies=own, orders=("whirled", "round-robin", "back-pressure", "hlpps", "fcfs")))


def test_kernel_and_reference_agree_where_replicas_die_and_come_back():
    """Their requests are sent again or lost, wait where nobody serves, and find no context that died with a replica."""
    systems = [draw_system(Random(seed), dying=True) for seed in range(25)]
    runs = [kernel(system, compress=True) for system in systems if system.outages]
    assert min(sum(run.rows.tries.sum() for run in runs), sum((run.rows.failed < 0).sum() for run in runs)) > 20
    for system in systems:
        assert_agree(system)


@given(RANDOMS)
@settings(max_examples=12)
def test_jobs_that_come_in_blocks_give_what_they_give_at_once(random):
    """Blocks of a few jobs, the rows of finished ones dropped after each; many jobs arrive at the edge of a block."""
    engines = random.choice([(), ("vllm",), ("sglang",), ("vllm", "sglang")])
    system = draw_system(random, engines=engines, dying=random.choice([False, True]))
    last = system.jobs[-1][0] if system.until is None else min(system.jobs[-1][0], system.until)
    system = dataclasses.replace(system, outages=tuple(each for each in system.outages if each.start < last))
    sizes = [random.randint(1, 3) for _ in system.jobs]
    whole, streamed = kernel(system, compress=True), in_blocks(system, sizes)
    for what in ("arrival", "finish", "queue_rows"):
        assert np.array_equal(getattr(whole, what), getattr(streamed, what)), (what, sizes, system)
    for what, count in vars(whole.by_replica).items():
        assert np.array_equal(count, getattr(streamed.by_replica, what)), (what, sizes, system)
    assert whole.end == streamed.end
    for stage, folded in enumerate(streamed.folded):
        samples = whole.samples(stage)
        for metric, kept in zip(("ttft_s", "e2e_s"), folded, strict=True):
            assert kept.size == len(samples[metric][1])
            assert kept.total == samples[metric][1].sum()
    gaps = kernel(system, compress=True, record="batches").gaps
    assert (streamed.gaps.size, streamed.gaps.total) == (gaps.size, gaps.total)


def in_blocks(system, sizes):
    """Run the jobs in blocks of these sizes, keeping no row that is done, but sums."""
    network, jobs = system.network(), system.kernel_jobs()
    stops = np.minimum(np.cumsum([0, *sizes]), jobs.count)
    blocks = [jobs.span(start, stop) for start, stop in pairwise(stops) if stop > start]
    network.__dict__["blocks"] = lambda seed: iter(blocks)
    length = {"jobs": jobs.count} if system.until is None else {"until": float(system.until)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(penstock.simulation.running, "_WINDOW", 0)
        options = {"drain": True, "record": "summary", "tick_s": 1.0, "outages": system.kernel_outages()}
        return simulate(network, **length, **options)


def test_one_replica_dies_as_another_comes_back():
    """Requests that are sent again then wait for nobody, though none served a moment before."""
    assert_agree(draw_system(Random(7496), dying=True))


def test_a_request_that_waits_for_its_only_replica_to_come_back_is_nowhere():
    """Although its row says where its job is at home."""
    assert_agree(draw_system(Random(13588), dying=True))


@pytest.mark.slow
def test_kernel_and_reference_agree_on_thousands_of_random_networks():
    for seed in range(20, 20_020):
        assert_agree(draw_system(Random(seed), dying=seed % 4 == 0))


# ---------------------------------------------------------------- networks as users make them


def assert_agree_in_ns(network, count):
    """Compare all that happens to the requests of the first jobs, in ticks of 1 ns."""
    jobs = network.jobs(count)
    rows = simulate_jobs(network, jobs).rows
    history = simulation.simulate(reference_jobs(jobs, 1e-9), reference_of(network, 1e-9))
    columns = {"arrival": "ready", "first_token": "first_token", "finish": "finish", "cached": "cached"}
    for ours, theirs in columns.items():
        expected = [number(getattr(r, theirs), history.end) for r in history.requests]
        assert getattr(rows, ours).tolist() == expected, ours
    return history


@pytest.mark.parametrize("example", ["research_fork_join", "self_reflection", "disaggregated", "rybko_stolyar"])
def test_the_examples_agree_to_the_nanosecond_under_overload(example):
    network = read_scenario(EXAMPLES / f"{example}.yaml").network.with_load(3.0)
    assert_agree_in_ns(network, 40)


MEASURED = Router.measure(prefill=2, decode=0.5)
EACH_ONCE = [("jsq", True), ("work", False), (MEASURED, True), ("power-of-two", False)]
TURNED = [pytest.param(router, not affinity, marks=pytest.mark.slow) for router, affinity in EACH_ONCE]


@pytest.mark.parametrize(("router", "affinity"), [*EACH_ONCE, *TURNED])
def test_agents_that_go_on_with_their_context_agree_to_the_nanosecond(router, affinity):
    """Two workflows over two pools: a loop with a cap and a fork-join, contexts reused for 2 s, tool calls between."""
    order = "back-pressure" if affinity else "hlpps"
    loop = Workflow(
        "loop",
        Workload.poisson(rate=4.0, prompt=Geometric(200), output=Geometric(30), seed=3),
        {
            "draft": Stage("gpu", "job", "job", then="check"),
            "check": Stage("small", 60, Geometric(10), then={"draft": 0.7, "end": 0.3}, delay_ms=80, most_visits=3),
        },
        context="reuse",
    )
    search = Workflow(
        "search",
        Workload.poisson(rate=2.0, prompt=300, output=20, seed=4),
        {
            "plan": Stage("gpu", "job", 40, then=["web", "notes"]),
            "web": Stage("small", 500, Geometric(40), then="answer", delay_ms=Geometric(300)),
            "notes": Stage("small", 0, 25, then="answer"),
            "answer": Stage("gpu", 100, Geometric(80), join=True),
        },
        context="reuse",
    )
    pools = {
        "gpu": Pool(Server(A100, 256, 16), 2, router, order, affinity),
        "small": Pool(
            Server(A100, 128, 8, policy="orca", scope="batch", convention="paper"), 3, router, order, affinity
        ),
    }
    history = assert_agree_in_ns(Network(pools, [loop, search], retention_s=2.0), 12)
    assert any(request.cached for request in history.requests)


# ---------------------------------------------------------------- one replica is the single server


def calls(system):
    """Return arrivals, prompts and outputs of jobs that are one call each."""
    rows = [(arrival, request.prompt, request.output) for arrival, (request,) in system.jobs]
    return tuple(zip(*rows, strict=True))


def draw_single(random):
    """Draw one replica with one stage that gets calls of one prompt and one output token at least."""
    spec = draw_pool(random, [0], POLICIES, ("fcfs",))
    spec = dataclasses.replace(spec, replicas=1)
    at, jobs = 0, []
    longest, prompt, output = (random.choice(choices) for choices in ([0, 1, 5, 60], [1, 4, 60], [1, 3, 60]))
    for _ in range(random.randint(1, 20)):
        jobs.append((at, (Request(0, random.randint(1, prompt), random.randint(1, output)),)))
        at += random.randint(0, longest)
    until = random.choice([None, random.randint(1, at + 100)])
    return System((spec,), (0,), (1.0,), (1.0,), ((0.0,),), None, tuple(jobs), until)


@given(RANDOMS)
@settings(max_examples=15)
def test_one_replica_is_the_single_server_to_the_tick(random):
    """The kernel of the network, that of the server, and the reference of the server: three programs, one answer."""
    system = draw_single(random)
    (spec,), (arrival, prompt, output) = system.pools, calls(system)
    network = kernel(system, compress=True)
    single = simulate(
        Workload.from_arrays(arrival, prompt, output), spec.server, until=system.until, tick_s=1.0, record="batches"
    )
    history = markov_chain.simulate(
        arrival, prompt, output, batch_time=lambda tokens: spec.ticks[tokens - 1], token_budget=len(spec.ticks),
        max_batch_size=spec.max_batch_size, policy=spec.policy, scope=spec.scope, convention=spec.convention,
        until=system.until,
    )  # fmt: skip
    for what in ("first_token", "finish"):
        by_network = getattr(network.rows, what).tolist()
        assert by_network == [number(getattr(request, what), history.end) for request in history.requests]
        assert by_network == getattr(single.rows, what).tolist()
    assert network.busy == single.busy
    assert network.end == single.end
    assert_agree(system)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_replica_is_the_single_server_to_the_nanosecond(policy):
    """Poisson arrivals and long-tailed lengths at load .9 of an A100, both conventions and both scopes."""
    workload = Workload.poisson(rate=8.0, prompt=LogNormal(300, 1.0), output=Geometric(60), seed=7)
    for scope, convention in [("running", "engine"), ("batch", "paper")]:
        server = Server(A100, 512, 64, policy=policy, scope=scope, convention=convention)
        network = simulate(Network.single(workload, server), jobs=2000, drain=True)
        single = simulate(workload, server, requests=2000, drain=True)
        for what in ("first_token_ns", "finish_ns"):
            assert network.requests[what].to_list() == single.requests[what].to_list()
