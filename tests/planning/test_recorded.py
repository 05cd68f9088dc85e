"""Recorded requests are planned behind any router, with what their prompts have in common."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.planning.aim import Aim
from penstock.planning.evaluate import evaluate
from penstock.planning.plan import plan
from penstock.planning.space import search_space
from penstock.system.memory import Memory

SERVER = ps.Server(ps.Affine(c=0.01, a=1e-4), 256, 64, policy="vllm", memory=Memory(600, 32, prefix_caching=True))


def recorded(*, share: bool, rate: float = 12.0, requests: int = 1_500) -> ps.Workload:
    """Return a recording in which prompts of 320 to 479 tokens may have their first 256 in common with many others."""
    rng = np.random.default_rng(4)
    arrival = np.cumsum(rng.exponential(1 / rate, requests))
    prompt, output = rng.integers(320, 480, requests), rng.integers(5, 40, requests)
    system = rng.integers(0, 6, requests)
    ids = [[int(system[r]) * 8 + block for block in range(8)] for r in range(requests)]
    hashes = {"hash_ids": ids, "hash_block": 32} if share else {}
    return ps.Workload.from_arrays(arrival, prompt, output, **hashes)


@pytest.mark.parametrize("share", [False, True])
def test_the_plan_of_a_recording_is_that_of_simulating_every_fleet(share: bool) -> None:
    workload = recorded(share=share, rate=34.0)
    space = search_space(SERVER, router=["jsq", "prefix", "round-robin"] if share else ["jsq", "tokens"], replicas=3)
    aim = Aim.of(["ttft_p90<500ms"], requests=1_000)
    found = plan(workload, space, aim=aim)
    answers = [evaluate(workload, deployment, aim) for deployment in space]
    met = [e for e in answers if e.answer == "met"]
    best = min(met, key=lambda e: (e.deployment.cost, e.estimates[0].value, e.deployment.name))
    assert found.best is not None
    assert found.best.deployment == best.deployment
    assert any("requests are recorded: latency is that of the recording" in notice for notice in found.notices)


def test_stability_is_that_of_requests_drawn_at_random_where_they_have_nothing_in_common() -> None:
    workload = recorded(share=False, rate=34.0)
    two, three = search_space(SERVER, router=["jsq"], replicas=[2, 3])
    few, enough = (evaluate(workload, each, Aim.of(["ttft_p90<500ms"], requests=1_000)) for each in (two, three))
    assert (few.verdict, few.known_by) == ("unstable", "Theorem 1(a)")
    assert (enough.verdict, enough.answer) == ("stable", "met")
    assert enough.known_by == "simulation of its requests drawn at random"


def test_a_fleet_that_keeps_up_by_what_prompts_share_is_judged_by_the_recording_alone() -> None:
    """Without it the prompts are four times as long, which is more than two replicas carry."""
    workload = recorded(share=True, rate=34.0)
    aim = Aim.of(["ttft_p90<2s"], requests=1_000)
    (two,) = search_space(SERVER, router=["prefix"], replicas=[2])
    answer = evaluate(workload, two, aim)
    assert answer.known_by.startswith("the recording alone: ")
    assert (answer.verdict, answer.answer) == ("stable", "met")
    nothing = evaluate(recorded(share=False, rate=34.0), dataclasses.replace(two, router="jsq"), aim)
    assert nothing.answer == "missed"


def test_a_recording_through_which_latency_rises_is_not_called_stable() -> None:
    workload = recorded(share=True, rate=90.0)
    (two,) = search_space(SERVER, router=["prefix"], replicas=[2])
    answer = evaluate(workload, two, Aim.of(["ttft_p90<100ms"], requests=1_000))
    assert answer.verdict != "stable"
    assert answer.answer != "met"
