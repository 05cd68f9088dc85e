"""What happened in a network: jobs, requests, joins, replicas, and how queues went."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats, Ints, Ints32
from penstock.simulation.distribution import Distribution
from penstock.simulation.replica_run import first_replicas, run_of_replica
from penstock.simulation.run import (
    COLUMN_TYPES,
    Run,
    allocation_table,
    batch_table,
    growth_per_s,
    in_ns,
    recorded,
)
from penstock.system.network import Network
from penstock.system.outages import Outage
from penstock.words import QUANTILES, STATISTICS
from penstock.workload.jobs import Jobs

NetworkRecord = Literal["jobs", "summary", "requests", "batches", "allocations"]


@dataclasses.dataclass(frozen=True, eq=False)
class RequestRows:
    """What became of each request; ticks, -1 for what did not happen. Shape (requests,) each."""

    jobs: Jobs
    replica: Ints  # at its pool, from 0
    ready: Ints  # when it arrived at its pool
    first_token: Ints
    finish: Ints
    cached: Ints32  # prompt tokens that the replica had from an earlier request
    preemptions: Ints | None = None  # None where nothing can be preempted
    # How often it was sent again, and whether it was lost, with a replica that died; of one that
    # was sent again all else is of its last try. None where no replica dies.
    tries: Ints | None = None
    lost: Bools | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkRun:
    """A run of a network.

    Attributes
    ----------
    network
        What served.
    tick_s
        Seconds per tick.
    end
        Tick at which the run ended.
    last_arrival
        Tick of the last job, or at which the run was to stop.
    workflow, arrival, finish
        Shape (jobs,): place of its workflow; ticks, -1 for jobs that did not end.
    replica_pool, n_batches, busy, tokens
        Shape (replicas,): pool; batches that ended, ticks, tokens in them.
    recomputed_tokens, reused_tokens
        Shape (replicas,): see `penstock.simulation.run.Run`.
    series_rows
        At most 2,000 instants as the kernel writes them, see `series`.
    rows
        Of the requests, if they were kept.
    folded
        (ttft, e2e) at each stage, with values rounded to 0.05%, of a summary.
    gaps
        Times between successive output tokens of a request, pooled over all, if they were counted;
        rounded to 0.05% in a summary, or where batch times depend on more than the token load.
    batch_rows, allocation_rows
        As the kernel writes them, by start and then replica, if they were kept.
    gap_sections
        Times between tokens in parts of the run with as many arrivals each, if they were asked for;
        rounded to 0.05%.
    outages, hits
        Replicas that died and came back, and the requests that were at each when it died.
    """

    network: Network
    tick_s: float
    end: int
    last_arrival: int
    workflow: Ints32
    arrival: Ints
    finish: Ints
    replica_pool: Ints
    n_batches: Ints
    busy: Ints
    tokens: Ints
    recomputed_tokens: Ints
    reused_tokens: Ints
    series_rows: Ints
    rows: RequestRows | None
    folded: list[tuple[Distribution, Distribution]] | None
    gaps: Distribution | None
    batch_rows: Ints | None
    allocation_rows: Ints | None
    gap_sections: tuple[Distribution, ...] = ()
    outages: tuple[Outage, ...] = ()
    hits: tuple[int, ...] = ()

    @property
    def arrived(self) -> int:
        """Jobs that arrived."""
        return self.arrival.size

    @property
    def finished(self) -> int:
        """Jobs that ended."""
        return int((self.finish >= 0).sum())

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return self.end * self.tick_s

    @property
    def preemptions(self) -> int | None:
        """How often requests were preempted; None where nothing can be."""
        counts = recorded(self.rows, "requests").preemptions
        return None if counts is None else int(counts.sum())

    @property
    def found_share(self) -> float:
        """Share of the prompt tokens that replicas had already."""
        rows = recorded(self.rows, "requests")
        prompts = max(int(rows.jobs.prompt.sum(dtype=np.int64)), 1)
        return int(rows.cached.sum(dtype=np.int64)) / prompts

    @functools.cached_property
    def jobs(self) -> pl.DataFrame:
        """One row per job: job, workflow, arrival_ns, finish_ns."""
        return pl.DataFrame(
            {
                "job": np.arange(self.arrived),
                "workflow": self._named([w.name for w in self.network.workflows], self.workflow),
                "arrival_ns": in_ns(self.arrival, self.tick_s),
                "finish_ns": in_ns(self.finish, self.tick_s),
            }
        )

    @functools.cached_property
    def requests(self) -> pl.DataFrame:
        """One row per request: who, where, when, how long.

        Columns: request, job, stage, pool, replica, ready_ns (arrival at the replica),
        first_token_ns, finish_ns, prompt_tokens, cached_tokens, output_tokens; priority, where
        requests have one; preemptions, where a pool can preempt; and tries and lost, where
        replicas die.
        """
        rows = recorded(self.rows, "requests")
        network = self.network
        stage = rows.jobs.stage
        table = pl.DataFrame(
            {
                "request": np.arange(stage.size),
                "job": rows.jobs.job,
                "stage": self._named(network.stages, stage),
                "pool": self._named(tuple(network.pools), network.stage_pool[stage]),
                "replica": pl.Series(rows.replica).set(
                    pl.Series((rows.ready < 0) | (rows.replica < 0)), None
                ),
                "ready_ns": in_ns(rows.ready, self.tick_s),
                "first_token_ns": in_ns(rows.first_token, self.tick_s),
                "finish_ns": in_ns(rows.finish, self.tick_s),
                "prompt_tokens": rows.jobs.prompt.astype(
                    np.int64
                ),  # or Polars would sum them in 32 bits
                "cached_tokens": rows.cached.astype(np.int64),
                "output_tokens": rows.jobs.output.astype(np.int64),
            }
        )
        if rows.jobs.priority is not None:
            table = table.with_columns(priority=pl.Series(rows.jobs.priority))
        if rows.preemptions is not None:
            table = table.with_columns(preemptions=pl.Series(rows.preemptions))
        if rows.tries is not None and rows.lost is not None:
            table = table.with_columns(tries=pl.Series(rows.tries), lost=pl.Series(rows.lost))
        return table

    @functools.cached_property
    def batches(self) -> pl.DataFrame:
        """One row per batch that started, by start and then replica: pool, replica, start_ns,
        duration_ns, prefill_tokens, decode_tokens, requests.
        """
        rows = recorded(self.batch_rows, "batches")
        return self._replicas(rows[:, 0]).hstack(batch_table(rows[:, 1:], self.tick_s))

    @functools.cached_property
    def allocations(self) -> pl.DataFrame:
        """One row per request in a batch, in the order of `batches`: pool, replica, batch (of that
        replica, from 0), request, prefill_tokens, decode_tokens.
        """
        rows = recorded(self.allocation_rows, "allocations")
        return self._replicas(rows[:, 0]).hstack(allocation_table(rows[:, 1:]))

    def at(self, pool: str, replica: int) -> Run:
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
        if self.gaps is None:
            raise InputError(
                "this run did not count times between tokens; simulate with record='summary', "
                "'batches' or 'allocations'"
            )
        return self._spread(self.gaps)

    def workflows(self) -> pl.DataFrame:
        """E2E of the jobs of each workflow that ended, s: workflow, jobs, unfinished, mean, p50,
        p90, p95, p99.
        """
        rows = []
        for index, workflow in enumerate(self.network.workflows):
            mine = self.workflow == index
            done = mine & (self.finish >= 0)
            jobs = int(mine.sum())
            row = {"workflow": workflow.name, "jobs": jobs, "unfinished": jobs - int(done.sum())}
            rows.append(row | self._spread((self.finish - self.arrival)[done]))
        return pl.DataFrame(rows, schema_overrides=COLUMN_TYPES)

    def stages(self) -> pl.DataFrame:
        """Latency at each stage, seconds: stage, pool, metric, requests, mean, p50, p90, p95, p99;
        see `samples`.

        Quantiles are those of `penstock.simulation.run.Run.latency`. Of a summary ``ttft_s`` and
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
            "ttft_s": (started, (rows.first_token - rows.ready)[started]),
            "e2e_s": (done, (rows.finish - rows.ready)[done]),
            "tpot_s": (
                several,
                (rows.finish - rows.first_token)[several] / (jobs.output[several] - 1),
            ),
        }
        if (jobs.pending[here] > 1).any():
            ended = np.flatnonzero((jobs.child > 0) & (rows.finish >= 0))
            join = ended + jobs.child[ended]
            ended = ended[here[join] & (jobs.pending[join] > 1) & (rows.ready[join] >= 0)]
            join = ended + jobs.child[ended]
            delay = np.rint(jobs.wait_s[join] / self.tick_s).astype(np.int64)
            samples["join_wait_s"] = (ended, rows.ready[join] - delay - rows.finish[ended])
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
            [server.capacity for server, _ in kinds],
            [count for _, count in kinds],
        )
        return self._replicas(np.arange(self.replica_pool.size)).with_columns(
            batches=self.n_batches,
            busy=self.busy * self.tick_s / seconds,
            tokens_per_s=self.tokens / seconds,
            load=self.tokens / seconds / capacity,
        )

    @functools.cached_property
    def series(self) -> pl.DataFrame:
        """At most 2,000 equally spaced instants (fewer for hundreds of replicas), long form:
        time_s, what, name, value.

        Exact values after finishes and arrivals at that instant and before a batch formed then.
        ``what`` is ``prefill`` or ``decode`` (requests of a stage in that phase),
        ``unprocessed_tokens`` (of a replica, called ``pool/0``), or ``job_tokens``: all that the
        jobs in the network still need, requests to come included.
        """
        network, rows = self.network, self.series_rows
        columns = [("job_tokens", "network", rows[:, -1])]
        for index, stage in enumerate(network.stages):
            columns.append(("prefill", stage, rows[:, 1 + 2 * index]))
            columns.append(("decode", stage, rows[:, 2 + 2 * index]))
        after_stages = 1 + 2 * len(network.stages)
        pools, first = tuple(network.pools), first_replicas(network)
        for replica, pool in enumerate(self.replica_pool):
            name = f"{pools[pool]}/{replica - first[pool]}"
            columns.append(("unprocessed_tokens", name, rows[:, after_stages + replica]))
        time = rows[:, 0] * self.tick_s
        return pl.concat(
            pl.DataFrame({"time_s": time, "value": values}).select(
                "time_s", pl.lit(what).alias("what"), pl.lit(name).alias("name"), "value"
            )
            for what, name, values in columns
        )

    @functools.cached_property
    def growth_tokens_per_s(self) -> float:
        """Slope of all that the jobs in the network still need, over the second half of the
        arrivals, tokens/s.

        A fact about this run, no verdict. NaN for a run too short to have a slope.
        """
        return growth_per_s(
            self.series_rows[:, 0], self.series_rows[:, -1], self.last_arrival, self.tick_s
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
            name: float(value) * self.tick_s for name, value in zip(STATISTICS, values, strict=True)
        }

    def _replicas(self, numbers: Ints) -> pl.DataFrame:
        """Name replicas that are counted over all pools: pool, replica."""
        pool = self.replica_pool[numbers]
        return pl.DataFrame(
            {
                "pool": self._named(tuple(self.network.pools), pool),
                "replica": numbers - first_replicas(self.network)[pool],
            }
        )

    def _named(
        self, names: tuple[str, ...] | list[str], indices: npt.NDArray[np.integer]
    ) -> pl.Series:
        return pl.Series(names)[indices] if indices.size else pl.Series([], dtype=pl.String)
