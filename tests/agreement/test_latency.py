"""Simulated means lie in the ranges of the instant estimates, and no simulation undercuts the bounds."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.theory.latency import HIGHEST_LOAD, InstantEstimate, estimate_latency
from penstock.theory.latency_bounds import lower_bounds, request_bounds
from penstock.workload.lengths import Length

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
METRICS = ("ttft_s", "tbt_s", "e2e_s")

WORKLOADS = {
    "code": ("azure_llm_2023_code.csv", "codellama-34b-a100-tp1", 512, "engine"),
    "code, context": ("azure_llm_2023_code.csv", "llama-2-70b-a100-tp4", 1_024, "engine"),
    "conversation": ("azure_llm_2023_conv.csv", "codellama-34b-a100-tp2", 1_024, "paper"),
    "conversation, context": ("azure_llm_2023_conv.csv", "llama-3.1-8b-rtx4090-tp1", 1_024, "engine"),
    "fixed": ((129, 112), "codellama-34b-a100-tp1", 1_024, "engine"),
    "geometric": ((ps.Geometric(129), ps.Geometric(112)), "codellama-34b-a100-tp1", 512, "paper"),
    "long prompts": ((ps.Geometric(3_000), ps.Geometric(20)), "codellama-34b-a100-tp2", 2_048, "engine"),
    "long outputs": ((ps.Geometric(40), ps.Geometric(400)), "codellama-34b-a100-tp1", 512, "engine"),
    "all alike, long": ((4_000, 50), "llama-2-70b-h100-linear-tp4", 2_048, "engine"),
    "uniform": ((ps.Uniform(200, 2_000), ps.Uniform(50, 500)), "llama-3-8b-a100-linear-tp2", 512, "engine"),
    "one token": ((ps.Geometric(800), 1), "codellama-34b-a100-tp2", 512, "engine"),
}


def asked(name: str, load: float) -> tuple[ps.Workload, ps.Server]:
    """Return Poisson arrivals of a workload at a load of full batches, and its server."""
    lengths, hardware, budget, convention = WORKLOADS[name]
    server = ps.Server(ps.hardware(hardware).batch_time, budget, convention=convention)  # type: ignore[arg-type]
    if isinstance(lengths, str):
        if not (TRACES / lengths).exists():
            pytest.skip("the traces are not beside the repository")
        workload = ps.read_trace(TRACES / lengths).with_rate(1e-3, "poisson")
    else:
        workload = ps.Workload.poisson(1e-3, *lengths)
    return workload.with_rate(1e-3 * load / estimate_latency(workload, server).full_load), server


def simulated(workload: ps.Workload, server: ps.Server, requests: int) -> dict[str, dict[str, float | None]]:
    rows = ps.simulate(workload, server, requests=requests, record="summary").latency().to_dicts()
    return {row["metric"]: row for row in rows}


def outside(estimate: InstantEstimate, run: dict[str, dict[str, float | None]]) -> list[str]:
    """Return the metrics whose simulated mean is out of its range."""
    wrong = []
    for metric, (low, high) in estimate.ranges.items():
        truth = run[metric]["mean"]
        assert truth is not None
        if not low <= truth <= high:
            wrong.append(f"{metric} {truth:.4g} not in {low:.4g} to {high:.4g} at {estimate.full_load:.2f}")
    return wrong


@pytest.mark.parametrize("load", [0.2, 0.7])
@pytest.mark.parametrize("name", ["code", "conversation", "geometric", "long outputs"])
def test_means_are_in_their_ranges(name: str, load: float) -> None:
    workload, server = asked(name, load)
    estimate = estimate_latency(workload, server)
    assert estimate.ranges
    assert outside(estimate, simulated(workload, server, 60_000)) == []


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.1, 0.3, 0.5, 0.7, 0.9, HIGHEST_LOAD])
def test_means_are_in_their_ranges_at_every_load(load: float) -> None:
    """One of eleven may be out: prompts of 129 tokens in blocks of 128 are, by 3%, at a load of .1."""
    wrong = []
    for name in WORKLOADS:
        workload, server = asked(name, load)
        estimate = estimate_latency(workload, server)
        if len(estimate.points) < 2:  # else it is flagged, without ranges
            assert estimate.ranges
        wrong += outside(estimate, simulated(workload, server, 100_000 if load < 0.9 else 400_000))
    assert len(wrong) <= 1, wrong


def any_length(rng: np.random.Generator, low: float, high: float) -> int | Length:
    """Return lengths of any kind: one, alike, or with a tail up to a hundred times the mean."""
    mean = max(float(np.exp(rng.uniform(np.log(low), np.log(high)))), 1.5)
    cv, most = float(np.exp(rng.uniform(np.log(0.2), np.log(4)))), int(mean * np.exp(rng.uniform(1, 4.6))) + 1
    half = rng.uniform(0.05, 0.98)
    kinds = (
        round(mean),
        ps.Geometric(mean, max=most),
        ps.Uniform(max(1, int(mean * (1 - half))), int(mean * (1 + half)) + 1),
        ps.LogNormal(mean, cv, max=most),
        ps.Gamma(mean, cv, max=most),
        ps.Mixture((ps.Geometric(mean, max=most), ps.LogNormal(mean * 10, cv, max=most * 10)), (0.9, 0.1)),
    )
    return kinds[rng.integers(len(kinds))]


def any_server(seed: int) -> tuple[ps.Workload, ps.Server]:
    """Return a server of any kind that the estimate is offered for, and arrivals at .1 to .95 of full batches."""
    rng = np.random.default_rng([97, seed])
    budget = int(2 ** rng.uniform(5, 13)) if rng.random() < 0.4 else int(2 ** rng.integers(5, 14))
    c, a = (float(np.exp(rng.uniform(np.log(low), np.log(high)))) for low, high in ((5e-4, 3e-2), (5e-6, 1e-3)))
    b0 = int(2 ** rng.integers(4, 9))
    loads = np.unique(np.geomspace(1, budget, int(rng.integers(4, 14))).round())
    seconds = np.maximum.accumulate((c + a / 2 * loads) * np.exp(rng.normal(0, 0.08, loads.size)))
    models = (
        ps.Affine(c, a),
        ps.PiecewiseConstant(c, float(np.exp(rng.uniform(np.log(2e-3), np.log(5e-2)))), b0),
        ps.Hinge(c, a, b0),
        ps.Measured(tuple(loads.tolist()), tuple(seconds.tolist())),
        ps.hardware(
            str(rng.choice(["codellama-34b-a100-tp1", "llama-2-70b-a100-tp4", "bloom-176b-h100-tp8"]))
        ).batch_time,
    )
    model = models[rng.integers(len(models))]
    if rng.random() < 0.3:
        server = ps.Server(model, budget, int(rng.choice([64, 256, budget])), "vllm")
    else:
        server = ps.Server(model, budget, convention=str(rng.choice(["paper", "engine"])))  # type: ignore[arg-type]
    if rng.random() < 0.1:
        server = dataclasses.replace(server, memory=ps.Memory(50_000))
    workload = ps.Workload.poisson(1e-3, any_length(rng, 8, 3_000), any_length(rng, 2, 600), seed=seed)
    load = rng.uniform(0.1, HIGHEST_LOAD)
    return workload.with_rate(1e-3 * load / estimate_latency(workload, server).full_load), server


def judged(seed: int, requests: int) -> tuple[InstantEstimate, list[str]]:
    """Return the estimate of a random server and what is out of its ranges."""
    workload, server = any_server(seed)
    estimate = estimate_latency(workload, server)
    wrong = outside(estimate, simulated(workload, server, requests)) if estimate.ranges else []
    return estimate, wrong


def test_means_of_random_servers_are_in_their_ranges() -> None:
    """One of ten may be out: all three means are in for 95% of them."""
    results = [judged(seed, 60_000) for seed in range(10)]
    assert sum(bool(estimate.ranges) for estimate, _ in results) >= 8
    assert sum(bool(wrong) for _, wrong in results) <= 1


@pytest.mark.slow
def test_means_of_95_in_100_random_servers_are_in_their_ranges_and_the_ranges_are_narrow() -> None:
    """None of these 340 servers was among those that the ranges were fitted to."""
    results = [judged(seed, 400_000) for seed in range(2_000, 2_340)]
    known = [(estimate, wrong) for estimate, wrong in results if estimate.ranges]
    assert len(known) >= 0.93 * len(results)
    assert sum(not wrong for _, wrong in known) >= 0.95 * len(known)
    for metric in METRICS:
        ranges = [estimate.ranges[metric] for estimate, _ in known if metric in estimate.ranges]
        assert np.median([high / low for low, high in ranges]) < 1.25


HARD = {
    "few decodes and long batches": (
        ps.Server(ps.Affine(1.03e-3, 4.37e-4), 512, convention="paper"),
        ps.Workload.poisson(13.23, ps.Geometric(138.3, max=414), ps.LogNormal(6.2, 3.7, max=621)),
    ),
    "a pool that fills batches": (
        ps.Server(ps.PiecewiseConstant(0.00616, 0.0060, 64), 128),
        ps.Workload.poisson(15.31, ps.Geometric(23, max=185), ps.Gamma(473, 3.46, max=3_787)),
    ),
    "prompts with a tail": (
        ps.Server(ps.PiecewiseConstant(0.00125, 0.01016, 32), 512),
        ps.Workload.poisson(29.4, ps.Gamma(47.8, 3.45, max=4_783), ps.Uniform(22, 30)),
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_servers_are_in_their_ranges(name: str) -> None:
    """Batches of very different lengths: a decode sees the long ones more often than the mean pool does."""
    server, workload = HARD[name]
    estimate = estimate_latency(workload, server)
    assert estimate.ranges
    assert outside(estimate, simulated(workload, server, 200_000)) == []


def test_vllm_is_estimated_as_decode_first() -> None:
    workload, server = asked("fixed", 0.7)
    server = ps.Server(server.batch_time, 1_024, 1_024, "vllm")
    assert outside(estimate_latency(workload, server), simulated(workload, server, 60_000)) == []


@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer", "vllm", "sglang"])
@pytest.mark.parametrize("name", ["fixed", "long prompts", "long outputs", "uniform"])
def test_no_simulation_undercuts_the_bounds(name: str, policy: str) -> None:
    """At a third of the load, where all of them are stable, and those of a rate near 0."""
    workload, server = asked(name, 0.05 if policy == "fastertransformer" else 0.33)
    _, _, budget, convention = WORKLOADS[name]
    limits = {"max_batch_size": budget} if policy in ("vllm", "sglang") else {"convention": convention}
    server = ps.Server(server.batch_time, budget, policy=policy, **limits)  # type: ignore[arg-type]
    run = simulated(workload, server, 20_000)
    for rate in (workload.rate, 1e-6):
        for metric, found in lower_bounds(workload.with_rate(rate), server).items():
            for statistic, seconds in found.items():
                truth = run[metric][statistic]
                assert truth is not None
                assert seconds <= truth * (1.02 if statistic == "mean" else 1.05)  # of 20,000 lengths and arrivals


@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("hardware", ["codellama-34b-a100-tp1", "llama-2-70b-a100-tp4"])
def test_each_request_takes_at_least_what_it_needs_alone(policy: str, hardware: str) -> None:
    """In every run, short memory and preemption included: that holds without any average."""
    limits = {"kv_tokens": 8_000, "max_batch_size": 16}
    if policy in ps.POLICIES:
        limits = {"kv_tokens": 8_000}
    server = ps.Server(ps.hardware(hardware).batch_time, 2_048, policy=policy, **limits)  # type: ignore[arg-type]
    workload = ps.Workload.poisson(3.0, ps.Uniform(1, 1_500), ps.Uniform(1, 300), seed=3)
    rows = ps.simulate(workload, server, requests=2_000, record="requests").requests.drop_nulls("finish_ns")
    arrival, first, finish = (rows[f"{name}_ns"].to_numpy() for name in ("arrival", "first_token", "finish"))
    prompt, output = (rows[f"{name}_tokens"].to_numpy() for name in ("prompt", "output"))
    least_first, least_finish = request_bounds(prompt, output, server)
    assert rows.height > 1_000
    assert (first - arrival >= least_first * 1e9 * (1 - 1e-6)).all()
    assert (finish - arrival >= least_finish * 1e9 * (1 - 1e-6)).all()
    assert np.min((finish - arrival) / least_finish) < 2e9  # and some requests come near


@pytest.mark.slow
def test_next_to_the_capacity_no_policy_undercuts_the_bounds_by_load() -> None:
    """Long runs, so that their means are those of the steady state."""
    for name in ("geometric", "long prompts", "conversation"):
        for policy in ("sarathi", "orca"):
            workload, server = asked(name, 0.9)
            server = server.with_policy(policy)
            run = simulated(workload, server, 1_000_000)
            for metric, found in lower_bounds(workload, server).items():
                for statistic, seconds in found.items():
                    truth = run[metric][statistic]
                    assert truth is not None
                    assert seconds <= truth * 1.01
