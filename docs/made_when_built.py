"""What the site shows that is made when it is built: the gallery, the help of every command,
and the keys of JSON.

MkDocs calls `on_page_markdown`, which puts it in place of ``<!-- gallery -->`` and the other marks.
What the scripts of the paper measure takes minutes, so it is kept: ``python -m paper all --data DIR
--keep``.
"""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keys_of_json
import typer
from typer.main import get_command

from penstock.cli import command_line

DOCS = Path(__file__).parent
KEPT = DOCS / "figures" / "reproduced"
FIGURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*(figures/[\w./-]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what is made in place of the marks."""
    for mark, make in (
        ("gallery", gallery),
        ("figures", figures),
        ("commands", commands),
        ("json", keys_of_json.documents),
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


def helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield commands below one, with their help."""
    for each, inner in command.commands.items():
        full = f"{name} {each}".strip()
        context = typer.Context(inner, info_name=f"penstock {full}", terminal_width=80)
        yield full, inner.get_help(context).strip()
        if hasattr(inner, "commands"):
            yield from helps(inner, full)
