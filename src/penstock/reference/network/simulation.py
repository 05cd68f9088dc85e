"""The clock, and the rules of what happens at a tick.

1. *Finish.* Batches that end now end, in the order of replicas. A request enters decode when the
   batch with its last prompt token ends, and finishes with its last token; that releases the
   requests that waited for nothing else, which are ready after their delay.
2. *Arrive.* Requests that are ready now arrive in the order of their rows; so do those that are
   released meanwhile without a delay, because a request without any tokens finishes on arrival.
   Each is routed by what its pool looks like just then, finds what its replica still holds of its
   prompt, and joins its line.
3. *Schedule.* Every replica that has requests and no batch in progress forms one.

Prompts of a line are served in order of arrival, decodes in the order in which they entered decode;
of those that entered at one tick first the ones whose prompt was processed here.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.errors import InputError
from penstock.reference import markov_chain
from penstock.reference.network.batch import Forming, LineAt, Request
from penstock.reference.network.model import Jobs, Network
from penstock.reference.network.orders import ORDERS, Line


@dataclass(frozen=True)
class Batch(markov_chain.Batch):
    """A batch of one of the replicas of all pools."""

    replica: int


@dataclass
class Replica:
    """One server of a pool, and what it has done."""

    pool: int
    index: int  # among the replicas of all pools
    lines: list[LineAt]
    batches: list[Batch] = field(default_factory=list)
    batch: Batch | None = None  # in progress

    @property
    def requests(self) -> list[Request]:
        """Those that are there."""
        return [request for line in self.lines for request in line.requests]

    @property
    def unprocessed_tokens(self) -> int:
        """Tokens that are there and not yet in a batch that has started."""
        return sum(request.P + request.D for request in self.requests)

    def busy(self, end: int) -> int:
        """Return the ticks up to ``end`` in which it served a batch."""
        return sum(min(batch.end, end) - batch.start for batch in self.batches)

    def tokens(self, end: int) -> int:
        """Return the tokens in batches that ended by then."""
        return sum(
            batch.prefill_tokens + batch.decode_tokens for batch in self.batches if batch.end <= end
        )


@dataclass(frozen=True)
class Instant:
    """Counts at a tick, after its finishes and arrivals and before a batch formed then."""

    tick: int
    prefill: list[int]  # requests per stage
    decode: list[int]
    unprocessed_tokens: list[int]  # per replica
    # unprocessed ones of all jobs that have arrived, those of requests still to come included
    future_tokens: int


@dataclass(frozen=True)
class History:
    """What happened up to tick ``end``; what had not happened by then is None."""

    requests: list[Request]
    replicas: list[Replica]
    batches: list[Batch]  # by start, then replica
    instants: list[Instant]
    end: int


def simulate(
    jobs: Jobs, network: Network, *, until: int | None = None, instants: Iterable[int] = ()
) -> History:
    """Run jobs through a network, from empty at tick 0.

    Parameters
    ----------
    jobs, network
        What arrives and what serves.
    until
        Stop at this tick, after its finishes and arrivals; None: when every job is done.
    instants
        Ticks at which to count; those after the end are left out.

    Raises
    ------
    InputError
        If a replica forms an empty batch, or a policy or an order gives what cannot be used.
    """
    running = _Running(jobs, network)
    series: list[Instant] = []
    now = 0
    wanted = sorted(set(instants))
    while True:
        running.finish(now)
        running.arrive(now)
        if wanted and wanted[0] == now:
            series.append(running.count(wanted.pop(0)))
        if until is not None and now >= until:
            break
        running.schedule(now)
        events = running.events()
        if not events and until is None:
            break
        now = min([*events, *wanted[:1], *([] if until is None else [until])])
    batches = sorted(
        (b for r in running.replicas for b in r.batches), key=lambda b: (b.start, b.replica)
    )
    return History(running.requests, running.replicas, batches, series, now)


class _Running:
    """The network at one moment."""

    def __init__(self, jobs: Jobs, network: Network) -> None:
        self.jobs, self.network = jobs, network
        self.requests = [self.new_request(job, index) for job, index in self.rows()]
        self.replicas: list[Replica] = []
        for index, pool in enumerate(network.pools):
            stages = network.stages_of(index)
            shared = pool.order in ("fcfs", "global-age")
            for _ in range(pool.replicas):
                lines = [
                    LineAt(line, [])
                    for line in ([stages] if shared else [[stage] for stage in stages])
                ]
                self.replicas.append(Replica(index, len(self.replicas), lines))
        self.due: list[tuple[int, int]] = []  # (tick, request) of the arrivals to come
        for request in self.requests:
            if request.pending == 0:
                self.release(request, jobs.arrival[request.job])
        self.turns = [0] * len(network.pools)  # of the routers that serve in turn

    def rows(self) -> list[tuple[int, int]]:
        """Return (job, request) for every request."""
        first = self.jobs.first_request
        return [
            (job, index)
            for job in range(len(first) - 1)
            for index in range(first[job], first[job + 1])
        ]

    def new_request(self, job: int, index: int) -> Request:
        """Return a request before its release."""
        stage, prompt, output = (
            self.jobs.stage[index],
            self.jobs.prompt[index],
            self.jobs.output[index],
        )
        engine = self.network.pools[self.network.stage_pool[stage]].convention == "engine"
        decodes = max(output - 1, 0) if engine and prompt > 0 else output
        return Request(
            index, job, stage, prompt, decodes, self.jobs.pending[index], P=prompt, D=decodes
        )

    def release(self, request: Request, now: int) -> None:
        """Let a request come to its pool after its delay."""
        heapq.heappush(self.due, (now + self.jobs.delay[request.index], request.index))

    def events(self) -> list[int]:
        """Return the ticks of what is known to come next."""
        ends = [replica.batch.end for replica in self.replicas if replica.batch]
        return ends + [tick for tick, _ in self.due[:1]]

    # ---------------------------------------------------------------- 1. finish

    def finish(self, now: int) -> None:
        """End the batches that end now, and release what waited for the requests that finish."""
        for replica in self.replicas:
            if replica.batch and replica.batch.end == now:
                for index, tokens in replica.batch.allocation.items():
                    self.served(self.requests[index], *tokens, now)
                replica.batch = None

    def served(self, request: Request, prefill: int, decode: int, now: int) -> None:
        """Note that a batch with tokens of this request has ended."""
        convention = self.network.pools[self.network.stage_pool[request.stage]].convention
        prefill_ended = prefill > 0 and request.P == 0
        if prefill_ended:
            request.decodes_from = now
        yields_token = decode > 0 or (
            prefill_ended and (convention == "engine" or request.decode_tokens == 0)
        )
        if request.first_token is None and yields_token:
            request.first_token = now
        if request.P == 0 and request.D == 0:
            self.depart(request, now)

    def depart(self, request: Request, now: int) -> None:
        """Finish a request and count down what waits for it."""
        request.finish = now
        index, offset = request.index, self.jobs.child[request.index]
        while offset > 0:
            index += offset
            child = self.requests[index]
            child.pending -= 1
            if child.pending == 0:
                self.release(child, now)
            offset = self.jobs.sibling[index]

    # ---------------------------------------------------------------- 2. arrive

    def arrive(self, now: int) -> None:
        """Route the requests that are ready now, in order; those without tokens finish at once."""
        while self.due and self.due[0][0] == now:
            request = self.requests[heapq.heappop(self.due)[1]]
            request.ready = now
            replica = self.route(request)
            request.replica = replica.index
            request.cached = self.cached(request, now)
            request.P -= request.cached
            request.decodes_from = None if request.P > 0 else now
            if request.P == 0 and request.D == 0:
                self.depart(request, now)
            else:
                next(line for line in replica.lines if request.stage in line.stages).arrived.append(
                    request
                )

    def route(self, request: Request) -> Replica:
        """Return the replica of its pool that a request goes to."""
        pool_index = self.network.stage_pool[request.stage]
        pool = self.network.pools[pool_index]
        replicas = [replica for replica in self.replicas if replica.pool == pool_index]
        if pool.affinity:
            for other in self.requests:
                if other.job == request.job and other.replica in [
                    replica.index for replica in replicas
                ]:
                    return self.replicas[other.replica]
        coin = self.jobs.coin[request.index]
        R = len(replicas)
        if pool.router == "random":
            return replicas[(coin * R) >> 32]
        if pool.router == "round-robin":
            self.turns[pool_index] += 1
            return replicas[(self.turns[pool_index] - 1) % R]
        if pool.router == "power-of-two" and R > 1:
            first, second = ((coin & 0xFFFF) * R) >> 16, ((coin >> 16) * (R - 1)) >> 16
            second += second >= first
            replicas = [replicas[first], replicas[second]]
        return min(replicas, key=self.measure)  # the first of equals

    def measure(self, replica: Replica) -> int:
        """Return how full its pool's router takes a replica to be."""
        pool = self.network.pools[replica.pool]
        if pool.router == "tokens":
            return replica.unprocessed_tokens
        if pool.router in ("work", "measure"):
            return sum(
                pool.weights[request.stage][not request.prefilling] for request in replica.requests
            )
        return len(replica.requests)

    def cached(self, request: Request, now: int) -> int:
        """Return how much of a prompt its replica holds from earlier requests, all but its last
        token at most.
        """
        jobs, retention = self.jobs, self.network.retention
        index, tokens = request.index, jobs.reuse[request.index]
        while jobs.context[index] != 0 and tokens > 0:
            index += jobs.context[index]
            earlier = self.requests[index]
            finished = earlier.finish if earlier.replica == request.replica else None
            if finished is not None and (retention is None or now - finished <= retention):
                return max(min(tokens, request.prompt - 1), 0)
            tokens = min(tokens, jobs.reuse[index])
        return 0

    # ---------------------------------------------------------------- 3. schedule

    def schedule(self, now: int) -> None:
        """Let every replica that is idle beside requests form a batch."""
        for replica in self.replicas:
            requests = replica.requests
            if replica.batch or not requests:
                continue
            pool = self.network.pools[replica.pool]
            forming = Forming(pool, requests)
            if pool.order == "global-age":
                forming.by_age()
            elif pool.order == "fcfs":
                forming.offer(replica.lines[0], forming.tokens)
            else:
                order = ORDERS[pool.order] if isinstance(pool.order, str) else pool.order
                lines = [self.line(replica, line) for line in replica.lines]
                forming.in_mode(replica.lines, *order(lines, self.order_params(replica.pool)))
            allocation = {request.index: tokens for request, tokens in forming.served.items()}
            load = sum(prefill + decode for prefill, decode in allocation.values())
            if load == 0:
                raise InputError(
                    f"at tick {now} replica {replica.index} serves none of {len(requests)} requests"
                )
            duration = pool.batch_time(load)
            if duration < 1:
                raise InputError(
                    f"a batch of {load} tokens takes {duration} ticks; let each take 1 or more"
                )
            replica.batch = Batch(now, duration, allocation, replica.index)
            replica.batches.append(replica.batch)

    def order_params(self, index: int) -> Sequence[float]:
        """Return the parameters of a pool's order: for priorities, its lines as they are to be
        served.
        """
        pool, stages = self.network.pools[index], self.network.stages_of(index)
        return (
            [stages.index(stage) for stage in pool.priority]
            if pool.order == "priority"
            else pool.order_params
        )

    def line(self, replica: Replica, line: LineAt) -> Line:
        """Return what an order sees of a line, which is that of one stage."""
        stage = line.stages[0]
        prompts = [request for request in line.requests if request.prefilling]
        next_requests = next_prompts = 0.0
        for onward, (prefill, decode), replicas in zip(
            self.network.onward_of(stage), self.in_system(), self.replicas_of_stages(), strict=True
        ):
            next_requests += onward / replicas * (prefill + decode)
            next_prompts += onward / replicas * prefill
        return Line(
            len(prompts),
            sum(request.P for request in prompts),
            len(line.requests) - len(prompts),
            *self.network.means(stage),
            next_requests,
            next_prompts,
            len(replica.batches),
        )

    # ---------------------------------------------------------------- counts

    def replicas_of_stages(self) -> list[int]:
        """Return for each stage how many replicas serve it."""
        return [self.network.pools[index].replicas for index in self.network.stage_pool]

    def in_system(self) -> list[tuple[int, int]]:
        """Return for each stage the requests in prefill and in decode at its pool."""
        counts = [[0, 0] for _ in self.network.stage_pool]
        for replica in self.replicas:
            for request in replica.requests:
                counts[request.stage][not request.prefilling] += 1
        return [(prefill, decode) for prefill, decode in counts]

    def count(self, tick: int) -> Instant:
        """Count what is there now."""
        counts = self.in_system()
        return Instant(
            tick,
            [prefill for prefill, _ in counts],
            [decode for _, decode in counts],
            [replica.unprocessed_tokens for replica in self.replicas],
            sum(
                request.P + request.D
                for request in self.requests
                if self.jobs.arrival[request.job] <= tick
            ),
        )
