"""A session on one server: the kernel's arrays, run until something is known, looked at, and gone
on with.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import records
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.server import compiled_advance
from penstock.kernel.server_arrays import new_arrays
from penstock.kernel.signatures import ASK_FOR, NOT_ASKED_FOR
from penstock.simulation.distribution import Fold
from penstock.simulation.new_world import NO_LIMIT, new_world
from penstock.simulation.rows import Record, ReplicaCounts, Rows
from penstock.simulation.run import Run
from penstock.simulation.session_world import (
    WorldSession,
    begun_batches,
    chain,
    gap_bits,
    level_of,
    views,
)
from penstock.simulation.ticks import arrivals_in_ticks, check_costs, terms_of
from penstock.system.server import Server
from penstock.words import counted
from penstock.workload.prefixes import Prefixes
from penstock.workload.workload import Requests

OF_A_LINE = ("arrived", "waiting_tokens", "decoding", "arrived_tokens")
"""What is read of a line after every few batches."""


class OneServer(WorldSession, abc.ABC):
    """What sessions on one server have in common: what is known of it, and the run it makes."""

    server: Server
    pool_of_replica = np.zeros(1, np.int64)
    line: Any  # the record of what waits and decodes
    _line: Any

    def _watch(self, server: Server) -> None:
        """Keep at hand what is read after every few batches."""
        self.server = server
        self._policy = server.policy.compiled  # kept alive: the kernel has its address
        self.terms = terms_of(server, self.tick_s)
        self.pool = self.world.pools[0]
        self.replica = self.world.servers[0]
        self._replica = views(self.world.servers, "equal", "processed", "busy", "start", "tokens")

    # -- what it knows

    @property
    @abc.abstractmethod
    def arrived(self) -> int:
        """Requests that have arrived."""

    @property
    @abc.abstractmethod
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""

    @property
    @abc.abstractmethod
    def started(self) -> int:
        """Tokens in batches that started."""

    @property
    @abc.abstractmethod
    def useful(self) -> int:
        """Tokens in batches, without those that had to be done again."""

    @property
    def folded(self) -> int:
        """Requests that have been folded away."""
        return int(self._clock.requests_before.item())

    @property
    def decoding(self) -> int:
        """Requests in decode."""
        return int(self._line.decoding.item())

    @property
    def begun(self) -> int:
        """How many of the equal batches in progress have begun: they count as done."""
        return begun_batches(self.replica, self.now) if self._replica.equal.item() else 0

    @property
    def decodes_left(self) -> int:
        """Decode iterations to come of the requests in decode."""
        return int(self.line.decode_tokens) - self.begun * int(self.replica.decodes)

    @property
    def arrived_tokens(self) -> int:
        """Prompt tokens that have arrived."""
        return int(self._line.arrived_tokens.item())

    @property
    def was_idle(self) -> bool:
        """Whether there was a time at which nothing was left to serve."""
        replica, now = self._replica, self.now
        busy = replica.busy.item()
        if replica.equal.item() > 0:
            busy += max(now - replica.start.item(), 0)
        return bool(busy < now)

    def share_of(self, total: int) -> float:
        """Return which share is done of a run of so many requests."""
        return (self.arrived + self.finished) / (2 * total)

    # -- what it is given

    def keep(self, requests: Requests) -> Requests:
        """Return the requests that can be served at all: all of them."""
        return requests

    @abc.abstractmethod
    def add(self, requests: Requests) -> None:
        """Let these requests arrive after those known so far."""

    @abc.abstractmethod
    def prefilled(self, count: int) -> None:
        """Begin with the first ``count`` requests, which arrive at tick 0, ready to decode."""

    def close_loop(self, clients: int, pause: int) -> None:
        """Let so many clients wait for an answer, and so many ticks, before each next request."""
        self.clock.clients = self.clock.next_sent = clients
        self.clock.pause = max(pause, 1)  # the batch that starts at the answer is to go first
        self.arrivals[:] = NEVER
        self.arrivals[:clients] = 0

    # -- what it makes

    @abc.abstractmethod
    def fold(self, everything: bool) -> tuple[Rows, None]:
        """Drop the requests at the front that are done, or all, and return what became of them."""

    def at_stages(self, rows: Rows) -> Iterator[Any]:
        """Yield which requests are at each stage: all are at the only one."""
        yield slice(None)

    def with_left_out(self, run: Run) -> Run:
        """Put requests that were left out back at their places: there are none."""
        return run

    def recorded(self) -> tuple[Ints | None, Ints | None]:
        """Return batches, and rows of their requests; None: not recorded. They name no replica."""
        batches, rows = self.batch_rows(), self.allocation_rows()
        return (
            None if batches is None else batches[:, :5], None if rows is None else rows[:, :4]
        )  # fmt: skip

    def _refuse(self, status: int) -> None:
        """Say why it cannot go on: nobody can be served, or a batch is empty or negative."""
        name, when = self.server.policy.name, self.now * self.tick_s
        prompts, tokens = self.waiting
        if status == records.STUCK:
            raise InputError(
                f"{name} can serve nobody at {when:g} s, although {prompts:,} requests wait; raise "
                "the KV memory or the token budget"
            )
        if status == records.ENDLESS:
            raise InputError(f"{name} preempts for ever{self.endless}")
        state = (
            f"{counted(prompts, 'prompt')} ({counted(tokens, 'token')}) and "
            f"{counted(self.decoding, 'decoding request')} waiting"
        )
        if status == records.IDLE_POLICY:
            raise InputError(
                f"policy {name!r} formed an empty batch at {when:g} s with {state}; "
                "a policy must serve something while anything can be served, or the server would "
                "idle for ever"
            )
        raise InputError(
            f"policy {name!r} asked for {NOT_ASKED_FOR} at {when:g} s with {state}; {ASK_FOR}"
        )


class Session(OneServer):
    """On a server of the paper, whose loop is the faster one."""

    world: Any  # `Arrays`
    of_requests = ("arrival", "prompt", "output", "first_token", "finish")

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        level = level_of(record)
        world = new_world([server], [1], [0], [(0, 0)], tick_s, level, counts_compositions=True)
        bits = gap_bits(record, [server])
        self.folds = [(Fold(), Fold())]
        super().__init__(world, tick_s, compress, stop, bits, [server.policy.name])
        self._watch(server)
        room = min(server.token_budget, server.max_batch_size or NO_LIMIT)
        self.clock.engine_slots = room
        self.world = new_arrays(self.world, room)
        self.line = self.world.state[0]
        self._line = views(self.world.state, *OF_A_LINE, "head", "started")
        self.requests: list[Requests] = []  # that came, where they are recorded
        self._records_requests = record != "summary"

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self._line.arrived.item()) + self.folded

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        line = self._line
        return line.arrived.item() - line.head.item(), line.waiting_tokens.item()

    @property
    def started(self) -> int:
        """Tokens in batches that started."""
        return int(self._line.started.item())

    @property
    def useful(self) -> int:
        """Tokens in batches that ended, without those that had to be done again."""
        return int(self._replica.processed.item())

    def add(self, requests: Requests) -> None:
        """Let these requests arrive after those known so far."""
        if self._records_requests:
            self.requests.append(requests)
        # Linked anew where the longest output asks for a larger ring of due epochs.
        never = np.full(requests.arrival_s.size, -1, np.int64)
        columns = (
            arrivals_in_ticks(requests.arrival_s, self.tick_s),
            requests.prompt_tokens.astype(np.int32), requests.output_tokens.astype(np.int32),
            never, never.copy(),
        )  # fmt: skip
        new = dict(zip(self.of_requests, columns, strict=True))
        if self.world.arrival.size:
            new = {name: np.concatenate([getattr(self.world, name), new[name]]) for name in new}
        self.world = self.world._replace(**new)
        prompt, output = columns[1:3]
        longest = int((prompt.astype(np.int64) + output).max(initial=1))
        check_costs(self.server, self.terms, self.tick_s, longest)
        size = max(64, 1 << int(output.max(initial=1)).bit_length())
        if size <= self.world.heads.size:
            return
        heads, bits = np.full(size, -1, np.int64), np.zeros(size // 64, np.uint64)
        for slot in self.linked_slots():
            chain(self.world.slots, heads, bits, slot)
        self.world = self.world._replace(heads=heads, bits=bits)

    def linked_slots(self) -> Iterator[int]:
        """Yield the slots of requests in decode, which are linked first to last."""
        slot = int(self.line.first)
        for _ in range(self.line.linked):
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
        """Return what has been done; the loop counts tokens of batches as they start."""
        return dataclasses.replace(super().counts(), started_tokens=np.array([self.started]))

    def by_replica(self, field: str) -> Ints:
        """Return what engines count, of which there is nothing."""
        return np.zeros(1, np.int64)

    def _advance(self) -> int:
        """Call the kernel once."""
        advance = compiled_advance(self.terms is not None)
        return advance(self.address.of(self.world), self.terms)

    def fold(self, everything: bool) -> tuple[Rows, None]:
        """Drop the requests at the front that are done, or all, and return what became of them."""
        world = self.world
        if everything:  # tokens that batches still in progress will bring
            world.first_token[world.first_token > self.now] = -1
        count = world.finish.size
        first_open = int(world.finish.argmin()) if count else 0  # it is -1 there, if anywhere
        if count and world.finish[first_open] < 0 and not everything:
            count = first_open
        rows = Rows(*(getattr(world, name)[:count] for name in self.of_requests))
        if not everything:
            self._forget(count)
        elif self.requests:
            rows = dataclasses.replace(rows, of_jobs=Requests.joined(self.requests))
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
        kept = {name: getattr(world, name)[count:].copy() for name in self.of_requests}
        self.world = world._replace(**kept)


def open_session(
    server: Server,
    record: Record,
    tick_s: float,
    compress: bool,
    stop: int,
    prefixes: Prefixes | None = None,
    renewals: int = 1,
) -> OneServer:
    """Return the session that a server needs, with its prefix cache where prompts have names."""
    if server.by_phase:
        return Session(server, record, tick_s, compress, stop)
    # Imported here, as a paper server alone does without the loop of all others.
    from penstock.simulation.session_engine import EngineSession
    from penstock.system.prefix_cache import names_for

    server = server.serving(prefixes is not None)
    prefixes = names_for(prefixes, [server]) if prefixes and server.caches_prefixes else None
    return EngineSession(server, record, tick_s, compress, stop, prefixes, renewals)
