"""The report on a network says its verdict first, and every pool, stage and number of the answer."""

import html.parser
import re
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.checking import report_network
from penstock.checking.answer import check
from penstock.checking.network_answer import NetworkAnswer
from penstock.scenario.network import NetworkScenario, read_network

EXAMPLES = Path(__file__).parents[2] / "examples"


class Page(html.parser.HTMLParser):
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


def answered(name: str, folder: Path, jobs: int) -> tuple[NetworkScenario, NetworkAnswer, Page]:
    scenario = read_network(EXAMPLES / f"{name}.yaml")
    answer = check(scenario.network, jobs=jobs, seed=0)
    path = folder / "new" / f"{name}.html"
    report_network.report_network(path, scenario, answer)
    return scenario, answer, Page(path.read_text())


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> tuple[NetworkScenario, NetworkAnswer, Page]:
    return answered("research_fork_join", tmp_path_factory.mktemp("report"), 2000)


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> tuple[NetworkScenario, NetworkAnswer, Page]:
    return answered("rybko_stolyar", tmp_path_factory.mktemp("report"), 1000)


def test_the_verdict_that_knows_comes_first_and_both_are_there(
    research: tuple[NetworkScenario, NetworkAnswer, Page], crossed: tuple[NetworkScenario, NetworkAnswer, Page]
) -> None:
    _, answer, page = research
    assert (answer.certificate.verdict, page.words[0]) == ("unknown", "stable")
    assert answer.stability is not None
    assert page.words[1] == f"{answer.stability.reason}."
    assert "unknown" in page.words
    assert f"{answer.certificate.reason}." in page.words
    _, answer, page = crossed
    assert page.words[0] == "unstable"
    assert page.words[1] == f"{answer.certificate.reason}."


def test_every_pool_is_told_with_its_load_and_what_it_did(
    research: tuple[NetworkScenario, NetworkAnswer, Page],
) -> None:
    _, answer, page = research
    (heads, *rows) = next(rows for rows in page.tables.values() if rows and rows[0][0] == "Pool")
    assert [row[0] for row in rows] == [pool.name for pool in answer.pools] == ["large", "small"]
    for row, pool in zip(rows, answer.pools, strict=True):
        told = dict(zip(heads, row, strict=True))
        assert float(told["Load"]) == pytest.approx(pool.rho, abs=5e-4)
        assert float(told["Margin"]) == pytest.approx(pool.margin, abs=5e-4)
        assert told["Busy"] == f"{pool.busy:.0%}"
        assert told["Replicas"] == str(pool.replicas)
        assert told["Order"] == pool.order


def test_every_stage_has_its_rate_and_its_latency_with_an_interval(
    research: tuple[NetworkScenario, NetworkAnswer, Page],
) -> None:
    _, answer, page = research
    assert answer.latency is not None
    _, *asked = page.tables["What each stage asks for, tokens of a request on average"]
    assert [row[0] for row in asked] == list(answer.network.stages)
    model = answer.network.model()
    np.testing.assert_allclose([float(row[2]) for row in asked], model.visits, rtol=1e-3)
    np.testing.assert_allclose([float(row[3].replace(",", "")) for row in asked], model.prefill, atol=0.5)
    _, *told = page.tables["At a stage, from arrival at a replica, seconds"]
    assert {(row[0], row[1]) for row in told} == {
        *((stage, metric) for stage in answer.network.stages for metric in ("TTFT", "E2E")),
        ("research.answer", "Wait at the join"),
    }
    for stage, metric, mean, *_ in told:
        key = {"TTFT": "ttft_s", "E2E": "e2e_s", "Wait at the join": "join_wait_s"}[metric]
        known = answer.latency.stages[stage][key]["mean"]
        value, low, high = re.fullmatch(r"([\d.,]+)\(([\d.,]+) to ([\d.,?]+)\)", mean.replace("\n", "")).groups()  # type: ignore[union-attr]
        assert float(value) == pytest.approx(known.value, rel=0.01, abs=6e-4)
        assert float(low) == pytest.approx(known.low, rel=0.01, abs=6e-4)
        assert high == "?" if known.high is None else float(high) == pytest.approx(known.high, rel=0.01, abs=6e-4)


def test_latency_is_refused_with_its_reason_where_there_is_no_steady_state(
    crossed: tuple[NetworkScenario, NetworkAnswer, Page],
) -> None:
    _, answer, page = crossed
    assert answer.latency is None
    assert any(word.startswith("No latency.") and "0.6209" in word for word in page.words)
    assert "At a stage, from arrival at a replica, seconds" not in page.tables


def test_the_priority_order_that_fails_is_named_with_its_limit(
    crossed: tuple[NetworkScenario, NetworkAnswer, Page],
) -> None:
    _, answer, page = crossed
    virtual = answer.certificate.virtual_station
    assert virtual is not None
    place = page.words.index("This order")
    assert page.words[place + 1] == f"{virtual.max_load:,.4g} x"
    assert "search.reply" in page.words[place + 2]
    assert any("try fcfs" in word for word in page.words)
    assert {text for _, text in answer.cycles_in_words()} <= set(page.words)
    assert "complaint.look_into" in page.words[place + 2]


def test_every_drawing_has_words_for_those_who_cannot_see_it_and_its_numbers_as_a_table(
    research: tuple[NetworkScenario, NetworkAnswer, Page],
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
    research: tuple[NetworkScenario, NetworkAnswer, Page],
) -> None:
    table = report_network._pools_table(research[1])
    words = [name for name, of_words in zip(table.columns, table.of_words, strict=True) if of_words]
    assert words == ["Pool", "Router", "Order", "Policy", "Held by"]


def test_hypotheses_that_fail_come_first(research: tuple[NetworkScenario, NetworkAnswer, Page]) -> None:
    _, answer, page = research
    states = [word for word in page.words[page.words.index("Hypotheses") :] if word in ("fails", "held", "on trust")]
    assert states.count("fails") == sum(not h.held for h in answer.certificate.hypotheses) > 0
    assert "fails" not in states[states.count("fails") :]
    assert len(states) == len(answer.certificate.hypotheses)


def test_branches_that_may_end_are_told_with_their_probabilities() -> None:
    network = read_network(EXAMPLES / "self_reflection.yaml").network
    figure = report_network.graph_figure(network)
    (table,) = figure.tables
    follows = {row[0]: row[-1] for row in table.rows}
    assert follows == {"essay.write": "essay.evaluate", "essay.evaluate": "essay.write 0.35, end 0.65"}


def test_recorded_jobs_are_reported_without_a_test(tmp_path: Path) -> None:
    arrivals = ps.Workload.from_arrays([0.0, 1.0, 2.0], [100, 200, 300], [10, 20, 30])
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
    network = ps.Network.single(arrivals, server)
    answer = check(network)
    path = tmp_path / "page.html"
    report_network.report_network(path, NetworkScenario("recorded", network, None, None, tmp_path), answer)
    page = Page(path.read_text())
    assert answer.stability is None
    assert "not tested" in page.words
    assert "Floods" not in page.words
    assert len(page.drawings) == 2


def test_a_file_that_cannot_be_written_is_one_line(
    crossed: tuple[NetworkScenario, NetworkAnswer, Page], tmp_path: Path
) -> None:
    scenario, answer, _ = crossed
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.InputError, match="cannot write"):
        report_network.report_network(tmp_path / "file" / "page.html", scenario, answer)
