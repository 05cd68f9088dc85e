"""One grammar of charts: marks over a table, on axes that its columns name.

A chart is plain data, a specification of Vega-Lite: scales, ticks, labels, legends, colours and
dashes follow from what is asked, and nothing is drawn before it is shown (`penstock.show.charts`).
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

Chart = dict[str, Any]
Look = dict[str, Any]

# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell the lines apart on a grey
# printer.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 4], [4, 2, 1, 2], [1, 3])
GRID = "#ebebeb"

SHORT = "datum.label === '' ? '' : format(datum.value, abs(datum.value) >= 1000 ? '.3~s' : '.3~g')"
"""Labels of axes and legends: 20k, but 0.2 and not 200m, which nobody reads as a fifth of a second.
"""
SPREAD = 20
"""Times the least value: beyond it an axis is logarithmic."""

GANTT_WIDTH = 680
"""Pixels of charts that need their width, and scroll on a phone."""

_LONG = 16  # letters of a name in a legend: two such do not fit beside one another
_FORMATS = {"share": "%", "error": "+%"}
_LOOKS: dict[str, dict[str, Any]] = {
    "line": {"strokeWidth": 1.8},
    "point": {"size": 50, "filled": True, "opacity": 1},
}
# Channels that a mark has not, among those that tell things apart.
_WITHOUT = {"line": ("shape", "fill"), "rule": ("shape", "fill"), "point": ("strokeDash",)}


@dataclasses.dataclass(frozen=True)
class Axis:
    """What an axis says, and its scale: from 0 on unless it is logarithmic or ``free``."""

    title: str | None
    log: bool = False
    free: bool = False
    kind: str = ""  # `share` or `error`, which are percentages
    domain: Sequence[float] | None = None
    ticks: int | Sequence[float] = 6  # about how many, or where
    names: Sequence[str] | None = None  # in place of numbers
    grid: bool = True

    @classmethod
    def over(cls, title: str, values: Collection[float | None], **more: Any) -> "Axis":
        """Return an axis that is logarithmic where the values spread and are above 0."""
        known = [value for value in values if value is not None]
        least = min(known, default=0.0)
        return cls(title, log=least > 0 and max(known) > SPREAD * least, **more)

    def channel(self, column: str) -> dict[str, Any]:
        """Return the position of a column along the axis."""
        axis: Look = {} if self.grid else {"grid": False}
        if self.names is not None:
            axis |= {"labelAngle": 0, "labelLimit": 320, "labelOverlap": True}
            place: Look = {"field": column, "type": "nominal", "sort": list(self.names)}
            return place | {"title": self.title, "axis": axis}
        ticks = self.ticks
        if isinstance(ticks, int) and self.log and self.domain:
            low, high = self.domain
            if high < SPREAD * low:  # there powers of ten and their multiples leave gaps
                ticks = _steps(low, high, ticks)
        if isinstance(ticks, int):
            axis["tickCount"] = ticks
        else:
            axis |= {"values": list(ticks), "format": ",~g", "labelOverlap": True}
        if self.kind:
            axis["format"] = _FORMATS[self.kind]
        elif isinstance(ticks, int) and (self.log or not (self.free or self.domain)):
            axis["labelExpr"] = SHORT
        scale: Look = {"zero": False, "padding": 8} if self.free else {"zero": True}
        if self.log:
            scale = {"type": "log", "nice": False, "padding": 8}
        if self.domain is not None:
            scale = scale | {"domain": list(self.domain), "nice": False, "padding": 0}
        place = {"field": column, "type": "quantitative", "title": self._words}
        return place | {"scale": scale, "axis": axis}

    @property
    def _words(self) -> str | None:
        """The title, which says where the scale is logarithmic."""
        if not (self.log and self.title):
            return self.title
        unit = self.title.endswith(")")
        return f"{self.title[:-1]}, log scale)" if unit else f"{self.title} (log scale)"


def _steps(low: float, high: float, count: int) -> list[float]:
    """Return about so many round numbers, evenly apart, from one number to another."""
    wide = (high - low) / count
    power = 10 ** math.floor(math.log10(wide))
    step = power * next(times for times in (1, 2, 5, 10) if times * power >= wide * (1 - 1e-9))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.6g}") for number in range(first, last + 1)]


@dataclasses.dataclass(frozen=True)
class By:
    """What tells marks apart: a column, all that may stand in it, and how each looks."""

    column: str
    # With the looks of each, by channel; else colours and dashes, of which no two of 49 are alike.
    names: Sequence[str] | Mapping[str, Sequence[Any]]
    title: str | None = None  # of the legend
    look: str = "color strokeDash"  # channels
    legend: bool = True

    def channels(self) -> dict[str, Any]:
        """Return the channels, with one legend for all."""
        looks = self.names
        if not isinstance(looks, Mapping):
            many = len(COLOURS)
            looks = {
                name: (COLOURS[i % many], DASHES[(i + i // many) % many])
                for i, name in enumerate(looks)
            }
        legend: Look = {
            "title": self.title,
            "labelLimit": 280,
            "symbolOpacity": 1,
            "symbolSize": 110,
        }
        if "strokeDash" in self.look:
            legend |= {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolSize": 300}
        if any(len(name) > _LONG for name in looks):
            legend["columns"] = 1
        return {
            channel: {
                "field": self.column,
                "type": "nominal",
                "scale": {"domain": list(looks), "range": [look[part] for look in looks.values()]},
                # A legend of widths would stand apart from that of colours and dashes.
                "legend": legend if self.legend and channel != "strokeWidth" else None,
            }
            for part, channel in enumerate(self.look.split())
        }


@dataclasses.dataclass(frozen=True)
class Mark:
    """A layer of a chart that lacks its axes: see `mark`."""

    x: str | None
    y: str | None
    layer: Chart

    def on(self, x: Axis, y: Axis) -> Chart:
        """Return the layer on its axes."""
        places = {"x": (x, self.x), "y": (y, self.y)}
        encoding = {at: axis.channel(column) for at, (axis, column) in places.items() if column}
        return self.layer | {"encoding": encoding | self.layer["encoding"]}


def mark(
    kind: str,
    x: str | None = None,
    y: str | None = None,
    *by: By,
    table: pl.DataFrame | None = None,
    more: Mapping[str, Any] | None = None,
    **look: Any,
) -> Mark:
    """Return a mark for each row: columns at the axes, what tells marks apart, and how they look.

    A ``table`` stands in place of that of the chart; ``more`` are channels, or columns of theirs.
    """
    encoding: Look = {}
    for one in reversed(by):
        encoding |= one.channels()
    for channel, of in (more or {}).items():
        encoding[channel] = {"field": of} if isinstance(of, str) else of
    for channel in _WITHOUT.get(kind, ()):
        encoding.pop(channel, None)
    look = {"type": kind, **_LOOKS.get(kind, {}), **look}
    if not {"color", "stroke", "fill"} & (encoding.keys() | look.keys()):
        look["color"] = COLOURS[0]
    own = {} if table is None else {"data": rows(table)}
    return Mark(x, y, {**own, "mark": look, "encoding": encoding})


def limit(
    at: str, value: float, words: str = "", *, below: bool = False, **look: Any
) -> list[Mark]:
    """Return a line at a value of x or y, and its words beside it, which other lines may cross."""
    table = pl.DataFrame({at: [value], "text": [words]})
    x, y = ("x", None) if at == "x" else (None, "y")
    dashed: Look = {"strokeDash": [5, 4], "strokeWidth": 1.5, "color": COLOURS[1]} | look
    marks = [mark("rule", x, y, table=table, **dashed)]
    if not words:
        return marks
    if at == "x":
        side: Look = {"angle": 270, "align": "right", "baseline": "bottom", "dx": -4, "dy": -3}
        beside = {"y": {"value": 0}}
    else:
        baseline, dy = ("top", 4) if below else ("bottom", -4)
        side = {"align": "left", "baseline": baseline, "dy": dy}
        beside = {"x": {"value": 5}}
    halo: Look = {"color": "white", "stroke": "white", "strokeWidth": 4}
    for ink in (halo, {"color": look.get("color", "#8f3f00")}):
        more = beside | {"text": "text"}
        marks.append(mark("text", x, y, table=table, more=more, **side, **ink))
    return marks


def plot(
    table: pl.DataFrame,
    *marks: Mark,
    x: Axis,
    y: Axis,
    size: tuple[Any, Any] = (380, 280),
    title: str = "",
) -> Chart:
    """Return a chart of marks over a table, the last one on top."""
    layers = [mark.on(x, y) for mark in marks]
    chart = {"data": rows(table), "layer": layers, "width": size[0], "height": size[1]}
    return chart | ({"title": title} if title else {})


def rows(table: pl.DataFrame) -> dict[str, Any]:
    """Return a table as the data of a chart."""
    return {"values": table.to_dicts()}


_WIDE, _NARROW, _HIGH, _LOW = 62, 26, 44, 22  # px of a cell with text, and without
_MOST_WITH_TEXT = 12  # columns
_INK = 0.68  # of the way to the darkest colour: beyond it white letters are easier to read


def heat_map(table: pl.DataFrame, x: Axis, y: Axis, unit: str, title: str) -> Chart:
    """Draw coloured cells with their figures: light is low, dark is high; the best is framed."""
    # A row is a cell: x, y, value; text and note, its two lines; best. One whose value is null
    # stays white. Text is left out where there are too many columns.
    known = table["value"].drop_nulls().to_list()
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    high = high if high > low else low + abs(low) + 1e-9
    legend = {
        "title": unit,
        "labelExpr": SHORT,
        "gradientLength": 200,
        "direction": "horizontal",
        "orient": "bottom",
        "tickCount": 4,
    }
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "blues", "domain": [low, high], "nice": False},
        "legend": legend,
    }
    filled = table.drop_nulls("value")
    best = table.filter("best")
    marks = [
        mark("rect", "x", "y", table=filled, more={"color": colour}, stroke="#ffffff"),
        mark("rect", "x", "y", table=best, fillOpacity=0, stroke="black", strokeWidth=2.5),
    ]
    across, down = len(x.names or ()), len(y.names or ())
    roomy = across <= _MOST_WITH_TEXT
    if roomy:
        dark = f"datum.value !== null && datum.value > {low + _INK * (high - low)}"
        ink = {"condition": {"test": dark, "value": "white"}, "value": "black"}
        for text, letters, dy in (("text", 13, -7), ("note", 10, 9)):
            more = {"text": text, "color": ink}
            marks.append(mark("text", "x", "y", more=more, fontSize=letters, dy=dy))
    width, height = (_WIDE, _HIGH) if roomy else (_NARROW, _LOW)
    size = max(width * across, 220), max(height * down, 180)
    return plot(table, *marks, x=x, y=y, size=size, title=title)
