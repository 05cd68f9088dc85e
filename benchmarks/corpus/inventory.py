"""What users write and read: every YAML key, value by name, option and public name, and every key
of JSON that the answers of the corpus have.

Usage: ``python inventory.py`` names what stood in ``inventory.txt`` (5856ccd) and is gone without a
word in ``on_purpose.yaml``; ``--write FILE`` writes what there is now.
"""

import dataclasses
import fnmatch
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.workload.lengths import BY_MEAN

HERE = Path(__file__).parent
KEPT, ON_PURPOSE = HERE / "inventory.txt", HERE / "on_purpose.yaml"

ROOTS = {
    "": ("scenario.scenario:_Document", "scenario.network:_Document"),
    "plan": ("planning.scenario:PlanSection",),
    "plan.search.replicas": ("planning.scenario:_Replicas",),
    "plan.day": ("planning.scenario:DaySection",),
    "plan.job": ("planning.scenario:JobSection",),
    "sweep": ("sweeping.sweep:SweepSection",),
    **{f"length.{name}": (f"scenario.workload:_BY_MEAN:{name}",) for name in BY_MEAN},
    "length.mixture.[]": ("scenario.workload:_Part",),
    "network.pools.*.router": ("scenario.pools:_Measure",),
    "batch-time file": ("system.batch_time_file:_File",),
}
"""The sections of YAML files by where they stand: each may be read on its own."""

BY_HAND = (
    "length.constant", "length.uniform", "network.pools.*.order.priority",
    "network.pools.*.servers", "network.workflows.*.stages.*.then",
)  # fmt: skip
"""Keys that plain code reads, which no section declares."""


# ----------------------------------------------------------------------------------- YAML keys


def yaml_keys() -> Iterator[str]:
    """Yield the path of every key of YAML, engines' names for it among them, and their words."""
    for where, sections in ROOTS.items():
        for section in sections:
            module, name, *kind = section.split(":")
            model = getattr(importlib.import_module(f"penstock.{module}"), name)
            model = model[kind[0]] if kind else model
            yield from _keys(model, where, ())
    yield from BY_HAND


