"""A server under a large backlog: how it begins, and the path of its work."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.run import TICK_S
from penstock.simulation.session import Session
from penstock.simulation.simulate import open_session
from penstock.system.server import Server
from penstock.theory.kv_blocks import reuses
from penstock.workload.arrivals import BLOCK
from penstock.workload.jobs import Jobs, Requests
from penstock.workload.prefixes import MOST_NAMES
from penstock.workload.workload import Workload

Start = Literal["prefill", "mixed", "decode"]
PerPhase = tuple[float, float]
"""Of prefill, and of decode."""

Tokens = TypeVar("Tokens", float, Floats)

FEWEST_LOOKS = 40
"""Looks at a path before it tells anything."""

# a later arrival comes when every backlog has left, and is a time that can still be counted
_NEVER_S = 1e9
_LOOKS = 64  # at the path, about, before it is thinned
_WARMUP_LOOK, _FIRST_LOOK = 64, 2  # batches, or runs of equal ones, from one look to the next
_LONGEST_LOOK = 2**20
_STARVED = 4  # arrivals to every slot of a batch, after which decoding requests starve


class Path(NamedTuple):
    """The work under watch, at some ends of batches; shape (looks,) each."""

    time_s: Floats
    # Tokens of each phase that came, at their mean rate, less those that were done. The decodes of
    # a request come with it, although they wait for its prompt.
    prefill: Floats
    decode: Floats
    work: Floats  # both, each token at its worth: see `Backlog`
    arrived: Ints  # requests


class Backlog:
    """A server under a backlog, run a few batches at a time, and the path of its work.

    ``offered``: tokens/s that arrive for prefill and decode, without dropped requests. ``worth``:
    what a token of a prompt and of a decode count, their seconds over a mean token's.
    """

    def __init__(
        self,
        workload: Workload,
        server: Server,
        start: Start,
        initial: int,
        offered: PerPhase,
        worth: PerPhase,
    ) -> None:
        self.server = server
        self.reuses = reuses(workload, server)
        self.initial = initial
        self.slots = slots(server)
        self.offered = offered
        self.worth = worth
        renewals = _renewals(workload, server)
        self.session = open_session(workload, server, "summary", TICK_S, True, NEVER, renewals)
        names = workload.prefixes.rows * renewals if workload.prefixes else 0
        self.source = _flooded(_kept(_as_jobs(workload, names), self.session), self.initial)
        self.first = next(self.source)
        decoding = {"decode": self.initial}.get(start, 0)
        if start == "mixed":
            decoding = min(self.slots, self.initial)
            self.first = _staggered(self.first, decoding, workload.seed)
        self.session.add(self.first)
        if decoding:
            self.session.prefilled(decoding)
        here = self.first.first(self.initial)
        engine = server.outputs_of_prefill
        decodes = int(here.output.sum(dtype=np.int64)) - initial * engine
        self.begun = self._done()
        prompts = int(here.prompt.sum(dtype=np.int64))
        self.work = self._work(prompts - self.begun[0], decodes - self.begun[1])
        self.emptied = False
        self.steps = _WARMUP_LOOK
        self.looks = [self._point()]
        self.before: list[tuple[float, float, float, int]] = []

    @property
    def arrived(self) -> int:
        """Requests, the initial ones included."""
        return self.session.arrived

    @property
    def finished(self) -> int:
        """Requests."""
        return self.session.finished

    def replace(self, patience: int) -> bool:
        """Run until all that are here have left, so many have arrived, or nothing is left."""
        # False: some that were on their way out stay, as others left in the last half of the
        # patience.
        here = max(self.arrived, self.initial)
        left = 0
        earlier = 0
        while not self.emptied and left < here and self.arrived - here < patience:
            self.look()
            folded_away = self.session.folded_away
            left = max(left, folded_away)
            is_here = self.session.world.finish[left - folded_away : max(here - folded_away, 0)] < 0
            staying = int(np.count_nonzero(is_here))
            if not earlier or self.arrived - here < patience // 2:
                earlier = staying
            left = left + int(is_here.argmax()) if staying else here
        return self.emptied or left >= here or staying == earlier

    def step(self, steps: int) -> None:
        """Run so many batches; see whether nothing is left that would not fit into one."""
        session, server = self.session, self.server
        if session.run(final=False, steps=steps):
            session.fold(everything=False)
            session.add(next(self.source))
        if session.was_idle:  # everything had left
            self.emptied = True
        waiting, tokens = session.waiting
        if waiting + session.decoding <= self.slots:
            # Of prompts that begin alike it is not known what is left to compute.
            self.emptied |= self.reuses or tokens + session.decoding <= server.token_budget

    @property
    def served(self) -> bool:
        """Whether half of the initial work went because more was done than arrives on average."""
        _, prefill, decode, _ = self._point()
        return self._work(prefill, decode) < -self.work / 2

    def left(self, decodes: float) -> float:
        """Return the work that is there, where a waiting request has so many mean decodes."""
        waiting, tokens = self.session.waiting
        return self._work(tokens, self.session.decodes_left + waiting * decodes)

    def begin(self) -> None:
        """Begin the watch: forget the path so far, unless it is all there was."""
        if not self.emptied:
            self.before = self.looks
            self.looks = [self._point()]
            self.steps = _FIRST_LOOK
        self.enough_finished = self.finished + min(self.session.decoding, self.slots)
        self.enough_arrived = self.arrived + _STARVED * self.slots

    @property
    def seen_enough(self) -> bool:
        """Whether all that decoded at first have been replaced: a policy may cycle as long."""
        # Where none ever finish, because the policy lets them starve, enough arrivals do.
        turned_over = self.finished >= self.enough_finished or self.arrived >= self.enough_arrived
        return turned_over and len(self.looks) >= FEWEST_LOOKS

    def look(self) -> None:
        """Run some batches and note where the work is; ever more, so that the looks stay few."""
        self.step(self.steps)
        self.looks.append(self._point())
        if len(self.looks) > 2 * _LOOKS:
            self.looks = self.looks[::2]
            self.steps = min(2 * self.steps, _LONGEST_LOOK)

    @property
    def moved(self) -> float:
        """How far the work has moved, tokens."""
        (_, prefill, decode, _), (_, earlier_prefill, earlier_decode, _) = (
            self.looks[-1],
            self.looks[0],
        )
        return self._work(prefill - earlier_prefill, decode - earlier_decode)

    @property
    def gone_at_once(self) -> bool:
        """Whether everything had left before the watch had seen enough to tell how fast."""
        return self.emptied and len(self.looks) < FEWEST_LOOKS and bool(self.before)

    def remember(self) -> None:
        """Take the path before the watch, too: its whole tells the rate better than its end."""
        self.before, self.looks = [], [*self.before, *self.looks[1:]]

    def path(self) -> Path:
        """Return the looks, with work measured from the first."""
        time_s, prefill, decode, arrived = np.array(self.looks).T
        prefill, decode = prefill - prefill[0], decode - decode[0]
        return Path(time_s, prefill, decode, self._work(prefill, decode), arrived.astype(np.int64))

    def _point(self) -> tuple[float, float, float, int]:
        time_s, (prompts, decodes) = self.session.now * TICK_S, self._done()
        prefill = self.offered[0] * time_s - (prompts - self.begun[0])
        decode = self.offered[1] * time_s - (decodes - self.begun[1])
        return time_s, prefill, decode, self.arrived

    def _done(self) -> tuple[int, int]:
        """Return the tokens of prompts and of decodes done so far."""
        prompts = self.session.arrived_tokens - self.session.waiting[1]
        return prompts, self.session.useful - prompts

    def _work(self, prefill: Tokens, decode: Tokens) -> Tokens:
        """Return tokens of both phases at their worth."""
        return self.worth[0] * prefill + self.worth[1] * decode


def _renewals(workload: Workload, server: Server) -> int:
    """Return how often a recording that goes on and on has names of its own."""
    # Nobody asks the same again, so each repetition has, until those of the first have left the
    # cache: where names are more than memory holds, a repetition brings next to none.
    prefixes, usable = workload.prefixes, server.usable_blocks
    if prefixes is None or usable is None or not reuses(workload, server):
        return 1
    tokens = (np.unique(prefixes.ids).size or 1) * prefixes.block_size
    kept = usable * (server.memory.block_size if server.memory else 1)
    return 2 + min(kept // tokens, MOST_NAMES // (prefixes.rows + prefixes.ids.size))


def slots(server: Server) -> int:
    """Return the most requests in a batch."""
    return min(server.token_budget, server.max_batch_size or server.token_budget)


def _staggered(jobs: Jobs, count: int, seed: int) -> Jobs:
    """Shorten first requests, as many as fill a batch, to what a random one of their tokens leaves.

    Requests that all began at once could go on in step for ever.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, count]))
    output = jobs.output.copy()
    left = 1 + rng.random(count) * (output[:count] - 1)
    output[:count] = left.astype(np.int32)
    return dataclasses.replace(jobs, output=output)


