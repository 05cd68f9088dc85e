"""What one replica of a network did, as a run of its server."""

from typing import TYPE_CHECKING

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Ints
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Rows, Run, recorded
from penstock.system.network import Network

if TYPE_CHECKING:
    from penstock.simulation.network_run import NetworkRun


def run_of_replica(run: "NetworkRun", pool: str, replica: int) -> Run:
    """Return the run of a replica: see `NetworkRun.at`."""
    pools = run.network.pools
    if pool not in pools:
        raise InputError(f"unknown pool {checks.shown(pool)}{nearest(str(pool), tuple(pools))}")
    most = pools[pool].replicas - 1
    meaning = f"it is one of the replicas of pool {pool!r}, which count from 0"
    place = tuple(pools).index(pool)
    number = int(first_replicas(run.network)[place])
    number += checks.whole("replica", replica, 0, most, "", meaning)

    batches = recorded(run.batch_rows, "batches")
    batches = batches[batches[:, 0] == number, 1:]
    if any(outage.name == f"{pool}/{replica}" for outage in run.outages):
        raise InputError(
            f"replica {replica} of pool {pool!r} died in this run, so that its rows do not tell "
            "all that it did; look at another, or at `batches` of the whole run"
        )
    requests, rows = _rows(run, place, replica)
    allocations = run.allocation_rows
    if allocations is not None:
        allocations = allocations[allocations[:, 0] == number, 1:]
        row_of = np.full(requests.max(initial=-1) + 1, -1, np.int64)
        row_of[requests] = np.arange(requests.size)
        allocations[:, 1] = row_of[allocations[:, 1]]
    mixes, mix_ticks = _compositions(batches[batches[:, 0] + batches[:, 1] <= run.end])
    return Run(
        server=pools[pool].server_of(replica),
        tick_s=run.tick_s,
        arrived=requests.size,
        finished=int((rows.finish >= 0).sum()),
        n_batches=len(batches),
        end=run.end,
        last_arrival=int(rows.arrival.max(initial=0)),
        busy=int(run.busy[number]),
        tokens=int(run.tokens[number]),
        started_tokens=int(batches[:, 2:4].sum()),
        gaps=Distribution.of(np.zeros(0, np.int64)),
        mixes=mixes,
        mix_ticks=mix_ticks,
        series_rows=_series(run, rows, number),
        rows=rows,
        folded=None,
        batch_rows=batches,
        allocation_rows=allocations,
        preemptions=0 if rows.preemptions is None else int(rows.preemptions.sum()),
        recomputed_tokens=int(run.recomputed_tokens[number]),
        reused_tokens=int(run.reused_tokens[number]),
    )


def _rows(run: "NetworkRun", pool: int, replica: int) -> tuple[Ints, Rows]:
    """Return a replica's requests, by their rows in the network, and what became of them."""
    rows = recorded(run.rows, "requests")
    jobs, stage_pool = rows.jobs, run.network.stage_pool
    server = list(run.network.pools.values())[pool].server
    engine = int(server.convention == "engine")
    prompt = jobs.prompt.astype(np.int64)
    if server.by_lines:  # engines may have to compute it after all
        prompt -= rows.cached
    decodes = jobs.output - engine * ((jobs.prompt > 0) & (jobs.output > 0))
    here = (stage_pool[jobs.stage] == pool) & (rows.replica == replica) & (rows.ready >= 0)
    requests = np.flatnonzero(here & (prompt + decodes > 0))
    if not server.by_lines and (jobs.prompt[requests] == 0).any():
        raise InputError(
            f"replica {replica} goes on with KV memory from elsewhere, of which the run of a "
            "server alone says nothing; look at a pool that has prompts, or at the whole network"
        )
    requests = requests[np.argsort(rows.ready[requests], kind="stable")]
    output = (decodes + engine)[requests]
    return requests, Rows(
        arrival=rows.ready[requests],
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


def _series(run: "NetworkRun", rows: Rows, number: int) -> Ints:
    """Return tick, requests, and unprocessed and uncompleted tokens at the instants of a run."""
    series = run.series_rows
    tick = series[:, 0]
    requests = np.searchsorted(rows.arrival, tick, side="right")
    requests -= np.searchsorted(np.sort(rows.finish[rows.finish >= 0]), tick, side="right")
    column = 1 + 2 * len(run.network.stages) + number
    unprocessed = series[:, column]
    in_progress = series[:, column + run.replica_pool.size]
    return np.column_stack([tick, requests, unprocessed, unprocessed + in_progress])


def first_replicas(network: Network) -> Ints:
    """Return the number of each pool's first replica, over all pools; shape (pools,)."""
    return np.cumsum(network.replicas) - network.replicas
