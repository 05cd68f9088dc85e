"""What the site shows that is made when it is built: the gallery, and the help of every command.

MkDocs calls `on_page_markdown`, which puts it in place of ``<!-- gallery -->``, ``<!-- figures
-->`` and ``<!-- commands -->``. The figures and claims of `penstock reproduce` take minutes, so
they are kept: ``python docs/made_when_built.py [--data DIR] [NAME ...]`` measures all items again,
or those named, into ``docs/figures/reproduced``.
"""

import argparse
import html
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import vl_convert
from typer.main import get_command

from penstock.cli import command_line
from penstock.reproducing.catalogue import ITEMS, reproduce
from penstock.reproducing.item import Item
from penstock.reproducing.write import write
from penstock.show import charts

DOCS = Path(__file__).parent
KEPT = DOCS / "figures" / "reproduced"
CLAIMS = KEPT / "claims.json"
SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 [\d.]+ [\d.]+"')
MARGIN = 24
FIGURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)*(figures/[\w./-]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what is made in place of the marks."""
    for mark, make in (("gallery", gallery), ("figures", figures), ("commands", commands)):
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", make())
    return markdown


def gallery() -> str:
    """Return a section for each item that can be reproduced: its figures, and published against
    measured.
    """
    kept = json.loads(CLAIMS.read_text()) if CLAIMS.exists() else {}
    return "\n\n".join(section(item, kept.get(item.name)) for item in ITEMS)


def section(item: Item, found: dict[str, Any] | None) -> str:
    """Return one item of the gallery; without figure or claims where it was not measured yet."""
    lines = [
        f"### {item.title} {{ #{item.name} }}",
        "",
        f"{item.source}. `penstock reproduce {item.name}`",
        "",
    ]
    if found is None:
        return "\n".join([*lines, "Not measured yet."])
    described = found["figures"]
    for file in sorted(described):
        if (KEPT / file).exists():
            lines += [picture(file, described[file]), ""]
    if found["caption"]:
        lines += [found["caption"], ""]
    if found["claims"]:
        lines += [
            '<div class="claims" markdown>',
            "",
            "| claim | published or known | measured | verdict | why |",
            "|---|---|---|---|---|",
        ]
        for claim in found["claims"]:
            cells = (
                claim["what"],
                claim["published"],
                claim["measured"],
                claim["verdict"],
                claim["why"],
            )
            lines.append("| " + " | ".join(bare(cell) for cell in cells) + " |")
        lines += ["", "</div>"]
    return "\n".join(
        [*lines, "", *(f"Note: {bare(each).rstrip('.')}.\n" for each in found["assumed"])]
    )


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
    for path in pages():
        title = re.search(r"^# (.+)$", path.read_text(), re.MULTILINE)
        for described, file in FIGURE.findall(path.read_text()):
            if file in shown:
                continue
            shown.add(file)
            text = " ".join(described.split())
            lines += [
                f"![{text}]({file})",
                "",
                f"{text} From [{title[1] if title else path.stem}]({where(path)}).",
                "",
            ]
    return "\n".join(lines)


def pages() -> Iterator[Path]:
    """Yield the files of the pages."""
    yield from sorted(DOCS.rglob("*.md"))


def where(path: Path) -> str:
    """Return a page as a link from the folder of the pages."""
    return path.relative_to(DOCS).as_posix()


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


def with_margin(svg: str) -> str:
    """Return a figure with room at its sides, for labels that are wider where a reader has other
    fonts.
    """
    width, height = (float(number) for number in SIZE.search(svg).groups())  # type: ignore[union-attr]
    wide = (
        f'width="{width + 2 * MARGIN:g}" height="{height:g}" viewBox="{-MARGIN} 0 '
        f'{width + 2 * MARGIN:g} {height:g}"'
    )
    return SIZE.sub(wide, svg, count=1)


def measure(names: list[str], data: Path | None) -> None:
    """Measure items again, with recorded traces and profiles from a folder, and keep their figures
    and claims.
    """
    kept = json.loads(CLAIMS.read_text()) if CLAIMS.exists() else {}
    for item in ITEMS:
        if names and item.name not in names:
            continue
        found = reproduce(item.name, data=data)
        numbered = len(found.charts) > 1
        described = {}
        with tempfile.TemporaryDirectory() as folder:
            write(found, Path(folder))
            for place, (text, chart) in enumerate(found.charts.items(), start=1):
                name = f"{item.name}-{place}.svg" if numbered else f"{item.name}.svg"
                KEPT.mkdir(parents=True, exist_ok=True)
                (KEPT / name).write_text(with_margin((Path(folder) / name).read_text()))
                described[name] = text
                narrow = KEPT / name.replace(".svg", "-narrow.svg")
                narrow.unlink(missing_ok=True)
                if (below := charts.stacked(chart)) is not chart:
                    narrow.write_text(with_margin(vl_convert.vegalite_to_svg(below.to_dict())))
        claims = found.as_dict()["claims"]
        kept[item.name] = {
            "figures": described,
            "caption": found.caption,
            "claims": claims,
            "assumed": list(found.assumed),
        }
        print(f"{item.name}: {len(described)} figures, {len(claims)} claims")
    in_order = {item.name: kept[item.name] for item in ITEMS if item.name in kept}
    CLAIMS.write_text(json.dumps(in_order, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*")
    options.add_argument("--data", type=Path)
    given = options.parse_args()
    measure(given.names, given.data)