def waits_as_prompts(server: Server) -> bool:
    """Return whether decodes that find no slot begin as prompts: see `EventSession.prefilled`."""
    return not server.by_phase


def _as_jobs(workload: Workload, names: int) -> Iterator[Jobs]:
    """Yield requests for ever, as jobs whose prompts have one of so many names after the other."""
    first = 0
    for requests in endless(workload):
        numbers = np.arange(first, first + requests.arrival_s.size)
        first += numbers.size
        yield Jobs.of_requests(requests, numbers % names if names else None)


def _kept(blocks: Iterator[Jobs], session: Session) -> Iterator[Jobs]:
    """Yield the requests that are not dropped, their outputs cut to the longest context."""
    for block in blocks:
        kept = session.keep(block)
        if kept.count:
            yield kept


def _flooded(blocks: Iterator[Jobs], initial: int) -> Iterator[Jobs]:
    """Yield requests of which the first are there at the start; the others come as they would."""
    parts: list[Jobs] = []
    while sum(block.count for block in parts) <= initial:
        parts.append(next(blocks))
    first = Jobs.joined(parts)
    origin = first.arrival_s[initial - 1]
    arrival_s = np.clip(first.arrival_s - origin, 0.0, _NEVER_S)
    yield dataclasses.replace(first, arrival_s=arrival_s)
    for block in blocks:
        arrival_s = np.minimum(block.arrival_s - origin, _NEVER_S)
        yield dataclasses.replace(block, arrival_s=arrival_s)


def endless(workload: Workload) -> Iterator[Requests]:
    """Yield requests for ever; a recording follows itself after a gap of the mean length."""
    if workload.rows is None:
        yield from workload.blocks()
        return
    period = workload.rows / workload.rate
    recorded = workload.requests(workload.rows)
    times = math.ceil(BLOCK / workload.rows)
    arrival_s = (recorded.arrival_s + period * np.arange(times)[:, None]).ravel()
    tiled = Requests.joined([recorded] * times)
    for again in itertools.count():
        yield tiled._replace(arrival_s=arrival_s + again * times * period)
