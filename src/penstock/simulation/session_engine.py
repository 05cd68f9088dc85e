"""A session on a server whose requests hold memory, come by priority, or are scheduled as an engine
does it.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.kernel import blocks, running
from penstock.kernel import engines as loop
from penstock.kernel import legacy_server as kernel
from penstock.simulation.legacy_session import LegacySession
from penstock.simulation.run import Record, Rows, Run
from penstock.simulation.session_server import Session
from penstock.simulation.window import Window
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes

_ADMISSIONS = {
    "input": running.INPUT,
    "completion": running.COMPLETION,
    "optimistic": running.OPTIMISTIC,
}
_REMEDY = "raise the limit or shorten the requests"
_OR_DROP = ", or drop them with `memory: {too_long: drop}`"
_FIRST_SLOTS = 256  # where nothing bounds how many requests run

MOST_CACHED_BLOCKS = 2**24
"""Blocks that are told apart: 56 bytes each."""


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


class EngineSession(LegacySession):
    """The arrays of `penstock.kernel.engines`; parameters as in `Session`, and

    Parameters
    ----------
    prefixes
        What recorded prompts have in common, for a server that caches prefixes.
    """

    sizes = (running.N_OPTIONS, running.N_STATE, running.N_SLOT_ROWS)

    def __init__(
        self,
        server: Server,
        record: Record,
        tick_s: float,
        compress: bool,
        stop: int,
        prefixes: Prefixes | None = None,
    ) -> None:
        super().__init__(server, record, tick_s, compress, stop)
        self.resume = np.empty((0, running.N_RESUME), np.int64)
        self.left_out: list[tuple[Ints, Window]] = []
        self.offered = 0
        policy, memory = server.policy, server.memory
        # What a rule of the kernel reads: the engine's settings, and the rules of its memory.
        options = self.options
        self.block_size = memory.block_size if memory else 1
        options[running.CELL_COLUMNS] = self.cell_columns
        options[running.RULE] = policy.rule
        options[running.BLOCK_SIZE] = self.block_size
        options[running.WATERMARK] = server.watermark_blocks
        options[running.BY_PRIORITY] = server.order == "priority"
        options[running.CHUNKED] = policy.cuts_prompts
        options[running.RESERVED] = -(-policy.reserved_tokens // self.block_size) if memory else 0
        options[running.ADMISSION] = (
            _ADMISSIONS[memory.admission or "input"] if memory else running.INPUT
        )
        for option, value in policy.kernel_options.items():
            options[option] = value
        swaps = memory is not None and memory.preemption == "swap"
        options[running.SWAP_TICKS] = round(memory.swap_s / tick_s) if memory and swaps else -1
        options[running.GROWS] = memory is not None and server.holds != "completion"
        # Memory, and prompts that begin alike where blocks are cached.
        usable = server.usable_blocks
        self.state[running.FREE] = running.PLENTY if usable is None else usable
        self.rows = np.empty(0, np.int64)
        self.recorded = prefixes.rows if prefixes else 0
        self.cache: blocks.Cache | None = None
        if memory and memory.prefix_caching and usable is not None:
            self.cache = self._open_cache(usable, prefixes)
        self.growth = np.zeros(self.block_size, np.int64)
        self.ring = np.zeros((3, 1 << (4 * self.slots.shape[1]).bit_length()), np.int64)
        if not policy.by_phase:
            self.params = np.array(policy.kernel_numbers)
        self.ratio = np.array(policy.kernel_numbers[:1])

    def _open_cache(self, usable: int, prefixes: Prefixes | None) -> blocks.Cache:
        """Return a cache of blocks that hold nothing."""
        nothing = np.empty(0, np.int64)
        ids, bounds = (prefixes.ids, prefixes.bounds) if prefixes else (nothing, nothing)
        if prefixes and prefixes.block_size != self.block_size:
            raise InputError(
                f"hash ids name blocks of {prefixes.block_size:,} tokens, but block_size is "
                f"{self.block_size:,}, so no "
                f"block of one is a block of the other; set block_size to {prefixes.block_size:,}"
            )
        if usable > MOST_CACHED_BLOCKS:
            raise InputError(
                f"kv_blocks is {usable:,}, but with prefix caching each is kept account of, and "
                f"{MOST_CACHED_BLOCKS:,} fit here; lower it, or leave prefix_caching out"
            )
        return blocks.new_cache(usable, self.slots.shape[1], ids, bounds)

    def slots_at_first(self) -> int:
        """Return for how many running requests there is room; more is made where nothing bounds
        them.
        """
        server = self.server
        if server.scope == "running" and server.most_requests is not None:
            return server.most_requests
        return max(_FIRST_SLOTS, 2 * super().slots_at_first())

    def keep(self, window: Window) -> Window:
        """Return the requests that can ever be served; name the first that cannot, or leave them
        out if told so.
        """
        limits = self._too_long(window)
        fits = (
            ~np.any([over for over, _ in limits], axis=0)
            if limits
            else np.ones(window.arrival.size, bool)
        )
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
            self.rows = np.concatenate(
                [self.rows, (self.offered + np.flatnonzero(fits)) % self.recorded]
            )
        if too_long.size:
            self.left_out.append((self.offered + too_long, window.where(~fits)))
            kept = window.where(fits)
        else:
            kept = window
        self.offered += window.arrival.size
        return kept

    def _too_long(self, window: Window) -> list[tuple[Bools, str]]:
        """Return which requests can never be served, for each reason."""
        server, policy = self.server, self.server.policy
        whole = window.prompt.astype(np.int64) + window.output
        peak = whole - self.options[kernel.ENGINE]
        limits = []
        if most := policy.reserved_tokens:
            limits.append(
                (whole > most, f"more than the {most:,} (max_tokens) that {policy.name} reserves")
            )
        usable = server.usable_blocks
        if usable is not None:
            needed = np.maximum(-(-peak // self.block_size), self.options[running.RESERVED])
            spare = server.spare_blocks
            over = needed + spare > usable
            beside = f" beside a watermark of {spare:,}" if spare else ""
            worst = int(needed[over][0]) if over.any() else 0
            reason = (
                f"it needs {worst:,} blocks of {self.block_size:,}{beside}, but the KV memory has "
                f"{usable:,}, so it "
                "never fits and blocks the server"
            )
            limits.append((over, reason))
        if policy.has_token_budget and not policy.cuts_prompts:
            # What is preempted comes back longer.
            again = server.memory is not None and self.options[running.GROWS] > 0
            lost = ", with outputs that it lost" if again else ""
            reason = (
                f"{policy.name} takes a prompt whole{lost}, but a batch holds "
                f"{server.token_budget:,} tokens, so it never fits and blocks the server"
            )
            limits.append(((peak if again else window.prompt) > server.token_budget, reason))
        return limits

    def fit(self, window: Window) -> None:
        """Make the ring of due epochs larger than the longest output, and room for what preempted
        requests leave.
        """
        self.check_costs(window)
        begin = self.resume.shape[0]
        count = window.arrival.size - begin
        if count > 0:
            new = np.zeros((count, running.N_RESUME), np.int64)
            new[:, running.RESUME_LAST] = running.NONE_YET
            new[:, running.RESUME_PRIORITY] = window.priority[begin:]
            new[:, running.RESUME_ARRIVAL] = window.arrival[begin:]
            new[:, running.RESUME_ROW] = self.rows[:count] if self.recorded else -1
            self.rows = self.rows[count:]
            self.resume = np.concatenate([self.resume, new])
        if self.cache:
            self._widen_table(self.slots.shape[1], -(-window.longest // self.block_size))
        if self.server.policy.loses_rest_of_prompt:  # it becomes output
            self.widen_ring(window.longest)
        else:
            self.widen_ring(int(window.output.max(initial=1)))

    def linked_slots(self) -> Iterator[int]:
        """Yield the slots of requests in decode; those in prefill are linked here, too."""
        slot = int(self.state[kernel.FIRST_SLOT])
        while slot >= 0:
            if self.slots[running.SLOT_LEFT, slot] == 0:
                yield slot
            slot = int(self.slots[kernel.SLOT_NEXT, slot])

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        state = self.state
        return int(running.waiting(state) + state[running.PREFILLING]), int(
            state[kernel.WAITING_TOKENS]
        )

    @property
    def useful(self) -> int:
        """Tokens in batches that ended, without those that had to be done again, and with those
        found computed.
        """
        return int(
            self.state[kernel.COMPLETED] - self.state[running.LOST] + self.state[running.REUSED]
        )

    def prefilled(self, window: Window, count: int) -> None:
        """Begin with the first requests of a window decoding, up to ``count`` and to what slots and
        memory hold.

        The others up to ``count`` wait as prompts.
        """
        state, options, engine = self.state, self.options, int(self.options[kernel.ENGINE])
        most = min(int(options[kernel.BATCH_SIZE]), self.slots.shape[1], count)
        if not self.server.policy.by_phase:
            # No run of an engine leads to more decodes than fill a batch.
            most = min(most, self.server.most_tokens)
        while state[running.RUNNING] < most and state[kernel.HEAD] < count:
            request = int(state[kernel.HEAD])
            prompt, output = int(window.prompt[request]), int(window.output[request])
            reserved = max(int(options[running.RESERVED]), 0)
            tokens = prompt + output - engine if options[running.GROWS] == 0 else prompt + 1
            needed = reserved or -(-tokens // self.block_size)
            if needed + options[running.WATERMARK] > state[running.FREE]:
                break
            state[kernel.HEAD] = request + 1
            state[[kernel.STARTED, kernel.COMPLETED]] += prompt
            state[kernel.ARRIVED_TOKENS] += prompt
            if engine:
                window.first_token[request] = 0
            if output == engine:
                window.finish[request] = 0
                state[kernel.FINISHED] += 1
                continue
            held = -(-prompt // self.block_size) if options[running.GROWS] else needed
            slot = running.admit(
                state,
                options,
                self.slots,
                self.resume,
                window.prompt,
                window.output,
                request,
                held,
                self.cache,
            )
            if self.cache:
                row = int(self.resume[request, running.RESUME_ROW])
                blocks.name_prompt(self.cache, request, row, slot, 0, prompt // self.block_size)
            state[running.PREFILLING] -= 1
            if engine:
                self.slots[running.SLOT_LAST, slot] = running.IN_STEP
            else:
                state[running.OWN] += 1
            running.begin_decode(
                state,
                options,
                self.slots,
                self.heads,
                self.bits,
                self.growth,
                slot,
                output - engine,
            )
        state[[kernel.ARRIVED, running.QUEUED]] = state[kernel.HEAD]

    def _advance(self, window: Window) -> int:
        """Call the kernel once."""
        return loop.compiled_advance(self.cache is not None, self.terms is not None)(
            self.server.policy.compiled, self.params, self.options, self.duration, self.terms,
            window.arrival, window.prompt, window.output, window.first_token, window.finish,
            self.resume,
            self.state, self.slots, self.heads, self.bits, self.growth, self.segments[0],
            self.ring, self.ratio,
            self.cache,
            self.tallies, self.cells, self.stalls, self.mixes, self.series, self.batch_rows,
            self.allocation_rows,
        )  # fmt: skip

    def fold(self, window: Window, everything: bool) -> Window:
        """Add the finished requests at the front of the window to the summary and drop them."""
        before = window.arrival.size
        kept = super().fold(window, everything)
        count = before - kept.arrival.size
        self.resume = self.resume[count:].copy()
        self.state[running.QUEUED] -= count
        self.ring -= count
        return kept

    def finish(self, window: Window | None) -> Run:
        """Put the arrays into a `Run`."""
        run = super().finish(window)
        times = self.resume[:, running.RESUME_TIMES].copy()
        rows = dataclasses.replace(run.rows, preemptions=times) if run.rows else None
        if rows and self.left_out:
            rows = self._with_left_out(rows)
            if run.allocation_rows is not None and rows.dropped is not None:
                run.allocation_rows[:, 1] = np.flatnonzero(~rows.dropped)[run.allocation_rows[:, 1]]
        return dataclasses.replace(
            run,
            rows=rows,
            preemptions=int(self.state[running.PREEMPTIONS]),
            recomputed_tokens=int(self.state[running.LOST]),
            reused_tokens=int(self.state[running.REUSED]),
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

    def _make_room(self) -> None:
        super()._make_room()
        needed = int(self.state[running.RUNNING] + self.options[kernel.BATCH_SIZE])
        room = self.slots.shape[1]
        bounded = self.options[kernel.RUNNING_SCOPE] and self.options[kernel.BATCH_SIZE] <= room
        if (
            not bounded
            and min(needed, int(self.state[running.RUNNING]) + self.server.token_budget) > room
        ):
            self._more_slots()
        wanted = (
            int(self.state[running.RING_SIZE] + self.state[running.HEAP_SIZE]) + self.slots.shape[1]
        )
        if self.options[running.BY_PRIORITY]:
            wanted += int(self.state[kernel.ARRIVED] - self.state[running.QUEUED])
        if wanted > self.ring.shape[1]:
            self._larger_ring(wanted)

    def _more_slots(self) -> None:
        """Double the room for running requests."""
        rows, room = self.slots.shape
        more = np.full((rows, room), -1, np.int64)
        more[kernel.SLOT_CHAIN] = np.arange(room + 1, 2 * room + 1)
        more[kernel.SLOT_CHAIN, -1] = self.state[kernel.FREE_SLOT]
        self.slots = np.concatenate([self.slots, more], axis=1)
        self.state[kernel.FREE_SLOT] = room
        self.segments = np.zeros((2, 2 * room + 1), np.int64)
        if self.cache:
            self._widen_table(2 * room, 0)

    def _widen_table(self, slots: int, blocks_each: int) -> None:
        """Give the table of the cache room for so many slots, and for so many blocks of each."""
        assert self.cache
        before, columns = self.cache.table.shape
        if slots > before or blocks_each > columns:
            table = np.empty((slots, max(blocks_each, columns)), np.int32)
            table[:before, :columns] = self.cache.table
            self.cache = self.cache._replace(table=table)

    def _larger_ring(self, wanted: int) -> None:
        """Give the waiting queue room for so many, in the same order."""
        size = 1 << (2 * wanted).bit_length()
        larger = np.zeros((3, size), np.int64)
        if self.options[running.BY_PRIORITY]:
            larger[:, : self.ring.shape[1]] = self.ring
        else:
            count, start = int(self.state[running.RING_SIZE]), int(self.state[running.RING_START])
            larger[:, :count] = self.ring[:, (start + np.arange(count)) % self.ring.shape[1]]
            self.state[running.RING_START] = 0
        self.ring = larger

    def _refuse(self, status: int) -> None:
        if status != loop.STUCK:
            super()._refuse(status)
        raise InputError(
            f"{self.server.policy.name} can serve nobody at {self.now * self.tick_s:g} s, although "
            f"{self.waiting[0]:,} requests wait; raise the KV memory or the token budget"
        )


AnySession = Session | EngineSession
"""A session on any server."""
