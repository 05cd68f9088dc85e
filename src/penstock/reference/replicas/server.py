"""An engine: KV memory, a waiting queue and a running list, as every scheduler has them.

A scheduler is a subclass of `Server` with one method, `step`, which moves requests between the
lists ``waiting`` and ``running`` and returns the next batch. Everything is recomputed from explicit
fields; nothing is fast.
"""

import math
from typing import ClassVar

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.reference.network import EnginePool
from penstock.reference.replicas.replica import Allocation, Replica, Request, token_load


class Server(Replica):
    """Lists, blocks and preemption; `step` is the scheduler's."""

    pool: EnginePool
    options: ClassVar[tuple[str, ...]] = ()  # names of the settings that only this engine has
    settings: ClassVar[dict[str, tuple[str | None, ...]]] = {  # what those of all engines may be
        "order": ("fcfs",),
        "scope": ("running",),
        "convention": ("engine",),
        "admission": (None,),
        "preemption": ("recompute",),
    }
    budgeted: ClassVar[bool] = True  # whether no batch has more tokens than the budget
    reserved: ClassVar[int] = 0  # blocks that the engine keeps for itself
    default_block_size: ClassVar[int] = 16
    default_watermark: ClassVar[float] = 0.0
    has_watermark: ClassVar[bool] = False

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.name = pool.engine if isinstance(pool.engine, str) else "policy"
        self.refuse_foreign_settings()
        self.block_size = pool.block_size or self.default_block_size
        blocks = math.inf if pool.kv_blocks is None else pool.kv_blocks
        self.usable = blocks - self.reserved
        share = self.default_watermark if pool.watermark is None else pool.watermark
        share = checks.number("watermark", share, 0, 1, "", "it is a share of the blocks")
        self.watermark = 0 if math.isinf(blocks) else int(share * blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def refuse_foreign_settings(self) -> None:
        """Raise if a setting was given that this engine does not have."""
        for setting, possible in self.settings.items():
            value = getattr(self.pool, setting)
            if value not in possible:
                raise InputError(
                    f"{setting} {value!r} is not one that {self.name!r} has; give "
                    f"{' or '.join(map(str, possible))}"
                )
        if self.pool.watermark and not self.has_watermark:
            raise InputError(
                f"watermark {self.pool.watermark:g} has no effect: {self.name!r} has none; leave "
                "it out"
            )
        for option in self.pool.options:
            if option not in self.options:
                raise InputError(
                    f"{self.name!r} has no option {option!r}{nearest(option, self.options)}"
                )

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that must be True or False."""
        value = self.pool.options.get(name, default)
        checks.word(f"option {name}", value, (True, False))
        return bool(value)

    def count(self, name: str, default: int, least: int = 1) -> int:
        """Return an option that must be a whole number."""
        value, reason = self.pool.options.get(name, default), "it counts tokens or steps"
        return checks.whole(f"option {name}", value, least, 2**53, "", reason)

    def share(self, name: str, default: float) -> float:
        """Return an option that must be a number from 0 to 1."""
        value = self.pool.options.get(name, default)
        return checks.number(f"option {name}", value, 0, 1, "", "it is a share of one")

    # ------------------------------------------------------------ memory

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

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

    def refusal(self, request: Request) -> str | None:
        """Say why a request could never finish here, or return None if it could."""
        if request.prompt == 0 and request.total > 0:
            return "has no prompt, with which an engine begins"
        return self.cannot_fit(request)

    def cannot_fit(self, request: Request) -> str | None:
        """Say which limit is too small for a request, or return None if none is."""
        return self.lacks_blocks(self.blocks(request.total), self.watermark)

    def lacks_blocks(self, needed: int, watermark: int = 0) -> str | None:
        """Say that so many blocks are more than can be used, or return None if they are not."""
        if needed + watermark <= self.usable:
            return None
        kept = f" beside {watermark} kept free" if watermark else ""
        return f"needs {needed} KV blocks{kept}, but {self.usable:g} can be used"

    def too_long(self, request: Request) -> str | None:
        """Say why a request whose prefill cannot be cut does not fit the token budget."""
        # A preempted one comes back longer.
        longest = request.prompt if math.isinf(self.usable) else request.total
        if longest <= self.b_max:
            return None
        return (
            f"may need a prefill of {longest} tokens at once, but the token budget is "
            f"{self.b_max:g}"
        )

    # ------------------------------------------------------------ the two lists

    def arrive(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""
        super().arrive(request)
        self.waiting.append(request)
        self.sort_waiting()

    def sort_waiting(self) -> None:
        """Keep the order ``priority``; the order ``fcfs`` keeps itself."""
        if self.pool.order == "priority":
            self.waiting.sort(key=by_priority)

    def admit(self, request: Request, blocks: int) -> None:
        """Move it from the waiting queue to the end of the running list, with so many KV blocks."""
        self.waiting.remove(request)
        self.running.append(request)
        request.blocks = blocks

    def victim(self) -> Request:
        """Return the running request to be preempted first."""
        if self.pool.order == "priority":
            return max(self.running, key=by_priority)
        return self.running[-1]

    def preempt(self, request: Request) -> None:
        """Take all its memory and put it at the head of the waiting queue."""
        self.forget(request)
        self.evict(request)
        self.waiting.insert(0, request)
        self.sort_waiting()

    def forget(self, request: Request) -> None:
        """Let what was computed be computed again, the outputs that are out as prompt."""
        request.target = request.prompt + request.outputs
        request.computed = 0

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

    # ------------------------------------------------------------ the end of a batch

    def leave(self, request: Request) -> None:
        """Strike a finished request from the running list; its blocks are free."""
        super().leave(request)
        self.running.remove(request)
        request.blocks = 0

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that the step kept to memory, budget and batch size, and served nobody wrongly."""
        super().assert_feasible(batch)
        listed = self.running + self.waiting
        assert len(listed) == len(self.requests), "somebody is listed twice, or nowhere"
        assert set(listed) == set(self.requests), "somebody is listed who is not there"
        assert self.free >= 0, f"{-self.free:g} KV blocks more are held than there are"
        assert not any(r.blocks for r in self.waiting), "a waiting request holds KV blocks"
        for request, tokens in batch.items():
            assert request in self.running, f"request {request.index} is served, but does not run"
            assert self.growth(request, tokens) == 0, f"request {request.index} lacks blocks"
        counted = len(batch) if self.pool.scope == "batch" else len(self.running)
        assert counted <= self.k_max, f"{counted} requests exceed {self.k_max}"
        if self.budgeted:
            assert token_load(batch) <= self.b_max, (
                f"{token_load(batch)} tokens exceed the budget of {self.b_max}"
            )


def by_arrival(request: Request) -> tuple[int, int]:
    """Return the place of a request in the order of arrival at its replica."""
    assert request.ready is not None
    return request.ready, request.index


def by_priority(request: Request) -> tuple[int, int, int]:
    """Return its place in the order ``priority``: the first is served first, the last preempted."""
    return request.priority, *by_arrival(request)
