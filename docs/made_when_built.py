"""What the site shows that is made when it is built: the gallery, the help of every command,
and the keys of JSON.

MkDocs calls `on_page_markdown`, which puts it in place of ``<!-- gallery -->`` and the other marks.
What the scripts of the paper measure takes minutes, so it is kept: ``python -m paper all --data DIR
--keep``.
"""

import dataclasses
import html
import json
import pydoc
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from penstock.cli import command_line
from penstock.show.answers import meanings

DOCS = Path(__file__).parent
KEPT = DOCS / "figures" / "reproduced"
FIGURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*(figures/[\w./-]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what is made in place of the marks."""
    for mark, make in (
        ("gallery", gallery),
        ("figures", figures),
        ("commands", commands),
        ("json", documents),
    ):
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", make())
    return markdown


def gallery() -> str:
    """Return a section for each item of the paper: its figures, and published against measured."""
    kept = json.loads((KEPT / "claims.json").read_text(encoding="utf-8"))
    return "\n\n".join(section(name, item) for name, item in kept.items())


def section(name: str, item: dict[str, Any]) -> str:
    """Return one item of the gallery."""
    lines = [
        f"### {item['title']} {{ #{name} }}",
        "",
        f"{item['source']}. `python -m paper {name}`",
        "",
    ]
    for file, text in item["figures"].items():
        lines += [picture(file, text), ""]
    lines += [
        item["caption"],
        "",
        '<div class="claims" markdown>',
        "",
        "| claim | published or known | measured | verdict | why |",
        "|---|---|---|---|---|",
    ]
    for claim in item["claims"]:
        verdict = "same" if claim["same"] else "differs"
        cells = (claim["what"], claim["published"], claim["measured"], verdict, claim["why"])
        lines.append("| " + " | ".join(map(bare, cells)) + " |")
    notes = [f"Note: {bare(note)}.\n" for note in item["notes"]]
    return "\n".join([*lines, "", "</div>", "", *notes])


def picture(file: str, text: str) -> str:
    """Return a kept figure, and the one for a phone if it has one; links begin at the page, not at
    its source.
    """
    narrow = file.replace(".svg", "-narrow.svg")
    if not (KEPT / narrow).exists():
        return f"![{bare(text)}](figures/reproduced/{file})"
    return (
        f'<picture><source media="(max-width: 45em)" srcset="../figures/reproduced/{narrow}">'
        f'<img alt="{html.escape(text)}" src="../figures/reproduced/{file}" '
        'loading="lazy"></picture>'
    )


def bare(text: str) -> str:
    """Return text that Markdown takes as it is, in a table too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\*_{}\[\]|#])", r"\\\1", " ".join(text.split()))


def figures() -> str:
    """Return every figure of the other pages, with what it shows and the page that explains it."""
    lines, shown = [], set()
    for path in sorted(DOCS.rglob("*.md")):
        title = re.search(r"^# (.+)$", path.read_text(), re.MULTILINE)
        page = path.relative_to(DOCS).as_posix()
        for described, file in FIGURE.findall(path.read_text()):
            if file in shown:
                continue
            shown.add(file)
            text = " ".join(described.split())
            lines += [
                f"![{text}]({file})",
                "",
                f"{text} From [{title[1] if title else path.stem}]({page}).",
                "",
            ]
    return "\n".join(lines)


def commands() -> str:
    """Return the help of every command."""
    return "\n\n".join(
        f"## penstock {name}\n\n```text\n{text}\n```"
        for name, text in helps(get_command(command_line()), "")
    )


ANSWERS: dict[str, tuple[str, ...]] = {
    "region": (
        "penstock.theory.operating_point.OperatingPoint", "penstock.capacity.region.LoadInRegion",
    ),
    "max-rate": ("penstock.capacity.side_by_side.MaxRates",),
    "recommend": ("penstock.capacity.recommendation.Recommendation",),
    "diagnose": ("penstock.measuring.diagnosis.diagnose.Diagnosis",),
    "fit": ("penstock.measuring.fitting.fit.Fit",),
    "calibrate": ("penstock.measuring.calibration.calibration.Calibration",),
    "watch": ("penstock.live.reading.Answer",),
    "plan": (
        "penstock.planning.plan.Plan", "penstock.planning.day.DayPlan",
        "penstock.planning.job.JobPlan", "penstock.planning.launch.Launch",
    ),
}  # fmt: skip
"""By command, the classes of what it answers; those that their fields are made of follow."""


def documents() -> str:
    """Return a table of the keys that JSON has of each class of answers, and what they mean."""
    parts = []
    for command, names in ANSWERS.items():
        parts.append(f"## penstock {command} --json")
        kinds = [pydoc.locate(name) for name in names]
        for kind in kinds:  # which grows
            keys = keys_of(kind)
            rows = [f"| `{key}` | {in_cell(text)} |" for key, (text, _) in keys.items()]
            parts.append("\n".join([f"`{kind.__name__}`", "", "| key | |", "|---|---|", *rows]))
            inner = (one for _, field in keys.values() for one in classes_in(field))
            kinds += [one for one in dict.fromkeys(inner) if one not in kinds]
    return "\n\n".join(parts)


def in_cell(text: str) -> str:
    """Return the text of a docstring as a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("``", "`")


def keys_of(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return the keys of an answer in JSON: what each means, and the type of its value."""
    return {
        meaning.key or name: (meaning.text, None if meaning.data else type_of(kind, name))
        for name, meaning in meanings(kind).items()
        if meaning.key is not None
    }


def type_of(kind: Any, name: str) -> Any:
    """Return the type of a field, or of what is computed."""
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    return fields.get(name) or getattr(kind, name).fget.__annotations__["return"]


def classes_in(kind: Any) -> list[Any]:
    """Return the classes with meanings that a type is made of."""
    inner = [one for part in typing.get_args(kind) for one in classes_in(part)]
    is_answer = isinstance(kind, type) and dataclasses.is_dataclass(kind) and meanings(kind)
    return [kind] if is_answer else inner


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield commands below one, with their help."""
    for each, inner in command.commands.items():
        full = f"{name} {each}".strip()
        context = typer.Context(inner, info_name=f"penstock {full}", terminal_width=80)
        yield full, inner.get_help(context).strip()
        if hasattr(inner, "commands"):
            yield from helps(inner, full)
