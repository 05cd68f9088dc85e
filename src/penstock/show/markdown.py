"""Any page as Markdown, to be put into a document: what a terminal shows of it, tables as
tables.
"""

from collections.abc import Iterator, Sequence

from penstock.show.page import Page, Section


def markdown(page: Page) -> str:
    """Return a page as Markdown."""
    parts = [f"**{page.title}** {page.heading}".rstrip()]
    parts += (
        ["\n".join(f"- **{line.label}** {line.text}" for line in page.head)] if page.head else []
    )
    for verdict in page.verdicts:
        said = " ".join(filter(None, (f"**{verdict.word}**", verdict.about, verdict.source)))
        parts.append(f"- {said}: {verdict.reason}")
    for section in page.sections:
        parts += _section(section)
    notes = [*page.notes, *(note for section in page.sections for note in section.notes)]
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)])


def _section(section: Section) -> Iterator[str]:
    tables = [table for table in section.tables if not table.detail]
    if section.paragraphs or section.facts or section.hypotheses or section.commands or tables:
        yield f"### {section.title}"
    yield from section.paragraphs
    yield from (f"- {fact.name}: {fact.figure}, {fact.explanation}" for fact in section.facts)
    yield from (f"- {each.state}: {each.name}, {each.why}" for each in section.hypotheses)
    yield from (f"```sh\n{command}\n```" for command in section.commands)
    for table in tables:
        yield "\n".join(
            [
                _row(table.columns),
                _row(["---" if words else "---:" for words in table.of_words]),
                *map(_row, table.rows),
            ]
        )
        if table.caption:
            yield table.caption


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("\n", " ")
