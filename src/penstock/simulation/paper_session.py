"""A session on a server of the paper: a loop twice as fast as that of the events of any network."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel.server import compiled_advance
from penstock.simulation.distribution import Fold
from penstock.simulation.new_world import NO_LIMIT, new_paper_server
from penstock.simulation.rows import Record, ReplicaCounts, Rows
from penstock.simulation.session import Session, chain, gap_bits, level_of
from penstock.simulation.ticks import check_costs, in_ticks, terms_of
from penstock.system.server import Server
from penstock.workload.jobs import Jobs


class PaperSession(Session):
    """On a server whose batches nothing but a policy of the paper forms."""

    pool_of_replica = np.zeros(1, np.int64)
    of_jobs = ("arrival", "prompt", "output", "first_token", "finish")

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        self.server, self.terms = server, terms_of(server, tick_s)
        self._policy = server.policy.compiled  # kept alive: the kernel has its address
        room = min(server.token_budget, server.max_batch_size or NO_LIMIT)
        arrays = new_paper_server(server, room, tick_s, level_of(record))
        bits = gap_bits(record, [server])
        super().__init__(arrays, tick_s, compress, stop, bits, [server.policy.name])
        self.pool = self.world.pools[0]
        self._watch(self.world.state, "waiting_tokens", "arrived", "head")
        self.folds = [(Fold(), Fold())]
        self._keeps_jobs = record != "summary"

    @property
    def arrived(self) -> int:
        """Jobs that have arrived."""
        return int(self._line.arrived.item()) + self.folded_away

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        line = self._line
        return line.arrived.item() - line.head.item(), line.waiting_tokens.item()

    @property
    def useful(self) -> int:
        """Tokens in batches that ended, without those that had to be done again."""
        return int(self._replica.processed.item())

    def add(self, jobs: Jobs) -> None:
        """Let these jobs arrive after those known so far."""
        if self._keeps_jobs:
            self.jobs = Jobs.joined([self.jobs, jobs]) if self.jobs.count else jobs
        never = np.full(jobs.count, -1, np.int64)
        columns = (
            in_ticks("an arrival", jobs.arrival_s, self.tick_s),
            np.ascontiguousarray(jobs.prompt), np.ascontiguousarray(jobs.output),
            never, never.copy(),
        )  # fmt: skip
        new = dict(zip(self.of_jobs, columns, strict=True))
        if self.world.arrival.size:
            new = {name: np.concatenate([getattr(self.world, name), new[name]]) for name in new}
        self.world = self.world._replace(**new)
        prompt, output = columns[1:3]
        longest = int((prompt.astype(np.int64) + output).max(initial=1))
        check_costs(self.server, self.terms, self.tick_s, longest)
        # Linked anew where the longest output asks for a larger ring of due epochs.
        size = max(64, 1 << int(output.max(initial=1)).bit_length())
        if size <= self.world.heads.size:
            return
        heads, bits = np.full(size, -1, np.int64), np.zeros(size // 64, np.uint64)
        for slot in self.linked_slots():
            chain(self.world.slots, heads, bits, slot)
        self.world = self.world._replace(heads=heads, bits=bits)

    def linked_slots(self) -> Iterator[int]:
        """Yield the slots of requests in decode, which are linked first to last."""
        slot = int(self.line.linked.first)
        for _ in range(self.line.linked.count):
            yield slot
            slot = int(self.world.slots[slot].next)

    def prefilled(self, count: int) -> None:
        """Begin with the first ``count`` requests, which arrive at tick 0, ready to decode."""
        state, engine, world = self.line, int(self.pool.convention), self.world
        # Their only token comes with the end of prefill.
        alone = world.output[:count] == engine
        if engine:
            world.first_token[:count] = 0
        world.finish[:count][alone] = 0
        tokens = int(world.prompt[:count].sum(dtype=np.int64))
        state.arrived = state.head = state.visible = count
        state.started = self.replica.processed = state.arrived_tokens = tokens
        self.clock.finished = alone.sum()
        state.decoding = count - alone.sum()
        state.decode_tokens = world.output[:count].sum(dtype=np.int64) - count * engine

    def counts(self) -> ReplicaCounts:
        """Return what has been done; this loop counts tokens of batches as they start."""
        started = np.array([int(self.line.started)])
        return dataclasses.replace(super().counts(), started_tokens=started)

    def by_replica(self, field: str) -> Ints:
        """Return what engines count, of which there is nothing."""
        return np.zeros(1, np.int64)

    def _failing(self, status: int) -> tuple[str, str]:
        """Return the name of the policy that failed."""
        return self.server.policy.name, ""

    def _advance(self) -> int:
        """Call the kernel once."""
        advance = compiled_advance(self.terms is not None)
        return advance(self.address.of(self.world), self.terms)

    def fold(self, everything: bool) -> tuple[Rows, None]:
        """Drop the jobs at the front that are done, or all, and return what became of them."""
        world = self.world
        if everything:  # tokens that batches still in progress will bring
            world.first_token[world.first_token > self.now] = -1
        count = world.finish.size
        first_open = int(world.finish.argmin()) if count else 0  # it is -1 there, if anywhere
        if count and world.finish[first_open] < 0 and not everything:
            count = first_open
        rows = Rows(*(getattr(world, name)[:count] for name in self.of_jobs))
        if not everything:
            self._forget(count)
        elif self._keeps_jobs:
            rows = dataclasses.replace(rows, of_jobs=self.jobs)
        return rows, None

    def _forget(self, count: int) -> None:
        """Forget the first requests, which arrived before any coming instant of the series."""
        state, world = self.line, self.world
        prompts, outputs = world.prompt[state.seen : count], world.output[state.seen : count]
        state.seen_tokens += prompts.sum(dtype=np.int64) + outputs.sum(dtype=np.int64)
        state.seen_tokens -= prompts.size * self.pool.convention
        state.seen = max(state.seen, count) - count
        state.fresh = max(state.fresh, count) - count
        state.arrived -= count
        state.head -= count
        state.visible -= count
        self.clock.requests_before += count
        world.slots.request -= count
        left = {name: getattr(world, name)[count:].copy() for name in self.of_jobs}
        self.world = world._replace(**left)
