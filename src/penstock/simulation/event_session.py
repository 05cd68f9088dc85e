"""A session on any network, a server too: the loop of events."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.kernel import records
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.outages import HIT, SERVER, TICK, WHAT
from penstock.kernel.records import World
from penstock.kernel.signatures import (
    ORDER_SIGNATURE,
    ROUTER_SIGNATURE,
    SEEN_CACHED,
    SEEN_MEMORY,
    SEEN_SPEED,
    address_of,
)
from penstock.simulation.distribution import Fold
from penstock.simulation.jobs_in_ticks import JobsInTicks
from penstock.simulation.new_world import (
    be_patient,
    frozen,
    limit,
    name_recorded,
    new_world,
    wider_table,
    with_clients,
    with_outages,
)
from penstock.simulation.rows import JobEnds, Record, Rows
from penstock.simulation.session import Session, chain, gap_bits, level_of
from penstock.system.outages import SENT_AGAIN, Outage
from penstock.workload.jobs import Jobs

if TYPE_CHECKING:
    from penstock.system.network import Network

_PER_REQUEST = (
    "rows",
    "again",
    "sent",
    "delay",
    "coin",
    "context",
    "reuse",
    "home",
    "cached",
    "ready",
    "front",
    "reached",
    "first_token",
    "finish",
    "tries",
)
_PER_JOB = ("job_arrival", "job_root", "job_tokens")
_WITHOUT_GAPS: tuple[Record, ...] = ("jobs", "requests")


class EventSession(Session):
    """Pools behind routers.

    ``record`` is as in `penstock.simulation.simulate`, ``stop`` and ``compress`` are as in
    `Session`. A network of one that stands for a server (``of_server``) keeps what a server's run
    does. A recording that follows itself has its own names of blocks ``renewals`` times, then the
    first again.
    """

    of_jobs = ("job_arrival",)
    _is_loaded = False  # the functions that its pools need

    def __init__(
        self,
        network: "Network",
        tick_s: float,
        compress: bool,
        stop: int,
        record: Record = "jobs",
        outages: Sequence[Outage] = (),
        *,
        of_server: bool = False,
        renewals: int = 1,
    ) -> None:
        network = self.network = network.served_by_queues if network.guarded else network
        self.of_server = of_server
        self.pools = list(network.pools.values())
        self.kinds = [
            (index, server, count)
            for index, pool in enumerate(self.pools)
            for server, count in pool.servers
        ]
        pools_of, servers, replicas = zip(*self.kinds, strict=True)
        self.pool_of_replica = np.repeat(np.array(pools_of), replicas)
        self.first_replica = np.searchsorted(self.pool_of_replica, network.stage_pool)
        stages = list(zip(network.stage_pool, network.stage_line, strict=True))

        # Of a server all is counted; elsewhere gaps and compositions take time.
        self.counts_compositions = of_server
        self.counts_gaps = of_server or record not in _WITHOUT_GAPS
        # Engines count in any case: where nobody asks, in bounded memory.
        bits = gap_bits(record if self.counts_gaps else "summary", servers)
        world = new_world(servers, replicas, pools_of, stages, tick_s, level_of(record), of_server)

        # Kept alive: the kernel has their addresses.
        orders = [pool.order for pool in self.pools if not pool.order.single_line]
        routers = [pool.router for pool in self.pools if pool.router.function is not None]
        rules = (*(server.policy for server in servers), *orders, *routers)
        self._functions = [rule.compiled for rule in rules]
        names = list(dict.fromkeys(rule.name for rule in rules))
        super().__init__(world, tick_s, compress, stop, bits, names)

        self.folds = [(Fold(), Fold()) for _ in network.stages if record == "summary"]
        self.has_engines = bool(world.engines.size)
        if self.counts_gaps:
            self.clock.line_slots = world.slots.size - self.clock.engine_slots
        if of_server:
            counts = ("waiting", "prefilling", "lost", "rejections", "reused")
            self._watch(world.engines, "uncomposed_prefill", *counts)
        self.world = self._with_orders(world)
        self.outages = outages
        if outages:
            self.world = with_outages(self.world, self._ticks_of(outages))
        if network.guarded:
            self.world = self._with_limits(self.world)
        self._in_ticks = JobsInTicks(
            network,
            tick_s,
            counts_gaps=self.counts_gaps,
            has_tries=bool(outages) or network.guarded,
            of_server=of_server,
        )
        self.world = self.world._replace(**self._in_ticks.arrays(self.jobs))
        self._name_recorded_prompts()
        self.prefixes = network.prefixes
        self.named = self.prefixes.rows * renewals if self.prefixes else 0
        self.requests_offered = 0

    # -- how it begins

    def _with_limits(self, world: World) -> World:
        """Write down whom routers and servers refuse, and which clients leave."""
        for row, (index, server, _) in zip(world.pools, self.kinds, strict=True):
            limit(row.at_router, self.pools[index].router_limit, self.tick_s)
            limit(row.at_server, server.queue_limit, self.tick_s)
            by_priority = server.order == "priority"
            row.evicts = server.policy.queue.rank_step if by_priority else 0
            row.full_batch = round(server.token_budget / server.full_batch_rate / self.tick_s)
        return with_clients(world, self.network.patience_of_stages, self.tick_s)

    def _ticks_of(self, outages: Sequence[Outage]) -> Ints:
        """Return tick, replica over all pools, what happens to it, and 0, in order."""
        rows = []
        for outage in outages:
            dies = records.DIES if outage.requests == SENT_AGAIN else records.DIES_WITH_REQUESTS
            rows.append((*self._death(outage), dies, 0))
            end = round(outage.end_s / self.tick_s)
            rows.append((end, self._death(outage)[1], records.RETURNS, 0))
        return np.array(sorted(rows), np.int64)

    def _death(self, outage: Outage) -> tuple[int, int]:
        """Return when a replica dies, and which over all pools."""
        pool = list(self.network.pools).index(outage.pool)
        first = int(np.searchsorted(self.pool_of_replica, pool))
        return round(outage.start_s / self.tick_s), first + outage.replica

    def hits(self, outages: Sequence[Outage]) -> tuple[int, ...]:
        """Return how many requests were at the replica of each outage when it died."""
        rows = self.world.outages.tolist()
        hit = {(row[TICK], row[SERVER]): row[HIT] for row in rows if row[WHAT] != records.RETURNS}
        return tuple(hit[self._death(outage)] for outage in outages)

    def _name_recorded_prompts(self) -> None:
        """Write down the hash ids of recorded prompts, for replicas that cache prefixes."""
        prefixes = self.network.prefixes
        if prefixes is not None:
            self.world = self.world._replace(ids=prefixes.ids, bounds=prefixes.bounds)
            name_recorded(self.world.pools, prefixes)

    def _with_orders(self, world: World) -> World:
        """Write down routers and orders, and what they go by, for each kind of server."""
        network = self.network
        retention = NEVER
        if network.retention_s is not None:
            retention = round(network.retention_s / self.tick_s)
        params = [world.params]
        for row, (index, server, _) in zip(world.pools, self.kinds, strict=True):
            pool, of_order = self.pools[index], network.order_params[index]
            row.routing.router = pool.router.code
            row.routing.affinity = pool.affinity
            row.routing.looks_up = pool.router.looks_up
            row.routing.looks_at_memory = pool.router.looks_at_memory
            row.plans_late &= pool.router.function is None and not network.sends_memory
            row.routing.report = round(pool.report_ms / 1e3 / self.tick_s)
            if row.routing.report > 0:
                world.clock.next_report = 0
            row.retention = retention
            row.repeats = pool.repeats(server)
            order, router = row.order, row.routing.function
            order.params = sum(part.size for part in params)
            order.end = router.params = order.params + of_order.size
            router.end = router.params + pool.router.params.size
            params += [of_order, pool.router.params]
            if not pool.order.single_line:
                order.address = address_of(pool.order.compiled, ORDER_SIGNATURE)
            if pool.router.function is not None:
                router.address = address_of(pool.router.compiled, ROUTER_SIGNATURE)
        speeds = [server.full_batch_rate for _, server, _ in self.kinds]
        # What a router does not look at is not worked out.
        routing = world.pools.routing[world.servers.pool]
        world.seen[routing.looks_at_memory == 0, SEEN_MEMORY] = np.nan
        world.seen[routing.looks_up == 0, SEEN_CACHED] = np.nan
        world.seen[:, SEEN_SPEED] = np.array(speeds)[world.servers.pool]
        world = world._replace(params=frozen(np.concatenate(params)))
        if self.of_server:  # nothing asks for means, which may be sampled
            return world
        world.stages.prefill_weight, world.stages.decode_weight = network.router_weights.T
        return world._replace(
            onward=np.ascontiguousarray(network.onward, np.float64),
            means=np.column_stack([network.prefill_means, network.decode_means]).astype(np.float64),
        )

    # -- what it knows

    @property
    def arrived(self) -> int:
        """Jobs that have arrived."""
        return self.jobs_before + self.arrived_jobs

    @property
    def arrived_jobs(self) -> int:
        """Jobs of those known that have arrived."""
        return int(self.clock.next_job)

    @property
    def future_tokens(self) -> int:
        """Unprocessed tokens of the jobs that have arrived, their requests to come included."""
        return int(self.clock.future)

    @property
    def processed(self) -> Ints:
        """Shape (pools,): tokens in batches that ended."""
        servers = self.world.servers
        count = np.bincount(self.pool_of_replica, servers.processed, len(self.pools))
        return np.asarray(count, np.int64)

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens, of a server."""
        line = self._line
        return line.waiting.item() + line.prefilling.item(), line.uncomposed_prefill.item()

    @property
    def useful(self) -> int:
        """Tokens of batches that bring requests on, and those found computed, of a server."""
        # Not those done again, wrong drafts, and what is served after an end nobody foresees.
        line, replica = self._line, self._replica
        started = replica.processed.item() + self.begun * replica.tokens.item()
        useless = line.lost.item() + line.rejections.item() - line.reused.item()
        return int(started - useless)

    # -- what it is given

    def keep(self, jobs: Jobs) -> Jobs:
        """Return those of the next jobs that can be served, their outputs within the context.

        The first request that never can is refused, or its job left out, as the pool's memory says.
        """
        jobs = self.network.within_context(jobs)
        first, self.offered = self.offered, self.offered + jobs.count
        if self.prefixes is not None:
            self._name(int(jobs.column("prefix").max(initial=-1)) + 1)
        never = self._in_ticks.never_served(jobs, self.requests_offered)
        self.requests_offered += jobs.requests
        if not never.any():
            return jobs
        fits = np.ones(jobs.count, np.bool_)
        fits[jobs.job[never]] = False
        self.left_out.append((first + np.flatnonzero(~fits), jobs.taken(np.flatnonzero(~fits))))
        return jobs.taken(np.flatnonzero(fits))

    def _name(self, prompts: int) -> None:
        """Have names for so many recorded prompts: twice as many where those so far are too few."""
        so_far = self.world.bounds.size - 1
        if self.prefixes is not None and so_far < min(prompts, self.named):
            most = min(max(prompts, 2 * so_far), self.named)
            again = self.prefixes.renewed(-(-most // self.prefixes.rows))
            self.world = self.world._replace(ids=again.ids, bounds=again.bounds)
            self._in_ticks.prefixes = again

    def add(self, jobs: Jobs) -> None:
        """Let these jobs arrive after those known so far."""
        before = self.jobs.count
        self._in_ticks.check_costs(jobs)
        arrays = self._in_ticks.arrays(jobs)
        if before:
            for name in (*_PER_REQUEST, *_PER_JOB):
                arrays[name] = np.concatenate([getattr(self.world, name), arrays[name]])
            for name in ("rows", "again", "sent", "tries"):
                arrays[name] = arrays[name].view(records.Table)
            arrays["job_root"][before:] += self.jobs.requests
        count = len(arrays["rows"])
        for name, used in (("heap", self.clock.waiting_room), ("leaves", self.clock.leaving)):
            arrays[name] = np.zeros((count, 2), np.int64)
            arrays[name][:used] = getattr(self.world, name)[:used]
        self.jobs = Jobs.joined([self.jobs, jobs]) if before else jobs
        self.world = self.world._replace(**arrays, ready_now=np.zeros(count, np.int64))
        rows = arrays["rows"]
        whole = rows.left.astype(np.int64) + rows.decodes
        be_patient(self.world.pools, int(whole.max(initial=0)))
        if self.world.table.shape[0]:
            tokens = self.network.received(jobs) + jobs.prompt + jobs.output
            blocks = -(-int(tokens.max(initial=0)) // int(self.world.pools.block_size.min()))
            self.world = wider_table(self.world, blocks)
        self._widen_ring(int(rows.decodes.max(initial=1)))

    def prefilled(self, count: int) -> None:
        """Begin with first requests decoding, up to ``count`` and to what slots and memory hold."""
        # The others up to ``count`` wait as prompts.
        pool, server = self.world.pools[0], self.pools[0].server
        most = min(int(pool.batch_size), int(self.clock.engine_slots), count)
        if not server.policy.by_phase:
            # No run of an engine leads to more decodes than fill a batch.
            most = min(most, server.most_tokens)
        self.clock.prefilled, self.clock.prefilled_most = count, most
        self._advance()

    def _widen_ring(self, longest: int) -> None:
        """Make rings of due epochs larger than the longest output; decoding requests go in anew."""
        world = self.world
        size = max(64, 1 << longest.bit_length())
        if size <= world.heads.shape[1]:
            return
        count = len(world.lines)
        heads, bits = np.full((count, size), -1, np.int64), np.zeros((count, size // 64), np.uint64)
        first = world.lines.linked.first.copy()
        first[world.engines.line] = world.engines.slots.first
        decoding = world.lines.linked.count.copy()
        decoding[world.engines.line] = world.engines.decoding
        for line in np.flatnonzero(decoding):
            place = int(first[line])
            while place >= 0:
                if world.slots.left[place] == 0:
                    chain(world.slots, heads[line], bits[line], place)
                place = int(world.slots.next[place])
        self.world = world._replace(heads=heads, bits=bits)

    # -- what it does

    def _advance(self) -> int:
        """Call the kernel once."""
        # Imported here, as a paper server alone does without the loop of all others.
        from penstock.kernel.apart import load
        from penstock.kernel.events import compiled_advance

        advance = compiled_advance()
        if not self._is_loaded:
            load(self.world, not self.of_server, bool(self.outages), self.network.sends_memory)
            self._is_loaded = True
        return advance(self.address.of(self.world))

    def _check_all_ended(self) -> None:
        """Refuse to go on where nothing will ever happen again, though requests are there."""
        left = int(((self.world.finish == -1) & (self.world.ready >= 0)).sum())
        if left:
            raise InputError(
                f"{left:,} requests wait for ever from {self.now * self.tick_s:g} s on: pools send "
                "each other KV memory, and each keeps what it sends until the other has room; "
                "raise their KV memory, or let it go one way only"
            )

    def _failing(self, status: int) -> tuple[str, str]:
        """Return the policy that failed, and where; refuse what routers and orders did."""
        failed = self.pool_of_replica[self.clock.failed]
        name, pool = list(self.network.pools.items())[failed]
        if status == records.BAD_ROUTER:
            raise InputError(
                f"router {pool.router.name!r} of pool {name!r} named no replica of the "
                f"{pool.replicas:,}; let it return a row of replicas"
            )
        if status == records.BAD_ORDER:
            raise InputError(
                f"order {pool.order.name!r} of pool {name!r} gave a weight that is not finite, a "
                "share below 0, or an unknown mode; give finite weights, and return BY_LINE, "
                "BY_PHASE or SPLIT"
            )
        return pool.policy.name, "" if self.of_server else f" of pool {name!r}"

    # -- what it makes

    def fold(self, everything: bool) -> tuple[Rows, JobEnds | None]:
        """Drop the jobs at the front that are done, or all, and return what became of them."""
        world = self.world
        if everything:
            world.first_token[world.first_token > self.now] = -1  # of batches still in progress
        open_requests = np.flatnonzero(world.finish == -1)
        count = self.jobs.count
        if open_requests.size and not everything:
            first_open = open_requests[0]
            count = int(np.searchsorted(self.jobs.first_request, first_open, side="right")) - 1
        jobs = self.jobs.span(0, count)
        requests = slice(jobs.requests)
        finish, ready = world.finish[requests], world.ready[requests]
        rows = Rows(
            ready, jobs.prompt, jobs.output, world.first_token[requests], finish, of_jobs=jobs
        )
        if self.has_engines:
            preemptions = world.again.times[requests].astype(np.int64)
            rows = dataclasses.replace(rows, preemptions=preemptions)
        if self.line is None:  # of a server nobody asks for these
            replica = world.rows.server[requests] - self.first_replica[jobs.stage]
            rows = dataclasses.replace(rows, cached=world.cached[requests], replica=replica)
        if world.tries.size:
            tries = world.tries[requests]
            rows = dataclasses.replace(
                rows,
                arrival=np.where(tries.came >= 0, tries.came, ready),
                finish=np.maximum(finish, -1),
                tries=tries.times.astype(np.int64),
                failed=np.where(finish < -1, finish, 0),
            )
        if self.network.guarded:
            refusals = tries.refusals.astype(np.int64)
            rows = dataclasses.replace(rows, refusals=refusals, wasted=tries.wasted.copy())
        elif world.fronts.size:
            rows = dataclasses.replace(rows, arrival=world.reached[requests].copy())
        if rows.replica is not None:  # a row may know where its job is at home before it is there
            rows = dataclasses.replace(rows, replica=np.where(ready >= 0, rows.replica, -1))
        ends = JobEnds(jobs.workflow, world.job_arrival[:count], _job_finish(rows, jobs))
        if everything:
            return rows, ends
        self._forget(jobs.requests)
        self.clock.next_job -= count
        self.jobs_before += count
        left = {name: getattr(world, name)[jobs.requests :].copy() for name in _PER_REQUEST}
        left |= {name: getattr(world, name)[count:].copy() for name in _PER_JOB}
        left["job_root"] -= jobs.requests
        self.world = world._replace(**left)
        self.jobs = self.jobs.span(count, self.jobs.count)
        return rows, ends

    def _forget(self, count: int) -> None:
        """Forget the first requests, which are done: others are known by their rows."""
        world = self.world
        transfers = world.engines.transfers
        for table, fields in (
            (world.rows, ("next",)),
            (world.again, ("less", "more")),
            *((world.lines[queue], ("first", "last")) for queue in ("waiting", "fresh", "done")),
            *(
                (ends, ("first", "last"))
                for ends in (world.engines.queue, transfers.coming, transfers.landed)
            ),
        ):
            for field in fields:
                column = table[field]
                column[column >= 0] -= count
        world.slots.request -= count
        world.heap[: self.clock.waiting_room, 1] -= count
        self._forget_who_waited(count)
        self.clock.requests_before += count
        if self.clock.clients:
            self.clock.next_sent -= count

    def _forget_who_waited(self, count: int) -> None:
        """Forget when the clients of the first requests, which are done, may leave."""
        leaves = self.world.leaves[: self.clock.leaving]
        left = leaves[leaves[:, 1] >= count] - (0, count)
        left = left[np.lexsort((left[:, 1], left[:, 0]))]  # in order, which is a heap
        self.world.leaves[: len(left)] = left
        self.clock.leaving = len(left)

    def at_stages(self, rows: Rows) -> Iterator[Bools | slice]:
        """Yield which requests are at each stage of which latencies are folded."""
        if len(self.folds) == 1:
            yield slice(None)
            return
        stage_of = rows.jobs.stage
        for stage, _ in enumerate(self.folds):
            yield stage_of == stage

    def by_replica(self, field: str) -> Ints:
        """Return a field of engines for all replicas, 0 for those of lines."""
        engines = self.world.engines
        values = np.zeros(len(self.world.servers), np.int64)
        values[engines.server] = engines[field]
        return values

    def recorded(self) -> tuple[Ints | None, Ints | None]:
        """Return batches, and rows of their requests in the same order; None: not recorded."""
        batches, rows = super().recorded()
        if batches is None or rows is None:
            return batches, None
        by_replica = np.argsort(batches[:, 5], kind="stable")
        first = np.searchsorted(batches[by_replica, 5], np.arange(len(self.world.servers)))
        batch = by_replica[first[rows[:, 4]] + rows[:, 0]]
        rows = rows[np.lexsort((rows[:, 1], batch))]
        # An order that splits batches may serve a prompt twice in one.
        named = rows[:, [4, 0, 1]]
        starts = np.flatnonzero((np.diff(named, axis=0, prepend=-1) != 0).any(axis=1))
        merged = rows[starts]
        merged[:, 2:4] = np.add.reduceat(rows[:, 2:4], starts)
        return batches, merged


def _job_finish(rows: Rows, jobs: Jobs) -> Ints:
    """Return when the last request of each job finished, -1 while one has not."""
    if jobs.requests == jobs.count:
        return rows.finish
    first = jobs.first_request[:-1]
    last = np.maximum.reduceat(rows.finish, first)
    return np.where(np.minimum.reduceat(rows.finish, first) < 0, -1, last)
