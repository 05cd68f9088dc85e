"""What the commands of the command line share: their options, exit statuses, and what they write."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError

EXIT_ANSWER_IS_NO = 1
EXIT_BAD_INPUT = 2

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A YAML file: workload, server, simulate.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed, instead of the scenario's.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Figures = Annotated[Path | None, typer.Option("--figures", metavar="DIR", help="Write figures as SVG and PNG.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with status 1 if it is not known to be stable, or a target to be met.")
]
Resolution = Annotated[float, typer.Option("--resolution", help="Share of the load that the test must tell from none.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write a page that stands alone (HTML).")]

Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write a batch-time file (YAML), which scenarios read.")
]
Description = Annotated[
    str, typer.Option("--description", help="Model, accelerator, parallelism: what the batch-time file says.")
]


MaxGib = Annotated[
    float | None,
    typer.Option(
        "--max-gib",
        help="What a file may hold, unpacked, in GiB (default 2): all of it must fit into memory.",
    ),
]


def check_outputs(scenario: Path, figures: Path | None, report: Path | None) -> None:
    """Refuse what cannot be written before the work, not after."""
    if figures is not None:
        checks.writable("--figures", figures, folder=True)
    if report is not None:
        checks.writable("--report", report)
        if report.exists() and scenario.exists() and report.samefile(scenario):
            raise InputError(f"--report {report} is the scenario itself, which would be lost; give another file")


def check_fit_outputs(inputs: list[Path], output: Path | None, figures: Path | None, report: Path | None) -> None:
    """Refuse what cannot be written, or would overwrite an input or another output."""
    for path in inputs:
        check_outputs(path, figures, report)
        if output is not None and output.exists() and path.exists() and output.samefile(path):
            raise InputError(f"--output {output} is what is read, which would be lost; give another file")
    if output is not None:
        checks.writable("--output", output)
        if report is not None and output.resolve() == report.resolve():
            raise InputError(f"--output and --report are both {output}, so one would be lost; give two files")


def save_figures(drawings: dict[str, Any], folder: Path, as_json: bool) -> None:
    """Write figures, and say so where words are printed."""
    from penstock.show import charts

    say_written("Figures", charts.save(drawings, folder), as_json)


def say_written(what: str, paths: list[Path], as_json: bool) -> None:
    """Say on standard error which files were written, unless JSON is asked for."""
    if not as_json:
        print(f"{what}: {', '.join(map(str, paths))}", file=sys.stderr)


def print_json(document: dict[str, Any]) -> None:
    """Print a document on standard output."""
    print(json.dumps(document, indent=2, allow_nan=False))
