"""The keys that `--json` prints: of each command, and of each class of what it answers.

What a key means is the `Meaning` of its field, or what the docstring of the function that makes the
document says that it `Returns`; a `**` there has the keys of another function besides.
"""

import ast
import collections.abc
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from penstock.show.answers import Meaning, meanings

CHECKING, CAPACITY, MEASURING = "penstock.checking", "penstock.capacity", "penstock.measuring"
HARDWARE = f"{MEASURING}.hardware"
MEASURED = (
    "Where the batch times come from; null: from the scenario.",
    "",
    f"{CHECKING}.command_choices.measured",
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": (f"{CHECKING}.answer.Answer", f"{CHECKING}.closed_loop.ClosedAnswer"),
    "compare": (
        f"{CHECKING}.comparison.ServerComparison", f"{CHECKING}.comparison.NetworkComparison",
    ),
    "simulate": (f"{CHECKING}.one_run.OneRun",),
    "region": (f"{CAPACITY}.region.LoadInRegion",),
    "max-rate": (f"{CAPACITY}.side_by_side.MaxRates",),
    "recommend": (f"{CAPACITY}.recommendation.Recommendation",),
    "plan": ("penstock.planning.answers.Answers",),
    "sweep": (),
    "hardware": (f"{HARDWARE}.view_of_shape.facts_of",),
    "diagnose": (f"{MEASURING}.diagnosis.diagnose.Diagnosis",),
    "fit": (f"{MEASURING}.fitting.fit.Fit",),
    "calibrate": (f"{MEASURING}.calibration.calibration.Calibration",),
    "watch": ("penstock.live.reading.Answer",),
}  # fmt: skip
"""What a command answers: classes, and functions that make it."""

ADDED: dict[str, dict[str, tuple[str, str, str]]] = {
    "check": {
        "measured": MEASURED,
        "next": ("What to do about targets that are not met, or too much load.", "", ""),
    },
    "compare": {"measured": MEASURED},
    "sweep": {
        "points": ("Each with its fields as they vary.", "list", "penstock.sweeping.sweep.table")
    },
    "hardware": {"hardware": ("All that was asked for.", "list", f"{HARDWARE}.command._as_dict")},
}
"""The keys that a command adds: what each means, what is around, and the function that makes it."""

CALLED = {
    "table": "point", "_as_dict": "entry", "facts_of": "model on a GPU", "measured": "measured",
}  # fmt: skip
"""What functions make."""

MAPPINGS = (dict, collections.abc.Mapping)

ENTRY = re.compile(r"^(\S.*)\n((?:    .+(?:\n|$))+)", re.MULTILINE)
"""Of a list in a docstring: names, and what it says of them."""


@dataclasses.dataclass(frozen=True)
class Key:
    """What a key means, and what is in it: lists of it, it by names, keys of its own."""

    text: str
    around: str = ""
    inside: tuple[Any, ...] = ()  # classes, or documents by hand


@dataclasses.dataclass(frozen=True)
class ByHand:
    """A dictionary that a function makes, and says what it `Returns`."""

    made: Callable[..., Any]
    name: str

    def __hash__(self) -> int:
        return hash(self.name)


def documents() -> str:
    """Return a table of the keys that JSON has of each command, and of what is in them."""
    parts: list[str] = []
    places: dict[Any, str] = {}
    for command, names in COMMANDS.items():
        kinds = [named(name) for name in names]
        beside = {
            key: Key(text, around, (named(made),) if made else ())
            for key, (text, around, made) in ADDED.get(command, {}).items()
        }
        new: list[Any] = []
        for kind in (*kinds, *(kind for key in beside.values() for kind in key.inside)):
            gather(kind, command, places, new)
        answers = " or ".join(linked(kind, places) for kind in kinds)
        both = ", with what the command adds, or alone:" if beside else "."
        parts += [f"## penstock {command} --json", f"{answers}{both}" if kinds else "A list:"]
        if beside:
            parts.append(table(beside, places))
        for kind in new:
            parts += [f"### {title(kind)} {{ #{places[kind]} }}", table(keys_of(kind), places)]
    return "\n\n".join(parts)


