"""Prefix caching, as vLLM V1 does it: full blocks keep their contents until they are needed for
others.
"""

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.errors import InputError
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Allocation, Request
from tests.reference.replicas.seam import SeamEngine
from tests.reference.replicas.vllm import VllmV1


@dataclass(eq=False)
class Block:
    """A KV block: who uses it, and what it holds, by a name that stands for the whole prefix up to
    its end.
    """

    users: int = 0
    name: Hashable | None = None


class BlockPool:
    """``BlockPool`` of vLLM: a queue of the blocks that nobody uses, some of which still hold a
    named prefix.
    """

    def __init__(self, blocks: int) -> None:
        self.unused = deque(Block() for _ in range(blocks))
        self.named: dict[Hashable, list[Block]] = defaultdict(list)  # oldest first

    def take(self) -> Block:
        """Take the first of the queue; what it held is forgotten."""
        block = self.unused.popleft()
        if block.name is not None:
            self.named[block.name].remove(block)
            block.name = None
        block.users = 1
        return block

    def share(self, block: Block) -> None:
        """Use a block that holds what is wanted."""
        if block.users == 0:
            self.unused.remove(block)
        block.users += 1

    def release(self, blocks: list[Block]) -> None:
        """Give blocks back, the last first: those without a name to the front of the queue, the
        others to its end.
        """
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0 and block.name is None:
                self.unused.appendleft(block)
            elif block.users == 0:
                self.unused.append(block)

    def give_name(self, block: Block, name: Hashable) -> None:
        """Say what a block holds."""
        block.name = name
        self.named[name].append(block)


class PrefixCache(EngineReplica):
    """An engine on which the blocks at the start of an admitted request may be there already.

    A block is named in the step that fills it: by the request's hash id, if it has one, else as the
    request's own. Where a name stands for the tokens after the block too (``names_ahead``), it is
    given when these are known.
    """

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        if pool.kv_blocks is None:
            raise InputError("hash_ids are given, but kv_blocks is not, so nothing says what the cache holds; give it")
        self.cache = BlockPool(int(self.usable))
        self.held: dict[Request, list[Block]] = {}

    @property
    def free(self) -> float:
        """KV blocks that nobody uses."""
        return len(self.cache.unused) - self.lent

    def names(self, request: Request, tokens: int) -> list[Hashable]:
        """Name the full blocks of the first tokens of a request."""
        return [self.name_of(request, block) for block in range(tokens // self.block_size)]

    def name_of(self, request: Request, block: int) -> Hashable:
        """Name a full block: by the request whose context it is of, where there is one."""
        end = (block + 1) * self.block_size + self.names_ahead
        while request.context is not None and end <= request.reuse:
            request = request.context
        last = (end - 1) // self.block_size
        ids = request.hash_ids[: request.named // self.block_size]
        return ids[last] if last < len(ids) else ("own", request.index, block)

    def cached(self, request: Request) -> list[Block]:
        """Blocks that hold its prefix; its last token is always computed."""
        blocks: list[Block] = []
        for name in self.names(request, request.target - max(1, self.names_ahead)):
            if not self.cache.named[name]:
                break
            blocks.append(self.cache.named[name][0])
        return blocks

    def tokens_in_cache(self, request: Request) -> int:
        """Tokens of a new request's prompt that the cache holds."""
        return len(self.cached(request)) * self.block_size

    def cached_blocks(self, request: Request) -> tuple[int, int]:
        """KV blocks that hold its prefix, and how many of them nobody uses."""
        blocks = self.cached(request)
        return len(blocks), sum(block.users == 0 for block in blocks)

    def admit(self, request: Request, blocks: int) -> None:
        """Move it to the running list, with the blocks that hold its prefix."""
        self.held[request] = self.cached(request)
        for block in self.held[request]:
            self.cache.share(block)
        request.computed = request.found = len(self.held[request]) * self.block_size
        if request.preemptions == 0:
            request.cached = request.computed
        super().admit(request, blocks)
        self.hold(request, blocks)

    def enter_with_memory(self, request: Request) -> None:
        """Put it at the end of the running list, with blocks whose contents nobody else has; they
        have its names at once.
        """
        self.held[request] = []
        self.waiting.insert(0, request)
        super().admit(request, request.reserved)
        self.hold(request, request.reserved)
        self.give_names(request, request.computed)

    def hold(self, request: Request, blocks: int) -> None:
        """Let it have so many KV blocks in all."""
        held = self.held[request]
        held += [self.cache.take() for _ in range(blocks - len(held))]
        request.blocks = len(held)

    def grow(self, request: Request, tokens: int = 1) -> None:
        """Give it the KV blocks that it lacks, and name those that are full when this step is over.

        Of a decode the token before it is known, if its batch has ended; drafts are not.
        """
        self.hold(request, request.blocks + self.growth(request, tokens))
        known = min(request.computed + tokens, request.target)
        if request.decoding:
            known = request.computed + 1 - request.in_flight
        self.give_names(request, known)

    def give_names(self, request: Request, tokens: int) -> None:
        """Name the blocks that its first tokens fill; drafters that look ahead may yet change the
        last tokens before those that are computed.
        """
        if self.names_ahead:
            known = request.prompt + request.outputs - request.in_flight
            tokens = max(min(tokens + 1, known) - self.names_ahead, 0)
        for block, name in zip(self.held[request], self.names(request, tokens), strict=False):
            if block.name is None:
                self.cache.give_name(block, name)

    def leave(self, request: Request) -> None:
        """Name the blocks of all its tokens, which are known, and strike it from its list."""
        if request in self.held:
            self.give_names(request, request.total)
        super().leave(request)

    def evict(self, request: Request) -> None:
        """Give its blocks back, and strike it from the running list."""
        self.cache.release(self.held.pop(request))
        super().evict(request)

    def advance(self, end: int) -> None:
        """Compute a batch for one request after another, as they run: so they give their blocks
        back.
        """
        running = {r: self.batch[r] for r in self.running if r in self.batch}
        self.batch = running | self.batch  # some may be served for nothing
        super().advance(end)

    def complete(self, now: int) -> list[Request]:
        """End a batch; then what is computed of each request is known."""
        batch = self.batch
        finished = super().complete(now)
        for request in batch:
            if request.decoding and request in self.held:
                self.give_names(request, request.computed)
        return finished

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that every block is unused or used as often as it is held."""
        super().assert_feasible(batch)
        used = [block for blocks in self.held.values() for block in blocks]
        assert len(set(used)) + len(self.cache.unused) == self.usable, "KV blocks are lost"
        assert sum(block.users for block in set(used)) == len(used), "a KV block is used by others than hold it"
        assert all(block.users == 0 for block in self.cache.unused), "a KV block in use is in the queue"


class PrefixCachingVllmV1(PrefixCache, VllmV1):
    """vLLM V1 with prefix caching."""


class PrefixCachingSeamEngine(PrefixCache, SeamEngine):
    """A seam policy with prefix caching.

    The policy sees what is cached as it stands when it is asked; who is admitted finds what is
    there then, since those before may have pushed some of it out.
    """

    settings = SeamEngine.settings | {"admission": ("None", "input")}
