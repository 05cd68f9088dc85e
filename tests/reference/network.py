"""What comes in and what serves it: jobs whose whole task graph is known, and pools of replicas.

Everything random (paths, lengths, delays, the routers' coins) is given, so a run is a pure function
of its jobs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tests.reference import routers
from tests.reference.batch_time import Composition
from tests.reference.markov_chain import CONVENTIONS, SCOPES, at_least, known
from tests.reference.orders import ORDERS, Order
from tests.reference.seam_policies import Policy, sarathi

ROUTERS = (
    "random",
    "round-robin",
    "jsq",
    "tokens",
    "work",
    "measure",
    "power-of-two",
    *routers.ROUTERS,
)


@dataclass(frozen=True)
class Jobs:
    """Jobs in order of arrival, and their requests in order of job, a parent always before its
    children.

    Attributes
    ----------
    arrival
        One per job: tick, not falling.
    first_request
        One more than jobs: those of job j are ``first_request[j]`` to ``first_request[j + 1]``; the
        first is its root.
    stage, prompt, output
        One per request, as all below: its stage, prompt tokens and output tokens; both may be 0.
    reuse, context
        Tokens of the prompt that it shares with the request ``context`` rows further (< 0; 0: with
        none), which has finished before. Engines keep them where they cache prefixes.
    delay
        Ticks between its release and its arrival at the pool.
    pending
        Requests that must finish before it is released; 0 for a root.
    child, sibling
        The first request that its finish releases or counts down, and the next one that the same
        parent releases, as offsets to this request; 0: none.
    coin
        32 random bits for the router.
    priority
        For engines whose queue is in order of priority: the smaller is served first. Default: 0.
    hash_ids
        For engines that cache prefixes: an id for each full block of the prompt, equal to that of
        another request where both prompts are equal up to the end of that block. None where it has
        a ``context``. Default: none.
    names_outputs
        Whether those ids go on where the prompt ends: with each full block of prompt and output.
    sender, link
        For requests that only decode, at an engine: the request that has their KV memory, as an
        offset (< 0), and the ticks that it takes a link; ``delay`` is then the time that passes
        until all is there once the link is free again. Default: none.
    declared
        For engines that ask: most output tokens that a request says it may make (``max_tokens``),
        at least its output. Default: its output.
    patience_first, patience_whole
        Ticks after which the client of a request leaves without a first token, and without all.
        Default: never.
    luck
        32 random bits: which part of a back-off is left out. Default: 0.
    """

    arrival: Sequence[int]
    first_request: Sequence[int]
    stage: Sequence[int]
    prompt: Sequence[int]
    output: Sequence[int]
    reuse: Sequence[int]
    context: Sequence[int]
    delay: Sequence[int]
    pending: Sequence[int]
    child: Sequence[int]
    sibling: Sequence[int]
    coin: Sequence[int]
    priority: Sequence[int] = ()
    hash_ids: Sequence[Sequence[int]] = ()
    declared: Sequence[int] = ()
    sender: Sequence[int] = ()
    link: Sequence[int] = ()
    names_outputs: bool = False
    patience_first: Sequence[float] = ()
    patience_whole: Sequence[float] = ()
    luck: Sequence[int] = ()

    @classmethod
    def chains(cls, jobs: Sequence[tuple[int, Sequence[tuple[int, int, int]]]], **columns: Any) -> "Jobs":
        """Make jobs of ``(arrival, [(stage, prompt, output), ...])``, whose requests follow one
        another at once.

        ``columns`` are further columns of the requests.
        """
        first_request = [0, *accumulate(len(chain) for _, chain in jobs)]
        requests = [request for _, chain in jobs for request in chain]
        usual = {
            "arrival": [tick for tick, _ in jobs],
            "first_request": first_request,
            "stage": [stage for stage, _, _ in requests],
            "prompt": [prompt for _, prompt, _ in requests],
            "output": [output for _, _, output in requests],
            "pending": [int(row not in first_request) for row in range(len(requests))],
            "child": [int(row + 1 not in first_request) for row in range(len(requests))],
        }
        zeros = dict.fromkeys(("reuse", "context", "delay", "sibling", "coin"), [0] * len(requests))
        return cls(**zeros | usual | columns)


@dataclass(frozen=True)
class Pool:
    """Identical replicas behind a router: what those of the paper and engines have in common.

    Attributes
    ----------
    batch_time
        Token load -> ticks, at least 1; or what a batch costs given what is in it.
    token_budget, max_batch_size
        The limits b_max and k_max; None: no limit.
    scope, convention
        As `tests.reference.markov_chain.simulate` has them; engines have ``running`` and
        ``engine``.
    replicas, router
        How many, and a name in `ROUTERS`: ``jsq`` and ``power-of-two`` take the replica with the
        fewest unfinished requests, ``tokens`` that with the fewest unprocessed tokens of them,
        ``work`` and ``measure`` that whose requests weigh least; of equals the first. The others
        are in `tests.reference.routers`.
    router_params
        Numbers that those are told.
    report
        Ticks between two times that the router learns how the replicas are, before anything happens
        then; 0: it always knows.
    speed
        Tokens per second of a full batch, as the router knows it.
    others
        Further kinds of servers behind the same router, whose own routers do not matter.
    front
        Of the front end before the router: ticks for each request, ticks for each output token that
        the request asks for, and how many requests it works on at a time; not of those who come
        with KV memory. None: it takes no time.
    weights
        Of ``work`` and ``measure``: stage -> whole-numbered weights of a request in prefill and of
        one in decode.
    affinity
        Whether all requests of a job go to one replica.
    limit, router_limit
        Whom a replica refuses, and the router, by what all replicas have: ``requests`` that are
        there, those that are ``waiting``, ``prompt_tokens`` of those without a first token, ticks
        to a first token (``ttft``).
    full_batch
        Ticks that are told for a batch filled to the budget.
    """

    batch_time: Callable[[int], int] | Composition
    token_budget: int | None = None
    max_batch_size: int | None = None
    scope: str = "running"
    convention: str = "engine"
    replicas: int = 1
    router: str = "jsq"
    weights: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    affinity: bool = False
    router_params: Sequence[float] = ()
    report: int = 0
    speed: float = 1.0
    others: Sequence["Pool"] = ()
    front: tuple[int, int, int] | None = None
    limit: Mapping[str, int] = field(default_factory=dict)
    router_limit: Mapping[str, int] = field(default_factory=dict)
    full_batch: int = 1

    def __post_init__(self) -> None:
        known("scope", self.scope, SCOPES)
        known("convention", self.convention, CONVENTIONS)
        known("router", self.router, ROUTERS)
        for name in (
            "replicas",
            "token_budget",
            "max_batch_size",
            "kv_blocks",
            "block_size",
            "hash_block",
        ):
            if getattr(self, name, None) is not None:
                at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class PaperPool(Pool):
    """Servers of the paper, without memory: lines of requests, an order between them, and a policy.

    Attributes
    ----------
    policy, policy_params
        ``(queue, limits, params) -> (prefill tokens, decode tokens, which phase is filled first)``
        for one line.
    order, order_params
        A name in `ORDERS`, ``fcfs``, or ``(lines, params) -> (mode, weights)``.
    priority
        Of the order ``priority``: the pool's stages, those to be served first at the front.
    """

    policy: Policy = sarathi
    policy_params: Sequence[float] = ()
    order: str | Order = "fcfs"
    order_params: Sequence[float] = ()
    priority: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.order, str):
            known("order", self.order, ["fcfs", *ORDERS])


@dataclass(frozen=True)
class EnginePool(Pool):
    """Engines, or seam policies with KV memory: all requests of a replica are in one queue.

    A request that has outputs needs a prompt, or the KV memory of another request. One of a prompt
    alone finishes with its last prompt token, in both conventions; in that of engines it is one of
    one output. One of no tokens finishes on arrival. Who could never finish is refused before the
    clock starts.

    Attributes
    ----------
    engine
        A name in `tests.reference.replicas.ENGINES` or in
        `tests.reference.seam_policies.POLICIES`, or a seam policy: ``(queue, limits, params) ->
        (prefill tokens, decode tokens, which phase is filled first)``.
    kv_blocks, block_size
        KV blocks of a replica (None: memory without limit), and tokens in each (default: the
        engine's, mostly 16).
    watermark
        Share of the KV blocks that admission leaves free; default: the engine's, mostly 0.
    admission
        Of a seam policy: memory is taken for the ``input`` at admission (default), to
        ``completion``, or as the prefill goes on (``optimistic``).
    order
        Of the waiting queue: ``fcfs`` (in order of arrival at the replica, preempted ones first),
        or ``priority``, then arrival at the replica, then row.
    options
        Settings that only this engine has, by name; ``params`` of a seam policy.
    prefix_caching
        Of ``vllm``, ``sglang`` and seam policies: whether prompts find the beginnings that
        `Jobs.hash_ids` and `Jobs.context` say they share.
    hash_block
        Tokens that each of the ids names; default: ``block_size``, from which ``sglang`` alone may
        differ.
    """

    engine: str | Policy = "sarathi"
    kv_blocks: int | None = None
    block_size: int | None = None
    watermark: float | None = None
    admission: str | None = None
    order: str = "fcfs"
    options: Mapping[str, object] = field(default_factory=dict)
    prefix_caching: bool = False
    hash_block: int | None = None


@dataclass(frozen=True)
class Network:
    """Pools, and the stages that they serve.

    Attributes
    ----------
    pools
        In the order in which stages name them.
    stage_pool
        One per stage: its pool.
    prefill, decode
        One per stage: mean prefill and decode tokens of a request (m_p, m_d). Default: 1 each.
    onward
        One row per stage: mean requests of each stage that the end of one releases. Default: none.
    retention
        Ticks for which a replica keeps the context of a finished request; None: for ever.
    backoffs, jitter
        One per stage: the ticks after which a request that was refused or left comes again, try by
        try, and the share of them that chance may take off. Default: it does not.
    """

    pools: Sequence[PaperPool | EnginePool]
    stage_pool: Sequence[int]
    prefill: Sequence[float] = ()
    decode: Sequence[float] = ()
    onward: Sequence[Sequence[float]] = ()
    retention: int | None = None
    backoffs: Sequence[Sequence[int]] = ()
    jitter: Sequence[float] = ()
