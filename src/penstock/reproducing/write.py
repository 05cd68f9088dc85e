"""A reproduction as files: a page that stands alone, its figures, its table, and the scenario to change."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock import checks
from penstock.errors import InputError
from penstock.reproducing.catalogue import item
from penstock.reproducing.claims import Reproduction
from penstock.show import charts, page
from penstock.show.page import Figure, Section, Table, Verdict
from penstock.words import counted

_MOST_ROWS = 40


def write(found: Reproduction, folder: Path, scenario: Path | None = None) -> list[Path]:
    """Write ``NAME.html``, ``NAME.svg`` and ``.png`` (numbered if several), ``NAME.csv`` and ``NAME.yaml``.

    A scenario that lies there already, changed by its reader, is left as it is.

    Parameters
    ----------
    found
        What was measured.
    folder
        Made if it is not there.
    scenario
        The file it was made from, if it is not the item's own; it is not copied, since its paths begin where it lies.

    Raises
    ------
    InputError
        If the folder cannot be written to.
    """
    names = [f"{found.name}-{index}" for index in range(1, len(found.charts) + 1)]
    if len(names) == 1:
        names = [found.name]
    table, again, web = (folder / f"{found.name}.{kind}" for kind in ("csv", "yaml", "html"))
    check_folder(folder, [f"{name}.{kind}" for name in names for kind in ("svg", "png")])
    check_folder(folder, files_of(found.name, scenario))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = charts.save(dict(zip(names, found.charts.values(), strict=True)), folder)
        charts.write_whole(table, found.rows.write_csv().encode())
        if scenario is None and not again.exists():
            charts.write_whole(again, item(found.name).text.encode())
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}; give another --out") from None
    page.write(web, title=found.title, heading=found.source, verdicts=[_verdict(found)], sections=_sections(found))
    return [web, *files, table, *([again] if scenario is None else [])]


def files_of(name: str, scenario: Path | None = None) -> list[str]:
    """Return the names of an item's files that are known before it is measured: all but its numbered figures."""
    return [f"{name}.{kind}" for kind in ("html", "csv", *(["yaml"] if scenario is None else []))]


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
                f"cannot write {checks.shown(str(path))}: {error.strerror}; give another folder to --out"
            ) from None
        if in_the_way:
            raise InputError(
                f"cannot write {path}: something of that name is there and is no file; move it, or give another folder "
                "to --out"
            )


def left(name: str, folder: Path) -> Path | None:
    """Return the scenario that lies beside the results of an item's own, if its reader changed it."""
    path = folder / f"{name}.yaml"
    return None if path.read_bytes() == item(name).text.encode() else path


def index_is_old(found: Reproduction, folder: Path) -> bool:
    """Return whether the folder has an ``index.html`` that says something else of the item."""
    path = folder / "index.html"
    if not path.is_file():
        return False
    shown = path.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = page.rendered("reproduced.html.j2", found=[found], total=total([found])).splitlines()
    return any(f'href="{found.name}.html"' in line and line not in shown for line in lines)


def write_index(found: Sequence[Reproduction], folder: Path) -> Path:
    """Write ``index.html``: every item with its source, how many of its claims are the same, and a link to its page.

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
    path = folder / "index.html"
    text = page.rendered("reproduced.html.j2", found=found, total=total(found))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        charts.write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror or error}; give another --out") from None
    return path


def total(found: Sequence[Reproduction]) -> str:
    """Return in one line how many items and claims are the same.

    >>> total([])
    '0 items: 0 same, 0 differ. 0 claims: 0 same, 0 differ.'
    """
    claims = [claim for one in found for claim in one.claims]
    items = counted(len(found), "item") + _parted([one.verdict for one in found])
    reason = ", each with its reason" if any(one.differing for one in found) else ""
    return f"{items}. {counted(len(claims), 'claim')}{_parted([claim.verdict for claim in claims])}{reason}."


def _parted(verdicts: list[str]) -> str:
    changed = verdicts.count("changed")
    last = f", {changed:,} changed" if changed else ""
    return f": {verdicts.count('same'):,} same, {verdicts.count('differs'):,} differ{last}"


def _verdict(found: Reproduction) -> Verdict:
    bad = len(found.differing)
    if found.changed:
        return Verdict("changed", "measured with a scenario of your own: nothing is judged", "measured here")
    if not bad:
        return Verdict("same", f"{counted(len(found.claims), 'claim')}, all as published or proved", "measured here")
    words = f"{bad:,} of {counted(len(found.claims), 'claim')} differ, each with its reason below"
    return Verdict("differs", words, "measured here")


def _sections(found: Reproduction) -> list[Section]:
    claims = [(c.what, c.published, c.measured, c.verdict, c.why) for c in found.claims]
    columns = ("Claim", "Published or known", "Measured", "Verdict", "Why")
    sections = [Section("Published against measured", tables=[Table(columns, claims, prose=True)], notes=found.assumed)]
    if found.charts:
        shown = _table(found)
        sections.append(
            Section("What was measured", figures=[Figure(found.title, found.charts, [shown], found.caption, wide=True)])
        )
    if found.tables:
        sections.append(Section("In numbers", tables=list(found.tables)))
    return sections


def _table(found: Reproduction) -> Table:
    rows = [tuple(_cell(value) for value in row) for row in found.rows.head(_MOST_ROWS).iter_rows()]
    more = found.rows.height - len(rows)
    caption = f"The first {len(rows)} rows; all {found.rows.height:,} are in {found.name}.csv." if more else ""
    return Table(tuple(name.replace("_", " ") for name in found.rows.columns), rows, caption)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
