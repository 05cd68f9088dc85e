"""Figures of a sweep fit what varied, hold its numbers, and tell policies apart without colour."""

import itertools
import re
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest

from penstock.show import charts, html
from penstock.sweeping.figures import sweep_figures
from penstock.sweeping.points import averages
from penstock.sweeping.stable_rates import with_stable_rates
from penstock.sweeping.sweep import set_up, sweep
from penstock.sweeping.tables import cell
from penstock.sweeping.view import sweep_page
from penstock.words import NO_LIMIT, digits

DOCUMENT = {
    "workload": {"poisson": {"rate": 1.0, "prompt": 400, "output": 60}},
    "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512, "max_batch_size": 32},
    "simulate": {"requests": 400},
}
RATE, POLICY = "workload.poisson.rate", "server.policy"
BUDGET, SIZE = "server.token_budget", "server.max_batch_size"


def swept(vary: dict[str, Any], sample: int | None = None, limits: bool = True) -> pl.DataFrame:
    rows = sweep(DOCUMENT, vary, jobs=1, seed=0, sample=sample)
    return with_stable_rates(set_up(DOCUMENT, vary, seed=0, sample=sample), rows) if limits else rows


@pytest.fixture(scope="module")
def rates() -> pl.DataFrame:
    return swept({RATE: [1, 2, 4, 8], POLICY: ["sarathi", "fastertransformer"]})


@pytest.fixture(scope="module")
def grid() -> pl.DataFrame:
    return swept({BUDGET: [128, 512], SIZE: [8, 32, None]})


def datasets(chart: Any) -> list[list[dict[str, Any]]]:
    return [part["data"]["values"] for part in (chart, *chart["layer"]) if "data" in part]


def drawn(rows: pl.DataFrame, fields: list[str]) -> dict[str, dict[str, Any]]:
    """Return the charts of each figure, by the name of its file."""
    return {figure.name: dict(figure.charts) for figure in sweep_figures(rows, fields)}


def test_a_rate_and_a_policy_give_a_line_per_policy_and_its_limit(rates: pl.DataFrame) -> None:
    panels = drawn(rates, [RATE, POLICY])
    assert list(panels) == ["latency_p50_with_limits", "latency_p99_with_limits"]
    for chart in panels["latency_p99_with_limits"].values():
        rule, *others = chart["layer"]
        assert rule["mark"]["type"] == "rule"
        for layer in (rule, others[0]):
            assert layer["encoding"]["color"]["scale"]["domain"] == ["sarathi", "fastertransformer"]
            dashes = layer["encoding"]["strokeDash"]["scale"]["range"]
            assert dashes[0] != dashes[1]
        ends = {row["line"]: row["x"] for data in datasets(chart) for row in data if "y" not in row}
        assert ends == dict(zip(rates[POLICY], rates["stable_rate"], strict=True))


def test_latency_over_the_rate_is_the_table_s_and_ends_where_there_is_no_steady_state(rates: pl.DataFrame) -> None:
    chart = next(iter(drawn(rates, [RATE, POLICY])["latency_p50_with_limits"].values()))
    shown = {(row["line"], row["x"]): row["y"] for data in datasets(chart) for row in data if "y" in row}
    stable = rates.filter(pl.col("verdict") != "unstable")
    assert stable.height < rates.height
    assert shown == {(row[POLICY], row[RATE]): row["ttft_p50_s"] for row in stable.iter_rows(named=True)}


def test_two_numbers_give_heat_maps_with_the_stable_rate_and_how_it_is_known(grid: pl.DataFrame) -> None:
    panels = drawn(grid, [BUDGET, SIZE])
    assert list(panels) == ["stable_rate_map", "ttft_p50_map", "e2e_p50_map"]
    (chart,) = panels["stable_rate_map"].values()
    cells, *_ = datasets(chart)
    assert len(cells) == 6
    by_theorem = {cell["note"] == "theorem" for cell in cells if cell["y"] == "none"}
    assert by_theorem == {True}
    assert {cell["note"] for cell in cells} == {"theorem", "simulated"}


BEST = {"stable_rate": pl.Series.max, "ttft_p50_s": pl.Series.min, "e2e_p50_s": pl.Series.min}


