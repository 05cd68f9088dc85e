"""Figures are whole files that show every policy, or are not there."""

import re
import struct
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert as vlc

import penstock as ps
from penstock.checking.figures import (
    MOST_REQUESTS,
    PHASES,
    first_batches,
    gantt,
    gantt_figure,
    latency_figure,
    region_chart,
    region_figure,
    token_figure,
)
from penstock.show import charts, html, page
from penstock.show.page import Figure, Page, Section
from penstock.show.plot import COLOURS, DASHES, SHORT
from penstock.theory.region import sarathi_region

SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
WORKLOAD = ps.Workload.poisson(rate=1.0, prompt=500, output=20)


@pytest.fixture(scope="module")
def runs() -> dict[str, ps.Run]:
    return {name: ps.simulate(WORKLOAD, SERVER.with_policy(name), requests=200) for name in ps.POLICIES}


def saved(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as that of a page."""
    section = Section("s", figures=lambda: [figure])
    return charts.save_page(Page("scenario", "what was asked about", sections=[section]), folder)


@pytest.mark.parametrize("draw", [token_figure, latency_figure])
def test_a_figure_is_written_as_svg_and_png_with_units_and_every_policy(draw, runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    figure = draw(runs)
    svg, png = saved(figure, tmp_path / "new" / "folder")
    text = svg.read_text()
    assert text.startswith("<svg")
    assert all(name in text for name in ps.POLICIES)
    assert "(s)" in text or "Seconds" in text
    assert "what was asked about" in text
    assert figure.caption[:40] in text
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width > 1000
    assert height > 400
    assert sorted(p.name for p in svg.parent.iterdir()) == [f"{figure.name}.png", f"{figure.name}.svg"]


def test_charts_of_a_server_are_valid(runs: dict[str, ps.Run], recorded: ps.Run) -> None:
    figures = [token_figure(runs), latency_figure(runs, ["orca"]), gantt_figure(recorded, "sarathi")]
    figures.append(region_figure(REGION, runs, point=(1806.0, 1554.0), own={"sarathi": sarathi_region(LIMITED)}))
    for figure in figures:
        for chart in figure.charts.values():
            alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know


def test_a_run_without_gaps_can_be_drawn(tmp_path: Path) -> None:
    run = ps.simulate(ps.Workload.poisson(1.0, 10, 1), SERVER, requests=50)
    saved(latency_figure({"sarathi": run}), tmp_path)


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_left(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.InputError, match="cannot write"):
        saved(token_figure(runs), tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


LIMITED = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 1024, 128)
REGION = ps.region(LIMITED, prompt=129, output=112)


@pytest.fixture(scope="module")
def recorded() -> ps.Run:
    return ps.simulate(ps.Workload.poisson(14.0, 129, 112), LIMITED, requests=300, record="allocations")


def layers(chart: Any) -> list[dict[str, Any]]:
    """Return the layers of a chart, the rows of each under ``rows``."""
    return [layer | {"rows": layer.get("data", chart.get("data"))["values"]} for layer in chart["layer"]]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_and_dashes_are_all_different() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == len(set(map(tuple, DASHES))) == len(DASHES)


def test_a_policy_without_latency_leaves_the_colours_of_the_others_alone(runs: dict[str, ps.Run]) -> None:
    refused = set(runs) - {"orca", "sarathi"}
    for chart in latency_figure(runs, refused).charts.values():
        (lines,) = layers(chart)
        assert {row["name"] for row in lines["rows"]} == {"orca", "sarathi"}
        for channel in ("color", "strokeDash"):
            assert lines["encoding"][channel]["scale"]["domain"] == list(runs)


def test_the_region_chart_has_units_on_its_axes_and_a_dash_of_its_own_for_each_line(tmp_path: Path) -> None:
    chart = region_chart(REGION, (1806.0, 1554.0), sarathi_region(LIMITED))
    for layer in layers(chart):
        assert layer["encoding"]["x"]["title"] == "Prefill (tokens/s)"
        assert layer["encoding"]["y"]["title"] == "Decode (tokens/s)"
    (lines,) = [layer for layer in layers(chart) if "strokeDash" in layer["encoding"]]
    dashes = lines["encoding"]["strokeDash"]["scale"]["range"]
    assert len({tuple(dash) for dash in dashes}) == len(dashes) == 3
    svg, _ = charts.save({"region": chart}, tmp_path)
    text = svg.read_text()
    assert all(words in text for words in ("own region", "offered load"))


@pytest.mark.parametrize("stretch", [0.8, 1.25])
def test_the_ray_goes_from_the_origin_through_the_load_and_leaves_the_region_at_its_boundary(stretch: float) -> None:
    edge = REGION.scale((129, 111)) * np.array([129.0, 111.0])
    offered = stretch * edge
    drawn = layers(region_chart(REGION, (offered[0], offered[1])))
    points = {row["at"]: (row["prefill"], row["decode"]) for row in drawn[-1]["rows"]}
    assert points["offered load"] == pytest.approx(tuple(offered))
    assert points["most along its ray"] == pytest.approx(tuple(edge))
    ray = [(r["prefill"], r["decode"]) for layer in drawn for r in layer["rows"] if r.get("line") == "ray of the load"]
    assert ray[0] == (0, 0)
    assert ray[1] == pytest.approx(tuple(max(stretch, 1) * edge))


def test_the_region_is_drawn_with_its_own_corners() -> None:
    filled = layers(region_chart(REGION))[0]["rows"]
    assert [[row["prefill"], row["decode"]] for row in filled] == REGION.vertices.tolist()


def test_batches_of_a_run_are_all_in_the_picture_and_none_is_outside_the_region(recorded: ps.Run) -> None:
    (batches,) = [
        layer["rows"]
        for layer in layers(region_chart(REGION, mix=recorded.compositions))
        if "size" in layer["encoding"]
    ]
    assert sum(row["time"] for row in batches) == pytest.approx(1)
    mean = [sum(row["time"] * row[phase] for row in batches) for phase in ("prefill", "decode")]
    mix, busy = recorded.compositions, recorded.compositions["seconds"].sum()
    assert mean[0] == pytest.approx((mix["prefill_tokens"] * mix["batches"]).sum() / busy)
    assert mean[1] == pytest.approx((mix["decode_tokens"] * mix["batches"]).sum() / busy)
    assert all(REGION.margin((row["prefill"], row["decode"])) > -1e-9 for row in batches)


def bars_of(chart: Any) -> list[dict[str, Any]]:
    return [
        row | {"mark": layer["mark"]}
        for layer in layers(chart)
        if layer["mark"]["type"] == "bar"
        for row in layer["rows"]
    ]


def test_a_gantt_chart_has_a_bar_for_every_allocation_of_its_batches(recorded: ps.Run) -> None:
    window = first_batches(recorded, 25)
    expected = recorded.allocations.filter(pl.col("batch").is_in(window["batch"].implode()))
    bars = bars_of(gantt(recorded, 25))
    drawn = {(b["batch"], b["request"], b["phase"], b["tokens"]) for b in bars}
    assert len(bars) == expected.height
    assert drawn == {
        (batch, request, "prefill" if prefill else "decode", prefill + decode)
        for batch, request, prefill, decode in expected.iter_rows()
    }
    assert sum(b["tokens"] for b in bars) == window["prefill_tokens"].sum() + window["decode_tokens"].sum()


def test_the_bars_of_a_request_never_overlap_and_lie_after_its_arrival(recorded: ps.Run) -> None:
    arrival = recorded.requests["arrival_ns"] * 1e-9
    ends: dict[int, float] = {}
    for bar in sorted(bars_of(gantt(recorded)), key=lambda b: (b["request"], b["start_s"])):
        assert bar["start_s"] >= ends.get(bar["request"], arrival[bar["request"]]) - 1e-9
        ends[bar["request"]] = bar["end_s"]


def test_a_gantt_chart_begins_with_the_first_batch_of_two_requests(recorded: ps.Run) -> None:
    window = first_batches(recorded)
    assert window["requests"][0] >= 2
    assert recorded.batches["requests"][: window["batch"][0]].max() == 1
    assert window.height == 40


def test_a_gantt_chart_of_requests_that_never_meet_begins_with_the_first_batch() -> None:
    alone = ps.Workload.from_arrays([0.0, 10.0], [129, 129], [3, 3])
    run = ps.simulate(alone, LIMITED, record="allocations")
    assert first_batches(run)["batch"][0] == 0
    assert len(bars_of(gantt(run))) == 6


def test_phases_differ_on_a_grey_printer_in_shade_and_in_height(recorded: ps.Run) -> None:
    dark, light = luminance(PHASES["prefill"]), luminance(PHASES["decode"])
    assert (light + 0.05) / (dark + 0.05) > 3
    heights = {bar["phase"]: bar["mark"]["height"]["band"] for bar in bars_of(gantt(recorded))}
    assert heights["prefill"] > 1.5 * heights["decode"]


def test_a_gantt_chart_names_its_axes_and_is_drawn(recorded: ps.Run, tmp_path: Path) -> None:
    svg, _ = saved(gantt_figure(recorded, "sarathi"), tmp_path)
    assert svg.name == "first_batches_sarathi.svg"
    text = svg.read_text()
    assert all(words in text for words in ("Time (s)", "Request", "prefill", "decode", "Prefill is dark"))


def test_a_crowd_is_cut_to_the_requests_that_a_chart_can_show() -> None:
    crowd = ps.Workload.from_arrays([0.0] * 500, [1] * 500, [3] * 500)
    run = ps.simulate(crowd, LIMITED, record="allocations")
    assert {bar["request"] for bar in bars_of(gantt(run))} == set(range(MOST_REQUESTS))


def test_a_run_that_kept_no_allocations_is_refused(runs: dict[str, ps.Run]) -> None:
    with pytest.raises(ps.InputError, match="record='"):
        gantt(runs["sarathi"])


def test_on_a_phone_no_panel_stands_beside_another_and_none_is_wider_than_it(runs: dict[str, ps.Run]) -> None:
    panels = list(token_figure(runs).charts.values())
    chart = {"hconcat": panels, "title": {"text": "a line under it that is longer than a phone is wide, and wraps"}}
    narrow = charts.stacked(chart)
    assert len(narrow["vconcat"]) == 2
    assert "hconcat" not in narrow
    assert max(panel["width"] for panel in narrow["vconcat"]) <= 280
    assert len(narrow["title"]["text"]) > 1
    assert "hconcat" in chart, "the chart itself stays as it is"


def test_panels_are_stacked_at_any_depth() -> None:
    panel = alt.Chart(pl.DataFrame({"x": [1]})).mark_point().encode(x="x:Q").properties(width=200)
    nested = alt.vconcat(alt.hconcat(panel, panel), alt.concat(panel, panel, columns=2))
    below, wrapped = charts.stacked(nested)["vconcat"]
    assert len(below["vconcat"]) == 2
    assert wrapped["columns"] == 1


def test_a_chart_that_fits_a_phone_or_needs_its_width_is_returned_as_it_is(recorded: ps.Run) -> None:
    panel = alt.Chart(pl.DataFrame({"x": [1]})).mark_point().encode(x="x:Q").properties(width=200)
    wide = gantt(recorded)
    assert charts.stacked(panel) is panel
    assert charts.stacked(wide) is wide


PANEL = alt.Chart(pl.DataFrame({"x": [1], "y": ["a"]})).mark_point().encode(x="x:Q").properties(width=500)


@pytest.mark.parametrize(
    "chart",
    [
        PANEL.facet("y:N"),
        PANEL.repeat(["x", "y"]),
        PANEL.encode(column="y:N"),
        PANEL.encode(row="y:N"),
        PANEL.properties(width="container"),
        PANEL.properties(width={"step": 20}),
        alt.vconcat(PANEL, PANEL.encode(column="y:N")),
    ],
)
def test_a_chart_whose_width_is_not_that_of_a_panel_is_returned_as_it_is(chart: Any) -> None:
    assert charts.stacked(chart) is chart


@pytest.mark.parametrize("chart", [PANEL, alt.layer(PANEL, PANEL), alt.hconcat(PANEL, PANEL), alt.concat(PANEL, PANEL)])
def test_a_chart_for_a_phone_is_valid_and_can_be_drawn(chart: Any, tmp_path: Path) -> None:
    narrow = charts.stacked(chart)
    assert narrow is not chart
    svg, _ = charts.save({"narrow": narrow}, tmp_path)
    width = re.search(r'viewBox="0 0 ([\d.]+)', svg.read_text())
    assert width is not None
    assert 200 < float(width[1]) < 420


def test_a_wide_panel_among_others_goes_below_them_and_scrolls(recorded: ps.Run) -> None:
    beside = {"hconcat": [charts.specification(PANEL), gantt(recorded)]}
    narrow = charts.stacked(beside)
    assert "vconcat" in narrow
    assert max(panel["width"] for panel in narrow["vconcat"]) >= 680
    figure = page.Figure("f", "f", {"text": beside}, wide=True)
    section = page.Section("s", figures=lambda: [figure])
    text = html.render(page.Page("t", "h", [page.Verdict("same", "r", "s")], [section]))
    assert 'class="charts phone wide" tabindex="0"' in text


@pytest.mark.parametrize(("value", "label"), [(0.2, "0.2"), (0.0005, "0.0005"), (3, "3"), (20_000, "20k")])
def test_a_label_of_a_fifth_of_a_second_is_no_number_of_metres(value: float, label: str) -> None:
    """SI prefixes only where a number is large: nobody reads 200m as 0.2."""
    axis = alt.Axis(labelExpr=SHORT, values=[value])
    chart = alt.Chart(pl.DataFrame({"x": [value]})).mark_point().encode(x=alt.X("x:Q", axis=axis))
    assert f">{label}<" in vlc.vegalite_to_svg(chart.to_json())
