"""What is printed about a network fits the terminal and has the numbers of the answer."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.checking.answer import check
from penstock.checking.network_answer import POOLS_IN_WORDS, NetworkAnswer
from penstock.checking.orders import compare_orders
from penstock.checking.terminal_network import print_network, print_orders
from penstock.scenario.network import NetworkScenario, build_network, read_network

EXAMPLES = Path(__file__).parents[2] / "examples"
NETWORKS = ("research_fork_join", "rybko_stolyar", "self_reflection", "disaggregated")
Printed = Callable[[int], str]

LONG = {
    "network": {
        "pools": {
            "retrieval-of-long-documents": {
                "hardware": "codellama-34b-a100-tp1", "token_budget": 512, "max_batch_size": 16, "replicas": 12,
                "order": "back-pressure-phase", "router": "power-of-two",
            },
            "communication_with_[customers]": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512},
        },
        "workflows": {
            "customer_support_dialogue": {
                "arrivals": {"poisson": 1.5},
                "stages": {
                    "understand_the_question": {
                        "pool": "communication_with_[customers]", "prompt": 100, "output": 50,
                        "then": "look_into_the_documents",
                    },
                    "look_into_the_documents": {
                        "pool": "retrieval-of-long-documents", "prompt": 1000, "output": 200,
                    },
                },
            },
            **{
                name: {
                    "pool": "communication_with_[customers]",
                    "workload": {"poisson": {"rate": rate, "prompt": 300, "output": 20}},
                }
                for name, rate in (("b", 0.5), ("c", 0.5), ("seldom", 0.01))
            },
        },
    },
    "simulate": {"jobs": 600},
}  # fmt: skip


@pytest.fixture(scope="module", params=[*NETWORKS, "long names"])
def answered(request: pytest.FixtureRequest) -> tuple[NetworkScenario, NetworkAnswer]:
    name = request.param
    scenario = build_network(LONG, Path()) if name == "long names" else read_network(EXAMPLES / f"{name}.yaml")
    return scenario, check(scenario.network, jobs=600, resolution=0.1)


def in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")

    def said(show: Callable[..., None], *arguments: object) -> str:
        show(*arguments)
        return capsys.readouterr().out

    return said


def shown(seconds: float | None) -> str:
    """Three digits, as everywhere on the terminal."""
    if seconds is None:
        return "-"
    decimals = 0 if seconds >= 100 else 1 if seconds >= 10 else 2 if seconds >= 1 else 3
    return f"{seconds:,.{decimals}f}"


@pytest.mark.parametrize("width", [80, 120])
def test_words_fit_the_terminal_and_lose_no_name(answered, width: int, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario, found = answered
    said = in_words(capsys, monkeypatch, width)(print_network, scenario, found)
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    together = re.sub(r"\s", "", said)
    for name in (*found.network.pools, *(stage for w in found.network.workflows for stage in w.stages)):
        if len(name) < 15:
            assert name in together
    assert said.split("\n\n")[1].split()[0] in ("STABLE", "UNSTABLE", "UNKNOWN")


def test_every_number_printed_of_pools_stages_and_workflows_is_that_of_the_answer(
    answered, capsys, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    scenario, found = answered
    said = in_words(capsys, monkeypatch, 200)(print_network, scenario, found)
    rows = [line.split() for line in said.splitlines()]

    def row(name: str, numbers: list[str]) -> None:
        assert any(each[:1] == [name] and each[1 : 1 + len(numbers)] == numbers for each in rows), (name, numbers)

    for pool in found.pools:
        numbers = [f"{pool.rho:.3f}", f"{pool.margin:.3f}", f"{pool.busy:.0%}", f"{pool.tokens_per_batch:,.0f}"]
        router = pool.router if pool.replicas > 1 else "-"
        words = [f"{pool.replicas:,}", f"{pool.tokens_per_s:,.0f}", pool.order, router, pool.policy]
        row(pool.name, numbers + words)
    for stage in found.stages:
        asked = [f"{stage.visits_per_s:,.4g}", f"{stage.prefill_tokens:,.0f}", f"{stage.decode_tokens:,.0f}"]
        short = stage.name.partition(".")[2]
        row(short, [stage.pool, *asked])
        if stage.latency is not None:
            e2e, ttft = stage.latency["e2e_s"], stage.latency["ttft_s"]
            numbers = [e2e["mean"].value, e2e["mean"].low, e2e["mean"].high, e2e["p99"].value]
            numbers += [ttft["mean"].value, ttft["p99"].value]
            if "join_wait_s" in stage.latency:
                numbers.append(stage.latency["join_wait_s"]["mean"].value)
            row(short, [shown(number) for number in numbers])
    for workflow in found.workflows:
        row(workflow.name, [f"{workflow.jobs_per_s:,.4g}"])
        if workflow.e2e is not None:
            mean = workflow.e2e["mean"]
            row(workflow.name, [shown(n) for n in (mean.value, mean.low, mean.high, workflow.e2e["p99"].value)])
    assert f"{found.run.arrived:,} jobs" in said
    assert f"load {found.bottleneck.rho:.3f}, the least margin of all" in said
    assert ("try fcfs" in " ".join(said.split())) == (found.certificate.verdict == "unstable")
    assert all(join.bound in " ".join(said.split()) for join in found.certificate.joins)
    assert all(text in " ".join(said.split()) for _, text in found.cycles_in_words())
    assert POOLS_IN_WORDS in " ".join(said.split())
    assert ("No latency" in said) == (found.latency_refused is not None)


def test_what_makes_priorities_fail_is_said_with_its_numbers(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = read_network(EXAMPLES / "rybko_stolyar.yaml")
    found = check(scenario.network, jobs=200)
    virtual = found.certificate.virtual_station
    assert virtual is not None
    said = " ".join(in_words(capsys, monkeypatch, 80)(print_network, scenario, found).split())
    for stages, load, pool in zip(virtual.classes, virtual.loads, virtual.pools, strict=True):
        assert f"{', '.join(stages)} ({load:.3f} of {pool})" in said
    first, second = virtual.amplification()
    assert f"multiplies a backlog by {first * second:,.3g}" in said
    assert f"This order {virtual.max_load:,.4g} x" in said
    assert "try fcfs, or the order turned around" in said


@pytest.mark.parametrize("width", [80, 120])
def test_orders_fit_the_terminal_whatever_they_are_called(width: int, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = build_network(LONG, Path())
    orders = {"as it is": {}, "back-pressure-phase": "back-pressure-phase", "[bold]mine": "hlpps"}
    found = compare_orders(scenario.network, orders, jobs=600, resolution=0.1)  # type: ignore[arg-type]
    said = in_words(capsys, monkeypatch, width)(print_orders, scenario, found)
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    together = re.sub(r"\s", "", said)
    assert all(name.replace(" ", "") in together for name in orders if len(name) < 15)


def test_every_mean_of_every_order_is_printed_with_its_interval(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = read_network(EXAMPLES / "rybko_stolyar.yaml")
    network = scenario.network.with_load(0.7)
    found = compare_orders(network, {"own": {}, "fcfs": "fcfs", "hlpps": "hlpps"}, jobs=4000)
    said = in_words(capsys, monkeypatch, 120)(print_orders, scenario, found)
    rows = {line.split()[0]: line for line in said.splitlines() if line.split()[1:2] in (["unknown"], ["unstable"])}
    assert list(rows) == ["own", "fcfs", "hlpps"]
    assert rows["own"].split()[1:] == ["unstable", "unstable", "refused", "refused"]
    for name, workflow in itertools.product(("fcfs", "hlpps"), range(2)):
        e2e = found[name].workflows[workflow].e2e
        assert e2e is not None
        mean = e2e["mean"]
        assert f"{shown(mean.value)} ({shown(mean.low)} to {shown(mean.high)})" in rows[name]


@ps.policy(work_conserving=True)
def lazy(queue, limits, params):  # type: ignore[no-untyped-def]
    return min(queue.prompt_tokens, 64), min(queue.decoding, limits.token_budget // 8), ps.PREFILL_FIRST


def test_a_contradiction_is_shouted(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 1024, policy=lazy)
    network = ps.Network.single(ps.Workload.poisson(12.0, 129, 112), server)
    scenario = NetworkScenario("lazy", network, 300, None, Path())
    said = in_words(capsys, monkeypatch, 80)(print_network, scenario, check(network, jobs=300))
    assert " CONTRADICTION  multi-class theorem says stable, but the test says unstable" in " ".join(said.split("\n"))


def test_what_is_not_tested_is_said(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    recorded = ps.Workload.from_arrays(list(range(300)), [100] * 300, [20] * 300)
    network = ps.Network.single(recorded, ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512))
    scenario = NetworkScenario("recorded", network, None, None, Path())
    said = in_words(capsys, monkeypatch, 80)(print_network, scenario, check(network))
    assert "NOT TESTED: all jobs are recorded" in said
