"""A run again, from its allocations: what each request had been given before each batch, and whom
memory stored.
"""

import dataclasses

import numpy as np

from penstock.auditing.preemption import Account, at_once, explain, recomputes, story
from penstock.inputs.arrays import Bools, Ints
from penstock.simulation.rows import Rows
from penstock.simulation.run import Run


@dataclasses.dataclass(frozen=True)
class Replay:
    """What follows from a run's allocations; the number of batches, as an index, means none."""

    arrival: Ints  # shape (requests,), tick
    prompt: Ints  # shape (requests,), tokens
    total: Ints  # shape (requests,), tokens processed when it finishes
    # Shape (requests,): the batch that served it first, yielded its first output, and finished it.
    admitted_in: Ints
    first_in: Ints
    finished_in: Ints
    preempted: Bools  # shape (requests,)
    unexplained: Bools  # shape (requests,): no sequence of preemptions explains its allocations
    start: Ints  # shape (batches,), ticks
    end: Ints  # shape (batches,), ticks
    composed: Ints  # shape (batches,), the tick of what its scheduler knew
    load: Ints  # shape (batches,), tokens
    # Shape (allocations,), by request and then by batch.
    request: Ints
    batch: Ints
    prefill: Ints
    decode: Ints
    again: Bools  # shape (allocations,): an attempt begins here that is not the first
    # Shape (allocations,): tokens of the prefill of this attempt, and tokens that it had been given
    # before.
    target: Ints
    prefilled: Ints
    decoded: Ints
    # Shape (allocations,): tokens, at least, that it has memory for from this batch on, and the
    # batch at which that may end.
    stored: Ints
    until: Ints

    def before(self, happened_in: Ints) -> Ints:
        """Return, for each batch, how many of these happened in an earlier one."""
        return np.searchsorted(np.sort(happened_in), np.arange(self.start.size))

    def over(self, amount: Ints, since: Ints, until: Ints) -> Ints:
        """Return, for each batch, the sum of the amounts that last from one batch up to another."""
        change = np.zeros(self.start.size + 1, np.int64)
        np.add.at(change, since, amount)
        np.add.at(change, until, -amount)
        return np.asarray(np.cumsum(change)[:-1], np.int64)

    @property
    def arrived(self) -> Ints:
        """Requests that had arrived when each batch was composed."""
        return np.searchsorted(self.arrival, self.composed, side="right")

    @property
    def left(self) -> Ints:
        """Prompt tokens left before each allocation; 0: it decodes."""
        return np.asarray(np.maximum(self.target - self.prefilled, 0), np.int64)


