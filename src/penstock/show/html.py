"""Any page as one HTML file that a phone, a printer and a screen reader can use.

Charts are drawn to SVG when the page is written, so it needs no network and no script.
"""

import itertools
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import vl_convert as vlc
from markupsafe import Markup, escape

from penstock import checks
from penstock.errors import InputError
from penstock.show import charts
from penstock.show.files import write_whole
from penstock.show.page import BAD, GOOD, OPEN, Page, tone
from penstock.show.plot import GRID

_LOOK = {
    "aria": False,  # the chart has one description, its marks need none
    # so that the shadow shows at the side where more of a wide chart is
    "background": "transparent",
    "padding": {
        "left": 5,
        "top": 5,
        "bottom": 5,
        "right": 24,
    },  # fonts may be wider where the page is read
    # of the widths that the layout was computed with
    "font": "Arial, Helvetica, 'Liberation Sans', sans-serif",
    "legend": {
        "orient": "bottom",
        "columns": 2,
        "columnPadding": 24,
        "labelLimit": 125,
        "titleLimit": 340,
        "labelFontSize": 12,
        "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 8}},
    },
    "axis": {"gridColor": GRID, "labelFontSize": 12, "titleFontSize": 12},
    "title": {"fontSize": 13, "anchor": "start", "limit": 380},
}


def write(path: Path, page: Page) -> None:
    """Write one HTML file, whole or not at all; its folder is made where it is missing."""
    path = checks.writable("--report", path, makes_folder=True)
    text = render(page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        remedy = "give another file to --report"
        raise InputError(f"cannot write {path}: {error.strerror}; {remedy}") from None


def render(page: Page) -> str:
    """Return the text of the file that `write` writes."""
    return rendered("report.html.j2", page=page)


def rendered(template: str, **values: Any) -> str:
    """Return a template of the package, filled in."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("penstock.show"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tone"] = tone
    environment.filters["judged"] = lambda cell: tone(cell) if cell in GOOD | BAD | OPEN else ""
    drawn = itertools.count()
    environment.globals["stacked"] = charts.stacked
    environment.globals["svg"] = lambda chart, text: _svg(chart, text, f"c{next(drawn)}-")
    return environment.get_template(template).render(
        version=metadata.version("penstock-llm"), **values
    )


def _svg(chart: Any, text: str, prefix: str) -> Markup:
    """Draw a chart that scales to its container, with a text alternative and ids of its own."""
    specification = charts.specification(chart)
    specification = specification | {"config": specification.get("config", {}) | _LOOK}
    drawing = vlc.vegalite_to_svg(specification)
    start = drawing.index(">") + 1
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing[:start])
    assert size is not None
    inside = re.sub(
        r'(id="|url\(#)(?=(?:clip|gradient)_?\d+["\)])', rf"\g<1>{prefix}", drawing[start:]
    )
    most = f"max-width:{1.25 * float(size[1]):.0f}px"
    return Markup(f'<svg role="img" aria-label="{escape(text)}" {size[0]} style="{most}">{inside}')
