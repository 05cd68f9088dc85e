"""A session: the kernel's arrays for one server, run until something is known, looked at, and gone
on with.
"""

import abc
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import counting
from penstock.kernel import server as kernel
from penstock.kernel import server_arrays as layout
from penstock.kernel.due_epochs import NEVER, chain
from penstock.kernel.gaps import CARRY
from penstock.kernel.signatures import POLICY_SIGNATURE, address_of
from penstock.simulation.compositions import compositions
from penstock.simulation.run import LEADING_BITS, Distribution, Fold, Record, Rows, Run
from penstock.simulation.ticks import check_costs, terms_of, ticks_of_batches
from penstock.simulation.window import Window
from penstock.system.server import Server

if TYPE_CHECKING:
    from penstock.simulation.session_engine import AnySession

RECORDS: tuple[Record, ...] = ("summary", "requests", "batches", "allocations")
STEPS = 500_000
"""Policy decisions between two looks at a session: a blink."""

_PLACES = 2**17  # of a multiset: twice as many as there are times within 0.05% of each other
_ROWS = 65_536  # that the kernel records before they are moved out of its buffer


class OneServer(abc.ABC):
    """What sessions on one server have in common: how a window is run.

    Attributes
    ----------
    stop
        Tick at which to stop, or NEVER.
    last_arrival
        Tick.
    """

    stop: int
    last_arrival = 0
    _reported = 0.0

    @abc.abstractmethod
    def bound(self, final: bool, until: int) -> None:
        """Say whether the window is the last, and at which tick to stop."""

    @abc.abstractmethod
    def step(self, window: Window, steps: int) -> bool:
        """Call the kernel for so many batches; return whether the window is used up.

        Unless told otherwise the window is not the last, and the kernel stops when it knows no
        further arrival.
        """

    def run(self, window: Window, final: bool, drain: bool, report: Callable[[], None]) -> None:
        """Call the kernel until the window is used up; a final one is run to its end, or to its
        last arrival.
        """
        # All may be dropped.
        last = int(window.arrival[-1]) if window.arrival.size else self.last_arrival
        self.last_arrival = last if self.stop == NEVER else self.stop
        stops_at_last = final and not drain and self.stop == NEVER
        self.bound(final, last if stops_at_last else self.stop)
        while True:
            done = self.step(window, STEPS)
            # Across windows: each may be done in a blink.
            if time.monotonic() - self._reported > 0.1:
                self._reported = time.monotonic()
                report()
            if done:
                return


