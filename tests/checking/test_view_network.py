"""The page of a network says its verdict first, and every pool, stage and number of the answer, at any width."""

import html.parser
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.checking.answer import Answer
from penstock.checking.figures_network import graph_figure
from penstock.checking.view_network import _POOLS, _pools_table
from penstock.scenario.scenario import Scenario, build, read_scenario
from penstock.show import page as pages
from penstock.show.html import render, write
from penstock.show.terminal import print_page
from tests.own_policies import own_policy

EXAMPLES = Path(__file__).parents[2] / "examples"


class Body(html.parser.HTMLParser):
    """The words of a page in order, the cells of its tables by caption or first heading, and its drawings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.drawings: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        given = dict(attrs)
        if tag == "svg" and given.get("role") == "img":
            self.drawings.append(given["aria-label"] or "")
        if tag == "div" and given.get("role") == "group":
            self.rows = self.tables.setdefault(given["aria-label"] or "", [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "body" not in self.open or not data.strip():
            return
        self.words.append(data.strip())
        if self.rows and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip()


def answered(name: str, folder: Path, jobs: int) -> tuple[Scenario, Answer, Body]:
    scenario = read_scenario(EXAMPLES / f"{name}.yaml")
    answer = ps.check(scenario.network, jobs=jobs, seed=0)
    path = folder / "new" / f"{name}.html"
    write(path, answer.page(scenario))
    return scenario, answer, Body(path.read_text())


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Answer, Body]:
    return answered("research_fork_join", tmp_path_factory.mktemp("report"), 2000)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Answer, Body]:
    """Of which no theorem says anything."""
    return answered("disaggregated", tmp_path_factory.mktemp("report"), 1000)


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Answer, Body]:
    return answered("rybko_stolyar", tmp_path_factory.mktemp("report"), 1000)


def test_the_verdict_that_knows_comes_first_and_both_are_there(
    apart: tuple[Scenario, Answer, Body], crossed: tuple[Scenario, Answer, Body]
) -> None:
    _, answer, page = apart
    assert answer.certificate.verdict == "unknown"
    assert answer.stability is not None
    assert page.words.index("stable") < page.words.index(f"{answer.stability.reason}.") < page.words.index("unknown")
    assert f"{answer.certificate.reason}." in page.words
    _, answer, page = crossed
    assert page.words.index("unstable") < page.words.index(f"{answer.certificate.reason}.")


def test_every_pool_is_told_with_its_load_and_what_it_did(
    research: tuple[Scenario, Answer, Body],
) -> None:
    _, answer, page = research
    (heads, *rows) = next(rows for rows in page.tables.values() if rows and rows[0][0] == "Pool")
    assert [row[0] for row in rows] == [pool.name for pool in answer.pools] == ["large", "small"]
    for row, pool in zip(rows, answer.pools, strict=True):
        told = dict(zip(heads, row, strict=True))
        assert float(told["Load"]) == pytest.approx(pool.rho, abs=5e-4)
        assert float(told["Margin"]) == pytest.approx(pool.margin, abs=5e-4)
        assert told["Replicas"] == str(pool.replicas)
        assert told["Order"] == pool.order


def test_every_stage_has_its_rate_and_its_latency_with_an_interval(
    research: tuple[Scenario, Answer, Body],
) -> None:
    _, answer, page = research
    assert answer.latency is not None
    _, job, *asked = next(rows for rows in page.tables.values() if rows and rows[0][2:3] == ["Visits/s"])
    assert (job[0], float(job[2])) == ("research", pytest.approx(answer.workflows[0].jobs_per_s, rel=1e-3))
    assert [f"research.{row[0].strip()}" for row in asked] == list(answer.network.stages)
    model = answer.network.model()
    np.testing.assert_allclose([float(row[2]) for row in asked], model.visits, rtol=1e-3)
    np.testing.assert_allclose([float(row[3].replace(",", "")) for row in asked], model.prefill, atol=0.5)
    _, *told = page.tables["At a stage, from arrival at a replica"]
    assert {(row[0], row[1]) for row in told} == {
        *((stage, metric) for stage in answer.network.stages for metric in ("TTFT", "E2E")),
        ("research.answer", "Wait at the join"),
    }
    for stage, metric, mean, *_ in told:
        key = {"TTFT": "ttft_s", "E2E": "e2e_s", "Wait at the join": "join_wait_s"}[metric]
        known = answer.latency.stages[stage][key]["mean"]
        value, low, high = re.fullmatch(r"([\d.,]+) \(([\d.,]+) to ([\d.,?]+)\)", mean).groups()  # type: ignore[union-attr]
        assert float(value) == pytest.approx(known.value, rel=0.01, abs=6e-4)
        assert float(low) == pytest.approx(known.low, rel=0.01, abs=6e-4)
        assert high == "?" if known.high is None else float(high) == pytest.approx(known.high, rel=0.01, abs=6e-4)


def test_latency_is_refused_with_its_reason_where_there_is_no_steady_state(
    crossed: tuple[Scenario, Answer, Body],
) -> None:
    _, answer, page = crossed
    assert answer.latency is None
    assert page.words[page.words.index("No latency") + 1].startswith("There is no steady state")
    assert any("0.6209" in word for word in page.words)
    assert "At a stage, from arrival at a replica" not in page.tables


def test_the_priority_order_that_fails_is_named_with_its_limit(
    crossed: tuple[Scenario, Answer, Body],
) -> None:
    _, answer, page = crossed
    virtual = answer.certificate.virtual_station
    assert virtual is not None
    place = page.words.index("This order")
    assert page.words[place + 1] == f"{virtual.max_load:,.4g} x"
    assert "search.reply" in page.words[place + 2]
    assert any("Write `order: fcfs` at the pools" in word for word in page.words)
    assert {text for _, text in answer.cycles_in_words()} <= set(page.words)
    assert "complaint.look_into" in page.words[place + 2]


def test_every_drawing_has_words_for_those_who_cannot_see_it_and_its_numbers_as_a_table(
    research: tuple[Scenario, Answer, Body],
) -> None:
    _, answer, page = research
    graph, floods, *queues = dict.fromkeys(page.drawings)  # some once more, narrow
    assert "load 0.60" in graph
    assert "large - small" in graph
    assert answer.stability is not None
    assert all(flood.stage in floods for flood in answer.stability.floods)
    assert [f"pool {pool} " in text for pool, text in zip(answer.network.pools, queues, strict=True)] == [True, True]
    routes = next(rows for rows in page.tables.values() if rows and rows[0][-1] == "What follows")
    follows = {row[0]: row[-1] for row in routes[1:]}
    assert follows["research.plan"] == "all of research.web, research.papers, research.notes"
    assert follows["research.web"] == "research.answer"
    assert follows["research.answer"] == "end"


def test_columns_of_words_are_flush_left_and_those_of_numbers_are_not(
    research: tuple[Scenario, Answer, Body],
) -> None:
    table = _pools_table(research[1])
    words = [name for name, of_words in zip(table.columns, table.of_words, strict=True) if of_words]
    assert words == ["Pool", "Order", "Router", "Policy", "Held by"]


def test_a_narrow_terminal_shows_the_router_of_a_pool_with_replicas(
    research: tuple[Scenario, Answer, Body], capsys, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    scenario, answer, _ = research
    said = in_words(capsys, monkeypatch, 80)(answer.page(scenario))
    heads, *rows = said[said.index("Pool  ") :].splitlines()[:3]
    assert {"Load", "Margin", "Replicas", "Router", "Held"} <= set(heads.split())
    assert ["jsq" in row.split() for row in rows] == [pool.replicas > 1 for pool in answer.pools]


def test_hypotheses_that_fail_come_first(apart: tuple[Scenario, Answer, Body]) -> None:
    _, answer, page = apart
    states = [
        word
        for word in page.words[page.words.index("Hypotheses of the theorems that say stable") :]
        if word in ("fails", "held", "on trust")
    ]
    assert states.count("fails") == sum(not h.held for h in answer.certificate.hypotheses) > 0
    assert "fails" not in states[states.count("fails") :]
    assert len(states) == len(answer.certificate.hypotheses)


def test_branches_that_may_end_are_told_with_their_probabilities() -> None:
    network = read_scenario(EXAMPLES / "self_reflection.yaml").network
    figure = graph_figure(network)
    (table,) = figure.tables
    follows = {row[0]: row[-1] for row in table.rows}
    assert follows == {"essay.write": "essay.evaluate", "essay.evaluate": "essay.write 0.35, end 0.65"}


def test_recorded_jobs_are_reported_without_a_test(tmp_path: Path) -> None:
    arrivals = ps.Workload.from_arrays([0.0, 1.0, 2.0], [100, 200, 300], [10, 20, 30])
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
    network = ps.Network.single(arrivals, server)
    answer = ps.check(network)
    page = Body(render(answer.page(Scenario("recorded", network, None, None, tmp_path))))
    assert answer.stability is None
    assert "not tested" in page.words
    assert "Floods" not in page.words
    assert len(page.drawings) == 2


def test_a_file_that_cannot_be_written_is_one_line(crossed: tuple[Scenario, Answer, Body], tmp_path: Path) -> None:
    scenario, answer, _ = crossed
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.InputError, match="cannot write"):
        write(tmp_path / "file" / "page.html", answer.page(scenario))


NETWORKS = ("research_fork_join", "rybko_stolyar", "self_reflection", "disaggregated")

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
def any_network(request: pytest.FixtureRequest) -> tuple[Scenario, Answer]:
    name = request.param
    scenario = build(LONG, Path()) if name == "long names" else read_scenario(EXAMPLES / f"{name}.yaml")
    return scenario, ps.check(scenario.network, jobs=600, resolution=0.1)


def in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> Callable[[pages.Page], str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")

    def said(page: pages.Page) -> str:
        print_page(page, depth="all")
        return capsys.readouterr().out

    return said


def shown(seconds: float | None) -> str:
    """Three digits, as everywhere on the terminal."""
    if seconds is None:
        return "-"
    decimals = 0 if seconds >= 100 else 1 if seconds >= 10 else 2 if seconds >= 1 else 3
    return f"{seconds:,.{decimals}f}"


@pytest.mark.parametrize("width", [80, 120])
def test_words_fit_the_terminal_and_lose_no_name(any_network, width: int, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario, found = any_network
    said = in_words(capsys, monkeypatch, width)(found.page(scenario))
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    together = re.sub(r"\s", "", said)
    for name in (*found.network.pools, *(stage for w in found.network.workflows for stage in w.stages)):
        if len(name) < 15:
            assert name in together
    assert "--" not in said.splitlines()[-1]  # all is there


def test_every_number_printed_of_pools_stages_and_workflows_is_that_of_the_answer(
    any_network, capsys, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    scenario, found = any_network
    said = in_words(capsys, monkeypatch, 200)(found.page(scenario))
    rows = [line.split() for line in said.splitlines()]

    def row(name: str, numbers: list[str]) -> None:
        assert any(each[:1] == [name] and each[1 : 1 + len(numbers)] == numbers for each in rows), (name, numbers)

    for pool in found.pools:
        numbers = [f"{pool.rho:.3f}", f"{pool.margin:.3f}", f"{pool.tokens_per_batch:,.0f}"]
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
    assert ("Write `order: fcfs` at the pools" in " ".join(said.split())) == (found.certificate.verdict == "unstable")
    assert all(join.bound in " ".join(said.split()) for join in found.certificate.joins)
    assert all(text in " ".join(said.split()) for _, text in found.cycles_in_words())
    assert _POOLS in " ".join(said.split())
    assert ("No latency" in said) == (found.latency_refused is not None)


def test_what_makes_priorities_fail_is_said_with_its_numbers(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    scenario = read_scenario(EXAMPLES / "rybko_stolyar.yaml")
    found = ps.check(scenario.network, jobs=200)
    virtual = found.certificate.virtual_station
    assert virtual is not None
    said = " ".join(in_words(capsys, monkeypatch, 80)(found.page(scenario)).split())
    for stages, load, pool in zip(virtual.classes, virtual.loads, virtual.pools, strict=True):
        assert f"{', '.join(stages)} ({load:.3f} of {pool})" in said
    first, second = virtual.amplification()
    assert f"multiplies a backlog by {first * second:,.3g}" in said
    assert f"This order {virtual.max_load:,.4g} x" in said
    assert "Write `order: fcfs` at the pools, or turn this order around" in said
    assert "Margin 0.100" not in said  # beside UNSTABLE it is no margin of this order
    assert "Best policy 0.100 is left to it, not to this one" in said


@own_policy(work_conserving=True)
def lazy(queue, limits, params):  # type: ignore[no-untyped-def]
    return min(queue.prompt_tokens, 64), min(queue.decoding, limits.token_budget // 8), ps.PREFILL_FIRST


def test_a_contradiction_is_shouted(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 1024, policy=lazy)
    network = ps.Network.single(ps.Workload.poisson(12.0, 129, 112), server)
    scenario = Scenario("lazy", network, 300, None, Path())
    said = in_words(capsys, monkeypatch, 80)(ps.check(network, jobs=300).page(scenario))
    assert "CONTRADICTION: Theorem 1(b) says stable, but the test says unstable" in " ".join(said.split("\n"))


def test_what_is_not_tested_is_said(capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    recorded = ps.Workload.from_arrays(list(range(300)), [100] * 300, [20] * 300)
    network = ps.Network.single(recorded, ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512))
    scenario = Scenario("recorded", network, None, None, Path())
    said = in_words(capsys, monkeypatch, 80)(ps.check(network).page(scenario))
    assert "NOT TESTED: all jobs are recorded" in said