def gather(kind: Any, command: str, places: dict[Any, str], new: list[Any]) -> None:
    """Note where a class is explained, and those inside it: where it comes first."""
    if kind in places:
        return
    place = f"{command}-{title(kind).replace(' ', '-')}"
    places[kind] = place if place not in places.values() else f"{place}-{len(places)}"
    new.append(kind)
    for key in keys_of(kind).values():
        for inner in key.inside:
            gather(inner, command, places, new)


def title(kind: Any) -> str:
    """Return what a table is called."""
    return kind.name if isinstance(kind, ByHand) else kind.__name__


def linked(kind: Any, places: Mapping[Any, str]) -> str:
    """Return a link to the table of a class."""
    return f"[{title(kind)}](#{places[kind]})"


def table(keys: Mapping[str, Key], places: Mapping[Any, str]) -> str:
    """Return keys as a table in Markdown."""
    rows = ["| key | | in it |", "|---|---|---|"]
    for name, key in keys.items():
        inside = " or ".join(linked(kind, places) for kind in key.inside)
        rows.append(f"| `{name}` | {in_cell(key.text)} | {f'{key.around} {inside}'.strip()} |")
    return "\n".join(rows)


def in_cell(text: str) -> str:
    """Return the text of a docstring as a cell of a table in Markdown, in the words of JSON."""
    text = re.sub(r"\b(None|NaN|infinite(?= where))\b", "null", " ".join(text.split()))
    return re.sub(r"``?([^`]*)``?", r"`\1`", text).replace("|", "\\|")


@functools.cache
def keys_of(kind: Any) -> dict[str, Key]:
    """Return the keys of a class in JSON, or of what is made by hand."""
    if isinstance(kind, ByHand):
        return said_by(kind.made)
    if issubclass(kind, tuple):
        beside = inspect.get_annotations(kind)
        return {name: key_of(kind, name, meaning_in(of), of) for name, of in beside.items()}
    keys = {}
    types_of = {field.name: field.type for field in dataclasses.fields(kind)}
    meant = meanings(kind)
    fields = meant or ({} if by_hand(kind) else attributes(kind))
    for name in sorted(fields, key=lambda name: name in types_of and bool(meant)):  # as JSON has it
        meaning = fields[name]
        if meaning.key is not None:
            key = key_of(kind, name, meaning, types_of.get(name))
            keys[meaning.key or name] = dataclasses.replace(key, text=in_keys(key.text, meant))
    return keys | (said_by(kind.as_dict) if by_hand(kind) else {})


