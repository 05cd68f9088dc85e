"""A server that holds from empty and does not work off a backlog is called metastable, with the burst that tips it."""

import dataclasses
import json

import numpy as np
import pytest

import penstock as ps
from penstock.checking.figures import both_states_figure

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time


def vllm(blocks: int) -> ps.Server:
    """Return a vLLM server of few KV blocks, in which many may run."""
    return ps.Server(TP1, 2_048, 1_024, "vllm", kv_blocks=blocks)


SYSTEMS = {
    "short": (ps.Workload.poisson(9.6, 129, 112), vllm(1_506)),
    "long": (ps.Workload.poisson(2.5, 300, 500), vllm(6_000)),
    "uniform": (ps.Workload.poisson(9.7, 129, ps.Uniform(101, 123)), vllm(1_506)),
}


def falls(workload: ps.Workload, server: ps.Server, burst: int, seed: int, arrivals: int = 24_000) -> bool:
    """Run for long from empty, with a burst after a third, and see whether a queue is left that still grows."""
    rng = np.random.default_rng([46, 4, seed])
    arrival = np.cumsum(rng.exponential(1 / workload.rate, arrivals))
    third = arrivals // 3
    arrival = np.insert(arrival, third, np.full(burst, arrival[third]))
    prompt, output = workload.lengths.sample(rng, arrival.size)
    run = ps.simulate(
        ps.Workload.from_arrays(arrival, prompt, output), server, until=float(arrival[-1]), record="summary"
    )
    waiting = run.series["requests"].to_numpy()
    return bool(waiting[-waiting.size // 20 :].min() > 1.5 * waiting[: waiting.size // 4].max())


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_burst_that_tips_a_server_is_the_one_that_brute_force_finds(name: str) -> None:
    """Within 20%: by trying sizes in steps of 8% on 40 seeds each, another way to draw and another sign of a fall."""
    workload, server = SYSTEMS[name]
    answer = ps.check(workload, server, requests=2_000)
    assert answer.verdict == "metastable"
    assert answer.metastable is not None
    sizes = np.unique((10 * 1.08 ** np.arange(45)).astype(int))
    for size in sizes:
        if np.mean([falls(workload, server, int(size), seed) for seed in range(40)]) > 0.5:
            break
    assert answer.metastable.burst == pytest.approx(size, rel=0.2)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_metastable_server_holds_from_empty_and_falls_from_a_backlog(name: str) -> None:
    workload, server = SYSTEMS[name]
    answer = ps.check(workload, server, requests=2_000)
    both = answer.metastable
    assert both is not None
    assert (answer.verdict, answer.tested.verdict) == ("metastable", "unstable")
    assert both.drains < workload.rate <= both.holds
    assert not any(falls(workload, server, 0, seed) for seed in range(3))
    assert all(falls(workload, server, 2 * both.burst, seed) for seed in range(3))
    assert ps.verdict(workload.with_rate(0.97 * both.drains), server).verdict == "stable"


def plain(seed: int) -> tuple[ps.Workload, ps.Server]:
    """Draw a server that is plainly stable or unstable: by its rate, or since nobody is ever preempted."""
    rng = np.random.default_rng([46, 4, 100, seed])
    prompt, output = int(rng.integers(20, 600)), int(rng.integers(20, 600))
    shapes = (ps.Constant, ps.Geometric, lambda mean: ps.Uniform(mean // 2, 3 * mean // 2))
    lengths = (shapes[rng.integers(3)](prompt), shapes[rng.integers(3)](output))
    blocks = 4 * (prompt + output) // 16 + int(rng.integers(1_000, 6_000))
    workload = ps.Workload.poisson(1.0, *lengths, seed=seed)
    kept = ps.Memory(blocks, admission="completion") if seed % 2 else None
    policy, memory = ("sarathi", kept) if kept else ("vllm", ps.Memory(blocks))
    server = ps.Server(TP1, 2_048, 1_024, policy, memory=memory)
    full = ps.memory_estimate(workload, server).rate
    ample = ps.memory_estimate(workload, dataclasses.replace(server, memory=ps.Memory(30 * blocks))).rate
    times = rng.choice([0.6, 0.9, 1.03, 1.1, 1.5]) if kept else rng.choice([0.6, 0.9, 1.1 * ample / full])
    return workload.with_rate(times * full), server


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 100))])
def test_no_plainly_stable_or_unstable_server_is_called_metastable(seed: int) -> None:
    answer = ps.check(*plain(seed), requests=500)
    assert answer.metastable is None
    assert answer.verdict != "metastable"


def test_both_states_are_in_the_head_in_json_and_in_a_figure() -> None:
    shares: list[float] = []
    answer = ps.check(*SYSTEMS["short"], requests=2_000, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    both = answer.metastable
    assert both is not None
    line = next(line for line in answer.page().head if line.judges)
    assert line.label == "metastable"
    assert f"about {both.burst} requests at once" in line.text
    assert f"up to {both.drains:.3g} requests/s" in line.text
    data = json.loads(json.dumps(answer.as_dict()))
    assert data["metastable"] == {
        "drains": both.drains, "holds": both.holds, "held_s": both.held_s, "burst": both.burst,
    }  # fmt: skip
    (text,) = both_states_figure(both).charts
    assert f"{both.tipped[-1, 1]:,.0f} at the end" in text
    assert both.tipped[-1, 1] > 4 * both.calm[-1, 1]


def test_answers_of_the_same_seed_are_the_same() -> None:
    one, other = (ps.check(*SYSTEMS["short"], requests=500).metastable for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.as_dict() == other.as_dict()
