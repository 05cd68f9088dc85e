"""An answer puts theory and simulation side by side and refuses what has no meaning."""

import pytest

import penstock as ps
from penstock.checking.check import check
from penstock.checking.targets import Target
from tests.own_policies import own_policy

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
    assert not check(WORKLOAD.with_rate(1.0), ps.Server(TP1, 128), requests=2000).warnings


def test_back_pressure_where_the_limit_counts_running_requests_is_warned_of_with_what_it_carries() -> None:
    found = check(WORKLOAD.with_rate(1.0), ps.Server(TP1, 512, 64, "maxweight"), requests=100)
    assert any("maxweight starves decodes" in warning and "priced 0.87" in warning for warning in found.warnings)


def test_where_no_theorem_speaks_the_test_refuses_latency() -> None:
    found = check(WORKLOAD.with_rate(13.0), ps.Server(TP1, 1024, policy="vllm-vanilla"), requests=2000)
    assert found.certificate.verdict == "unknown"
    assert found.stability.verdict == "unstable"
    assert found.verdict == "unstable"
    assert found.latency is None
    assert "so the backlog grows" in str(found.latency_refused)


def test_an_undecided_test_is_warned_of_and_refuses_nothing() -> None:
    server = ps.Server(TP1, 1024, convention="paper")
    rate = (1 - 1e-6) * TP1.capacity(1024) / 241
    found = check(ps.Workload.poisson(rate, 129, 112), server, requests=2000, resolution=0.25)
    assert found.stability.verdict == "undecided"
    assert found.latency is not None
    assert any("undecided" in warning for warning in found.warnings)


@own_policy(work_conserving=True)
def lazy(queue, limits, params):  # type: ignore[no-untyped-def]
    return min(queue.prompt_tokens, 64), min(queue.decoding, limits.token_budget // 8), ps.PREFILL_FIRST


def test_theorem_and_test_in_contradiction_put_what_was_taken_on_trust_in_doubt() -> None:
    found = check(WORKLOAD.with_rate(12.0), ps.Server(TP1, 1024, policy=lazy), requests=500)
    assert found.certificate.verdict == "stable"
    assert found.stability.verdict == "unstable"
    assert found.disagreement is not None
    assert found.verdict == "contradiction"
    assert "work-conserving policy" in found.disagreement
    assert found.latency_refused


@pytest.mark.parametrize("policy", ps.POLICIES)
@pytest.mark.parametrize("rho", [pytest.param(0.1, marks=pytest.mark.slow), 0.9, 1.1])
@pytest.mark.parametrize("limit", [None, 128])
def test_theorem_and_test_never_contradict_each_other(policy: str, rho: float, limit: int | None) -> None:
    server = ps.Server(TP1, 512, limit, policy=policy)
    bound = ps.certify(WORKLOAD, server).max_rate
    assert check(WORKLOAD.with_rate(rho * bound), server, requests=200).disagreement is None


def test_targets_are_judged_by_intervals_and_missed_where_there_is_no_steady_state() -> None:
    targets = [Target.parse(text) for text in ("ttft_p99<100s", "e2e_mean<1ms")]
    found = check(WORKLOAD, ps.Server(TP1, 1024), requests=2000, targets=targets)
    assert [target.judgement for target in found.targets] == ["met", "missed"]
    assert found.missed
    overloaded = check(WORKLOAD.with_rate(20.0), ps.Server(TP1, 1024), requests=200, targets=targets)
    assert [target.judgement for target in overloaded.targets] == ["missed", "missed"]


def test_an_undecided_target_makes_the_run_longer() -> None:
    server = ps.Server(TP1, 1024)
    first = check(WORKLOAD, server, requests=1000)
    assert first.latency is not None
    near = first.latency.estimates["ttft_s"]["mean"].value
    found = check(WORKLOAD, server, requests=1000, targets=[Target.parse(f"ttft_mean<{near}s")])
    assert found.run.arrived > 1000


def test_a_precision_makes_the_run_as_long_as_it_takes() -> None:
    found = check(WORKLOAD, ps.Server(TP1, 1024), requests=1_000, precision=0.05)
    assert found.run.arrived > 1_000
    assert found.latency is not None
    assert found.latency.precision <= 0.05


@pytest.mark.parametrize("requests", [1, 5, 39])
def test_a_handful_of_requests_has_latency_without_intervals(requests: int) -> None:
    found = check(WORKLOAD, ps.Server(TP1, 1024), requests=requests)
    assert found.latency is not None
    assert found.latency.estimates["ttft_s"]["mean"].high is None
    assert any("too few for intervals" in warning for warning in found.warnings)


@pytest.mark.parametrize("targets", ["ttft_p99<2s", [1j], ["ttft<2s"]])
def test_targets_that_are_none_are_refused_whatever_the_verdict(targets: object) -> None:
    for rate in (10.0, 20.0):
        with pytest.raises(ps.InputError, match="target"):
            check(WORKLOAD.with_rate(rate), ps.Server(TP1, 1024), requests=100, targets=targets)  # type: ignore[arg-type]


def test_targets_need_a_number_of_requests() -> None:
    with pytest.raises(ps.InputError, match="no `until`"):
        check(WORKLOAD, ps.Server(TP1, 1024), until=50.0, targets=[Target.parse("ttft_p99<2s")])


def test_a_run_of_a_given_time_needs_no_number_of_requests() -> None:
    found = check(WORKLOAD, ps.Server(TP1, 1024), until=50.0)
    assert found.run.seconds == 50.0
    assert found.as_dict()["simulation"]["requests"] == found.run.arrived


@pytest.mark.parametrize(("rate", "policy"), [(1.0, "sarathi"), (40.0, "sarathi"), (1.0, "vllm-vanilla")])
def test_the_reason_is_that_of_the_theorem_and_where_none_applies_of_the_test(rate: float, policy: str) -> None:
    found = check(WORKLOAD.with_rate(rate), ps.Server(TP1, 1024, policy=policy), requests=200)
    decided = found.stability if found.certificate.verdict == "unknown" else found.certificate
    assert (found.verdict, found.reason) == (decided.verdict, decided.reason)
