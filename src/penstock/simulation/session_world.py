"""A session of the event loop: its records, run until something is known, looked at, and gone on
with.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import counting, due_epochs, in_progress, records
from penstock.kernel.by_reference import Address
from penstock.kernel.compiled_code import from_python
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.gaps import CARRY
from penstock.kernel.records import World
from penstock.simulation.distribution import LEADING_BITS, Distribution, Fold
from penstock.simulation.new_world import more_slots
from penstock.simulation.rows import ReplicaCounts
from penstock.system.server import Server

chain = from_python(due_epochs.chain)
_begun_again = from_python(in_progress.begun_again)


def views(table: Any, *names: str) -> SimpleNamespace:
    """Return fields of a one-record table, to be read after every few batches."""
    # ``.item()`` of an array takes a fortieth of the time of an attribute of `numpy.record`.
    plain = table.view(np.ndarray)
    return SimpleNamespace(**{name: plain[name] for name in names})


class WorldSession:
    """The records of a run, and the calls that go on with it.

    With ``compress`` equal batches are one step. It stops at the tick ``stop``, or NEVER. Of times
    between tokens so many leading ``bits`` are kept; 0: all. ``rules``: names of policies and
    orders, for messages.
    """

    of_requests: tuple[str, ...] = ()  # arrays of those that the kernel knows to arrive
    pool_of_replica: Ints  # shape (replicas,)
    folds: list[tuple[Fold, Fold]]  # TTFT and E2E of what was folded, at each stage
    counts_gaps = True
    has_workflows = has_outages = has_transfers = False
    _is_loaded = False  # the functions that its pools need

    def __init__(
        self, world: World, tick_s: float, compress: bool, stop: int, bits: int, rules: list[str]
    ) -> None:
        self.world = world
        self.address = Address()
        self.tick_s = tick_s
        self.stop = stop
        self.clock = world.clock[0]
        self._clock = views(
            world.clock, "now", "steps", "finished", "requests_before", "final", "until"
        )
        # Who is served is written down batch by batch.
        self.clock.merges = compress and self.clock.record < records.ALLOCATION_ROWS
        self.clock.until = stop
        self.clock.gap_bits = bits
        self.rules = rules
        self.kept_batches: list[Ints] = []
        self.kept_allocations: list[Ints] = []

    @property
    def now(self) -> int:
        """Tick."""
        return int(self._clock.now.item())

    @property
    def finished(self) -> int:
        """Requests that have finished."""
        return int(self._clock.finished.item())

    def run(
        self, final: bool, until: int | None = None, steps: int = NEVER, known: int | None = None
    ) -> bool:
        """Go on until what is known (True) or so many batches (False) are used up.

        Unless it is ``final`` the kernel stops when it knows no further arrival; of those known it
        may be told only the first, to be told more later.
        """
        clock = self._clock
        clock.final[0], clock.steps[0] = final, steps
        clock.until[0] = self.stop if until is None else until
        whole = {name: getattr(self.world, name) for name in self.of_requests}
        if known is not None:
            self.world = self.world._replace(
                **{name: column[:known] for name, column in whole.items()}
            )
        status = self.call()
        if known is not None:
            self.world = self.world._replace(**whole)
        if status not in (records.DONE, records.MORE, records.PAUSED):
            self._refuse(status)
        if status == records.DONE and final and clock.until.item() == NEVER:
            self._check_all_ended()
        return status != records.PAUSED

    @property
    def arrivals(self) -> Ints:
        """Ticks at which those in memory arrive."""
        return np.asarray(getattr(self.world, self.of_requests[0]))

    def _refuse(self, status: int) -> None:
        """Say why it cannot go on."""
        raise NotImplementedError

    def _check_all_ended(self) -> None:
        """Refuse to go on where nothing will ever happen again, though requests are there."""

    def call(self) -> int:
        """Call the kernel, making room as it asks; return why it stopped."""
        status, steps = records.FULL, self._clock.steps.item()
        while status == records.FULL:
            self._clock.steps[0] = steps
            try:
                status = self._advance()
            except (
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
                AssertionError,
                SystemError,
            ) as error:
                raise InputError(
                    f"{self._who()} failed: {type(error).__name__}: {error}; it must answer for "
                    "every queue, with the parameters it was given"
                ) from error
            if status == records.FULL:
                self._make_room()
        return status

    def _advance(self) -> int:
        """Call the kernel once."""
        # Imported here, as a paper server alone does without the loop of all others.
        from penstock.kernel.apart import load
        from penstock.kernel.events import compiled_advance

        advance = compiled_advance()
        if not self._is_loaded:
            load(self.world, self.has_workflows, self.has_outages, self.has_transfers)
            self._is_loaded = True
        return advance(self.address.of(self.world))

    def _who(self) -> str:
        """Name what may have failed."""
        if len(self.rules) == 1:
            return f"policy {self.rules[0]!r}"
        return f"one of {', '.join(repr(name) for name in self.rules)}"

    def _make_room(self) -> None:
        """Double what is half full, and empty the buffers of rows."""
        world, clock = self.world, self.clock
        has_rows = clock.batch_rows or clock.allocation_rows
        slots = clock.engine_slots + clock.line_slots
        while 4 * (clock.stalls_used + slots) > world.stalls.size:
            world = world._replace(stalls=counting.doubled(world.stalls))
        while 4 * (clock.mixes_used + 2 * world.servers.size) > world.mixes.size:
            world = world._replace(mixes=counting.doubled(world.mixes))
        if has_rows:
            self._keep_rows()
        elif world is self.world:  # nothing else was full
            world = more_slots(world)
        self.world = world

    def _keep_rows(self) -> None:
        """Move recorded rows out of the kernel's buffers."""
        clock, world = self.clock, self.world
        self.kept_batches.append(world.batch_rows[: clock.batch_rows].copy())
        self.kept_allocations.append(world.allocation_rows[: clock.allocation_rows].copy())
        clock.batch_rows = clock.allocation_rows = 0

    def batch_rows(self) -> Ints | None:
        """Return each batch, in order of start; None: not recorded."""
        # Start, ticks, prefill tokens, decode tokens, requests, replica.
        if self.clock.record < records.BATCH_ROWS:
            return None
        self._keep_rows()
        on_their_way = [
            [index, *(int(replica[name]) for name in _OF_A_BATCH)]
            for index, replica in enumerate(self.world.servers)
            if replica.equal
        ]
        rows = np.concatenate([*self.kept_batches, np.reshape(on_their_way, (-1, 6))])
        rows = rows.astype(np.int64)
        return rows[np.lexsort((rows[:, 0], rows[:, 1]))][:, [1, 2, 3, 4, 5, 0]]

    def allocation_rows(self) -> Ints | None:
        """Return rows of batch, request, prefill and decode tokens, replica; None: none is kept."""
        if self.clock.record < records.ALLOCATION_ROWS:
            return None
        self._keep_rows()
        return np.concatenate(self.kept_allocations)[:, [1, 2, 3, 4, 0]]

    @property
    def series_rows(self) -> Ints:
        """The series so far: see `World.series`."""
        return np.asarray(self.world.series[: self.clock.series_rows])

    def gaps(self) -> Distribution:
        """Put the times between tokens together: those of one batch, and stalls."""
        world, clock = self.world, self.clock
        stalls, counts = counting.contents(world.stalls)
        used = np.flatnonzero(world.gaps)
        total = _exact_sum(world.duration[used], world.gaps[used])
        total += int(clock.stall_sum) + int(clock.stall_carry) * CARRY
        return Distribution.merged(
            np.concatenate([world.duration[used], stalls]),
            np.concatenate([world.gaps[used], counts]),
            total,
        )

    def busy(self) -> Ints:
        """Return the ticks that each replica has been busy, up to now."""
        servers = self.world.servers
        running = np.maximum(self.now - servers.start, 0)
        return np.asarray(servers.busy + np.where(servers.equal > 0, running, 0))

    def by_replica(self, field: str) -> Ints:
        """Return a field of engines for all replicas, 0 for those of lines."""
        engines = self.world.engines
        values = np.zeros(len(self.world.servers), np.int64)
        values[engines.server] = engines[field]
        return values

    def counts(self) -> ReplicaCounts:
        """Return what each replica has done up to now; equal batches that have begun are done."""
        servers = self.world.servers
        begun = np.array([begun_batches(server, self.now) for server in servers])
        return ReplicaCounts(
            pool=self.pool_of_replica,
            batches=servers.batches.copy(),
            in_progress=begun,
            busy=self.busy(),
            tokens=servers.processed.copy(),
            started_tokens=servers.processed + begun * servers.tokens,
            preemptions=self.by_replica("preemptions"),
            recomputed_tokens=self.by_replica("lost"),
            reused_tokens=self.by_replica("reused"),
        )

    @property
    def endless(self) -> str:
        """Say that preemptions bring nobody any further."""
        batches = int(self.world.pools.patience.max())
        return (
            f": up to {self.now * self.tick_s:g} s it took memory from requests in more than "
            f"{batches:,} batches, while none got an output; raise the KV memory, let admission "
            "reserve whole prompts, or give requests unequal priorities"
        )

    def widen_ring(self, longest: int) -> None:
        """Make rings of due epochs larger than the longest output; decoding requests go in anew."""
        world = self.world
        size = max(64, 1 << longest.bit_length())
        if size <= world.heads.shape[1]:
            return
        count = len(world.lines)
        heads, bits = np.full((count, size), -1, np.int64), np.zeros((count, size // 64), np.uint64)
        first = world.lines.first_linked.copy()
        first[world.engines.line] = world.engines.first_slot
        decoding = world.lines.linked.copy()
        decoding[world.engines.line] = world.engines.decoding
        for line in np.flatnonzero(decoding):
            place = int(first[line])
            while place >= 0:
                if world.slots.left[place] == 0:
                    chain(world.slots, heads[line], bits[line], place)
                place = int(world.slots.next[place])
        self.world = world._replace(heads=heads, bits=bits)

    def drop(self, count: int) -> None:
        """Forget the first requests, which are done: others are known by their rows."""
        world = self.world
        for table, fields in (
            (world.rows, ("next",)),
            (world.again, ("less", "more")),
            (world.lines, ("prompt_head", "prompt_tail", "fresh_head", "fresh_tail", "done_head")),
            (world.lines, ("done_tail",)),
            (world.engines, ("head", "tail", "coming_head", "coming_tail")),
            (world.engines, ("landed_head", "landed_tail")),
        ):
            for field in fields:
                column = table[field]
                column[column >= 0] -= count
        world.slots.request -= count
        world.heap[: self.clock.waiting_room, 1] -= count
        self.clock.requests_before += count
        if self.clock.clients:
            self.clock.next_sent -= count


def begun_batches(server: Any, now: int) -> int:
    """Return how many of the equal batches that a replica has in progress have begun."""
    return 1 + int(_begun_again(server, now)) if server.equal else 0


def level_of(record: str) -> int:
    """Return up to which level the kernel writes down batches, and who is in them."""
    levels = {"batches": records.BATCH_ROWS, "allocations": records.ALLOCATION_ROWS}
    return levels.get(record, records.NO_ROWS)


def gap_bits(record: str, servers: Sequence[Server]) -> int:
    """Return how many leading digits are kept of times between tokens; 0: all."""
    composed = any(not server.batch_time.by_load for server in servers)
    return LEADING_BITS if record == "summary" or composed else 0


_OF_A_BATCH = ("start", "ticks", "prefill", "decodes", "requests")


def _exact_sum(values: Ints, counts: Ints) -> int:
    """Return the sum of values times counts, none negative, which may exceed an int64."""
    largest = int(values.max(initial=0))
    if largest * int(counts.sum()) < 2**63:
        return int(values @ counts)
    half = largest.bit_length() // 2
    low = _exact_sum(values & ((1 << half) - 1), counts)
    return (_exact_sum(values >> half, counts) << half) + low
