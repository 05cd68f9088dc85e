"""The report on a calibration, as a page with figures."""

from pathlib import Path

from penstock.measuring.calibration import figures as plotting_calibrate
from penstock.measuring.calibration.calibrate import METRICS, Calibration
from penstock.measuring.calibration.words import error_rows, errors_said, parameter_rows, server_words
from penstock.show import page
from penstock.show.page import Fact, Figure, Section, Table, Verdict


def report_calibration(path: Path, found: Calibration, names: str) -> None:
    """Write a calibration: errors first, parameters, figures, every row.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    judged = found.errors(False if found.fitted < found.rows.height else None)
    said = ", ".join(
        f"{name.upper()} {error:.1%}" for name, error in judged.items() if error is not None and len(name) < 5
    )
    which = "rows that were not used to fit" if found.fitted < found.rows.height else "rows, all of them used to fit"
    note = " ".join((errors_said(found), *(f"{said}." for said in (*found.warnings, *found.missed, *found.notes))))
    figures = Figure(
        "Predicted and measured",
        {
            "Predicted over measured times of each row": plotting_calibrate.predicted_over_measured(found),
            "Relative errors of each row by its load": plotting_calibrate.errors_by_load(found),
        },
        [],
        "Points on the line are predicted exactly. Errors beyond 50% stand at the edge.",
        wide=True,
    )
    page.write(
        path,
        title=f"Calibration on {names}",
        heading=server_words(found),
        verdicts=[Verdict("calibrated", f"Mean relative errors over the {which}: {said}.", "simulation of every row")],
        sections=[
            Section("Errors", tables=[Table(("Rows", "Number", *METRICS.values()), error_rows(found), note)]),
            Section("Parameters", facts=[Fact(*row) for row in parameter_rows(found)]),
            Section("Predicted and measured", figures=[figures]),
            Section("Every row", tables=[_rows(found)]),
        ],
    )


def _rows(found: Calibration) -> Table:
    several = found.rows["run"].n_unique() > 1
    rows = []
    for row in found.rows.iter_rows(named=True):
        cells = [
            str(row["row"]),
            *([row["run"]] if several else []),
            row["shape"],
            row["load"],
            "yes" if row["fitted"] else "no",
        ]
        for metric, unit, per in (("ttft", "ms", 1e3), ("itl", "ms", 1e3), ("e2e", "s", 1.0)):
            measured, predicted = row[f"{metric}_measured"], row[f"{metric}_predicted"]
            both = [f"{value * per:,.4g}" if value is not None else "-" for value in (measured, predicted)]
            cells.append(f"{' / '.join(both)} {unit}")
        beyond = {None: "-", True: "yes", False: "no"}[row["beyond"]]
        rows.append((*cells, beyond))
    columns = (
        "Row",
        *(["File"] if several else []),
        "Shape",
        "Load",
        "Used to fit",
        "TTFT",
        "ITL",
        "E2E",
        "More than it carries",
    )
    return Table(columns, rows, "Measured / predicted.")
