"""A session on one server whose requests hold memory, come by priority, or are scheduled as an
engine does it.
"""

import dataclasses

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import records
from penstock.kernel.records import World
from penstock.simulation.new_world import be_patient, declared_of, name_recorded, wider_table
from penstock.simulation.run import Record, Rows, Run
from penstock.simulation.servable import never_served
from penstock.simulation.session_server import OF_A_LINE, OneServer, Session
from penstock.simulation.session_world import WorldSession, views
from penstock.simulation.ticks import check_costs
from penstock.simulation.window import Window
from penstock.system.prefix_cache import names_for
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes

_REMEDY = "raise the limit or shorten the requests"
_OR_DROP = ", or drop them with `memory: {too_long: drop}`"


def open_session(
    server: Server,
    record: Record,
    tick_s: float,
    compress: bool,
    stop: int,
    prefixes: Prefixes | None = None,
    renewals: int = 1,
) -> "AnySession":
    """Return the session that a server needs, with its prefix cache where prompts have names."""
    if server.by_phase:
        return Session(server, record, tick_s, compress, stop)
    server = server.serving(prefixes is not None)
    prefixes = names_for(prefixes, [server]) if prefixes and server.caches_prefixes else None
    return EngineSession(server, record, tick_s, compress, stop, prefixes, renewals)


