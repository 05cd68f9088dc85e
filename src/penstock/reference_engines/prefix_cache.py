"""vLLM V1 with prefix caching: full blocks keep their contents until they are needed for others."""

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from penstock.errors import InputError
from penstock.reference_engines.server import Allocation, Limits, Request
from penstock.reference_engines.vllm import VllmV1


@dataclass(eq=False)
class Block:
    """A KV block: who uses it, and what it holds, by a name that stands for the whole prefix up to its end."""

    users: int = 0
    name: Hashable | None = None


class BlockPool:
    """``BlockPool`` of vLLM: a queue of the blocks that nobody uses, some of which still hold a named prefix."""

    def __init__(self, blocks: int) -> None:
        self.unused = deque(Block() for _ in range(blocks))
        self.named: dict[Hashable, list[Block]] = {}  # oldest first

    def take(self) -> Block:
        """Take the first of the queue; what it held is forgotten."""
        block = self.unused.popleft()
        if block.name is not None:
            self.named[block.name].remove(block)
            if not self.named[block.name]:
                del self.named[block.name]
            block.name = None
        block.users = 1
        return block

    def share(self, block: Block) -> None:
        """Use a block that holds what is wanted."""
        if block.users == 0:
            self.unused.remove(block)
        block.users += 1

    def release(self, blocks: list[Block]) -> None:
        """Give blocks back, the last first: those without a name to the front of the queue, the others to its end."""
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0 and block.name is None:
                self.unused.appendleft(block)
            elif block.users == 0:
                self.unused.append(block)

    def give_name(self, block: Block, name: Hashable) -> None:
        """Say what a block holds."""
        block.name = name
        self.named.setdefault(name, []).append(block)


class PrefixCachingVllmV1(VllmV1):
    """The same scheduler, but the blocks at the start of an admitted request may be there already.

    A block is named in the step that fills it: by the request's hash id, if it is one of the prompt, else as the
    request's own.
    """

    def __init__(self, name: str, limits: Limits, options: Mapping[str, object]) -> None:
        super().__init__(name, limits, options)
        if limits.kv_blocks == float("inf"):
            raise InputError("hash_ids are given, but kv_blocks is not, so nothing says what the cache holds; give it")
        self.pool = BlockPool(int(self.usable))
        self.held: dict[Request, list[Block]] = {}

    @property
    def free(self) -> float:
        """KV blocks that nobody uses."""
        return len(self.pool.unused)

    def names(self, request: Request) -> list[Hashable]:
        """Name the full blocks of what is known of a request."""
        blocks = range(request.known // self.block_size)
        ids = request.hash_ids[: request.prompt // self.block_size]  # traces may name a last block that is not full
        return [ids[i] if i < len(ids) else ("own", request.index, i) for i in blocks]

    def cached(self, request: Request) -> list[Block]:
        """Blocks that hold its prefix; its last token is always computed."""
        found: list[Block] = []
        for name in self.names(request)[: (request.target - 1) // self.block_size]:
            if name not in self.pool.named:
                break
            found.append(self.pool.named[name][0])
        return found

    def cached_blocks(self, request: Request) -> tuple[int, int]:
        """KV blocks that hold its prefix, and how many of them nobody uses."""
        found = self.cached(request)
        return len(found), sum(block.users == 0 for block in found)

    def admit(self, request: Request, blocks: int) -> None:
        """Move it to the running list, with the blocks that hold its prefix."""
        self.held[request] = self.cached(request)
        for block in self.held[request]:
            self.pool.share(block)
        super().admit(request, blocks)

    def grow(self, request: Request, tokens: int = 1) -> None:
        """Give it the KV blocks that it lacks, and name those that are full when this step is over."""
        held = self.held[request]
        held += [self.pool.take() for _ in range(self.growth(request, tokens))]
        request.blocks = len(held)
        full = min(request.computed + tokens, request.known) // self.block_size
        for block, name in zip(held, self.names(request)[:full], strict=False):
            if block.name is None:
                self.pool.give_name(block, name)

    def evict(self, request: Request) -> None:
        """Give its blocks back, and strike it from the running list."""
        self.pool.release(self.held.pop(request))
        super().evict(request)

    def leave(self, request: Request) -> None:
        """Give the blocks of a finished request back."""
        self.pool.release(self.held.pop(request))
        super().leave(request)

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that every block is unused or used as often as it is held."""
        super().assert_feasible(batch)
        used = [block for blocks in self.held.values() for block in blocks]
        assert len(set(used)) + len(self.pool.unused) == self.usable, "KV blocks are lost"
        assert sum(block.users for block in set(used)) == len(used), "a KV block is used by others than hold it"
        assert all(block.users == 0 for block in self.pool.unused), "a KV block in use is in the queue"
