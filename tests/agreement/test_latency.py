"""Means of long runs lie in the intervals of short ones, and no simulation undercuts the bounds."""

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.simulation.quick import saturated
from penstock.theory.latency_bounds import lower_bounds, request_bounds

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time

WORKLOADS = {
    "code": ("azure_llm_2023_code.csv", "codellama-34b-a100-tp1", 512, "engine"),
    "code, context": ("azure_llm_2023_code.csv", "llama-2-70b-a100-tp4", 1_024, "engine"),
    "conversation": ("azure_llm_2023_conv.csv", "codellama-34b-a100-tp2", 1_024, "paper"),
    "conversation, context": ("azure_llm_2023_conv.csv", "llama-3.1-8b-rtx4090-tp1", 1_024, "engine"),
    "fixed": ((129, 112), "codellama-34b-a100-tp1", 1_024, "engine"),
    "geometric": ((ps.Geometric(129), ps.Geometric(112)), "codellama-34b-a100-tp1", 512, "paper"),
    "long prompts": ((ps.Geometric(3_000), ps.Geometric(20)), "codellama-34b-a100-tp2", 2_048, "engine"),
    "long outputs": ((ps.Geometric(40), ps.Geometric(400)), "codellama-34b-a100-tp1", 512, "engine"),
    "all alike, long": ((4_000, 50), "llama-2-70b-h100-tp4", 2_048, "engine"),
    "uniform": ((ps.Uniform(200, 2_000), ps.Uniform(50, 500)), "codellama-34b-a100-tp4", 512, "engine"),
    "one token": ((ps.Geometric(800), 1), "codellama-34b-a100-tp2", 512, "engine"),
}


def asked(name: str, load: float) -> tuple[ps.Workload, ps.Server]:
    """Return Poisson arrivals of a workload at a share of the highest rate, and its server."""
    lengths, hardware, budget, convention = WORKLOADS[name]
    server = ps.Server(ps.hardware(hardware).batch_time, budget, convention=convention)  # type: ignore[arg-type]
    if isinstance(lengths, str):
        if not (TRACES / lengths).exists():
            pytest.skip("the traces are not beside the repository")
        workload = ps.read_trace(TRACES / lengths).with_rate(1e-3, "poisson")
    else:
        workload = ps.Workload.poisson(1e-3, *lengths)
    return workload.with_rate(load * ps.certify(workload, server).max_rate), server


def simulated(workload: ps.Workload, server: ps.Server, requests: int) -> dict[str, dict[str, float | None]]:
    rows = ps.simulate(workload, server, requests=requests, record="summary").latency().to_dicts()
    return {row["metric"]: row for row in rows}


LIMITED = {
    "memory": ps.Server(TP1, 512, 256, "vllm", kv_blocks=3_000),
    "few places": ps.Server(TP1, 512, 48, "sglang", kv_tokens=48_000),
    "no mixed batches": ps.Server(TP1, 512, 64, "orca"),
}


@pytest.mark.parametrize("load", [0.5, pytest.param(0.9, marks=pytest.mark.slow)])
def test_intervals_of_short_runs_hold_the_means_of_long_ones(load: float) -> None:
    """Two of the means of ten servers may be out: intervals have a confidence of 95%."""
    systems = [asked(name, load) for name in WORKLOADS if not isinstance(WORKLOADS[name][0], str)]
    lengths = ps.Geometric(129, max=1_000), ps.Geometric(112, max=1_000)
    for server in LIMITED.values():
        workload = ps.Workload.poisson(1.0, *lengths, seed=len(systems))
        systems.append((workload.with_rate(load * saturated(workload, server).rate), server))
    out = []
    for workload, server in systems:
        run = simulated(workload.with_seed(99), server, 400_000)
        for metric, of in ps.estimate_latency(workload, server).estimates.items():
            mean, truth = of["mean"], run[metric]["mean"]
            if truth is None:
                continue
            assert mean.low is not None
            if not mean.low <= truth <= (mean.high or np.inf):
                out.append((server, metric, mean, truth))
    assert len(out) <= 2, out


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
