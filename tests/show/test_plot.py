"""The grammar of charts: axes, marks and what tells them apart make valid charts that say what is asked."""

from typing import Any

import altair as alt
import polars as pl
import pytest
import vl_convert as vlc

from penstock.show import charts
from penstock.show.plot import COLOURS, DASHES, SPREAD, Axis, By, Chart, heat_map, limit, mark, plot

TABLE = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [10.0, 200.0, 3_000.0], "name": ["a", "b", "a"]})
NAMES = By("name", ["a", "b"], "Name")
SHAPED = By("name", {"a": (COLOURS[0], "circle"), "b": (COLOURS[1], "cross")}, look="color shape")
X, Y = Axis("Time (s)"), Axis("Tokens")


def encoding(chart: Chart, layer: int = 0) -> dict[str, Any]:
    return dict(chart["layer"][layer]["encoding"])


CHARTS = {
    "lines": plot(TABLE, mark("line", "x", "y", NAMES, interpolate="step-after"), x=X, y=Axis("Tokens", log=True)),
    "points": plot(TABLE, mark("point", "x", "y", SHAPED), *limit("x", 2.0, "target"), x=X, y=Y, title="Title"),
    "bars": plot(TABLE, mark("bar", "x", "name", NAMES), x=X, y=Axis(None, names=["b", "a"]), size=(200, {"step": 20})),
    "area": plot(TABLE, mark("area", "x", "y"), *limit("y", 9.0, "low", below=True), x=X, y=Axis("", kind="share")),
    "spans": plot(TABLE, mark("rule", "x", "y", more={"x2": "y"}), x=X, y=Y),
    "words": plot(TABLE, mark("text", "x", "y", more={"text": "name"}), x=X, y=Y),
    "ticks": plot(TABLE, mark("line", "x", "y"), x=Axis("x", free=True, ticks=[1, 2]), y=Axis("y", domain=(0, 1))),
    "map": heat_map(
        TABLE.select(pl.col("x", "name").cast(pl.String), y="name", value="y", text="name", note="name", best=True),
        Axis("x", names=["1.0", "2.0", "3.0"]), Axis("y", names=["a", "b"]), "Seconds", "Median",
    ),
}  # fmt: skip


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_every_chart_is_valid_and_is_drawn_without_a_warning(chart: Chart, capfd: pytest.CaptureFixture[str]) -> None:
    alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know
    assert vlc.vegalite_to_svg(charts.specification(chart)).startswith("<svg")
    assert capfd.readouterr() == ("", "")


def test_charts_together_are_valid_under_what_they_show() -> None:
    together = charts.whole([CHARTS["lines"], CHARTS["points"]], under=["what was asked", "how to read it"])
    alt.ConcatChart.from_dict(together)
    assert together["title"]["text"] == ["what was asked", "how to read it"]


def test_one_legend_serves_charts_of_the_same_names_and_others_have_their_own() -> None:
    lines, others = CHARTS["lines"], plot(TABLE, mark("line", "x", "y", By("name", ["a", "b", "c"])), x=X, y=Y)
    assert "resolve" not in charts.whole([lines, lines])
    assert "resolve" not in charts.whole([CHARTS["area"], lines]), "the area has no names"
    assert charts.whole([lines, others])["resolve"]["scale"]["color"] == "independent"


def test_an_axis_is_logarithmic_where_values_spread_and_says_so() -> None:
    assert not Axis.over("Seconds", [1.0, None, SPREAD]).log
    spread = Axis.over("TTFT (s)", [1.0, None, SPREAD + 1])
    assert spread.channel("x")["title"] == "TTFT (s, log scale)"
    assert spread.channel("x")["scale"]["type"] == "log"
    assert Axis("Tokens", log=True).channel("x")["title"] == "Tokens (log scale)"
    assert not Axis.over("Seconds", []).log
    assert not any(Axis.over("Seconds", [least, 1.0]).log for least in (0.0, -1.0)), "which have no logarithm"


def test_no_two_of_forty_nine_lines_look_the_same() -> None:
    many = By("name", [str(i) for i in range(len(COLOURS) * len(DASHES))]).channels()
    looks = zip(many["color"]["scale"]["range"], map(tuple, many["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(looks)) == len(COLOURS) * len(DASHES) == 49


def test_a_mark_has_only_the_looks_that_it_can_show() -> None:
    chart = plot(TABLE, mark("line", "x", "y", SHAPED), mark("point", "x", "y", NAMES, SHAPED), x=X, y=Y)
    assert "shape" not in encoding(chart)
    assert "strokeDash" not in encoding(chart, 1)
    assert "shape" in encoding(chart, 1)


def test_what_comes_first_decides_where_two_tell_a_mark_apart() -> None:
    verdicts = By("state", {"stable": ("#000000", "circle")}, look="color shape")
    both = encoding(plot(TABLE, mark("point", "x", "y", NAMES, verdicts), x=X, y=Y))
    assert both["color"]["field"] == "name"
    assert both["shape"]["field"] == "state"


def test_a_limit_is_a_line_across_with_its_words() -> None:
    layers = CHARTS["points"]["layer"]
    (rule,) = [layer for layer in layers if layer["mark"]["type"] == "rule"]
    assert rule["data"]["values"] == [{"x": 2.0, "text": "target"}]
    assert "y" not in rule["encoding"]
    assert sum(layer["mark"]["type"] == "text" for layer in layers) == 2, "words and their halo"


def test_a_narrow_log_axis_has_round_numbers_all_along() -> None:
    axis = Axis("ms", log=True, domain=(7.5, 16.9), ticks=5).channel("x")["axis"]
    assert axis["values"] == [8, 10, 12, 14, 16]
    assert "labelExpr" not in axis, "it leaves numbers out"
    assert "values" not in Axis("ms", log=True, domain=(1, 1_000), ticks=5).channel("x")["axis"]
