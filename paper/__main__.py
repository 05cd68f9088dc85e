"""Measure tables, figures and lemmas of the paper again: ``python -m paper NAME ...``, or ``all``."""

import argparse
import ast
import sys
from pathlib import Path

from paper import ITEMS, item, kept, measured, module
from penstock import checks
from penstock.errors import InputError, nearest
from penstock.show import charts, html, progress
from penstock.show.compiling import announce_compilation
from penstock.show.page import Page, Section, Table
from penstock.show.terminal import print_page


def listed() -> Page:
    """Say what can be measured again."""
    rows = []
    for name in ITEMS:
        script = (Path(__file__).parent / f"{module(name)}.py").read_text(encoding="utf-8")
        title, source = item.titled(ast.get_docstring(ast.parse(script)))
        rows.append((name, source, title))
    table = Table(("Item", "In the paper", "Shows"), rows, "`python -m paper NAME` measures one again, `all` all.")
    return Page("The paper", "tables, figures and lemmas that can be measured again", [], [Section("", tables=[table])])


def write(items: list[item.Item], folder: Path) -> None:
    """Write ``NAME.csv`` and ``NAME.svg`` of each item, ``claims.json`` and one page of all."""
    folder.mkdir(parents=True, exist_ok=True)
    charts.save({name: chart for each in items for name, (_, chart) in each.figures.items()}, folder)
    for each in items:
        each.rows.write_csv(folder / f"{each.name}.csv")
    kept.write_claims({each.name: each.as_dict() for each in items}, folder / "claims.json")
    html.write(folder / "index.html", item.page(items))


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m paper", description="The paper, measured again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="items, or all; none: list them")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("measured"), help="where pages are written")
    parser.add_argument("--data", type=Path, metavar="DIR", help="recorded traces and layer times; else look-alikes")
    parser.add_argument("--keep", action="store_true", help="keep claims and figures for the documentation and tests")
    given = parser.parse_args()
    names = list(ITEMS) if "all" in given.names else list(dict.fromkeys(given.names))
    for name in names:
        if name not in ITEMS:
            parser.error(f"there is no item {name!r} (`python -m paper` lists them){nearest(name, ITEMS)}")
    if given.data is not None and not given.data.is_dir():
        parser.error(f"--data {given.data} is no folder; give one with recorded traces, or leave it out")
    if not names:
        print_page(listed())
        return
    checks.writable("--out", given.out, folder=True)
    item.DATA = given.data
    announce_compilation()
    items = []
    with progress.bar("Measuring") as show:
        for count, name in enumerate(names):
            show(count / len(names), name)
            items.append(measured(name))
            if given.keep and items[-1].data_absent:
                raise InputError(f"{name} lacks recorded data, so nothing is kept; give a folder that has it to --data")
    write(items, given.out)
    if given.keep:
        kept.keep(items)
    print_page(item.page(items, whole=False))
    print(f"Written: {given.out / 'index.html'}, with claims (JSON), tables (CSV) and figures (SVG, PNG)")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"paper: {error}")
    except OSError as error:
        sys.exit(f"paper: cannot use {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit("paper: interrupted")
