"""A calibration as a page: how far off its predictions are, the server found, and every row."""

from collections.abc import Mapping
from typing import Any

from penstock.measuring.calibration.calibration import LESS, METRICS, Calibration
from penstock.measuring.calibration.figures import calibration_figures
from penstock.measuring.calibration.judge import MISSED
from penstock.measuring.calibration.quantities import PARAMETERS, SHOWN, quantity
from penstock.show.answers import page_of
from penstock.show.page import MOST_LINES, Fact, Line, Page, Section, Table
from penstock.words import counted, sentence, share

_HEADS = {
    "ttft": "TTFT",
    "itl": "ITL",
    "e2e": "E2E",
    "requests_per_s": "Requests/s",
    "ttft_p99": "p99 TTFT",
    "e2e_p99": "p99 E2E",
}
_IN_HEAD = {"ttft": "first token", "itl": "per token", "e2e": "whole call"}

_MOST_MISSED = 8  # rows that are named in full


@page_of.register
def calibration_page(answer: Calibration, names: str = "") -> Page:
    """Show a calibration: errors first."""
    sections = [
        Section("Parameters", facts=_parameters(answer), why=True),
        Section(
            "Errors",
            ["Means of |predicted / measured - 1|."],
            tables=[_errors(answer)],
            notes=answer.notes,
            why=True,
        ),
        Section("Predicted and measured", figures=lambda: calibration_figures(answer)),
        Section(
            "Every row",
            ["Measured, predicted by the model, and how far off."],
            tables=[_rows(answer)],
        ),
    ]
    if answer.missed:
        sections.insert(0, _missed(answer))
    return Page(
        title=f"Calibration on {names}" if names else "Calibration",
        notes=answer.warnings[bool(answer.missed) :],
        sections=sections,
        head=_head(answer, names or "calibration"),
        why="what it found of the server, and what to mind",
        rest="every row",
    )


def _head(answer: Calibration, name: str) -> list[Line]:
    """Say how far off it is, on which rows, and what the rows do not tell."""
    shapes = counted(answer.rows["shape"].n_unique(), "shape")
    lines = [Line(name, f"{counted(answer.rows.height, 'load')} of {shapes}; {_server(answer)}")]
    if answer.missed:
        worst = f"{answer.warnings[0]}; the worst: {answer.missed[0]}"
        lines.append(Line("missed", sentence(worst), judges=True))
    errors = sentence(_off(answer))
    if answer.missed:
        lines.append(Line("Errors", errors))
    else:
        lines.append(Line(answer.word, errors, judges=True))
    mind = [*answer.untrusted, *([answer.limit_warning] if answer.limit_warning else [])]
    if answer.unidentified:
        of = f"{len(answer.unidentified)} of {counted(len(answer.values), 'cost')}"
        mind.append(f"the rows say little about {of}, which are assumed within ranges (--why)")
    if answer.memory_short:
        mind.append("KV memory cannot be seen in these rows; give kv_tokens, which the engine logs")
    room = MOST_LINES - len(lines)
    return [*lines, *(Line("Mind", sentence(text)) for text in mind[:room])]


def _off(answer: Calibration) -> str:
    """Say how far off the rows are that say most of other loads."""
    which = f"{counted(answer.rows.height, 'row')}, used to fit"
    if judged := answer.rows.height - answer.fitted:
        were = "was" if judged == 1 else "were"
        which = f"{counted(judged, 'row')} that {were} not used to fit, of {answer.rows.height:,}"
    errors = answer.errors(False if judged else None)
    means = ", ".join(
        f"{label} {error:.1%}"
        for metric, label in _IN_HEAD.items()
        if (error := errors[metric]) is not None
    )
    return f"mean relative errors over {which}: {means}"


def _missed(answer: Calibration) -> Section:
    """Name the worst of the rows that are missed."""
    paragraphs = [f"{words}." for words in answer.missed[:_MOST_MISSED]]
    more = len(answer.missed) - _MOST_MISSED
    if more > 0:
        paragraphs.append(f"And {more:,} more, bold in the table of every row.")
    return Section("Missed", paragraphs, why=True)


def _server(answer: Calibration) -> str:
    """Return the policy and the limits of the server, and which of these were assumed."""
    server = answer.server
    limits = f"{server.policy.name}, {server.limits}"
    if not answer.assumed:
        return limits
    options = " and ".join(f"--{name.replace('_', '-')}" for name in answer.assumed)
    names = " and ".join(name.replace("_", " ") for name in answer.assumed)
    return f"{limits}; {names} assumed, give {options}"


