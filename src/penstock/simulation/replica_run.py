"""What one replica of a network did, as a run of its server."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Ints
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import Rows, recorded

if TYPE_CHECKING:
    from penstock.simulation.run import Run


def run_of_replica(run: "Run", pool: str, replica: int) -> "Run":
    """Return the run of a replica: see `Run.at`."""
    pools, counts = run.network.pools, run.by_replica
    if pool not in pools:
        raise InputError(f"unknown pool {checks.shown(pool)}{nearest(str(pool), tuple(pools))}")
    most = pools[pool].replicas - 1
    meaning = f"it is one of the replicas of pool {pool!r}, which count from 0"
    place = tuple(pools).index(pool)
    number = int(np.searchsorted(counts.pool, place))
    number += checks.whole("replica", replica, 0, most, "", meaning)

    batches = recorded(run.batch_rows, "batches")
    if run.queue_rows is None:  # it is of a server
        return run
    batches = batches[batches[:, 5] == number, :5]
    if any(outage.name == f"{pool}/{replica}" for outage in run.outages):
        raise InputError(
            f"replica {replica} of pool {pool!r} died in this run, so that its rows do not tell "
            "all that it did; look at another, or at `batches` of the whole run"
        )
    requests, rows = _rows(run, place, replica)
    allocations = run.allocation_rows
    if allocations is not None:
        allocations = allocations[allocations[:, 4] == number, :4]
        row_of = np.full(requests.max(initial=-1) + 1, -1, np.int64)
        row_of[requests] = np.arange(requests.size)
        allocations[:, 1] = row_of[allocations[:, 1]]
    mixes, mix_ticks = _compositions(batches[batches[:, 0] + batches[:, 1] <= run.end])
    return dataclasses.replace(
        run,
        system=pools[pool].server_of(replica),
        arrived=requests.size,
        finished=int((rows.finish >= 0).sum()),
        n_batches=len(batches),
        last_arrival=int(rows.arrival.max(initial=0)),
        busy=int(counts.busy[number]),
        tokens=int(counts.tokens[number]),
        started_tokens=int(batches[:, 2:4].sum()),
        counted_gaps=Distribution.of(np.zeros(0, np.int64)),
        mixes=mixes,
        mix_ticks=mix_ticks,
        series_rows=_series(run, rows, number, counts.pool.size),
        rows=rows,
        batch_rows=batches,
        allocation_rows=allocations,
        preemptions=int(counts.preemptions[number]),
        recomputed_tokens=int(counts.recomputed_tokens[number]),
        reused_tokens=int(counts.reused_tokens[number]),
        ends=None,
        queue_rows=None,
        by_replica=counts.where([number]),
        outages=(),
        hits=(),
    )


def _rows(run: "Run", pool: int, replica: int) -> tuple[Ints, Rows]:
    """Return a replica's requests, by their rows in the network, and what became of them."""
    rows = recorded(run.rows, "requests")
    jobs, stage_pool = rows.jobs, run.network.stage_pool
    server = run.network.pool_list[pool].server
    prompt = jobs.prompt.astype(np.int64)
    if server.by_lines and rows.cached is not None:  # engines may compute it after all
        prompt -= rows.cached
    decodes = run.network.decodes(jobs)
    here = (stage_pool[jobs.stage] == pool) & (rows.replica == replica) & (rows.arrival >= 0)
    requests = np.flatnonzero(here & (prompt + decodes > 0))
    if not server.by_lines and (jobs.prompt[requests] == 0).any():
        raise InputError(
            f"replica {replica} goes on with KV memory from elsewhere, of which the run of a "
            "server alone says nothing; look at a pool that has prompts, or at the whole network"
        )
    requests = requests[np.argsort(rows.arrival[requests], kind="stable")]
    output = (decodes + server.outputs_of_prefill)[requests]
    return requests, Rows(
        arrival=rows.arrival[requests],
        prompt_tokens=prompt[requests].astype(np.int32),
        output_tokens=output.astype(np.int32),
        first_token=np.where(output > 0, rows.first_token[requests], -1),
        finish=rows.finish[requests],
        preemptions=None if rows.preemptions is None else rows.preemptions[requests],
    )


def _compositions(batches: Ints) -> tuple[tuple[Ints, Ints], Ints]:
    """Count batches by what is in them, and their ticks."""
    keys, index, counts = np.unique(
        (batches[:, 2] << 32) | batches[:, 3], return_inverse=True, return_counts=True
    )
    ticks = np.zeros(keys.size, np.int64)
    np.add.at(ticks, index, batches[:, 1])
    return (keys, counts), ticks


def _series(run: "Run", rows: Rows, number: int, replicas: int) -> Ints:
    """Return tick, requests, and unprocessed and uncompleted tokens at the instants of a run."""
    series = recorded(run.queue_rows, "requests")
    tick = series[:, 0]
    requests = np.searchsorted(rows.arrival, tick, side="right")
    requests -= np.searchsorted(np.sort(rows.finish[rows.finish >= 0]), tick, side="right")
    column = 1 + 2 * len(run.network.stages) + number
    unprocessed = series[:, column]
    in_progress = series[:, column + replicas]
    return np.column_stack([tick, requests, unprocessed, unprocessed + in_progress])
