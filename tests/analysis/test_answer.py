"""An answer puts theory and simulation side by side and refuses what has no meaning."""

import pytest

import penstock as ps
from penstock.analysis.answer import check

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
WORKLOAD = ps.Workload.poisson(rate=10.0, prompt=129, output=112)


def test_a_stable_system_has_a_latency() -> None:
    found = check(WORKLOAD, ps.Server(TP1, 1024), requests=2000)
    assert found.certificate.verdict == "stable"
    assert found.latency_refused is None
    assert found.as_dict()["latency"]["ttft_s"]["p50"] > 0


@pytest.mark.parametrize("policy", ps.POLICIES)
def test_the_latency_of_a_steady_state_is_refused_where_there_is_none(policy: str) -> None:
    found = check(WORKLOAD.with_rate(20.0), ps.Server(TP1, 1024, policy=policy), requests=2000)
    assert found.certificate.verdict == "unstable"
    assert found.as_dict()["latency"] is None
    assert "no steady state" in str(found.latency_refused)
    assert found.run.unfinished > 0


def test_the_critical_load_has_none_either() -> None:
    server = ps.Server(ps.Affine(c=0.0, a=1 / 1024), 512, convention="paper")
    found = check(ps.Workload.deterministic(rate=4.0, prompt=128, output=128), server, requests=100)
    assert found.certificate.verdict == "critical"
    assert found.latency_refused


def test_a_budget_that_wastes_capacity_is_warned_of_with_the_better_one() -> None:
    found = check(WORKLOAD.with_rate(1.0), ps.Server(TP1, 129), requests=100)
    assert any("set the budget to 128" in warning for warning in found.warnings)
    assert not check(WORKLOAD.with_rate(1.0), ps.Server(TP1, 128), requests=100).warnings


def test_a_backlog_that_grows_where_no_theorem_speaks_is_warned_of() -> None:
    found = check(WORKLOAD.with_rate(13.0), ps.Server(TP1, 1024, policy="vllm-vanilla"), requests=5000)
    assert found.certificate.verdict == "unknown"
    assert any("grew by" in warning for warning in found.warnings)


def test_a_run_of_a_given_time_needs_no_number_of_requests() -> None:
    found = check(WORKLOAD, ps.Server(TP1, 1024), until=50.0)
    assert found.run.seconds == 50.0
    assert found.as_dict()["simulation"]["requests"] == found.run.arrived