def _parameters(answer: Calibration) -> list[Fact]:
    """Return what was fitted with its unit and meaning, then what was not, and why."""
    facts = [
        Fact(name, quantity(name, answer.values[name]), _meaning(answer, name))
        for name in PARAMETERS
        if name in answer.values
    ]
    own = sorted(values.get("overhead", 0.0) * 1e3 for values in answer.values_of.values())
    if len(set(own)) > 1:
        middle = f"median {own[len(own) // 2]:.3g} ms"
        facts.append(Fact("overhead, by run", f"{own[0]:.3g} to {own[-1]:.3g} ms", middle))
    return facts + [Fact(name, "not fitted", reason) for name, reason in answer.held.items()]


def _meaning(answer: Calibration, name: str) -> str:
    """Return what a parameter is the cost of, with its interval if rows do not identify it."""
    *_, meaning = PARAMETERS[name]
    if name not in answer.unidentified:
        return meaning
    return f"{meaning}; assumed within {answer.interval(name)}"


def _errors(answer: Calibration) -> Table:
    """Lay out each metric's mean relative error by rows; then those of the common server."""
    parts = [("used to fit", True, False), ("not used", False, False), ("all", None, False)]
    caption = "One server for all rows."
    if answer.adjusted:
        parts += [("not used, one server", False, True), ("all, one server", None, True)]
        own = "an overhead of its own" if answer.per_run == "overhead" else "its own parameters"
        caption = (
            f'Each run has {own}, adjusted to its fitted rows; "one server" is the common one, '
            "which a batch-time file "
            "holds."
        )
    counts = {
        True: answer.fitted,
        False: answer.rows.height - answer.fitted,
        None: answer.rows.height,
    }
    rows = [
        (
            name,
            f"{counts[which]:,}",
            *(share(error, 1) for error in answer.errors(which, common=common).values()),
        )
        for name, which, common in parts
        if counts[which]
    ]
    return Table(("Rows", "Number", *(_HEADS[metric] for metric in METRICS)), rows, caption)


def _rows(answer: Calibration) -> Table:
    """Lay out what was measured, what was predicted, and by how much it is off."""
    heads = [
        f"{_HEADS[metric]}\n{part}"
        for metric, (unit, _) in SHOWN.items()
        for part in (unit, "model", "off")
    ]
    by_load = answer.rows.sort("shape", "requests_per_s_measured", maintain_order=True)
    rows = [
        (
            str(row["row"]), f"{'*' if row['fitted'] else ' '}{row['shape']}", row["load"],
            *_times(row), _carried(row),
        )
        for row in by_load.iter_rows(named=True)
    ]  # fmt: skip
    strong = by_load["missed"].arg_true().to_list()
    spare = [heads[8], heads[6], heads[7], heads[1], heads[4]]
    if by_load["e2e_measured"].count() and not by_load["ttft_measured"].count():
        spare = [head for head in heads if not head.startswith("E2E")]  # nothing was streamed
    return Table(
        ("Row", " Shape", "Load", *heads, "Carries/s"),
        rows,
        _caption(answer),
        spare=spare,
        strong=strong,
    )


def _times(row: Mapping[str, Any]) -> list[str]:
    """Return what was measured, what was predicted, and the error, of each metric."""
    cells = []
    for metric, (_, per) in SHOWN.items():
        values = (row[f"{metric}_measured"], row[f"{metric}_predicted"])
        cells += ["-" if value is None else f"{value * per:,.4g}" for value in values]
        error = row[f"{metric}_error"]
        cells.append("-" if error is None else f"{round(error, 2) + 0.0:+.0%}")
    return cells


def _carried(row: Mapping[str, Any]) -> str:
    """Return what the server carries of a shape: a range, where unseen memory may matter."""
    least = f"{row['limit_at_least_per_s']:,.3g}-" if _ranges(row) else ""
    return f"{least}{row['limit_per_s']:,.3g}{'!' if row['beyond'] else ''}"


def _ranges(row: Mapping[str, Any]) -> bool:
    return bool(row["limit_at_least_per_s"] < (1 - LESS) * row["limit_per_s"])


def _caption(answer: Calibration) -> str:
    """Say how to read the rows."""
    rows = answer.rows
    carries = (
        "Carries/s: requests of this shape that leave per second while many more wait, simulated"
    )
    if any(_ranges(row) for row in rows.iter_rows(named=True)):
        carries += (
            "; a range: from the KV memory that the rows are known to have used, to memory "
            "without limit"
        )
    if rows["beyond"].any():
        carries += "; !: more arrive than that, so queues grow for as long as they last"
    parts = ["* used to fit. TTFT: median where there is one.", f"{carries}."]
    if answer.missed:
        parts.append(f"Bold: off by more than {MISSED:.0%}.")
    if rows["run"].n_unique() > 1:
        parts.append(_files(answer))
    return " ".join(parts)


def _files(answer: Calibration) -> str:
    """Say which rows each file has."""
    parts = []
    for run, rows in answer.rows.group_by("run", maintain_order=True):
        numbers = rows["row"].to_list()
        which = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        parts.append(f"{which} {run[0]}")
    return f"Files: {', '.join(parts)}."
