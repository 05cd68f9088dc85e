"""A session on a network: the event loop, run until something is known, looked at, and gone on
with.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.kernel import records
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.outages import HIT, SERVER, TICK, WHAT
from penstock.kernel.records import World
from penstock.kernel.signatures import (
    ASK_FOR,
    NOT_ASKED_FOR,
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
    name_recorded,
    new_world,
    wider_table,
    with_outages,
)
from penstock.simulation.rows import JobEnds, Record, Rows
from penstock.simulation.session_world import WorldSession, gap_bits, level_of
from penstock.system.network import Network
from penstock.system.outages import SENT_AGAIN, Outage
from penstock.workload.jobs import Jobs

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
    "first_token",
    "finish",
    "tries",
)
_PER_JOB = ("job_arrival", "job_root", "job_tokens")
_WITHOUT_GAPS: tuple[Record, ...] = ("jobs", "requests")


class NetworkSession(WorldSession):
    """Pools behind routers.

    ``record`` is as in `penstock.simulation.simulate`, ``stop`` and ``compress`` are as in
    `WorldSession`.
    """

    of_requests = ("job_arrival",)
    jobs_before = 0  # that were folded away

    def __init__(
        self,
        network: Network,
        tick_s: float,
        compress: bool,
        stop: int,
        record: Record = "jobs",
        outages: Sequence[Outage] = (),
        of_server: bool = False,  # it is a server, of which all is counted
    ) -> None:
        self.network = network
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
        level = level_of(record)
        world = new_world(servers, replicas, pools_of, stages, tick_s, level, of_server)
        orders = [pool.order for pool in self.pools if not pool.order.single_line]
        routers = [pool.router for pool in self.pools if pool.router.function is not None]
        # Kept alive: the kernel has their addresses.
        policies = [server.policy for server in servers]
        self._functions = [each.compiled for each in (*policies, *orders, *routers)]
        rules = list(dict.fromkeys(each.name for each in (*policies, *orders, *routers)))
        stages_folded = network.stages if record == "summary" else ()
        self.folds = [(Fold(), Fold()) for _ in stages_folded]
        self.counts_gaps = of_server or record not in _WITHOUT_GAPS
        # Engines count in any case: where nobody asks, in bounded memory.
        bits = gap_bits(record if self.counts_gaps else "summary", servers)
        super().__init__(world, tick_s, compress, stop, bits, rules)
        self.has_engines = bool(world.engines.size)
        if self.counts_gaps:
            self.clock.line_slots = world.slots.size - self.clock.engine_slots
        self.jobs = _no_jobs()
        self.world = self._with_orders(world)
        self._name_recorded_prompts()
        self.has_workflows, self.has_outages = not of_server, bool(outages)
        self.has_transfers = network.sends_memory
        if outages:
            self.world = with_outages(self.world, self._ticks_of(outages))
        self._in_ticks = JobsInTicks(
            network, tick_s, counts_gaps=self.counts_gaps, has_outages=self.has_outages
        )
        self.world = self.world._replace(**self._in_ticks.arrays(self.jobs))

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
            row.router = pool.router.code
            row.affinity = pool.affinity
            row.looks_up = pool.router.looks_up
            row.looks_at_memory = pool.router.looks_at_memory
            row.plans_late &= pool.router.function is None and not network.sends_memory
            row.report = round(pool.report_ms / 1e3 / self.tick_s)
            if row.report > 0:
                world.clock.next_report = 0
            row.retention = retention
            row.repeats = pool.repeats(server)
            row.order_params = sum(part.size for part in params)
            row.order_params_end = row.routes_params = row.order_params + of_order.size
            row.routes_params_end = row.routes_params + pool.router.params.size
            params += [of_order, pool.router.params]
            if not pool.order.single_line:
                row.order = address_of(pool.order.compiled, ORDER_SIGNATURE)
            if pool.router.function is not None:
                row.routes = address_of(pool.router.compiled, ROUTER_SIGNATURE)
        speeds = [server.full_batch_rate for _, server, _ in self.kinds]
        # What a router does not look at is not worked out.
        world.seen[~world.pools.looks_at_memory.astype(bool)[world.servers.pool], SEEN_MEMORY] = (
            np.nan
        )
        world.seen[~world.pools.looks_up.astype(bool)[world.servers.pool], SEEN_CACHED] = np.nan
        world.seen[:, SEEN_SPEED] = np.array(speeds)[world.servers.pool]
        world.stages.prefill_weight, world.stages.decode_weight = network.router_weights.T
        return world._replace(
            params=frozen(np.concatenate(params)),
            onward=np.ascontiguousarray(network.onward, np.float64),
            means=np.column_stack([network.prefill_means, network.decode_means]).astype(np.float64),
        )

    def share_of(self, total: int) -> float:
        """Return which share is done of a run of so many jobs."""
        return self.arrived / total

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

    def add(self, jobs: Jobs) -> None:
        """Let these jobs arrive after those known so far."""
        before = self.jobs.count
        jobs = self.network.within_context(jobs)
        self._check(jobs)
        arrays = self._in_ticks.arrays(jobs)
        if before:
            for name in (*_PER_REQUEST, *_PER_JOB):
                arrays[name] = np.concatenate([getattr(self.world, name), arrays[name]])
            for name in ("rows", "again", "sent", "tries"):
                arrays[name] = arrays[name].view(np.recarray)
            arrays["job_root"][before:] += self.jobs.requests
        waiting = int(self.clock.waiting_room)
        count = len(arrays["rows"])
        heap = np.zeros((count, 2), np.int64)
        heap[:waiting] = self.world.heap[:waiting]
        self.jobs = Jobs.joined([self.jobs, jobs]) if before else jobs
        self.world = self.world._replace(**arrays, heap=heap, ready_now=np.zeros(count, np.int64))
        rows = arrays["rows"]
        whole = rows.left.astype(np.int64) + rows.decodes
        be_patient(self.world.pools, int(whole.max(initial=0)))
        if self.world.table.shape[0]:
            tokens = self.network.received(jobs) + jobs.prompt + jobs.output
            blocks = -(-int(tokens.max(initial=0)) // int(self.world.pools.block_size.min()))
            self.world = wider_table(self.world, blocks)
        self.widen_ring(int(rows.decodes.max(initial=1)))

    def _check(self, jobs: Jobs) -> None:
        """Refuse requests that could never be served."""
        self._in_ticks.check(jobs)

    def _check_all_ended(self) -> None:
        """Refuse to go on where nothing will ever happen again, though requests are there."""
        left = int(((self.world.finish == -1) & (self.world.ready >= 0)).sum())
        if left:
            raise InputError(
                f"{left:,} requests wait for ever from {self.now * self.tick_s:g} s on: pools send "
                "each other KV memory, and each keeps what it sends until the other has room; "
                "raise their KV memory, or let it go one way only"
            )

    def _refuse(self, status: int) -> None:
        """Say which policy, order or engine cannot go on."""
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
        policy = f"policy {pool.policy.name!r} of pool {name!r}"
        if status == records.STUCK:
            raise InputError(
                f"{policy} can serve nobody at {self.now * self.tick_s:g} s, although requests "
                "wait; raise the KV memory or the token budget"
            )
        if status == records.ENDLESS:
            raise InputError(f"{policy} preempts for ever{self.endless}")
        if status == records.BAD_POLICY:
            raise InputError(f"{policy} asked for {NOT_ASKED_FOR}; {ASK_FOR}")
        raise InputError(
            f"{policy} formed an empty batch while requests wait, so they would wait for ever; "
            "let it serve something whenever it can"
        )

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
        replica = world.rows.server[requests] - self.first_replica[jobs.stage]
        rows = Rows(
            ready, jobs.prompt, jobs.output, world.first_token[requests], finish,
            world.again.times[requests].astype(np.int64) if self.has_engines else None,
            cached=world.cached[requests], replica=replica, of_jobs=jobs,
        )  # fmt: skip
        if self.has_outages:
            came = world.tries.came[requests]
            rows = dataclasses.replace(
                rows,
                arrival=np.where(came >= 0, came, ready),
                # Its row may know already where its job is at home.
                replica=np.where(ready >= 0, replica, -1),
                finish=np.maximum(finish, -1),
                tries=world.tries.times[requests].astype(np.int64),
                lost=finish == records.LOST,
            )
        ends = JobEnds(jobs.workflow, world.job_arrival[:count], _job_finish(rows))
        if everything:
            return rows, ends
        self.drop(jobs.requests)
        self.clock.next_job -= count
        self.jobs_before += count
        kept = {name: getattr(world, name)[jobs.requests :].copy() for name in _PER_REQUEST}
        kept |= {name: getattr(world, name)[count:].copy() for name in _PER_JOB}
        kept["job_root"] -= jobs.requests
        self.world = world._replace(**kept)
        self.jobs = self.jobs.span(count, self.jobs.count)
        return rows, ends

    def at_stages(self, rows: Rows) -> Iterator[Bools]:
        """Yield which requests are at each stage of which latencies are folded."""
        for stage, _ in enumerate(self.folds):
            yield rows.jobs.stage == stage

    def recorded(self) -> tuple[Ints | None, Ints | None]:
        """Return batches, and rows of their requests in the same order; None: not recorded."""
        batches, rows = self.batch_rows(), self.allocation_rows()
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


def _no_jobs() -> Jobs:
    none, reals = np.zeros(0, np.int32), np.zeros(0)
    return Jobs(reals, none, np.zeros(1, np.int64), none, none, none, none, none, reals, none,
    none, none,
                np.zeros(0, np.uint32))  # fmt: skip


def _job_finish(rows: Rows) -> Ints:
    """Return when the last request of each job finished, -1 while one has not."""
    jobs = rows.jobs
    if jobs.requests == jobs.count:
        return rows.finish
    first = jobs.first_request[:-1]
    last = np.maximum.reduceat(rows.finish, first)
    return np.where(np.minimum.reduceat(rows.finish, first) < 0, -1, last)
