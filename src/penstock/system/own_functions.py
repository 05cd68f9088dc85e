"""Functions that a user brings: compiled under an explicit type, and found by name in a module or a
file.
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
from typing import Any, ClassVar, Self, TypeVar

from numba import config, njit, types
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.compiled_code import allocating_nothing

_PACKAGE = Path(__file__).parents[1]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # that Numba puts into its messages for a terminal

T = TypeVar("T")


def compiled(function: Callable[..., Any], signature: Any, what: str, rule: str) -> Any:
    """Return the function under an explicit Numba type, kept on disk where it comes from a file.

    One that must return a whole number has to do so by itself: Numba would cut a float to one.

    Parameters
    ----------
    function, signature
        What to compile, to which type.
    what, rule
        How messages call it, and what such a function is.

    Raises
    ------
    InputError
        If it cannot be compiled to that type, or returns no whole number where it must.
    """
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
        raise InputError(f"{what} cannot be compiled: {_reason(error)}; {rule}") from error
    # Numba takes a body that only raises.
    if made.nopython_signatures[0].return_type != signature.return_type:
        raise InputError(f"{what} cannot be used: it never returns; {rule}")
    if isinstance(signature.return_type, types.Integer):
        # Not kept on disk, where it would take the place of the converting one.
        value = njit(signature.args)(function).nopython_signatures[0].return_type
        if not isinstance(value, types.Integer):
            raise InputError(f"{what} cannot be used: it returns {value}, no whole number; {rule}")
    return made


def _is_shipped(function: Callable[..., Any]) -> bool:
    """Return whether a function stands in a file of Penstock."""
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_PACKAGE)


class OwnFunction:
    """A named function that a user may bring, such as a policy, compiled when it is first needed.

    Attributes
    ----------
    word, arguments, form
        What messages call one, what it takes, and what such a function is, in words.
    signature
        The Numba type under which the kernel calls it.
    """

    word: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]]
    form: ClassVar[str]
    signature: ClassVar[Any]
    name: str
    function: Callable[..., Any] | None

    @functools.cached_property
    def compiled(self) -> Any:
        """The function under the kernel's explicit type; None where there is none.

        Raises
        ------
        InputError
            If it cannot be compiled to that type.
        """
        if self.function is None:
            return None
        return compiled(self.function, self.signature, f"{self.word} {self.name!r}", self.form)

    def checked(self) -> Self:
        """Compile it at once, so that a mistake is told where it was made."""
        _ = self.compiled
        return self

    @classmethod
    def named(cls, function: Any, name: object) -> tuple[str, Callable[..., Any]]:
        """Return the name, by default the function's, and the function as written.

        Raises
        ------
        InputError
            If it is no function, or takes others than ``arguments``; if the name is no text.
        """
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
                f"{cls.word} {function.__name__!r} takes {len(parameters)} arguments "
                f"({', '.join(parameters)}), but {article} {cls.word} takes "
                f"{len(cls.arguments)}: {takes}"
            )
        return name or function.__name__.replace("_", "-"), function


def _reason(error: Exception) -> str:
    """Pick what is wrong, and where, out of Numba's many lines."""
    plain = _COLOURS.sub("", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    what = next(
        (line for line in lines if not line.startswith("Failed in nopython mode")), "unknown reason"
    )
    where = next((line.rstrip(":") for line in lines if line.startswith("File ")), "")
    return f"{what.rstrip('.')} ({where})" if where else what.rstrip(".")


def resolved(
    choice: Any,
    kind: str,
    known: Mapping[str, T],
    made: type,
    make: Callable[[Any], T],
    folder: Path | None,
) -> T:
    """Return what a known name, ``module:function``, ``file.py:function`` or a function stands for.

    Parameters
    ----------
    choice
        As the user gave it.
    kind, made
        What it should be: in words, and the type of those that are made already.
    known
        Those that have a name.
    make
        Makes one of a function.
    folder
        Where ``module`` and ``file.py`` are looked for first; None: the working folder.
    """
    if isinstance(choice, str):
        if choice in known:
            return known[choice]
        if ":" not in choice:
            raise InputError(
                f"unknown {kind} {choice!r}{nearest(choice, known)} (or module:function for your "
                "own)"
            )
        choice = _find(choice, kind, made, folder)
    if isinstance(choice, made):
        return choice  # type: ignore[return-value]
    if choice is None:  # `make` would take it for a decorator's call
        raise InputError(f"{kind} is None; give one of {', '.join(known)}, or a function")
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


def _module(name: str, kind: str, folder: Path) -> ModuleType:
    """Import a module by name, or a Python file by its path, looking into ``folder`` first."""
    path = folder / (name if name.endswith(".py") else name.replace(".", "/") + ".py")
    try:
        if path.is_file():
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            with contextlib.suppress(KeyError):
                del sys.modules[path.stem]  # two scenarios may each bring a file of the same name
            sys.modules[path.stem] = module
            with contextlib.redirect_stdout(
                sys.stderr
            ):  # what such a file prints is no part of an answer
                spec.loader.exec_module(module)
            return module
        return importlib.import_module(name)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also a file that ends the program
        raise InputError(
            f"cannot import the {kind} module {name!r}: {type(error).__name__}: {error}; looked "
            f"for {path}"
        ) from error
