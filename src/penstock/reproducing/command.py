"""The command ``penstock reproduce``: tables and figures of the paper, measured again."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.show import progress
from penstock.show.options import Json, say_written, show_page

if TYPE_CHECKING:
    from penstock.reproducing.item import Reproduction


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|all|FILE]",
            help="An item, all of them, or a scenario file; none: list them.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where pages (HTML), figures (SVG), tables (CSV) are written.",
        ),
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Recorded traces and profiles; without it look-alikes are drawn.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure tables and figures of the paper again, and say what is the same, what differs and
    why.

    Each item is a scenario file, written beside its results: change it, and give it back to the
    command.
    """
    from penstock.reproducing.catalogue import ITEMS, is_file, item, item_of
    from penstock.reproducing.view import items_page, summary_page
    from penstock.reproducing.write import check_folder, files_of, write_index

    if what is None:
        items = [
            {"name": entry.name, "title": entry.title, "source": entry.source} for entry in ITEMS
        ]
        show_page(items_page(), {"items": items}, None, as_json)
        return
    file = None
    names = [entry.name for entry in ITEMS]
    if is_file(what):
        file = Path(what)
        names = [what]
    elif what != "all":
        names = [item(what).name]
    written = [path for name in names for path in files_of(item_of(name).name, file)]
    if what == "all":
        written.append("index.html")
    check_folder(out, written)
    results = _measured(names, data, out, file)
    page = results[0].page()
    if what == "all":
        write_index(results, out)
        page = summary_page(results)
    show_page(page, {"items": [result.as_dict() for result in results]}, None, as_json)
    say_written("Written", [out], as_json)
    if not as_json:
        for hint in _hints(results, out, from_file=file is not None):
            print(hint, file=sys.stderr)


def _measured(
    names: Sequence[str], data: Path | None, out: Path, file: Path | None
) -> "list[Reproduction]":
    """Measure items one after the other, and write each as soon as it is there."""
    from penstock.reproducing.catalogue import reproduce as measure
    from penstock.reproducing.write import write

    progress.announce_compilation()
    results = []
    with progress.bar("Reproducing") as show:
        for index, name in enumerate(names):

            def part(share: float, index: int = index, name: str = name) -> None:
                show((index + share) / len(names), name)

            part(0.0)
            results.append(measure(name, data=data, progress=part))
            write(results[-1], out, file)
    return results


def _hints(results: "Sequence[Reproduction]", out: Path, *, from_file: bool) -> Iterator[str]:
    """Yield what in the folder is not what was measured now, and what would make it so."""
    from penstock.reproducing.write import index_is_old, left

    if len(results) == 1 and index_is_old(results[0], out):
        yield (
            f"{out / 'index.html'} still shows the earlier run of {results[0].name}; `penstock "
            f"reproduce all --out {shlex.quote(str(out))}` writes it anew"
        )
    for result in () if from_file else results:
        path = left(result.name, out)
        if path is not None:
            yield (
                f"{path} was left as it is, for it is not the scenario that was measured; "
                f"`penstock reproduce {shlex.quote(str(path))}` measures it"
            )
