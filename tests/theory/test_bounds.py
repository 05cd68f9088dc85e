"""Necessary conditions bind whatever the policy does."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.bounds import Bound, bounds, kv_token_iterations, most_kv_tokens
from penstock.theory.load import load
from penstock.workload.lengths import Tabulated
from penstock.workload.pairs import Empirical, Independent, Lengths, Recorded

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512, 128)
CHAT = ps.Workload.poisson(1.0, 129, 112)


def of(workload: ps.Workload, server: ps.Server, kv_tokens: int | None = None) -> tuple[Bound, ...]:
    return bounds(workload, server, load(workload, server), kv_tokens)


def held(prompt: int, output: int, budget: int, convention: str) -> int:
    """Serve one request alone, the short chunk first, and add up what it holds in each iteration."""
    total = cached = 0
    while cached < prompt:
        cached += (prompt - cached) % budget or budget
        total += cached
    for _ in range(output - (convention == "engine")):
        cached += 1
        total += cached
    return total


def test_each_limit_that_can_bind_has_a_bound() -> None:
    assert [b.name for b in of(CHAT, ps.Server(TP1, 512))] == ["token budget"]
    assert [b.name for b in of(CHAT, ps.Server(TP1, 512, 512))] == ["token budget"]
    assert [b.name for b in of(CHAT, SERVER)] == ["token budget", "max batch size"]
    assert [b.name for b in of(CHAT, SERVER, 10_000)] == ["token budget", "max batch size", "KV memory"]


def test_the_max_batch_size_never_carries_more_than_the_token_budget_alone() -> None:
    for slots in (1, 20, 128, 400):
        budget, size = of(CHAT, dataclasses.replace(SERVER, max_batch_size=slots))
        assert size.max_rate <= budget.max_rate * (1 + 1e-9)


@given(
    prompt=st.integers(1, 300),
    output=st.integers(1, 50),
    budget=st.integers(1, 100),
    convention=st.sampled_from(["paper", "engine"]),
)
@settings(max_examples=200, deadline=None)
def test_kv_tokens_of_a_request_are_added_up_over_its_iterations(
    prompt: int, output: int, budget: int, convention: str
) -> None:
    server = ps.Server(TP1, budget, convention=convention)  # type: ignore[arg-type]
    exact = held(prompt, output, budget, convention)
    assert kv_token_iterations(Independent(ps.Constant(prompt), ps.Constant(output)), server) == exact
    assert kv_token_iterations(Empirical([prompt, prompt], [output, output]), server) == exact


@given(chunks=st.lists(st.integers(1, 40), min_size=1, max_size=12), output=st.integers(1, 20))
def test_no_way_of_cutting_a_prompt_holds_less(chunks: list[int], output: int) -> None:
    prefill = int(np.cumsum(chunks).sum())
    assert held(sum(chunks), 1, max(chunks), "engine") <= prefill


@pytest.mark.parametrize(
    "lengths",
    [
        Independent(ps.Uniform(1, 900), ps.Geometric(50, max=400)),
        Independent(ps.LogNormal(700, 1.5), ps.Gamma(90, 2)),
        *(Independent(Tabulated(1, np.ones(900)), Tabulated(5, np.arange(200.0)), c) for c in (-1, -0.7, 0, 0.7)),
        Empirical([1, 700, 513], [100, 1, 3]),
        Recorded([1, 700, 513], [100, 1, 3]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_the_mean_is_never_more_than_that_of_a_sample(lengths: Lengths, convention: str) -> None:
    server = ps.Server(TP1, 256, convention=convention)  # type: ignore[arg-type]
    prompt, output = lengths.sample(np.random.default_rng(0), 20_000)
    each = [held(p, o, 256, convention) for p, o in zip(prompt.tolist(), output.tolist(), strict=True)]
    known = kv_token_iterations(lengths, server)
    error = 4 * np.std(each) / math.sqrt(len(each))
    assert 0 < known <= np.mean(each) + error
    if isinstance(lengths, Empirical):
        assert known == pytest.approx(np.mean(each), abs=error)


def test_the_kv_bound_is_what_one_request_after_another_can_reach() -> None:
    """A cache for one request, batch times that never vary: Little's law leaves the mean use of the cache only."""
    server = ps.Server(ps.Affine(0.01, 0.0), 512)
    bound = of(CHAT, server, 240)[-1]
    assert bound.max_rate == pytest.approx(240 / 0.01 / (129 + sum(range(130, 241))))
    assert bound.max_rate > 1 / (112 * 0.01)  # one request at a time: 112 iterations


@pytest.mark.parametrize("policy", ps.POLICIES)
@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_no_simulated_request_holds_less_memory_than_the_bound_counts(policy: str, convention: str) -> None:
    """KV tokens in use, integrated over a run, are at least requests * E[g] * the least batch time."""
    server = ps.Server(TP1, 200, 20, policy, convention=convention)  # type: ignore[arg-type]
    workload = ps.Workload.poisson(2.0, ps.Uniform(1, 600), ps.Uniform(1, 60))
    requests = workload.requests(400)
    run = ps.simulate(ps.Workload.from_arrays(*requests), server, record="allocations")
    rows = run.allocations
    tokens = (rows["prefill_tokens"] + rows["decode_tokens"]).to_numpy()
    seconds = run.batches["duration_ns"].to_numpy()[rows["batch"].to_numpy()] / 1e9
    order = np.lexsort((rows["batch"].to_numpy(), rows["request"].to_numpy()))
    owner, cached = rows["request"].to_numpy()[order], np.cumsum(tokens[order])
    first = np.searchsorted(owner, owner)
    cached = cached - (cached - tokens[order])[first]
    integral = float((cached * seconds[order]).sum())
    recorded = Recorded(requests.prompt_tokens, requests.output_tokens)
    shortest = float(TP1.table(200)[1:].min())
    assert integral >= 400 * kv_token_iterations(recorded, server) * shortest


def test_a_request_that_can_never_fit_is_refused_and_told() -> None:
    with pytest.raises(ps.InputError, match=r"a request grows to 240 tokens .* kv_tokens is 239, so it never fits"):
        ps.certify(CHAT, SERVER, kv_tokens=239)
    assert ps.certify(CHAT, SERVER, kv_tokens=240).bounds[-1].name == "KV memory"
    paper = dataclasses.replace(SERVER, convention="paper")
    with pytest.raises(ps.InputError, match="grows to 241"):
        ps.certify(CHAT, paper, kv_tokens=240)


def test_the_largest_request_is_that_of_one_row_not_the_longest_prompt_with_the_longest_output() -> None:
    assert most_kv_tokens(Empirical([10, 900], [800, 20]), SERVER) == 919
    assert most_kv_tokens(Independent(ps.Constant(10), ps.Geometric(5)), SERVER) is None


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, float("nan"), float("inf")])
def test_what_is_no_number_of_kv_tokens_is_refused(value: object) -> None:
    with pytest.raises(ps.InputError, match="kv_tokens is"):
        ps.certify(CHAT, SERVER, kv_tokens=value)  # type: ignore[arg-type]
