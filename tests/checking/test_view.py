"""A page says the verdict first; written as a file it needs nothing but itself."""

import dataclasses
import html
import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import penstock as ps
from penstock.capacity.region import load_in_region
from penstock.checking import answer, check, figures
from penstock.checking.comparison import ServerComparison
from penstock.checking.one_run import OneRun
from penstock.checking.targets import Target
from penstock.scenario.scenario import Scenario
from penstock.show import page as pages
from penstock.show.html import render, write
from penstock.show.page import Fact, Hypothesis, Section, Table, Verdict
from penstock.show.terminal import print_page
from penstock.theory.region import sarathi_region

HOSTILE = '<script>alert("x")</script>&\'_a_policy_with_a_name_that_no_line_of_a_phone_can_hold'
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 1024, 128)
WORKLOAD = ps.Workload.poisson(12.0, prompt=129, output=112)
REGION = ps.region(SERVER, prompt=129, output=112)
POINT = (12.0 * 129, 12.0 * 111)
VOID = {"meta", "br", "img", "link", "input", "hr", "path", "circle", "line", "rect"}


class Page(html.parser.HTMLParser):
    """What is on a page: tags with attributes, the text of the body, and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.body: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "body" in self.open and data.strip():
            self.body.append(data.strip())
            if self.open[-1] in ("td", "span") and "tbody" in self.open:
                self.cells.append(data.strip())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def runs() -> dict[str, ps.Run]:
    servers = {name: SERVER.with_policy(name) for name in ("fastertransformer", "vllm-vanilla", "sarathi")}
    found = {name: ps.simulate(WORKLOAD, server, requests=300) for name, server in servers.items()}
    return found | {HOSTILE: ps.simulate(WORKLOAD, SERVER.with_policy("orca"), requests=300)}


@pytest.fixture(scope="module")
def first_batches() -> ps.Run:
    return ps.simulate(WORKLOAD, SERVER, requests=100, record="allocations")


@pytest.fixture(scope="module")
def page(runs: dict[str, ps.Run], first_batches: ps.Run) -> str:
    hypotheses = [
        Hypothesis("i.i.d. arrivals", "held", "Poisson"),
        Hypothesis("max batch size never binds", "fails", HOSTILE),
        Hypothesis("work-conserving policy", "on trust", "its author claims it"),
    ]
    table = Table(("Policy", HOSTILE), [(name, "1.5") for name in runs], HOSTILE, HOSTILE, strong=[0])
    shown = pages.Page(
        title=HOSTILE,
        heading=HOSTILE,
        verdicts=[
            Verdict("unstable", "the backlog grows", "by simulation", "fastertransformer"),
            Verdict("unknown", HOSTILE, HOSTILE, HOSTILE),
            Verdict("met", "0.2 s, asked: 0.3 s"),
        ],
        sections=[
            Section("Load", [HOSTILE], [Fact("Load rho", "0.830", HOSTILE)], hypotheses),
            Section("Tokens in the system", figures=lambda: [figures.token_figure(runs)]),
            Section(
                "Latency",
                tables=[table],
                figures=lambda: [figures.latency_figure(runs, refused=["fastertransformer"])],
                notes=[HOSTILE],
            ),
            Section(
                "Region",
                figures=lambda: [
                    figures.region_figure(REGION, runs, point=POINT, own={"sarathi": sarathi_region(SERVER)}),
                    figures.region_figure(REGION, point=POINT),
                ],
            ),
            Section(HOSTILE, figures=lambda: [figures.gantt_figure(first_batches, HOSTILE)]),
        ],
    )
    return render(shown)


def test_the_page_is_well_formed_and_the_verdict_is_the_first_word_of_its_body(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert parsed.body[0] == "unstable"
    assert page.startswith("<!DOCTYPE html>")
    assert re.search(r"<title>.*</title>", page)


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    parsed = Page(page)
    assert not parsed.of("script")
    assert not parsed.of("link")
    assert not parsed.of("iframe")
    references = [v for _, a in parsed.tags for k, v in a.items() if k in ("src", "href", "xlink:href", "data")]
    assert references == []
    assert all(not key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", page)


def test_names_that_hold_html_are_shown_and_not_obeyed(page: str) -> None:
    assert "<script>" not in page
    assert page.count(html.escape("<script>alert(")) > 10


def test_every_chart_has_a_text_alternative_and_a_table_of_its_figures(page: str, runs: dict[str, ps.Run]) -> None:
    parsed = Page(page)
    charts = [svg for svg in parsed.of("svg") if "aria-hidden" not in svg]
    assert len(charts) == 2 + 3 + (4 + 1) + 1
    assert all(svg["role"] == "img" and len(svg["aria-label"] or "") > 40 for svg in charts)
    assert len({svg["aria-label"] for svg in charts}) == len(charts)
    assert all("width" not in svg and "height" not in svg and svg["viewbox"] for svg in charts)
    assert page.count("<details>") == page.count("<figure>") == 5
    assert f"{runs['sarathi'].ttft.quantile(0.5) * 1e-9:.3f}" in parsed.cells


def test_identifiers_of_charts_do_not_collide_and_every_reference_has_its_target(page: str) -> None:
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(identifiers)


def test_good_bad_and_open_verdicts_differ_in_shape_and_not_in_colour_alone(page: str) -> None:
    shapes = dict(re.findall(r'<span class="badge (\w+)"><svg class="icon"[^>]*>(.*?)</svg>', page))
    assert set(shapes) == {"bad", "open", "good"}
    assert len(set(shapes.values())) == 3


def test_every_hypothesis_is_told_in_words(page: str) -> None:
    text = Page(page).body
    assert all(word in text for word in ("held", "fails", "on trust"))


def test_a_policy_keeps_its_colour_where_another_has_no_latency(runs: dict[str, ps.Run]) -> None:
    figure = figures.latency_figure(runs, refused=["fastertransformer"])
    for chart in figure.charts.values():
        scale = chart["layer"][0]["encoding"]["color"]["scale"]
        assert scale["domain"] == list(runs)
    assert "fastertransformer" in figure.caption
    assert all("fastertransformer" not in table.columns for table in figure.tables)


def test_the_table_of_tokens_has_the_values_of_the_series(runs: dict[str, ps.Run]) -> None:
    (table,) = figures.token_figure({"sarathi": runs["sarathi"]}).tables
    series = runs["sarathi"].series
    for time, tokens in table.rows[1:-1]:
        before = series.filter(series["time_s"] <= float(time.replace(",", "")) * (1 + 5e-4))["uncompleted_tokens"]
        assert tokens in [f"{value:,}" for value in before[-3:]]


def test_the_compositions_of_the_table_add_up_to_the_busy_time(runs: dict[str, ps.Run]) -> None:
    tables = figures.region_figure(REGION, runs, point=POINT).tables
    assert [table.caption for table in tables] == list(runs)
    for table in tables:
        assert sum(float(row[-1].rstrip("%")) for row in table.rows) == pytest.approx(100, abs=0.05 * len(table.rows))


def test_a_run_without_gaps_has_a_report() -> None:
    run = ps.simulate(ps.Workload.poisson(1.0, 10, 1), SERVER, requests=50)
    drawn = lambda: [figures.latency_figure({"sarathi": run})]  # noqa: E731
    page = render(pages.Page("t", "h", [Verdict("stable", "yes")], [Section("Latency", figures=drawn)]))
    assert "no samples" in page


def scenario(limit: int | None, rate: float = 12.0) -> Scenario:
    workload = ps.Workload.poisson(rate, prompt=129, output=112)
    return Scenario("cluster.yaml", (workload, dataclasses.replace(SERVER, max_batch_size=limit)), 500, None, Path())


def asked(given: Scenario, policies: list[str], *targets: str) -> dict[str, answer.Answer]:
    return {
        name: check.check(
            given.workload,
            given.server.with_policy(name),
            requests=given.arrivals,
            targets=[Target.parse(target) for target in targets],
            resolution=0.05,
        )
        for name in policies
    }


def text_of(page: pages.Page) -> str:
    return " ".join(" ".join(Page(render(page)).body).split())


def printed(
    page: pages.Page,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    depth: pages.Depth = "head",
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    print_page(page, depth=depth)
    return capsys.readouterr().out


def in_order(words: list[str], text: str) -> bool:
    starts = [text.index(word) for word in words]
    return starts == sorted(starts)


def test_the_page_of_one_policy_says_what_theorem_and_test_say_and_judges_the_targets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = scenario(None, rate=10.0)
    found = asked(given, ["sarathi"], "ttft_p90<100s", "e2e_p50<1ms")["sarathi"]
    text = text_of(found.page(given))
    assert text.startswith("cluster.yaml 10 requests/s; sarathi, token budget 1,024 stable 69% of the most")
    verdicts = ["(by Theorem 1(b))", "(by simulation)", "met ttft_p90<100s", "missed e2e_p50<0.001s"]
    sections = ["Next", "Load rho", "Hypotheses", "Simulated", "Latency in the steady state"]
    drawn = ["Tokens in the system", "Distribution of latency", "Batches in the region", "The first batches"]
    assert in_order([*verdicts, *sections], text[text.index("Why: ") :])
    assert all(title in text for title in drawn)
    estimate = found.targets[0].estimate
    assert estimate is not None
    assert f"{estimate.value:.3f}" in text
    on_terminal = printed(found.page(given), capsys, monkeypatch, 80, "all")
    words = ["STABLE by Theorem 1(b)", "STABLE by simulation", "MET ttft_p90<100s", "MISSED e2e_p50<0.001s"]
    assert in_order(["cluster.yaml", *words, *sections[1:]], on_terminal)
    assert not any(title in on_terminal for title in drawn)


def test_the_limits_of_a_network_of_one_are_those_of_its_server_with_the_rate_that_each_carries() -> None:
    given = scenario(128)
    alone = asked(given, ["sarathi"])["sarathi"]
    network = check.check(ps.Network.single(*given.system), jobs=300, resolution=0.1)
    of_server, of_network = (
        next(table for section in page.sections for table in section.tables if table.title == "Load by limit")
        for page in (alone.page(given), network.page())
    )
    assert of_server.columns == of_network.columns == ["Limit", "Load", "Requests/s", "From", "By"]
    assert [float(row[1]) * float(row[2]) for row in of_server.rows] == pytest.approx([12.0] * 2, rel=1e-2)
    assert of_network.rows == of_server.rows


def test_a_notebook_shows_the_page() -> None:
    found = asked(scenario(None, rate=10.0), ["sarathi"])["sarathi"]
    assert Page(found._repr_html_()).body[2] == found.verdict == "stable"
    assert found.reason == found.certificate.reason


def test_the_page_of_several_policies_has_verdicts_for_each_and_no_latency_where_it_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = scenario(128)
    found = asked(given, ["fastertransformer", "sarathi"])
    assert found["fastertransformer"].latency_refused
    page = ServerComparison(found, {}).page(given)
    policies, latency = page.sections[0].tables[0], page.sections[1].tables[0]
    assert [row[:3] for row in policies.rows] == [
        [name, answer.certificate.verdict, answer.stability.verdict] for name, answer in found.items()
    ]
    assert latency.rows[0][:2] == ("fastertransformer", "refused")
    assert all(latency.rows[1][1:])
    text = text_of(page)
    certificates = [answer.certificate for answer in found.values()]
    for certificate in certificates:
        failing = [hypothesis.why for hypothesis in certificate.hypotheses if not hypothesis.held]
        reasons = failing if certificate.verdict == "unknown" else [certificate.reason]
        assert all(reason in text for reason in reasons)
    assert "fastertransformer" in printed(page, capsys, monkeypatch, 80, "all")


@pytest.mark.parametrize(("rate", "shown"), [(10.0, False), (20.0, True)])
def test_unfinished_requests_have_a_column_where_there_are_some(rate: float, shown: bool) -> None:
    given = scenario(None, rate)
    (table,) = ServerComparison(asked(given, ["sarathi", "orca"]), {}).page(given).sections[0].tables
    assert ("Unfinished" in table.columns) == shown


@pytest.mark.parametrize("width", [20, 80, 120])
def test_a_table_that_is_too_wide_loses_its_spare_columns_and_then_stands_row_by_row(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ["Policy", *(f"column {letter}" for letter in "abcdefgh")]
    table = Table(columns, [["sarathi", *"12345678"]], spare=["column h", "column g"], detail=False)
    page = pages.Page("t", "h", sections=[Section("s", tables=[table, Table(["hidden"], [["cell"]], detail=True)])])
    text = printed(page, capsys, monkeypatch, width)
    assert max(map(len, text.splitlines())) <= width
    assert ("column g" in text, "column h" in text) == (width > 20, width == 120)
    assert "column f" in text
    assert "hidden" not in text
    assert ("Policy: sarathi" in text) == (width == 20)
    assert "hidden" in text_of(page)


def test_the_page_of_a_run_says_that_it_is_one(runs: dict[str, ps.Run]) -> None:
    given = scenario(128)
    certificate = ps.certify(given.workload, given.server)
    text = text_of(OneRun(given.workload, certificate, runs["sarathi"], (), (HOSTILE,)).page(given))
    assert "One run It began empty" in text
    assert "Latency in this run" in text
    assert HOSTILE in text


def test_no_margin_stands_beside_an_unstable_verdict_of_a_policy_that_others_outdo() -> None:
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    workload = ps.Workload.poisson(12.5, 129, 112)
    for policy, name in (("vllm-vanilla", "Best policy"), ("sarathi", "Margin")):
        found = ps.check(workload, ps.Server(batch_time, 1024, policy=policy), requests=300)
        facts = {fact.name: fact for section in found.page().sections for fact in section.facts}
        assert {"Margin", "Best policy"} & set(facts) == {name}
        assert float(facts[name].figure) == pytest.approx(found.certificate.margin, abs=5e-4)
        assert (found.verdict == "unstable") == (name == "Best policy")


@pytest.mark.parametrize(("rate", "side"), [(12.0, "inside"), (20.0, "outside")])
def test_the_page_of_a_region_says_on_which_side_the_load_lies_and_what_binds(rate: float, side: str) -> None:
    given = scenario(128, rate)
    answer = load_in_region(given.workload, given.server)
    point, text = answer.point, text_of(answer.page(given))
    assert side in text
    assert f"{point.max_rate:.4g} requests/s, above which no scheduler is stable" in text
    assert "the max batch size" in text
    assert all(f"{x:,.1f} {y:,.1f}" in text for x, y in point.region.vertices)


def write_short(path: Path) -> None:
    write(path, pages.Page("t", "h", [Verdict("stable", "yes")]))


def test_a_report_is_written_into_a_new_folder_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_short(path)
    path.write_text("old")
    write_short(path)
    assert Page(path.read_text()).body[0] == "stable"
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", [".", "file/report.html"])
def test_a_path_that_cannot_be_written_is_said_in_one_line_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.InputError) as error:
        write_short(tmp_path / name)
    assert "\n" not in str(error.value)
    assert "--report" in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_overflows_sideways_in_a_browser(width: int, page: str, tmp_path: Path) -> None:
    opened = page.replace("<details>", "<details open>")
    frame = f'<iframe width="{width}" height="800" srcdoc="{html.escape(opened)}"></iframe>'
    measure = (
        "document.querySelector('iframe').onload = event => { const page = event.target.contentDocument;"
        "document.title = page.scrollingElement.scrollWidth + ' of ' + page.documentElement.clientWidth; }"
    )
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><body>{frame}<script>{measure}</script>")
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dumped = subprocess.run(
        [*command, "--virtual-time-budget=10000", "--dump-dom", (tmp_path / "frame.html").as_uri()],  # type: ignore[list-item]
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    measured = re.search(r"<title>(\d+) of (\d+)</title>", dumped)
    assert measured is not None, dumped[:300]
    assert int(measured[1]) <= int(measured[2])
