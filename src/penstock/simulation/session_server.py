"""A session: the kernel's arrays for one server, run until something is known, looked at, and gone
on with.
"""

import abc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.kernel import in_progress, records
from penstock.kernel.compiled_code import from_python
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.server import compiled_advance
from penstock.kernel.server_arrays import new_arrays
from penstock.kernel.signatures import ASK_FOR, NOT_ASKED_FOR
from penstock.simulation.compositions import compositions
from penstock.simulation.distribution import Fold
from penstock.simulation.new_world import NO_LIMIT, new_world
from penstock.simulation.run import Record, Rows, Run
from penstock.simulation.session_world import WorldSession, chain, gap_bits, views
from penstock.simulation.ticks import check_costs, terms_of
from penstock.simulation.window import Window
from penstock.system.server import Server
from penstock.words import counted

RECORDS: tuple[Record, ...] = ("summary", "requests", "batches", "allocations")
STEPS = 500_000
"""Policy decisions between two looks at a session: a blink."""

OF_A_LINE = ("arrived", "waiting_tokens", "decoding", "arrived_tokens")
"""What is read of a line after every few batches."""

_begun_again = from_python(in_progress.begun_again)


class OneServer(WorldSession, abc.ABC):
    """What sessions on one server have in common.

    ``record``, ``tick_s`` and ``compress`` are as in `penstock.simulation.simulate`; it stops at
    the tick ``stop``, or NEVER.
    """

    line: Any  # the record of what waits and decodes
    _line: Any
    last_arrival = 0
    _reported = 0.0

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        level = max(RECORDS.index(record) - 1, 0)
        world = new_world([server], [1], [0], [(0, 0)], tick_s, level, counts_compositions=True)
        bits = gap_bits(record, [server])
        super().__init__(world, tick_s, compress, stop, bits, [server.policy.name])
        self.server = server
        self._policy = server.policy.compiled  # kept alive: the kernel has its address
        self.terms = terms_of(server, tick_s)
        self.pool = world.pools[0]
        self.replica = world.servers[0]
        self._replica = views(world.servers, "equal", "processed", "busy", "start", "tokens")
        self.ttft = Fold()
        self.e2e = Fold()

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
    def dropped(self) -> int:
        """Requests that have been folded away."""
        return int(self._clock.requests_before.item())

    @property
    def decoding(self) -> int:
        """Requests in decode."""
        return int(self._line.decoding.item())

    @property
    def begun(self) -> int:
        """How many of the equal batches in progress have begun: they count as done."""
        if not self._replica.equal.item():
            return 0
        return 1 + int(_begun_again(self.replica, self.now))

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

    # -- what it is given

    def close_loop(self, clients: int, pause: int) -> None:
        """Let so many clients wait for an answer, and so many ticks, before each next request."""
        self.clock.clients = self.clock.next_sent = clients
        self.clock.pause = max(pause, 1)  # the batch that starts at the answer is to go first

    def keep(self, window: Window) -> Window:
        """Return the requests that can be served at all: all of them."""
        return window

    @abc.abstractmethod
    def fit(self, window: Window) -> None:
        """Make room for the requests of a window."""

    @abc.abstractmethod
    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first ``count`` requests, which arrive at tick 0, ready to decode."""

    @abc.abstractmethod
    def show(self, window: Window) -> Any:
        """Return the kernel's arrays with the requests of a window in them."""

    # -- what it does

    def step(self, window: Window, steps: int) -> bool:
        """Call the kernel for so many batches, with room as it asks; say if the window is done."""
        # Unless told otherwise the window is not the last: the kernel stops when it knows no
        # further arrival.
        self._clock.steps[0] = steps
        self.show(window)
        status = self.call()
        if status not in (records.DONE, records.MORE, records.PAUSED):
            self._refuse(status)
        return status != records.PAUSED

    def run(self, window: Window, final: bool, drain: bool, report: Callable[[], None]) -> None:
        """Call the kernel until a window is used up; a final one to its end, or last arrival."""
        # All may be dropped.
        last = int(window.arrival[-1]) if window.arrival.size else self.last_arrival
        self.last_arrival = last if self.stop == NEVER else self.stop
        stops_at_last = final and not drain and self.stop == NEVER
        self.clock.final = final
        self.clock.until = last if stops_at_last else self.stop
        while True:
            done = self.step(window, STEPS)
            # Across windows: each may be done in a blink.
            if time.monotonic() - self._reported > 0.1:
                self._reported = time.monotonic()
                report()
            if done:
                return

    def fold(self, window: Window, everything: bool) -> Window:
        """Add the finished requests at the front of the window to the summary and drop them."""
        count = window.finish.size
        first_open = int(window.finish.argmin()) if count else 0  # it is -1 there, if anywhere
        if count and window.finish[first_open] < 0 and not everything:
            count = first_open
        if everything:
            self._forget_to_come(window)
        gone, kept = window.split(count)
        self.ttft.add(gone.arrival, gone.first_token)
        self.e2e.add(gone.arrival, gone.finish)
        self._forget(gone)
        return kept

    def _forget_to_come(self, window: Window) -> None:
        """Forget tokens that batches still in progress will bring, where they are known ahead."""
        window.first_token[window.first_token > self.now] = -1

    @abc.abstractmethod
    def _forget(self, gone: Window) -> None:
        """Forget the first requests, which are done or never will be."""

    def finish(self, window: Window | None) -> Run:
        """Put the arrays into a `Run`."""
        rows, batches, allocations = None, self.batch_rows(), self.allocation_rows()
        if window is not None:
            self._forget_to_come(window)
            rows = Rows(
                window.arrival, window.prompt, window.output, window.first_token, window.finish
            )
        mixes, mix_ticks = compositions(self.world)
        # Of the series: requests in either phase, tokens in no batch, and those in one beside them.
        tick, prefilling, decoding, unprocessed, inside = self.series_rows.T[:5]
        return Run(
            server=self.server,
            tick_s=self.tick_s,
            arrived=self.arrived,
            finished=self.finished,
            n_batches=int(self.replica.batches) + self.begun,
            end=self.now,
            last_arrival=self.last_arrival,
            busy=int(self.busy()[0]),
            tokens=int(self.replica.processed),
            started_tokens=self.started,
            gaps=self.gaps(),
            folded=None if rows else (self.ttft.distribution, self.e2e.distribution),
            mixes=mixes,
            mix_ticks=mix_ticks,
            series_rows=np.column_stack(
                [tick, prefilling + decoding, unprocessed, unprocessed + inside]
            ),
            rows=rows,
            batch_rows=None if batches is None else batches[:, 1:],
            allocation_rows=None if allocations is None else allocations[:, 1:],
        )

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
    """On a server of the paper."""

    world: Any  # `Arrays`

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        super().__init__(server, record, tick_s, compress, stop)
        room = min(server.token_budget, server.max_batch_size or NO_LIMIT)
        self.clock.engine_slots = room
        self.world = new_arrays(self.world, room)
        self.line = self.world.state[0]
        self._line = views(self.world.state, *OF_A_LINE, "head", "started")

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self._line.arrived.item()) + self.dropped

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

    def fit(self, window: Window) -> None:
        """Make room for requests: a ring of due epochs beyond the longest output, linked anew."""
        check_costs(self.server, self.terms, self.tick_s, window.longest)
        size = max(64, 1 << int(window.output.max(initial=1)).bit_length())
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

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first ``count`` requests, which arrive at tick 0, ready to decode."""
        state, engine = self.line, int(self.pool.convention)
        # Their only token comes with the end of prefill.
        alone = window.output[:count] == engine
        if engine:
            window.first_token[:count] = 0
        window.finish[:count][alone] = 0
        tokens = int(window.prompt[:count].sum(dtype=np.int64))
        state.arrived = state.head = state.visible = count
        state.started = self.replica.processed = state.arrived_tokens = tokens
        self.clock.finished = alone.sum()
        state.decoding = count - alone.sum()
        state.decode_tokens = window.output[:count].sum(dtype=np.int64) - count * engine

    def show(self, window: Window) -> Any:
        """Return the kernel's arrays with the requests of a window in them."""
        self.world = self.world._replace(
            arrival=window.arrival,
            prompt=window.prompt,
            output=window.output,
            first_token=window.first_token,
            finish=window.finish,
        )
        return self.world

    def _advance(self) -> int:
        """Call the kernel once."""
        advance = compiled_advance(self.terms is not None)
        return advance(self.address.of(self.world), self.terms)

    def _forget(self, gone: Window) -> None:
        """Forget the first requests, which arrived before any coming instant of the series."""
        count, state = gone.finish.size, self.line
        prompts, outputs = gone.prompt[state.seen :], gone.output[state.seen :]
        state.seen_tokens += prompts.sum(dtype=np.int64) + outputs.sum(dtype=np.int64)
        state.seen_tokens -= prompts.size * self.pool.convention
        state.seen = max(state.seen, count) - count
        state.fresh = max(state.fresh, count) - count
        state.arrived -= count
        state.head -= count
        state.visible -= count
        self.clock.requests_before += count
        self.world.slots.request -= count
