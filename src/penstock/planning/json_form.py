"""Answers as plain data for JSON."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from penstock.checking.targets import Target


def json_form(value: Any) -> Any:
    """Return lists and mappings of a value's parts; targets as text, what is no number as None."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, Target):
        return str(value)
    if dataclasses.is_dataclass(value):
        return parts(value, *(field.name for field in dataclasses.fields(value)))
    if isinstance(value, Mapping):
        return {key: json_form(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parts(value: Any, *names: str) -> dict[str, Any]:
    """Return the JSON form of some attributes, by name."""
    return {name: json_form(getattr(value, name)) for name in names}
