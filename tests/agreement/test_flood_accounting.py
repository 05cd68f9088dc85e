"""What the tests take for left is what the kernel still has to do, however often engines do it again."""

import dataclasses
from random import Random

import numpy as np
import pytest
from engine_systems import OF_THE_PAPER, draw
from network_systems import draw_system

import penstock as ps
from penstock.checking.flood_test import useful_tokens
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.event_session import EventSession
from penstock.simulation.simulate import open_session
from penstock.system.engines import ENGINES
from penstock.workload.jobs import Jobs


@pytest.mark.parametrize("engine", [*ENGINES, *OF_THE_PAPER])
def test_what_is_left_of_each_pool_is_what_it_was_given_less_what_it_did_for_good(engine: str) -> None:
    again = 0
    for seed in range(8):
        system = dataclasses.replace(draw_system(Random(f"{engine} {seed}"), engines=(engine,)), until=None)
        network = system.network()
        jobs = network.within_context(system.kernel_jobs())
        jobs = dataclasses.replace(jobs, reuse=np.zeros_like(jobs.reuse))
        pool = network.stage_pool[jobs.stage]
        engines = np.array([each.server.convention == "engine" for each in network.pools.values()])[pool]
        tokens = jobs.prompt + jobs.output - (engines & (jobs.prompt > 0) & (jobs.output > 0))
        session = EventSession(network, 1.0, True, NEVER)
        session.add(jobs)
        while session.finished < jobs.requests:
            session.run(True, steps=3)
            arrived = jobs.first_request[session.arrived_jobs]
            left = np.bincount(pool[:arrived], tokens[:arrived], len(network.pools)) - useful_tokens(session)
            in_flight = sum(int(replica.tokens) for replica in session.world.servers if replica.equal)
            assert (left >= 0).all()
            assert session.future_tokens <= left.sum() <= session.future_tokens + in_flight
        assert not left.any()
        again += int(session.by_replica("lost").sum())
    assert again or engine == "tensorrt-llm"


@pytest.mark.parametrize("engine", [*ENGINES, *OF_THE_PAPER])
def test_what_a_server_did_for_good_is_what_its_requests_need(engine: str) -> None:
    """Not more by wrong drafts, by what preempted requests do again, or by tokens after an end that nobody foresaw."""
    rejected = lost = 0
    for seed in range(20):
        system = dataclasses.replace(draw(np.random.default_rng(seed), engine), until=None)
        workload = ps.Workload.from_arrays(
            system.arrival, system.prompt, system.output, system.priority, declared=system.declared
        )
        session = open_session(workload, system.server, "summary", 1.0, True, NEVER)
        requests = session.keep(Jobs.of_requests(workload.requests(len(system.prompt))))
        needed = requests.prompt + requests.output - int(system.convention == "engine")
        session.add(requests)
        before = 0
        while not session.run(final=True, steps=1):
            arrived = int(needed[: session.arrived].sum())
            assert session.useful <= arrived
            before = max(before, session.useful)
        assert session.useful == needed.sum() >= before
        if engine in ENGINES:
            rejected += int(session.line.rejections)
            lost += int(session.line.lost)
    assert rejected or engine != "vllm"
    assert lost or engine not in ("vllm", "sglang")
