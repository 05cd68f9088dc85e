"""Which requests may the kernel still need?"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints, Ints32
from penstock.kernel.due_epochs import NEVER
from penstock.workload.workload import Requests


@dataclasses.dataclass
class Window:
    """Requests that the kernel may need, in order of arrival; ticks, tokens, -1: not known yet."""

    arrival: Ints
    prompt: Ints32
    output: Ints32
    priority: Ints32
    declared: Ints32  # output tokens that they say they may make
    first_token: Ints
    finish: Ints

    def __post_init__(self) -> None:
        """Have arrays of just these types: compiled code takes them on trust."""
        for name in ("arrival", "first_token", "finish"):
            setattr(self, name, np.ascontiguousarray(getattr(self, name), np.int64))
        for name in ("prompt", "output", "priority", "declared"):
            setattr(self, name, np.ascontiguousarray(getattr(self, name), np.int32))

    @classmethod
    def of(
        cls,
        arrival: Ints,
        prompt: Ints32,
        output: Ints32,
        priority: npt.NDArray[Any] | None = None,
        declared: npt.NDArray[Any] | None = None,
    ) -> "Window":
        """Take requests of which nothing has happened yet."""
        never = np.full(arrival.size, -1, np.int64)
        rank = np.zeros(arrival.size, np.int32) if priority is None else priority.astype(np.int32)
        declared = output if declared is None else declared.astype(np.int32)
        return cls(arrival, prompt, output, rank, declared, never, never.copy())

    @classmethod
    def of_requests(cls, requests: Requests, tick_s: float) -> "Window":
        """Round arrival times to the nearest tick, once."""
        latest = float(requests.arrival_s.max(initial=0.0))
        if latest / tick_s >= NEVER / 4:
            raise InputError(
                f"an arrival {latest:g} s after the first is more ticks of {tick_s:g} s than can "
                "be counted; "
                "ask for fewer requests, a higher rate, or a larger tick_s"
            )
        arrival = np.rint(requests.arrival_s / tick_s).astype(np.int64)
        prompt, output = (
            requests.prompt_tokens.astype(np.int32),
            requests.output_tokens.astype(np.int32),
        )
        return cls.of(arrival, prompt, output, requests.priority, requests.declared)

    @classmethod
    def joined(cls, parts: "Sequence[Window]") -> "Window":
        """Put windows after one another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    @property
    def longest(self) -> int:
        """Most tokens of a request, prompt and output together; at least 1."""
        return int((self.prompt.astype(np.int64) + self.output).max(initial=1))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays."""
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def where(self, chosen: Bools | slice) -> "Window":
        """Return some of the requests."""
        return Window(*(column[chosen] for column in self.columns))

    def split(self, count: int) -> tuple["Window", "Window"]:
        """Return the first ``count`` requests, and the others."""
        return self.where(slice(count)), Window(*(column[count:].copy() for column in self.columns))
