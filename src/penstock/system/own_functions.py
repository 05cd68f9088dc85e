"""Policies, orders and routers: those that have a name, and functions that a user brings, which are
found by their module or file, checked, and compiled under an explicit type.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numba import config, njit, types
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats
from penstock.kernel.compiled_code import allocating_nothing
from penstock.kernel.signatures import POLICY_SIGNATURE
from penstock.words import counted

_PACKAGE = Path(__file__).parents[1]
_MOST_TOKENS = 2**62
_OF_FILE = "_of_file"
_BROUGHT: set[str] = set()
"""Modules that were read from files of the user."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # that Numba puts into its messages for a terminal


def compile_under(function: Callable[..., Any], signature: Any, what: str, form: str) -> Any:
    """Return the function under an explicit Numba type, kept on disk where it is from a file."""
    # One that must return a whole number has to do so by itself: Numba would cut a float to one.
    # Floats in a row of numbers are cut, but one that is no number becomes -1.
    if config.DISABLE_JIT:  # type: ignore[attr-defined]  # interpreted: nothing is known of what it returns
        return function
    if _is_shipped(function):  # good as it is
        made = allocating_nothing(function, boundscheck=True)
        made.compile(signature)
        return made
    try:
        try:
            # bounds are checked: it may look for a parameter that it was not given
            made = njit(signature, cache=True, boundscheck=True)(function)
        except RuntimeError:  # typed at a prompt: there is no file to keep the compiled code beside
            made = njit(signature, boundscheck=True)(function)
    except (NumbaError, UnsupportedBytecodeError, TypeError, NotImplementedError) as error:
        raise InputError(f"{what} cannot be compiled: {_reason(error)}; {form}") from error
    # Numba takes a body that only raises.
    if made.nopython_signatures[0].return_type != signature.return_type:
        raise InputError(f"{what} cannot be used: it never returns; {form}")
    returns_whole = isinstance(signature.return_type, types.Integer)
    if not returns_whole and signature != POLICY_SIGNATURE:
        return made
    # Not kept on disk, where it would take the place of the converting one.
    inner = njit(signature.args, boundscheck=True)(function)
    value = inner.nopython_signatures[0].return_type
    if returns_whole and not isinstance(value, types.Integer):
        raise InputError(f"{what} cannot be used: it returns {value}, no whole number; {form}")
    if not returns_whole and any(isinstance(part, types.Float) for part in value):
        return njit(signature)(_in_whole_tokens(inner))
    return made


def _in_whole_tokens(policy: Any) -> Any:
    """Return a compiled policy, of which each number is whole: -1 where it is none, or negative."""

    @njit
    def whole(value: Any) -> Any:
        if not value >= 0:  # as NaN is not
            return -1
        return int(min(value, _MOST_TOKENS))

    def rounded(queue: Any, limits: Any, params: Any) -> Any:
        prefill, decode, first = policy(queue, limits, params)
        return whole(prefill), whole(decode), whole(first) if first == whole(first) else -1

    return rounded


def rows_of(what: str, rows: npt.ArrayLike, columns: int, prefix: str) -> Floats:
    """Return rows as a function sees them, each with the columns that `penstock.kernel.signatures`
    calls by a prefix.
    """
    table = np.ascontiguousarray(checks.array(what, rows), np.float64)
    if table.ndim != 2 or table.shape[1] != columns:
        raise InputError(
            f"{what}: the shape is {table.shape}, but each row has {columns} numbers, and others "
            f"would be taken for them; give those that penstock.kernel.signatures calls {prefix}..."
        )
    return table


def _is_shipped(function: Callable[..., Any]) -> bool:
    """Return whether a function stands in a file of Penstock."""
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_PACKAGE)


