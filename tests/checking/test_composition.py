"""Servers whose batch time depends on what is in a batch: theorem and sequential test, search, advice."""

import numpy as np
import pytest

import penstock as ps
from penstock.system.batch_time import BatchTime

LINEAR: list[BatchTime] = [ps.Affine(2e-3, 1e-4), ps.PiecewiseConstant(1e-3, 2e-3, 16), ps.Hinge(3e-3, 1e-4, 20)]
POLICIES = ["sarathi", "orca", "vllm-vanilla", "fastertransformer"]


def small(seed: int, *, causal: bool) -> tuple[ps.Workload, ps.Server]:
    """Draw a small system whose attention takes from a few percent to most of the time."""
    rng = np.random.default_rng(seed)
    a = 10 ** rng.uniform(-6, -4)
    shares = rng.uniform(size=5)
    linear = LINEAR[rng.integers(3)]
    uneven = ps.Composition(linear, *(shares * np.array([a, a, 10 * a, 10 * a, 1e-4])).tolist())
    model = ps.Composition(linear, a / 2, a) if causal else uneven
    budget, prompt, output = (int(rng.integers(low, high)) for low, high in ((8, 65), (2, 120), (2, 40)))
    slots = [None, budget, int(rng.integers(2, budget))][rng.integers(3)]
    policy = POLICIES[rng.integers(2 if causal else 4)]
    scope, convention = ["running", "batch"][rng.integers(2)], ["paper", "engine"][rng.integers(2)]
    server = ps.Server(model, budget, None if causal else slots, policy, scope, convention)  # type: ignore[arg-type]
    return ps.Workload.poisson(1.0, prompt, ps.Geometric(output, max=8 * output)), server


@pytest.mark.parametrize("seeds", [6, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, False])
def test_theorem_and_sequential_test_agree_on_both_sides_of_the_band(causal: bool, seeds: int) -> None:
    """5% inside and outside the ends; the band is next to nothing where cuts and mixing cost nothing."""
    certified = 0
    for seed in range(seeds):
        workload, server = small(seed, causal=causal)
        certificate = ps.certify(workload, server)
        if causal:
            assert certificate.certified_rate is not None
            full = server.batch_time.linear.best_load(server.token_budget)[0]  # type: ignore[attr-defined]
            if full == server.token_budget:
                assert certificate.certified_rate == pytest.approx(certificate.max_rate, rel=1e-9)
        rates = {"unstable": 1.05 * certificate.max_rate}
        if certificate.certified_rate:
            certified += 1
            rates["stable"] = 0.95 * certificate.certified_rate
        for said, rate in rates.items():
            at = workload.with_rate(rate)
            assert ps.certify(at, server).verdict == said
            assert ps.verdict(at, server, resolution=0.02, seed=seed).verdict == said, (seed, said)
    assert certified >= seeds * 2 / 3


@pytest.mark.parametrize("policy", ["orca", "sarathi"])
@pytest.mark.parametrize(("load", "right"), [(0.96, "stable"), (1.04, "unstable")])
def test_decodes_that_are_few_tokens_but_many_seconds_are_seen_to_pile_up(policy: str, load: float, right: str) -> None:
    """A policy that starves them gets through 1.5% more tokens than arrive, until it has served all prompts."""
    model = ps.Composition(ps.Affine(0.025, 3.8e-5), 6e-10, 1.2e-9, decode_attention=1.9e-6)
    workload = ps.Workload.poisson(1.0, ps.Uniform(1333, 4002), ps.Geometric(5, max=255))
    server = ps.Server(model, 256, policy=policy)
    at = workload.with_rate(load * ps.certify(workload, server).max_rate)
    found = ps.verdict(at, server)
    assert found.verdict == right
    assert found.drift == pytest.approx(1 - 1 / load, abs=0.01)


