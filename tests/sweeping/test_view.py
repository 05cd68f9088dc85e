"""The page of a sweep says what was done, and its legends tell the lines apart."""

import re

import pytest

from penstock.show import html
from penstock.sweeping.sweep import sweep
from penstock.sweeping.view import sweep_page

DOCUMENT = {
    "workload": {"poisson": {"rate": 1.0, "prompt": 400, "output": 60}},
    "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512},
    "simulate": {"requests": 400},
}
RATE, BUDGET, SIZE = "workload.poisson.rate", "server.token_budget", "server.max_batch_size"


@pytest.fixture(scope="module")
def page() -> str:
    vary = {BUDGET: [128, 1024], SIZE: [None, 64], RATE: [1, 2, 3]}
    return html.render(sweep_page(sweep(DOCUMENT, vary, jobs=1, seed=0), list(vary), "cluster"))


def test_the_badge_judges_nothing_and_has_no_icon(page: str) -> None:
    assert '<span class="badge plain">swept</span>' in page


def test_every_name_in_a_legend_is_whole_and_differs(page: str) -> None:
    shown = re.findall(r">([^<>]*)</text>", page)
    assert not [text for text in shown if "…" in text]
    for name in ("128, none", "128, 64", "1,024, none", "1,024, 64"):
        assert name in shown


def test_a_rate_has_its_unit_in_every_table(page: str) -> None:
    heads = re.findall(r"<thead>(.*?)</thead>", page)
    assert heads
    assert all("<span>rate (req/s)</span>" in head for head in heads)


def test_one_run_of_one_point_is_singular() -> None:
    vary = {RATE: [1]}
    page = sweep_page(sweep(DOCUMENT, vary, jobs=1, seed=0), list(vary), "cluster")
    assert "1 run of 1 point, over" in page.head[0].text


def test_where_points_are_many_or_repeated_the_page_has_every_point_and_a_terminal_the_best_runs() -> None:
    vary = {RATE: [1, 2, 3]}
    page = sweep_page(sweep(DOCUMENT, vary, jobs=1, seed=0, seeds=8), list(vary), "cluster")
    best, every = page.sections[1].tables
    assert (best.detail, every.detail) == (False, True)
    assert (len(best.rows), len(every.rows)) == (20, 3)
    assert "The best 20 of 24 by e2e_p50_s" in best.caption
    assert "seed" in best.columns
    assert "seed" not in every.columns


def test_points_are_ranked_within_each_rate_unless_an_order_is_asked_for() -> None:
    vary = {RATE: [1, 2, 9], BUDGET: [128, 256, 300, 400, 500, 600, 1024]}
    table = sweep(DOCUMENT, vary, jobs=1, seed=0)
    page = sweep_page(table, list(vary), "cluster", None)
    said = {line.label: line.text for line in page.head}
    assert said["swept"].endswith("The best by whole call p50 at each rate:")
    assert [label for label in said if label.startswith("At ")] == ["At 1", "At 2", "At 9"]
    assert said["At 2"].startswith("token budget ")
    points, _ = page.sections[1].tables
    rates = [row[list(points.columns).index("rate (req/s)")] for row in points.rows]
    assert rates[:6] == ["1", "2", "9"] * 2, "the best at each rate, then the second"
    asked = sweep_page(table, list(vary), "cluster", "throughput")
    assert {line.label: line.text for line in asked.head}["swept"].endswith("The best by throughput:")


def test_the_few_unstable_points_are_named() -> None:
    vary = {RATE: [1, 2, 9], BUDGET: [128, 1024]}
    page = sweep_page(sweep(DOCUMENT, vary, jobs=1, seed=0), list(vary), "cluster", None)
    said = {line.label: line.text for line in page.head}
    assert said["Unstable"].count("rate (req/s) 9, token budget ") == 2
