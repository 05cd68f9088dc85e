"""SGLang's cache of prefixes: a tree of what was computed, whose leaves are given up, the oldest
first.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from penstock.errors import InputError
from tests.reference.network import EnginePool
from tests.reference.replicas.replica import Allocation, Request
from tests.reference.replicas.sglang import Sglang
from tests.reference.replicas.sglang_memory import Budget
from tests.reference.replicas.sglang_queue import CACHE_AWARE

SORTED_QUEUE = 128  # requests; a longer queue is served first come, first served
LOOKS_BETWEEN_TOUCHES = 32
SHARED_IN_QUEUE = 32  # tokens that make a request wait for another one in the queue


class Node:
    """A run of pages of some prompt; what leads to it are its parents."""

    def __init__(self, pages: Sequence[Hashable], parent: "Node | None") -> None:
        self.pages = pages
        self.parent = parent
        self.children: dict[Hashable, Node] = {}  # by their first page
        self.users = 0  # requests that hold it, with all that leads to it
        self.touched = 0.0  # when it was last used


class RadixTree:
    """``UnifiedRadixCache`` of SGLang: pages by what they hold, from the beginning of a prompt on.

    A page is named by the tokens in it. A node is split where two prompts part.
    """

    def __init__(self) -> None:
        self.root = Node((), None)
        self.clock = 0.0

    @property
    def nodes(self) -> list[Node]:
        """All nodes but the root."""
        nodes = [*self.root.children.values()]
        for node in nodes:  # grows as it goes
            nodes += node.children.values()
        return nodes

    @property
    def size(self) -> int:
        """Pages in the tree."""
        return sum(len(node.pages) for node in self.nodes)

    @property
    def unused(self) -> int:
        """Pages in the tree that no request holds."""
        return sum(len(node.pages) for node in self.nodes if node.users == 0)

    def tick(self) -> float:
        """Return a time after all before."""
        self.clock += 1
        return self.clock

    def match(self, pages: Sequence[Hashable]) -> tuple[int, Node]:
        """Return how many of the first pages are there, and the node that they end with.

        They are touched, those nearest to the root the longest ago.
        """
        node, matched = self.root, 0
        if not pages:
            return 0, node
        while matched < len(pages) and pages[matched] in node.children:
            node = node.children[pages[matched]]
            equal = common(node.pages, pages[matched:])
            matched += equal
            if equal < len(node.pages):
                node = self.split(node, equal)
                break
        now = self.tick()
        step: Node | None = node
        while step is not None:
            step.touched = now
            now -= 1e-5
            step = step.parent
        return matched, node

    def found(self, pages: Sequence[Hashable]) -> int:
        """Return how many of the first pages are there, without touching them."""
        node, matched = self.root, 0
        while matched < len(pages) and pages[matched] in node.children:
            node = node.children[pages[matched]]
            equal = common(node.pages, pages[matched:])
            matched += equal
            if equal < len(node.pages):
                break
        return matched

    def insert(self, pages: Sequence[Hashable]) -> Node:
        """Add pages; those that are there stay, and the others are one new leaf."""
        node, matched = self.root, 0
        while matched < len(pages) and pages[matched] in node.children:
            node = node.children[pages[matched]]
            node.touched = self.tick()
            equal = common(node.pages, pages[matched:])
            matched += equal
            if equal < len(node.pages):
                node = self.split(node, equal)
        if matched < len(pages):
            leaf = Node(pages[matched:], node)
            leaf.touched = self.tick()
            node.children[pages[matched]] = leaf
            node = leaf
        return node

    def split(self, node: Node, length: int) -> Node:
        """Cut a node behind so many pages; return the part before the cut, which is touched
        first.
        """
        before = Node(node.pages[:length], node.parent)
        assert node.parent is not None
        node.parent.children[node.pages[0]] = before
        before.users = node.users
        before.touched = self.tick()
        node.touched = self.tick()
        node.pages = node.pages[length:]
        node.parent = before
        before.children = {node.pages[0]: node}
        return before

    def hold(self, node: Node, users: int) -> None:
        """Add (or, below 0, take away) users of a node and of all that leads to it."""
        while node.parent is not None:
            node.users += users
            assert node.users >= 0, "more users leave a node than it has"
            node = node.parent

    def give_up(self) -> bool:
        """Drop the leaf that was touched the longest ago, if there is one that nobody holds."""
        leaves = [node for node in self.nodes if node.users == 0 and not node.children]
        if not leaves:
            return False
        leaf = min(leaves, key=lambda node: node.touched)
        assert leaf.parent is not None
        del leaf.parent.children[leaf.pages[0]]
        return True

    def by_weight(self, ends: Sequence[Node]) -> list[int]:
        """Order requests by the nodes that their prefixes end with: depth first, where most are
        first (``dfs-weight``); those that end with a node come after those beyond it.
        """
        weights = Counter(ends)
        for node in reversed([self.root, *self.nodes]):  # every child before its parent
            weights[node] += sum(weights[child] for child in node.children.values())
        order: list[int] = []

        def visit(node: Node) -> None:
            for child in sorted(node.children.values(), key=lambda child: -weights[child]):
                visit(child)
            order.extend(i for i, end in enumerate(ends) if end is node)

        visit(self.root)
        return order


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return how many of their first pages are equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


class PrefixCachingSglang(Sglang):
    """SGLang with its radix cache, which is its default.

    What a request computed is put into the tree when its prefill (or a chunk of it) is complete
    and when it finishes; pages that the tree had already are given back. A retracted request
    leaves nothing.
    """

    caches = True

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        if pool.kv_blocks is None:
            raise InputError("hash_ids are given, but kv_blocks is not, so nothing says what the cache holds; give it")
        self.tree = RadixTree()
        self.hash_block = pool.hash_block or self.block_size
        self.looks = 0  # at a queue that is served first come, first served
        self.spelled: dict[Request, list[Hashable]] = {}
        self.matched: dict[Request, tuple[int, Node]] = {}  # what was found at the last look
        self.shared: dict[Request, int] = {}  # pages of the tree that a running one holds
        self.ends: dict[Request, Node] = {}  # with which they end

    # ------------------------------------------------------------ memory

    @property
    def free(self) -> float:
        """Pages that neither the tree has nor a request of its own."""
        own = sum(r.blocks - self.shared[r] for r in self.running if r.blocks)
        return self.usable - self.tree.size - own - self.lent

    @property
    def available(self) -> float:
        """Pages that no request holds."""
        return self.free + self.tree.unused

    @property
    def room(self) -> float:
        """Tokens of memory that nobody needs; those that the tree would give up are among them."""
        return self.available * self.block_size

    def room_beside(self, request: Request) -> float:
        """Tokens of memory that nobody needs, and that hold nothing of this request."""
        _, end = self.matched[request]
        self.tree.hold(end, 1)
        room = self.room
        self.tree.hold(end, -1)
        return room

    def make_free(self, blocks: int) -> None:
        """Give up leaves until so many pages are free, or none is left to give up."""
        while self.free < blocks and self.tree.give_up():
            pass

    # ------------------------------------------------------------ what the pages hold

    def tokens(self, request: Request) -> list[Hashable]:
        """Name all tokens of a request: by the ids of its blocks, as those of its context, and the
        others as its own.
        """
        if request not in self.spelled:
            places = range(request.prompt + request.output)
            self.spelled[request] = [self.token(request, place) for place in places]
        return self.spelled[request]

    def token(self, request: Request, place: int) -> Hashable:
        """Name a token: by the request whose context it is of, where there is one."""
        while request.context is not None and place < request.reuse:
            request = request.context
        ids = request.hash_ids[: request.named // self.hash_block]
        block, within = divmod(place, self.hash_block)
        return (ids[block], within) if block < len(ids) else ("own", request.index, place)

    def pages(self, request: Request, tokens: int) -> Sequence[Hashable]:
        """Name the full pages of its first tokens."""
        named, size = self.tokens(request), self.block_size
        return [tuple(named[i : i + size]) for i in range(0, tokens // size * size, size)]

    def tokens_in_cache(self, request: Request) -> int:
        """Tokens of a new request's prompt that the tree holds; its last one is not looked for."""
        return self.tree.found(self.pages(request, request.target - 1)) * self.block_size

    # ------------------------------------------------------------ admission

    def look_up(self, request: Request) -> None:
        """Find its prefix in the tree; its last token is always computed."""
        super().look_up(request)
        self.matched[request] = self.tree.match(self.pages(request, request.target - 1))

    def cached_tokens(self, request: Request) -> int:
        """Tokens that the tree held when a waiting request was last looked at."""
        return self.matched[request][0] * self.block_size if request in self.matched else 0

    def missing(self, request: Request) -> int:
        """Tokens of a waiting request that the tree does not hold."""
        return request.target - self.cached_tokens(request)

    def enter(self, request: Request, tokens: int, batch: Allocation) -> None:
        """Admit a request with the pages that hold its prefix."""
        super().enter(request, tokens, batch)
        self.shared[request], self.ends[request] = self.matched[request]
        self.tree.hold(self.ends[request], 1)
        request.blocks = self.shared[request]
        request.computed = self.cached_tokens(request)
        if request.preemptions == 0:
            request.cached = request.computed

    # ------------------------------------------------------------ what the tree gets

    def complete(self, now: int) -> list[Request]:
        """End a batch; then, in its order, what is complete of each request goes into the tree."""
        batch = self.batch
        before = self.batch if self.composes_ahead else {}  # what is computed of it already
        decoded = {r for r in batch if r.computed - before.get(r, 0) >= r.target}
        held = {request: (self.shared[request], self.ends[request]) for request in batch}
        finished = super().complete(now)
        for request in batch:
            if request.finish == now:
                self.put(request, request.total + (request in self.planned))
                self.tree.hold(held[request][1], -1)
            elif request in self.running and request.decoding and request not in decoded:
                self.keep(request)
        return finished

    def put(self, request: Request, tokens: int) -> Node:
        """Put pages into the tree, cut where the prompt ends: what follows may go before it."""
        pages, prompt = self.pages(request, tokens), request.prompt // self.block_size
        end = self.tree.insert(pages)
        if 0 < prompt < len(pages):
            self.tree.insert(pages[:prompt])
        return end

    def keep(self, request: Request) -> None:
        """Put what is computed of a running request into the tree; it holds that instead."""
        end = self.put(request, request.computed)
        self.tree.hold(self.ends[request], -1)
        self.tree.hold(end, 1)
        self.shared[request] = request.computed // self.block_size
        self.ends[request] = end

    def preempt(self, request: Request) -> None:
        """Take all its memory; what the tree has of it stays there until it is given up."""
        super().preempt(request)
        self.tree.hold(self.ends[request], -1)
        self.matched.pop(request, None)

    # ------------------------------------------------------------ the waiting queue

    def sort_queue(self) -> None:
        """Sort the waiting queue by what the tree has of it, if it is not too long for that."""
        aware = self.schedule_policy in CACHE_AWARE
        bounded = self.schedule_policy in ("lpm", "hrrn")
        if not aware or (bounded and len(self.waiting) > SORTED_QUEUE):
            super().sort_queue()
            self.touch_waiting()
            return
        later = self.match_waiting()
        if self.schedule_policy == "lpm":
            self.waiting.sort(key=lambda r: (r in later, 0 if r in later else -self.matched_tokens(r)))
        elif self.schedule_policy == "dfs-weight":
            order = self.tree.by_weight([self.matched[request][1] for request in self.waiting])
            self.waiting = [self.waiting[index] for index in order]
        elif self.schedule_policy == "hrrn":
            self.waiting.sort(key=lambda r: (math.inf if r in later else -self.response_ratio(r), r.index))
        else:
            self.waiting.sort(key=lambda r: (r in later, r.target - self.matched_tokens(r), self.queued[r]))

    def response_ratio(self, request: Request) -> float:
        """Tokens of batches with prompts since it came, for each of its prompt that the tree lacks.

        The outputs that a retracted request computes again do not count.
        """
        missing = request.prompt - self.matched_tokens(request)
        if missing <= 0:
            return math.inf
        return (self.processed - self.processed_before[request]) / missing

    def matched_tokens(self, request: Request) -> int:
        """Tokens that the tree has of it, but for its last one."""
        return min(self.cached_tokens(request), request.target - 1)

    def chunk_beside_shorter(self, request: Request, budget: Budget) -> float:
        """Most tokens of the request in mid-prefill, so that those of the queue fit beside it that
        are shorter than what is left of it (``shortest_prefill_chunk_limit``).
        """
        page = self.block_size
        if self.schedule_policy != "shortest-prefill-first" or budget.chunk < 2 * page:
            return math.inf
        reserved = 0
        for other in self.waiting:
            work = other.target - self.matched_tokens(other)
            if work >= request.P or reserved + self.paged(work) > budget.chunk - page:
                break
            reserved += self.paged(work)
        return (budget.chunk - reserved) // page * page if reserved else math.inf

    def touch_waiting(self) -> None:
        """Touch the prefixes of all that wait, at every 32nd look, the first of the queue last."""
        if self.waiting:
            self.looks += 1
            if self.looks % LOOKS_BETWEEN_TOUCHES == 1:
                for request in reversed(self.waiting[:SORTED_QUEUE]):
                    self.tree.match(self.pages(request, request.target))

    def match_waiting(self) -> set[Request]:
        """Find the prefixes of all that wait; return those that begin as an earlier one of the
        queue does, from whom they might profit, where the tree has little of both.
        """
        later: set[Request] = set()
        earlier = RadixTree()
        for request in self.waiting:
            self.matched[request] = self.tree.match(self.pages(request, request.target))
            if self.cached_tokens(request) <= SHARED_IN_QUEUE:
                tokens = self.tokens(request)[: request.target]
                equal, _ = earlier.match(tokens)
                if equal >= SHARED_IN_QUEUE:
                    later.add(request)
                else:
                    earlier.insert(tokens)
        return later
