"""A session on one server whose requests hold memory, come by priority, or are scheduled as an
engine does it.
"""

import dataclasses

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import engine_batches, records
from penstock.kernel.in_progress import begun_again
from penstock.kernel.records import World
from penstock.simulation.compositions import compositions
from penstock.simulation.new_world import gap_bits, new_world, wider_table
from penstock.simulation.run import Fold, Record, Rows, Run
from penstock.simulation.servable import never_served
from penstock.simulation.session_server import RECORDS, OneServer, Session, refuse_policy
from penstock.simulation.session_world import WorldSession
from penstock.simulation.ticks import check_costs, terms_of
from penstock.simulation.window import Window
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes

_REMEDY = "raise the limit or shorten the requests"
_OR_DROP = ", or drop them with `memory: {too_long: drop}`"

MOST_CACHED_BLOCKS = 2**24
"""Blocks that are told apart: 28 bytes each."""


def open_session(
    server: Server,
    record: Record,
    tick_s: float,
    compress: bool,
    stop: int,
    prefixes: Prefixes | None = None,
) -> "AnySession":
    """Return the session that a server needs."""
    if server.by_phase:
        return Session(server, record, tick_s, compress, stop)
    return EngineSession(server, record, tick_s, compress, stop, prefixes)


class EngineSession(OneServer, WorldSession):
    """One replica, whose jobs are one request each; parameters as in `Session`, and

    Parameters
    ----------
    prefixes
        What recorded prompts have in common, for a server that caches prefixes.
    """

    def __init__(
        self,
        server: Server,
        record: Record,
        tick_s: float,
        compress: bool,
        stop: int,
        prefixes: Prefixes | None = None,
    ) -> None:
        _check_cache(server, prefixes)
        level = max(RECORDS.index(record) - 1, 0)
        world = new_world([server], [1], [(0, 0)], tick_s, level, counts_compositions=True)
        if prefixes:
            world = world._replace(ids=prefixes.ids, bounds=prefixes.bounds)
        bits = gap_bits(record, [server])
        super().__init__(world, tick_s, compress, stop, bits, [server.policy.name])
        self.server = server
        self._policy = server.policy.compiled  # kept alive: the kernel has its address
        self.terms = terms_of(server, tick_s)
        self.pool = world.pools[0]
        self.engine = world.engines[0]
        self.replica = world.servers[0]
        self.ttft = Fold()
        self.e2e = Fold()
        self.left_out: list[tuple[Ints, Window]] = []
        self.offered = 0
        self.prefix_rows = np.empty(0, np.int64)
        self.recorded = prefixes.rows if prefixes else 0

    # -- what it knows

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self.engine.arrived)

    @property
    def dropped(self) -> int:
        """Requests that have been folded away."""
        return int(self.clock.requests_before)

    @property
    def decoding(self) -> int:
        """Requests in decode."""
        return int(self.engine.decoding)

    @property
    def decodes_left(self) -> int:
        """Decode iterations to come of the requests in decode."""
        return int(self.engine.decode_tokens) - self._begun * int(self.replica.decodes)

    @property
    def _begun(self) -> int:
        """How many of the equal batches in progress have begun: they count as done."""
        if not self.replica.equal:
            return 0
        return 1 + int(begun_again(self.replica, self.now))

    @property
    def arrived_tokens(self) -> int:
        """Prompt tokens that have arrived."""
        return int(self.engine.arrived_tokens)

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        engine = self.engine
        return int(engine.waiting + engine.prefilling), int(engine.waiting_tokens)

    @property
    def useful(self) -> int:
        """Tokens in batches, without those that had to be done again, and with those found
        computed.
        """
        engine = self.engine
        done = int(self.replica.processed) + self._begun * int(self.replica.tokens)
        return done - int(engine.lost) + int(engine.reused)

    @property
    def was_idle(self) -> bool:
        """Whether there was a time at which nothing was left to serve."""
        return bool(self.busy()[0] < self.now)

    # -- what it is given

    def close_loop(self, clients: int, pause: int) -> None:
        """Let so many clients wait for an answer, and so many ticks, before each next request."""
        self.clock.clients, self.clock.pause = clients, pause
        self.clock.next_sent = clients

    def keep(self, window: Window) -> Window:
        """Return the requests that can ever be served; name the first that cannot, or leave them
        out if told so.
        """
        limits = never_served(self.server, window.prompt, window.output)
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
            rows = (self.offered + np.flatnonzero(fits)) % self.recorded
            self.prefix_rows = np.concatenate([self.prefix_rows, rows])
        if too_long.size:
            self.left_out.append((self.offered + too_long, window.where(~fits)))
        self.offered += window.arrival.size
        return window.where(fits) if too_long.size else window

    def fit(self, window: Window) -> None:
        """Make room for the requests of a window: rows of those that are new, rings of due epochs
        larger than the longest output, and what preempted ones leave.
        """
        check_costs(self.server, self.terms, self.tick_s, window.longest)
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
            again.last, again.priority = records.NONE_YET, window.priority[new]
            again.prefix = self.prefix_rows[: rows.size] if self.recorded else -1
            self.prefix_rows = self.prefix_rows[rows.size :]
            self.world = world._replace(
                rows=records.joined(world.rows, rows),
                again=records.joined(world.again, again),
                ready=np.concatenate([world.ready, np.full(rows.size, -1)]),
                delay=np.zeros(count, np.int64),
                job_root=np.arange(count),
                ready_now=np.zeros(count, np.int64),
            )
        if self.pool.caching:
            self.world = wider_table(self.world, -(-window.longest // int(self.pool.block_size)))
        longest = int(window.output.max(initial=1))
        if self.server.policy.loses_rest_of_prompt:  # it becomes output
            longest = window.longest
        self.widen_ring(longest)

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first requests of a window decoding, up to ``count`` and to what slots and
        memory hold.

        The others up to ``count`` wait as prompts.
        """
        most = min(int(self.pool.batch_size), int(self.clock.engine_slots), count)
        if not self.server.policy.by_phase:
            # No run of an engine leads to more decodes than fill a batch.
            most = min(most, self.server.most_tokens)
        engine_batches.compiled_begin_decoding()(self._known(window), 0, count, most)

    def bound(self, final: bool, until: int) -> None:
        """Say whether the window is the last, and at which tick to stop."""
        self.clock.final, self.clock.until = final, until

    def _known(self, window: Window) -> World:
        """Return the records with the requests of a window in them."""
        tokens = window.prompt.astype(np.int64) + window.output - self.pool.convention
        self.world = self.world._replace(
            job_arrival=window.arrival,
            job_tokens=tokens,
            first_token=window.first_token,
            finish=window.finish,
        )
        return self.world

    # -- what it does

    def step(self, window: Window, steps: int) -> bool:
        """Call the kernel for so many batches, making room as it asks."""
        self.clock.steps = steps
        self._known(window)
        status = self.call()
        if status not in (records.DONE, records.MORE, records.PAUSED):
            self._refuse(status)
        return status != records.PAUSED

    def fold(self, window: Window, everything: bool) -> Window:
        """Add the finished requests at the front of the window to the summary and drop them."""
        open_requests = np.flatnonzero(window.finish < 0)
        count = window.finish.size
        if open_requests.size and not everything:
            count = int(open_requests[0])
        gone, kept = window.split(count)
        self.ttft.add(gone.arrival, gone.first_token)
        self.e2e.add(gone.arrival, gone.finish)
        self.drop(count)
        self.clock.next_job -= count
        world = self.world
        self.world = world._replace(
            rows=world.rows[count:].copy(),
            again=world.again[count:].copy(),
            ready=world.ready[count:].copy(),
        )
        return kept

    def finish(self, window: Window | None) -> Run:
        """Put the records into a `Run`."""
        world, engine, replica = self.world, self.engine, self.replica
        rows, batches, allocations = None, self.batch_rows(), self.allocation_rows()
        if batches is not None:
            batches = batches[:, 1:]
        if allocations is not None:
            allocations = allocations[:, 1:]
        if window is not None:
            rows = Rows(
                window.arrival, window.prompt, window.output, window.first_token, window.finish,
                world.again.times[: window.arrival.size].astype(np.int64),
            )  # fmt: skip
        if rows and self.left_out:
            rows = self._with_left_out(rows)
            if allocations is not None and rows.dropped is not None:
                allocations[:, 1] = np.flatnonzero(~rows.dropped)[allocations[:, 1]]
        half = world.cells.size // 2 if self.terms else world.cells.size
        mixes, mix_ticks = compositions(
            (world.cells[:half], world.cells[half:]),
            int(self.pool.cell_columns),
            (world.full, self.server.token_budget),
            world.mixes,
            world.duration,
        )
        # Of the series: requests in either phase, tokens in no batch, and those in one beside them.
        series = self.series_rows
        series_rows = np.column_stack(
            [series[:, 0], series[:, 1] + series[:, 2], series[:, 3], series[:, 3] + series[:, 4]]
        )
        return Run(
            server=self.server,
            tick_s=self.tick_s,
            arrived=self.arrived,
            finished=self.finished,
            n_batches=int(replica.batches) + self._begun,
            end=self.now,
            last_arrival=self.last_arrival,
            busy=int(self.busy()[0]),
            tokens=int(replica.processed),
            started_tokens=int(replica.processed) + self._begun * int(replica.tokens),
            gaps=self.gaps(),
            folded=None if rows else (self.ttft.distribution, self.e2e.distribution),
            mixes=mixes,
            mix_ticks=mix_ticks,
            series_rows=series_rows,
            rows=rows,
            batch_rows=batches,
            allocation_rows=allocations,
            preemptions=int(engine.preemptions),
            recomputed_tokens=int(engine.lost),
            reused_tokens=int(engine.reused),
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

    def _refuse(self, status: int) -> None:
        """Say why it cannot go on."""
        if status == records.STUCK:
            raise InputError(
                f"{self.server.policy.name} can serve nobody at {self.now * self.tick_s:g} s, "
                f"although {self.waiting[0]:,} requests wait; raise the KV memory or the token "
                "budget"
            )
        refuse_policy(self, status == records.IDLE_POLICY)


def _check_cache(server: Server, prefixes: Prefixes | None) -> None:
    """Refuse prefixes, and memory, that cannot be kept account of."""
    memory, usable = server.memory, server.usable_blocks
    if memory is None or usable is None or not memory.prefix_caching:
        return
    if prefixes and prefixes.block_size != memory.block_size:
        raise InputError(
            f"hash ids name blocks of {prefixes.block_size:,} tokens, but block_size is "
            f"{memory.block_size:,}, so no block of one is a block of the other; set block_size to "
            f"{prefixes.block_size:,}"
        )
    if usable > MOST_CACHED_BLOCKS:
        raise InputError(
            f"kv_blocks is {usable:,}, but with prefix caching each is kept account of, and "
            f"{MOST_CACHED_BLOCKS:,} fit here; lower it, or leave prefix_caching out"
        )


AnySession = Session | EngineSession
"""A session on any server."""
