"""Who is refused on arrival, whose client leaves, and who comes again: what `Running` does about it.

A client waits from its arrival at its pool, each time that it comes: so long for a first token, and
so long for all. At a tick clients leave after the batches that end then have ended, and before
anybody arrives. A request that waits is struck at once. If it runs, its replica takes note when the
batch in progress ends: it gets nothing of that batch, nor of the one that was composed ahead, which
serves it for nothing. Whoever was refused or left comes again after a back-off, if it does, and
else is lost with what would follow it in its job.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from tests.reference.network import Network, Pool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Replica, Request

GOLDEN = 0x9E3779B9  # steps through all 32-bit numbers as evenly as can be


class Clients(ABC):
    """Limits, patience and retries; the rest is in `Running`."""

    now: int
    network: Network
    requests: list[Request]
    replicas: list[Replica]
    due: list[tuple[int, int]]

    def __init__(self) -> None:
        self.asking: set[Request] = set()  # those whose clients wait

    @abstractmethod
    def new_request(self, job: int, row: int) -> Request:
        """Return a request before its release."""

    @abstractmethod
    def drop_home(self, request: Request) -> None:
        """Let its job be at home elsewhere, if that was where its first request went."""

    @abstractmethod
    def lose(self, request: Request) -> None:
        """Lose a request, and all that would come after it."""

    def ask(self, request: Request) -> None:
        """Let a client wait from now on."""
        if request.came is None:
            request.came = self.now
        request.first_until = self.now + request.patience_first
        request.whole_until = self.now + request.patience_whole
        self.asking.add(request)

    def leaves_at(self, request: Request) -> float:
        """Return the tick at which the client of a request leaves."""
        first = request.first_token
        if first is not None and first <= request.first_until:
            return request.whole_until
        return min(request.first_until, request.whole_until)

    def next_leaving(self) -> float:
        """Return the tick at which the next client leaves."""
        self.asking = {r for r in self.asking if r.finish is None and r.gone is None}
        return min((self.leaves_at(request) for request in self.asking), default=math.inf)

    def leave(self, now: int) -> None:
        """Let the clients go who leave now."""
        self.next_leaving()
        for request in sorted(self.asking, key=lambda request: request.index):
            if self.leaves_at(request) != now:
                continue
            request.gone = now
            if request.ready is None:  # in the front end
                continue
            replica = self.replicas[request.replica or 0]
            assert isinstance(replica, EngineReplica)
            waits = request in replica.waiting and not request.is_done
            if waits or not replica.batch:
                self.dismiss(replica, request)

    def dismiss_gone(self, replica: Replica) -> None:
        """Let those go at the end of a batch whose clients have left."""
        if isinstance(replica, EngineReplica):
            for request in (*replica.running, *replica.waiting):
                if request.gone is not None:
                    self.dismiss(replica, request)

    def dismiss(self, replica: EngineReplica, request: Request) -> None:
        """Take a request out of its replica."""
        batch = replica.planned if replica.composes_ahead else replica.batch
        tokens = batch.get(request, 0)
        if request in replica.running or request.is_done:
            tokens += request.computed - request.found
        request.wasted += tokens
        replica.drop(request)
        self.fail(request, "left")

    def fail(self, request: Request, reason: str) -> None:
        """Let a request that was refused, or left, come again, or be lost."""
        self.asking.discard(request)
        backoffs = self.network.backoffs[request.stage] if self.network.backoffs else ()
        tries = request.tries
        if reason == "refused":
            request.refusals += 1
            self.drop_home(request)
            request.ready = request.replica = None
        if tries >= len(backoffs):
            self.lose(request)
            request.failed = reason
            request.gone = None
            return
        self.drop_home(request)
        again = vars(self.new_request(request.job, request.index))
        kept = {name: getattr(request, name) for name in ("came", "refusals", "wasted")}
        vars(request).update(again, **kept, tries=tries + 1, pending=0)
        chance = ((request.luck + (tries + 1) * GOLDEN) % 2**32) / 2**32
        earlier = int(self.network.jitter[request.stage] * backoffs[tries] * chance)
        heapq.heappush(self.due, (self.now + max(backoffs[tries] - earlier, 1), request.index))

    def refuses(self, limits: Mapping[str, int], replicas: list[Replica]) -> bool:
        """Return whether those who are there leave no room for another."""
        there = [r for replica in replicas for r in replica.requests if r.gone is None]
        tokens = sum(self.without_first(replica) for replica in replicas)
        return len(there) >= limits.get("requests", math.inf) or tokens >= limits.get("prompt_tokens", math.inf)

    def without_first(self, replica: Replica) -> int:
        """Return the prompt tokens of those who have no first token yet."""
        there = [r for r in replica.requests if r.gone is None]
        return sum(r.prompt for r in there if r.first_token is None or r.first_token > self.now)

    def refused_by_router(self, request: Request, pool: Pool, replicas: list[Replica]) -> bool:
        """Return whether the router of a pool refuses a request."""
        waiting = sum(len(waiting_at(replica)) for replica in replicas)
        return self.refuses(pool.router_limit, replicas) or waiting >= pool.router_limit.get("waiting", math.inf)

    def refused_by_server(self, request: Request, replica: Replica, pool: Pool) -> bool:
        """Return whether a replica refuses a request; one that is less urgent may make way."""
        limits = replica.pool.limit
        longest = min(limits.get("ttft", math.inf), pool.router_limit.get("ttft", math.inf))
        if self.refuses(limits, [replica]) or self.first_token_in(request, replica) > longest:
            return True
        waiting = waiting_at(replica)
        if len(waiting) < limits.get("waiting", math.inf):
            return False
        assert isinstance(replica, EngineReplica)
        last = max(waiting, key=replica.urgency)
        by_priority = replica.pool.order == "priority"
        if not by_priority or replica.less_urgent(last) <= replica.less_urgent(request):
            return True
        replica.drop(last)
        self.fail(last, "refused")
        return False

    def first_token_in(self, request: Request, replica: Replica) -> int:
        """Return in how many ticks it would have its first token, in full batches beside those who decode."""
        running = replica.running if isinstance(replica, EngineReplica) else []
        decoding = sum(r.decoding and not r.is_done for r in running)
        room = max(replica.b_max - decoding, 1)
        batches = -(-(self.without_first(replica) + request.prompt) // room)
        rest = replica.batches[-1].end - self.now if replica.batch else 0
        return rest + batches * replica.pool.full_batch


def waiting_at(replica: Replica) -> list[Request]:
    """Return the requests that wait at a replica."""
    waiting = replica.waiting if isinstance(replica, EngineReplica) else []
    return [request for request in waiting if not request.is_done]
