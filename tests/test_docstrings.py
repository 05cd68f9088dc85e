"""Who calls Penstock finds every parameter described; who reads on finds a line or two."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
SHOWN = re.findall(r"^::: (\S+)$", "".join(p.read_text() for p in (ROOT / "docs" / "reference").glob("*.md")), re.M)


def shown(name: str) -> Any:
    """Return the object, or the module, that a page of the reference names."""
    module, _, inside = name.rpartition(".")
    found = getattr(importlib.import_module(module), inside, None)
    return importlib.import_module(name) if found is None else found


def called() -> set[Any]:
    """Return the classes and functions that have a name in `penstock`, or stand in the reference by their own."""
    found = [*(getattr(penstock, name) for name in penstock.__all__), *map(shown, SHOWN)]
    return {one for one in found if inspect.isclass(one) or inspect.isfunction(one)}


def bases(one: type) -> list[type]:
    return [base for base in one.__mro__ if base.__module__.startswith("penstock.")]


def face() -> set[str]:
    """Return full names: what is called, with the public methods of classes, and functions of modules on a page."""
    names = {f"{one.__module__}.{one.__qualname__}" for one in called()}
    for base in {base for one in called() if inspect.isclass(one) for base in bases(one)}:
        own = f"{base.__module__}.{base.__qualname__}"
        names |= {own} | {f"{own}.{name}" for name in vars(base) if not re.match("_[^_]", name)}
    for module in filter(inspect.ismodule, map(shown, SHOWN)):
        names |= {f"{module.__name__}.{name}" for name in vars(module) if not name.startswith("_")}
    return names


def sectioned(node: ast.AST, name: str) -> Iterator[str]:
    """Yield the full names of what has a docstring with sections."""
    for inner in ast.iter_child_nodes(node):
        inside = name
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{name}.{inner.name}"
            if "command(" in " ".join(map(ast.unparse, getattr(inner, "decorator_list", []))):
                continue  # a command, whose docstring is its help
            sections = re.findall(r"^([A-Z][\w ]+)\n---+$", ast.get_docstring(inner) or "", re.MULTILINE)
            if sections:
                yield inside
        yield from sectioned(inner, inside)


def test_every_parameter_and_field_of_functions_and_classes_of_the_face_is_listed_or_quoted() -> None:
    """Those of methods are left to their authors."""
    for one in called() - {penstock.InputError}:  # which has the parameters of a ValueError, and no signature
        text = "\n".join(inspect.getdoc(base) or "" for base in (bases(one) if inspect.isclass(one) else [one]))
        listed = " ".join(re.findall(r"^([*\w][\w, *]*)\n    ", text, re.MULTILINE))
        said = {*re.findall(r"\w+", listed), *re.findall(r"``(\w+)``", text)}
        fields = {field.name for field in dataclasses.fields(one)} if dataclasses.is_dataclass(one) else set()
        asked = fields | set(inspect.signature(one).parameters)
        assert {name for name in asked if not name.startswith("_")} <= said, one


def asked_by_commands() -> set[str]:
    """Return full names of functions whose options commands have, besides those of the face."""
    named = re.findall(r'@command\("([\w.]+):(\w+)"', "".join(path.read_text() for path in SOURCE.rglob("command.py")))
    return {f"penstock.{module}.{name}" for module, name in named}


def test_sections_stand_on_the_face_alone() -> None:
    """Elsewhere a line or two do, and a comment beside what has a unit or a shape."""
    allowed = face() | asked_by_commands()
    for path in (*SOURCE.rglob("*.py"), *(ROOT / "paper").rglob("*.py")):
        above = SOURCE.parent if SOURCE in path.parents else ROOT
        module = ".".join(path.relative_to(above).with_suffix("").parts).removesuffix(".__init__")
        assert {*sectioned(ast.parse(path.read_text()), module)} <= allowed, path
