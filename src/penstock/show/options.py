"""The form in which a command answers, its exit statuses, and what it writes."""

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock import checks
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.show.page import Depth, Line, Page

EXIT_ANSWER_IS_NO = 1
EXIT_BAD_INPUT = 2

# endings of what is read from a folder; a report in it may be written again
_DATA = (".json", ".csv", ".jsonl", ".parquet", ".gz")

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?\s*")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


@dataclasses.dataclass
class Form:
    """The form in which an answer is asked for."""

    as_json: bool = False
    figures: Path | None = None  # the folder
    report: Path | None = None
    strict: bool = False
    why: bool = False
    everything: bool = False
    begun: int = 0  # lines of the head that are printed

    def check(
        self, inputs: Iterable[Path], outputs: Mapping[str, Path | None] | None = None
    ) -> None:
        """Refuse before the work what could not be written or would be lost; outputs by option."""
        if self.figures is not None:
            checks.writable("--figures", self.figures, folder=True)
        given = {"--report": self.report, **(outputs or {})}
        written = {option: path for option, path in given.items() if path is not None}
        if not written:
            return  # without looking into the inputs
        read = [path for path in inputs if os.path.exists(path)]
        others: dict[str, Path] = {}
        for option, output in written.items():
            checks.writable(option, output, makes_folder=option == "--report")
            if any(_overwrites(output, path) for path in read):
                raise InputError(
                    f"{option} {output} is what is read, which would be lost; give another file"
                )
            for other, path in others.items():
                if _overwrites(output, path):
                    raise InputError(
                        f"{other} and {option} are both {output}, so one would be lost; give two "
                        "files"
                    )
            others[option] = output

    def begin(self, lines: "Sequence[Line]") -> None:
        """Print the first lines of a head at once, before what takes long is begun."""
        from penstock.show.terminal import print_head

        print_head(lines)
        sys.stdout.flush()
        self.begun = len(lines)

    def written(self, what: str, paths: Sequence[Path | str]) -> None:
        """Say on standard error which files were written, unless JSON is asked for."""
        if not self.as_json:
            print(f"{what}: {', '.join(map(str, paths))}", file=sys.stderr)

    def show(self, page: "Page", document: dict[str, Any], *, is_no: bool = False) -> None:
        """Print an answer as words or one JSON document, after writing what else is asked for; then
        leave with a status that says so where it is no.
        """
        files = {}
        if self.figures is not None:
            from penstock.show import charts

            files["Figures"] = charts.save_page(page, self.figures)
        if self.report is not None:
            from penstock.show import html

            html.write(self.report, page)
            files["Report"] = [self.report]
        if self.as_json:
            print(json.dumps(document, indent=2, allow_nan=False))
        else:
            from penstock.show.terminal import print_page

            depth: Depth = "why" if self.why else "head"
            if self.everything:
                depth = "all"
            print_page(page, depth=depth, begun=self.begun)
            sys.stdout.flush()
        for what, paths in files.items():
            self.written(what, paths or ["nothing to draw"])
        self.leave(is_no)

    def leave(self, is_no: bool) -> None:
        """Exit with a status that says so where the answer is no, if asked to."""
        if self.strict and is_no:
            raise typer.Exit(EXIT_ANSWER_IS_NO)


def files_of(scenario: Path, *values: str) -> Iterator[Path]:
    """Yield the files a scenario is read from: itself, those named in it or in values beside it."""
    # A batch-time file may name a table. What cannot be read is refused where it is read.
    from penstock.document import files_named, read_document

    yield scenario
    try:
        for path in files_named([read_document(scenario), *values], scenario.parent).values():
            yield path
            if path.suffix in (".yaml", ".yml"):
                yield from files_named(read_document(path), path.parent).values()
    except InputError:
        return


def _overwrites(output: Path, path: Path) -> bool:
    """Return whether writing a file would change another, or a result in a folder."""
    if path.is_dir():
        is_data = output.is_file() and output.suffix in _DATA
        return is_data and path.resolve() in output.resolve().parents
    if output.exists() and path.exists():
        return output.samefile(path)
    return output.resolve() == path.resolve()


def duration(option: str, text: str) -> float:
    """Return seconds from a text such as ``5s``, ``500ms``, ``2min`` or ``5``."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not 0.1 <= seconds <= 86_400:
        raise InputError(
            f"{option} is {checks.shown(text)}, but must be a time from 100ms to 24h, such as 5s"
        )
    return seconds
