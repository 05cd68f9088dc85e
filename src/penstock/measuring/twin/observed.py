"""What a real engine did, as a `Run`: one vocabulary for both sides."""

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.measuring.profiling.driving import Timeline
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import TICK_S, Rows, Run
from penstock.system.server import Server

_INSTANTS = 1_000


def observed_run(server: Server, prompt_tokens: Ints, output_tokens: Ints, seen: Timeline) -> Run:
    """Return the run of a real engine; times count from the first arrival, in ns.

    Parameters
    ----------
    server
        What is held against it: its model, limits and policy.
    prompt_tokens, output_tokens
        Shape (requests,), tokens.
    seen
        What happened; all requests have finished.
    """
    batches = seen.batches
    arrival, first, finish, begin, end = (
        np.rint((times - seen.arrival_s[0]) / TICK_S).astype(np.int64)
        for times in (
            seen.arrival_s,
            seen.first_token_s,
            seen.finish_s,
            batches.begin_s,
            batches.end_s,
        )
    )
    prefill, decode, requests = batches.sums[:, :3].T
    tokens = int((prefill + decode).sum())
    keys, places, counts = np.unique(
        (prefill << 32) | decode, return_inverse=True, return_counts=True
    )
    ticks = np.zeros(keys.size, np.int64)
    np.add.at(ticks, places, end - begin)
    return Run(
        server=server,
        tick_s=TICK_S,
        arrived=arrival.size,
        finished=arrival.size,
        n_batches=begin.size,
        end=int(end[-1]),
        last_arrival=int(arrival[-1]),
        busy=int((end - begin).sum()),
        tokens=tokens,
        started_tokens=tokens,
        gaps=Distribution.of(np.rint(seen.gaps_s / TICK_S).astype(np.int64)),
        mixes=(keys, counts.astype(np.int64)),
        mix_ticks=ticks,
        series_rows=_series(
            server, arrival, finish, prompt_tokens + output_tokens, begin, end, prefill + decode
        ),
        rows=Rows(
            arrival, prompt_tokens.astype(np.int32), output_tokens.astype(np.int32), first, finish
        ),
        folded=None,
        batch_rows=np.column_stack([begin, end - begin, prefill, decode, requests]),
        allocation_rows=None,
    )


def _series(
    server: Server, arrival: Ints, finish: Ints, lengths: Ints, begin: Ints, end: Ints, tokens: Ints
) -> Ints:
    """Return requests, unprocessed and uncompleted tokens at equally spaced instants."""
    instants = np.linspace(0, end[-1], _INSTANTS).astype(np.int64)
    came = np.searchsorted(arrival, instants, side="right")
    left = np.searchsorted(np.sort(finish), instants, side="right")
    brought = np.concatenate([[0], np.cumsum(lengths - (server.convention == "engine"))])[came]
    done = np.concatenate([[0], np.cumsum(tokens)])
    started = done[np.searchsorted(begin, instants, side="left")]
    ended = done[np.searchsorted(end, instants, side="right")]
    return np.column_stack([instants, came - left, brought - started, brought - ended])
