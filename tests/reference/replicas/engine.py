"""An engine: KV memory, a waiting queue and a running list, as every scheduler has them.

A scheduler is a subclass of `EngineReplica` with one method, `step`, which moves requests between
the lists ``waiting`` and ``running`` and returns the next batch. Everything is recomputed from
explicit fields; nothing is fast.
"""

import math
from typing import Any, ClassVar

from penstock import checks
from penstock.errors import InputError
from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.replica import Allocation, Replica, Request, token_load


class EngineReplica(Replica):
    """Lists, blocks and preemption; `step` is the scheduler's."""

    pool: EnginePool
    options: ClassVar[tuple[str, ...]] = ()  # names of the settings that only this engine has
    settings: ClassVar[dict[str, tuple[str, ...]]] = {  # what those of all engines may be
        "order": ("fcfs",),
        "scope": ("running",),
        "convention": ("engine",),
        "admission": ("None",),
    }
    # Whether batches of decodes alone keep to the token budget too.
    budgeted: ClassVar[bool] = True
    reserved: ClassVar[int] = 0  # blocks that the engine keeps for itself
    default_block_size: ClassVar[int] = 16
    default_watermark: ClassVar[float | None] = None  # None: it has none
    watermark_alone: ClassVar[bool] = True  # whether it binds while nobody runs
    cuts_prompts = True  # whether a prefill may be spread over batches
    preempts = True
    drafted_tokens = 0  # beyond its own, for which a request needs memory
    reserves_last_token = False  # though the last output is never computed
    names_ahead = 0  # tokens after a block that the name of its contents stands for, too

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.name = pool.engine if isinstance(pool.engine, str) else "policy"
        for setting, possible in self.settings.items():
            known(f"{self.name} {setting}", str(getattr(pool, setting)), possible)
        for option in pool.options:
            known(f"{self.name} option", option, self.options)
        if pool.watermark and self.default_watermark is None:
            raise InputError(f"watermark {pool.watermark:g} has no effect: {self.name!r} has none; leave it out")
        self.block_size = pool.block_size or self.default_block_size
        blocks = math.inf if pool.kv_blocks is None else pool.kv_blocks
        self.usable = blocks - self.reserved
        share = self.default_watermark if pool.watermark is None else pool.watermark
        share = checks.number("watermark", share or 0, 0, 1, "", "it is a share of the blocks")
        self.watermark = 0 if math.isinf(blocks) else int(share * blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.coming: list[Request] = []  # those whose KV memory waits for room here
        self.landed: list[Request] = []  # those that have it and wait for a place
        self.on_the_way: list[tuple[int, Request]] = []  # ticks at which transfers end
        self.lent = 0  # blocks kept for transfers, from here and to here

    def option(self, name: str, default: Any, least: int = 1) -> Any:
        """Return an option, of the kind of its default: a flag, a count, or a share of one."""
        value = self.pool.options.get(name, default)
        if isinstance(default, bool):
            checks.word(f"option {name}", value, (True, False))
        elif isinstance(default, int):
            checks.whole(f"option {name}", value, least, 2**53, "", "it counts tokens or steps")
        else:
            checks.number(f"option {name}", value, 0, 1, "", "it is a share of one")
        return value

    # ------------------------------------------------------------ memory

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    @property
    def free(self) -> float:
        """KV blocks that nobody holds."""
        return self.usable - sum(request.blocks for request in self.running) - self.lent

    @property
    def memory_in_use(self) -> float:
        """Share of the KV blocks that somebody holds; what a cache would give up is not in use."""
        return 0.0 if math.isinf(self.usable) else (self.usable - self.available) / self.usable

    @property
    def available(self) -> float:
        """KV blocks that nobody holds."""
        return self.free

    def tokens_in_cache(self, request: Request) -> int:
        """Tokens of a new request's prompt that the cache holds: none without one."""
        return 0

    def growth(self, request: Request, tokens: int = 1) -> int:
        """KV blocks that it lacks to compute so many tokens more."""
        return max(0, self.blocks(request.computed + request.rejected + tokens) - request.blocks)

    def grow(self, request: Request, tokens: int = 1) -> None:
        """Give it the KV blocks that it lacks to compute so many tokens more."""
        request.blocks += self.growth(request, tokens)

    def refusal(self, request: Request) -> str | None:
        """Say why a request could never finish here, or return None if it could."""
        if request.prompt == 0 and request.total > 0:
            return "has no prompt, with which an engine begins"
        needed = self.blocks(request.total + self.drafted_tokens + self.reserves_last_token)
        kept = self.watermark * self.watermark_alone
        if needed + kept > self.usable:
            beside = f" beside {kept} kept free" if kept else ""
            return f"needs {needed} KV blocks{beside}, but {self.usable:g} can be used"
        # A preempted one comes back longer.
        again = self.preempts and not math.isinf(self.usable)
        longest = request.total if again else request.prompt
        if longest > self.b_max and not self.cuts_prompts:
            return f"may need a prefill of {longest} tokens at once, but the token budget is {self.b_max}"
        return None

    # ------------------------------------------------------------ KV memory from elsewhere

    def await_transfer(self, request: Request, source: Replica, now: int) -> None:
        """Let a request that only decodes wait for its KV memory; whoever has it keeps it."""
        super().arrive(request)
        if isinstance(source, EngineReplica) and not math.isinf(source.usable):
            request.lent = int(min(source.blocks(request.prompt), source.available))
            source.lent += request.lent
        request.source = source
        self.coming.append(request)
        self.start_transfers(now)

    def start_transfers(self, now: int) -> None:
        """Begin the transfers for which there are blocks, on links that carry one at a time."""
        while self.coming:
            request = self.coming[0]
            blocks = self.blocks_to_receive(request)
            if blocks + self.watermark * bool(self.running) > self.available:
                break
            del self.coming[0]
            self.make_free(blocks)
            self.lent += blocks
            request.reserved = blocks
            source = request.source
            assert source is not None
            begin = max(now, self.link_free, source.link_free)
            self.link_free = source.link_free = begin + request.link
            self.on_the_way.append((max(begin + request.link + request.latency, now + 1), request))

    def blocks_to_receive(self, request: Request) -> int:
        """KV blocks that a request takes when its transfer begins."""
        return self.blocks(request.prompt)

    def make_free(self, blocks: int) -> None:
        """Let a cache give up blocks until so many are free."""

    def land(self, request: Request) -> None:
        """Take note that the KV memory of a request is there."""
        self.landed.append(request)
        if isinstance(request.source, EngineReplica):
            request.source.lent -= request.lent

    def receive(self, now: int) -> None:
        """Let those run whose KV memory is there, while there are places, and begin more
        transfers.
        """
        while self.landed and (self.pool.scope == "batch" or len(self.running) < self.k_max):
            request = self.landed.pop(0)
            self.lent -= request.reserved
            self.enter_with_memory(request)
        self.start_transfers(now)

    def enter_with_memory(self, request: Request) -> None:
        """Put it at the end of the running list, with the blocks of its transfer."""
        self.waiting.insert(0, request)
        self.admit(request, request.reserved)

    @property
    def waits_for_transfers(self) -> bool:
        """Whether the end of a transfer may let somebody be served."""
        return bool(self.in_transfer) or self.lent > 0

    @property
    def has_work(self) -> bool:
        """Whether anybody runs, or waits to be admitted."""
        return bool(self.running or self.waiting)

    @property
    def in_transfer(self) -> list[Request]:
        """Requests that are here, but neither run nor wait."""
        listed = {*self.running, *self.waiting}
        return [request for request in self.requests if request not in listed]

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
        """Take all its memory and put it at the head of the waiting queue.

        One whose last token is in flight computes nothing again: it waits only for that.
        """
        if not request.is_done:
            self.forget(request)
        self.evict(request)
        self.preempted.append(request)
        request.preemptions += 1
        self.waiting.insert(0, request)
        self.sort_waiting()

    def forget(self, request: Request) -> None:
        """Let what was computed be computed again, the outputs that are out as prompt."""
        request.target = request.prompt + request.outputs
        request.computed = 0

    def evict(self, request: Request) -> None:
        """Take all its memory and strike it from the running list."""
        request.blocks = 0
        self.running.remove(request)

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

    def cached_blocks(self, request: Request) -> tuple[int, int]:
        """KV blocks that hold its prefix already, and how many of them nobody uses: none without a
        prefix cache.
        """
        return 0, 0

    def lack(self, decoding: list[Request]) -> int:
        """KV blocks that requests lack for one token each."""
        return sum(self.growth(request) for request in decoding)

    @property
    def decoding(self) -> list[Request]:
        """Requests ready to decode, in running order."""
        return [request for request in self.running if request.decoding]

    @property
    def most_prefill(self) -> float:
        """Most tokens of a batch that keeps to the token budget."""
        return self.b_max

    @property
    def spare(self) -> float:
        """KV blocks that neither anybody holds nor a decode needs."""
        return self.free - self.lack(self.decoding)

    # ------------------------------------------------------------ the end of a batch

    def leave(self, request: Request) -> None:
        """Strike a finished request from its list; its blocks are free."""
        super().leave(request)
        if request in self.waiting:
            self.waiting.remove(request)  # preempted while its last token was in flight
        else:
            self.evict(request)

    def strike(self, request: Request) -> None:
        """Strike a request from its list, before it is done; its blocks are free."""
        Replica.leave(self, request)
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.evict(request)

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that the step kept to memory, budget and batch size, and served nobody wrongly."""
        super().assert_feasible(batch)
        listed = sorted(request.index for request in self.running + self.waiting + self.in_transfer)
        assert listed == sorted(request.index for request in self.requests), "lists are not right"
        assert self.available >= 0, f"{-self.available:g} KV blocks more are held than there are"
        assert not any(r.blocks for r in self.waiting), "a waiting request holds KV blocks"
        for request, tokens in batch.items():
            assert request in self.running, f"request {request.index} is served, but does not run"
            assert self.growth(request, tokens) == 0, f"request {request.index} lacks blocks"
        counted = len(batch) if self.pool.scope == "batch" else len(self.running)
        assert counted <= self.k_max, f"{counted} requests exceed {self.k_max}"
        if self.budgeted or not all(request.decoding for request in batch):
            assert token_load(batch) <= self.most_prefill, (
                f"{token_load(batch)} tokens exceed the budget of {self.most_prefill}"
            )


def by_arrival(request: Request) -> tuple[int, int]:
    """Return the place of a request in the order of arrival at its replica."""
    return request.ready or 0, request.index


def by_priority(request: Request) -> tuple[int, int, int]:
    """Return its place in the order ``priority``: the first is served first, the last preempted."""
    return request.priority, *by_arrival(request)
