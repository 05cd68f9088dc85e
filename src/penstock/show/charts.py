"""Figures: one declarative chart each, written as SVG and PNG without a browser."""

import copy
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import vl_convert as vlc

from penstock.errors import InputError
from penstock.show.files import write_whole

Chart = TypeVar("Chart", alt.LayerChart, alt.HConcatChart, alt.ConcatChart)
Drawing = TypeVar("Drawing", bound=alt.TopLevelMixin)

# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell the lines apart on a grey
# printer.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4), (4, 2, 1, 2), (1, 3))
GRID = "#ebebeb"

SHORT = "datum.label === '' ? '' : format(datum.value, abs(datum.value) >= 1000 ? '.3~s' : '.3~g')"
"""Labels of axes and legends: 20k, but 0.2 and not 200m, which nobody reads as a fifth of a second.
"""
FILL, OUTLINE, RAY = COLOURS[0], COLOURS[1], "#555555"

GANTT_WIDTH = 680
"""Pixels of charts that need their width, and scroll on a phone."""


def on_grid(chart: Drawing) -> Drawing:
    """Return a figure with the faint grid that all have."""
    gridded: Drawing = chart.configure_axis(gridColor=GRID)
    return gridded


def side_by_side(panels: list[alt.Chart], about: str) -> alt.HConcatChart:
    """Put panels in a row over one line that says what was simulated."""
    return with_line_under(on_grid(alt.hconcat(*panels)), about)


def line_channels(column: str, names: Sequence[str], legend: alt.Legend | None) -> dict[str, Any]:
    """Return colour and dash by name, one legend for both; no two of 49 names look the same."""
    many = len(COLOURS)
    colours = [COLOURS[i % many] for i in range(len(names))]
    dashes = [list(DASHES[(i + i // many) % many]) for i in range(len(names))]
    field, domain = f"{column}:N", list(names)
    return {
        "color": alt.Color(field, scale=alt.Scale(domain=domain, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(
            field, scale=alt.Scale(domain=domain, range=dashes), legend=legend
        ),
    }


def with_line_under(chart: Chart, about: str) -> Chart:
    """Return the chart with a line of text below it."""
    title = alt.TitleParams(
        about, anchor="start", fontWeight="normal", fontSize=12, orient="bottom", offset=12
    )
    return chart.properties(title=title) if about else chart


def stacked(chart: Any) -> Any:
    """Return a chart for a phone: panels below one another, at most 280 px wide, legends below."""
    # Returned as it is: one that is as narrow already, that needs its width (such as a Gantt chart;
    # of panels, those with ``usermeta: {wide: true}``), or whose width is not in pixels.
    before = chart.to_dict()
    after = copy.deepcopy(before)
    if _sized_otherwise(before) or "usermeta" in before:
        return chart
    narrower = _widest(before) < GANTT_WIDTH
    _stack(after, narrower)
    if after == before:
        return chart
    if narrower and "width" in after:  # one panel, whose labels count too
        after |= {"width": _PHONE_PAGE, "autosize": {"type": "fit-x", "contains": "padding"}}
    look = {
        "legend": {
            "orient": "bottom",
            "columns": 2,
            "columnPadding": 20,
            "labelLimit": 130,
            "labelFontSize": 12,
        },
        "axis": {"labelFontSize": 12, "titleFontSize": 12},
    }
    config = after.setdefault("config", {})
    for part, values in look.items():
        config[part] = config.get(part, {}) | values
    if not narrower:
        after["usermeta"] = {"wide": True}
    kind = next((kind for part, kind in _KINDS.items() if part in after), alt.Chart)
    return kind.from_dict(after, validate=False)  # which is long: it is done when it is drawn


_PHONE_WIDTH, _PHONE_PAGE, _TITLE_LETTERS = 280, 350, 42
_ROWS = ("hconcat", "vconcat", "concat")
_KINDS: dict[str, Any] = {
    "vconcat": alt.VConcatChart,
    "concat": alt.ConcatChart,
    "layer": alt.LayerChart,
}


def _sized_otherwise(part: dict[str, Any]) -> bool:
    """Return whether a panel is a table of panels, or its steps or container set its width."""
    if {"facet", "repeat"} & part.keys() or {"facet", "column", "row"} & part.get(
        "encoding", {}
    ).keys():
        return True
    if not isinstance(part.get("width", 0), int | float):
        return True
    return any(_sized_otherwise(each) for key in _ROWS for each in part.get(key, ()))


def _widest(part: Any) -> float:
    """Return the width of the widest panel, 0 where none has one."""
    if isinstance(part, list):
        return max(map(_widest, part), default=0)
    if not isinstance(part, dict):
        return 0
    width = part.get("width", 0)
    inner = (_widest(part[key]) for key in _ROWS if key in part)
    return max([width if isinstance(width, int | float) else 0, *inner])


def _stack(part: dict[str, Any], narrower: bool) -> None:
    """Change a specification and those in it; widths only where the panels may be narrower."""
    if "hconcat" in part:
        part["vconcat"] = part.pop("hconcat")
    if "concat" in part:
        part["columns"] = 1
    if narrower and isinstance(part.get("width"), int | float):
        part["width"] = min(part["width"], _PHONE_WIDTH)
    title = part.get("title")
    if isinstance(title, str) and len(title) > _TITLE_LETTERS:
        part["title"] = textwrap.wrap(title, _TITLE_LETTERS)
    elif isinstance(title, dict) and isinstance(title.get("text"), str):
        part["title"] = title | {"text": textwrap.wrap(title["text"], _TITLE_LETTERS) or ""}
    for each in (*part.get("vconcat", ()), *part.get("concat", ())):
        _stack(each, narrower)


def save(charts: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write each chart as ``name.svg`` and ``name.png``, once all of them are drawn."""
    drawn: dict[Path, bytes] = {}
    for name, chart in charts.items():
        specification = chart.to_json()
        drawn[folder / f"{name}.svg"] = vlc.vegalite_to_svg(specification).encode()
        drawn[folder / f"{name}.png"] = vlc.vegalite_to_png(specification, scale=2)
    for path, content in drawn.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror}; give another folder"
            ) from None
    return list(drawn)
