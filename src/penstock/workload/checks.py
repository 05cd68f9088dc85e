"""Check values that the user gives; what cannot be used is said in one line."""

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError


def number(what: str, value: Any, low: float, high: float, unit: str, why: str) -> float:
    """Return the value as a float.

    Parameters
    ----------
    what
        Name of the value.
    value
        What was given.
    low, high
        Limits, both allowed.
    unit, why
        Unit of the limits, and what follows beyond them or what to do instead.

    Raises
    ------
    InputError
        If it is no number from ``low`` to ``high``.
    """
    if not _is_number(value) or not low <= value <= high:
        raise InputError(f"{what} is {shown(value)}, but must be a number {_limits(low, high, unit)}: {why}")
    return float(value)


def whole(what: str, value: Any, low: int, high: int, unit: str, why: str) -> int:
    """Return the value as an int, if it is a whole number; else as `number`."""
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise InputError(f"{what} is {shown(value)}, but must be a whole number {_limits(low, high, unit)}: {why}")
    return int(value)


def column(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return a copy of the values as a one-dimensional array of numbers; one number is a column of one.

    Raises
    ------
    InputError
        If they are something else, or none.
    """
    try:
        given = np.array(values, ndmin=1)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths; give a one-dimensional array of numbers") from None
    if given.ndim != 1 or given.dtype.kind not in "iuf":
        raise InputError(
            f"{name} is an array of {given.dtype} of shape {given.shape}; give a one-dimensional array of numbers"
        )
    if not given.size:
        raise InputError(f"{name} is empty; give at least one number")
    return given


def shown(value: object) -> str:
    """Put a value on one line, shortened."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    text = str(value) if _is_number(value) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)  # NumPy's bool is no Real


def _limits(low: float, high: float, unit: str) -> str:
    shortest = [f"{limit:,.0f}" if limit == int(limit) else f"{limit:g}" for limit in (low, high)]
    return f"from {shortest[0]} to {shortest[1]} {unit}".rstrip()
