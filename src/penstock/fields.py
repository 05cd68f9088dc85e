"""What a value may be stands on its field: ``blocks: Annotated[int, Range(1, 2**40, ...)]``.

A class refuses other values by it, and so does the section of a file that is made from the class
(`penstock.document.with_keys_of`).
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from penstock import checks

_Check = Callable[[str, Any], Any]
"""What returns a value as its field keeps it, or refuses it under a name."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field may have, and why no others."""

    low: float
    high: float
    unit: str
    why: str
    name: str = ""  # what messages call the field, where they do not call it by its own name

    def number(self, value: Any, field: str = "") -> float:
        """Return a value as a float, if it is such a number."""
        return checks.number(self.name or field, value, self.low, self.high, self.unit, self.why)

    def whole(self, value: Any, field: str = "") -> int:
        """Return a value as an int, if it is such a whole number."""
        low, high = int(self.low), int(self.high)
        return checks.whole(self.name or field, value, low, high, self.unit, self.why)


@dataclasses.dataclass(frozen=True)
class Key:
    """What files call a field, where they do not call it by its own name."""

    name: str
    per: float = 1.0  # how many of the file's units make one of the field's
    unit: str = ""  # the file's
    others: tuple[str, ...] = ()  # names that it may have besides

    @property
    def names(self) -> tuple[str, ...]:
        """Return all that it may be called, its own name first."""
        return tuple(dict.fromkeys((self.name, *self.others)))

    def limits(self, of: Range) -> Range:
        """Return what a file may give, in its own unit; where it stands, is its name."""
        if not self.unit:
            return dataclasses.replace(of, name="")
        why = f"{of.why.partition(';')[0]}; give {self.unit}"
        return Range(of.low * self.per, of.high * self.per, self.unit, why)


class Checked:
    """A frozen dataclass whose fields are what their types say: numbers within a `Range`, one of
    some words, true or false. What is None need not be given.
    """

    def __post_init__(self) -> None:
        made: Any = type(self)
        for name, value in checked(self, made.called).items():
            object.__setattr__(self, name, value)
        self.settle()

    @classmethod
    def called(cls, field: str) -> str:
        """Return how messages call a field."""
        return field

    def settle(self) -> None:
        """Refuse what fields say together, and set what follows from them."""


def checked(thing: Any, called: Callable[[str], str]) -> dict[str, Any]:
    """Return the values of the fields of a dataclass whose types say what they may be, by name;
    ``called``: how messages call a field.
    """
    looks = _checks_of(thing.__class__)
    return {name: look(called(name), getattr(thing, name)) for name, look in looks}


@functools.cache
def _checks_of(made: Any) -> tuple[tuple[str, _Check], ...]:
    """Return what looks at a value, for each field whose type says what it may be."""
    looks = ((field.name, _check_of(field.type)) for field in dataclasses.fields(made))
    return tuple((name, look) for name, look in looks if look is not None)


def range_of(kind: Any) -> Range | None:
    """Return from where to where the numbers of a type may be; None: it does not say."""
    return next((part for part in parts_of(kind) if isinstance(part, Range)), None)


def key_of(name: str, kind: Any) -> Key:
    """Return what files call a field of that name and type."""
    return next((part for part in parts_of(kind) if isinstance(part, Key)), Key(name))


def keys_of(made: Any) -> dict[str, Key]:
    """Return the keys that files have for the fields of a class, by field."""
    parts = {field.name: parts_of(field.type) for field in dataclasses.fields(made)}
    return {name: part for name, of in parts.items() for part in of if isinstance(part, Key)}


def in_keys(thing: Any) -> dict[str, Any]:
    """Return the values of such fields as files have them; what is as usual is left out."""
    stated = {}
    for name, key in keys_of(thing).items():
        value = getattr(thing, name)
        if value != getattr(type(thing), name, None):
            stated[key.name] = value if key.per == 1 else value * key.per
    return stated


def parts_of(kind: Any) -> tuple[Any, ...]:
    """Return a type, without a None beside it, and what stands beside it in an `Annotated`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        given = [one for one in typing.get_args(kind) if one is not types.NoneType]
        return parts_of(given[0]) if len(given) == 1 else (kind,)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Annotated else (kind,)


def _check_of(kind: Any) -> _Check | None:
    """Return what looks at a value of a type; None: whatever it is, it says nothing."""
    if types.NoneType in typing.get_args(kind):
        plain, *beside = parts_of(kind)
        check = None if plain is kind else _check_of(Annotated[plain, *beside, None])
        return check and (lambda name, value: None if value is None else check(name, value))
    plain, limits = parts_of(kind)[0], range_of(kind)
    if limits is not None:
        if typing.get_origin(plain) is tuple:
            return functools.partial(_several, limits)
        check_one = limits.whole if plain is int else limits.number
        return lambda name, value: check_one(value, name)
    if typing.get_origin(plain) is Literal:
        return functools.partial(_one_of, typing.get_args(plain))
    return checks.truth if plain is bool else None


def _several(limits: Range, name: str, values: Any) -> tuple[float, ...]:
    """Return numbers, of which one may stand alone."""
    alone = isinstance(values, str) or not isinstance(values, Sequence)
    return tuple(limits.number(value, name) for value in ([values] if alone else values))


def _one_of(words: tuple[str, ...], name: str, value: Any) -> Any:
    checks.word(name, value, words)
    return value