@pytest.mark.parametrize("unstable", [0, 3])
@pytest.mark.parametrize("name", BEST)
def test_a_map_has_the_value_of_each_point_and_frames_the_best(name: str, unstable: int, grid: pl.DataFrame) -> None:
    """Latency has no steady state where it is unstable: it is white there, and not the best."""
    verdicts = pl.Series("verdict", ["unstable"] * unstable + ["stable"] * (grid.height - unstable))
    rows = grid.with_columns(verdicts)
    (chart,) = drawn(rows, [BUDGET, SIZE])[f"{name.removesuffix('_s')}_map"].values()
    cells, coloured, framed = datasets(chart)
    kept = rows if name == "stable_rate" else rows.slice(unstable)
    values = {(cell(row[BUDGET]), cell(row[SIZE])): row[name] for row in kept.iter_rows(named=True)}
    assert {(row["x"], row["y"]): row["value"] for row in cells if row["value"] is not None} == values
    assert {(row["x"], row["y"]): row["value"] for row in coloured} == values
    assert {row["value"] for row in framed} == {BEST[name](kept[name])}
    assert len(set(values.values())) > 1


def test_one_number_without_a_limit_among_its_values_gets_a_place_of_its_own() -> None:
    rows = swept({SIZE: [8, 32, None]}, limits=False)
    chart = next(iter(drawn(rows, [SIZE])["latency_p50"].values()))
    x = chart["layer"][0]["encoding"]["x"]
    assert x["type"] == "nominal"
    assert x["sort"] == ["8", "32", NO_LIMIT]


def test_text_alone_gives_a_row_each_and_says_what_is_unstable() -> None:
    document = {POLICY: ["sarathi", "fastertransformer"], "workload.poisson.rate": [4.0]}
    rows = swept(document, limits=False)
    (drawings,) = drawn(rows, list(document)).values()
    names = {row["line"] for data in datasets(next(iter(drawings.values()))) for row in data}
    assert names == {"sarathi", "fastertransformer (unstable)"}


def test_a_random_sample_over_several_numbers_is_points() -> None:
    vary = {BUDGET: (128, 1024), SIZE: (8, 256), RATE: (0.5, 3.0)}
    rows = swept(vary, sample=12, limits=False)
    (drawings,) = drawn(rows, list(vary)).values()
    assert len(drawings) == 3
    assert all(len(datasets(chart)[0]) == 12 for chart in drawings.values())


def test_seeds_are_averaged_and_bad_points_are_left_out() -> None:
    vary = {BUDGET: [128, "many"]}
    rows = sweep(DOCUMENT, vary, jobs=1, seed=0, seeds=3)
    found = averages(rows, [BUDGET])
    assert found.height == 1
    good = rows.filter(pl.col("error").is_null())
    assert found["e2e_p99_s"][0] == pytest.approx(good["e2e_p99_s"].mean())


def test_no_two_of_many_lines_look_the_same() -> None:
    policies = [
        "sarathi",
        "orca",
        "maxweight",
        "pool-controlled",
        "vllm",
        "sglang",
        "vllm-vanilla",
        "fastertransformer",
    ]
    rows = swept({POLICY: policies, RATE: [1, 2]}, limits=False)
    line = next(iter(drawn(rows, [POLICY, RATE])["latency_p50"].values()))["layer"][0]
    colours, dashes = (line["encoding"][channel]["scale"]["range"] for channel in ("color", "strokeDash"))
    looks = list(zip(colours, map(tuple, dashes), strict=True))
    assert len(set(looks)) == len(looks) == len(policies)


def test_what_does_not_vary_has_no_figure() -> None:
    assert drawn(swept({BUDGET: [512]}, limits=False), [BUDGET]) == {}


def test_figures_can_be_written(rates: pl.DataFrame, grid: pl.DataFrame, tmp_path: Path) -> None:
    for rows, fields in ((rates, [RATE, POLICY]), (grid, [BUDGET, SIZE])):
        drawings = drawn(rows, fields)
        for chart in itertools.chain.from_iterable(of.values() for of in drawings.values()):
            alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know
        written = charts.save_page(sweep_page(rows, fields, "cluster"), tmp_path)
        assert len(written) == 2 * len(drawings)
    assert "Arrival rate (requests/s)" in (tmp_path / "latency_p50_with_limits.svg").read_text()


def test_the_page_has_every_point_and_every_chart_its_table(grid: pl.DataFrame) -> None:
    text = html.render(sweep_page(grid, [BUDGET, SIZE], "cluster"))
    drawings = sum(map(len, drawn(grid, [BUDGET, SIZE]).values()))
    assert len(re.findall(r'<svg role="img"', text)) == drawings
    assert text.count("<figure>") == text.count("<details>") == 3
    assert text.count("<tr><th") >= 6 * 4
    assert f">{digits(grid['e2e_p99_s'][0])}<" in text


def test_the_page_names_bad_points() -> None:
    rows = sweep(DOCUMENT, {BUDGET: [128, 512, "many"]}, jobs=1, seed=0)
    assert "server.token_budget=many:" in html.render(sweep_page(rows, [BUDGET], "cluster"))
