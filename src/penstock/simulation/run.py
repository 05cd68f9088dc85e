"""A run: what happened, in columns."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints, Ints32
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.distribution import Distribution
from penstock.system.server import Server
from penstock.words import QUANTILES, STATISTICS, counted

T = TypeVar("T")
Record = Literal["summary", "requests", "batches", "allocations"]

TICK_S = 1e-9
"""Seconds per tick, unless told otherwise."""

COLUMN_TYPES: dict[str, type[pl.DataType]] = dict.fromkeys(STATISTICS, pl.Float64)
"""Columns of a table of latencies, and their type."""


def checked_tick(tick_s: float) -> float:
    """Return the seconds of a tick, if times can be counted in them."""
    return checks.number(
        "tick_s", tick_s, 1e-18, 1e6, "s", "times are counted in ticks of so many seconds"
    )


def stop_tick(until: float | None, tick_s: float) -> int:
    """Return the tick at which a run is to stop, or NEVER."""
    if until is None:
        return NEVER
    checks.number(
        "until", until, tick_s, NEVER / 4 * tick_s, "s", "it is the simulated time at which to stop"
    )
    return round(until / tick_s)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """What happened to each request, in order of arrival; -1 for what did not."""

    # Shape (requests,), ticks since the first arrival.
    arrival: Ints
    prompt_tokens: Ints32  # shape (requests,), tokens
    output_tokens: Ints32  # shape (requests,), tokens
    first_token: Ints
    finish: Ints
    preemptions: Ints | None = None  # shape (requests,); None where nothing can be preempted
    # Shape (requests,): those that could never fit; None where all could.
    dropped: Bools | None = None

    @property
    def tpot(self) -> Ints:
        """Times per output token, as benchmarks have them: from the first token to the last, over
        the tokens after the first; ticks, of the requests that finished with several.
        """
        several = (self.finish >= 0) & (self.output_tokens > 1)
        decoding = (self.finish - self.first_token)[several]
        return np.rint(decoding / (self.output_tokens[several] - 1)).astype(np.int64)

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """Put requests after one another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(None if one[0] is None else np.concatenate(one) for one in columns))  # type: ignore[arg-type]

    def where(self, chosen: Bools | slice) -> "Rows":
        """Return some of the requests."""
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Rows(*(None if column is None else column[chosen] for column in columns))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What happened.

    Times count from the first arrival. Requests that were not finished when the run stopped have
    null times; they count as unfinished and enter no end-to-end latency.

    Attributes
    ----------
    server
        What served.
    tick_s
        Seconds per tick.
    arrived, finished
        Requests.
    n_batches
        Batches that started.
    end
        Tick at which the run stopped.
    last_arrival
        Tick of the last arrival.
    busy
        Ticks spent in batches.
    tokens
        Tokens in batches that ended.
    started_tokens
        Tokens in batches that started.
    gaps
        Times between successive output tokens of a request, stalls included, pooled over requests.
        Where the batch time depends on more than the token load, values are rounded to 0.05%.
    mixes, mix_ticks
        Batch compositions (prefill << 32 | decode), rising, how many batches that ended had each,
        and their ticks.
    preemptions, recomputed_tokens
        How often a request had to make room, and the tokens that were processed again (they count
        as tokens too).
    reused_tokens
        Tokens that requests found computed when they were admitted (they count as no tokens of any
        batch). With prefix caching what is processed again may be found too, so ``tokens`` are
        those of the finished requests, plus ``recomputed_tokens``, less ``reused_tokens``.
    dropped
        Requests left out because they could never fit.
    gap_sections
        Times between tokens in parts of the run with as many arrivals each, if they were asked for.
    rows, folded
        Either what happened to each request, or (ttft, e2e) of all of them with values rounded to
        0.05%.
    series_rows, batch_rows, allocation_rows
        What `series`, `batches` and `allocations` make tables of; None: not recorded.
    """

    server: Server
    tick_s: float
    arrived: int
    finished: int
    n_batches: int
    end: int
    last_arrival: int
    busy: int
    tokens: int
    started_tokens: int
    gaps: Distribution
    mixes: tuple[Ints, Ints]
    mix_ticks: Ints
    series_rows: Ints
    rows: Rows | None
    folded: tuple[Distribution, Distribution] | None
    batch_rows: Ints | None
    allocation_rows: Ints | None
    preemptions: int = 0
    recomputed_tokens: int = 0
    reused_tokens: int = 0
    dropped: int = 0
    gap_sections: tuple[Distribution, ...] = ()

    @property
    def unfinished(self) -> int:
        """Requests that arrived and did not finish."""
        return self.arrived - self.finished

    @property
    def seconds(self) -> float:
        """Length of the run, simulated seconds."""
        return float(self._seconds(self.end))

    @property
    def tokens_per_s(self) -> float:
        """Tokens processed per simulated second, prefill and decode together."""
        return self.tokens / self.seconds if self.end else 0.0

    @property
    def found_share(self) -> float:
        """Share of the prompt tokens that were found computed, of requests whose prompts were
        begun.

        What is lost by a preemption and found again is none of them.
        """
        prefill = int((self.mixes[0] >> 32) @ self.mixes[1])
        found = max(self.reused_tokens - self.recomputed_tokens, 0)
        return found / max(prefill + self.reused_tokens - self.recomputed_tokens, 1)

    @property
    def memory_facts(self) -> str:
        """What KV memory did, in words that end a sentence; nothing where it did nothing."""
        facts = ""
        if self.preemptions and self.reused_tokens:
            facts = (
                f"; {self.preemptions:,} preemptions, whose {self.recomputed_tokens:,} tokens were "
                "found again or done again"
            )
        elif self.preemptions:
            share = self.recomputed_tokens / self.tokens if self.tokens else 0.0
            facts = f"; {self.preemptions:,} preemptions, {share:.1%} of the tokens were done again"
        if self.reused_tokens:
            facts += f"; {self.reused_tokens:,} tokens were found in the prefix cache"
        if self.dropped:
            facts += f"; dropped: {counted(self.dropped, 'request')} that can never fit"
        return facts

    @property
    def utilisation(self) -> float:
        """Share of the time in which a batch was running."""
        return self.busy / self.end if self.end else 0.0

    @functools.cached_property
    def ttft(self) -> Distribution:
        """Time from arrival to first token, ticks, of the requests that have one."""
        if self.folded:
            return self.folded[0]
        rows = recorded(self.rows, "requests")
        return Distribution.of((rows.first_token - rows.arrival)[rows.first_token >= 0])

    @functools.cached_property
    def e2e(self) -> Distribution:
        """Time from arrival to finish, ticks, of the requests that finished."""
        if self.folded:
            return self.folded[1]
        rows = recorded(self.rows, "requests")
        return Distribution.of((rows.finish - rows.arrival)[rows.finish >= 0])

    @functools.cached_property
    def growth_tokens_per_s(self) -> float:
        """Slope of the uncompleted tokens over the second half of the arrivals, tokens per second.

        A fact about this run, no verdict: near the critical load a stable queue wanders just as
        far. NaN for a run too short to have a slope.
        """
        return growth_per_s(
            self.series_rows[:, 0], self.series_rows[:, 3], self.last_arrival, self.tick_s
        )

    @functools.cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request: request, arrival_ns, first_token_ns, finish_ns, prompt_tokens,
        output_tokens.

        And preemptions, on a server with memory or the scheduler of an engine.
        """
        rows = recorded(self.rows, "requests")
        columns = {
            "request": np.arange(rows.arrival.size),
            "arrival_ns": in_ns(rows.arrival, self.tick_s),
            "first_token_ns": in_ns(rows.first_token, self.tick_s),
            "finish_ns": in_ns(rows.finish, self.tick_s),
            "prompt_tokens": rows.prompt_tokens.astype(
                np.int64
            ),  # or Polars would sum them in 32 bits
            "output_tokens": rows.output_tokens.astype(np.int64),
        }
        if rows.preemptions is not None:
            columns["preemptions"] = rows.preemptions
        return pl.DataFrame(columns)

    @functools.cached_property
    def series(self) -> pl.DataFrame:
        """At most 2,000 equally spaced instants: time_s, requests, unprocessed_tokens,
        uncompleted_tokens.

        Exact values after the finishes and arrivals at that instant and before the batch formed
        then. Unprocessed tokens (the paper's abs(X)) fall when a batch starts, uncompleted ones
        when it ends.
        """
        time, requests, unprocessed, uncompleted = self.series_rows.T
        return pl.DataFrame(
            {
                "time_s": time * self.tick_s,
                "requests": requests,
                "unprocessed_tokens": unprocessed,
                "uncompleted_tokens": uncompleted,
            }
        )

    @functools.cached_property
    def batches(self) -> pl.DataFrame:
        """One row per batch that started: start_ns, duration_ns, prefill_tokens, decode_tokens,
        requests.
        """
        return batch_table(recorded(self.batch_rows, "batches"), self.tick_s)

    @functools.cached_property
    def allocations(self) -> pl.DataFrame:
        """One row per request in a batch: batch, request, prefill_tokens, decode_tokens (the
        paper's delta).
        """
        return allocation_table(recorded(self.allocation_rows, "allocations"))

    @functools.cached_property
    def compositions(self) -> pl.DataFrame:
        """Use of each batch composition: prefill_tokens, decode_tokens, batches, seconds, share of
        the busy time.
        """
        keys, counts = self.mixes
        prefill, decode = keys >> 32, keys & 0xFFFFFFFF
        seconds = self.mix_ticks * self.tick_s
        return pl.DataFrame(
            {
                "prefill_tokens": prefill,
                "decode_tokens": decode,
                "batches": counts,
                "seconds": seconds,
                "share": seconds / seconds.sum() if seconds.size else seconds,
            }
        ).sort("seconds", "prefill_tokens", "decode_tokens", descending=[True, False, False])

    def latency(self) -> pl.DataFrame:
        """Latency of the requests of this run: metric, mean, p50, p90, p95, p99, in seconds.

        ``ttft_s`` runs from arrival to first token, ``e2e_s`` from arrival to finish, ``tbt_s`` has
        one sample per gap between tokens. Quantiles are linear between neighbouring samples, as
        those of `numpy.quantile`. Exact where requests were recorded; quantiles within 0.1% in a
        summary, and those of ``tbt_s`` within 0.05% where the batch time depends on more than
        the token load. Null without samples.
        """
        rows: list[dict[str, str | float | None]] = []
        for metric, samples in (("ttft_s", self.ttft), ("tbt_s", self.gaps), ("e2e_s", self.e2e)):
            row: dict[str, str | float | None] = {"metric": metric}
            if samples.size:
                row["mean"] = self._seconds(samples.mean)
                for name, share in QUANTILES.items():
                    row[name] = self._seconds(samples.quantile(share))
            rows.append(row)
        return pl.DataFrame(rows, schema={"metric": pl.String, **COLUMN_TYPES})

    def _seconds(self, ticks: float) -> float:
        per_second = 1 / self.tick_s
        # A whole number of ticks to the second is divided by: that rounds once.
        if math.isclose(per_second, round(per_second), rel_tol=1e-12):
            return ticks / round(per_second)
        return ticks / per_second


