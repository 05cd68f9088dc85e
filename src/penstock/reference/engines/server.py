"""A server with KV memory: requests, blocks, and what every scheduler has in common.

A scheduler is a subclass of `Server` with one method, `step`, which moves requests between the
lists ``waiting`` and ``running`` and returns the next batch. Everything is recomputed from explicit
fields; nothing is fast.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from penstock import checks
from penstock.errors import InputError, nearest


@dataclass(eq=False)
class Request:
    """One request: what it asks for, where it stands, and what became of it."""

    index: int
    arrival: int
    prompt: int
    output: int
    priority: int  # the smaller is served first
    # Equal ones of two requests: their prompts are equal up to the end of that block.
    hash_ids: tuple[int, ...]
    # tokens that its prefill brings into memory: the prompt, or all known ones after a preemption
    target: int
    computed: int = 0  # tokens in memory
    blocks: int = 0  # KV blocks held
    swapped: int = 0  # KV blocks held in host memory
    outputs: int = 0  # output tokens out
    preemptions: int = 0
    first_token: int | None = None
    finish: int | None = None
    # The tick at which each output token was complete.
    token_times: list[int] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        """Whether its prefill is complete."""
        return self.computed >= self.target

    @property
    def known(self) -> int:
        """Tokens that a prefill from nothing brings into memory: the prompt and the outputs that
        are out.
        """
        return self.prompt + self.outputs

    @property
    def rank(self) -> tuple[int, int, int]:
        """Its place in the order ``priority``: smaller is served first, larger is preempted
        first.
        """
        return (self.priority, self.arrival, self.index)


Allocation: TypeAlias = dict[Request, int]
"""The tokens of each request in a batch, in the order in which the scheduler chose them."""


@dataclass(frozen=True)
class Batch:
    """One forward pass: it holds the server over ticks [start, start + duration)."""

    start: int
    duration: int
    allocation: dict[int, int]  # tokens of each request
    preempted: list[int]  # requests preempted to form it, in that order

    @property
    def end(self) -> int:
        """The tick at which it finishes; past the end of the run if that was stopped before."""
        return self.start + self.duration

    @property
    def token_load(self) -> int:
        """Tokens in the batch."""
        return sum(self.allocation.values())


@dataclass(frozen=True)
class Limits:
    """The limits of a server, as every scheduler reads them; what has no limit is infinite."""

    token_budget: float
    max_batch_size: float
    kv_blocks: float
    block_size: int | None  # None: the engine's default
    # Share of the blocks kept free at admission; None: the engine's default.
    watermark: float | None
    order: str
    scope: str
    convention: str
    admission: str | None
    preemption: str


class Server:
    """Lists, blocks and preemption; `step` is the scheduler's."""

    options: ClassVar[tuple[str, ...]] = ()  # names of the settings that only this engine has
    budgeted: ClassVar[bool] = True  # whether no batch has more tokens than the budget
    reserved: ClassVar[int] = 0  # blocks that the engine keeps for itself
    default_block_size: ClassVar[int] = 16
    default_watermark: ClassVar[float] = 0.0
    has_watermark: ClassVar[bool] = False
    orders: ClassVar[tuple[str, ...]] = ("fcfs",)

    def __init__(self, name: str, limits: Limits, options: Mapping[str, object]) -> None:
        self.name, self.limits = name, limits
        self.b_max, self.k_max = limits.token_budget, limits.max_batch_size
        self.block_size = limits.block_size or self.default_block_size
        self.usable = limits.kv_blocks - self.reserved
        share = self.default_watermark if limits.watermark is None else limits.watermark
        self.watermark = 0 if math.isinf(limits.kv_blocks) else int(share * limits.kv_blocks)
        self.extra = 1 if limits.convention == "engine" else 0  # outputs that a prefill yields
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preempted: list[Request] = []  # in this step
        self.moved = 0  # blocks moved to or from host memory in this step
        self.refuse_foreign_settings()
        for option in options:
            if option not in self.options:
                raise InputError(
                    f"{name!r} has no option {option!r}{nearest(option, self.options)}"
                )

    def refuse_foreign_settings(self) -> None:
        """Raise if a setting was given that this engine does not have."""
        limits = self.limits
        for setting, value, possible in (
            ("order", limits.order, self.orders),
            ("scope", limits.scope, ("running",)),
            ("convention", limits.convention, ("engine",)),
            ("preemption", limits.preemption, ("recompute",)),
        ):
            if value not in possible:
                raise InputError(
                    f"{setting} {value!r} is not one that {self.name!r} has: "
                    f"{' or '.join(possible)}"
                )
        if limits.admission is not None:
            raise InputError(
                f"admission {limits.admission!r} is a seam policy's; {self.name!r} has its own rule"
            )
        if limits.watermark and not self.has_watermark:
            raise InputError(
                f"watermark {limits.watermark:g} has no effect: {self.name!r} has none; leave it "
                "out"
            )

    def step(self) -> Allocation:
        """Form the next batch of those that wait and run; empty if nobody can be served."""
        raise NotImplementedError

    # ------------------------------------------------------------ memory

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def peak(self, request: Request) -> int:
        """Tokens in memory when its last iteration runs."""
        return request.prompt + request.output - self.extra

    @property
    def free(self) -> float:
        """KV blocks that nobody holds."""
        return self.usable - sum(request.blocks for request in self.running)

    def growth(self, request: Request, tokens: int = 1) -> int:
        """KV blocks that it lacks to compute so many tokens more."""
        return max(0, self.blocks(request.computed + tokens) - request.blocks)

    def grow(self, request: Request, tokens: int = 1) -> None:
        """Give it the KV blocks that it lacks to compute so many tokens more."""
        request.blocks += self.growth(request, tokens)

    def cannot_fit(self, request: Request) -> str | None:
        """Say why a request could never finish, or return None if it could."""
        return self.lacks_blocks(self.blocks(self.peak(request)), self.watermark)

    def lacks_blocks(self, needed: int, watermark: int = 0) -> str | None:
        """Say that so many blocks are more than can be used, or return None if they are not."""
        if needed + watermark <= self.usable:
            return None
        kept = f" beside {watermark} kept free" if watermark else ""
        return f"needs {needed} KV blocks{kept}, but {self.usable:g} can be used"

    def too_long(self, request: Request) -> str | None:
        """Say why a request whose prefill cannot be cut does not fit the token budget."""
        # A preempted one comes back longer.
        longest = request.prompt if math.isinf(self.usable) else self.peak(request)
        if longest <= self.b_max:
            return None
        return (
            f"may need a prefill of {longest} tokens at once, but the token budget is "
            f"{self.b_max:g}"
        )

    # ------------------------------------------------------------ the two lists

    def arrive(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""
        self.waiting.append(request)
        self.sort_waiting()

    def sort_waiting(self) -> None:
        """Keep the order ``priority``; the order ``fcfs`` keeps itself."""
        if self.limits.order == "priority":
            self.waiting.sort(key=lambda request: request.rank)

    def admit(self, request: Request, blocks: int) -> None:
        """Move it from the waiting queue to the end of the running list, with so many KV blocks."""
        self.waiting.remove(request)
        self.running.append(request)
        request.blocks = blocks

    def victim(self) -> Request:
        """Return the running request to be preempted first."""
        if self.limits.order == "priority":
            return max(self.running, key=lambda request: request.rank)
        return self.running[-1]

    def preempt(self, request: Request) -> None:
        """Take all its memory and put it at the head of the waiting queue; what was computed is
        computed again.
        """
        request.target, request.computed = request.known, 0
        self.evict(request)
        self.waiting.insert(0, request)
        self.sort_waiting()

    def evict(self, request: Request) -> None:
        """Take all its memory and strike it from the running list."""
        request.blocks = 0
        request.preemptions += 1
        self.running.remove(request)
        self.preempted.append(request)

    def preempt_until(self, request: Request, blocks: int) -> bool:
        """Preempt victims until so many KV blocks are free; whether the request itself was
        spared.
        """
        while blocks > self.free:
            victim = self.victim()
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def make_room_for_decodes(self) -> None:
        """Preempt until every decoding request, in running order, can have the block for its next
        token.
        """
        passed: list[Request] = []
        for request in self.decoding:
            while request in self.running and self.lack([*passed, request]) > self.free:
                victim = self.victim()
                if victim in passed:
                    passed.remove(victim)
                self.preempt(victim)
            if request in self.running:
                passed.append(request)

    def lack(self, decoding: list[Request]) -> int:
        """KV blocks that requests lack for one token each."""
        return sum(self.growth(request) for request in decoding)

    @property
    def decoding(self) -> list[Request]:
        """Requests ready to decode, in running order."""
        return [request for request in self.running if request.decoding]

    @property
    def spare(self) -> float:
        """KV blocks that neither anybody holds nor a decode needs."""
        return self.free - self.lack(self.decoding)

    # ------------------------------------------------------------ what a batch brings

    def complete(self, batch: Allocation, tick: int) -> None:
        """End a batch: tokens are in memory, outputs are out, and who has all of them leaves."""
        for request, tokens in batch.items():
            was_decoding = request.decoding
            request.computed += tokens
            if was_decoding or (request.decoding and self.extra):
                request.outputs += 1
                request.token_times.append(tick)
                request.first_token = request.token_times[0]
            if request.outputs == request.output:
                request.finish = tick
                self.leave(request)

    def leave(self, request: Request) -> None:
        """Strike a finished request from the running list; its blocks are free."""
        self.running.remove(request)
        request.blocks = 0

    def idle(self) -> None:
        """Take note that nobody is there."""

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that the step kept to memory, budget and batch size, and served nobody wrongly."""
        assert len({*self.running, *self.waiting}) == len(self.running) + len(self.waiting), (
            "somebody is listed twice"
        )
        assert self.free >= 0, f"{-self.free:g} KV blocks more are held than there are"
        assert not any(request.blocks for request in self.waiting), (
            "a waiting request holds KV blocks"
        )
        for request, tokens in batch.items():
            assert request in self.running, f"request {request.index} is served, but does not run"
            most = 1 if request.decoding else request.target - request.computed
            assert 0 < tokens <= most, f"request {request.index} gets {tokens} of {most} tokens"
            assert self.blocks(request.computed + tokens) <= request.blocks, (
                f"request {request.index} lacks blocks"
            )
        counted = len(batch) if self.limits.scope == "batch" else len(self.running)
        assert counted <= self.k_max, (
            f"{counted} requests exceed {self.k_max} in scope {self.limits.scope}"
        )
        if self.budgeted:
            self.assert_budget(batch)

    def assert_budget(self, batch: Allocation) -> None:
        """Assert that the batch has no more tokens than the budget."""
        assert token_load(batch) <= self.b_max, (
            f"{token_load(batch)} tokens exceed the budget of {self.b_max}"
        )


def token_load(batch: Allocation) -> int:
    """Tokens in a batch."""
    return sum(batch.values())


def at_least(name: str, value: int, least: int) -> int:
    """Return a count, which must be a whole number of at least so much."""
    return checks.whole(
        name, value, least, 2**53, "", "ticks, tokens, blocks and requests are counted"
    )


def flag(options: Mapping[str, object], name: str, default: bool) -> bool:
    """Return an option that must be True or False."""
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise InputError(
            f"option {name} is {checks.shown(value)}, but is on or off; give True or False"
        )
    return value


def count(options: Mapping[str, object], name: str, default: int, least: int = 1) -> int:
    """Return an option that must be a whole number."""
    return checks.whole(
        f"option {name}", options.get(name, default), least, 2**53, "", "it counts tokens or steps"
    )


def share(options: Mapping[str, object], name: str, default: float) -> float:
    """Return an option that must be a number from 0 to 1."""
    return checks.number(
        f"option {name}", options.get(name, default), 0, 1, "", "it is a share of one"
    )