class OwnFunction:
    """A named function that a user may bring, such as a policy, compiled when it is first needed. A
    subclass is a dataclass that sets the attributes below.
    """

    word: ClassVar[str]  # what messages call one
    arguments: ClassVar[tuple[str, ...]]  # what it takes
    form: ClassVar[str]  # what such a function is, in words
    signature: ClassVar[Any]  # the Numba type under which the kernel calls it
    known: ClassVar[Mapping[str, Any]]  # those that have a name
    family: ClassVar[type[Any]]  # what may stand in the place of one
    name: str
    function: Callable[..., Any] | None

    @classmethod
    def of(cls, function: Callable[..., Any] | None, name: str | None, **facts: Any) -> Any:
        """Make one of a function, or return the decorator that does so; compiled at once, so that a
        mistake is told where it was made.
        """
        if function is None:
            return lambda function: cls.of(function, name, **facts)
        called, plain = cls._name_and_function(function, name)
        made = cls(name=called, function=plain, **facts)  # type: ignore[call-arg]
        _ = made.compiled
        return made

    @classmethod
    def named(cls, choice: Any, folder: Path | None) -> Any:
        """Return what a known name, ``module:function``, ``file.py:function`` or a function means;
        modules and files are looked for in the folder first, which is the working one if None.
        """
        if isinstance(choice, str):
            if choice in cls.known:
                return cls.known[choice]
            if ":" in choice:
                choice = _find(choice, cls.word, cls.family, folder or Path.cwd())
        if isinstance(choice, cls.family):
            return choice
        if not callable(choice):
            raise InputError(
                f"unknown {cls.word} {checks.shown(choice)}{nearest(str(choice), cls.known)} (or "
                "module:function for your own)"
            )
        return cls.of(choice, None)

    @functools.cached_property
    def compiled(self) -> Any:
        """The function under the kernel's explicit type; None where there is none."""
        if self.function is None:
            return None
        return compile_under(self.function, self.signature, f"{self.word} {self.name!r}", self.form)

    @classmethod
    def _name_and_function(cls, function: Any, name: object) -> tuple[str, Callable[..., Any]]:
        """Return the name, by default the function's, and the function as written."""
        function = getattr(function, "py_func", function)  # one that Numba has compiled already
        article = "an" if cls.word[0] in "aeiou" else "a"
        takes = ", ".join(cls.arguments)
        if not inspect.isfunction(function):
            raise InputError(
                f"{article} {cls.word} is a function of {takes}, not {checks.shown(function)}"
            )
        if not (name is None or isinstance(name, str)):
            raise InputError(f"{cls.word} name {checks.shown(name)}: give a text")
        parameters = inspect.signature(function).parameters
        if len(parameters) != len(cls.arguments):
            raise InputError(
                f"{cls.word} {function.__name__!r} takes {counted(len(parameters), 'argument')} "
                f"({', '.join(parameters)}), but {article} {cls.word} takes "
                f"{len(cls.arguments)}: {takes}"
            )
        return name or function.__name__.replace("_", "-"), function


def _find(choice: str, kind: str, made: type, folder: Path) -> Any:
    """Return what ``module:function`` stands for: of the type ``made``, or a function."""
    module_name, _, function_name = choice.rpartition(":")
    module = _module(module_name, kind, folder)
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
    if taken and stem not in _BROUGHT:
        return stem + _OF_FILE
    return stem


def name_of(function: Callable[..., Any]) -> str:
    """Return by what `OwnFunction.named` finds a function of the user's own again."""
    module = function.__module__
    if module in _BROUGHT and module.endswith(_OF_FILE):
        module = module.removesuffix(_OF_FILE) + ".py"
    return f"{module}:{function.__name__}"


def _module(name: str, kind: str, folder: Path) -> ModuleType:
    """Import a module by name, or a Python file by its path, looking into ``folder`` first."""
    path = folder / (name if name.endswith(".py") else name.replace(".", "/") + ".py")
    if name.startswith("~"):
        path = Path(name).expanduser()
    try:
        if path.is_file():
            module_name = _own_name(path.stem)
            spec = importlib.util.spec_from_file_location(module_name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = (
                module  # two scenarios may each bring a file of the same name
            )
            _BROUGHT.add(module_name)
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


def _reason(error: Exception) -> str:
    """Pick what is wrong, and where, out of Numba's many lines."""
    plain = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    what = next(
        (line for line in lines if not line.startswith("Failed in nopython mode")), "unknown reason"
    )
    where = next((line.rstrip(":") for line in lines if line.startswith("File ")), "")
    if where:
        return f"{what.rstrip('.')} ({where})"
    return what.rstrip(".")
