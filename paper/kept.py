"""What is kept of each item in ``docs/figures/reproduced``: its figures, and ``claims.json``, which tests compare."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import vl_convert

from paper import ITEMS
from paper.item import Item
from penstock.show import charts

FOLDER = Path(__file__).parents[1] / "docs" / "figures" / "reproduced"
CLAIMS = FOLDER / "claims.json"
SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 [\d.]+ [\d.]+"')
MARGIN = 24  # at the sides, for labels that are wider where a reader has other fonts


def keep(items: Iterable[Item]) -> None:
    """Keep the figures, each for a phone too, and the claims; what is kept of other items stays."""
    kept = json.loads(CLAIMS.read_text(encoding="utf-8"))
    for item in items:
        for name, (_, chart) in item.figures.items():
            (FOLDER / f"{name}.svg").write_text(drawn(chart), encoding="utf-8")
            narrow = FOLDER / f"{name}-narrow.svg"
            narrow.unlink(missing_ok=True)
            if (below := charts.stacked(chart)) is not chart:
                narrow.write_text(drawn(below), encoding="utf-8")
        kept[item.name] = item.as_dict()
    write_claims({name: kept[name] for name in ITEMS if name in kept}, CLAIMS)


def write_claims(claims, file):
    """Write what items say, by their names."""
    file.write_text(json.dumps(claims, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def drawn(chart) -> str:
    """Return a figure with room at its sides."""
    svg = vl_convert.vegalite_to_svg(charts.specification(chart))
    width, height = (float(number) for number in SIZE.search(svg).groups())
    wide = width + 2 * MARGIN
    size = f'width="{wide:g}" height="{height:g}" viewBox="{-MARGIN} 0 {wide:g} {height:g}"'
    return SIZE.sub(size, svg, count=1)
