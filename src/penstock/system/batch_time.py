"""How long a batch takes: seconds as a function of its token load.

Every model is a frozen dataclass that answers `batch_time(tokens)`, element by element for arrays.
An empty batch is no batch: it takes 0 s (the paper's formula would give c; its dynamics need 0).
"""

import abc
import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.errors import InputError

MOST_TOKENS = 2**20
"""Largest token budget: batch times are tabulated up to it."""

Seconds = npt.NDArray[np.float64]


def _require(name: str, value: float, low: float, unit: str) -> None:
    if not (np.isfinite(value) and value >= low):
        raise InputError(f"{name} is {value} {unit}, but must be at least {low:g}: no batch takes negative time")


class BatchTime(abc.ABC):
    """Seconds that one forward pass takes, given the tokens in it."""

    @abc.abstractmethod
    def _seconds(self, tokens: Seconds) -> Seconds:
        """Seconds for each positive token load."""

    def __call__(self, tokens: npt.ArrayLike) -> Seconds:
        """Return the seconds of batches with so many tokens; 0 for an empty one.

        Parameters
        ----------
        tokens
            Any shape, tokens per batch, not negative.
        """
        load = np.asarray(tokens, np.float64)
        if (load < 0).any():
            raise InputError(f"a batch of {load.min():g} tokens: the token load must not be negative")
        return np.where(load > 0, self._seconds(np.maximum(load, 1.0)), 0.0)

    def table(self, token_budget: int) -> Seconds:
        """Return t_b for b = 0 .. token_budget, in seconds; shape (token_budget + 1,)."""
        return self(np.arange(token_budget + 1))

    def capacity(self, token_budget: int) -> float:
        """Return the most tokens per second that batches within the budget can carry.

        It is max over 1 <= b <= token_budget of b / t_b, which is b_max / t_bmax where a fuller batch is never
        slower per token (the paper's Assumption 1).
        """
        return self.best_load(token_budget)[1]

    def best_load(self, token_budget: int) -> tuple[int, float]:
        """Return the token load at which b / t_b is largest, and that rate in tokens/s."""
        loads = np.arange(1, token_budget + 1)
        rates = loads / self(loads)
        best = int(np.argmax(rates))
        return best + 1, float(rates[best])


@dataclasses.dataclass(frozen=True)
class PiecewiseConstant(BatchTime):
    """t_b = c + a ceil(b / b0): a step for every block of b0 tokens (paper, eq:batch-processing-time).

    Parameters
    ----------
    c
        Seconds that every batch takes, whatever is in it.
    a
        Seconds per block.
    b0
        Tokens per block.
    """

    c: float
    a: float
    b0: int

    def __post_init__(self) -> None:
        _require("c", self.c, 0, "s")
        _require("a", self.a, 0, "s")
        _require("b0", self.b0, 1, "tokens")
        if self.b0 != int(self.b0):
            raise InputError(f"b0 is {self.b0} tokens, but a block holds a whole number of tokens")
        _not_instant(self)

    def _seconds(self, tokens: Seconds) -> Seconds:
        return self.c + self.a * np.ceil(tokens / self.b0)


@dataclasses.dataclass(frozen=True)
class Affine(BatchTime):
    """t_b = c + a b: a fixed cost, and a cost for every token.

    Parameters
    ----------
    c
        Seconds that every batch takes.
    a
        Seconds per token.
    """

    c: float
    a: float

    def __post_init__(self) -> None:
        _require("c", self.c, 0, "s")
        _require("a", self.a, 0, "s per token")
        _not_instant(self)

    def _seconds(self, tokens: Seconds) -> Seconds:
        return self.c + self.a * tokens


@dataclasses.dataclass(frozen=True)
class Hinge(BatchTime):
    """t_b = c + a max(b - b0, 0): flat while memory-bound, then a cost for every further token.

    Parameters
    ----------
    c
        Seconds of a batch of up to b0 tokens.
    a
        Seconds for each token beyond.
    b0
        Tokens that come at no extra cost.
    """

    c: float
    a: float
    b0: float

    def __post_init__(self) -> None:
        _require("c", self.c, 0, "s")
        _require("a", self.a, 0, "s per token")
        _require("b0", self.b0, 0, "tokens")
        _not_instant(self)

    def _seconds(self, tokens: Seconds) -> Seconds:
        return self.c + self.a * np.maximum(tokens - self.b0, 0.0)


@dataclasses.dataclass(frozen=True)
class Measured(BatchTime):
    """Measured batch times, straight lines between them.

    Below the first measurement a batch takes as long as the first; beyond the last the model refuses, because
    nothing is known there.

    Parameters
    ----------
    tokens
        Token loads, rising.
    seconds
        Batch times at those loads.
    """

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or not self.tokens:
            raise InputError(
                f"{len(self.tokens)} token loads and {len(self.seconds)} batch times: give one time per load"
            )
        if not all(np.isfinite(self.tokens)) or self.tokens[0] < 1 or (np.diff(self.tokens) <= 0).any():
            raise InputError("measured token loads must start at 1 or more and rise; sort them and drop repeats")
        for load, time in zip(self.tokens, self.seconds, strict=True):
            if not (np.isfinite(time) and time > 0):
                raise InputError(f"the measured batch of {load:g} tokens takes {time} s, but a batch takes time")

    @classmethod
    def read(cls, path: str | Path) -> "Measured":
        """Read a CSV file with the columns ``tokens`` and one of ``seconds``, ``ms`` or ``us``.

        Several measurements at one token load are averaged.
        """
        try:
            frame = pl.read_csv(path)
        except (OSError, pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"cannot read batch times from {path}: {reason}; give a CSV with tokens,seconds") from None
        scale = {"seconds": 1.0, "ms": 1e-3, "us": 1e-6}
        unit = next((u for u in scale if u in frame.columns), None)
        if unit is None or "tokens" not in frame.columns:
            raise InputError(
                f"{path} has the columns {', '.join(frame.columns)}; batch times need `tokens` and `seconds`, `ms` or `us`"
            )
        for name in ("tokens", unit):
            if not frame[name].dtype.is_numeric() or frame[name].null_count():
                raise InputError(f"{path}: column {name!r} holds something that is no number; mend or drop those rows")
        mean = frame.group_by("tokens").agg(pl.col(unit).mean()).sort("tokens")
        return cls(tuple(mean["tokens"].to_list()), tuple((mean[unit] * scale[unit]).to_list()))

    def _seconds(self, tokens: Seconds) -> Seconds:
        if tokens.max(initial=0) > self.tokens[-1]:
            raise InputError(
                f"a batch of {tokens.max():,.0f} tokens is beyond the last measurement ({self.tokens[-1]:,.0f} tokens); "
                "measure further or lower the token budget"
            )
        return np.interp(tokens, self.tokens, self.seconds)


def _not_instant(model: BatchTime) -> None:
    if not model(1) > 0:
        raise InputError(f"{model} takes no time for one token: give a positive c or a, or capacity would be infinite")
