"""The fields that a scenario has: what a dotted name leads to, and what belongs there."""

import copy
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import checks
from penstock.document import Section
from penstock.errors import InputError, nearest
from penstock.scenario.scenario import SimulateSection
from penstock.scenario.server import ServerSection
from penstock.scenario.workload import WorkloadSection
from penstock.system.engine import explained
from penstock.system.engine_flags import plain

SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadSection,
    "server": ServerSection,
    "simulate": SimulateSection,
}
"""Of a scenario: fields begin with one of them."""


def resolved(field: Any) -> tuple[str, ...]:
    """Return the keys that lead to a field, names of engines as Penstock's own."""
    return _annotated(field)[0]


def _annotated(field: Any) -> tuple[tuple[str, ...], Any]:
    """Return a field's keys and annotation: `Any` where that depends on more than its name."""
    parts = tuple(field.split(".")) if isinstance(field, str) else ()
    if len(parts) == 1 and parts[0] in SECTIONS:
        first = next(name for name in known_fields() if name.startswith(f"{field}."))
        raise InputError(
            f"{field!r} is a whole section of a scenario; vary a field in it, such as {first!r}"
        )
    if len(parts) < 2 or parts[0] not in SECTIONS:
        hint = (
            nearest(parts[-1], [name.rsplit(".", 1)[-1] for name in known_fields()])
            if parts
            else ""
        )
        fits = next(
            (n for n in known_fields() if hint.endswith(f"'{n.rsplit('.', 1)[-1]}'?")), None
        )
        hint = (
            f"; did you mean {fits!r}?"
            if fits
            else f"; fields begin with {', '.join(SECTIONS)} and a dot"
        )
        raise InputError(f"{checks.shown(field)} is no field of a scenario{hint}")
    kind: Any = SECTIONS[parts[0]]
    path = [parts[0]]
    for part in parts[1:]:
        section = _section(kind)
        if section is None:
            if not _holds_any(kind):
                raise InputError(
                    f"{field} is no field of a scenario: {'.'.join(path)} holds one value; vary "
                    "that"
                )
            return (*path, *parts[len(path) :]), Any
        name = _own_name(section, part)
        if name is None:
            raise InputError(
                f"{checks.shown(field)} is no field of a scenario"
                + _nearest_in(section, ".".join(path), part)
            )
        kind = section.model_fields[name].annotation
        path.append(name)
    return tuple(path), kind


def known_fields() -> list[str]:
    """Return the fields that stand directly in a section."""
    return [f"{name}.{key}" for name, section in SECTIONS.items() for key in section.known_keys()]


def at(
    document: Mapping[str, Any], paths: Sequence[tuple[str, ...]], values: Sequence[Any]
) -> dict[str, Any]:
    """Return the scenario document with values put in."""
    changed = copy.deepcopy(dict(document))
    for keys, value in zip(paths, values, strict=True):
        here = changed
        kind: Any = SECTIONS
        for key in keys[:-1]:
            section = _section(kind)
            kind = section.model_fields[key].annotation if section else SECTIONS.get(key)
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
        section = _section(kind)
        names = section.names_of(keys[-1]) if section else []
        for other in [key for key in here if plain(str(key)) in names]:
            del here[other]
        here[keys[-1]] = value
    return changed


def takes_whole(field: str) -> bool | None:
    """Return whether a field takes whole numbers only; None: it depends on more than the name."""
    kinds = {typing.get_origin(k) or k for k in _choices(_annotated(field)[1])}
    if int in kinds:
        return True
    return False if float in kinds else None


def takes_numbers(field: str) -> bool:
    """Return whether a field takes nothing but numbers, or nothing at all."""
    return all(kind in (int, float, type(None)) for kind in _choices(_annotated(field)[1]))


def _choices(kind: Any) -> list[Any]:
    """Return the kinds of value of an annotation: of ``int | None`` both."""
    if typing.get_origin(kind) is typing.Annotated:
        return _choices(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [choice for part in typing.get_args(kind) for choice in _choices(part)]
    return [kind]


def _section(kind: Any) -> type[Section] | None:
    return next((c for c in _choices(kind) if isinstance(c, type) and issubclass(c, Section)), None)


def _holds_any(kind: Any) -> bool:
    """Return whether there may be unlisted keys below: lengths, columns, params of a policy."""
    plain = (int, float, str, bool, type(None))
    return not all(c in plain or typing.get_origin(c) is typing.Literal for c in _choices(kind))


def _own_name(section: type[Section], key: str) -> str | None:
    """Return the field of a section that a key means, engine names included."""
    if key in section.model_fields:
        return key
    return next((own for own in section.model_fields if plain(key) in section.names_of(own)), None)


def _nearest_in(section: type[Section], where: str, key: str) -> str:
    if said := explained(key):
        return f"; {said}"
    hint = nearest(key, section.known_keys())
    for name in section.known_keys():
        if hint == f"; did you mean {name!r}?":
            return f"; did you mean '{where}.{name}'?"
    return hint