class Session(OneServer):
    """The kernel's arrays, and the calls that run it.

    Parameters
    ----------
    server
        What serves.
    record, tick_s, compress
        As in `penstock.simulation.simulate`.
    stop
        Tick at which to stop, or NEVER.
    """

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        self.server = server
        self.tick_s = tick_s
        self.stop = stop
        self.terms = terms_of(server, tick_s)
        params = np.array(server.params, np.float64)
        params.flags.writeable = False
        room = min(server.token_budget, server.max_batch_size or layout.NO_LIMIT)
        arrays = layout.new_arrays(
            params, ticks_of_batches(server, tick_s), room, self.terms is not None
        )
        self.state = arrays.state[0]
        self.options = arrays.options[0]
        self._policy = server.policy.compiled  # kept alive: the kernel has its address
        self._set_options(record, compress)
        if self.terms:
            arrays = arrays._replace(stalls=counting.new_multiset(_PLACES))
        if self.options.record >= layout.RECORD_BATCHES:
            arrays = arrays._replace(batch_rows=layout.records(layout.BATCH_ROW, _ROWS))
        if self.options.record >= layout.RECORD_ALLOCATIONS:
            rows = max(4 * server.most_tokens, _ROWS)
            arrays = arrays._replace(allocation_rows=layout.records(layout.ALLOCATION_ROW, rows))
        self.arrays = arrays
        self.kept_batches: list[Ints] = []
        self.kept_allocations: list[Ints] = []
        self.ttft = Fold()
        self.e2e = Fold()

    def _set_options(self, record: Record, compress: bool) -> None:
        """Tell the kernel of the server, and what to record."""
        server, options = self.server, self.options
        options.policy = address_of(self._policy, POLICY_SIGNATURE)
        options.token_budget = server.token_budget
        options.batch_size = server.most_requests or layout.NO_LIMIT
        options.running_scope = server.scope == "running"
        options.engine = server.convention == "engine"
        options.compress = compress
        options.sees = server.policy.sees
        options.record = max(RECORDS.index(record) - 1, 0)
        options.gap_bits = LEADING_BITS if record == "summary" or self.terms else 0
        options.until = self.stop

    def close_loop(self, clients: int, pause: int) -> None:
        """Let so many clients wait for an answer, and so many ticks, before each next request."""
        self.options.clients = clients
        self.options.pause = pause

    @property
    def now(self) -> int:
        """Tick."""
        return int(self.state.now)

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self.state.arrived + self.state.dropped)

    @property
    def dropped(self) -> int:
        """Requests that have been folded away."""
        return int(self.state.dropped)

    @property
    def finished(self) -> int:
        """Requests that have finished."""
        return int(self.state.finished)

    @property
    def decoding(self) -> int:
        """Requests in decode."""
        return int(self.state.decoding)

    @property
    def decodes_left(self) -> int:
        """Decode iterations to come of the requests in decode."""
        return int(self.state.decode_tokens)

    @property
    def arrived_tokens(self) -> int:
        """Prompt tokens that have arrived."""
        return int(self.state.arrived_tokens)

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        prompts = self.state.arrived - self.state.head
        return int(prompts), int(self.state.waiting_tokens)

    @property
    def useful(self) -> int:
        """Tokens in batches that ended, without those that had to be done again."""
        return int(self.state.completed)

    @property
    def was_idle(self) -> bool:
        """Whether there was a time at which nothing was left to serve."""
        return bool(self.state.busy < self.state.now)

    def fit(self, window: Window) -> None:
        """Make room for the requests of a window: a ring of due epochs larger than the longest
        output, with the linked requests in it anew.
        """
        check_costs(self.server, self.terms, self.tick_s, window.longest)
        size = max(64, 1 << int(window.output.max(initial=1)).bit_length())
        if size <= self.arrays.heads.size:
            return
        heads, bits = np.full(size, -1, np.int64), np.zeros(size // 64, np.uint64)
        for slot in self.linked_slots():
            chain(self.arrays.slots, heads, bits, slot)
        self.arrays = self.arrays._replace(heads=heads, bits=bits)

    def linked_slots(self) -> Iterator[int]:
        """Yield the slots of requests in decode, which are linked first to last."""
        slot = int(self.state.first)
        for _ in range(self.state.linked):
            yield slot
            slot = int(self.arrays.slots[slot].next)

    def bound(self, final: bool, until: int) -> None:
        """Say whether the window is the last, and at which tick to stop."""
        self.options.final = final
        self.options.until = until

    def keep(self, window: Window) -> Window:
        """Return the requests that can be served at all: all of them."""
        return window

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first ``count`` requests of a window, which arrive at tick 0, ready to
        decode.
        """
        state, engine = self.state, int(self.options.engine)
        # Their only token comes with the end of prefill.
        alone = window.output[:count] == engine
        if engine:
            window.first_token[:count] = 0
        window.finish[:count][alone] = 0
        tokens = int(window.prompt[:count].sum(dtype=np.int64))
        state.arrived = state.head = state.visible = count
        state.started = state.completed = state.arrived_tokens = tokens
        state.finished = alone.sum()
        state.decoding = count - alone.sum()
        state.decode_tokens = window.output[:count].sum(dtype=np.int64) - count * engine

    def step(self, window: Window, steps: int) -> bool:
        """Call the kernel for so many policy decisions, making room as it asks."""
        status = kernel.FULL
        while status == kernel.FULL:
            self.options.steps = steps
            arrays = self.arrays._replace(
                arrival=window.arrival,
                prompt=window.prompt,
                output=window.output,
                first_token=window.first_token,
                finish=window.finish,
            )
            try:
                status = kernel.compiled_advance(self.terms is not None)(arrays, self.terms)
            except (
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
                AssertionError,
                SystemError,
            ) as error:
                raise InputError(
                    f"policy {self.server.policy.name!r} failed: {type(error).__name__}: {error}; "
                    f"it must answer for every queue, with the {arrays.params.size} policy_params "
                    "it was given"
                ) from error
            if status == kernel.FULL:
                self._make_room()
        if status in (kernel.IDLE_POLICY, kernel.BAD_POLICY):
            refuse_policy(self, status == kernel.IDLE_POLICY)
        return status != kernel.PAUSED

    def fold(self, window: Window, everything: bool) -> Window:
        """Add the finished requests at the front of the window to the summary and drop them."""
        count = window.finish.size
        first_open = int(window.finish.argmin()) if count else 0  # it is -1 there, if anywhere
        if count and window.finish[first_open] < 0 and not everything:
            count = first_open
        gone, kept = window.split(count)
        self.ttft.add(gone.arrival, gone.first_token)
        self.e2e.add(gone.arrival, gone.finish)
        # What left has arrived before any instant of the series that is still to come.
        state = self.state
        prompts, outputs = gone.prompt[state.seen :], gone.output[state.seen :]
        state.seen_tokens += prompts.sum(dtype=np.int64) + outputs.sum(dtype=np.int64)
        state.seen_tokens -= prompts.size * self.options.engine
        state.seen = max(state.seen, count) - count
        state.fresh = max(state.fresh, count) - count
        state.arrived -= count
        state.head -= count
        state.visible -= count
        state.dropped += count
        self.arrays.slots.request -= count
        return kept

    def finish(self, window: Window | None) -> Run:
        """Put the arrays into a `Run`."""
        self._keep_rows()
        mixes, mix_ticks = self._mixes()
        rows = None
        if window is not None:
            rows = Rows(
                window.arrival, window.prompt, window.output, window.first_token, window.finish
            )
        state, level = self.state, self.options.record
        batch_rows, allocation_rows = None, None
        if level >= layout.RECORD_BATCHES:
            batch_rows = np.concatenate(self.kept_batches)
        if level >= layout.RECORD_ALLOCATIONS:
            allocation_rows = np.concatenate(self.kept_allocations)
        return Run(
            server=self.server,
            tick_s=self.tick_s,
            arrived=self.arrived,
            finished=self.finished,
            n_batches=int(state.batches),
            end=self.now,
            last_arrival=self.last_arrival,
            busy=int(state.busy),
            tokens=int(state.completed),
            started_tokens=int(state.started),
            gaps=self.gaps(),
            folded=None if rows else (self.ttft.distribution, self.e2e.distribution),
            mixes=mixes,
            mix_ticks=mix_ticks,
            series_rows=layout.rows_of(self.arrays.series)[: state.series_rows],
            rows=rows,
            batch_rows=batch_rows,
            allocation_rows=allocation_rows,
        )

    def gaps(self) -> Distribution:
        """Put the times between tokens together: those of one batch, and stalls."""
        tally, duration = np.array(self.arrays.tallies.gaps), self.arrays.duration
        stalls, counts = counting.contents(self.arrays.stalls)
        total = sum(int(t) * int(d) for t, d in zip(tally, duration, strict=True))
        total += int(self.state.stall_sum) + int(self.state.stall_carry) * CARRY
        used = np.flatnonzero(tally)
        return Distribution.merged(
            np.concatenate([duration[used], stalls]), np.concatenate([tally[used], counts]), total
        )

    def _mixes(self) -> tuple[tuple[Ints, Ints], Ints]:
        """Put the batch compositions together."""
        arrays = self.arrays
        return compositions(
            (arrays.cells, arrays.cell_ticks),
            arrays.slots.size + 1,
            (np.array(arrays.tallies.full), self.server.token_budget),
            arrays.mixes,
            arrays.duration,
        )

    def _make_room(self) -> None:
        """Double what is half full, and empty the buffers of rows."""
        arrays = self.arrays
        while 4 * (self.state.stalls_used + arrays.slots.size) > arrays.stalls.size:
            arrays = arrays._replace(stalls=counting.doubled(arrays.stalls))
        while 4 * (self.state.mixes_used + 2) > arrays.mixes.size:
            arrays = arrays._replace(mixes=counting.doubled(arrays.mixes))
        self.arrays = arrays
        self._keep_rows()

    def _keep_rows(self) -> None:
        """Move recorded rows out of the kernel's buffers."""
        arrays, state = self.arrays, self.state
        self.kept_batches.append(layout.rows_of(arrays.batch_rows)[: state.batch_rows].copy())
        self.kept_allocations.append(
            layout.rows_of(arrays.allocation_rows)[: state.allocation_rows].copy()
        )
        state.batch_rows = 0
        state.allocation_rows = 0


def refuse_policy(session: "AnySession", is_idle: bool) -> None:
    """Say what the policy of a session did wrong: an empty batch, or one of less than nothing."""
    name = session.server.policy.name
    when = session.now * session.tick_s
    prompts, tokens = session.waiting
    state = f"{prompts} prompts ({tokens} tokens) and {session.decoding} decoding requests"
    if is_idle:
        raise InputError(
            f"policy {name!r} formed an empty batch at {when:g} s with {state} waiting; "
            "a policy must serve something while anything can be served, or the server would "
            "idle for ever"
        )
    raise InputError(
        f"policy {name!r} asked for a negative number of tokens at {when:g} s with {state} waiting"
    )
