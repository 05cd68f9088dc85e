"""The bounds of the mean backlog are those of the Foster function, and a simulated mean lies between them."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.foster import foster

SERVER = ps.Server(ps.PiecewiseConstant(c=0.5, a=0.5, b0=4), 8)
PROMPT, OUTPUT = np.array([3, 20, 7, 1]), np.array([2, 1, 6, 3])
LENGTHS = ps.Empirical(PROMPT, OUTPUT)


def at_load(load: float, server: ps.Server, **arrivals: Any) -> ps.Workload:
    """Return requests of those lengths at a load of full batches."""
    rate = load * server.full_batch_rate / server.tokens_per_request(PROMPT.mean(), OUTPUT.mean())
    return ps.Workload.poisson(rate, LENGTHS, **arrivals)


@pytest.mark.parametrize(("policy", "convention"), [*itertools.product(["sarathi", "orca"], ["paper", "engine"])])
@pytest.mark.parametrize("load", [0.5, 0.9, 0.95])
def test_the_simulated_mean_lies_between_the_bounds(policy: str, convention: Any, load: float) -> None:
    """A 99.9% interval over 8 runs meets [low, high]."""
    server = dataclasses.replace(SERVER.with_policy(policy), convention=convention)
    found = ps.certify(at_load(load, server), server).mean_backlog
    assert found.low is not None
    assert found.high is not None
    means = []
    for seed in range(8):
        run = ps.simulate(at_load(load, server, seed=seed), server, requests=60_000, record="batches", tick_s=1e-6)
        middle = run.series.slice(run.series.height // 10)["unprocessed_tokens"].to_numpy()
        seconds = run.batches["duration_ns"].to_numpy() * 1e-9
        means.append(float(middle.mean()) + server.full_batch_rate * float((seconds**2).sum() / 2 / run.seconds))
    error = 5.4 * float(np.std(means, ddof=1)) / len(means) ** 0.5  # Student's t with 7 degrees of freedom
    assert np.mean(means) + error >= found.low
    assert np.mean(means) - error <= found.high
    assert error < 0.3 * found.high


@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_the_bounds_are_those_of_the_foster_function(convention: Any) -> None:
    server = dataclasses.replace(SERVER, convention=convention)
    workload = at_load(0.8, server)
    found = ps.certify(workload, server).mean_backlog
    known = foster(server, arrival_rate=workload.rate, prompt=PROMPT, output=OUTPUT)
    assert (found.low, found.high) == pytest.approx(known.mean_work)


@pytest.mark.parametrize(
    "lengths",
    [(ps.Geometric(30, max=400), ps.Uniform(1, 9)), (7, ps.Gamma(20, 2, max=300)), (ps.LogNormal(40, 2, max=900), 1)],
    ids=repr,
)
def test_distributions_have_the_bounds_of_many_drawn_rows(lengths: Any) -> None:
    workload = ps.Workload.poisson(1e-3, *lengths)
    rows = workload.requests(400_000)
    drawn = ps.Workload.poisson(1e-3, ps.Empirical(rows.prompt_tokens, rows.output_tokens))
    exact, sampled = (ps.certify(each, SERVER).mean_backlog for each in (workload, drawn))
    assert exact.low == pytest.approx(sampled.low, rel=0.03)
    assert exact.high == pytest.approx(sampled.high, rel=0.03)


def test_bounds_are_as_far_apart_at_every_load_while_both_grow_without_limit() -> None:
    server = ps.Server(ps.Affine(0.01, 1e-3), 100, convention="paper")
    for load, share in ((0.9, 0.9), (0.999, 0.07), (0.9999, 0.007)):
        workload = ps.Workload.poisson(load * server.full_batch_rate / 300, 200, 100)
        found = ps.certify(workload, server).mean_backlog
        assert found.low is not None
        assert found.high is not None
        assert found.high - found.low == pytest.approx(50 + 99 * 101)
        assert (found.high - found.low) / found.high < share


@pytest.mark.parametrize(
    ("workload", "server", "fails"),
    [
        (at_load(1.02, SERVER), SERVER, "full batches carry the load"),
        (ps.Workload.gamma(1e-3, 2.0, 3, 4), SERVER, "Poisson arrivals"),
        (ps.Workload.poisson(1e-3, ps.Geometric(3), 4), SERVER, "bounded lengths"),
        (at_load(0.1, SERVER), SERVER.with_policy("vllm-vanilla"), "work-conserving policy"),
        (at_load(0.1, SERVER), dataclasses.replace(SERVER, max_batch_size=4), "max batch size never binds"),
        (at_load(0.1, SERVER), SERVER.with_policy("vllm"), "batches as in the paper"),
        (at_load(0.1, SERVER), dataclasses.replace(SERVER, token_budget=9), "full batches are the fastest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_hypothesis_there_are_no_bounds_and_it_is_named(
    workload: ps.Workload, server: ps.Server, fails: str
) -> None:
    found = ps.certify(workload, server).mean_backlog
    assert (found.low, found.high) == (None, None)
    assert [h.name.startswith(fails) for h in found.hypotheses if not h.held].count(True) == 1
    said = ps.certify(workload, server).as_dict()["mean_backlog"]
    assert (said["low"], said["high"]) == (None, None)
    assert any(reason.startswith(fails) for reason in said["failed"])
