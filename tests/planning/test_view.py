"""The page of a plan gives the answer first, every chart with its table, and why others were left out."""

import dataclasses
import re
from pathlib import Path

import pytest

import penstock as ps
from penstock.checking.targets import Estimate, Target
from penstock.planning.answers import Answers
from penstock.planning.day import plan_day
from penstock.planning.job import plan_job
from penstock.planning.launch import launch
from penstock.planning.plan import plan
from penstock.planning.rates import RateProfile
from penstock.planning.space import search_space
from penstock.planning.why import in_words
from penstock.show import html
from penstock.show.page import Page, Section, Table, Verdict
from penstock.show.terminal import print_page

WORKLOAD = ps.Workload.poisson(rate=20.0, prompt=400, output=60)
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512, 32)
SPACE = search_space(
    SERVER,
    hardware=["codellama-34b-a100-tp1"],
    token_budget=[128, 512],
    router=["random"],
    replicas=16,
    price={"a100": 2.0},
)


def text_of(path: Path) -> str:
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", path.read_text(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = plan(WORKLOAD, SPACE, ["ttft_p99<2s"], requests=1_000)
    assert found.best is not None
    best = found.best.deployment
    day = plan_day(RateProfile([5.0, 20.0]), WORKLOAD, best, ["ttft_p99<2s"], most_replicas=16, requests=1_000)
    job = plan_job(WORKLOAD, [family.smallest for family in SPACE.families], requests=2_000, deadline_s=600)
    path = tmp_path_factory.mktemp("plan") / "page.html"
    html.write(path, Answers("cluster", found, day=day, job=job, launches=[launch(best)]).page())
    return path


def test_the_answer_comes_first_then_the_targets(page: Path) -> None:
    text = text_of(page)
    body = text[text.index("Cheapest ") :]
    order = ["codellama-34b-a100-tp1", "per hour", "ttft_p99&lt;2s:", "margin", "Offline work takes"]
    places = [body.index(words) for words in order]
    assert places == sorted(places)


def test_every_part_has_its_section(page: Path) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert headings == [
        "Next best",  # for which the head has no room
        "To start",
        "The answer",
        "What more buys",
        "Over the day",
        "Offline work",
        "Why not the others",
        *("What more buys", "Over the day"),  # the figures, which do not fold
    ]


def test_every_chart_has_a_text_alternative_and_every_figure_its_table(page: Path) -> None:
    text = page.read_text()
    drawings = text.split('<div class="charts phone">')  # the same once more, narrow
    labels = [re.findall(r'<svg role="img" aria-label="([^"]+)"', part) for part in drawings]
    assert len({*labels[0], *(label for part in labels[1:] for label in part[1:])}) == 1 + 3
    assert text.count("<figure>") == 2
    for figure in re.findall(r"<figure>(.*?)</figure>", text, flags=re.DOTALL)[:1]:
        assert figure.count("<tr>") > 2
    day = text[text.index("<h2>Over the day</h2>") :]
    assert '<th scope="row"><span>01:00</span>' in day[: day.index("<figure>")]  # the day's table is there anyway


def test_a_long_day_is_thinned_out_and_the_page_has_every_interval(capsys: pytest.CaptureFixture[str]) -> None:
    replica = SPACE.families[0].smallest
    profile = RateProfile([1.0] * 40, interval_s=900.0)
    day = plan_day(profile, WORKLOAD, replica, ["ttft_p99<2s"], requests=1_000, check=False)
    page = html.render(day.page())
    print_page(day.page(), depth="all")
    printed = capsys.readouterr().out
    assert "One interval of 2." in printed
    assert "00:30" in printed
    assert "00:15" not in printed
    assert "<span>00:15</span>" in re.findall(r"<details>(.*?)</details>", page, flags=re.DOTALL)[0]


def test_the_command_to_start_a_replica_is_on_the_page_as_it_is_typed(page: Path) -> None:
    assert re.search(r"<pre tabindex=\"0\"><code>vllm serve CodeLlama-34B \\\n  --", page.read_text())


def test_a_target_that_no_deployment_reaches_is_missed_and_says_why_and_the_nearest(tmp_path: Path) -> None:
    found = plan(WORKLOAD, SPACE, ["ttft_p99<1ms"], requests=1_000)
    assert found.unreachable is not None
    html.write(tmp_path / "page.html", Answers("cluster", found).page())
    text = text_of(tmp_path / "page.html")
    assert "<title>unreachable: cluster</title>" in (tmp_path / "page.html").read_text()
    assert found.unreachable.why.split(";")[0] in text
    if found.unreachable.nearest is not None:
        assert "The nearest that is reached" in text


