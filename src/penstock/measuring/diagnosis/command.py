"""The command ``penstock diagnose``: what benchmark results are worth."""

from typing import Annotated

import typer

from penstock.measuring.calibration.command import Format, Results, in_short
from penstock.show.options import EXIT_ANSWER_IS_NO, Form, MaxGib, answers

Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with status 1 if a load is not worth its numbers."),
]


@answers("report")
def diagnose(
    results: Results,
    format: Format = None,
    max_gib: MaxGib = None,
    strict: Strict = False,
    *,
    form: Form,
) -> None:
    """Say what benchmark results are worth: steady or filling, held back by the client, too short;
    what each load shows, and what it does not.
    """
    form.check(results)
    from penstock.measuring.diagnosis.diagnose import diagnose as diagnosed

    answer = diagnosed(results, format, max_gib=max_gib, names=in_short(results))
    form.show(answer.page(), answer.as_dict())
    if strict and not answer.worth:
        raise typer.Exit(EXIT_ANSWER_IS_NO)
