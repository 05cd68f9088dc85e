"""A network at one moment, and what can happen to it: see `tests.reference.simulation`."""

import dataclasses
import heapq
import math
from collections import Counter

from penstock.errors import InputError
from tests.reference.clients import Clients
from tests.reference.network import EnginePool, Jobs, Network, PaperPool, Pool
from tests.reference.replicas import make_engine
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.paper import PaperReplica
from tests.reference.replicas.replica import Replica, Request
from tests.reference.routers import ROUTERS, Asked, Seen


@dataclasses.dataclass(frozen=True)
class Instant:
    """Counts at a tick, after its finishes and arrivals and before a batch formed then."""

    tick: int
    prefill: list[int]  # requests per stage
    decode: list[int]
    unprocessed_tokens: list[int]  # per replica
    # unprocessed ones of all jobs that have arrived, those of requests still to come included
    future_tokens: int


@dataclasses.dataclass(frozen=True)
class Outage:
    """A replica, counted over all pools, that dies at a tick and comes back at another."""

    replica: int
    start: int
    end: int
    loses: bool  # its requests; else they are sent again


class Running(Clients):
    """The network at one moment."""

    def __init__(self, jobs: Jobs, network: Network) -> None:
        super().__init__()
        self.jobs, self.network = jobs, network
        self.now = 0
        self.replicas: list[Replica] = []
        self.pools: list[list[Replica]] = []
        self.pool_of: list[int] = []  # of each replica
        for number, pool in enumerate(network.pools):
            first = len(self.replicas)
            stages = self.stages_of(number)
            for kind in (pool, *pool.others):
                for _ in range(kind.replicas):
                    self.replicas.append(self.new_replica(kind, stages, len(self.replicas)))
            self.pools.append(self.replicas[first:])
            self.pool_of += [number] * (len(self.replicas) - first)
        self.down: set[int] = set()  # replicas that do not serve
        self.died = [-1] * len(self.replicas)  # when each did so last
        self.held: list[Request] = []  # those that wait until a replica of their pool serves
        self.homes: dict[tuple[int, int], int] = {}  # by job and pool, where all requests go
        self.turns = [0] * len(network.pools)  # requests that routers have placed
        self.reported = [0] * len(network.pools)  # when they last learned how replicas are
        self.seen = {r: Seen(0, 0, 0, 0, 0.0, 0, r.pool.speed, 0) for r in self.replicas}
        self.requests: list[Request] = []
        self.due: list[tuple[int, int]] = []  # (tick, request) of the arrivals to come
        # When each process of a front end is done with what it has.
        self.fronts = [[0] * (pool.front[2] if pool.front else 0) for pool in network.pools]
        for job, tick in enumerate(jobs.arrival):
            if job > 0 and tick < jobs.arrival[job - 1]:
                raise InputError(
                    f"arrival[{job}] = {tick} is before arrival[{job - 1}] = {jobs.arrival[job - 1]}; sort by arrival"
                )
            for row in range(jobs.first_request[job], jobs.first_request[job + 1]):
                self.requests.append(self.new_request(job, row))
                if jobs.pending[row] == 0:
                    self.release(self.requests[row], tick)

    def stages_of(self, pool: int) -> list[int]:
        """Return the stages that a pool serves."""
        return [stage for stage, other in enumerate(self.network.stage_pool) if other == pool]

    def new_replica(self, pool: Pool, stages: list[int], index: int) -> Replica:
        """Return a replica of a pool, or of one of its kinds, that serves these stages."""
        if isinstance(pool, EnginePool):
            return make_engine(pool, index)
        assert isinstance(pool, PaperPool)
        return PaperReplica(pool, index, stages, self.ahead)

    def new_request(self, job: int, row: int) -> Request:
        """Return a request before its release, if it can ever finish."""
        jobs, stage, prompt = self.jobs, self.jobs.stage[row], self.jobs.prompt[row]
        replica = self.pools[self.network.stage_pool[stage]][0]
        pool, output = replica.pool, replica.outputs_of(prompt, jobs.output[row])
        sender = jobs.sender[row] if jobs.sender else 0
        receives = isinstance(pool, EnginePool) and sender < 0 and prompt == 0 and output > 0
        if receives:  # all that its sender had in memory
            prompt = self.requests[row + sender].total
            output += pool.convention == "engine"  # the one before its first decode
        yielded = pool.convention == "engine" and prompt > 0  # an output with the last prompt token
        total = prompt + max(output - yielded, 0)
        if isinstance(pool, EnginePool) and pool.convention == "engine":
            output = max(output, 1)
        request = Request(
            row,
            job,
            stage,
            prompt,
            output,
            total,
            jobs.pending[row],
            jobs.priority[row] if jobs.priority else 0,
            jobs.hash_ids[row] if jobs.hash_ids else (),
            target=prompt,
            named=prompt + (jobs.output[row] if jobs.names_outputs else 0),
            declared=replica.outputs_of(prompt, jobs.declared[row]) if jobs.declared else output,
            context=self.requests[row + jobs.context[row]] if jobs.context[row] else None,
            reuse=jobs.reuse[row],
            patience_first=jobs.patience_first[row] if jobs.patience_first else math.inf,
            patience_whole=jobs.patience_whole[row] if jobs.patience_whole else math.inf,
            luck=jobs.luck[row] if jobs.luck else 0,
        )
        if receives:
            request.receives, request.computed = True, prompt
            request.made_elsewhere = int(pool.convention == "engine")
            request.link, request.latency = jobs.link[row], jobs.delay[row]
        reason = replica.refusal(request)
        if reason:
            raise InputError(
                f"request {row} of {prompt} prompt and {output} output tokens {reason}, so it "
                "could never finish; drop it"
            )
        return request

    def release(self, request: Request, now: int) -> None:
        """Let a request come to its pool after its delay."""
        delay = 0 if request.receives else self.jobs.delay[request.index]
        heapq.heappush(self.due, (now + delay, request.index))

    # ---------------------------------------------------------------- 1. finish

    def finish(self, now: int) -> None:
        """End the batches that end now, and release what waited for the requests that finish."""
        for replica in self.replicas:
            if replica.batch and replica.batches[-1].end == now:
                self.dismiss_gone(replica)
                for request in replica.complete(now):
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

    def die(self, outage: Outage) -> None:
        """Put an empty replica in the place of another; send its requests again, or lose them."""
        index = outage.replica
        old = self.replicas[index]
        pool = self.pool_of[index]
        new = self.replicas[index] = self.new_replica(old.pool, self.stages_of(pool), index)
        self.pools[pool][self.pools[pool].index(old)] = new
        self.seen[new] = self.seen.pop(old)
        new.batches = old.batches
        if old.batch:
            last = new.batches[-1]
            new.batches[-1] = dataclasses.replace(last, duration=self.now - last.start, died=True)
        self.down.add(index)
        self.died[index] = self.now
        for request in old.requests:
            if outage.loses:
                self.lose(request)
            else:
                self.send_again(request)

    def send_again(self, request: Request) -> None:
        """Let a request be as it was before it came, and arrive."""
        kept = {"reached": request.reached, "came": request.came, "tries": request.tries + 1}
        vars(request).update(vars(self.new_request(request.job, request.index)), **kept, pending=0)
        self.drop_home(request)
        heapq.heappush(self.due, (self.now, request.index))

    def drop_home(self, request: Request) -> None:
        """Let its job be at home elsewhere, if that was where its first request went."""
        pool = self.network.stage_pool[request.stage]
        if request.index == self.first_there(request):
            self.homes.pop((request.job, pool), None)

    def first_there(self, request: Request) -> int:
        """Return the first request of a job that goes to the same pool."""
        jobs, stage_pool = self.jobs, self.network.stage_pool
        rows = range(jobs.first_request[request.job], jobs.first_request[request.job + 1])
        pool = stage_pool[request.stage]
        return next(row for row in rows if stage_pool[jobs.stage[row]] == pool)

    def lose(self, request: Request) -> None:
        """Lose a request, and all that would come after it."""
        request.lost = True
        request.token_times = []
        request.cached = 0
        request.preemptions = request.total = request.computed = request.taken = 0
        index, offset = request.index, self.jobs.child[request.index]
        while offset > 0:
            index += offset
            if not self.requests[index].lost:
                self.lose(self.requests[index])
            offset = self.jobs.sibling[index]

    def come_back(self, index: int) -> None:
        """Let a replica serve again, and whoever waits for that arrive."""
        self.down.discard(index)
        replica = self.replicas[index]
        pool = self.pool_of[index]
        self.seen[replica] = self.look(replica, self.network.pools[pool])
        here = [r for r in self.held if self.network.stage_pool[r.stage] == pool]
        for request in here:
            self.held.remove(request)
            heapq.heappush(self.due, (self.now, request.index))

    # ---------------------------------------------------------------- 2. arrive

    def arrive(self, now: int) -> None:
        """Route the requests that are ready now, in order; those without tokens finish at once."""
        while self.due and self.due[0][0] == now:
            request = self.requests[heapq.heappop(self.due)[1]]
            if request.ready is not None:  # what comes is its KV memory
                self.land(request)
                continue
            if request.reached is None:
                request.reached = now
                self.ask(request)
                if self.waits_in_front(request):
                    continue
            if request.gone is not None:
                self.fail(request, "left")
                continue
            if not self.serving(request):
                self.held.append(request)
                continue
            pool = self.network.pools[self.network.stage_pool[request.stage]]
            if self.refused_by_router(request, pool, self.serving(request)):
                self.fail(request, "refused")
                continue
            replica = self.chosen(request)
            if self.refused_by_server(request, replica, pool):
                self.fail(request, "refused")
                continue
            self.settle(request, replica)
            request.ready = request.decodes_from = now
            request.replica = replica.index
            if not isinstance(replica.pool, EnginePool):
                request.cached = request.computed = self.cached(request, replica)
            if request.total == 0:
                self.depart(request, now)
            elif request.receives:
                self.await_transfer(request, replica)
            else:
                replica.arrive(request)

    def waits_in_front(self, request: Request) -> bool:
        """Let the first free process of its pool's front end work on a request, if it takes any time."""
        number = self.network.stage_pool[request.stage]
        front, busy = self.network.pools[number].front, self.fronts[number]
        if front is None or request.receives:
            return False
        row, jobs = request.index, self.jobs
        outputs = self.pools[number][0].outputs_of(jobs.prompt[row], jobs.output[row])
        work = front[0] + front[1] * outputs
        if work == 0:
            return False
        place = busy.index(min(busy))
        busy[place] = max(busy[place], self.now) + work
        heapq.heappush(self.due, (busy[place], request.index))
        return True

    def await_transfer(self, request: Request, replica: Replica) -> None:
        """Let a request that only decodes wait for the KV memory that another one leaves."""
        sender = self.requests[request.index + self.jobs.sender[request.index]]
        assert isinstance(replica, EngineReplica)
        assert sender.replica is not None
        replica.await_transfer(request, self.replicas[sender.replica], self.now)
        self.note_transfers(replica)

    def note_transfers(self, replica: Replica) -> None:
        """Note when the transfers end that have begun."""
        if not isinstance(replica, EngineReplica):
            return
        for tick, request in replica.on_the_way:
            heapq.heappush(self.due, (tick, request.index))
        replica.on_the_way = []

    def land(self, request: Request) -> None:
        """Let a replica know that the KV memory of a request is there."""
        assert request.replica is not None
        replica = self.replicas[request.replica]
        assert isinstance(replica, EngineReplica)
        replica.land(request)

    def serving(self, request: Request) -> list[Replica]:
        """Return the replicas of its pool that serve."""
        replicas = self.pools[self.network.stage_pool[request.stage]]
        return [replica for replica in replicas if replica.index not in self.down]

    def settle(self, request: Request, replica: Replica) -> None:
        """Remember where a job is at home, one of whose requests goes to a replica."""
        place = request.job, self.network.stage_pool[request.stage]
        if request.index == self.first_there(request):
            self.homes[place] = replica.index
        if self.network.pools[place[1]].affinity:
            self.homes.setdefault(place, replica.index)

    def chosen(self, request: Request) -> Replica:
        """Return the replica of its pool that a request goes to."""
        pool_index = self.network.stage_pool[request.stage]
        pool, replicas = self.network.pools[pool_index], self.serving(request)
        R = len(replicas)
        if R == 1:
            return replicas[0]
        home = self.homes.get((request.job, pool_index))
        if pool.affinity and home is not None and home not in self.down:
            return self.replicas[home]
        coin = self.jobs.coin[request.index]
        if pool.router in ROUTERS:
            return self.by_function(request, pool_index)
        if pool.router == "random":
            return replicas[(coin * R) >> 32]
        if pool.router == "round-robin":
            self.turns[pool_index] += 1
            return replicas[(self.turns[pool_index] - 1) % R]
        if pool.router == "power-of-two":
            first, second = ((coin & 0xFFFF) * R) >> 16, ((coin >> 16) * (R - 1)) >> 16
            second += second >= first
            replicas = [replicas[first], replicas[second]]
        seen = {replica: self.looked_at(replica, pool) for replica in replicas}
        if pool.router == "tokens":
            return min(replicas, key=lambda replica: seen[replica].tokens)  # the first of equals
        if pool.router in ("work", "measure"):
            return min(replicas, key=lambda replica: seen[replica].work)
        return min(replicas, key=lambda replica: seen[replica].requests)

    def by_function(self, request: Request, pool_index: int) -> Replica:
        """Return the replica that a router names which is a function."""
        pool, replicas = self.network.pools[pool_index], self.serving(request)
        jobs, home = self.jobs, self.homes.get((request.job, pool_index))
        places = {replica.index: place for place, replica in enumerate(replicas)}
        asked = Asked(
            jobs.prompt[request.index],
            None if home is None else places.get(home),
            jobs.coin[request.index],
            self.turns[pool_index],
        )
        self.turns[pool_index] += 1
        seen = []
        for replica in replicas:
            cached = self.cached(request, replica)
            seen.append(dataclasses.replace(self.looked_at(replica, pool), cached=cached))
        replica = replicas[ROUTERS[pool.router](seen, asked, pool.router_params)]
        if pool.report:
            known = self.seen[replica]
            self.seen[replica] = dataclasses.replace(known, sent=known.sent + 1)
        return replica

    def looked_at(self, replica: Replica, pool: Pool) -> Seen:
        """Return how the router of its pool sees a replica."""
        return self.seen[replica] if pool.report else self.look(replica, pool)

    def look(self, replica: Replica, pool: Pool) -> Seen:
        """Return how a replica is."""
        weights = pool.weights
        waiting, used = len(replica.requests), 0.0
        if isinstance(replica, EngineReplica):
            waiting, used = len(replica.waiting), replica.memory_in_use
        return Seen(
            requests=len(replica.requests),
            waiting=waiting,
            tokens=replica.unprocessed_tokens,
            work=sum(weights[r.stage][r.decoding] for r in replica.requests) if weights else 0,
            memory=used,
            cached=0,
            speed=replica.pool.speed,
            sent=0,
        )

    def report(self, now: int) -> None:
        """Tell routers how replicas are, before anything happens now."""
        for index, pool in enumerate(self.network.pools):
            tick = now // pool.report * pool.report if pool.report else 0
            if tick > self.reported[index]:
                self.reported[index] = tick
                self.seen |= {replica: self.look(replica, pool) for replica in self.pools[index]}

    def cached(self, request: Request, replica: Replica) -> int:
        """Return how much of a prompt a replica holds from earlier requests, all but its last token
        at most.
        """
        if isinstance(replica, EngineReplica):
            return replica.tokens_in_cache(request) if self.jobs.prompt[request.index] else 0
        jobs, retention, now = self.jobs, self.network.retention, self.now
        index, tokens = request.index, jobs.reuse[request.index]
        while jobs.context[index] != 0 and tokens > 0:
            index += jobs.context[index]
            earlier = self.requests[index]
            finished = earlier.finish if earlier.replica == replica.index else None
            if finished is not None and finished <= self.died[replica.index]:
                finished = None
            if finished is not None and (retention is None or now - finished <= retention):
                return max(min(tokens, request.prompt - 1), 0)
            tokens = min(tokens, jobs.reuse[index])
        return 0

    # ---------------------------------------------------------------- counts

    def in_system(self) -> list[tuple[int, int]]:
        """Return for each stage the requests in prefill and in decode at its pool."""
        there = [request for replica in self.replicas for request in replica.requests]
        counts = Counter((request.stage, request.decoding) for request in there)
        stages = range(len(self.network.stage_pool))
        return [(counts[stage, False], counts[stage, True]) for stage in stages]

    def ahead(self, stage: int) -> tuple[float, float, float, float]:
        """Return what an order sees of a stage and of those that follow it."""
        network = self.network
        requests = prompts = 0.0
        for next_stage, (prefill, decode) in enumerate(self.in_system()):
            onward = network.onward[stage][next_stage] if network.onward else 0.0
            share = onward / len(self.pools[network.stage_pool[next_stage]])
            requests += share * (prefill + decode)
            prompts += share * prefill
        m_p = network.prefill[stage] if network.prefill else 1.0
        m_d = network.decode[stage] if network.decode else 1.0
        return m_p, m_d, requests, prompts

    def count(self, tick: int) -> Instant:
        """Count what is there now."""
        prefill, decode = zip(*self.in_system(), strict=True)
        unprocessed = [replica.unprocessed_tokens for replica in self.replicas]
        arrived = [r for r in self.requests if self.jobs.arrival[r.job] <= tick]
        future = sum(request.unprocessed for request in arrived)
        return Instant(tick, list(prefill), list(decode), unprocessed, future)