class EngineSession(OneServer, WorldSession):
    """One replica, whose jobs are one request each.

    A recording that follows itself has its own names ``renewals`` times, then the first again.
    """

    def __init__(
        self,
        server: Server,
        record: Record,
        tick_s: float,
        compress: bool,
        stop: int,
        prefixes: Prefixes | None = None,
        renewals: int = 1,
    ) -> None:
        super().__init__(server, record, tick_s, compress, stop)
        if prefixes:
            self.world = self.world._replace(ids=prefixes.ids, bounds=prefixes.bounds)
            name_recorded(self.world.pools, prefixes)
        self.line = self.engine = self.world.engines[0]
        self._line = views(
            self.world.engines, *OF_A_LINE, "waiting", "prefilling", "lost", "rejections",
            "reused",
        )  # fmt: skip
        self.left_out: list[tuple[Ints, Window]] = []
        self.offered = 0
        self.prefix_rows = np.empty(0, np.int64)
        self.prefixes = prefixes
        self.recorded = prefixes.rows * renewals if prefixes else 0

    # -- what it knows

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self._line.arrived.item())

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        line = self._line
        return line.waiting.item() + line.prefilling.item(), line.waiting_tokens.item()

    @property
    def started(self) -> int:
        """Tokens in batches that started."""
        replica = self._replica
        return int(replica.processed.item() + self.begun * replica.tokens.item())

    @property
    def useful(self) -> int:
        """Tokens in batches that bring requests on, and those found computed."""
        # Not those done again, wrong drafts, and what is served after an end nobody foresaw.
        line = self._line
        useless = line.lost.item() + line.rejections.item() - line.reused.item()
        return int(self.started - useless)

    # -- what it is given

    def keep(self, window: Window) -> Window:
        """Return what can ever be served; name the first request that cannot, or leave such out."""
        limits = never_served(self.server, window.prompt, window.output, window.declared)
        fits = np.ones(window.arrival.size, bool)
        for over, _ in limits:
            fits &= ~over
        too_long = np.flatnonzero(~fits)
        memory = self.server.memory
        if too_long.size and (memory is None or memory.too_long == "error"):
            first = int(too_long[0])
            lengths = f"{window.prompt[first]:,} prompt and {window.output[first]:,} output tokens"
            reason = next(reason for over, reason in limits if over[first])
            drop = _OR_DROP if memory is not None else ""
            raise InputError(
                f"request {self.offered + first} has {lengths}: {reason}; {_REMEDY}{drop}"
            )
        if self.recorded:
            self._name(self.offered + window.arrival.size)
            rows = (self.offered + np.flatnonzero(fits)) % self.recorded
            self.prefix_rows = np.concatenate([self.prefix_rows, rows])
        if too_long.size:
            self.left_out.append((self.offered + too_long, window.where(~fits)))
        self.offered += window.arrival.size
        outputs = self.server.policy.outputs_of(window.prompt, window.output)
        declared = self.server.policy.outputs_of(window.prompt, window.declared)
        window = dataclasses.replace(window, output=outputs, declared=declared)
        return window.where(fits) if too_long.size else window

    def _name(self, requests: int) -> None:
        """Have names for so many requests: twice as many where those so far are too few."""
        named = self.world.bounds.size - 1
        if self.prefixes and named < min(requests, self.recorded):
            most = min(max(requests, 2 * named), self.recorded)
            again = self.prefixes.renewed(-(-most // self.prefixes.rows))
            self.world = self.world._replace(ids=again.ids, bounds=again.bounds)

    def fit(self, window: Window) -> None:
        """Make room for a window's requests: rows of new ones, and what preempted ones leave."""
        # And rings of due epochs larger than the longest output.
        check_costs(self.server, self.terms, self.tick_s, window.longest)
        be_patient(self.world.pools, window.longest)
        world = self.world
        before, count = world.rows.size, window.arrival.size
        if count > before:
            new = slice(before, count)
            engine = int(self.pool.convention)
            rows = records.table(records.ROW, count - before)
            rows.left, rows.decodes = window.prompt[new], window.output[new] - engine
            rows.server = rows.next = -1
            again = records.table(records.AGAIN, count - before)
            again.target, again.outputs = window.prompt[new], window.output[new]
            again.last = records.NONE_YET
            again.declared, again.priority = declared_of(
                self.server, window.prompt[new], window.declared[new], window.priority[new]
            )
            if self.recorded:
                again.prefix = self.prefix_rows[: rows.size]
                names = np.diff(world.bounds) * self.pool.hash_block
                again.named = names[again.prefix]
            self.prefix_rows = self.prefix_rows[rows.size :]
            self.world = world._replace(
                rows=records.joined(world.rows, rows),
                again=records.joined(world.again, again),
                ready=np.concatenate([world.ready, np.full(rows.size, -1)]),
                delay=np.zeros(count, np.int64),
                context=np.zeros(count, np.int32),
                reuse=np.zeros(count, np.int32),
                cached=np.zeros(count, np.int32),
                job_root=np.arange(count),
                job_tokens=window.prompt.astype(np.int64) + window.output - engine,
                ready_now=np.zeros(count, np.int64),
            )
        if self.pool.caching:
            self.world = wider_table(self.world, -(-window.longest // int(self.pool.block_size)))
        self.widen_ring(int(window.output.max(initial=1)))

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with first requests decoding, up to ``count`` and to what slots and memory hold."""
        # The others up to ``count`` wait as prompts.
        most = min(int(self.pool.batch_size), int(self.clock.engine_slots), count)
        if not self.server.policy.by_phase:
            # No run of an engine leads to more decodes than fill a batch.
            most = min(most, self.server.most_tokens)
        self.clock.prefilled, self.clock.prefilled_most = count, most
        self.show(window)
        self._advance()

    def show(self, window: Window) -> World:
        """Return the kernel's arrays with the requests of a window in them."""
        self.world = self.world._replace(
            job_arrival=window.arrival,
            first_token=window.first_token,
            finish=window.finish,
        )
        return self.world

    # -- what it does

    def _forget(self, gone: Window) -> None:
        """Forget the first requests, which are done or never will be."""
        count, world = gone.finish.size, self.world
        self.drop(count)
        self.clock.next_job -= count
        self.world = world._replace(
            rows=world.rows[count:].copy(),
            again=world.again[count:].copy(),
            ready=world.ready[count:].copy(),
            job_tokens=world.job_tokens[count:].copy(),
        )

    def finish(self, window: Window | None) -> Run:
        """Put the records into a `Run`."""
        run = super().finish(window)
        rows, allocations = run.rows, run.allocation_rows
        if rows:
            times = self.world.again.times[: rows.arrival.size].astype(np.int64)
            rows = dataclasses.replace(rows, preemptions=times)
        if rows and self.left_out:
            rows = self._with_left_out(rows)
            if allocations is not None and rows.dropped is not None:
                allocations[:, 1] = np.flatnonzero(~rows.dropped)[allocations[:, 1]]
        return dataclasses.replace(
            run,
            rows=rows,
            preemptions=int(self.engine.preemptions),
            recomputed_tokens=int(self.engine.lost),
            reused_tokens=int(self.engine.reused),
            dropped=sum(part.arrival.size for _, part in self.left_out),
        )

    def _with_left_out(self, rows: Rows) -> Rows:
        """Put requests that were left out back at their places, without times."""
        numbers = np.concatenate([numbers for numbers, _ in self.left_out])
        part = Window.joined([window for _, window in self.left_out])
        never = np.full(numbers.size, -1, np.int64)
        times = np.zeros(numbers.size, np.int64)
        filling = Rows(
            part.arrival, part.prompt, part.output, never, never, times, np.ones(numbers.size, bool)
        )
        rows = dataclasses.replace(rows, dropped=np.zeros(rows.finish.size, bool))
        before = numbers - np.arange(numbers.size)  # np.insert counts in what is there
        names = [field.name for field in dataclasses.fields(Rows)]
        return Rows(
            *(np.insert(getattr(rows, name), before, getattr(filling, name)) for name in names)
        )


AnySession = Session | EngineSession
"""A session on any server."""
