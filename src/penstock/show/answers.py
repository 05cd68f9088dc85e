"""An answer is a dataclass whose fields say what they mean and how they are shown.

``load: Annotated[float, Meaning("Share of what it carries.", LOAD, "Load")]``: JSON, page, notebook
and reference follow from the fields, and from what is `computed` of them. An answer knows no page.
What takes more words than its fields have is the page that a view of the same folder registers with
`page_of`; `page` asks for it.
"""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from penstock.fields import parts_of
from penstock.show.page import Fact, Hypothesis, Page, Section, Table, Verdict
from penstock.words import digits

Of = TypeVar("Of")

UNKNOWN = "?"

_ENTRY = re.compile(r"^(\w+).*\n(?: .*\n?)+", re.MULTILINE)
"""What a docstring lists of an attribute, or of several, by the first of them."""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What a field of an answer means, and how it is shown."""

    text: str  # what the reference says of it
    section: Section | None = None  # of the page; None: it is in JSON alone
    name: str | None = None  # of a fact or a column; None: text is a paragraph, and texts are notes
    words: str | Callable[[Any], str] = ""  # beside the figure, which may depend on the answer
    unit: str = ""  # before the ends of an interval
    format: Callable[[Any], str] = digits
    shows: Callable[[Any], Any] | None = None  # of the answer, what a page has in its place
    unknown: str = ""  # said where it is None, beside a question mark; nothing: it is left out
    # In JSON, where it is not the field's name; None: JSON leaves it out; **: it has those of the
    # value beside its own.
    key: str | None = ""
    of_network: str = ""  # the key in its place where an answer `is_network`
    when: str = ""  # what of the answer is to be true, else JSON leaves it out
    data: Callable[[Any], Any] | None = None  # of the value, what JSON has in its place
    inside: str = ""  # what JSON has there, where the type does not say
    spare: int = 0  # a narrow terminal leaves the column out; that of 1 before that of 2

    def __repr__(self) -> str:
        return repr(self.text)


def computed(
    section: Section | None = None, name: str | None = None, *, kept: bool = False, **look: Any
) -> Callable[[Callable[[Any], Of]], Of]:
    """Make a method a property, or one that is ``kept``, that is shown as a field is; its docstring
    says what it means.
    """

    def made(method: Callable[[Any], Of]) -> Of:
        meant = functools.cached_property(method) if kept else property(method)
        text = inspect.cleandoc(method.__doc__ or "")
        method.meaning = Meaning(text, section, name, **look)  # type: ignore[attr-defined]
        return cast(Of, meant)

    return made


@functools.cache
def meanings(kind: Any) -> dict[str, Meaning]:
    """Return what the fields of an answer mean, then what is computed of them, by name."""
    known = _beside({field.name: field.type for field in dataclasses.fields(kind)})
    for base in kind.__mro__:
        for name, of in vars(base).items():
            if meaning := getattr(method_of(of), "meaning", None):
                known.setdefault(name, meaning)
    return known


def method_of(member: Any) -> Any:
    """Return the method of a property, kept or not; None: it is none."""
    return getattr(member, "fget", None) or getattr(member, "func", None)


def _beside(types: dict[str, Any]) -> dict[str, Meaning]:
    """Return the meanings that stand beside types, by name."""
    parts = ((name, part) for name, kind in types.items() for part in parts_of(kind))
    return {name: part for name, part in parts if isinstance(part, Meaning)}


class AsData:
    """What JSON has as its fields say; its docstring lists what they mean."""

    def __init_subclass__(cls) -> None:
        types = inspect.get_annotations(cls)
        if any(isinstance(kind, str) and "Meaning(" in kind for kind in types.values()):
            raise TypeError(f"the annotations of {cls.__name__} are text, which hides meanings")
        if meant := _beside(types):  # so that `help` says them too, in the order of the fields
            text = inspect.cleandoc(cls.__doc__ or "")
            head, _, listed = f"{text}\n".partition("\nAttributes\n----------\n")
            said = {entry[1]: entry[0] for entry in _ENTRY.finditer(listed)}
            said |= {name: f"{name}\n    {meaning.text}\n" for name, meaning in meant.items()}
            lines = (said.pop(name) for name in types if name in said)
            cls.__doc__ = "".join([head.rstrip(), "\n\nAttributes\n----------\n", *lines]).rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        document: dict[str, Any] = plain_fields(self)
        return document


class Shown(AsData):
    """An answer: as plain data, as a page, and in a notebook."""

    def page(self, *named: Any) -> Page:
        """Return what is known, to be shown; some answers take a scenario or names to be called
        by.
        """
        return page(self, *named)

    def _repr_html_(self) -> str:
        from penstock.show import html

        return html.render(self.page())


def plain(value: Any) -> Any:
    """Return plain data for JSON, with null in place of what is infinite or no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if dataclasses.is_dataclass(value):
        return plain_fields(value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if hasattr(value, "to_dicts"):  # a table
        return plain(value.to_dicts())
    if hasattr(value, "tolist"):  # an array, or a number of one
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(part) for part in value]
    return str(value)


