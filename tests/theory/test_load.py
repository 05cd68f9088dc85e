"""Loads of several classes solve the traffic equations, and a loop without an exit is named."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.system.batch_time import BatchTime
from penstock.theory.load import load, multiclass_load, traffic

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512)


def random_routing(seed: int, classes: int) -> np.ndarray:
    """Return routing from which every class leaves with at least a tenth."""
    rng = np.random.default_rng(seed)
    chances = rng.random((classes, classes)) * (rng.random((classes, classes)) < 0.5)
    return chances / np.maximum(chances.sum(axis=1, keepdims=True) / 0.9, 1)


@given(seed=st.integers(0, 1000), rates=st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_effective_rates_solve_the_traffic_equations_and_what_arrives_leaves(seed: int, rates: list[float]) -> None:
    routing = random_routing(seed, len(rates))
    effective = traffic(rates, routing)
    np.testing.assert_allclose(effective, rates + routing.T @ effective, rtol=1e-12, atol=1e-9)
    assert (effective >= np.array(rates) - 1e-9).all()
    assert effective @ (1 - routing.sum(axis=1)) == pytest.approx(sum(rates), abs=1e-9)


def test_effective_rates_are_the_mean_numbers_of_visits_of_a_simulated_walk() -> None:
    routing = np.array([[0.0, 0.7, 0.1], [0.4, 0.0, 0.5], [0.0, 0.2, 0.3]])
    rng = np.random.default_rng(0)
    visits = np.zeros(3)
    walks = 20_000
    for _ in range(walks):
        place = 0
        while place < 3:
            visits[place] += 1
            place = int(np.searchsorted(np.cumsum(routing[place]), rng.random(), side="right"))
    np.testing.assert_allclose(visits / walks, traffic([1, 0, 0], routing), rtol=0.05)


def test_a_chain_passes_its_rate_on_and_a_loop_multiplies_it() -> None:
    assert traffic([2, 0, 0], [[0, 1, 0], [0, 0, 1], [0, 0, 0]]).tolist() == [2, 2, 2]
    assert traffic([1.0], [[0.75]]).tolist() == [4.0]


@pytest.mark.parametrize(
    ("routing", "loop"),
    [
        ([[0, 1, 0], [0, 0, 1], [0, 1, 0]], "write -> review -> write"),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], "plan -> write -> plan"),
        ([[0, 0, 0], [0, 1, 0], [0, 0, 0]], "write -> write"),
        ([[0.5, 0.3, 0], [0, 0, 1], [0, 0.4, 0.6]], "review -> review"),
    ],
)
def test_a_loop_that_nothing_leaves_is_named(routing: list[list[float]], loop: str) -> None:
    with pytest.raises(ps.InputError) as error:
        traffic([1, 0, 0], routing, names=["plan", "write", "review"])
    assert f"never leave the loop {loop}, so" in str(error.value)
    assert np.linalg.cond(np.eye(3) - np.array(routing)) > 1e12


@given(seed=st.integers(0, 10_000), classes=st.integers(1, 5))
@settings(max_examples=200)
def test_a_loop_is_refused_exactly_where_i_minus_p_is_not_invertible(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    routing = np.zeros((classes, classes))
    for row in routing:  # halves and wholes: sums are exact
        for _ in range(2):
            row[rng.integers(classes)] += 0.5 * rng.integers(2)
    singular = abs(np.linalg.det(np.eye(classes) - routing)) < 1e-12
    if singular:
        with pytest.raises(ps.InputError, match="never leave the loop"):
            traffic(np.ones(classes), routing)
    else:
        assert np.isfinite(traffic(np.ones(classes), routing)).all()


@given(seed=st.integers(0, 1000), classes=st.integers(1, 6), convention=st.sampled_from(["paper", "engine"]))
def test_at_the_scale_of_all_external_rates_the_load_is_1(seed: int, classes: int, convention: str) -> None:
    rng = np.random.default_rng(seed)
    server = ps.Server(TP1, 512, convention=convention)  # type: ignore[arg-type]
    rates, prompt, output = rng.uniform(0.01, 5, classes), rng.uniform(1, 900, classes), rng.uniform(1, 300, classes)
    routing = random_routing(seed, classes)
    asked = multiclass_load(server, rates, prompt, output, routing)
    assert asked.shares.sum() == pytest.approx(1)
    assert asked.rho * asked.max_scale == pytest.approx(1)
    scaled = multiclass_load(server, asked.max_scale * rates, prompt, output, routing)
    assert scaled.rho == pytest.approx(1)
    np.testing.assert_allclose(scaled.shares, asked.shares)


def test_one_class_without_routing_has_the_load_of_one_class() -> None:
    single = load(ps.Workload.poisson(3.0, 129, 112), SERVER)
    asked = multiclass_load(SERVER, 3.0, 129, 112)
    assert (asked.rho, asked.capacity_tokens_per_s) == (single.rho, single.capacity_tokens_per_s)
    assert asked.max_scale * 3.0 == pytest.approx(single.max_rate)
    assert asked.shares.tolist() == [1.0]


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


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (([1, -1], [1, 1], [1, 1], None), "arrival_rates[1] is -1.0"),
        (([1, math.inf], [1, 1], [1, 1], None), "arrival_rates[1] is inf"),
        (([0, 0], [1, 1], [1, 1], None), "all arrival rates are 0"),
        (([], [1], [1], None), "arrival_rates is empty"),
        (([1, 1], [1, 1, 1], [1, 1], None), "3 mean values of prompt for 2 classes"),
        (([1, 1], [1, 0], [1, 1], None), "a mean prompt is 0.0"),
        (([1, 1], [1, 1], [1, math.nan], None), "a mean output is nan"),
        (([1, 1], [1, 1], [1, 1], [[0, 0]]), "routing has the shape (1, 2), but 2 classes need (2, 2)"),
        (([1, 1], [1, 1], [1, 1], [[0, -0.1], [0, 0]]), "the routing from class 0 to class 1 is -0.1"),
        (([1, 1], [1, 1], [1, 1], [[0, math.nan], [0, 0]]), "the routing from class 0 to class 1 is nan"),
        (([1, 1], [1, 1], [1, 1], [[0.6, 0.6], [0, 0]]), "the routing from class 0 adds up to 1.2"),
        (([1, 1], [1, 1], [1, 1], [[0, 1], [1, 0]]), "the loop class 0 -> class 1 -> class 0"),
        (([1, 1], [1, 1], [1, 1], "all"), "routing is 'all'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(values: tuple[object, ...], part: str) -> None:
    rates, prompt, output, routing = values
    with pytest.raises(ps.InputError) as error:
        multiclass_load(SERVER, rates, prompt, output, routing)  # type: ignore[arg-type]
    assert part in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_names_are_one_per_class() -> None:
    with pytest.raises(ps.InputError, match="2 names for 1 arrival rates"):
        traffic([1], [[0]], names=["plan", "write"])
