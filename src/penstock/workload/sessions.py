"""Recorded sessions of agents: chains of calls, with the time between them and what their prompts
have in common.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Ints
from penstock.inputs.source import Source
from penstock.inputs.tables import NO_ROWS, Table, open_table
from penstock.workload.arrivals import Arrivals, Deterministic, Poisson, Replay
from penstock.workload.jobs import MOST_JOBS, Jobs, checked_seed, first_jobs
from penstock.workload.lengths import LONGEST
from penstock.workload.means import Means
from penstock.workload.patience import Clients, Patience
from penstock.workload.stage import Stage

_AT_A_TIME = 1024
"""Sessions drawn at a time; fixed, so that the first n do not depend on how many are asked for."""

_COLUMNS: Mapping[str, tuple[float, bool, str]] = {
    "idx": (2.0**53, True, "a whole number of at least 0, in order of the session's calls"),
    "t_s": (1e12, False, "a number of seconds of at least 0"),
    "think_time_s": (1e9, False, "a number of seconds from 0 to 1e9, or nothing"),
    "in_tokens": (LONGEST, True, f"a whole number of tokens from 1 to {LONGEST:,}"),
    "out_tokens": (LONGEST, True, f"a whole number of tokens from 0 to {LONGEST:,}"),
    "prefix_hit_blocks": (LONGEST, True, f"a whole number of blocks from 0 to {LONGEST:,}"),
    "block_size": (LONGEST, True, f"a whole number of tokens from 1 to {LONGEST:,}"),
}
"""Highest value, whether it is whole, and what it must be."""
_SESSION = ("trace_id", "agent")
_LOWEST = {"in_tokens": 1, "block_size": 1}
_ARRIVALS: Mapping[str, Callable[[float], Arrivals]] = {
    "poisson": Poisson,
    "deterministic": Deterministic,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Sessions:
    """Sessions of agents as they were recorded: each is a job, a chain of calls to one pool, whose
    stage is ``call``.

    Attributes
    ----------
    name
        For tables, figures and messages.
    pool
        Name of the pool that serves all calls.
    recorded
        The sessions, in order of their start.
    arrivals
        When sessions begin. A `Replay`: the recorded ones, once each; else each is drawn at random.
    seed
        For everything random.
    notices
        What reading the data brought up.
    patience
        Of the clients of each call; None: they wait for ever.
    """

    name: str
    pool: str
    recorded: Jobs
    arrivals: Arrivals
    seed: int = 0
    notices: tuple[str, ...] = ()
    patience: Patience | None = None

    @property
    def stages(self) -> dict[str, Stage]:
        """The one stage; its lengths are recorded."""
        return {"call": Stage(self.pool, "job", "job")}

    @property
    def front(self) -> list[str]:
        """What to know of recorded sessions before an answer is read."""
        return self.arrivals.doubts

    @property
    def rate(self) -> float:
        """Long-run sessions per second; NaN where all begin at one instant."""
        return self.arrivals.rate

    @property
    def branches(self) -> Ints:
        """Shape (1,), 0: its calls follow one another, and none waits for branches."""
        return np.zeros(1, np.int64)

    @property
    def ends(self) -> bool:
        """Whether sessions come to an end, as each recorded one begins once."""
        return isinstance(self.arrivals, Replay)

    @property
    def reuses(self) -> bool:
        """Whether calls go on with the context of earlier ones."""
        return bool(self.recorded.reuse.any())

    @property
    def goes_on(self) -> bool:
        """Whether calls have the context of earlier ones in their prompts."""
        return self.reuses

    @property
    def prefixes(self) -> None:
        """What recorded prompts have in common by hash ids: sessions have none."""

    def with_patience(self, patience: Patience | None) -> Self:
        """Return the same sessions, whose clients wait so long at each call."""
        return dataclasses.replace(self, patience=patience)

    def with_load(self, factor: float) -> Self:
        """Return the same sessions with their arrival rate times a factor."""
        checks.number(
            "the factor on the load", factor, 1e-12, 1e12, "", "it multiplies the arrival rate"
        )
        return dataclasses.replace(self, arrivals=self.arrivals.with_rate(self.rate * factor))

    def describe(self) -> str:
        """Say in a few words what arrives."""
        calls = self.recorded.requests / self.recorded.count
        return f"{self.name}: {self.arrivals.describe()}, sessions of {calls:.3g} calls"

    def blocks(self, seed: int | None = None) -> Iterator[Jobs]:
        """Yield sessions in order of arrival, a block at a time, for ever or until the recording
        ends.

        Parameters
        ----------
        seed
            For everything random; None: its own.
        """
        if seed is None:
            seed = self.seed
        arrival, draw, coin = _streams(checked_seed(seed))
        clients = Clients(self.patience, checked_seed(seed))
        origin, done = None, 0
        for block in self.arrivals.blocks(arrival):
            origin = block[0] if origin is None else origin
            for times in np.split(block, range(_AT_A_TIME, block.size, _AT_A_TIME)):
                if self.ends:
                    chosen = np.arange(done, done + times.size)
                else:
                    chosen = draw.integers(0, self.recorded.count, times.size)
                done += times.size
                yield clients.of(self._at(times - origin, chosen, coin))

    def jobs(self, count: int, seed: int | None = None) -> Jobs:
        """Return the first ``count`` sessions."""
        return first_jobs(self.blocks(seed), count, self.name)

    def flooded(self, stage: str, count: int, seed: int) -> Jobs:
        """Return sessions drawn at random that all begin at time 0."""
        if stage not in self.stages:
            raise InputError(
                f"{self.name} has no stage {shown(stage)}{nearest(str(stage), self.stages)}"
            )
        count = checks.whole(
            "the number of sessions", count, 1, MOST_JOBS, "", "that many are made"
        )
        _, draw, coin = _streams(checked_seed(seed))
        return self._at(np.zeros(count), draw.integers(0, self.recorded.count, count), coin)

    def _at(
        self, arrival_s: npt.NDArray[np.float64], chosen: Ints, coin: np.random.Generator
    ) -> Jobs:
        jobs = self.recorded.taken(chosen)
        coins = coin.integers(0, 2**32, jobs.requests, np.uint32)
        return dataclasses.replace(jobs, arrival_s=arrival_s, coin=coins)

    def means(self) -> Means:
        """Return exact means over the recorded sessions."""
        return self._means

    @functools.cached_property
    def _means(self) -> Means:
        jobs, calls = self.recorded, self.recorded.requests / self.recorded.count
        prompt, output = jobs.prompt.astype(np.float64), jobs.output.astype(np.float64)
        return Means(
            external=np.ones(1), onward=np.full((1, 1), 1 - 1 / calls), visits=np.full(1, calls),
            prompt=np.full(1, prompt.mean()), output=np.full(1, output.mean()),
            both=np.full(1, (output > 0).mean()),
            max_prompt=np.full(1, prompt.max()), max_output=np.full(1, output.max()),
            sampled=None, covariance=np.zeros((1, 1)),
        )  # fmt: skip


def _streams(seed: int) -> list[np.random.Generator]:
    """Return streams for arrivals, for the sessions drawn, and for coins."""
    return [
        np.random.default_rng(sequence) for sequence in np.random.SeedSequence((seed, 5)).spawn(3)
    ]


def read_sessions(
    path: str | Path,
    pool: str,
    *,
    rate: float | None = None,
    arrivals: str = "poisson",
    most_requests: int | None = None,
    seed: int = 0,
) -> Sessions:
    """Read sessions of agents, as kv-cache-tester (WEKA) records them.

    The calls of each agent in a session, a sub-agent's too, are a job: a chain in which each call
    is made ``think_time_s`` after the one before has ended. Where that time is missing it is the
    time since the call before began. Of a prompt, ``prefix_hit_blocks`` blocks are those of the
    call before.

    Parameters
    ----------
    path
        A table with the columns ``trace_id``, ``agent``, ``idx``, ``t_s``, ``think_time_s``,
        ``in_tokens``, ``out_tokens``, ``prefix_hit_blocks`` and ``block_size``.
    pool
        Name of the pool that serves them.
    rate
        Sessions per second: they are drawn at random, each as a whole. None: each begins once, when
        it was recorded to begin.
    arrivals
        With a rate: ``poisson`` or ``deterministic``.
    most_requests
        Calls of a session that are kept, from its first; None: all.
    seed
        For everything random.

    Raises
    ------
    InputError
        If the file, or a value in it, cannot be used; one line that says where and why.
    """
    if not isinstance(pool, str) or not pool:
        raise InputError(f"the pool of the sessions is {shown(pool)}; give the name of one")
    if not checks.named(arrivals, _ARRIVALS):
        raise InputError(
            f"unknown arrivals {shown(arrivals)} of sessions{nearest(str(arrivals), _ARRIVALS)}"
        )
    seed = checked_seed(seed)
    source = Source.at(path)
    rows = _rows(source, open_table(source))
    notices: list[str] = []
    missing = int(rows["think_time_s"].is_null().sum())
    if missing:
        have = "call has" if missing == 1 else "calls have"
        notices.append(
            f"{missing:,} {have} no think_time_s: it is the time since the call before began"
        )
    if most_requests is not None:
        rows = _cut(rows, most_requests, notices)
    jobs = _chains(rows)
    process = Replay(jobs.arrival_s) if rate is None else _ARRIVALS[arrivals](rate)
    return Sessions(Path(path).name.split(".")[0], pool, jobs, process, seed, tuple(notices))


def _cut(rows: pl.DataFrame, most_requests: int, notices: list[str]) -> pl.DataFrame:
    """Keep the first calls of each session, and take note of how many are left out."""
    remedy = "leave it out to keep all"
    most = checks.whole("most_requests", most_requests, 1, 2**31 - 1, "calls of a session", remedy)
    first = rows.filter(pl.int_range(pl.len()).over(_SESSION) < most)
    left = len(rows) - len(first)
    if left:
        calls, are = ("call", "is") if left == 1 else ("calls", "are")
        notices.append(f"{left:,} {calls} beyond the first {most:,} of a session {are} left out")
    return first


def _rows(source: Source, table: Table) -> pl.DataFrame:
    """Return the calls as numbers, by starts of their sessions, then session, then call."""
    names = (*_SESSION, *_COLUMNS)
    absent = [name for name in names if name not in table.header]
    if absent:
        raise source.fault(
            f"has no column {shown(absent[0])}, so these are no recorded sessions. It needs "
            f"{', '.join(names)}"
        )
    text = table.read(names)
    if text.is_empty():
        raise source.fault(NO_ROWS)
    cast = {name: _cast(source, table, text[name], name) for name in _COLUMNS}
    rows = text.select(_SESSION).with_columns(**cast)
    _check_calls(source, table, rows)
    return rows.sort(pl.col("t_s").min().over(_SESSION), *_SESSION, "idx", maintain_order=True)


def _check_calls(source: Source, table: Table, rows: pl.DataFrame) -> None:
    """Refuse a call that belongs to no session, and a second call of the same number in one."""
    nameless = (rows["trace_id"].fill_null("").str.strip_chars() == "").arg_true()
    if len(nameless):
        raise source.fault(
            f"{table.explain(nameless[0])[0]} has an empty trace_id, so which session the call "
            "belongs to is unclear. Correct or delete the row"
        )
    again = (~rows.select(*_SESSION, "idx").to_struct().is_first_distinct()).arg_true()
    if len(again):
        trace, agent, idx = rows.select(*_SESSION, "idx").row(again[0])
        raise source.fault(
            f"{table.explain(again[0])[0]} is the second call with idx {idx:,} of agent "
            f"{shown(agent)} in session "
            f"{shown(trace)}, so which comes first is unclear. Correct or delete the row"
        )


def _cast(source: Source, table: Table, text: pl.Series, name: str) -> pl.Series:
    highest, whole, meaning = _COLUMNS[name]
    stripped = text.str.strip_chars()
    number = stripped.cast(pl.Float64, strict=False)
    fits = number.is_between(_LOWEST.get(name, 0), highest) & (
        (number == number.floor()) | (not whole)
    )
    if name == "think_time_s":
        fits |= stripped.is_null() | (stripped == "")
    faults = (~fits.fill_null(False)).arg_true()
    if len(faults):
        where, problem = table.explain(faults[0])
        if problem:
            raise source.fault(f"{where} {problem}")
        value = f"column {shown(name)}: {shown(text[faults[0]])}"
        raise source.fault(f"{where}, {value}, but it must be {meaning}. Correct or delete the row")
    if whole:
        number = number.cast(pl.Int64)
    return number


def _chains(rows: pl.DataFrame) -> Jobs:
    """Return the table of jobs: each session's calls one after another."""
    trace, agent = (rows[name].rle_id().to_numpy() for name in _SESSION)
    begins = (np.diff(trace, prepend=-1) != 0) | (np.diff(agent, prepend=-1) != 0)
    ends = np.append(begins[1:], True)
    column = {name: rows[name].to_numpy() for name in _COLUMNS}
    since = np.maximum(np.diff(column["t_s"], prepend=0.0), 0)
    think = np.where(np.isnan(column["think_time_s"]), since, column["think_time_s"])
    hit = np.minimum(
        column["prefix_hit_blocks"].astype(np.float64) * column["block_size"], column["in_tokens"]
    )
    reuse = np.where(begins, 0, hit).astype(np.int32)
    first = np.flatnonzero(begins)
    starts = column["t_s"][first]
    size = len(rows)
    return Jobs(
        arrival_s=starts - starts[0], workflow=np.zeros(first.size, np.int32),
        first_request=np.append(first, size).astype(np.int64), stage=np.zeros(size, np.int32),
        prompt=column["in_tokens"].astype(np.int32), output=column["out_tokens"].astype(np.int32),
        reuse=reuse, context=-(reuse > 0).astype(np.int32), delay_s=np.where(begins, 0.0, think),
        pending=(~begins).astype(np.int32), child=(~ends).astype(np.int32),
        sibling=np.zeros(size, np.int32),
        coin=np.zeros(size, np.uint32),
    )  # fmt: skip
