"""Bounds of latency are reached where they can be, and rise with the rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import penstock as ps
from penstock.theory.latency_bounds import lower_bounds, request_bounds

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512)
CHAT = ps.Workload.poisson(7.0, ps.Geometric(129), ps.Geometric(112))


def test_bad_input_is_told_in_one_line() -> None:
    for asked in (ps.estimate_latency, lower_bounds):
        with pytest.raises(ps.InputError, match="takes a Workload and a Server, not Server"):
            asked(SERVER, CHAT)  # type: ignore[arg-type]
        with pytest.raises(ps.InputError, match="no arrival rate"):
            asked(ps.Workload.from_arrays([0.0], [10], [10]), SERVER)


def test_bounds_of_requests_are_reached_by_one_alone() -> None:
    """Whatever the model: a prompt within the budget takes one batch, each decode one more."""
    for model in (TP1, ps.Affine(0.01, 1e-4), ps.hardware("llama-2-70b-h100-tp4").batch_time):
        first, end = request_bounds(np.array([300]), np.array([3]), ps.Server(model, 512))
        prefill = model.of_batch(prefill=[(300, 0)])
        decodes = model.of_batch(decode=[300]) + model.of_batch(decode=[301])
        assert first[0] == pytest.approx(prefill, rel=0.02)
        assert first[0] <= prefill * (1 + 1e-12)
        assert end[0] == pytest.approx(prefill + decodes, rel=0.02)
        assert end[0] <= (prefill + decodes) * (1 + 1e-12)


def test_a_bound_does_not_assume_that_longer_batches_take_longer() -> None:
    """Batches of two tokens take a tenth of those of one, and four prompt tokens two of them."""
    odd = ps.Server(ps.Measured((1, 2), (1.0, 0.1)), 2)
    first, end = request_bounds(np.array([4]), np.array([2]), odd)
    assert 0.1 < first[0] <= 0.2 + 1e-12
    assert end[0] <= 0.3 + 1e-12


@given(rates=st.tuples(st.floats(0.01, 13.0), st.floats(0.01, 13.0)), policy=st.sampled_from(["sarathi", "vllm"]))
def test_bounds_rise_with_the_rate(rates: tuple[float, float], policy: str) -> None:
    low, high = (lower_bounds(CHAT.with_rate(rate), SERVER.with_policy(policy)) for rate in sorted(rates))
    for metric, found in low.items():
        assert all(found[name] <= high[metric][name] * (1 + 1e-9) for name in found)


def test_near_the_capacity_every_gap_lasts_as_long_as_the_best_batch() -> None:
    """Only batches of 512 carry that rate, so next to all gaps have their length, and no policy shortens them."""
    capacity = TP1.capacity(512) / 240
    found = lower_bounds(CHAT.with_rate(0.9999 * capacity), SERVER)["tbt_s"]
    assert found["mean"] == pytest.approx(float(TP1(512)), rel=1e-2)
    assert found["p50"] == pytest.approx(float(TP1(512)), rel=1e-6)
    assert lower_bounds(CHAT.with_rate(1.0001 * capacity), SERVER)["tbt_s"]["mean"] == np.inf


def test_where_prompts_come_with_next_to_no_outputs_the_mean_ttft_is_that_of_the_queue() -> None:
    """Pollaczek and Khinchine: batches of any size are as good, so a server of prompts alone is an M/G/1 queue."""
    server = ps.Server(ps.Affine(0.0, 1e-3), 1)
    workload = ps.Workload.poisson(0.8, 1_000, 1)
    assert lower_bounds(workload, server)["ttft_s"]["mean"] == pytest.approx(1 + 0.8 / (2 * (1 - 0.8)), rel=1e-3)


@given(st.lists(st.floats(1e-3, 1.0), min_size=4, max_size=4), st.floats(0.1, 0.95))
def test_the_mean_gap_is_that_of_the_best_mix_of_batches(steps: list[float], load: float) -> None:
    """The linear program behind it: mixes of batches with so many seconds a token at most."""
    seconds = np.cumsum(steps)
    per_token = seconds / np.arange(1, 5)
    rate = load / (11 * per_token.min())  # of ten gaps and one prompt token
    server = ps.Server(ps.Measured([1, 2, 3, 4], seconds.tolist()), 4)
    left = (1 - rate * per_token.min()) / (rate * 10)
    best = linprog(seconds, [per_token], [left], [np.ones(4)], [1.0])
    gap = lower_bounds(ps.Workload.deterministic(rate, 1, 11), server)["tbt_s"]["mean"]
    assert gap == pytest.approx(best.fun, rel=1e-5)
