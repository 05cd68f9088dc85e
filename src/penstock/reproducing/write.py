"""A reproduction as files: a page that stands alone, its figures, its table, and the scenario to
change.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from penstock import checks
from penstock.errors import InputError
from penstock.reproducing.catalogue import item
from penstock.reproducing.item import Reproduction
from penstock.reproducing.view import summary_page
from penstock.show import charts, html
from penstock.show.files import write_whole


def write(answer: Reproduction, folder: Path, scenario: Path | None = None) -> list[Path]:
    """Write ``NAME.html``, ``NAME.svg`` and ``.png`` (numbered if several), ``NAME.csv`` and
    ``NAME.yaml``.

    A scenario that lies there already, changed by its reader, is left as it is.

    Parameters
    ----------
    answer
        What was measured.
    folder
        Made if it is not there.
    scenario
        The file it was made from, if it is not the item's own; it is not copied, since its paths
        begin where it lies.

    Raises
    ------
    InputError
        If the folder cannot be written to.
    """
    figures = [answer.name]
    if len(answer.charts) != 1:
        figures = [f"{answer.name}-{index}" for index in range(1, len(answer.charts) + 1)]
    files = files_of(answer.name, scenario)
    check_folder(
        folder, [*files, *(f"{name}.{kind}" for name in figures for kind in ("svg", "png"))]
    )
    contents = [html.render(answer.page()), answer.rows.write_csv(), item(answer.name).text]
    texts = dict(zip(files, contents, strict=False))
    if (folder / f"{answer.name}.yaml").exists():
        texts.pop(f"{answer.name}.yaml", None)
    drawings = charts.save(dict(zip(figures, answer.charts.values(), strict=True)), folder)
    _write(folder, texts)
    return [*(folder / name for name in files), *drawings]


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files whole or not at all into a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text.encode())
    except OSError as error:
        raise InputError(
            f"cannot write into {folder}: {error.strerror or error}; give another --out"
        ) from None


def files_of(name: str, scenario: Path | None = None) -> list[str]:
    """Return the names of an item's page, table and scenario; not those of its figures, which may
    be numbered.
    """
    kinds = ("html", "csv", "yaml") if scenario is None else ("html", "csv")
    return [f"{name}.{kind}" for kind in kinds]


def check_folder(folder: Path, files: Iterable[str]) -> None:
    """Refuse a folder to which files cannot be written.

    Raises
    ------
    InputError
        If it is none, may not be written to, or something else than a file has the name of one.
    """
    checks.writable("--out", folder, folder=True)
    for path in (folder / name for name in files):
        try:
            in_the_way = path.exists() and not path.is_file()
        except OSError as error:
            raise InputError(
                f"cannot write {checks.shown(str(path))}: {error.strerror}; give another folder "
                "to --out"
            ) from None
        if in_the_way:
            raise InputError(
                f"cannot write {path}: something of that name is there and is no file; move it, or "
                "give another folder to --out"
            )


def left(name: str, folder: Path) -> Path | None:
    """Return the scenario that lies beside the results of an item's own, if its reader changed
    it.
    """
    path = folder / f"{name}.yaml"
    return None if path.read_bytes() == item(name).text.encode() else path


def index_is_old(answer: Reproduction, folder: Path) -> bool:
    """Return whether the folder has an ``index.html`` that says something else of the item."""
    path = folder / "index.html"
    if not path.is_file():
        return False
    shown = path.read_text(encoding="utf-8", errors="replace")
    return _row(shown, answer.name) != _row(html.render(summary_page([answer])), answer.name)


def _row(page: str, name: str) -> str:
    """Return the words of the row of an item in an index, without what they look like."""
    row = next((line for line in page.splitlines() if f'href="{name}.html"' in line), "")
    return re.sub("<[^>]*>", " ", row)


def write_index(answers: Sequence[Reproduction], folder: Path) -> Path:
    """Write ``index.html``: every item with its source, how many of its claims are the same, and a
    link to its page.

    Parameters
    ----------
    found
        What was measured, written into the same folder.
    folder
        Where the pages are.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    check_folder(folder, ["index.html"])
    _write(folder, {"index.html": html.render(summary_page(answers))})
    return folder / "index.html"
