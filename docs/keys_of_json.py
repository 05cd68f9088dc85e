"""The keys that `--json` prints: of each command, and of each class of what it answers.

What a key means is the `Meaning` beside the type of its field, or of what a dictionary has.
"""

import collections.abc
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypedDict

from penstock.capacity.queue_limit import RecommendedLimit
from penstock.capacity.recommendation import Recommendation
from penstock.capacity.region import LoadInRegion
from penstock.capacity.side_by_side import MaxRates
from penstock.checking import answer, outages, pools, stages
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.command_choices import Measured
from penstock.checking.comparison import NetworkComparison, ServerComparison
from penstock.checking.one_run import OneRun
from penstock.checking.overload import OverloadAnswer
from penstock.live import reading
from penstock.measuring.calibration.calibration import Calibration
from penstock.measuring.diagnosis.diagnose import Diagnosis
from penstock.measuring.fitting.fit import Fit
from penstock.measuring.hardware.view import Entry
from penstock.measuring.hardware.view_of_shape import ModelOnGpus
from penstock.planning.answers import Answers
from penstock.show.answers import Meaning, meanings, method_of
from penstock.sweeping.sweep import COLUMNS
from penstock.system import network
from penstock.theory import mean_backlog
from penstock.theory.network import cycles, loads, virtual_stations

COMMANDS: dict[str, tuple[Any, ...]] = {
    "check": (answer.Answer, ClosedAnswer, OverloadAnswer),
    "compare": (ServerComparison, NetworkComparison),
    "simulate": (OneRun,),
    "region": (LoadInRegion,),
    "max-rate": (MaxRates,),
    "recommend": (Recommendation, RecommendedLimit),
    "plan": (Answers,),
    "sweep": (),
    "hardware": (ModelOnGpus,),
    "diagnose": (Diagnosis,),
    "fit": (Fit,),
    "calibrate": (Calibration,),
    "watch": (reading.Answer,),
}
"""What a command answers."""

POINT: Any = TypedDict("point", COLUMNS)  # type: ignore[misc]
MEASURED = Annotated[
    Measured | None, Meaning("Where the batch times come from; null: from the scenario.")
]
NEXT = Meaning("What to do about targets that are not met, or too much load.")
ADDED: dict[str, dict[str, Any]] = {
    "check": {"measured": MEASURED, "next": Annotated[str | None, NEXT]},
    "compare": {"measured": MEASURED},
    "sweep": {"points": Annotated[list[POINT], Meaning("Each with its fields as they vary.")]},
    "hardware": {"hardware": Annotated[list[Entry], Meaning("All that was asked for.")]},
}
"""The keys that a command adds."""

LATE: dict[str, Any] = {"System": Any} | {
    name: kind
    for module in (cycles, loads, mean_backlog, network, outages, pools, stages, virtual_stations)
    for name, kind in vars(module).items()
    if getattr(kind, "__module__", "") == module.__name__
}
"""What modules import for types alone."""


@dataclasses.dataclass(frozen=True)
class Key:
    """What a key means, and what is in it: lists of it, it by names, keys of its own."""

    text: str
    around: str = ""
    inside: tuple[Any, ...] = ()  # classes


def documents() -> str:
    """Return a table of the keys that JSON has of each command, and of what is in them."""
    parts: list[str] = []
    places: dict[Any, str] = {}
    for command, kinds in COMMANDS.items():
        beside = {name: key_of(of) for name, of in ADDED.get(command, {}).items()}
        new: list[Any] = []
        for kind in (*kinds, *(kind for key in beside.values() for kind in key.inside)):
            gather(kind, command, places, new)
        answers = " or ".join(linked(kind, places) for kind in kinds)
        both = ", with what the command adds, or alone:" if beside else "."
        parts += [f"## penstock {command} --json", f"{answers}{both}" if kinds else "A list:"]
        if beside:
            parts.append(table(beside, places))
        for kind in new:
            parts += [f"### {kind.__name__} {{ #{places[kind]} }}", table(keys_of(kind), places)]
    return "\n\n".join(parts)


