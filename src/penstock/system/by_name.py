"""Policies, orders and routers by name: those known, and functions of a module or a file."""

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from penstock import checks
from penstock.errors import InputError, nearest

T = TypeVar("T")

_OF_FILE = "_of_file"
_BROUGHT: set[str] = set()
"""Modules that were read from files of the user."""


def resolved(
    choice: Any,
    kind: str,
    known: Mapping[str, T],
    made: type,
    make: Callable[[Any], T],
    folder: Path | None,
) -> T:
    """Return what a known name, ``module:function``, ``file.py:function`` or a function means."""
    # Modules and files are looked for in the folder first; None: the working folder.
    if isinstance(choice, str):
        if choice in known:
            return known[choice]
        if ":" in choice:
            choice = _find(choice, kind, made, folder)
    if isinstance(choice, made):
        return choice  # type: ignore[return-value]
    if not callable(choice):
        raise InputError(
            f"unknown {kind} {checks.shown(choice)}{nearest(str(choice), known)} (or "
            "module:function for your own)"
        )
    return make(choice)


def _find(choice: str, kind: str, made: type, folder: Path | None) -> Any:
    """Return what ``module:function`` stands for: of the type ``made``, or a function."""
    module_name, _, function_name = choice.rpartition(":")
    module = _module(module_name, kind, folder or Path.cwd())
    function = getattr(module, function_name, None)
    if function is None:
        names = [n for n, v in vars(module).items() if isinstance(v, made) or inspect.isfunction(v)]
        raise InputError(
            f"{kind} {choice!r}: {module_name} has no function "
            f"{function_name!r}{nearest(function_name, names)}"
        )
    return function


def _own_name(stem: str) -> str:
    """Return what a file's module is called: not as a module that others import, such as random."""
    taken = stem in sys.stdlib_module_names or stem in sys.modules
    return stem + _OF_FILE if taken and stem not in _BROUGHT else stem


def name_of(function: Callable[..., Any]) -> str:
    """Return by what `resolved` finds a function of the user's own again."""
    module = function.__module__
    if module in _BROUGHT and module.endswith(_OF_FILE):
        module = module.removesuffix(_OF_FILE) + ".py"
    return f"{module}:{function.__name__}"


def _module(name: str, kind: str, folder: Path) -> ModuleType:
    """Import a module by name, or a Python file by its path, looking into ``folder`` first."""
    path = folder / (name if name.endswith(".py") else name.replace(".", "/") + ".py")
    path = path if not name.startswith("~") else Path(name).expanduser()
    try:
        if path.is_file():
            own = _own_name(path.stem)
            spec = importlib.util.spec_from_file_location(own, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[own] = module  # two scenarios may each bring a file of the same name
            _BROUGHT.add(own)
            # What such a file prints is no part of an answer.
            with contextlib.redirect_stdout(sys.stderr):
                spec.loader.exec_module(module)
            return module
        if name.endswith(".py"):
            raise InputError(f"there is no file {path} for the {kind}; check its path")
        return importlib.import_module(name)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also a file that ends the program
        raise InputError(
            f"cannot import the {kind} module {name!r}: {type(error).__name__}: {error}; looked "
            f"for {path}"
        ) from error
