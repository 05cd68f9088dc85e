"""Profiles and twins as words and tables on the terminal, and as Markdown."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from penstock.show.terminal import facts, make_console
from penstock.words import METRICS, seconds

if TYPE_CHECKING:
    from penstock.measuring.fitting.fit import Fit
    from penstock.measuring.twin.experiment import Trial, Twin

Rows = list[tuple[str, ...]]

_DRIFTED = 0.05
"""A machine whose speed moved by more is said to have drifted."""


def say(text: str) -> None:
    """Say how it goes, on standard error."""
    print(text, file=sys.stderr, flush=True)


def print_profile(description: str, machine: Mapping[str, str | int], found: "Fit") -> None:
    """Print what was measured, and the model that fits it."""
    console = make_console()
    console.print(f"[bold]{escape(description)}[/bold]\n{escape(in_words(machine))}\n", highlight=False)
    tokens = found.batches.tokens
    rows = [
        ("Batches", f"{found.n:,}", f"of {tokens.min():,.0f} to {tokens.max():,.0f} tokens"),
        ("Model", escape(found.name), f"R^2 {found.r2:.3f}, {found.outliers.sum():,} outliers left out"),
        (
            "Error",
            f"{found.mean_absolute_error:.1%}",
            f"of a batch on average; of all batches together {found.bias:+.1%}",
        ),
    ]
    for name, (value, low, high) in found.parameters.items():
        if name.startswith("t_"):  # of a table there are too many: they are in the file
            continue
        rows.append((f"  {escape(name)}", f"{value:.4g}", f"{low:.4g} to {high:.4g}"))
    console.print(facts(rows), highlight=False)
    for warning in found.warnings:
        console.print(f"[bold]Note[/bold]  {escape(warning)}", highlight=False)


def in_words(machine: Mapping[str, str | int]) -> str:
    """Return facts about a machine on a line."""
    return ", ".join(f"{name} {value}" if name != "processor" else str(value) for name, value in machine.items())


def print_twin(found: "Twin") -> None:
    """Print measured beside simulated."""
    console = make_console()
    console.print(f"\n[bold]{escape(found.description)}[/bold]\n{escape(in_words(found.facts))}\n", highlight=False)
    for title, header, rows in tables(found):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for column in header:
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()
    for note in notes(found):
        console.print(note, highlight=False)


def as_markdown(found: "Twin") -> str:
    """Return the tables as Markdown."""
    lines = [f"{found.description}; {in_words(found.facts)}.", ""]
    for title, header, rows in tables(found):
        lines += [f"{title}:", "", _line(header), _line(["---:"] * len(header)), *map(_line, rows), ""]
    return "\n".join(lines + [f"- {note}" for note in notes(found)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables(found: "Twin") -> list[tuple[str, tuple[str, ...], Rows]]:
    """Return title, header and rows of each table: the runs, their latency, and drift where they had a backlog."""
    runs: Rows = []
    latency: Rows = []
    for trial in found.trials:
        start = (f"{trial.prediction.rho:g}", f"{trial.seed}")
        run, rate = trial.measured, f"{trial.prediction.rate:.3g}"
        per_batch = f"{run.tokens / run.n_batches:.1f}"
        counts = (f"{run.arrived:,}", f"{run.n_batches:,}", per_batch)
        runs.append((*start, rate, trial.prediction.theory, *counts, f"{trial.batch_error:+.1%}"))
        for metric in METRICS:
            cells = []
            for statistic in ("mean", "p99"):
                measured, simulated = trial.latency(metric, statistic)
                cells += [seconds(measured), seconds(simulated), f"{trial.error(metric, statistic):+.1%}"]
            latency.append((*start, metric[:-2].upper(), *cells))
    drifts: Rows = [row for trial in found.trials if (row := _drift_row(trial))]
    of_runs = ("rho", "Seed", "Requests/s", "Theory", "Requests", "Batches", "Tokens each", "Model")
    of_latency = ("rho", "Seed", "", "Mean", "Sim.", "Error", "p99", "Sim.", "Error")
    of_drift = ("rho", "Seed", "Backlog", "Predicted", "Measured", "Offered", "Carried", "95%", "Sim.")
    found_tables = [("Runs", of_runs, runs), ("Latency (s), measured and simulated", of_latency, latency)]
    if drifts:
        found_tables.append(("Under a backlog, tokens/s", of_drift, drifts))
    return found_tables


def _drift_row(trial: "Trial") -> tuple[str, ...] | None:
    if not trial.backlog:
        return None
    start = (f"{trial.prediction.rho:g}", f"{trial.seed}", f"{trial.backlog:,}", trial.prediction.direction)
    drift, other = trial.drift, trial.simulated_drift
    if drift is None:
        return (*start, "drains at once", "", "", "", "")
    simulated = "" if other is None else f"{other.carried:,.0f}"
    interval = f"±{drift.carried - drift.low:,.0f}"
    return (*start, drift.direction, f"{drift.offered:,.0f}", f"{drift.carried:,.0f}", interval, simulated)


def notes(found: "Twin") -> list[str]:
    """Say what the numbers rest on."""
    said = [
        "Theory: the certificate. Sim.: the same requests, with batch times measured before. Model: its time for the "
        "very batches of the run, over theirs."
    ]
    for rho in dict.fromkeys(found.settings.loads):
        errors = [trial.error("e2e_s") for trial in found.at(rho)]
        mean = sum(errors) / len(errors)
        spread = f", {min(errors):+.1%} to {max(errors):+.1%}" if len(errors) > 1 else ""
        said.append(f"rho {rho:g}: mean E2E predicted {mean:+.1%} off{spread}")
    worst = max((trial.batch_error for trial in found.trials), key=abs)
    if abs(worst) > _DRIFTED:
        said.append(
            f"The batch times themselves were off by up to {worst:+.1%}, which queues multiply: do not read those "
            "latencies as errors of the queueing; measure for longer (--calibrate), on a quieter machine"
        )
    for number, calibration in enumerate(found.calibrations):
        if calibration.fit is not None:
            fit = calibration.fit
            said.append(
                f"Calibration {number + 1}: {fit.n:,} batches, {fit.name}, mean absolute error "
                f"{fit.mean_absolute_error:.1%}"
            )
    if found.pace:
        low, middle, high = found.pace
        said.append(
            f"All times go by the paced clock: its second took {middle:.2f} real seconds in the median, {low:.2f} to "
            f"{high:.2f} nine times of ten"
        )
    change = found.speed - 1
    more = f"{abs(change):.1%} {'more' if change > 0 else 'less'} time"
    moved = ": the machine drifted" if abs(change) > _DRIFTED else ""
    said.append(f"The same batches took {more} after the last run than before the first{moved}")
    return said
