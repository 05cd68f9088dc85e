"""Loads of several classes solve the traffic equations; a capacity is that of the best batches."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.system.batch_time import BatchTime
from penstock.theory.load import load

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512)


@given(seed=st.integers(0, 1000), classes=st.integers(1, 4), convention=st.sampled_from(["paper", "engine"]))
@settings(max_examples=30)
def test_classes_that_go_on_as_others_have_the_load_of_the_traffic_equations(
    seed: int, classes: int, convention: Any
) -> None:
    rng = np.random.default_rng(seed)
    server = ps.Server(TP1, 512, convention=convention)
    rates, prompt, output = rng.uniform(0.01, 5, classes), rng.integers(1, 900, classes), rng.integers(1, 300, classes)
    routing = rng.random((classes, classes)) + 0.01
    routing *= 0.9 / routing.sum(axis=1, keepdims=True)
    names = [f"class {j}" for j in range(classes)]
    stages = {
        name: ps.Stage("server", int(p), int(o), then=dict(zip([*names, "end"], [*chances, 0.1], strict=True)))
        for name, p, o, chances in zip(names, prompt, output, routing.tolist(), strict=True)
    }
    flows = [
        ps.Workflow(f"from {name}", ps.Workload.poisson(rate, 1, 1), stages, first=name)
        for name, rate in zip(names, rates.tolist(), strict=True)
    ]
    network = ps.Network({"server": ps.Pool(server)}, flows)
    found = ps.certify(network)
    effective = np.linalg.solve(np.eye(classes) - routing.T, rates)
    assert found.rho == pytest.approx(effective @ (prompt + output - (convention == "engine")) / server.capacity)
    assert found.rho * found.max_load == pytest.approx(1)
    assert ps.certify(network.with_load(found.max_load)).rho == pytest.approx(1)


def test_any_model_of_batch_times_has_the_capacity_of_its_best_token_load() -> None:
    class Jagged(BatchTime):
        def _seconds(self, tokens: np.ndarray) -> np.ndarray:
            return np.asarray(TP1(tokens) * (1 + 0.5 * np.sin(tokens)))

    loads = np.arange(1, 513)
    rates = loads / Jagged()(loads)
    asked = load(ps.Workload.poisson(3.0, 129, 112), ps.Server(Jagged(), 512))
    assert asked.capacity_tokens_per_s == pytest.approx(rates.max())
    assert asked.best_token_load == loads[rates.argmax()]


@pytest.mark.parametrize(("rho", "grows"), [(0.95, False), (1.05, True)])
def test_only_the_means_of_random_batch_times_decide(rho: float, grows: bool) -> None:
    """Full batches that last half or one and a half t_b: a backlog falls below load 1 and rises above it."""
    rng = np.random.default_rng(0)
    workload = ps.Workload.poisson(1.0, 129, 112)
    rate = rho * load(workload, SERVER).max_rate
    seconds = float(TP1(512)) * rng.choice([0.5, 1.5], 20_000)
    backlog = 10**6 + np.cumsum(240 * rng.poisson(rate * seconds) - 512)
    expected = (rho - 1) * 512 * seconds.size
    assert backlog[-1] - 10**6 == pytest.approx(expected, rel=0.3)
    assert (backlog[-1] > 10**6) == grows
