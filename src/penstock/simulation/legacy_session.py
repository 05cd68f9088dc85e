"""A session of the older loops: the kernel's arrays for one server, run until something is known,
looked at, and gone on with.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import composition, counting
from penstock.kernel import legacy_server as kernel
from penstock.kernel.calendar import NEVER
from penstock.simulation.run import LEADING_BITS, Distribution, Fold, Record, Rows, Run
from penstock.simulation.ticks import term_seconds, terms_of, ticks_of_batches
from penstock.simulation.window import Window
from penstock.system.batch_time import Composition
from penstock.system.server import Server

RECORDS: tuple[Record, ...] = ("summary", "requests", "batches", "allocations")
STEPS = 500_000
"""Policy decisions between two looks at a session: a blink."""

_NO_LIMIT = 2**40  # a max batch size that never binds
_ROUNDING = (
    1e-3  # of the batch time: what the rounding of its terms to units of the kernel may change
)
_PLACES = 2**17  # of a multiset: twice as many as there are times within 0.05% of each other


class LegacySession:
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

    sizes: tuple[int, int, int] = (kernel.N_OPTIONS, kernel.N_STATE, kernel.N_SLOT_ROWS)

    def __init__(
        self, server: Server, record: Record, tick_s: float, compress: bool, stop: int
    ) -> None:
        self.server, self.tick_s, self.stop = server, tick_s, stop
        n_options, n_state, n_slot_rows = self.sizes
        # What the kernel reads: the policy's numbers, batch times in ticks, and options.
        self.params = np.array(server.params, np.float64)
        self.duration = ticks_of_batches(server, tick_s)
        self.terms = terms_of(server, tick_s)
        self.options = np.zeros(n_options, np.int64)
        self.options[kernel.TOKEN_BUDGET] = server.token_budget
        self.options[kernel.BATCH_SIZE] = server.most_requests or _NO_LIMIT
        self.options[kernel.RUNNING_SCOPE] = server.scope == "running"
        self.options[kernel.ENGINE] = server.convention == "engine"
        self.options[kernel.COMPRESS] = compress
        self.options[kernel.SEES] = server.policy.sees
        self.options[kernel.RECORD] = max(RECORDS.index(record) - 1, 0)
        self.options[kernel.GAP_BITS] = LEADING_BITS if record == "summary" or self.terms else 0
        self.options[kernel.UNTIL] = stop

        # What it changes: the state, and slots of requests in service with their rings of due
        # epochs.
        self.state = np.zeros(n_state, np.int64)
        self.state[[kernel.FIRST_SLOT, kernel.LAST_SLOT]] = -1
        self.state[kernel.NEXT_DUE] = NEVER
        self.state[kernel.SERIES_STEP] = 1
        room = self.slots_at_first()
        self.slots = np.full((n_slot_rows, room), -1, np.int64)
        self.slots[kernel.SLOT_CHAIN] = np.arange(1, room + 1)
        self.heads, self.bits = np.empty(0, np.int64), np.empty(0, np.uint64)
        self.segments = np.zeros((2, room + 1), np.int64)
        # What it counts: by token load where that decides, else in cells and multisets.
        self.tallies = np.zeros((kernel.N_TALLIES, server.most_tokens + 1), np.int64)
        self.cell_columns = room + 1
        self.cells = np.zeros(
            min((server.most_tokens + 1) * self.cell_columns, kernel.MOST_CELLS), np.int64
        )
        self.stalls, self.mixes = counting.new_multiset(), counting.new_multiset()
        if self.terms:
            self.cells = np.zeros(2 * self.cells.size, np.int64)
            self.stalls = counting.new_multiset(_PLACES)
        self.series = np.zeros((kernel.SERIES_INSTANTS, 4), np.int64)
        level = self.options[kernel.RECORD]
        self.batch_rows = np.empty((65_536 if level else 0, 5), np.int64)
        self.allocation_rows = np.empty(
            (max(4 * server.most_tokens, 65_536) if level > 1 else 0, 4), np.int64
        )
        self.kept_batches: list[Ints] = []
        self.kept_allocations: list[Ints] = []
        self.ttft, self.e2e = Fold(), Fold()
        self.last_arrival = 0
        self.reported = time.monotonic()

    def slots_at_first(self) -> int:
        """Return for how many requests in service there is room: the most that a batch serves."""
        return min(self.server.token_budget, self.server.max_batch_size or _NO_LIMIT)

    @property
    def now(self) -> int:
        """Tick."""
        return int(self.state[kernel.NOW])

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self.state[kernel.ARRIVED] + self.state[kernel.DROPPED])

    @property
    def finished(self) -> int:
        """Requests that have finished."""
        return int(self.state[kernel.FINISHED])

    def fit(self, window: Window) -> None:
        """Make room for the requests of a window."""
        self.check_costs(window)
        self.widen_ring(int(window.output.max(initial=1)))

    def widen_ring(self, longest: int) -> None:
        """Make the ring of due epochs larger than the longest output, and put the linked requests
        in anew.
        """
        size = max(64, 1 << longest.bit_length())
        if size <= self.heads.size:
            return
        self.heads, self.bits = np.full(size, -1, np.int64), np.zeros(size // 64, np.uint64)
        for slot in self.linked_slots():
            kernel.chain(self.slots, self.heads, self.bits, slot)

    def linked_slots(self) -> Iterator[int]:
        """Yield the slots of requests in decode, which are linked first to last."""
        slot = int(self.state[kernel.FIRST_SLOT])
        for _ in range(int(self.state[kernel.LINKED])):
            yield slot
            slot = int(self.slots[kernel.SLOT_NEXT, slot])

    def check_costs(self, window: Window) -> None:
        """Refuse requests so long that a batch costs more than can be counted, and ticks too long
        for the terms.
        """
        model = self.server.batch_time
        if self.terms is None or not isinstance(model, Composition):
            return
        per = self.terms.per.tolist()
        unit = self.tick_s / 2**composition.BITS
        budget = self.server.most_tokens
        longest = window.longest
        requests = min(budget, self.server.max_batch_size or budget)

        # Of each term in a batch, at most.
        counts = (
            requests,
            budget**2,
            *[budget * longest] * 3,
            1,
        )
        costs = [cost * count for cost, count in zip(per, counts, strict=True)]
        linear = self.terms.linear
        most = int(linear.max()) + sum(costs)
        if most >= composition.MOST_COST:
            raise InputError(
                f"a batch of {budget:,} tokens, each after {longest:,} of its request, could take "
                f"{most * unit:,.0f} s, more ticks of {self.tick_s:g} s than are counted "
                "for a batch; raise tick_s, or drop the longest requests"
            )
        for seconds, cost, count in zip(term_seconds(model), per, counts, strict=True):
            lost = abs(seconds / unit - cost) * count / (int(linear[1:].min()) + cost * count)
            if lost > _ROUNDING:
                raise InputError(
                    f"rounded to 2^-{composition.BITS} ticks of {self.tick_s:g} s, a term of "
                    f"{seconds:g} s changes the "
                    f"time of batches by up to {lost:.1%}; lower tick_s"
                )

    def run(self, window: Window, final: bool, drain: bool, report: Callable[[], None]) -> None:
        """Call the kernel until the window is used up; a final one is run to its end, or to its
        last arrival.
        """
        # All may be dropped.
        last = int(window.arrival[-1]) if window.arrival.size else self.last_arrival
        self.last_arrival = last if self.stop == NEVER else self.stop
        stops_at_last = final and not drain and self.stop == NEVER
        self.options[kernel.FINAL] = final
        self.options[kernel.UNTIL] = last if stops_at_last else self.stop
        while True:
            done = self.step(window, STEPS)
            if (
                time.monotonic() - self.reported > 0.1
            ):  # across windows: each may be done in a blink
                self.reported = time.monotonic()
                report()
            if done:
                return

    def keep(self, window: Window) -> Window:
        """Return the requests that can be served at all: all of them."""
        return window

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        prompts = self.state[kernel.ARRIVED] - self.state[kernel.HEAD]
        return int(prompts), int(self.state[kernel.WAITING_TOKENS])

    @property
    def useful(self) -> int:
        """Ints32 in batches that ended, without those that had to be done again."""
        return int(self.state[kernel.COMPLETED])

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first ``count`` requests of a window, which arrive at tick 0, ready to
        decode.
        """
        # Their only token comes with the end of prefill.
        alone = window.output[:count] == self.options[kernel.ENGINE]
        if self.options[kernel.ENGINE]:
            window.first_token[:count] = 0
        window.finish[:count][alone] = 0
        self.state[[kernel.ARRIVED, kernel.HEAD, kernel.VISIBLE]] = count
        self.state[[kernel.STARTED, kernel.COMPLETED]] = window.prompt[:count].sum(dtype=np.int64)
        self.state[kernel.FINISHED] = alone.sum()
        self.state[kernel.DECODING] = count - alone.sum()
        self.state[kernel.ARRIVED_TOKENS] = self.state[kernel.STARTED]
        decodes = window.output[:count].sum(dtype=np.int64) - count * self.options[kernel.ENGINE]
        self.state[kernel.DECODE_TOKENS] = decodes

    def step(self, window: Window, steps: int) -> bool:
        """Call the kernel for so many policy decisions, making room as it asks; return whether the
        window is used up.

        Unless the options say otherwise the window is not the last, and the kernel stops when it
        knows no further arrival.
        """
        status = kernel.FULL
        while status == kernel.FULL:
            self.options[kernel.STEPS] = steps
            try:
                status = self._advance(window)
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
                    "it must answer for "
                    f"every queue, with the {self.params.size} policy_params it was given"
                ) from error
            if status == kernel.FULL:
                self._make_room()
        if status not in (kernel.DONE, kernel.MORE, kernel.PAUSED):
            self._refuse(status)
        return status in (kernel.DONE, kernel.MORE)

    def _advance(self, window: Window) -> int:
        """Call the kernel once."""
        raise NotImplementedError

    def close_loop(self, clients: int, pause: int) -> None:
        """Let so many clients wait for an answer, and so many ticks, before each next request."""
        self.options[kernel.CLIENTS] = clients
        self.options[kernel.PAUSE] = pause

    @property
    def dropped(self) -> int:
        """Requests that have been folded away."""
        return int(self.state[kernel.DROPPED])

    @property
    def decoding(self) -> int:
        """Requests in decode."""
        return int(self.state[kernel.DECODING])

    @property
    def decodes_left(self) -> int:
        """Decode iterations to come of the requests in decode."""
        return int(self.state[kernel.DECODE_TOKENS])

    @property
    def arrived_tokens(self) -> int:
        """Prompt tokens that have arrived."""
        return int(self.state[kernel.ARRIVED_TOKENS])

    @property
    def was_idle(self) -> bool:
        """Whether there was a time at which nothing was left to serve."""
        return bool(self.state[kernel.BUSY] < self.state[kernel.NOW])

    def fold(self, window: Window, everything: bool) -> Window:
        """Add the finished requests at the front of the window to the summary and drop them."""
        open_requests = np.flatnonzero(window.finish < 0)
        count = window.finish.size
        if open_requests.size and not everything:
            count = int(open_requests[0])
        gone, kept = window.split(count)
        self.ttft.add(gone.arrival, gone.first_token)
        self.e2e.add(gone.arrival, gone.finish)
        # What left has arrived before any instant of the series that is still to come.
        unseen = slice(int(self.state[kernel.SEEN]), count)
        forward = (
            gone.prompt[unseen].astype(np.int64) + gone.output[unseen] - self.options[kernel.ENGINE]
        )
        self.state[kernel.SEEN_TOKENS] += forward.sum()
        self.state[kernel.SEEN] = max(self.state[kernel.SEEN], count)
        self.state[kernel.FRESH] = max(self.state[kernel.FRESH], count)
        self.state[[kernel.ARRIVED, kernel.HEAD, kernel.VISIBLE, kernel.FRESH, kernel.SEEN]] -= (
            count
        )
        self.state[kernel.DROPPED] += count
        self.slots[kernel.SLOT_REQUEST] -= count
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
        state, level = self.state, self.options[kernel.RECORD]
        return Run(
            server=self.server,
            tick_s=self.tick_s,
            arrived=self.arrived,
            finished=self.finished,
            n_batches=int(state[kernel.BATCHES]),
            end=self.now,
            last_arrival=self.last_arrival,
            busy=int(state[kernel.BUSY]),
            tokens=int(state[kernel.COMPLETED]),
            started_tokens=int(state[kernel.STARTED]),
            gaps=self.gaps(),
            folded=None if rows else (self.ttft.distribution, self.e2e.distribution),
            mixes=mixes,
            mix_ticks=mix_ticks,
            series_rows=self.series[: state[kernel.SERIES_ROWS]],
            rows=rows,
            batch_rows=np.concatenate(self.kept_batches)
            if level >= kernel.RECORD_BATCHES
            else None,
            allocation_rows=np.concatenate(self.kept_allocations)
            if level >= kernel.RECORD_ALLOCATIONS
            else None,
        )

    def gaps(self) -> Distribution:
        """Put the times between tokens together: those of one batch, and stalls."""
        tally = self.tallies[kernel.TALLY_GAPS]
        stalls, counts = counting.contents(self.stalls)
        total = sum(int(t) * int(d) for t, d in zip(tally, self.duration, strict=True))
        total += (
            int(self.state[kernel.STALL_SUM])
            + int(self.state[kernel.STALL_SUM_CARRY]) * kernel.CARRY
        )
        used = np.flatnonzero(tally)
        return Distribution.merged(
            np.concatenate([self.duration[used], stalls]),
            np.concatenate([tally[used], counts]),
            total,
        )

    def _mixes(self) -> tuple[tuple[Ints, Ints], Ints]:
        """Put the batch compositions together: prefill << 32 | decode, how many batches had it, and
        their ticks.
        """
        budget = self.server.token_budget
        cells = self.cells.reshape(2 if self.terms else 1, -1)
        used, full = np.flatnonzero(cells[0]), np.flatnonzero(self.tallies[kernel.TALLY_FULL])
        prefill, decode = np.divmod(used, self.cell_columns)
        others, counts = counting.contents(self.mixes)
        # From there on ticks, in the same order.
        apart = int(np.searchsorted(others, kernel.MIX_TICKS))
        mixes, counts, ticks = others[:apart], counts[:apart], counts[apart:]
        keys = np.concatenate([(prefill << 32) | decode, ((budget - full) << 32) | full, mixes])
        counts = np.concatenate([cells[0, used], self.tallies[kernel.TALLY_FULL, full], counts])
        every = Distribution.merged(keys, counts, 0)
        total = every.counts * self.duration[(every.values >> 32) + (every.values & 0xFFFFFFFF)]
        if self.terms:
            total = np.zeros_like(total)
            np.add.at(
                total, np.searchsorted(every.values, keys), np.concatenate([cells[1, used], ticks])
            )
        return (every.values, every.counts), total

    def _make_room(self) -> None:
        while 4 * (self.state[kernel.STALLS_USED] + self.slots.shape[1]) > self.stalls.size:
            self.stalls = counting.doubled(self.stalls)
        while 4 * (self.state[kernel.MIXES_USED] + 2) > self.mixes.size:
            self.mixes = counting.doubled(self.mixes)
        self._keep_rows()

    def _keep_rows(self) -> None:
        """Move recorded rows out of the kernel's buffers."""
        self.kept_batches.append(self.batch_rows[: self.state[kernel.BATCH_ROWS]].copy())
        self.kept_allocations.append(
            self.allocation_rows[: self.state[kernel.ALLOCATION_ROWS]].copy()
        )
        self.state[[kernel.BATCH_ROWS, kernel.ALLOCATION_ROWS]] = 0

    def _refuse(self, status: int) -> None:
        name = self.server.policy.name
        when = self.now * self.tick_s
        prompts, tokens = self.waiting
        state = (
            f"{prompts} prompts ({tokens} tokens) and {self.state[kernel.DECODING]} decoding "
            "requests"
        )
        if status == kernel.IDLE_POLICY:
            raise InputError(
                f"policy {name!r} formed an empty batch at {when:g} s with {state} waiting; "
                "a policy must serve something while anything can be served, or the server would "
                "idle for ever"
            )
        raise InputError(
            f"policy {name!r} asked for a negative number of tokens at {when:g} s with {state} "
            "waiting"
        )
