"""Theorem and sequential test never contradict each other: any built-in policy, limits, lengths and bursts."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.workload.arrivals import Arrivals, Deterministic, GammaRenewal, OnOff, Poisson
from penstock.workload.lengths import Length


def some_length(rng: np.random.Generator, longest: int) -> Length:
    mean = int(np.exp(rng.uniform(0, np.log(longest))))
    return [
        ps.Constant(mean),
        ps.Geometric(mean, max=20 * mean),
        ps.Uniform(max(1, mean // 2), mean + mean // 2),
        ps.LogNormal(mean, 1.5, max=30 * mean),
        ps.Mixture([ps.Constant(max(1, mean // 2)), ps.Constant(10 * mean)], [0.95, 0.05]),
    ][rng.integers(5)]


def some_arrivals(rng: np.random.Generator, rate: float) -> Arrivals:
    burst = float(rng.choice([20, 200])) / rate
    return [
        Poisson(rate),
        GammaRenewal(rate, float(rng.choice([0.1, 3.0, 6.0]))),
        Deterministic(rate),
        OnOff(rate, 1.0, burst, 1.0, 4 * burst, 1.0, 0.2),
    ][rng.integers(4)]


def some_server(rng: np.random.Generator) -> ps.Server:
    budget = int(rng.choice([1, 4, 16, 33, 64, 128, 256]))
    slots = None if rng.random() < 0.4 else int(rng.integers(1, 2 * budget + 2))
    c, a, b0 = float(rng.choice([0, 0.01, 0.05])), float(rng.choice([0.01, 0.03])), int(rng.choice([1, 8, 16, 32]))
    policy = str(rng.choice(list(ps.POLICIES)))
    scope, convention = rng.choice(["batch", "running"]), rng.choice(["paper", "engine"])
    return ps.Server(ps.PiecewiseConstant(c, a, b0), budget, slots, policy, str(scope), str(convention))  # type: ignore[arg-type]


def contradicts(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    server = some_server(rng)
    workload = ps.Workload.poisson(1.0, some_length(rng, 800), some_length(rng, 400), seed=seed)
    rate = float(rng.choice([0.3, 0.8, 0.9, 0.95, 1.05, 1.2, 2.0])) * ps.certify(workload, server).max_rate
    workload = dataclasses.replace(workload, arrivals=some_arrivals(rng, rate))
    found = {ps.certify(workload, server).verdict, ps.verdict(workload, server, resolution=0.02, seed=seed).verdict}
    return found == {"stable", "unstable"}


def test_theorem_and_test_do_not_contradict_each_other() -> None:
    assert [seed for seed in range(60) if contradicts(seed)] == []


@pytest.mark.slow
def test_theorem_and_test_do_not_contradict_each_other_in_a_thousand_systems() -> None:
    assert [seed for seed in range(1_000, 2_000) if contradicts(seed)] == []
