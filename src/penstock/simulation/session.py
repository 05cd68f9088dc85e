"""A session: a run of the kernel up to where something is known, looked at, and gone on with.

`penstock.simulation.event_session` runs any network, a server too, event by event, and
`penstock.simulation.paper_session` a server of the paper, faster. Both hand out the same.
"""

import abc
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock import words
from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.kernel import counting, due_epochs, in_progress, records
from penstock.kernel.by_reference import Address
from penstock.kernel.compiled_code import from_python
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.recording import CARRY, MIX_TICKS
from penstock.kernel.signatures import ASK_FOR, NOT_ASKED_FOR
from penstock.simulation.distribution import LEADING_BITS, Distribution, Fold
from penstock.simulation.new_world import more_slots
from penstock.simulation.rows import JobEnds, ReplicaCounts, Rows
from penstock.system.server import Server
from penstock.workload.jobs import Jobs

chain = from_python(due_epochs.chain)
_begun_again = from_python(in_progress.begun_again)


def views(table: Any, *names: str) -> SimpleNamespace:
    """Return fields of a one-record table, to be read after every few batches."""
    # ``.item()`` of an array takes a fortieth of the time of an attribute of `numpy.record`.
    plain = table.view(np.ndarray)
    return SimpleNamespace(**{name: plain[name] for name in names})


