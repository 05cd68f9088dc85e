"""Whether a recorded run was work-conserving: what each batch carried, and could have carried."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.auditing.replay import Replay
from penstock.inputs.arrays import Bools, Ints
from penstock.simulation.run import Run


class Shortfall(NamedTuple):
    """A batch that carried less than it could have: its index, start (tick), tokens and supply."""

    batch: int
    start: int
    tokens: int
    supply: int


class Conservation(NamedTuple):
    """Whether every batch carried what it should, and which did not; None: no supply is defined."""

    held: bool | None
    breaches: int
    first: Shortfall | None


def supply_of(run: Run, r: Replay) -> Ints | None:
    """Return what each batch could have carried (see `audit.Audit`), None if undefined."""
    limit, arrived, everything = run.server.max_batch_size, r.arrived, _tokens_there(r)
    gone = r.before(r.finished_in)
    # A step ahead, those who are done with the batch before keep their places.
    gone = np.where(r.composed < r.start, r.before(r.finished_in + 1), gone)
    if limit is None or (arrived - gone <= limit).all():
        return everything
    if r.again.any() or (r.prompt == 0).any():
        return None
    prompt_ends = np.append(0, np.cumsum(r.prompt))
    if run.server.scope == "running":
        if (np.diff(r.admitted_in) < 0).any():
            return None
        last = np.clip(gone + limit, r.before(r.admitted_in), arrived)
        return np.asarray(everything - (prompt_ends[arrived] - prompt_ends[last]), np.int64)
    if not _prompts_in_order(r, prompt_ends):
        return None
    served = np.append(
        0, np.cumsum(np.bincount(r.batch, r.prefill, r.start.size).astype(np.int64))
    )[:-1]
    head = np.searchsorted(prompt_ends, served, side="right") - 1  # the oldest prompt, perhaps cut
    last = np.minimum(head + limit, arrived)
    decoding = everything - (prompt_ends[arrived] - served)
    return np.asarray(
        prompt_ends[last] - served + np.minimum(decoding, limit - (last - head)), np.int64
    )


def _tokens_there(r: Replay) -> Ints:
    """Return, for each batch, the tokens that the requests in the system could put into it."""
    n, m = r.arrival.size, r.start.size
    came = np.searchsorted(r.composed, r.arrival)  # the first batch composed no earlier
    first = np.diff(r.request, prepend=-1) != 0
    since = np.where(first, came[r.request], np.roll(r.batch, 1) + 1)
    there = r.over(np.where(r.left > 0, r.left, 1), since, r.batch + 1)
    # Of each request that was served.
    last = np.searchsorted(r.request, np.arange(n), side="right") - 1
    served = r.admitted_in < m
    left, since = r.prompt.copy(), came
    left[served] = np.maximum((r.left - r.prefill)[last[served]], 1)
    since = np.where(served, np.append(r.batch + 1, 0)[last], came)
    return there + r.over(np.where(r.finished_in < m, 0, left), since, np.full(n, m))


def _prompts_in_order(r: Replay, prompt_ends: Ints) -> bool:
    """Whether prompt tokens were served in order of arrival, one prompt to its end at a time."""
    served = np.flatnonzero(r.prefill > 0)
    served = served[np.lexsort((r.request[served], r.batch[served]))]
    request, tokens = r.request[served], r.prefill[served]
    until = np.cumsum(tokens)
    return bool(
        ((until - tokens >= prompt_ends[request]) & (until <= prompt_ends[request + 1])).all()
    )


def work_conservation(
    r: Replay, supply: Ints | None, short: Callable[[Ints], Bools]
) -> Conservation:
    """Return whether no batch is ``short`` of its supply, and the first that is."""
    if supply is None:
        return Conservation(None, 0, None)
    breaches = np.flatnonzero(short(supply))
    if not breaches.size:
        return Conservation(True, 0, None)
    b = int(breaches[0])
    return Conservation(
        False, breaches.size, Shortfall(b, int(r.start[b]), int(r.load[b]), int(supply[b]))
    )
