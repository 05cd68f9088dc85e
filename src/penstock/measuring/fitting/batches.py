"""Measured batches: what was in each, and how long it took."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError

Array = npt.NDArray[np.float64]

# Share of steps between rows that go one way in a sweep, or come again after one; in a run of an
# engine loads go both ways, in no order.
_SORTED = 0.9
# Rows in which a sweep is sought that begins again for each value of something else.
_LOOKED_AT = 2_048


class Gap(NamedTuple):
    """Seconds from the end of a batch to the start of the next one, of an engine that is busy."""

    seconds: float  # a usual one: the median
    # Ends of its 95% interval.
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredBatches:
    """Batches that an engine processed, in the order of the file.

    Parameters
    ----------
    seconds
        Shape (n,), how long each took.
    tokens
        Shape (n,), its token load: prefill and decode tokens.
    prefill_tokens, decode_tokens, requests
        Shape (n,), tokens in each phase, and requests in both; None where not known. Of prefill and
        decode tokens one is enough: the other is the rest.
    squares, pairs
        Shape (n,): over the prompts of a batch, each with n new tokens and l before them, the sums
        of n^2 and of n l.
    context
        Shape (n,): over its decodes, the sum of tokens before them.
    source
        File and format, for messages and for batch-time files.
    left_out
        Rows of the file that could not be used.
    notes
        What the file does not say exactly, in words.
    sweep
        Whether somebody chose the batches, so that their order says nothing about time; None: told
        by the token loads.
    averaged
        Whether each row is the median of many batches: then none is an outlier.
    context_block
        Tokens of a KV block, where the context was counted in blocks; None: it was counted in
        tokens, or blocks are short.
    gap
        What lies between two batches and is not in ``seconds``; None: nothing, or it is not known.
    """

    seconds: Array
    tokens: Array
    prefill_tokens: Array | None = None
    decode_tokens: Array | None = None
    requests: Array | None = None
    squares: Array | None = None
    pairs: Array | None = None
    context: Array | None = None
    source: str = "measured batches"
    left_out: int = 0
    notes: tuple[str, ...] = ()
    sweep: bool | None = None
    averaged: bool = False
    context_block: float | None = None
    gap: Gap | None = None

    def __post_init__(self) -> None:
        for name in COLUMNS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._column(name))
        bad = ~((self.seconds >= SHORTEST_S) & (self.tokens > 0))
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{self.source}: batch {row + 1:,} has {self.tokens[row]:g} tokens and takes "
                f"{self.seconds[row]:g} s, but a batch carries tokens and takes time; drop it"
            )
        self._split_tokens()

    def _split_tokens(self) -> None:
        """Refuse phases that do not add up to the token load; of one, the other is the rest."""
        parts = {name: getattr(self, f"{name}_tokens") for name in ("prefill", "decode")}
        known = {name: tokens for name, tokens in parts.items() if tokens is not None}
        if not known:
            if self.squares is not None or self.pairs is not None:
                raise InputError(
                    f"{self.source}: pairs of tokens in prompts are known, but not how many tokens "
                    "are prefill, so what decodes add is unclear; give prefill_tokens, too"
                )
            return
        rest = self.tokens - sum(known.values())
        off = np.abs(rest) > 1e-6 * self.tokens if len(known) == 2 else rest < 0
        if off.any():
            row = int(np.argmax(off) if len(known) == 2 else np.argmin(rest))
            has = " and ".join(f"{tokens[row]:g} {name}" for name, tokens in known.items())
            raise InputError(
                f"{self.source}: batch {row + 1:,} has {has} tokens, but {self.tokens[row]:g} in "
                "all; correct one"
            )
        for name in parts.keys() - known.keys():
            object.__setattr__(self, f"{name}_tokens", rest)

    def _column(self, name: str) -> Array:
        """Return a column as finite numbers of at least 0, as many as there are batches."""
        values = checks.column(f"{self.source}: {name}", getattr(self, name)).astype(np.float64)
        if values.size != np.size(self.seconds):
            raise InputError(
                f"{self.source}: {values.size:,} values of {name} for {np.size(self.seconds):,} "
                "batches; give one each"
            )
        low, high = limits_of(name)
        bad = ~((values >= low) & (values <= high))  # not finite, too
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"{self.source}: {name} of batch {row + 1:,} is {values[row]:g}, but must be from "
                f"{low:g} to {high:g}, or no model can be fitted; correct or drop it"
            )
        return values

    def __len__(self) -> int:
        return int(self.seconds.size)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> "MeasuredBatches":
        """Return some of the batches: a mask, or positions."""
        known = {name: getattr(self, name) for name in COLUMNS if getattr(self, name) is not None}
        chosen: dict[str, Any] = {name: values[rows] for name, values in known.items()}
        return dataclasses.replace(self, **chosen)

    def up_to(self, tokens: int) -> "MeasuredBatches":
        """Return the batches of at most so many tokens.

        Raises
        ------
        InputError
            If there is none.
        """
        most = checks.whole(
            "the largest token load", tokens, 1, 2**40, "tokens", "larger batches are left out"
        )
        if self.tokens.min() > most:
            raise InputError(
                f"{self.source}: the smallest batch has {self.tokens.min():,.0f} tokens, so none "
                f"is left of at most {most:,}; allow larger ones"
            )
        return self.take(self.tokens <= most)

    @property
    def is_sweep(self) -> bool:
        """Whether the order of rows says nothing about time: by their reader, or by token loads.

        Rows sorted by token load, and the same loads in the same order again and again, are a
        sweep.
        """
        if self.sweep is not None:
            return self.sweep
        steps = np.diff(self.tokens)
        steps = steps[steps != 0]
        if not steps.size or max(np.mean(steps > 0), np.mean(steps < 0)) > _SORTED:
            return bool(steps.size)
        steps = steps[:_LOOKED_AT]
        periods = range(2, steps.size // 2 + 1)
        return any(np.mean(steps[period:] == steps[:-period]) > _SORTED for period in periods)

    @property
    def blurred_context(self) -> float | None:
        """Mean tokens before a decode, where KV blocks are too long to tell it; else None."""
        if self.context is None or self.decode_tokens is None or not self.context_block:
            return None
        mean = float(self.context.sum() / max(self.decode_tokens.sum(), 1.0))
        return mean if self.context_block > _COARSE * mean > 0 else None

    @property
    def kinds(self) -> list[npt.NDArray[np.int64]]:
        """Rows among which outliers are found: with prefill, and without, where known."""
        if self.averaged:
            return []
        if self.prefill_tokens is None:
            return [np.arange(len(self))]
        return [np.flatnonzero(self.prefill_tokens > 0), np.flatnonzero(self.prefill_tokens == 0)]

    def blocks(self, count: int, seed: int = 0) -> list[npt.NDArray[np.int64]]:
        """Cut the rows into equal blocks: neighbours in time, or dealt out at random in a sweep.

        Batches close in time resemble each other, so that single rows held out of a fit would be
        too easy to predict; blocks of a sweep would be whole ranges of token loads, which must be
        extrapolated.
        """
        order = (
            np.random.default_rng(seed).permutation(len(self))
            if self.is_sweep
            else np.arange(len(self))
        )
        return [np.sort(block) for block in np.array_split(order, min(count, len(self)))]


_COARSE = 0.25  # share of the mean context from which on a block blurs it

SHORTEST_S = 1e-9
"""What a batch takes at least: below, relative errors have no meaning."""

_MOST = {
    "seconds": 1e6, "tokens": 1e9, "prefill_tokens": 1e9, "decode_tokens": 1e9, "requests": 1e9,
    "squares": 1e18, "pairs": 1e18, "context": 1e15,
}  # fmt: skip
COLUMNS = tuple(_MOST)
"""What is known of each batch."""


def limits_of(column: str) -> tuple[float, float]:
    """Return the least and the most that a column of `COLUMNS` can be."""
    return 0.0, _MOST[column]


def joined(parts: list[MeasuredBatches]) -> MeasuredBatches:
    """Put batches of several files together; a column that one of them lacks is dropped."""
    if len(parts) == 1:
        return parts[0]
    values = {name: [getattr(part, name) for part in parts] for name in COLUMNS}
    columns: dict[str, Any] = {
        name: np.concatenate(of_parts)
        for name, of_parts in values.items()
        if not any(column is None for column in of_parts)
    }
    return MeasuredBatches(
        **columns,
        source=", ".join(part.source for part in parts),
        left_out=sum(part.left_out for part in parts),
        sweep=parts[0].sweep if len({part.sweep for part in parts}) == 1 else None,
        averaged=all(part.averaged for part in parts),
        context_block=max(
            (part.context_block for part in parts if part.context_block), default=None
        ),
        gap=_joined_gap([part.gap for part in parts]),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _joined_gap(gaps: list[Gap | None]) -> Gap | None:
    """Return the middle one of the gaps that are known, and an interval that holds all of them."""
    known = sorted(gap for gap in gaps if gap is not None)
    if not known:
        return None
    middle = known[len(known) // 2].seconds
    return Gap(middle, min(gap.low for gap in known), max(gap.high for gap in known))
