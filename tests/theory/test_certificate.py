"""A certificate says no more than a theorem whose hypotheses hold."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.load import load

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
STABLE_WORKLOAD = ps.Workload.poisson(rate=10.0, prompt=129, output=112)
STABLE_SERVER = ps.Server(TP1, 1024)


def test_where_every_hypothesis_holds_it_says_stable() -> None:
    certificate = ps.certify(STABLE_WORKLOAD, STABLE_SERVER)
    assert certificate.verdict == "stable"
    assert certificate.theorem == "Theorem 1(b)"
    assert all(h.held for h in certificate.hypotheses)


@ps.policy
def unlabelled(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


def _recorded() -> ps.Workload:
    requests = STABLE_WORKLOAD.requests(1000)
    return ps.Workload.from_arrays(*requests)


BROKEN = {
    "i.i.d. arrivals": (ps.Workload.preset("azure-conv").with_rate(1.0), STABLE_SERVER),
    "i.i.d. lengths": (_recorded(), STABLE_SERVER),
    "bounded lengths": (ps.Workload.poisson(10.0, 129, ps.Geometric(112)), STABLE_SERVER),
    "work-conserving policy": (STABLE_WORKLOAD, STABLE_SERVER.with_policy("vllm-vanilla")),
    "max batch size never binds": (STABLE_WORKLOAD, ps.Server(TP1, 1024, 1023)),
    "full batches carry the load": (STABLE_WORKLOAD.with_rate(8.0), ps.Server(TP1, 129)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_where_a_hypothesis_of_stability_fails_it_says_unknown_and_names_it(name: str) -> None:
    certificate = ps.certify(*BROKEN[name])
    assert certificate.rho < 1
    assert certificate.verdict == "unknown"
    assert certificate.theorem is None
    assert name in {h.name for h in certificate.hypotheses if not h.held}
    assert name in certificate.reason


def test_a_policy_of_which_nothing_is_known_is_not_taken_for_work_conserving() -> None:
    certificate = ps.certify(STABLE_WORKLOAD, STABLE_SERVER.with_policy(unlabelled))
    assert certificate.verdict == "unknown"


def test_a_max_batch_size_that_reaches_the_token_budget_does_no_harm() -> None:
    assert ps.certify(STABLE_WORKLOAD, ps.Server(TP1, 1024, 1024)).verdict == "stable"


@pytest.mark.parametrize("name", BROKEN)
def test_above_the_capacity_no_failed_hypothesis_of_stability_saves_it(name: str) -> None:
    workload, server = BROKEN[name]
    certificate = ps.certify(workload.with_rate(100.0), server)
    assert certificate.verdict == "unstable"
    assert certificate.theorem == "Theorem 1(a)"


def test_load_one_is_critical() -> None:
    server = ps.Server(ps.Affine(c=0.0, a=1 / 1024), 512, convention="paper")
    certificate = ps.certify(ps.Workload.deterministic(rate=4.0, prompt=128, output=128), server)
    assert certificate.rho == 1.0
    assert certificate.verdict == "critical"


@given(rate=st.floats(0.1, 50), budget=st.integers(1, 4096), prompt=st.integers(1, 500), output=st.integers(1, 500))
def test_margin_load_and_largest_rate_are_one_fact(rate: float, budget: int, prompt: int, output: int) -> None:
    certificate = ps.certify(ps.Workload.poisson(rate, prompt, output), ps.Server(TP1, budget))
    assert certificate.margin == 1 - certificate.rho
    assert certificate.max_rate * certificate.rho == pytest.approx(rate)
    assert (certificate.verdict == "unstable") == (certificate.rho > 1 + 1e-9)


def test_a_budget_that_is_no_multiple_of_a_block_is_shown_to_lose() -> None:
    asked = load(STABLE_WORKLOAD, ps.Server(TP1, 129))
    assert asked.best_token_load == 128
    assert asked.capacity_tokens_per_s == pytest.approx(2738, abs=0.5)
    assert asked.full_batch_tokens_per_s == pytest.approx(1569, abs=0.5)


def test_the_engine_convention_costs_one_token_less() -> None:
    engine = load(STABLE_WORKLOAD, STABLE_SERVER)
    paper = load(STABLE_WORKLOAD, dataclasses.replace(STABLE_SERVER, convention="paper"))
    assert (paper.tokens_per_request, engine.tokens_per_request) == (241, 240)


def test_requests_that_span_no_time_have_no_load() -> None:
    workload = ps.Workload.from_arrays(np.zeros(3), [5, 5, 5], [5, 5, 5])
    with pytest.raises(ps.InputError, match="no arrival rate"):
        ps.certify(workload, STABLE_SERVER)


def test_requests_that_span_next_to_no_time_have_no_load() -> None:
    workload = ps.Workload.from_arrays([0, 5e-324], [1, 1], [1, 1])
    with pytest.raises(ps.InputError, match="no arrival rate"):
        ps.certify(workload, STABLE_SERVER)
