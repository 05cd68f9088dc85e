"""Networks side by side fit a terminal, with every figure of the comparison."""

import re
from pathlib import Path

from penstock.checking.comparison import compare_networks, compare_orders
from penstock.checking.variants import with_router
from penstock.checking.view_comparison import signed
from penstock.scenario.scenario import build, read_scenario
from penstock.show.html import render
from penstock.words import seconds
from tests.checking.test_view_network import LONG, in_words

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orders_fit_the_terminal_whatever_they_are_called(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = build(LONG, Path())
    orders = {"as it is": {}, "back-pressure-phase": "back-pressure-phase", "[bold]mine": "hlpps"}
    found = compare_orders(scenario.network, orders, jobs=600, resolution=0.1)  # type: ignore[arg-type]
    for width in (80, 120):
        said = in_words(capsys, monkeypatch, width)(found.page(scenario, "Order"))
        assert max(map(len, said.splitlines())) <= width
        assert "…" not in said
        assert all(name in said for name in orders)


def test_latencies_and_differences_stand_below_each_other(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = read_scenario(EXAMPLES / "research_fork_join.yaml")
    networks = {name: with_router(scenario.network, name) for name in ("random", "jsq")}
    found = compare_networks(networks, jobs=2_500, targets=["ttft_p99<2s"], resolution=0.1)
    page = found.page(scenario, "Router")
    said = in_words(capsys, monkeypatch, 80)(page)
    latencies = said[said.index("Latency in the") : said.index("-: the run is too short")].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in latencies if line}
    random, jsq = found.rows
    latency = [jsq.latency[metric][name] for metric in ("ttft_s", "e2e_s") for name in ("mean", "p50", "p99")]
    assert rows["jsq"] == [seconds(estimate.value) for estimate in latency]
    change = [jsq.difference[metric][name] for metric in ("ttft_s", "e2e_s") for name in ("mean", "p50", "p99")]
    assert rows["change"] == [signed(estimate.value) for estimate in change]
    assert rows["from"] == [signed(estimate.low) for estimate in change]
    assert f"{random.goodput.value:.1%}" in said
    text = render(page)
    assert "Time to first token, cumulative distribution" in text
    assert "Preempted" not in said  # nothing can be
    assert "Found" not in said  # nothing is


def test_what_has_no_steady_state_has_no_latency_and_says_why(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = read_scenario(EXAMPLES / "rybko_stolyar.yaml")
    network = scenario.network.with_load(0.7)
    found = compare_orders(network, {"own": {}, "fcfs": "fcfs"}, jobs=1500, resolution=0.1)
    assert found.first == "fcfs"
    said = in_words(capsys, monkeypatch, 120)(found.page(scenario, "Order"))
    rows = {
        line.split()[0]: line.split()[1:3]
        for line in said.splitlines()
        if line.split()[2:3] in (["stable"], ["unstable"])
    }
    assert rows == {"own": ["unstable", "unstable"], "fcfs": ["unknown", "stable"]}
    assert len(re.findall(r"own +refused", said)) == said.count("Refused: it has no steady state.") == 2
    with_latency = [(row.workflow, row.network) for row in found.rows]
    assert with_latency == [("search", "fcfs"), ("complaint", "fcfs")]
    own = compare_orders(network, {"own": {}}, jobs=200, resolution=0.1)
    assert own.first is None
    assert "No latency" in in_words(capsys, monkeypatch, 120)(own.page(scenario, "Order"))
