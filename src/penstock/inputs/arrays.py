"""Arrays by what they hold, and tables of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ints32 = npt.NDArray[np.int32]


class Columns:
    """A dataclass of arrays of the same length, some of which may be None."""

    def where(self, chosen: Any) -> Self:
        """Return some of the rows, by their places or a mask."""
        columns = {}
        for name, value in self.columns():
            if isinstance(value, Columns):
                columns[name] = value.where(chosen)
            else:
                columns[name] = value[chosen]
        return dataclasses.replace(self, **columns)  # type: ignore[type-var]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Put tables after one another; one alone is not copied."""
        first = parts[0]
        if len(parts) == 1:
            return first
        columns = {
            name: getattr(type(value), "joined", np.concatenate)(
                [getattr(part, name) for part in parts]
            )
            for name, value in first.columns()
        }
        return dataclasses.replace(first, **columns)  # type: ignore[type-var]

    def columns(self) -> list[tuple[str, Any]]:
        """Return the columns that are there, by name."""
        columns = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return [(name, value) for name, value in columns if value is not None]