def gather(kind: Any, command: str, places: dict[Any, str], new: list[Any]) -> None:
    """Note where a class is explained, and those inside it: where it comes first."""
    if kind in places:
        return
    place = f"{command}-{kind.__name__}"
    places[kind] = place if place not in places.values() else f"{place}-{len(places)}"
    new.append(kind)
    for key in keys_of(kind).values():
        for inner in key.inside:
            gather(inner, command, places, new)


def linked(kind: Any, places: Mapping[Any, str]) -> str:
    """Return a link to the table of a class."""
    return f"[{kind.__name__}](#{places[kind]})"


def table(keys: Mapping[str, Key], places: Mapping[Any, str]) -> str:
    """Return keys as a table in Markdown."""
    rows = ["| key | | in it |", "|---|---|---|"]
    for name, key in keys.items():
        inside = " or ".join(linked(kind, places) for kind in key.inside)
        rows.append(f"| `{name}` | {in_cell(key.text)} | {f'{key.around} {inside}'.strip()} |")
    return "\n".join(rows)


def in_cell(text: str) -> str:
    """Return a text as a cell of a table in Markdown, in the words of JSON."""
    text = re.sub(r"\b(None|NaN|infinite(?= where))\b", "null", " ".join(text.split()))
    return re.sub(r"``?([^`]*)``?", r"`\1`", text).replace("|", "\\|")


@functools.cache
def keys_of(kind: Any) -> dict[str, Key]:
    """Return the keys of a class in JSON."""
    if not dataclasses.is_dataclass(kind):
        return {name: key_of(of) for name, of in hints(kind).items()}
    by_hand = hints(getattr(kind, "as_dict", None)).get("return")
    return keys_of(by_hand) if typing.is_typeddict(by_hand) else dict(keys_of_fields(kind))


def keys_of_fields(kind: Any) -> Iterator[tuple[str, Key]]:
    """Yield the keys of fields that have a meaning, and of what is computed, as JSON has them."""
    meant, of_fields = meanings(kind), hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in sorted(meant, key=fields.__contains__):
        meaning = meant[name]
        of = of_fields[name] if name in fields else hints(method_of(getattr(kind, name)))["return"]
        if meaning.data:
            of = hints(meaning.data).get("return")
        if meaning.key == "**":
            yield from (pair for one in inside(of)[1] for pair in keys_of(one).items())
        elif meaning.key is not None:
            key = known(in_keys(meaning.text, meant), meaning, of)
            yield meaning.key or name, key
            if meaning.of_network:
                text = f"Of a network, in place of `{meaning.key or name}`."
                yield meaning.of_network, dataclasses.replace(key, text=text)


def in_keys(text: str, meant: Mapping[str, Meaning]) -> str:
    """Return a text that names fields with the names that these have in JSON."""
    for name, meaning in meant.items():
        if meaning.key:
            text = re.sub(rf"`{name}`", f"`{meaning.key}`", text)
    return text


def hints(of: Any) -> dict[str, Any]:
    """Return the types of fields, or of what a function takes and returns, and what is beside."""
    return typing.get_type_hints(of, localns=LATE, include_extras=True) if of else {}


def key_of(of: Any) -> Key:
    """Return what is known of a key by its type."""
    (meaning,) = (part for part in of.__metadata__ if isinstance(part, Meaning))
    return known(meaning.text, meaning, of)


def known(text: str, meaning: Meaning, of: Any) -> Key:
    """Return what is known of a key, in these words."""
    around, kinds = inside(of)
    return Key(text, meaning.inside or around, kinds)


def inside(of: Any) -> tuple[str, tuple[Any, ...]]:
    """Return what is around the classes of a type, and these."""
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is Annotated:
        return inside(args[0])
    if origin in (typing.Union, types.UnionType):
        parts = [inside(arg) for arg in args]
        return next((around for around, _ in parts if around), ""), tuple(
            dict.fromkeys(one for _, ones in parts for one in ones)
        )
    for word, kinds, place in (
        ("by name", (dict, collections.abc.Mapping), 1),
        ("list", (list, tuple, collections.abc.Sequence), 0),
    ):
        if origin in kinds:
            around, inner = inside(args[place])
            return f"{word}{around and f', {around}'}", inner
    if getattr(of, "__name__", "") == "DataFrame":
        return "table", ()
    has_keys = dataclasses.is_dataclass(of) or typing.is_typeddict(of) or hasattr(of, "_fields")
    return "", (of,) if has_keys else ()
