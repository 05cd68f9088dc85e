"""One server: a network of one pool of one replica, each of whose jobs is one request."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import InputError
from penstock.reference.network import EnginePool, Jobs, Network
from penstock.reference.simulation import History
from penstock.reference.simulation import simulate as simulate_network


def simulate(
    arrival: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    priority: Sequence[int] | None = None,
    hash_ids: Sequence[Sequence[int]] | None = None,
    until: int | None = None,
    instants: Iterable[int] = (),
    **settings: Any,
) -> History:
    """Run a server with KV memory from empty at tick 0, event by event.

    Parameters
    ----------
    arrival, prompt, output
        One entry per request, in arrival order: arrival tick, prompt tokens, output tokens.
    priority, hash_ids
        As `Jobs` has them; with ``hash_ids`` prefixes are cached.
    until, instants
        As `penstock.reference.simulation.simulate` has them.
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
    >>> history = simulate([0, 1], [3, 2], [2, 1], batch_time=lambda b: 2, **limits)
    >>> [(batch.start, batch.allocation) for batch in history.batches]
    [(0, {0: 3}), (2, {0: 1, 1: 2})]
    """
    columns = {"priority": priority or (), "hash_ids": hash_ids or ()}
    for name, column in {"prompt": prompt, "output": output, **columns}.items():
        if len(column) not in (len(arrival), len(arrival) * (name not in columns)):
            raise InputError(
                f"{len(column)} {name} and {len(arrival)} arrival do not pair; pass one of each "
                "per request"
            )
    calls = [(tick, [(0, *call)]) for tick, *call in zip(arrival, prompt, output, strict=True)]
    jobs = Jobs.chains(calls, **columns)
    pool = EnginePool(prefix_caching=hash_ids is not None, **settings)
    history = simulate_network(jobs, Network([pool], [0]), until=until, instants=instants)
    requests = [request for request in history.requests if request.ready is not None]
    return dataclasses.replace(history, requests=requests)