def test_the_answer_says_the_router_where_there_are_several_replicas_and_only_there() -> None:
    for rate, router, said in ((20.0, "round-robin", "behind round-robin: "), (0.5, "random", None)):
        space = search_space(SERVER, token_budget=[512], replicas=16, router=[router])
        found = plan(WORKLOAD.with_rate(rate), space, ["ttft_p99<2s"], requests=1_000)
        answer = Answers("cluster", found).page().head[1].text
        assert found.best is not None
        assert (found.best.deployment.replicas > 1) == (said is not None)
        assert said in answer if said else "behind" not in answer and "1 replica of" in answer


def test_a_cheaper_fleet_that_is_undecided_is_said_with_what_decides_it() -> None:
    found = plan(WORKLOAD, SPACE, ["ttft_p99<2s"], requests=1_000)
    assert found.best is not None
    fewer = dataclasses.replace(found.best, deployment=found.best.deployment.with_replicas(1), answer="undecided")
    page = Answers("cluster", dataclasses.replace(found, evaluated=(fewer, found.best))).page()
    (said,) = (line.text for line in page.head if line.label == "Fewer")
    assert said.endswith(f"{fewer.deployment.name} is cheaper, but undecided; --requests 20000 tells more.")
    told = in_words(Target.parse("ttft_p99<2s"), Estimate(1.0, 0.5, 2.0))
    assert told == "1 s (0.5 to the limit)"  # which alone is known of the upper end


def test_for_goodput_the_values_of_single_targets_are_facts_that_nothing_judges(tmp_path: Path) -> None:
    space = search_space(SERVER, token_budget=[512], replicas=16)
    found = plan(WORKLOAD, space, ["ttft_p99<2s", "tbt_p50<1ms"], objective="goodput", goodput=0.9, requests=1_000)
    loose = plan(WORKLOAD, space, ["ttft_p99<2s", "tbt_p99<1s"], objective="goodput", goodput=0.9, requests=1_000)
    assert loose.best is not None
    html.write(tmp_path / "page.html", Answers("cluster", loose).page())
    text = text_of(tmp_path / "page.html")
    judged = [line for line in Answers("cluster", loose).page().head if line.judges]
    assert [line.label for line in judged] == ["met"]
    assert judged[0].text.startswith("goodput of 0.9: ")
    assert re.search(r"TTFT p99 [\d.]+ m?s \(.*?\); limit ttft_p99&lt;2s TBT p99 [\d.]+ m?s", text)
    assert "target" not in text[text.index("What more buys") :]
    html.write(tmp_path / "page.html", Answers("cluster", found).page())
    assert "unreachable" in text_of(tmp_path / "page.html")


def test_one_of_a_thing_is_singular(tmp_path: Path) -> None:
    space = search_space(SERVER, token_budget=[512], replicas=1)
    found = plan(WORKLOAD.with_rate(0.5), space, ["ttft_p99<2s"], requests=1_000)
    html.write(tmp_path / "page.html", Answers("cluster", found).page())
    text = text_of(tmp_path / "page.html")
    assert "of 1 deployment (" in text
    assert not re.search(r"\b1 (replicas|deployments|families|accelerators|requests)\b", text)


def test_sentences_break_and_stack_on_a_phone_and_figures_do_neither() -> None:
    sentence = "6.02 replicas or more are needed for what arrives, so no policy keeps fewer stable"
    words, figures = Table(["By", "Why"], [["theory", sentence]]), Table(["Rate", "Load"], [["1.5", "0.83"]])
    assert words.of_words == [True, True]
    assert words.stacks
    assert figures.of_words == [True, False]
    assert not figures.stacks
    page = html.render(Page("t", "h", [Verdict("met", "yes")], [Section("s", tables=[words])]))
    assert f'data-of="Why">{sentence}</td>' in page
    assert '<table class="stacks">' in page


def test_a_day_or_a_job_alone_has_a_page(tmp_path: Path) -> None:
    job = plan_job(WORKLOAD, [SPACE.families[0].smallest], requests=2_000, deadline_s=600)
    html.write(tmp_path / "page.html", Answers("cluster", job=job).page())
    assert re.findall(r"<h2>(.*?)</h2>", (tmp_path / "page.html").read_text()) == ["Offline work"]
