"""What comes in: jobs whose whole task graph is known, pools of replicas, and which stage is served
where.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import InputError
from penstock.reference.markov_chain import CONVENTIONS, SCOPES, known
from penstock.reference.network.orders import ORDERS, Order
from penstock.reference.seam_policies import Policy, sarathi

ROUTERS = ("random", "round-robin", "jsq", "tokens", "work", "measure", "power-of-two")


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
        none).
    delay
        Ticks between its release and its arrival at the pool.
    pending
        Requests that must finish before it is released; 0 for a root.
    child, sibling
        The first request that its finish releases or counts down, and the next one that the same
        parent releases, as offsets to this request; 0: none.
    coin
        32 random bits for the router.
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

    @classmethod
    def chains(cls, jobs: Sequence[tuple[int, Sequence[tuple[int, int, int]]]]) -> "Jobs":
        """Make jobs of ``(arrival, [(stage, prompt, output), ...])``, whose requests follow one
        another at once.
        """
        columns: list[list[int]] = [[] for _ in range(5)]
        first_request = [0]
        for _, requests in jobs:
            for step, (stage, prompt, output) in enumerate(requests):
                row = (stage, prompt, output, int(step > 0), int(step < len(requests) - 1))
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
            first_request.append(len(columns[0]))
        stages, prompts, outputs, pending, child = columns
        zeros = [0] * len(stages)
        arrival = [tick for tick, _ in jobs]
        return cls(
            arrival,
            first_request,
            stages,
            prompts,
            outputs,
            zeros,
            zeros,
            zeros,
            pending,
            child,
            zeros,
            zeros,
        )


@dataclass(frozen=True)
class Pool:
    """Identical replicas behind a router.

    Attributes
    ----------
    batch_time, token_budget, max_batch_size
        Token load -> ticks, at least 1; the limits b_max and k_max (None: no limit).
    policy, policy_params
        ``(queue, limits, params) -> (prefill tokens, decode tokens, which phase is filled first)``
        for one line.
    scope, convention
        As `penstock.reference.markov_chain.simulate` has them.
    replicas, router
        How many, and a name in `ROUTERS`.
    weights
        Of ``work`` and ``measure``: stage -> whole-numbered weights of a request in prefill and of
        one in decode.
    affinity
        Whether all requests of a job go to one replica.
    order, order_params
        A name in `ORDERS`, ``fcfs``, ``global-age``, or ``(lines, params) -> (mode, weights)``.
    priority
        Of the order ``priority``: the pool's stages, those to be served first at the front.
    """

    batch_time: Callable[[int], int]
    token_budget: int
    max_batch_size: int | None = None
    policy: Policy = sarathi
    policy_params: Sequence[float] = ()
    scope: str = "running"
    convention: str = "engine"
    replicas: int = 1
    router: str = "jsq"
    weights: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    affinity: bool = False
    order: str | Order = "fcfs"
    order_params: Sequence[float] = ()
    priority: Sequence[int] = ()

    def __post_init__(self) -> None:
        known("scope", self.scope, SCOPES)
        known("convention", self.convention, CONVENTIONS)
        known("router", self.router, ROUTERS)
        if isinstance(self.order, str):
            known("order", self.order, ["fcfs", "global-age", *ORDERS])
        for what, number in [("token_budget", self.token_budget), ("replicas", self.replicas)]:
            if number < 1:
                raise InputError(
                    f"a pool with {what} {number} serves nothing; give a whole number from 1 up"
                )


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
    """

    pools: Sequence[Pool]
    stage_pool: Sequence[int]
    prefill: Sequence[float] = ()
    decode: Sequence[float] = ()
    onward: Sequence[Sequence[float]] = ()
    retention: int | None = None

    def stages_of(self, pool: int) -> list[int]:
        """Return the stages that a pool serves, in the network's order."""
        return [stage for stage, served_at in enumerate(self.stage_pool) if served_at == pool]

    def means(self, stage: int) -> tuple[float, float]:
        """Return m_p and m_d of a stage."""
        return (self.prefill[stage] if self.prefill else 1.0), (
            self.decode[stage] if self.decode else 1.0
        )

    def onward_of(self, stage: int) -> Sequence[float]:
        """Return how many requests of each stage the end of one of this stage releases on
        average.
        """
        return self.onward[stage] if self.onward else [0.0] * len(self.stage_pool)