class Session(abc.ABC):
    """The records of a run, and the calls that go on with it.

    With ``compress`` equal batches are one step. It stops at the tick ``stop``, or NEVER. Of times
    between tokens so many leading ``bits`` are kept; 0: all. ``rules``: names of policies and
    orders, for messages.
    """

    of_jobs: tuple[str, ...]  # the arrays of those that the kernel knows to arrive
    pool_of_replica: Ints  # shape (replicas,)
    folds: Sequence[tuple[Fold, Fold]]  # TTFT and E2E of what was folded, at each stage
    counts_gaps = True  # times between tokens
    counts_compositions = True  # batches by what is in them
    jobs_before = 0  # that were folded away

    def __init__(
        self,
        world: Any,  # `World`, or the `Arrays` of a server of the paper
        tick_s: float,
        compress: bool,
        stop: int,
        bits: int,
        rules: list[str],
    ) -> None:
        self.world = world
        self.address = Address()
        self.tick_s = tick_s
        self.stop = stop
        self.clock = world.clock[0]
        self._clock = views(world.clock, "now", "steps", "finished", "final", "until")
        # Who is served is written down batch by batch.
        self.clock.merges = compress and self.clock.record < records.ALLOCATION_ROWS
        self.clock.until = stop
        self.clock.gap_bits = bits
        self.rules = rules
        self.jobs = Jobs.none()  # known, and not folded away
        self.offered = 0  # jobs, those that are left out included
        self.left_out: list[tuple[Ints, Jobs]] = []  # by their numbers, as they never fit
        self.line: Any = None  # the record of what waits and decodes, where there is one alone
        self.batches: list[Ints] = []
        self.allocations: list[Ints] = []

    # -- what it is given

    def keep(self, jobs: Jobs) -> Jobs:
        """Return those of the next jobs that can be served; take note of those to leave out."""
        self.offered += jobs.count
        return jobs

    @abc.abstractmethod
    def add(self, jobs: Jobs) -> None:
        """Let these jobs arrive after those known so far."""

    @abc.abstractmethod
    def prefilled(self, count: int) -> None:
        """Begin with the first ``count`` requests, which arrive at tick 0, ready to decode."""

    def _watch(self, line: Any, *names: str) -> None:
        """Keep at hand what is read after every few batches: of the only replica, and its line."""
        self.line, self.replica = line[0], self.world.servers[0]
        self._replica = views(self.world.servers, "equal", "processed", "busy", "start", "tokens")
        self._line = views(line, "decoding", "arrived_tokens", *names)

    def close_loop(self, clients: int, pause_s: float) -> None:
        """Let so many clients wait for an answer, and pause, before each next job."""
        self.clock.clients = self.clock.next_sent = clients
        # The batch that starts at the answer is to go first.
        self.clock.pause = max(round(pause_s / self.tick_s), 1)
        self.arrivals[:] = NEVER
        self.arrivals[:clients] = 0

    # -- what it does

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
        whole = {name: getattr(self.world, name) for name in self.of_jobs}
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

    def _refuse(self, status: int) -> None:
        """Say which policy, order or engine cannot go on, and why."""
        policy, where = self._failing(status)
        when = f"at {self.now * self.tick_s:g} s"
        if status == records.STUCK:
            raise InputError(
                f"policy {policy!r}{where} can serve nobody {when}, although requests wait; raise "
                "the KV memory or the token budget"
            )
        if status == records.ENDLESS:
            batches = int(self.world.pools.most_barren.max())
            raise InputError(
                f"policy {policy!r}{where} preempts for ever: up to {when[3:]} it took memory from "
                f"requests in more than {batches:,} batches, while none got an output; raise the "
                "KV memory, let admission reserve whole prompts, or give requests unequal "
                "priorities"
            )
        if self.line is not None:
            prompts, tokens = self.waiting
            when += (
                f" with {words.counted(prompts, 'prompt')} ({words.counted(tokens, 'token')}) and "
                f"{words.counted(self.decoding, 'decoding request')} waiting"
            )
        else:
            when += " while requests wait"
        if status == records.BAD_POLICY:
            raise InputError(
                f"policy {policy!r}{where} asked for {NOT_ASKED_FOR} {when}; {ASK_FOR}"
            )
        raise InputError(
            f"policy {policy!r}{where} formed an empty batch {when}; a policy must serve something "
            "while anything can be served, or the server would idle for ever"
        )

    @abc.abstractmethod
    def _failing(self, status: int) -> tuple[str, str]:
        """Return the name of the policy that failed, and where it did; refuse any other failure."""

    def _check_all_ended(self) -> None:  # noqa: B027  (a server has nobody to wait for)
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

    @abc.abstractmethod
    def _advance(self) -> int:
        """Call the kernel once."""

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
            self._move_rows()
        elif world is self.world:  # nothing else was full
            world = more_slots(world)
        self.world = world

    # -- what it knows

    @property
    def now(self) -> int:
        """Tick."""
        return int(self._clock.now.item())

    @property
    @abc.abstractmethod
    def arrived(self) -> int:
        """Jobs that have arrived."""

    @property
    def finished(self) -> int:
        """Requests that have finished."""
        return int(self._clock.finished.item())

    @property
    def arrivals(self) -> Ints:
        """Ticks at which those in memory arrive."""
        return np.asarray(getattr(self.world, self.of_jobs[0]))

    # What is read after every few batches, where there is one replica, but of a line of a network.

    @property
    @abc.abstractmethod
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""

    @property
    @abc.abstractmethod
    def useful(self) -> int:
        """Tokens of batches that brought requests on, and those found computed."""

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
    def folded_away(self) -> int:
        """Requests that have been folded away."""
        return int(self.clock.requests_before)

    @property
    def was_idle(self) -> bool:
        """Whether there was a time at which nothing was left to serve."""
        replica, now = self._replica, self.now
        busy = replica.busy.item()
        if replica.equal.item() > 0:
            busy += max(now - replica.start.item(), 0)
        return bool(busy < now)

    # -- what it makes

    @abc.abstractmethod
    def fold(self, everything: bool) -> tuple[Rows, JobEnds | None]:
        """Drop the jobs at the front that are done, or all, and return what became of them."""

    def at_stages(self, rows: Rows) -> Iterator[Bools | slice]:
        """Yield which requests are at each stage of which latencies are folded."""
        yield slice(None)

    def _move_rows(self) -> None:
        """Move recorded rows out of the kernel's buffers."""
        clock, world = self.clock, self.world
        self.batches.append(world.batch_rows[: clock.batch_rows].copy())
        self.allocations.append(world.allocation_rows[: clock.allocation_rows].copy())
        clock.batch_rows = clock.allocation_rows = 0

    def recorded(self) -> tuple[Ints | None, Ints | None]:
        """Return each batch, in order of start, and rows of their requests; None: not recorded."""
        # Start, ticks, prefill tokens, decode tokens, requests, replica; and batch, request,
        # prefill and decode tokens, replica.
        if self.clock.record < records.BATCH_ROWS:
            return None, None
        self._move_rows()
        on_their_way = [
            [index, *(int(replica[name]) for name in _OF_A_BATCH)]
            for index, replica in enumerate(self.world.servers)
            if replica.equal
        ]
        rows = np.concatenate([*self.batches, np.reshape(on_their_way, (-1, 6))]).astype(np.int64)
        batches = rows[np.lexsort((rows[:, 0], rows[:, 1]))][:, [1, 2, 3, 4, 5, 0]]
        if self.clock.record < records.ALLOCATION_ROWS:
            return batches, None
        return batches, np.concatenate(self.allocations)[:, [1, 2, 3, 4, 0]]

    @property
    def series_rows(self) -> Ints:
        """The series so far: see `World.series`."""
        return np.asarray(self.world.series[: self.clock.series_rows])

    def compositions(self) -> tuple[tuple[Ints, Ints], Ints]:
        """Return what batches were composed of, prefill << 32 | decode, how many, their ticks."""
        if not self.counts_compositions:
            nothing = np.zeros(0, np.int64)
            return (nothing, nothing), nothing
        world, pool = self.world, self.world.pools[0]
        batches, ticks_in_cells = world.cells, world.cells[:0]
        if pool.composed:
            batches, ticks_in_cells = np.split(world.cells, 2)
        used, filled = np.flatnonzero(batches), np.flatnonzero(world.full)
        prefill, decode = np.divmod(used, int(pool.cell_columns))
        others, counts = counting.contents(world.mixes)
        # From there on ticks, in the same order.
        apart = int(np.searchsorted(others, MIX_TICKS))
        others, counts, ticks = others[:apart], counts[:apart], counts[apart:]
        keys = np.concatenate(
            [(prefill << 32) | decode, ((pool.budget - filled) << 32) | filled, others]
        )
        counts = np.concatenate([batches[used], world.full[filled], counts])
        every = Distribution.merged(keys, counts, 0)
        if not ticks_in_cells.size:
            loads = (every.values >> 32) + (every.values & 0xFFFFFFFF)
            return (every.values, every.counts), every.counts * world.duration[loads]
        total = np.zeros_like(every.counts)
        places = np.searchsorted(every.values, keys)
        np.add.at(total, places, np.concatenate([ticks_in_cells[used], ticks]))
        return (every.values, every.counts), total

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

    @abc.abstractmethod
    def by_replica(self, field: str) -> Ints:
        """Return a field of engines for all replicas, 0 for those of lines."""

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
