"""Charts of figures as files: beside one another, or for a phone, written as SVG and PNG without a
browser.
"""

import copy
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import vl_convert as vlc

from penstock.errors import InputError
from penstock.show.files import write_whole
from penstock.show.page import Page
from penstock.show.plot import GANTT_WIDTH, GRID, Chart

_PHONE_WIDTH, _PHONE_PAGE, _TITLE_LETTERS = 280, 350, 42
_ROWS = ("hconcat", "vconcat", "concat")
_LETTER, _LEAST_LETTERS = 6.5, 80  # px, and how many, of a line under a chart


def specification(chart: Any) -> Chart:
    """Return a chart on the faint grid that all have, as plain data, which one of Altair is not."""
    plain: Chart = chart if isinstance(chart, dict) else chart.to_dict()
    config = plain.get("config", {})
    return plain | {"config": config | {"axis": {"gridColor": GRID} | config.get("axis", {})}}


def whole(charts: Iterable[Chart], columns: int = 3, under: Iterable[str] = ()) -> Chart:
    """Return charts beside one another as one, over paragraphs that say what they show."""
    parts = list(charts)
    together: Chart = {"concat": parts, "columns": columns}
    colours = [scales for part in parts if (scales := _colours(part))]
    if any(scales != colours[0] for scales in colours):  # else one legend does for all
        apart = dict.fromkeys(("color", "strokeDash", "shape"), "independent")
        together["resolve"] = {"scale": apart}
    texts = list(filter(None, under))
    if len(parts) == 1 and not ("title" in parts[0] and texts):  # a chart has one title
        together = parts[0]
    if not texts:
        return together
    wide = sum(sorted(map(_widest, parts), reverse=True)[:columns])
    letters = max(int(wide / _LETTER), _LEAST_LETTERS)
    lines = [line for text in texts for line in textwrap.wrap(text, letters)]
    about = {"anchor": "start", "fontWeight": "normal", "fontSize": 12, "orient": "bottom"}
    return together | {"title": about | {"text": lines, "offset": 12}}


def _colours(part: Chart) -> list[Any]:
    """Return the scales of colours in a chart."""
    encodings = (layer["encoding"] for layer in part.get("layer", [part]))
    return [of["color"]["scale"] for of in encodings if "scale" in of.get("color", {})]


def save_page(page: Page, folder: Path) -> list[Path]:
    """Write the figures of a page, each as one chart of its own."""
    figures = [figure for section in page.sections for figure in section.figures()]
    # A title may be no more than the name of a file.
    under = page.heading or page.title
    return save(
        {
            figure.name: whole(figure.charts.values(), figure.columns, (under, figure.caption))
            for figure in figures
        },
        folder,
    )


def save(charts: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write each chart as ``name.svg`` and ``name.png``, once all of them are drawn."""
    drawn: dict[Path, bytes] = {}
    for name, chart in charts.items():
        spec = specification(chart)
        drawn[folder / f"{name}.svg"] = vlc.vegalite_to_svg(spec).encode()
        drawn[folder / f"{name}.png"] = vlc.vegalite_to_png(spec, scale=2)
    for path, content in drawn.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror}; give another folder"
            ) from None
    return list(drawn)


def stacked(chart: Any) -> Any:
    """Return a chart for a phone: panels below one another, at most 280 px wide, legends below."""
    # Returned as it is: one that is as narrow already, that needs its width (such as a Gantt chart;
    # of panels, those with ``usermeta: {wide: true}``), or whose width is not in pixels.
    before = specification(chart)
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
    return after


def _sized_otherwise(part: Chart) -> bool:
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


def _stack(part: Chart, narrower: bool) -> None:
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