def starving(seed: int) -> tuple[ps.Workload, ps.Server]:
    """Draw a system whose decodes are few of its tokens; every other one has attention."""
    rng = np.random.default_rng(seed)
    a = 10 ** rng.uniform(-10, -8)
    model: BatchTime = ps.Affine(10 ** rng.uniform(-3, -1.5), 10 ** rng.uniform(-6, -3.5))
    if seed % 2:
        model = ps.Composition(model, a / 2, a, 10 ** rng.uniform(-8, -5.5))
    prompt, output = int(rng.integers(300, 3000)), int(rng.integers(2, 30))
    server = ps.Server(model, 256, None if rng.integers(2) else 128, POLICIES[seed // 2 % 4])
    lengths = ps.Uniform(prompt // 3, prompt), ps.Geometric(output, max=20 * output)
    return ps.Workload.poisson(1.0, *lengths), server


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 24))])
def test_theorem_and_sequential_test_agree_where_decodes_are_few_tokens(seed: int) -> None:
    workload, server = starving(seed)
    certificate = ps.certify(workload, server)
    assert ps.verdict(workload.with_rate(1.04 * certificate.max_rate), server, seed=seed).verdict == "unstable"
    if certificate.certified_rate:
        at = workload.with_rate(0.95 * certificate.certified_rate)
        assert ps.verdict(at, server, seed=seed).verdict == "stable"


def test_the_highest_stable_rate_lies_in_the_band() -> None:
    workload, server = small(4, causal=False)
    certificate = ps.certify(workload, server)
    found = ps.max_rate(workload, server, precision=0.02)
    assert certificate.certified_rate is not None
    assert 0.98 * certificate.certified_rate <= found.rate <= certificate.max_rate
    assert found.disagreement is None


def test_check_answers_by_theorem_or_test_and_keeps_its_keys() -> None:
    workload = ps.Workload.poisson(1.0, ps.Geometric(30, max=120), ps.Geometric(10, max=40))
    server = ps.Server(ps.Composition(LINEAR[0], 1e-5, 1e-5, 5e-5, 8e-5, 1e-4), 32)
    certificate = ps.certify(workload, server)
    assert certificate.certified_rate is not None
    for rate in (0.9 * certificate.certified_rate, 0.5 * (certificate.certified_rate + certificate.max_rate)):
        answer = ps.check(workload.with_rate(rate), server, requests=2_000)
        load = answer.as_dict()["load"]
        assert load["rho"] == pytest.approx(rate / load["max_rate"])
        assert load["rho"] == pytest.approx(load["offered_tokens_per_s"] / load["capacity_tokens_per_s"])
        assert answer.verdict in ("stable", "unstable", "undecided")
        assert answer.disagreement is None
    assert answer.certificate.verdict == "unknown"
    assert not any("set the budget" in warning for warning in answer.warnings)


def test_advice_weighs_what_attention_takes() -> None:
    """It simulates what no theorem decides, and says that the region counts tokens alone."""
    linear = ps.PiecewiseConstant(1e-3, 2e-3, 16)
    server = ps.Server(ps.Composition(linear, 1e-6, 2e-6, 5e-6, 8e-6, 1e-5), 20, 12)
    workload = ps.Workload.poisson(8.0, ps.Geometric(30, max=120), ps.Geometric(10, max=40))
    advice = ps.recommend(workload, server, requests=1_000, policies=("sarathi",), precision=0.05)
    assert advice.recommended.stable_rate >= advice.current.stable_rate * 0.99
    assert advice.bound >= max(candidate.stable_rate for candidate in advice.candidates) * 0.99
    assert "CONTRADICTION" not in " ".join(advice.warnings)


@pytest.mark.parametrize(("rate", "drains"), [(1.5, True), (3.0, False)])
def test_a_run_that_attention_overloads_does_not_drain_by_itself(rate: float, drains: bool) -> None:
    """By tokens alone both are far below what the server carries."""
    workload = ps.Workload.poisson(rate, ps.Geometric(2000, max=8000), ps.Geometric(200, max=1000))
    server = ps.Server(ps.Composition(ps.Affine(5e-3, 1e-6), 0.0, 0.0, decode_attention=1e-6), 2048, 64)
    run = ps.simulate(workload, server, requests=1_000, record="summary")
    assert (ps.certify(workload, server).rho < 1) == drains == (run.unfinished == 0)
