"""The clock: arrivals join, the scheduler forms a batch, the batch ends; one event after
another.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.reference.batch_time import Composition
from penstock.reference.engines.prefix_cache import (
    PrefixCache,
    PrefixCachingSeamServer,
    PrefixCachingVllmV1,
)
from penstock.reference.engines.seam import SeamServer
from penstock.reference.engines.server import (
    Allocation,
    Batch,
    Limits,
    Request,
    Server,
    at_least,
    token_load,
)
from penstock.reference.engines.sglang import Sglang
from penstock.reference.engines.tensorrt import TensorRtLlm
from penstock.reference.engines.vidur import (
    VidurFasterTransformer,
    VidurOrca,
    VidurSarathi,
    VidurVllm,
)
from penstock.reference.engines.vllm import VllmV0, VllmV1
from penstock.reference.seam_policies import POLICIES, Policy

ENGINES: dict[str, type[Server]] = {
    "vllm": VllmV1,
    "vllm-v0": VllmV0,
    "sglang": Sglang,
    "tensorrt-llm": TensorRtLlm,
    "vidur-fastertransformer": VidurFasterTransformer,
    "vidur-orca": VidurOrca,
    "vidur-vllm": VidurVllm,
    "vidur-sarathi": VidurSarathi,
}
"""Schedulers by name; every other name is looked up among the seam policies."""

CACHING: dict[str, type[Server]] = {"vllm": PrefixCachingVllmV1}
"""Those that cache prefixes, where they do."""


@dataclass(frozen=True)
class History:
    """What happened up to tick ``end``: every request that arrived by then, every batch formed
    before.

    And the tokens that prefix caching spared.
    """

    requests: list[Request]
    batches: list[Batch]
    end: int
    reused: int = 0


def simulate(
    arrival: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    batch_time: Callable[[int], int] | Composition,
    engine: str | Policy = "sarathi",
    token_budget: int | None = None,
    max_batch_size: int | None = None,
    kv_blocks: int | None = None,
    block_size: int | None = None,
    watermark: float | None = None,
    admission: str | None = None,
    preemption: str = "recompute",
    swap_ticks: int = 0,
    order: str = "fcfs",
    priority: Sequence[int] | None = None,
    scope: str = "running",
    convention: str = "engine",
    options: Mapping[str, object] | None = None,
    hash_ids: Sequence[Sequence[int]] | None = None,
    until: int | None = None,
) -> History:
    """Run a server with KV memory from empty at tick 0, event by event.

    Parameters
    ----------
    arrival, prompt, output, priority
        One entry per request, in arrival order: arrival tick, prompt tokens, output tokens, and
        what is served first in the order ``priority`` (the smaller; default 0).
    batch_time
        Token load -> ticks, at least 1; or what a batch costs given what is in it.
    engine
        A name in `ENGINES` or `POLICIES`, or a seam policy: ``(queue, limits, params) -> (prefill
        tokens, decode tokens, which phase is filled first)``.
    token_budget, max_batch_size
        The limits b_max and k_max; None: no limit.
    kv_blocks, block_size
        KV blocks of the server (None: memory without limit), and tokens in each (default: the
        engine's, mostly 16).
    watermark
        Share of the KV blocks that admission leaves free; default: the engine's, mostly 0.
    admission
        Of a seam policy: memory is taken for the ``input`` at admission (default), to
        ``completion``, or as the prefill goes on (``optimistic``).
    preemption, swap_ticks
        Of a seam policy: a preempted request's tokens are computed again (``recompute``), or its
        blocks are moved out and in (``swap``), each of which takes so many ticks more of the batch.
    order
        Of the waiting queue: ``fcfs``, preempted ones first, or ``priority``, then by arrival.
    scope, convention
        As `penstock.reference.markov_chain.simulate` has them; engines have ``running`` and
        ``engine``.
    options
        Settings that only this engine has, by name; ``params`` of a seam policy.
    hash_ids
        Of ``vllm`` and seam policies: cache prefixes. One sequence per request: an id for each full
        block of its prompt, equal to that of another request where both prompts are equal up to the
        end of that block.
    until
        Stop at this tick, after its finishes and arrivals; None: when every request has departed.

    Returns
    -------
    History
        With `until`, a batch in flight stays in ``batches`` but completes nothing.

    Raises
    ------
    InputError, AssertionError
        If an argument cannot be used, or a request could never finish; if a step breaks a law.

    >>> limits = {"engine": "vllm", "token_budget": 4}
    >>> history = simulate([0, 1], [3, 2], [2, 1], batch_time=lambda b: 2, **limits)
    >>> [(batch.start, batch.allocation) for batch in history.batches]
    [(0, {0: 3}), (2, {0: 1, 1: 2})]
    """
    requests = arrivals(arrival, prompt, output, priority, hash_ids)
    limits = Limits(
        token_budget=math.inf
        if token_budget is None
        else at_least("token_budget", token_budget, 1),
        max_batch_size=math.inf
        if max_batch_size is None
        else at_least("max_batch_size", max_batch_size, 1),
        kv_blocks=math.inf if kv_blocks is None else at_least("kv_blocks", kv_blocks, 1),
        block_size=None if block_size is None else at_least("block_size", block_size, 1),
        watermark=None
        if watermark is None
        else checks.number("watermark", watermark, 0, 1, "", "it is a share"),
        order=order,
        scope=scope,
        convention=convention,
        admission=admission,
        preemption=preemption,
    )
    server = make_server(engine, limits, options or {}, prefix_caching=hash_ids is not None)
    swap_ticks = at_least("swap_ticks", swap_ticks, 0)
    # What could never finish would block the queue for ever, so it is refused before the clock
    # starts.
    for request in requests:
        reason = server.cannot_fit(request)
        if reason:
            lengths = f"{request.prompt} prompt and {request.output} output tokens"
            raise InputError(
                f"request {request.index} of {lengths} {reason}, so it could never finish; drop it"
            )

    end = None if until is None else at_least("until", until, 0)

    def duration_of(batch: Allocation) -> int:
        return at_least("batch_time", ticks_of(batch, batch_time), 1) + swap_ticks * server.moved

    return _run(server, requests, duration_of, end)


def _run(
    server: Server,
    requests: list[Request],
    duration_of: Callable[[Allocation], int],
    end: int | None,
) -> History:
    """Go from event to event: arrivals join, the scheduler forms a batch, the batch ends."""
    now = 0
    pending = deque(requests)
    batches = list[Batch]()
    while True:
        while pending and pending[0].arrival <= now:
            server.arrive(pending.popleft())
        if end is not None and now >= end:
            break
        batch, preempted = next_batch(server)
        if batch:
            duration = duration_of(batch)
            allocation = {request.index: tokens for request, tokens in batch.items()}
            batches.append(
                Batch(now, duration, allocation, [request.index for request in preempted])
            )
            if end is None or now + duration <= end:
                now += duration
                server.complete(batch, now)
            else:
                now = end
        elif pending:
            server.idle()
            now = pending[0].arrival if end is None else min(pending[0].arrival, end)
        else:
            break
    now = now if end is None else end
    reused = server.reused if isinstance(server, PrefixCache) else 0
    return History(
        [request for request in requests if request.arrival <= now], batches, now, reused
    )


def ticks_of(batch: Allocation, batch_time: Callable[[int], int] | Composition) -> int:
    """Return how long a batch takes, before any of its tokens is computed."""
    if not isinstance(batch_time, Composition):
        return batch_time(token_load(batch))
    prefill = [
        (tokens, request.computed) for request, tokens in batch.items() if not request.decoding
    ]
    return batch_time.ticks(prefill, [request.computed for request in batch if request.decoding])


def next_batch(server: Server) -> tuple[Allocation, list[Request]]:
    """Let the scheduler step until it serves somebody; return the batch and who was preempted for
    it.

    A step that only preempts leaves the server idle with work to do, so the scheduler looks again.
    """
    server.moved = 0
    preempted: list[Request] = []
    while server.running or server.waiting:
        server.preempted = []
        batch = server.step()
        server.assert_feasible(batch)
        preempted += server.preempted
        if batch:
            return batch, preempted
        assert server.preempted, (
            f"the server idles beside {len(server.running) + len(server.waiting)} requests"
        )
    return {}, preempted


def make_server(
    engine: str | Policy, limits: Limits, options: Mapping[str, object], *, prefix_caching: bool
) -> Server:
    """Return the engine of that name, or a server under a seam policy."""
    seam = PrefixCachingSeamServer if prefix_caching else SeamServer
    if not isinstance(engine, str):
        return seam(getattr(engine, "name", "policy"), limits, options, engine)
    if engine in POLICIES:
        return seam(engine, limits, options, POLICIES[engine])
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}{nearest(engine, [*ENGINES, *POLICIES])}")
    if prefix_caching and engine not in CACHING:
        raise InputError(
            f"hash_ids are given, but {engine!r} caches no prefixes here; leave them out, or take "
            "vllm or a policy"
        )
    table = CACHING if prefix_caching else ENGINES
    return table[engine](engine, limits, options)


def arrivals(
    arrival: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    priority: Sequence[int] | None,
    hash_ids: Sequence[Sequence[int]] | None,
) -> list[Request]:
    """Return the requests in their initial state."""
    if priority is None:
        priority = [0] * len(arrival)
    if hash_ids is None:
        hash_ids = [()] * len(arrival)
    if not len(arrival) == len(prompt) == len(output) == len(priority) == len(hash_ids):
        counts = (
            f"{len(arrival)} arrivals, {len(prompt)} prompts, {len(output)} outputs, "
            f"{len(priority)} priorities"
        )
        counts += f" and {len(hash_ids)} rows of hash_ids"
        raise InputError(f"{counts} do not pair; pass one of each per request")
    requests: list[Request] = []
    for i in range(len(arrival)):
        tick = at_least(f"arrival[{i}]", arrival[i], 0)
        tokens = at_least(f"prompt[{i}]", prompt[i], 1)
        outputs = at_least(f"output[{i}]", output[i], 1)
        if requests and tick < requests[-1].arrival:
            raise InputError(
                f"arrival[{i}] = {tick} is before arrival[{i - 1}] = {arrival[i - 1]}; sort by "
                "arrival"
            )
        rank = checks.whole(
            f"priority[{i}]", priority[i], -(2**53), 2**53, "", "the smaller is served first"
        )
        requests.append(Request(i, tick, tokens, outputs, rank, tuple(hash_ids[i]), target=tokens))
    return requests
