"""The command ``penstock reproduce``: tables and figures of the paper, measured again."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.show import progress
from penstock.show.options import Json, print_json, say_written


def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|all|FILE]", help="An item, all of them, or a scenario file; none: list them."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where pages (HTML), figures (SVG), tables (CSV) are written.")
    ] = Path("reproduced"),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Recorded traces and profiles; without it look-alikes are drawn."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure tables and figures of the paper again, and say what is the same, what differs and why.

    Each item is a scenario file, written beside its results: change it, and give it back to the command.
    """
    from penstock.reproducing import view as terminal_reproduce
    from penstock.reproducing.catalogue import ITEMS, asked_of, is_file, item
    from penstock.reproducing.catalogue import reproduce as measure
    from penstock.reproducing.write import check_folder, files_of, index_is_old, left, write, write_index

    if what is None:
        if as_json:
            print_json({"items": [{"name": e.name, "title": e.title, "source": e.source} for e in ITEMS]})
        else:
            terminal_reproduce.print_items()
        return
    file = Path(what) if is_file(what) else None
    names = [each.name for each in ITEMS] if what == "all" else [what if file else item(what).name]
    index = ["index.html"] if what == "all" else []
    check_folder(out, [*index, *(written for name in names for written in files_of(asked_of(name).name, file))])
    progress.announce_compilation()
    found = []
    with progress.bar("Reproducing") as show:
        for place, name in enumerate(names):

            def part(share: float, place: int = place, name: str = name) -> None:
                show((place + share) / len(names), name)

            part(0.0)
            found.append(measure(name, data=data, progress=part))
            write(found[-1], out, file)
    old_index = what != "all" and index_is_old(found[0], out)
    if what == "all":
        write_index(found, out)
    if as_json:
        print_json({"items": [each.as_dict() for each in found]})
        return
    if len(found) == 1:
        terminal_reproduce.print_reproduction(found[0])
        print()
    else:
        terminal_reproduce.print_summary(found)
        print()
    say_written("Written", [out], as_json)
    if old_index:
        print(
            f"{out / 'index.html'} still shows the earlier run of {found[0].name}; `penstock reproduce all --out "
            f"{shlex.quote(str(out))}` writes it anew",
            file=sys.stderr,
        )
    for path in [left(each.name, out) for each in found] if file is None else []:
        if path is not None:
            print(
                f"{path} was left as it is, for it is not the scenario that was measured; `penstock reproduce "
                f"{shlex.quote(str(path))}` measures it",
                file=sys.stderr,
            )
