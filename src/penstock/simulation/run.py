"""A run: what happened, in columns."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.distribution import Distribution
from penstock.simulation.replica_run import run_of_replica
from penstock.simulation.rows import FAILED, JobEnds, ReplicaCounts, Rows, recorded
from penstock.system.server import Server
from penstock.words import QUANTILES, STATISTICS, counted

if TYPE_CHECKING:
    from penstock.simulation.run_data import RunData
    from penstock.system.network import Network
    from penstock.system.outages import Outage
    from penstock.workload.workload import Workload

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
class Run:
    """What happened on a server, or in a network.

    A server is a network of one pool of one replica, whose jobs are requests. Times count from the
    first arrival. What had not ended when the run stopped has null times; it counts as unfinished
    and enters no end-to-end latency.

    Attributes
    ----------
    system
        What served: a server, or a network.
    tick_s
        Seconds per tick.
    arrived, finished
        Jobs; of a server they are its requests.
    n_batches
        Batches that started, less those that died with their replica.
    end
        Tick at which the run stopped.
    last_arrival
        Tick of the last arrival, or at which the run was to stop.
    busy
        Ticks spent in batches, of all replicas.
    tokens
        Tokens in batches that ended.
    started_tokens
        Tokens in batches that started.
    counted_gaps
        Times between successive output tokens of a request, stalls included, pooled over requests;
        None: not counted. Where the batch time depends on more than the token load, and in
        summaries of networks, values are rounded to 0.05%.
    preemptions, recomputed_tokens
        How often a request had to make room, and the tokens that were processed again (they count
        as tokens too).
    reused_tokens
        Tokens that requests found computed when they were admitted (they count as no tokens of any
        batch). With prefix caching what is processed again may be found too, so ``tokens`` are
        those of the finished requests, plus ``recomputed_tokens``, less ``reused_tokens``.
    mixes, mix_ticks
        Batch compositions (prefill << 32 | decode), rising, how many batches that ended had each,
        and their ticks; of a network none are counted.
    rows, folded
        Either what happened to each request, or (ttft, e2e) of all of them at each stage, with
        values rounded to 0.05%; neither, where only jobs were recorded.
    ends
        When the jobs of a network came and ended; None: each is a request.
    series_rows, queue_rows, batch_rows, allocation_rows
        What `series`, `queues`, `batches` and `allocations` make tables of; None: not recorded.
    by_replica
        The counts of each replica.
    dropped
        Requests left out because they could never fit.
    gap_sections
        Times between tokens in parts of the run with as many arrivals each, if they were asked for.
    outages, hits
        Replicas that died and came back, and the requests that were at each when it died.
    workload
        What arrived at a server.
    """

    system: "Server | Network"
    tick_s: float
    arrived: int
    finished: int
    n_batches: int
    by_replica: ReplicaCounts
    end: int
    last_arrival: int
    busy: int
    tokens: int
    started_tokens: int
    counted_gaps: Distribution | None
    mixes: tuple[Ints, Ints]
    mix_ticks: Ints
    series_rows: Ints
    rows: Rows | None
    folded: tuple[tuple[Distribution, Distribution], ...] | None
    batch_rows: Ints | None
    allocation_rows: Ints | None
    preemptions: int = 0
    recomputed_tokens: int = 0
    reused_tokens: int = 0
    dropped: int = 0
    gap_sections: tuple[Distribution, ...] = ()
    ends: JobEnds | None = None
    queue_rows: Ints | None = None
    outages: "tuple[Outage, ...]" = ()
    hits: tuple[int, ...] = ()
    workload: "Workload | None" = None

    @property
    def server(self) -> Server:
        """The server, where there is one alone."""
        if isinstance(self.system, Server):
            return self.system
        raise InputError(
            "this run is of a network, which has servers in pools; see its `network`, or take one "
            "replica with `at`"
        )

    @functools.cached_property
    def network(self) -> "Network":
        """The network; that of a server is one pool of one replica."""
        from penstock.system.network import Network

        if isinstance(self.system, Network):
            return self.system
        if self.workload is None:
            raise InputError("this run is of one replica; look at the network's run")
        return Network.single(self.workload, self.system)

    @property
    def workflow(self) -> Ints32:
        """Shape (jobs,), the place of each job's workflow in the network."""
        return self._ends.workflow

    @property
    def arrival(self) -> Ints:
        """Shape (jobs,), ticks."""
        return self._ends.arrival

    @property
    def finish(self) -> Ints:
        """Shape (jobs,), ticks; -1 for jobs that did not end."""
        return self._ends.finish

    @property
    def _ends(self) -> JobEnds:
        if self.ends is not None:
            return self.ends
        rows = recorded(self.rows, "requests")
        return JobEnds(np.zeros(rows.finish.size, np.int32), rows.arrival, rows.finish)

    @property
    def gaps(self) -> Distribution:
        """Times between successive output tokens of a request, ticks."""
        if self.counted_gaps is None:
            raise InputError(
                "this run did not count times between tokens; simulate with record='summary', "
                "'batches' or 'allocations'"
            )
        return self.counted_gaps

    @property
    def unfinished(self) -> int:
        """Jobs that arrived and did not end."""
        return self.arrived - self.finished

    @property
    def tokens_per_batch(self) -> float:
        """Tokens of a batch that began, on average; 0 without batches."""
        return self.started_tokens / max(self.n_batches, 1)

    @functools.cached_property
    def served(self) -> "Run":
        """The run without the rows of jobs that were left out because they never fit."""
        rows = self.rows
        if not self.dropped or rows is None or rows.dropped is None:
            return self
        return self.where(np.flatnonzero(~rows.dropped[rows.jobs.first_request[:-1]]))

    def where(self, jobs: Ints) -> "Run":
        """Return the run with the rows of some jobs alone."""
        rows = recorded(self.rows, "requests")
        of_them = rows.where(rows.jobs.requests_of(jobs))
        return dataclasses.replace(
            self,
            rows=dataclasses.replace(of_them, of_jobs=rows.jobs.taken(jobs), dropped=None),
            ends=None if self.ends is None else self.ends.where(jobs),
            allocation_rows=None,
        )

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
        """Share of the prompt tokens of requests that were begun that were found computed.

        What is lost by a preemption and found again is none of them.
        """
        if not isinstance(self.system, Server):
            rows = recorded(self.rows, "requests")
            begun = rows.first_token >= 0
            prompts = int(rows.prompt_tokens[begun].sum(dtype=np.int64))
            return int(rows.found[begun].sum(dtype=np.int64)) / max(prompts, 1)
        keys, batches = self.mixes  # of requests whose prompts were begun
        prefill, found = int((keys >> 32) @ batches), self.reused_tokens - self.recomputed_tokens
        return max(found, 0) / max(prefill + found, 1)

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
        """Share of the time in which a batch was running, of all replicas."""
        return self.busy / (self.by_replica.pool.size * self.end) if self.end else 0.0

    @functools.cached_property
    def ttft(self) -> Distribution:
        """Time from arrival to first token, ticks, of the requests that have one."""
        if self.folded is not None:
            return self._of_one_stage(0)
        rows = recorded(self.rows, "requests")
        return Distribution.of((rows.first_token - rows.arrival)[rows.first_token >= 0])

    @functools.cached_property
    def e2e(self) -> Distribution:
        """Time from arrival to finish, ticks, of the requests that finished."""
        if self.folded is not None:
            return self._of_one_stage(1)
        rows = recorded(self.rows, "requests")
        return Distribution.of((rows.finish - rows.arrival)[rows.finish >= 0])

    def _of_one_stage(self, metric: int) -> Distribution:
        """Return what was folded, where there is one stage alone."""
        assert self.folded is not None
        if len(self.folded) > 1:
            raise InputError(
                "a summary of a network has latencies of each stage alone; read `stages()`, or "
                "simulate with record='requests'"
            )
        return self.folded[0][metric]

    @functools.cached_property
    def growth_tokens_per_s(self) -> float:
        """Slope of the uncompleted tokens over the second half of the arrivals, tokens per second;
        in a network requests to come count too.

        A fact about this run, no verdict: near the critical load a stable queue wanders just as
        far. NaN for a run too short to have a slope.
        """
        tokens = self.series_rows[:, 3] if self.queue_rows is None else self.queue_rows[:, -1]
        return growth_per_s(self.series_rows[:, 0], tokens, self.last_arrival, self.tick_s)

    @functools.cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per job: job, workflow, arrival_ns, finish_ns."""
        return pl.DataFrame(
            {
                "job": np.arange(self.finish.size),
                "workflow": _named([w.name for w in self.network.workflows], self.workflow),
                "arrival_ns": in_ns(self.arrival, self.tick_s),
                "finish_ns": in_ns(self.finish, self.tick_s),
            }
        )

    @functools.cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request: request, arrival_ns, first_token_ns, finish_ns, prompt_tokens,
        output_tokens; and preemptions, where there can be any.

        Of a network also job, stage, pool, replica and cached_tokens, arrivals are those at its
        pool; priority, where requests have one; and tries and failed (lost with its replica, or
        with one before it; refused; left), where replicas die, requests may be refused or clients
        leave.
        """
        rows = recorded(self.rows, "requests")
        columns: dict[str, object] = {"request": np.arange(rows.arrival.size)}
        if rows.replica is not None:
            stage, nowhere = rows.jobs.stage, (rows.arrival < 0) | (rows.replica < 0)
            columns |= {
                "job": rows.jobs.job,
                "stage": _named(self.network.stages, stage),
                "pool": _named(tuple(self.network.pools), self.network.stage_pool[stage]),
                "replica": pl.Series(rows.replica).set(pl.Series(nowhere), None),
            }
        for name in ("arrival", "first_token", "finish"):
            columns[f"{name}_ns"] = in_ns(getattr(rows, name), self.tick_s)
        columns["prompt_tokens"] = rows.prompt_tokens
        columns["cached_tokens"] = rows.cached
        columns["output_tokens"] = rows.output_tokens
        columns["priority"] = None if rows.of_jobs is None else rows.of_jobs.priority
        columns |= {name: getattr(rows, name) for name in ("preemptions", "tries")}
        if rows.failed is not None:
            columns["failed"] = pl.Series(rows.failed).replace_strict(
                FAILED, default=None, return_dtype=pl.String
            )
        table = pl.DataFrame({name: of for name, of in columns.items() if of is not None})
        tokens = [name for name in table.columns if name.endswith("_tokens")]
        return table.cast(dict.fromkeys(tokens, pl.Int64))  # or their sums would be of 32 bits

    @functools.cached_property
    def series(self) -> pl.DataFrame:
        """At most 2,000 equally spaced instants (fewer for hundreds of replicas): time_s, requests,
        unprocessed_tokens, uncompleted_tokens; of requests that have come to their pool.

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
    def queues(self) -> pl.DataFrame:
        """The queues of a network at the instants of `series`, long form: time_s, what, name,
        value.

        ``what`` is ``prefill`` or ``decode`` (requests of a stage in that phase),
        ``unprocessed_tokens`` (of a replica, called ``pool/0``), or ``job_tokens``: all that the
        jobs in the network still need, requests to come included.
        """
        network, rows = self.network, recorded(self.queue_rows, "requests")
        columns = [("job_tokens", "network", rows[:, -1])]
        for index, stage in enumerate(network.stages):
            columns.append(("prefill", stage, rows[:, 1 + 2 * index]))
            columns.append(("decode", stage, rows[:, 2 + 2 * index]))
        after_stages = 1 + 2 * len(network.stages)
        pools = tuple(network.pools)
        counts = self.by_replica
        for replica, (pool, number) in enumerate(zip(counts.pool, counts.number, strict=True)):
            name = f"{pools[pool]}/{number}"
            columns.append(("unprocessed_tokens", name, rows[:, after_stages + replica]))
        time = rows[:, 0] * self.tick_s
        return pl.concat(
            pl.DataFrame({"time_s": time, "value": values}).select(
                "time_s", pl.lit(what).alias("what"), pl.lit(name).alias("name"), "value"
            )
            for what, name, values in columns
        )

    @functools.cached_property
    def batches(self) -> pl.DataFrame:
        """One row per batch that started: start_ns, duration_ns, prefill_tokens, decode_tokens,
        requests; of a network by start and then replica, after pool and replica.
        """
        rows = recorded(self.batch_rows, "batches")
        start, duration, prefill, decode, requests = rows.T[:5]
        table = pl.DataFrame(
            {
                "start_ns": in_ns(start, self.tick_s),
                "duration_ns": in_ns(duration, self.tick_s),
                "prefill_tokens": prefill,
                "decode_tokens": decode,
                "requests": requests,
            }
        )
        return self._with_replica(rows[:, 5:], table)

    @functools.cached_property
    def allocations(self) -> pl.DataFrame:
        """One row per request in a batch: batch (of its replica, from 0), request, prefill_tokens,
        decode_tokens (the paper's delta); of a network in the order of `batches`, after pool and
        replica.
        """
        rows = recorded(self.allocation_rows, "allocations")
        columns = ["batch", "request", "prefill_tokens", "decode_tokens"]
        return self._with_replica(
            rows[:, 4:], pl.DataFrame(rows[:, :4], schema=columns, orient="row")
        )

    def _with_replica(self, replica: Ints, table: pl.DataFrame) -> pl.DataFrame:
        """Put pool and replica, counted over all pools, first; a server has one alone."""
        if replica.shape[1]:
            table = self._replicas(replica[:, 0]).hstack(table)
        return table

    @functools.cached_property
    def compositions(self) -> pl.DataFrame:
        """Use of each batch composition: prefill_tokens, decode_tokens, batches, seconds, share of
        the busy time.
        """
        if not isinstance(self.system, Server):
            raise InputError(
                "batches of a network are not counted by what is in them; simulate with "
                "record='batches', and take one replica with `at`"
            )
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
        samples = {"ttft_s": self.ttft, "tbt_s": self.gaps, "e2e_s": self.e2e}
        rows = [{"metric": metric} | self._spread(of) for metric, of in samples.items()]
        return pl.DataFrame(rows, schema={"metric": pl.String, **COLUMN_TYPES})

    def latency_as_dict(self) -> dict[str, dict[str, float | None]]:
        """Return the JSON form of `latency`."""
        return {row.pop("metric"): row for row in self.latency().iter_rows(named=True)}

    def as_dict(self) -> "RunData":
        """Return the JSON form of what was simulated."""
        jobs, growth = self.arrived, self.growth_tokens_per_s
        return {
            "jobs": jobs,
            "requests": jobs if self.ends is None else recorded(self.rows, "requests").finish.size,
            "unfinished": self.unfinished,
            "batches": self.n_batches,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_s,
            "utilisation": self.utilisation,
            "growth_tokens_per_s": None if math.isnan(growth) else growth,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "reused_tokens": self.reused_tokens,
            "dropped": self.dropped,
        }

    def at(self, pool: str, replica: int) -> "Run":
        """Return what one replica did as a run of its server, to be audited for instance; it needs
        ``record="batches"``, and audits ``"allocations"``.

        Requests are numbered in order of their arrival there, and times count from the start of
        the network's run. Prompts come without the tokens that the replica had from an earlier
        request; who then needed no token at all is left out. A request that only decodes has its
        outputs, and in the convention of engines one more, which came with its prefill elsewhere;
        one without outputs has in that convention the one that ends its prefill. Times between
        tokens are pooled over the network (`gaps`), so this run has none.
        """
        return run_of_replica(self, pool, replica)

    @property
    def tbt_s(self) -> dict[str, float | None]:
        """Times between tokens, pooled over all requests, s: mean, p50, p90, p95, p99."""
        return self._spread(self.gaps)

    def workflows(self) -> pl.DataFrame:
        """E2E of the jobs of each workflow that ended, s: workflow, jobs, unfinished, mean, p50,
        p90, p95, p99; without those that never fit.
        """
        rows, run = [], self.served
        for index, workflow in enumerate(self.network.workflows):
            mine = run.workflow == index
            done = mine & (run.finish >= 0)
            jobs = int(mine.sum())
            row = {"workflow": workflow.name, "jobs": jobs, "unfinished": jobs - int(done.sum())}
            rows.append(row | self._spread((run.finish - run.arrival)[done]))
        return pl.DataFrame(rows, schema_overrides=COLUMN_TYPES)

    def stages(self) -> pl.DataFrame:
        """Latency at each stage, seconds: stage, pool, metric, requests, mean, p50, p90, p95, p99;
        see `samples`.

        Quantiles are those of `latency`. Of a summary ``ttft_s`` and
        ``e2e_s`` alone, with quantiles within 0.1%.
        """
        table = []
        pools = tuple(self.network.pools)
        for index, stage in enumerate(self.network.stages):
            pool = pools[self.network.stage_pool[index]]
            for metric, ticks in self._latency(index).items():
                row = {"stage": stage, "pool": pool, "metric": metric, "requests": ticks.size}
                table.append(row | self._spread(ticks))
        return pl.DataFrame(table, schema_overrides=COLUMN_TYPES)

    def priorities(self) -> pl.DataFrame:
        """Latency by priority, seconds: workflow, stage, priority, metric, requests, mean, p50,
        p90, p95, p99; empty where requests have none.

        The smaller priority is served first. Rows without a stage are E2E of jobs, by the priority
        of their first request; others are as in `stages`.
        """
        table = []
        for workflow, stage, metric, requests, ticks in self.samples_by_priority():
            for priority, mine in self.of_priorities(requests):
                row: dict[str, object] = {"workflow": workflow, "stage": stage}
                row |= {"priority": priority, "metric": metric, "requests": mine.size}
                table.append(row | self._spread(ticks[mine]))
        types: dict[str, pl.DataType | type[pl.DataType]] = {
            "workflow": pl.String, "stage": pl.String, "priority": pl.Int64, "metric": pl.String,
            "requests": pl.Int64, **dict.fromkeys(STATISTICS, pl.Float64),
        }  # fmt: skip
        return pl.DataFrame(table, schema=types)

    def samples_by_priority(self) -> Iterator[tuple[str, str | None, str, Ints, Ints | Floats]]:
        """Yield workflow, stage (None: whole jobs), metric, the requests that have it (of a job the
        first) and its ticks; nothing where requests have no priority.
        """
        rows = recorded(self.rows, "requests")
        if rows.jobs.priority is None:
            return
        for index, workflow in enumerate(self.network.workflows):
            done = np.flatnonzero((self.workflow == index) & (self.finish >= 0))
            first = rows.jobs.first_request[:-1][done]
            yield workflow.name, None, "e2e_s", first, (self.finish - self.arrival)[done]
            for number in range(*self.network.first_stage[index : index + 2].tolist()):
                for metric, (requests, ticks) in self.samples(number).items():
                    if metric in ("ttft_s", "e2e_s"):
                        yield workflow.name, self.network.stages[number], metric, requests, ticks

    def of_priorities(self, requests: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield each priority that some of the requests have, rising, and their places among
        them.
        """
        priority = recorded(self.rows, "requests").jobs.priority
        if priority is None:
            return
        for value in np.unique(priority[requests]).tolist():
            yield value, np.flatnonzero(priority[requests] == value)

    def _latency(self, stage: int) -> Mapping[str, Distribution | Ints | Floats]:
        """Return the ticks of each metric at a stage, as far as they were kept."""
        if self.folded is not None:
            return dict(zip(("ttft_s", "e2e_s"), self.folded[stage], strict=True))
        return {metric: ticks for metric, (_, ticks) in self.samples(stage).items()}

    def samples(self, stage: int) -> dict[str, tuple[Ints, Ints | Floats]]:
        """Return, for each metric at a stage by its number, the requests that have it, and its
        ticks.

        ``ttft_s``: from arrival at a replica to the first token. ``e2e_s``: to the last.
        ``tpot_s``: from the first to the last over the tokens after the first, where there are
        some. ``join_wait_s``, at joins: what each branch that is done waits for the others, under
        its last request.
        """
        rows = recorded(self.rows, "requests")
        jobs = rows.jobs
        here = jobs.stage == stage
        started = np.flatnonzero(here & (rows.first_token >= 0))
        done = np.flatnonzero(here & (rows.finish >= 0))
        several = done[(rows.first_token[done] >= 0) & (jobs.output[done] > 1)]
        samples: dict[str, tuple[Ints, Ints | Floats]] = {
            "ttft_s": (started, (rows.first_token - rows.arrival)[started]),
            "e2e_s": (done, (rows.finish - rows.arrival)[done]),
            "tpot_s": (
                several,
                (rows.finish - rows.first_token)[several] / (jobs.output[several] - 1),
            ),
        }
        if (jobs.pending[here] > 1).any():
            ended = np.flatnonzero((jobs.child > 0) & (rows.finish >= 0))
            join = ended + jobs.child[ended]
            ended = ended[here[join] & (jobs.pending[join] > 1) & (rows.arrival[join] >= 0)]
            join = ended + jobs.child[ended]
            delay = np.rint(jobs.wait_s[join] / self.tick_s).astype(np.int64)
            samples["join_wait_s"] = (ended, rows.arrival[join] - delay - rows.finish[ended])
        return samples

    def replicas(self) -> pl.DataFrame:
        """One row per replica: pool, replica, batches, busy (share of the time), tokens_per_s,
        load.

        ``load`` is the tokens that it processed over what it could have: at most 1.
        """
        network = self.network
        seconds = max(self.seconds, self.tick_s)
        kinds = [kind for pool in network.pools.values() for kind in pool.servers]
        capacity = np.repeat(
            [server.capacity for server, _ in kinds], [count for _, count in kinds]
        )
        counts = self.by_replica
        return self._replicas(np.arange(counts.pool.size)).with_columns(
            batches=counts.batches,
            busy=counts.busy * self.tick_s / seconds,
            tokens_per_s=counts.tokens / seconds,
            load=counts.tokens / seconds / capacity,
        )

    def _spread(self, ticks: Distribution | Ints | Floats) -> dict[str, float | None]:
        """Return mean and quantiles in seconds."""
        if not ticks.size:
            return dict.fromkeys(STATISTICS)
        shares = list(QUANTILES.values())
        if isinstance(ticks, Distribution):
            values = [ticks.mean, *map(ticks.quantile, shares)]
        else:
            values = [ticks.mean(), *np.quantile(ticks, shares)]
        return {
            name: self._seconds(float(value))
            for name, value in zip(STATISTICS, values, strict=True)
        }

    def _replicas(self, numbers: Ints) -> pl.DataFrame:
        """Name replicas that are counted over all pools: pool, replica."""
        counts = self.by_replica
        pool = _named(tuple(self.network.pools), counts.pool[numbers])
        return pl.DataFrame({"pool": pool, "replica": counts.number[numbers]})

    def _seconds(self, ticks: float) -> float:
        per_second = 1 / self.tick_s
        # A whole number of ticks to the second is divided by: that rounds once.
        if math.isclose(per_second, round(per_second), rel_tol=1e-12):
            return ticks / round(per_second)
        return ticks / per_second


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


def _named(names: Sequence[str], places: npt.NDArray[np.integer]) -> pl.Series:
    """Return names by their places."""
    return pl.Series(names)[places] if places.size else pl.Series([], dtype=pl.String)