def plain_fields(answer: Any) -> dict[str, Any]:
    """Return as plain data the fields that have a meaning, or all of a class where none has one."""
    meant, fields = meanings(answer.__class__), [of.name for of in dataclasses.fields(answer)]
    if not meant:
        return {name: plain(getattr(answer, name)) for name in fields}
    document: dict[str, Any] = {}
    for name in sorted(meant, key=fields.__contains__):  # a verdict and the like come first
        meaning = meant[name]
        key = meaning.of_network if meaning.of_network and answer.is_network else meaning.key
        if key is None or (meaning.when and not getattr(answer, meaning.when)):
            continue
        value = getattr(answer, name)
        value = plain(meaning.data(value) if meaning.data else value)
        document |= value if key == "**" else {key or name: value}
    return document


def texts(values: Iterable[Any]) -> list[str]:
    """Return things as they are written."""
    return list(map(str, values))


@functools.singledispatch
def page_of(answer: Any, *named: Any) -> Page:
    """Return the page of an answer, by its fields where nobody has registered another."""
    parts = [of.section for of in meanings(answer.__class__).values() if of.section is not None]
    by_title = {section.title: section for section in parts}
    sections = [filled(answer, section) for section in by_title.values()]
    verdicts = [one for _, one in _values(answer, None) if isinstance(one, Verdict)]
    title = str(named[0]) if named else type(answer).__name__
    return Page(title, verdicts=verdicts, sections=sections)


def page(answer: Any, *named: Any) -> Page:
    """Return the page of an answer, as the view beside its class makes it: ``view_NAME`` of a
    module ``NAME``, else the ``view`` of the folder.
    """
    for kind in type(answer).__mro__:  # somebody's own subclass has the page of its base
        folder, _, name = kind.__module__.rpartition(".")
        for view in (f"{folder}.view_{name}", f"{folder}.view"):
            known = page_of.dispatch(type(answer)) is not page_of.dispatch(object)
            if not known and folder.startswith("penstock.") and importlib.util.find_spec(view):
                importlib.import_module(view)
    return page_of(answer, *named)


def filled(answer: Any, section: Section) -> Section:
    """Return a section with what the fields put into it, behind what stands there already; with
    its title alone where they put nothing.
    """
    parts: dict[str, list[Any]] = {}
    for meaning, value in _values(answer, section):
        for part, one in _parts(answer, meaning, value):
            parts.setdefault(part, [*getattr(section, part)]).append(one)
    if not parts:
        return Section(section.title)
    return dataclasses.replace(section, **cast(dict[str, Any], parts))


def _values(answer: Any, section: Section | None) -> Iterator[tuple[Meaning, Any]]:
    """Yield what a section shows."""
    for name, meaning in meanings(answer.__class__).items():
        if section is None or meaning.section is section:
            yield meaning, meaning.shows(answer) if meaning.shows else getattr(answer, name)


_PARTS = {str: "notes", Fact: "facts", Hypothesis: "hypotheses", Table: "tables"}
"""Where several of a kind stand in a section."""


def _parts(answer: Any, meaning: Meaning, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a field becomes in its section."""
    if value is None or value == "":
        if value is None and meaning.unknown:
            yield "facts", Fact(meaning.name or "", UNKNOWN, meaning.unknown)
        return
    words = meaning.words(answer) if callable(meaning.words) else meaning.words
    if isinstance(value, str) and meaning.name is None:
        yield "paragraphs", value
    elif isinstance(value, Fact | Table):
        yield _PARTS[type(value)], value
    elif isinstance(value, list | tuple) and not hasattr(value, "value"):
        if value and type(value[0]) not in _PARTS:
            yield "tables", table(value, words)
        for one in value:
            if kind := _PARTS.get(type(one)):
                yield kind, one
    else:
        yield "facts", fact(meaning.name or "", value, words, meaning.format, meaning.unit)


def fact(
    name: str, value: Any, words: str = "", format: Callable[[Any], str] = digits, unit: str = ""
) -> Fact:
    """Return a figure, between its unit and what it means its interval if it has one."""
    ends = ""
    if hasattr(value, "low"):
        ends = f"({format(value.low)} to {format(value.high)})"
    explanation = " ".join(filter(None, (unit, ends, words)))
    return Fact(name, cell(value, format), explanation)


def cell(value: Any, format: Callable[[Any], str] = digits, unknown: str = "-") -> str:
    """Return a value as the text of a cell."""
    value = getattr(value, "value", value)
    if value is None:
        return unknown
    return value if isinstance(value, str) else format(value)


def table(rows: Sequence[Any], caption: str = "", *, order: str = "", **more: Any) -> Table:
    """Lay out dataclasses of one kind: a column for each field with a name, in their ``order``, or
    for those alone that it names.
    """
    meant = meanings(rows[0].__class__)
    names = [name for name in order.split() or meant if meant[name].name is not None]
    cells = [[cell(getattr(row, name), meant[name].format) for name in names] for row in rows]
    spare = sorted((meant[name] for name in names if meant[name].spare), key=lambda of: of.spare)
    more = {"spare": [of.name for of in spare]} | more
    return Table([meant[name].name or "" for name in names], cells, caption, **more)
