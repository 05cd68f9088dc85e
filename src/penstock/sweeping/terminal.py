"""Sweeps on the terminal: how far they are, and a table of their points."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from penstock.errors import InputError, nearest
from penstock.show.terminal import make_console
from penstock.sweeping.tasks import FACTS, LATENCIES
from penstock.words import digits

MOST_ROWS = 20
"""Points that are shown; the table in the file has all."""

SAYS_EVERY_S = 30.0
"""Where standard error is no terminal, so that a log shows that a long sweep lives."""

_SHOWN = {  # column: its head, and how a value is written
    "verdict": ("Verdict", str),
    "rho": ("rho", "{:.3f}".format),
    "throughput": ("req/s", "{:.4g}".format),
    "ttft_p50_s": ("TTFT p50", digits),
    "ttft_p99_s": ("TTFT p99", digits),
    "tbt_p99_s": ("TBT p99", digits),
    "e2e_p50_s": ("E2E p50", digits),
    "e2e_p99_s": ("E2E p99", digits),
}
_WHERE_NARROW = ("verdict", "rho", "ttft_p50_s", "tbt_p99_s", "e2e_p50_s")
_NARROW = 100  # columns
_USUAL_ORDER = "e2e_p50_s"
_RISING_IS_BETTER = ("throughput", "tokens_per_s", "utilisation", "max_rate")


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how many points are done, and on a terminal how fast, and the time left."""
    console = make_console(stderr=True)
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    task = shown.add_task(title, total=None, speed="")
    begun: int | None = None
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(SAYS_EVERY_S):
            now = shown.tasks[0]
            if now.total is not None:
                print(f"{title}: {now.completed:,.0f} of {now.total:,.0f} points done", file=sys.stderr, flush=True)

    def report(done: int, total: int) -> None:
        nonlocal begun
        begun = done if begun is None else begun
        elapsed = shown.tasks[0].elapsed or 0.0
        speed = f"{(done - begun) / elapsed:,.3g} points/s" if done > begun and elapsed else ""
        shown.update(task, completed=done, total=total, speed=speed)

    if not console.is_terminal:
        threading.Thread(target=say, daemon=True).start()
    try:
        with shown:
            yield report
    finally:
        ended.set()


def checked_sort(column: str | None) -> None:
    """Refuse to order by what is no measured column, before the work starts."""
    known = [*FACTS, *LATENCIES]
    if column is not None and column not in known:
        raise InputError(f"--sort {column!r} is no column of a sweep{nearest(column, known)}")


def print_sweep(name: str, found: pl.DataFrame, order: str | None = None) -> None:
    """Print the points: in the order of the grid if they are few, else the best of them, the stable ones first."""
    console = make_console()
    fields = found.columns[1 : found.columns.index("seed")]
    good, bad = found.filter(found["error"].is_null()), found.filter(found["error"].is_not_null())
    repeated = found["seed"].n_unique() > 1
    console.print(f"[bold]{escape(name)}[/bold]: {_sizes(found, fields, repeated)}\n", highlight=False, soft_wrap=True)
    if good.height:
        shown = good if good.height <= MOST_ROWS and order is None else _best(good, order or _USUAL_ORDER)
        console.print(_table(shown.head(MOST_ROWS), [*fields, *(["seed"] if repeated else [])], console.width))
        if shown.height > MOST_ROWS:
            by = order or _USUAL_ORDER
            console.print(f"the best {MOST_ROWS} of {good.height:,} by {by}, stable ones first", highlight=False)
        if (good["verdict"] != "stable").any():
            console.print(
                "[bold]Note[/bold]  where the verdict is not stable, latencies grow with the length of the run",
                highlight=False,
            )
    for row in bad.head(3).iter_rows(named=True):
        point = ", ".join(f"{field}={row[field]}" for field in fields)
        console.print(f"[bold]Bad[/bold]   {escape(point)}: {escape(row['error'])}", highlight=False, soft_wrap=True)
    if bad.height > 3:
        console.print(f"... and {bad.height - 3:,} more bad points; see the column `error`", highlight=False)


def _sizes(found: pl.DataFrame, fields: list[str], repeated: bool) -> str:
    varied = ", ".join(f"{escape(field)} ({found[field].n_unique():,})" for field in fields)
    points = f"{found.height:,} point" + ("s" if found.height != 1 else "")
    seeds = f", {found['seed'].n_unique():,} seeds" if repeated else ""
    return f"{points}; varied {varied}{seeds}; latencies in seconds"


def _best(good: pl.DataFrame, column: str) -> pl.DataFrame:
    stable = (pl.col("verdict") == "stable").alias("_stable")
    falling = [True, column in _RISING_IS_BETTER, False]
    return (
        good.with_columns(stable).sort("_stable", column, "point", descending=falling, nulls_last=True).drop("_stable")
    )


def _table(shown: pl.DataFrame, fields: list[str], width: int) -> Table:
    """Return the points as a table; a narrow terminal gets fewer columns."""
    columns = [name for name in _SHOWN if width >= _NARROW or name in _WHERE_NARROW]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field in fields:
        short = field.rsplit(".", 1)[-1]
        unique = sum(other.rsplit(".", 1)[-1] == short for other in fields) == 1
        table.add_column(escape(short if unique else field), overflow="fold", justify="right")
    for name in columns:
        table.add_column(_SHOWN[name][0], justify="left" if name == "verdict" else "right", no_wrap=True)
    for row in shown.iter_rows(named=True):
        facts = (_cell(_SHOWN[name][1], row[name]) for name in columns)
        table.add_row(*(escape(_value(row[field])) for field in fields), *facts)
    return table


def _cell(write: Any, value: Any) -> str:
    return "-" if value is None else str(write(value))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "none" if value is None else str(value)