def replay(run: Run, rows: Rows, batch_rows: Ints, allocation_rows: Ints) -> Replay:
    """Work a run out from its allocations, which must name batches and requests that there are."""
    n, m, server = rows.arrival.size, batch_rows.shape[0], run.server
    extra = server.outputs_of_prefill
    order = np.lexsort((allocation_rows[:, 0], allocation_rows[:, 1]))
    batch, request, prefill, decode = allocation_rows[order].T
    start, end = batch_rows[:, 0], batch_rows[:, 0] + batch_rows[:, 1]
    prompt = rows.prompt_tokens.astype(np.int64)
    total = prompt + rows.output_tokens - extra
    accounts, unexplained = _accounts(
        run, rows, request, prefill, decode, np.where(end <= run.end, end, -1)[batch]
    )

    again, preempted = np.zeros(request.size, bool), np.zeros(n, bool)
    preempted[request[list(accounts)]] = True
    for first, account in accounts.items():
        again[first : first + len(account.again)] = account.again
    is_first = (np.diff(request, prepend=-1) != 0) | again
    attempt = np.cumsum(is_first) - 1
    begins = np.flatnonzero(is_first)

    def given_before(tokens: Ints) -> Ints:
        so_far = np.append(0, np.cumsum(tokens))
        return np.asarray(so_far[:-1] - so_far[begins][attempt], np.int64)

    def batch_of(chosen: Bools) -> Ints:
        """Return, for each request, the batch of its first chosen allocation."""
        where = np.full(n, m, np.int64)
        np.minimum.at(where, request[chosen], batch[chosen])
        return where

    targets = _targets(run, prompt[request[begins]], attempt, prefill, decode, again[begins])
    target = targets[attempt]
    prefilled, decoded = given_before(prefill), given_before(decode)
    whole = prefilled + prefill >= target
    finished_in = batch_of(whole & (decoded + decode >= total[request] - target))
    stored = prefilled + prefill + decoded + decode
    if server.holds == "prefill":
        stored = np.maximum(stored, target)
    elif server.holds == "completion":
        stored = total[request] + server.policy.memory.reserves_last_token
    stays = np.append(request[1:] == request[:-1], np.zeros(min(request.size, 1), bool))
    for first, account in accounts.items():
        stored[first : first + len(account.stored)] = account.stored
        stays[first : first + len(account.stays) - 1] = account.stays[:-1]
    until = np.where(stays, np.append(batch[1:], 0)[: batch.size], batch + 1)
    if not recomputes(server):  # nobody leaves before the end
        until = np.where(~stays & (finished_in[request] > batch), m, until)
    return Replay(
        arrival=rows.arrival, prompt=prompt, total=total,
        admitted_in=batch_of(prefill + decode > 0),
        first_in=batch_of(whole if extra else decode > 0),
        finished_in=finished_in, preempted=preempted, unexplained=unexplained,
        start=start, end=end, composed=_composed(run, rows, start, end, finished_in),
        load=np.bincount(batch, prefill + decode, m).astype(np.int64),
        request=request, batch=batch, prefill=prefill, decode=decode, again=again,
        target=target, prefilled=prefilled, decoded=decoded, stored=stored, until=until,
    )  # fmt: skip


def _composed(run: Run, rows: Rows, start: Ints, end: Ints, finished_in: Ints) -> Ints:
    """Return when each batch was composed: when it starts, or a step ahead, when the one before it
    does, if by then somebody was known who is not done with that one.
    """
    if not run.server.policy.batching.ahead or not start.size:
        return start
    before = np.append(start[0], start[:-1])
    follows = start == np.append(-1, end[:-1])
    known = np.searchsorted(rows.arrival, before, side="right")
    gone = np.searchsorted(np.sort(finished_in), np.arange(start.size))
    return np.where(follows & (known > gone), before, start)


def _accounts(
    run: Run, rows: Rows, request: Ints, prefill: Ints, decode: Ints, ends: Ints
) -> tuple[dict[int, Account], Bools]:
    """Explain the allocations of the requests that were preempted, by the place of their first; say
    which cannot be.
    """
    n = rows.arrival.size
    times = rows.preempted
    unexplained = np.zeros(n, bool)
    if not recomputes(run.server):
        return {}, times != 0
    tokens = np.bincount(request, prefill, n)
    accounts = {}
    for i in np.flatnonzero((tokens > rows.prompt_tokens) | (times != 0)):
        first, last = np.searchsorted(request, [i, i + 1])
        x, y = prefill[first:last].tolist(), decode[first:last].tolist()
        record = story(run.server, rows, int(i))
        account = explain(record, x, y, ends[first:last].tolist()) if first < last else None
        unexplained[i] = account is None
        if first < last:
            accounts[int(first)] = account or at_once(record, x, y)
    return accounts, unexplained


def _targets(
    run: Run, prompt: Ints, attempt: Ints, prefill: Ints, decode: Ints, again: Bools
) -> Ints:
    """Return the prefill tokens of each attempt: the prompt, and any outputs that were out."""
    extra = run.server.outputs_of_prefill
    prefilled, decoded = (
        np.bincount(attempt, tokens, again.size).astype(np.int64) for tokens in (prefill, decode)
    )
    target = prompt.copy()
    for a in np.flatnonzero(again):
        target[a] = target[a - 1]
        if prefilled[a - 1] >= target[a]:  # else it was broken off
            target[a] = prefilled[a - 1] + decoded[a - 1] + extra
    return target
