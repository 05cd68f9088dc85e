"""The waiting queue of SGLang, which is sorted before a batch of prompts is formed."""

from collections.abc import Callable

from penstock.errors import InputError
from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.replica import Request
from tests.reference.replicas.sglang_memory import SglangMemory

RANKS: dict[str, Callable[[Request], int]] = {"lof": lambda request: -request.declared}
"""By what requests rank, the smaller first, in orders that look at no cache."""
CACHE_AGNOSTIC = ("fcfs", *RANKS)
CACHE_AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


class SglangQueue(SglangMemory):
    """Who waits, in which order; options as `Sglang` has them."""

    caches = False  # whether it has a cache of prefixes

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        policy = str(pool.options.get("schedule_policy", "fcfs"))
        known("sglang schedule_policy", policy, (*CACHE_AGNOSTIC, *CACHE_AWARE))
        if policy == "shortest-prefill-first" and not self.caches:
            raise InputError(
                f"schedule_policy is {policy!r}, which SGLang itself refuses without its cache of "
                "prefixes; give hash_ids, or take another"
            )
        self.schedule_policy = policy if self.caches or policy in CACHE_AGNOSTIC else "fcfs"
        self.by_priority = pool.order == "priority"
        if self.by_priority and policy in CACHE_AWARE:
            raise InputError(
                f"order is 'priority' and schedule_policy {policy!r}, but SGLang has priorities "
                "with 'fcfs' and 'lof' only; take one of them"
            )
        low_first = self.option("schedule_low_priority_values_first", True)
        self.sign = 1 if low_first else -1
        self.comings = 0  # to the waiting queue
        self.queued: dict[Request, int] = {}  # when each came
        # Tokens of batches with prompts. SGLang counts the one that its running batch was at first
        # again with each batch of decodes.
        self.processed = 0
        self.processed_before: dict[Request, int] = {}  # when each came
        self.filled: dict[Request, int] = {}  # its tokens when it was last looked at

    def arrive(self, request: Request) -> None:
        """Put a new request at the end of the waiting queue."""
        super().arrive(request)
        request.declared = int(min(request.declared, self.most_outputs(request)))
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Take note of when it came to the queue."""
        self.comings += 1
        self.queued[request] = self.comings
        self.processed_before[request] = self.processed

    def sort_waiting(self) -> None:
        """Leave the queue as it is; it is sorted before a prefill batch only."""

    def sort_queue(self) -> None:
        """Sort the waiting queue for good: equals stay as they stood."""
        if self.schedule_policy in RANKS:
            ranks = RANKS[self.schedule_policy]
            self.waiting.sort(key=lambda r: (self.rank(r), ranks(r)))
        elif self.by_priority:
            self.waiting.sort(key=lambda r: (self.rank(r), self.queued[r]))

    def rank(self, request: Request) -> int:
        """Its priority, the smaller first; all the same in the order ``fcfs``."""
        return request.priority * self.sign if self.by_priority else 0

    def less_urgent(self, request: Request) -> int:
        """Return its rank: the larger it is, the sooner others go first."""
        return self.rank(request)

    def urgency(self, request: Request) -> tuple[int, int, int]:
        """Return by what the one is found that is least urgent and came last."""
        return self.rank(request), self.queued[request], 0

    def look_up(self, request: Request) -> None:
        """Take note of its tokens, and of those that a cache holds."""
        self.filled[request] = request.target

    def cached_tokens(self, request: Request) -> int:
        """Tokens that a cache held when a waiting request was last looked at."""
        return 0

    def missing(self, request: Request) -> int:
        """Tokens of a waiting request that no cache holds."""
        return request.target

    def room_beside(self, request: Request) -> float:
        """Tokens of memory that nobody needs, and that hold nothing of this request."""
        return self.room