def recorded(rows: T | None, level: Record) -> T:
    """Return what a run kept at this level of recording, or say how to have it kept."""
    if rows is None:
        raise InputError(f"this run did not keep its {level}; simulate with record={level!r}")
    return rows


def batch_table(rows: Ints, tick_s: float) -> pl.DataFrame:
    """Return start, ticks, prefill and decode tokens, and requests of batches as a table."""
    start, duration, prefill, decode, requests = rows.T
    return pl.DataFrame(
        {
            "start_ns": in_ns(start, tick_s),
            "duration_ns": in_ns(duration, tick_s),
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "requests": requests,
        }
    )


def allocation_table(rows: Ints) -> pl.DataFrame:
    """Return batch, request, prefill and decode tokens of allocations as a table."""
    return pl.DataFrame(
        rows, schema=["batch", "request", "prefill_tokens", "decode_tokens"], orient="row"
    )


def growth_per_s(time: Ints, tokens: Ints, last_arrival: int, tick_s: float) -> float:
    """Return a series' slope, per second, over the last half of the arrivals; NaN: too short."""
    half = (2 * time >= last_arrival) & (time <= last_arrival)
    if half.sum() < 3:
        return float("nan")
    x = (time[half] - time[half].mean()) * tick_s
    return float(np.sum(x * (tokens[half] - tokens[half].mean())) / np.sum(x * x))


def in_ns(ticks: Ints, tick_s: float) -> pl.Series:
    """Return ticks as nanoseconds, null where they are negative: what did not happen."""
    per_tick = tick_s * 1e9
    if ticks.size and ticks.max() * per_tick >= 2.0**63:
        raise InputError(
            f"{ticks.max() * tick_s:g} s is more ns than 64 bits hold; read the run's `rows`, in "
            "ticks"
        )
    whole = per_tick >= 1 and per_tick == round(per_tick)
    ns = ticks * round(per_tick) if whole else np.rint(ticks * per_tick)
    series = pl.Series(ns.astype(np.int64))
    return series.set(pl.Series(ticks < 0), None) if (ticks < 0).any() else series
