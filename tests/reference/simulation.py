"""The clock of networks, and the rules of what happens at a tick.

1. *Finish.* Batches that end now end, in the order of replicas. A request enters decode when the
   batch with its last prompt token ends, and finishes with its last token; that releases the
   requests that waited for nothing else, which are ready after their delay.
   Then replicas die and come back. One that dies loses its batch, its memory and its caches; the
   requests that were there arrive again at this tick and begin anew, or are lost, with all that
   would have followed them in their jobs. It comes back empty.
2. *Arrive.* Requests that are ready now arrive in the order of their rows; so do those that are
   released meanwhile without a delay, because a request without any tokens finishes on arrival.
   Each is routed by what its pool looks like just then, among the replicas that serve, or waits
   until one does, and joins its replica: a line of a server
   of the paper, which may hold some of its prompt still, or the end of the queue of an engine.
3. *Schedule.* Every replica that has requests and no batch in progress forms one, in the order of
   replicas; one that has neither takes note that it is idle.

Routers, orders and counts see requests in two phases. At an engine a request is in decode while it
runs and its prefill is complete, else in prefill. So a preempted one is in prefill from the moment
at which the batch is formed that it gives way to, which replicas later in the order see at the same
tick. It is in decode again when its prefill has been repeated.

Tokens are unprocessed until the batch that has them starts. Where an engine composes a batch ahead,
when the one before it starts, it takes that one for computed already: a request is in decode from
the start of the batch with its last prompt token, and its output tokens are known, with the tick at
which they will be out; it finishes when they are. What a preempted request had computed
is unprocessed again; what it finds in a prefix cache no longer is.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import InputError
from tests.reference.network import EnginePool, Jobs, Network
from tests.reference.replicas.replica import Batch, Replica, Request
from tests.reference.running import Instant, Outage, Running


@dataclasses.dataclass(frozen=True)
class History:
    """What happened up to tick ``end``; what had not happened by then is None."""

    requests: list[Request]
    replicas: list[Replica]
    batches: list[Batch]  # by start, then replica
    instants: list[Instant]
    end: int


def simulate(
    jobs: Jobs,
    network: Network,
    *,
    until: int | None = None,
    instants: Iterable[int] = (),
    outages: Sequence[Outage] = (),
) -> History:
    """Run jobs through a network, from empty at tick 0.

    Parameters
    ----------
    jobs, network
        What arrives and what serves.
    until
        Stop at this tick, after its finishes and arrivals; None: when every job is done.
    instants
        Ticks at which to count; those after the end are left out.
    outages
        Replicas that die and come back.

    Raises
    ------
    InputError
        If a request could never finish, a replica forms an empty batch, or a policy or an order
        gives what cannot be used.

    >>> # (arrival, [(stage, prompt, output), ...])
    >>> jobs = Jobs.chains([(0, [(0, 3, 2)]), (1, [(0, 2, 1)])])
    >>> from tests.reference.network import PaperPool
    >>> network = Network([PaperPool(batch_time=lambda tokens: 2, token_budget=4)], stage_pool=[0])
    >>> [(request.first_token, request.finish) for request in simulate(jobs, network).requests]
    [(2, 4), (4, 4)]
    """
    running = Running(jobs, network)
    series: list[Instant] = []
    now = 0
    wanted = sorted(set(instants))
    while True:
        running.now = now
        running.report(now)
        running.finish(now)
        running.leave(now)
        for outage in outages:
            if outage.end == now:
                running.come_back(outage.replica)
            elif outage.start == now:
                running.die(outage)
        running.arrive(now)
        if wanted and wanted[0] == now:
            series.append(running.count(wanted.pop(0)))
        if until is not None and now >= until:
            break
        for replica in running.replicas:
            if not replica.batch:
                replica.form(now)
                running.note_transfers(replica)
        events = [replica.batches[-1].end for replica in running.replicas if replica.batch]
        events += [tick for tick, _ in running.due[:1]]
        leaving = running.next_leaving()
        events += [int(leaving)] if leaving < math.inf else []
        if events or running.held:
            edges = [tick for outage in outages for tick in (outage.start, outage.end)]
            events += [tick for tick in edges if tick > now]
        if not events and until is None:
            break
        now = min([*events, *wanted[:1], *([] if until is None else [until])])
    batches = [batch for replica in running.replicas for batch in replica.batches]
    batches.sort(key=lambda batch: (batch.start, batch.replica))
    return History(running.requests, running.replicas, batches, series, now)


def simulate_server(
    arrival: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    priority: Sequence[int] | None = None,
    hash_ids: Sequence[Sequence[int]] | None = None,
    declared: Sequence[int] | None = None,
    names_outputs: bool = False,
    until: int | None = None,
    instants: Iterable[int] = (),
    **settings: Any,
) -> History:
    """Run one server with KV memory: a network of one replica, each of whose jobs is one request.

    Parameters
    ----------
    arrival, prompt, output
        One entry per request, in arrival order: arrival tick, prompt tokens, output tokens.
    priority, hash_ids, declared, names_outputs
        As `Jobs` has them; with ``hash_ids`` prefixes are cached.
    until, instants
        As `simulate` has them.
    settings
        Those of an `EnginePool`.

    Returns
    -------
    History
        Every request that arrived by its end. With `until`, a batch in flight stays in ``batches``
        but completes nothing.

    Raises
    ------
    InputError, AssertionError
        If an argument cannot be used, or a request could never finish; if a step breaks a law.

    >>> limits = {"engine": "vllm", "token_budget": 4}
    >>> history = simulate_server([0, 1], [3, 2], [2, 1], batch_time=lambda b: 2, **limits)
    >>> [(batch.start, batch.allocation) for batch in history.batches]
    [(0, {0: 3}), (2, {0: 1, 1: 2})]
    """
    optional = {"priority": priority, "hash_ids": hash_ids, "declared": declared}
    columns = {name: column for name, column in optional.items() if column is not None}
    for name, column in {"prompt": prompt, "output": output, **columns}.items():
        if len(column) != len(arrival):
            raise InputError(
                f"{len(column)} {name} and {len(arrival)} arrival do not pair; pass one of each per request"
            )
    calls = [(t, [(0, p, o)]) for t, p, o in zip(arrival, prompt, output, strict=True)]
    jobs = Jobs.chains(calls, **columns, names_outputs=names_outputs)
    pool = EnginePool(prefix_caching=hash_ids is not None, **settings)
    history = simulate(jobs, Network([pool], [0]), until=until, instants=instants)
    requests = [request for request in history.requests if request.ready is not None]
    return dataclasses.replace(history, requests=requests)
