"""Networks whose pools are engines: what each replica does is what one server does with the same arrivals."""

import dataclasses
from random import Random

import pytest
from engine_systems import OF_THE_PAPER
from network_systems import EngineSpec, draw_system
from test_network import assert_agree

from penstock.system.engines import ENGINES

FAMILY = (*ENGINES, *OF_THE_PAPER)


def alone(system, spec, requests):
    """Return one server of the kernel with the requests that came to a replica, as they came."""
    start = requests[0].ready
    return dataclasses.replace(
        spec.system,
        arrival=tuple(request.ready - start for request in requests),
        prompt=tuple(system.columns["prompt"][request.index] for request in requests),
        output=tuple(max(system.columns["output"][request.index], 1) for request in requests),
        priority=tuple(request.priority for request in requests),
        declared=None,
        until=None if system.until is None else system.until - start,
    ), start


def with_transfers(history):
    """Return the replicas that send KV memory, or get some."""
    received = [request for request in history.requests if request.receives and request.source is not None]
    return [request.source for request in received] + [history.replicas[request.replica] for request in received]


def assert_replicas_serve_as_alone(system):
    """Each replica of engines, with what came to it, serves it as one server of the kernel; return the preemptions."""
    preemptions = 0
    history = system.reference()
    kinds = [each for spec in system.pools for each in (spec, *spec.others)]
    specs = [spec for spec in kinds for _ in range(spec.replicas)]
    for replica, spec in zip(history.replicas, specs, strict=True):
        requests = replica.arrived
        # A workload has no requests without an output, which the convention of the paper tells from those of one.
        if not isinstance(spec, EngineSpec) or not requests or min(r.output for r in requests) < 1:
            continue
        if spec.system.hash_ids is not None or replica in with_transfers(history):
            continue  # what comes to it depends on others
        if system.until is not None and system.until <= requests[0].ready:
            continue
        server, start = alone(system, spec, requests)
        run = server.kernel("batches")
        count = len(run.rows.finish)  # those that arrive at the last tick may not have been let in
        for what in ("first_token", "finish"):
            ticks = [getattr(request, what) for request in requests]
            ours = [-1 if tick is None or tick > history.end else tick - start for tick in ticks]
            assert ours[:count] == getattr(run.rows, what).tolist(), (what, replica.index, system)
        assert run.preemptions == sum(request.preemptions for request in requests)
        starts = [(batch.start - start) * 10**9 for batch in replica.batches]
        assert starts == run.batches["start_ns"].to_list()
        preemptions += run.preemptions
    return preemptions


@pytest.mark.parametrize("systems", [4, pytest.param(170, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", FAMILY)
def test_kernel_and_reference_agree_on_networks_of_engines(engine, systems):
    """Times, replicas, batches, preemptions, series, with compression and without, memory tight, outages."""
    for seed in range(systems):
        assert_agree(draw_system(Random(f"{engine} {seed} together"), engines=(engine,), dying=seed % 4 == 3))


def test_to_a_router_requests_wait_until_a_batch_has_served_them():
    """Those of TensorRT-LLM that have a place, and no token yet."""
    assert_agree(draw_system(Random("tensorrt-llm 59 together"), engines=("tensorrt-llm",), dying=True))


@pytest.mark.parametrize("systems", [6, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", FAMILY)
def test_a_replica_serves_what_comes_to_it_as_one_server_of_the_kernel(engine, systems):
    """Pools of one engine, paper pools before and behind them, priorities, delays, forks and joins."""
    preemptions, most = 0, 8 * systems
    for seed in range(most):
        if seed >= systems and preemptions:
            break
        preemptions += assert_replicas_serve_as_alone(draw_system(Random(f"{engine} {seed}"), engines=(engine,)))
    assert preemptions or engine == "tensorrt-llm"


def test_a_router_finds_what_another_request_with_the_same_context_has_computed_elsewhere():
    """The replica of the first one has died, and a second one has computed its context at another."""
    assert_agree(draw_system(Random(6082), engines=("vllm", "sarathi", "orca"), dying=True))


@pytest.mark.slow
def test_kernel_and_reference_agree_on_thousands_of_networks_of_many_engines():
    """Every pool may be of another engine."""
    for seed in range(2_000):
        assert_agree(draw_system(Random(f"{seed} of all"), engines=FAMILY, dying=seed % 4 == 3))


def drafts(spec):
    """Whether requests verify drafts there, some of which are served for nothing."""
    return isinstance(spec, EngineSpec) and dict(spec.system.settings).get("drafts", 0) > 0


@pytest.mark.parametrize("systems", [15, pytest.param(1_000, marks=pytest.mark.slow)])
def test_random_networks_of_engines_serve_all_tokens_and_those_lost_again(systems):
    """Everybody finishes, and tokens go twice through batches only where a preemption let them be computed again."""
    preempted = 0
    for seed in range(systems):
        system = dataclasses.replace(draw_system(Random(seed), engines=FAMILY), until=None)
        history = system.reference()
        served = dict.fromkeys(range(len(history.requests)), 0)
        for batch in history.batches:
            for index, tokens in batch.allocation.items():
                served[index] += tokens
        for request in history.requests:
            assert request.finish is not None
            own = request.total - (request.prompt if request.receives else request.cached)
            assert served[request.index] >= own
            again = request.preemptions or drafts(system.pools[system.stage_pool[request.stage]])
            assert again or served[request.index] == own
        assert all(replica.unprocessed_tokens == 0 for replica in history.replicas)
        preempted += sum(len(batch.preempted) for batch in history.batches)
    assert preempted > systems
