"""Batch times as they were measured: straight lines between the rows of a table."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.inputs.source import Source
from penstock.inputs.tables import PER_SECOND, as_numbers, chosen_rows, open_table, time_column
from penstock.system.batch_time import LONGEST_S, MOST_TOKENS, SHORTEST_S, BatchTime
from penstock.words import counted

_NOISE = 0.1  # share by which a larger batch may seem faster
_TWO_THINGS = 3.0  # times by which measurements of one load differ at most


@dataclasses.dataclass(frozen=True)
class Measured(BatchTime):
    """Measured batch times, straight lines between them.

    Below the first measurement a batch takes as long as the first; beyond the last the model
    refuses, because nothing is known there.

    Parameters
    ----------
    tokens
        Token loads, rising.
    seconds
        Batch times at those loads.
    doubts
        What the table that they are from brought up.
    """

    tokens: Sequence[float]
    seconds: Sequence[float]
    doubts: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        tokens, seconds = (
            checks.column(name, getattr(self, name)) for name in ("tokens", "seconds")
        )
        if tokens.size != seconds.size:
            raise InputError(
                f"{tokens.size:,} token loads and {seconds.size:,} batch times: give one time per "
                "load"
            )
        for load, time in zip(tokens.tolist(), seconds.tolist(), strict=True):
            remedy = "an empty batch is none; drop it"
            checks.number("a measured token load", load, 1, MOST_TOKENS, "tokens", remedy)
            remedy = "give seconds, or drop the measurement"
            what = f"the measured batch time at {load:g} tokens"
            checks.number(what, time, SHORTEST_S, LONGEST_S, "s", remedy)
        falls = np.diff(tokens) <= 0
        if falls.any():
            row = int(np.argmax(falls))
            raise InputError(
                f"measured token loads must rise, but {tokens[row + 1]:g} follows {tokens[row]:g}, "
                "so t_b is unclear; sort them and average repeats"
            )
        object.__setattr__(self, "tokens", tuple(tokens.tolist()))
        object.__setattr__(self, "seconds", tuple(seconds.tolist()))

    @classmethod
    def read(cls, path: str | Path) -> "Measured":
        """Read a table with the columns ``tokens`` and one of ``seconds``, ``ms`` or ``us``.

        CSV, TSV, JSON Lines or Parquet. Several measurements at one token load are averaged.

        Raises
        ------
        InputError
            If the file, or a value in it, cannot be used; one line that says where and why.
        """
        source = Source.at(path)
        table = open_table(source)
        unit = time_column(source, table.header)
        if unit is None or "tokens" not in table.header:
            columns = checks.shown(", ".join(table.header))
            raise source.fault(
                f"has the columns {columns}, but batch times need tokens and seconds, ms or us. "
                "Rename them"
            )
        text, _ = chosen_rows(source, table, ("tokens", unit), {})
        per_second = PER_SECOND[unit]
        times = SHORTEST_S * per_second, LONGEST_S * per_second
        limits = {"tokens": (1, MOST_TOKENS), unit: times}
        measured = as_numbers(source, table, text, limits, "from {:g} to {:,.0f}")
        time = pl.col(unit)
        rows = measured.group_by("tokens").agg(
            time.mean(), count=pl.len(), most=time.max(), least=time.min()
        )
        rows = rows.sort("tokens")
        apart = rows.filter(pl.col("most") > _TWO_THINGS * pl.col("least"))
        if len(apart):
            tokens, _, _, most, least = apart.row(0)
            raise source.fault(
                f"has {tokens:,.0f} tokens with {least:g} and with {most:g} {unit}: an average of "
                "two so different times is neither. Drop one"
            )
        again = rows.filter(pl.col("count") > 1)["tokens"]
        doubts = tuple(
            f"{source.name} has {counted(len(again), 'token load')} more than once, the first of "
            f"{load:,.0f} tokens: their times are averaged."
            for load in again[:1]
        )
        read = cls(rows["tokens"].to_list(), (rows[unit] / per_second).to_list(), doubts)
        read.refuse_falling(source.name)
        return read

    def scaled(self, factor: float) -> BatchTime:
        """Return times so many times as long."""
        return dataclasses.replace(self, seconds=[time * factor for time in self.seconds])

    def with_host(self, seconds: float) -> BatchTime:
        """Return times so many seconds longer."""
        return dataclasses.replace(self, seconds=[time + seconds for time in self.seconds])

    def as_section(self) -> dict[str, Any]:
        """Return the rows."""
        return {"measured": {"tokens": list(self.tokens), "ms": [s * 1e3 for s in self.seconds]}}

    def refuse_falling(self, name: str) -> None:
        """Refuse times that fall from one load to a larger one by more than measurements do."""
        seconds = np.array(self.seconds)
        falls = np.flatnonzero(seconds[1:] < (1 - _NOISE) * seconds[:-1])
        if falls.size:
            row = falls[0]
            raise InputError(
                f"{name}: a batch of {self.tokens[row + 1]:,.0f} tokens takes "
                f"{1e3 * seconds[row + 1]:.4g} ms, and one of {self.tokens[row]:,.0f} takes "
                f"{1e3 * seconds[row]:.4g} ms, but more tokens take no less time: columns are "
                "mixed up, or a row is wrong. Correct or drop it"
            )

    def _seconds(self, tokens: Floats) -> Floats:
        if tokens.max(initial=0) > self.tokens[-1]:
            raise InputError(
                f"a batch of {tokens.max():,.0f} tokens is beyond the last measurement, "
                f"{self.tokens[-1]:,.0f} tokens, "
                "and nothing is known there; measure further or lower the token budget"
            )
        return np.interp(tokens, self.tokens, self.seconds)
