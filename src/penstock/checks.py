"""Check values that the user gives; what cannot be used is said in one line."""

import importlib.util
import numbers
import os
import reprlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError, nearest

if TYPE_CHECKING:
    import numpy.typing as npt

# NumPy is imported where values are looked at: `--help` looks at none.

_LONGEST_MS = 1e9


def number(what: str, value: Any, low: float, high: float, unit: str, why: str) -> float:
    """Return the value as a float, if it is a number from ``low`` to ``high``; ``why`` says what
    follows beyond them, or what to do instead.
    """
    if not _is_number(value) or not low <= value <= high:
        raise InputError(
            f"{what} is {shown(value)}, but must be a number {limits(low, high, unit)}: {why}"
        )
    return float(value)


def seconds(what: str, ms: Any) -> float:
    """Return milliseconds as seconds; refuse negative ones, and days."""
    return (
        number(
            what,
            ms,
            0,
            _LONGEST_MS,
            "ms",
            "nothing takes negative time, or days; give milliseconds",
        )
        / 1e3
    )


def whole(what: str, value: Any, low: int, high: int, unit: str, why: str) -> int:
    """Return the value as an int, if it is a whole number; else as `number`."""
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise InputError(
            f"{what} is {shown(value)}, but must be a whole number {limits(low, high, unit)}: {why}"
        )
    return int(value)


def word(what: str, value: Any, words: Sequence[str | bool | None]) -> None:
    """Refuse a value that is none of these words; None among them means that it was left out."""
    if not isinstance(value, str | bool | None) or value not in words:
        raise InputError(
            f"{what} is "
            f"{shown(value)}{nearest(str(value), [str(w) for w in words if w not in (None, '')])}"
        )


def named(value: Any, names: Collection[str]) -> bool:
    """Return whether a value is one of some names; what is no text is none."""
    return isinstance(value, str) and value in names


def truth(what: str, value: Any) -> bool:
    """Return the value as a bool, if it is true or false."""
    import numpy as np

    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{what} is {shown(value)}, but must be true or false; give one")
    return bool(value)


def array(what: str, values: "npt.ArrayLike") -> "npt.NDArray[Any]":
    """Return a copy of the values as an array of numbers, of any shape; some may not be finite."""
    import numpy as np

    try:
        given = np.array(values)
    except ValueError:  # rows of different lengths
        given = np.array(None)
    if given.dtype.kind not in "iuf":
        raise InputError(
            f"{what} is {shown(values)}, but must be a number, or an array of numbers; mend what "
            "is none"
        )
    return given


def column(what: str, values: "npt.ArrayLike") -> "npt.NDArray[Any]":
    """Return a copy of the values as an array of one dimension, not empty; a number is a column."""
    import numpy as np

    given = np.atleast_1d(array(what, values))
    if given.ndim > 1:
        raise InputError(
            f"{what} has the shape {given.shape}, but must have one dimension; give one row or "
            "column of it"
        )
    if not given.size:
        raise InputError(
            f"{what} is empty, so there is nothing to work with; give at least one number"
        )
    return given


def shown(value: object) -> str:
    """Put a value on one line, shortened."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    import numpy as np

    if isinstance(value, float | np.generic):
        text = str(value)
    else:
        text = " ".join(_BOUNDED.repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class _Bounded(reprlib.Repr):
    """Looks only so far into a value: aliases in YAML can give it billions of parts, or no end."""

    def repr_int(self, value: int, level: int) -> str:
        try:
            return repr(value)
        except ValueError:  # Python prints no more than some thousand digits
            return f"an integer of {value.bit_length():,} bits"


_BOUNDED = _Bounded()
_BOUNDED.maxlevel = 3


def path(what: str, value: Any) -> Path:
    """Return the value as a path, if it is one and names something."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise InputError(
            f"{what} is {shown(value)}, so there is nothing to read; give the path of a file, as "
            "text"
        )
    try:
        return Path(value).expanduser()
    except (RuntimeError, TypeError) as error:  # no such user; a path of bytes
        raise InputError(
            f"{what} is {shown(str(value))}, which is no path here ({error}); write it out"
        ) from None


def writable(what: str, value: Any, *, folder: bool = False, makes_folder: bool = False) -> Path:
    """Return the value as the path of a file, or a folder, that can be written as far as can be
    told before; ``makes_folder``: the folder of the file is made where it is missing.
    """
    found = path(what, value)
    remedy = f"give another {'folder' if folder else 'file'} to {what}"
    place = found if folder else found.parent
    try:
        if not folder and found.is_dir():
            raise InputError(
                f"cannot write {found}: it is a folder; {remedy}, such as {found / 'report.html'}"
            )
        if not folder and found.exists() and not found.is_file():
            raise InputError(f"cannot write {found}: it is a device and no file; {remedy}")
        while not place.exists() and place != place.parent:
            place = place.parent
    except OSError as error:  # a name that is too long
        raise InputError(f"cannot write {shown(str(found))}: {error.strerror}; {remedy}") from None
    if not place.is_dir():
        raise InputError(f"cannot write {found}: {place} is no folder; {remedy}")
    if not (folder or makes_folder) and place != found.parent:
        raise InputError(
            f"cannot write {found}: there is no folder {found.parent}; make it, or {remedy}"
        )
    if not os.access(place, os.W_OK):
        raise InputError(f"cannot write {found}: {place} may not be written to; {remedy}")
    return found


def installed(what: str, extra: str, *modules: str) -> None:
    """Refuse what needs modules that only an extra brings, and say how to install it."""
    missing = next((name for name in modules if importlib.util.find_spec(name) is None), None)
    if missing is not None:
        raise InputError(
            f"{what} needs {missing}, which is not installed; run "
            f"`pip install 'penstock-llm[{extra}]'`"
        )


def _is_number(value: Any) -> bool:
    import numpy as np

    # NumPy's bool is no Real, but its spans of time are
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.timedelta64)


def limits(low: float, high: float, unit: str) -> str:
    """Return in words from where to where a number may be."""
    shortest = [
        f"{limit:,.0f}" if limit == int(limit) and abs(limit) < 1e15 else f"{limit:g}"
        for limit in (low, high)
    ]
    return f"from {shortest[0]} to {shortest[1]} {unit}".rstrip()