def attributes(kind: Any) -> dict[str, Meaning]:
    """Return what the docstring of a class says of its fields."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes\n----------\n")[2]
    means = {
        name: Meaning(said) for names, said in re.findall(ENTRY, text) for name in names.split(", ")
    }
    return {field.name: means.get(field.name, Meaning("")) for field in dataclasses.fields(kind)}


def in_keys(text: str, meant: Mapping[str, Meaning]) -> str:
    """Return a text that names fields with the names that these have in JSON."""
    for name, meaning in meant.items():
        if meaning.key:
            text = re.sub(rf"`{name}`", f"`{meaning.key}`", text)
    return text


def key_of(kind: Any, name: str, meaning: Meaning, of: Any) -> Key:
    """Return what is known of a field, or of what is computed."""
    makes = meaning.data
    if makes is None and of is None:
        makes = getattr(kind, name).fget
    if makes is None:
        return Key(meaning.text, *inside(of, module_of(kind, name)))
    if not hasattr(makes, "__annotations__") or "return" not in makes.__annotations__:
        return Key(meaning.text)
    return Key(meaning.text, *made_by(makes, meaning.key or name))


def made_by(makes: Callable[..., Any], name: str) -> tuple[str, tuple[Any, ...]]:
    """Return what is in what a function makes."""
    of = makes.__annotations__["return"]
    if "\nReturns\n---" in inspect.cleandoc(makes.__doc__ or ""):
        return inside(of, sys.modules[makes.__module__], ByHand(makes, name))
    return inside(of, sys.modules[makes.__module__])


def module_of(kind: Any, name: str) -> types.ModuleType:
    """Return the module of the class that declares a field."""
    owner = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    return sys.modules[owner.__module__]


def meaning_in(of: Any) -> Meaning:
    """Return the meaning beside a type."""
    parts = of.__metadata__ if typing.get_origin(of) is Annotated else ()
    return next((part for part in parts if isinstance(part, Meaning)), Meaning(""))


def by_hand(kind: Any) -> bool:
    """Whether a class makes its document itself."""
    return "\nReturns\n" in inspect.cleandoc(getattr(kind, "as_dict", kind).__doc__ or "")


def said_by(made: Callable[..., Any]) -> dict[str, Key]:
    """Return the keys of what a function returns, by its docstring."""
    text = inspect.cleandoc(made.__doc__ or "").partition("\nReturns\n-------\n")[2]
    module = sys.modules[made.__module__]
    keys: dict[str, Key] = {}
    for entry, means in re.findall(ENTRY, text):
        names, _, of = entry.partition(" : ")
        value = evaluated(of, module) if of and of != "scenario" else None
        by_function = inspect.isfunction(value)
        if names == "**":
            keys = (said_by(value) if inspect.isfunction(value) else keys_of(value)) | keys
        elif by_function:
            keys[names] = Key(means, "", (ByHand(value, names),))
        else:
            around, kinds = inside(value, module)
            around = "as in scenarios" if of == "scenario" else around
            keys |= dict.fromkeys(names.split(", "), Key(means, around, kinds))
    return keys


def inside(
    of: Any, module: types.ModuleType, by: ByHand | None = None
) -> tuple[str, tuple[Any, ...]]:
    """Return what is around the classes of a type, and these."""
    if isinstance(of, str | typing.ForwardRef):
        of = evaluated(of if isinstance(of, str) else of.__forward_arg__, module)
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is Annotated:
        return inside(args[0], module, by)
    if origin in (typing.Union, types.UnionType):
        parts = [inside(arg, module, by) for arg in args]
        return next((around for around, _ in parts if around), ""), tuple(
            dict.fromkeys(one for _, ones in parts for one in ones)
        )
    if origin in MAPPINGS and by is not None and typing.get_origin(args[1]) not in MAPPINGS:
        return "", (by,)
    if origin in MAPPINGS:
        around, kinds = inside(args[1], module, by)
        return f"by name{around and f', {around}'}", kinds
    if of is dict:
        return "by name", ()
    if origin in (list, tuple, collections.abc.Sequence):
        around, kinds = inside(args[0], module, by)
        return f"list{around and f', {around}'}", kinds
    if getattr(of, "__name__", "") == "DataFrame":
        return "table", ()
    is_document = isinstance(of, type) and (
        dataclasses.is_dataclass(of) or (issubclass(of, tuple) and hasattr(of, "_fields"))
    )
    return "", (of,) if is_document else ()


def evaluated(text: str, module: types.ModuleType) -> Any:
    """Return what a text names in a module, what it imports for types alone too, or by its path."""
    if text.startswith("penstock."):
        return named(text)
    return eval(text, dict(vars(module)) | dict(imports_of(module, text)))


def imports_of(module: types.ModuleType, text: str) -> Iterator[tuple[str, Any]]:
    """Yield what a module imports of the names in a text."""
    names = set(re.findall(r"\w+", text)) - vars(module).keys()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name in names:
                    yield alias.name, named(f"{node.module}.{alias.name}")


def named(path: str) -> Any:
    """Return the class of a path; a function stands for the document that it makes."""
    module, _, name = path.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    return ByHand(made, CALLED[name]) if name in CALLED else made
