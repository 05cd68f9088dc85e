"""Instant estimates stay within their band of the simulated latency, and no simulation undercuts the bounds."""

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.theory.latency import BANDS, estimate_latency
from penstock.theory.latency_bounds import lower_bounds, request_bounds

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


def outside(workload: ps.Workload, server: ps.Server, requests: int) -> list[str]:
    """Return the metrics whose estimate is out of its band."""
    found, run = estimate_latency(workload, server), simulated(workload, server, requests)
    if len(found.points) > 1:
        return []  # flagged, without a band
    assert found.band is not None
    wrong = []
    for metric in METRICS:
        value, truth = getattr(found, metric), run[metric]["mean"]
        assert (value is None) == (truth is None)
        if value is not None and abs(value / truth - 1) > found.band:
            wrong.append(f"{metric} {value:.4g} for {truth:.4g} at {found.full_load:.2f}")
    return wrong


@pytest.mark.parametrize("load", [0.2, 0.7])
@pytest.mark.parametrize("name", ["code", "conversation", "geometric", "long outputs"])
def test_estimates_are_within_their_band(name: str, load: float) -> None:
    assert outside(*asked(name, load), 60_000) == []


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.1, 0.3, *(load for load, _ in BANDS)])
@pytest.mark.parametrize("name", WORKLOADS)
def test_estimates_are_within_their_band_at_every_load(name: str, load: float) -> None:
    """Near the capacity a mean needs many requests: at .98 a million have a standard error of about a tenth."""
    workload, server = asked(name, load)
    requests = 100_000 if load < 0.9 else 400_000 if load < 0.98 else 1_000_000
    assert outside(workload, server, requests) == []


def test_vllm_is_estimated_as_decode_first() -> None:
    workload, server = asked("fixed", 0.7)
    assert outside(workload, ps.Server(server.batch_time, 1_024, 1_024, "vllm"), 60_000) == []


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