def _keys(model: Any, where: str, above: tuple[Any, ...]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = [name] if alias is None else getattr(alias, "choices", [alias])
        if len(names) > 1:  # engines' names for it, which are read as on their command lines, too
            names = dict.fromkeys([*names, *(each.replace("_", "-") for each in names)])
        for each in names:
            path = f"{where}.{each}" if where else str(each)
            yield path
            yield from (f"{path}={word}" for word in _words(field.annotation))
            for section, place in _sections(field.annotation, ""):
                if section not in (*above, model):
                    yield from _keys(section, path + place, (*above, model))


def _sections(annotation: Any, place: str) -> Iterator[tuple[Any, str]]:
    """Yield the sections within a type, and how far below the key each stands."""
    if hasattr(annotation, "model_fields"):
        yield annotation, place
    step = {dict: ".*", list: ".[]"}.get(typing.get_origin(annotation), "")
    for part in typing.get_args(annotation):
        yield from _sections(part, place + step)


def _words(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from map(str, typing.get_args(annotation))
        return
    for part in typing.get_args(annotation):
        yield from _words(part)


def values() -> Iterator[str]:
    """Yield what YAML and options may name: engines with their settings, policies, hardware."""
    import penstock as ps
    from penstock.fields import parts_of
    from penstock.system.models.catalogue import catalogue
    from penstock.system.models.gpus import SHEETS
    from penstock.workload.trace_formats import FORMATS

    for name, engine in ps.ENGINES.items():
        yield f"engine {name}"
        for setting, option in engine.known().items():
            yield from (f"engine {name} {key}" for key in (setting, option.alias) if key)
        for field in dataclasses.fields(engine):
            if typing.get_origin(words := parts_of(field.type)[0]) is typing.Literal:
                yield from (f"engine {name} {field.name}={word}" for word in typing.get_args(words))
    for name, router in ps.ROUTERS.items():
        yield f"router {name}"
        yield from (f"router {name} {setting}" for setting, _ in router.settings)
    yield "router measure"
    yield from (f"policy {name}" for name in ps.POLICIES)
    yield from (f"order {name}" for name in ps.ORDERS)
    yield from (f"hardware {name}" for name in ps.HARDWARE)
    yield from (f"model {name}" for name in catalogue())
    yield from (f"gpu {name}" for name in SHEETS)
    yield from (f"trace format {each.name}" for each in FORMATS)


# --------------------------------------------------------------------------------- the terminal


def options() -> Iterator[str]:
    """Yield every command, its arguments and its options."""
    import typer

    from penstock.cli import command_line

    def walk(command: Any, path: str) -> Iterator[str]:
        yield path
        for parameter in command.params:
            names = [*parameter.opts, *parameter.secondary_opts]
            yield from (f"{path} {name}" for name in names)
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}")

    yield from walk(typer.main.get_command(command_line()), "penstock")


# --------------------------------------------------------------------------------- public names


def public_names() -> Iterator[str]:
    """Yield every public name, with the attributes of classes and what functions are given."""
    import penstock as ps

    for name in ps.__all__:
        value = getattr(ps, name)
        yield name
        if inspect.isclass(value):
            yield from _parameters(name, value)
            for attribute in sorted(_attributes(value)):
                yield f"{name}.{attribute}"
                method = inspect.getattr_static(value, attribute, None)
                if inspect.isfunction(method) or isinstance(method, classmethod | staticmethod):
                    yield from _parameters(f"{name}.{attribute}", getattr(value, attribute))
        elif inspect.isfunction(value):
            yield from _parameters(name, value)


def _attributes(kind: type) -> set[str]:
    """Return the public attributes that Penstock's own classes give a class."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("penstock")]
    names = {name for each in own for name in (*vars(each), *inspect.get_annotations(each))}
    names |= {field.name for field in dataclasses.fields(kind)} if _is_record(kind) else set()
    return {name for name in names if not name.startswith("_")}


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _parameters(name: str, function: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a class in C
        return
    yield from (
        f"{name}({each}=)" for each in parameters if not each.startswith("_") and each != "self"
    )


# ------------------------------------------------------------------------------------ JSON keys


def json_keys(answers: Mapping[str, Mapping[str, Any]], named: set[str]) -> Iterator[str]:
    """Yield the path of every key of the answers to some commands; what is ``named`` by a scenario
    is ``*``.
    """
    for question, answer in answers.items():
        for path in paths(answer["answer"], named):
            yield f"{question.split()[0]} {path}"


def paths(document: Any, named: set[str], where: str = "") -> Iterator[str]:
    """Yield the path of every key of a document."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            known = re.fullmatch(r"[a-z_][a-z0-9_]*", key) and key not in named
            path = f"{where}.{key if known else '*'}".removeprefix(".")
            yield path
            yield from paths(value, named, path)
    elif isinstance(document, list):
        for value in document:
            yield from paths(value, named, f"{where}[]")


# -------------------------------------------------------------------------------- what was lost


def present() -> set[str]:
    """Return all but the keys of JSON, a line each, as they are now."""
    kinds = {"yaml": yaml_keys, "value": values, "option": options, "name": public_names}
    return {f"{kind} {entry}" for kind, entries in kinds.items() for entry in entries()}


def kept(*kinds: str) -> set[str]:
    """Return the entries of some kinds that there were at 5856ccd."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line.split(" ")[0] in kinds}


def lost(before: set[str], after: set[str], changes: Mapping[str, str]) -> list[str]:
    """Return what was, is no more, and is not said to be gone, or renamed to what there is; and
    what is said to be gone and is there.
    """
    missing = []
    for entry in sorted(before - after):
        change = changes.get(entry, "")
        if change.startswith("renamed to "):
            heir = change.removeprefix("renamed to ")
            if heir not in after:
                missing.append(f"{entry}: {change}, which there is not")
        elif not change.startswith("gone (") or not change.endswith(")"):
            missing.append(f"{entry}: neither `renamed to` nor `gone (why)`")
    said = [f"{entry}: {changes[entry]}, but it is there" for entry in sorted(changes)
            if entry in after]  # fmt: skip
    return missing + said


def changes(json: Iterable[str] = ()) -> dict[str, str]:
    """Return what is said of entries that are no more, one by one where a pattern says it; of keys
    of JSON, where they are given.
    """
    document = yaml.safe_load(ON_PURPOSE.read_text(encoding="utf-8"))
    entries = [*KEPT.read_text(encoding="utf-8").splitlines(), *json]
    return {
        entry: change
        for pattern, change in document["inventory"].items()
        for entry in fnmatch.filter(entries, pattern) or [pattern]
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        Path(sys.argv[2]).write_text("\n".join(sorted(present())) + "\n", encoding="utf-8")
        sys.exit()
    gone = lost(kept("yaml", "value", "option", "name"), present(), changes())
    print("\n".join(gone) or "nothing is lost")
    sys.exit(bool(gone))
