"""Unfold jobs: draw the path, the lengths and the delays of every request, for many jobs at once.

Each request that is under way in a job is a *token*; a wave is one visit of all tokens of all jobs,
so that the work is done by array operations over jobs. A fork opens a *frame* that its branches
share; a join closes it when all have come.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.inputs.arrays import Columns, Ints
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import LONGEST, Length
from penstock.workload.routes import Routes

Tokens = int | Length | str
"""A number, a distribution, ``job`` (the length that comes with the job) or ``rest`` (that less
one).
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What is drawn at each stage."""

    routes: Routes
    # Of each stage.
    prompt: tuple[Tokens, ...]
    output: tuple[Tokens, ...]
    delay_s: tuple[float | Length, ...]  # of each stage; a distribution counts milliseconds
    transfer_s: tuple[float, ...]  # of each stage, per prompt token of the request that released it
    context: str  # `new`, `grow` or `reuse`, as in `Workflow`

    @property
    def prefills(self) -> npt.NDArray[np.bool_]:
        """Whether requests of each stage have a prompt."""
        return np.array([not isinstance(tokens, int) or tokens > 0 for tokens in self.prompt])


class Streams:
    """A stream of random numbers for each stage and kind of draw: more of one shifts no other."""

    def __init__(self, seed: tuple[int, ...], stages: int) -> None:
        kinds = [sequence.spawn(5) for sequence in np.random.SeedSequence(seed).spawn(stages)]
        self.prompt, self.output, self.delay, self.branch, self.coin = (
            [np.random.default_rng(sequence[kind]) for sequence in kinds] for kind in range(5)
        )


def drawn(tokens: Tokens, rng: np.random.Generator, of_job: Ints, jobs: Ints) -> Ints | int:
    """Return the tokens of a request of each of some jobs, given the lengths that come with all."""
    if isinstance(tokens, int):
        return tokens
    if isinstance(tokens, Length):
        return tokens.sample(rng, jobs.size)
    return of_job[jobs] - (tokens == "rest")


@dataclasses.dataclass(frozen=True, eq=False)
class Context(Columns):
    """What requests go on with."""

    tokens: Ints
    holder: Ints  # the request whose replica has it in memory, -1 if there is none
    stored: Ints  # how many tokens of it are there


@dataclasses.dataclass(frozen=True, eq=False)
class Wave(Columns):
    """The tokens that make their next visit, by job; what the plan has no use for is None."""

    job: Ints
    stage: Ints
    pending: Ints
    frame: Ints | None  # innermost open fork, -1 outside of all
    context: Context | None
    released_by: Ints | None  # prompt tokens of the request that releases it


NONE = np.empty(0, np.int64)


@dataclasses.dataclass(eq=False)
class Frames(Columns):
    """Forks whose branches are under way, or were; a place for each."""

    outer: Ints  # the frame around it
    size: Ints  # its branches
    left: Ints  # branches that are yet to come to the join
    forked: Ints  # tokens of the context at the fork
    tokens: Ints  # of the context, with what branches added
    holder: Ints  # as in `Context`, of the branch that came first
    stored: Ints
    join: Ints  # the request that waits for it


def by_stage(stage: Ints) -> Iterator[tuple[int, slice | Ints]]:
    """Yield each stage that tokens are at, and their places."""
    if stage.size and (stage == stage[0]).all():
        yield int(stage[0]), slice(None)
        return
    for which in np.flatnonzero(np.bincount(stage)).tolist():
        yield which, np.flatnonzero(stage == which)


def rank_in_job(job: Ints) -> Ints:
    """Return how many tokens of the same job stand before each."""
    starts = np.flatnonzero(np.diff(job, prepend=-1))
    rank: Ints = np.arange(job.size) - np.repeat(starts, np.diff(starts, append=job.size))
    return rank


MOST_REQUESTS = 2**26
"""Requests unfolded at a time; a job that has more is taken for one without end."""

_Number = TypeVar("_Number", np.int32, np.uint32, np.float64)
Seconds = npt.NDArray[np.float64]


def unfold(
    plan: Plan, streams: Streams, arrival_s: Seconds, prompt: Ints, output: Ints, begin: int | Ints
) -> Jobs:
    """Return jobs that arrive at these times and begin at a stage, or each at one of its own."""
    # Forks around that stage count as done, so that a join waits for nobody there.
    unfolding = _Unfolding(plan, streams, prompt, output)
    wave = unfolding.roots(arrival_s.size, begin)
    while wave.job.size:
        wave = unfolding.onward(wave, *unfolding.visit(wave))
    return unfolding.table(arrival_s)


def requests_of(
    plan: Plan, streams: Streams, prompt: Ints, output: Ints, begin: int | Ints, most: int
) -> int:
    """Return how many requests `unfold` makes; once above ``most``, as many as there are then."""
    unfolding = _Unfolding(plan, streams, prompt, output)
    wave = unfolding.roots(prompt.size, begin)
    while wave.job.size and unfolding.requests <= most:
        wave = unfolding.onward(wave, *unfolding.visit(wave))
    return unfolding.requests


class _Unfolding:
    """Jobs on their way; requests are numbered in order of their wave until the table is made."""

    def __init__(self, plan: Plan, streams: Streams, prompt: Ints, output: Ints) -> None:
        self.plan, self.streams, self.routes = plan, streams, plan.routes
        self.job_prompt, self.job_output = prompt, output
        self.transfers = any(plan.transfer_s)
        self.delays = any(plan.delay_s)
        self.forks = any(plan.routes.forks)
        self.widest = 1  # requests that the end of one releases at most
        if self.forks:
            self.widest = max(map(len, plan.routes.targets))
        self.is_fork, self.is_join = np.array(plan.routes.forks), np.array(plan.routes.joins)
        self.prefills = plan.prefills
        self.frames = Frames(*[NONE] * 8)
        self.waves: list[dict[str, npt.NDArray[Any]]] = []
        self.requests = 0
        self.of_job = np.zeros(prompt.size, np.int64)
        self.visits = np.zeros((prompt.size, len(plan.prompt) * plan.routes.limited), np.int32)
        self.released: list[tuple[Ints, Ints]] = []  # parent, child
        # Parent, and the frame of the fork that its branch belongs to.
        self.joined: list[tuple[Ints, Ints]] = []
        self.before_siblings: list[Ints] = []  # requests after which a sibling comes

    def roots(self, jobs: int, begin: int | Ints) -> Wave:
        zero, none = np.zeros(jobs, np.int64), np.full(jobs, -1)
        if self.routes.limited:
            self.visits[np.arange(jobs), begin] = 1
        wave = Wave(
            np.arange(jobs), np.full(jobs, begin), zero, none, Context(zero, none, zero), zero
        )
        # What the plan has no use for is left out, here and so in all that follow.
        if not self.forks:
            wave = dataclasses.replace(wave, frame=None)
        if not self.transfers:
            wave = dataclasses.replace(wave, released_by=None)
        if self.plan.context == "new":
            wave = dataclasses.replace(wave, context=None)
        return wave

    def visit(self, wave: Wave) -> tuple[Ints, Ints]:
        """Draw a request for each token; return their prompts, context included, and outputs."""
        plan, streams, size = self.plan, self.streams, wave.job.size
        prompt, output = np.empty(size, np.int64), np.empty(size, np.int64)
        coin = np.empty(size, np.uint32)
        delay = np.zeros(size * self.delays)
        for stage, places in by_stage(wave.stage):
            jobs = wave.job[places]
            prompt[places] = drawn(plan.prompt[stage], streams.prompt[stage], self.job_prompt, jobs)
            output[places] = drawn(plan.output[stage], streams.output[stage], self.job_output, jobs)
            coin[places] = streams.coin[stage].integers(0, 2**32, jobs.size, np.uint32)
            if self.delays:
                delay[places] = self._delay_s(stage, jobs.size)
        rows: dict[str, npt.NDArray[Any]] = {
            "job": wave.job,
            "stage": wave.stage,
            "pending": wave.pending,
            "output": output,
            "coin": coin,
        }
        if self.delays:
            rows["delay_s"] = delay
        if wave.released_by is not None:
            rows["transfer_s"] = np.array(plan.transfer_s)[wave.stage] * wave.released_by
        self._stay_where_they_are(rows, output)
        if wave.context is not None:
            prefills = self.prefills[wave.stage]
            prompt += np.where(prefills, wave.context.tokens, 0)
            if int(prompt.max()) > LONGEST:
                raise InputError(
                    f"a prompt grows with its context to {prompt.max():,} tokens, but the longest "
                    f"is {LONGEST:,}; shorten the requests, or limit loops with most_visits"
                )
            rows["reuse"] = np.where(
                prefills, np.minimum(wave.context.stored, wave.context.tokens), 0
            )
            rows["holder"] = wave.context.holder
        rows["prompt"] = prompt
        rows["place"] = self._places(wave.job)
        self.waves.append(rows)
        self.requests += size
        if self.requests > MOST_REQUESTS:
            raise InputError(
                f"{self.job_prompt.size:,} jobs have more than {MOST_REQUESTS:,} requests, with no "
                "end in sight; lower the probabilities of loops, or limit them with most_visits"
            )
        return prompt, output

    def _delay_s(self, stage: int, requests: int) -> Seconds | float:
        """Return the delays of requests of a stage."""
        delay_s = self.plan.delay_s[stage]
        if isinstance(delay_s, Length):  # in milliseconds
            return delay_s.sample(self.streams.delay[stage], requests) / 1e3
        return delay_s

    def _stay_where_they_are(self, rows: dict[str, npt.NDArray[Any]], output: Ints) -> None:
        """Take the way to another pool from those for whom nothing of an output is left there."""
        goes_on = np.array([tokens == "rest" for tokens in self.plan.output])
        done = np.flatnonzero(goes_on[rows["stage"]] & (output == 0))
        for name in ("delay_s", "transfer_s"):
            if name in rows:
                rows[name][done] = 0

    def _places(self, job: Ints) -> Ints:
        """Return how many requests of the same job stand before each of a wave."""
        if not self.forks:
            places: Ints = self.of_job[job]
            self.of_job[job] += 1
            return places
        places = self.of_job[job] + rank_in_job(job)
        self.of_job += np.bincount(job, minlength=self.of_job.size)
        return places

    def onward(self, wave: Wave, prompt: Ints, output: Ints) -> Wave:
        """Return the tokens that the requests of this wave release."""
        chosen = self._chosen(wave)
        flat = chosen.ravel()
        taken = np.flatnonzero(flat >= 0)
        source = taken // self.widest
        rows = np.arange(self.requests - wave.job.size, self.requests)
        context = self._context_after(wave, prompt, output, rows)
        frame = self._frame_after(wave, chosen, context)
        released_by = None
        if self.transfers:
            released_by = prompt
        one = np.ones(wave.job.size, np.int64)
        going = Wave(wave.job, wave.stage, one, frame, context, released_by).where(source)
        going = dataclasses.replace(going, stage=flat[taken])
        if going.frame is None:
            self.released.append((rows[source], self.requests + np.arange(source.size)))
            return going
        return self._past_joins(going, going.frame, rows[source])

    def _chosen(self, wave: Wave) -> Ints:
        """Return the stages that each token goes on to, shape (tokens, widest); -1: none."""
        chosen = np.full((wave.job.size, self.widest), -1)
        if not self.routes.limited:
            for stage, places in by_stage(wave.stage):
                targets = self.routes.targets[stage]
                if self.routes.forks[stage]:
                    chosen[places, : len(targets)] = targets
                elif targets:
                    chosen[places, 0] = self._choice(stage, wave.job[places].size)
            return chosen
        for turn in self._turns(wave.job):
            for stage, within in by_stage(wave.stage[turn]):
                places = turn[within]
                jobs, targets = wave.job[places], self.routes.targets[stage]
                if self.routes.forks[stage]:
                    for branch, target in enumerate(targets):
                        goes = self.visits[jobs, target] < self.routes.limits[target]
                        chosen[places[goes], branch] = target
                        self.visits[jobs[goes], target] += 1
                elif targets:
                    chosen[places, 0] = self._limited_choice(stage, jobs)
        return chosen

    def _choice(self, stage: int, size: int) -> Ints | int:
        targets, reach = self.routes.targets[stage], self.routes.reach[stage]
        if len(targets) == 1 and reach[0] == 1:
            return targets[0]
        places: Ints = np.searchsorted(reach, self.streams.branch[stage].random(size), "right")
        return np.array([*targets, -1])[places]

    def _limited_choice(self, stage: int, jobs: Ints) -> Ints:
        """Choose among stages that each job may visit again; other chances are scaled up."""
        targets = np.array(self.routes.targets[stage])
        reach = np.append(self.routes.reach[stage], 1.0)
        room = np.ones((reach.size, jobs.size), np.bool_)
        room[:-1] = self.visits[jobs, targets[:, None]] < self.routes.limits[targets, None]
        reach = np.cumsum(np.diff(reach, prepend=0)[:, None] * room, axis=0)
        reach /= np.where(reach[-1] > 0, reach[-1], 1)
        certain = len(targets) == 1 and self.routes.reach[stage][0] == 1
        share = np.zeros(jobs.size)
        if not certain:
            share = self.streams.branch[stage].random(jobs.size)
        choice: Ints = np.append(targets, -1)[
            np.minimum((reach <= share).sum(axis=0), targets.size)
        ]
        goes = choice >= 0
        self.visits[jobs[goes], choice[goes]] += 1
        return choice

    def _turns(self, job: Ints) -> Iterator[Ints]:
        """Yield places of tokens, one of a job at a time: limits on visits bind the next one."""
        if not self.forks:
            yield np.arange(job.size)
            return
        rank = rank_in_job(job)
        for turn in range(int(rank.max()) + 1):
            yield np.flatnonzero(rank == turn)

    def _context_after(self, wave: Wave, prompt: Ints, output: Ints, rows: Ints) -> Context | None:
        """Return the context after each request; one without prompt leaves it where it was made."""
        if wave.context is None:
            return None
        before, prefills = wave.context, self.prefills[wave.stage]
        after = np.where(prefills, prompt, before.tokens) + output
        holder = np.where(prefills, rows, before.holder)
        return Context(after, holder, np.where(prefills, after, before.stored))

    def _frame_after(self, wave: Wave, chosen: Ints, context: Context | None) -> Ints | None:
        """Return the innermost fork that is open after each request."""
        if wave.frame is None:
            return None
        size = np.count_nonzero(chosen >= 0, axis=1)
        forks = self.is_fork[wave.stage] & (size > 0)
        frame = wave.frame.copy()
        tokens = np.zeros(wave.job.size, np.int64)
        if context is not None:
            tokens = context.tokens
        frame[forks] = self._opened(frame[forks], size[forks], tokens[forks])
        return frame

    def _opened(self, outer: Ints, size: Ints, context: Ints) -> Ints:
        """Open frames of so many branches; return their places."""
        none, first = np.full(size.size, -1), self.frames.size.size
        opened = Frames(outer, size, size, context, context, none, none, none)
        self.frames = Frames.joined([self.frames, opened])
        return np.arange(first, first + size.size)

    def _past_joins(self, going: Wave, frame: Ints, parent: Ints) -> Wave:
        """Hold back tokens at a join until the last branch is there; one of them goes on then."""
        waits = self.is_join[going.stage] & (frame >= 0)
        head = ~waits & (np.diff(parent, prepend=-1) != 0)
        before_sibling = ~waits & (np.diff(parent, append=-1) == 0)
        stays = ~waits
        if waits.any():
            come = np.flatnonzero(waits)
            closing = self._arrived(going, frame[come], parent[come], come)
            stays[closing] = True
            going = self._closed(going, frame, closing)
        row = self.requests + np.cumsum(stays) - 1
        self.released.append((parent[head], row[head]))
        self.before_siblings.append(row[before_sibling])
        if waits.any():
            self.frames.join[frame[closing]] = row[closing]
        return going.where(np.flatnonzero(stays))

    def _arrived(self, going: Wave, frame: Ints, parent: Ints, come: Ints) -> Ints:
        """Count the branches that have come; return the places of the last ones of their forks."""
        frames = self.frames
        self.joined.append((parent, frame))
        of, earliest, counts = np.unique(frame, return_index=True, return_counts=True)
        latest = come[frame.size - 1 - np.unique(frame[::-1], return_index=True)[1]]
        if going.context is not None:
            np.add.at(frames.tokens, frame, going.context.tokens[come] - frames.forked[frame])
            first = frames.left[of] == frames.size[of]
            came_first = going.context.where(come[earliest[first]])
            frames.holder[of[first]] = came_first.holder
            frames.stored[of[first]] = came_first.stored
        frames.left[of] -= counts
        return np.sort(latest[frames.left[of] == 0])

    def _closed(self, going: Wave, frame: Ints, closing: Ints) -> Wave:
        """Return tokens that leave a join in the frame around it, with all branches' context."""
        frames, of = self.frames, frame[closing]
        pending, around = going.pending.copy(), frame.copy()
        pending[closing], around[closing] = frames.size[of], frames.outer[of]
        context = going.context
        if context is not None:
            tokens, holder, stored = (
                column.copy() for column in (context.tokens, context.holder, context.stored)
            )
            tokens[closing], holder[closing] = frames.tokens[of], frames.holder[of]
            stored[closing] = frames.stored[of]
            context = Context(tokens, holder, stored)
        return dataclasses.replace(going, pending=pending, frame=around, context=context)

    def table(self, arrival_s: Seconds) -> Jobs:
        """Put the requests in order of job, then of visit."""
        first = np.zeros(arrival_s.size + 1, np.int64)
        np.cumsum(self.of_job, out=first[1:])
        order = np.concatenate([first[rows["job"]] + rows["place"] for rows in self.waves])

        def column(name: str, dtype: type[_Number]) -> npt.NDArray[_Number]:
            values = np.zeros(self.requests, dtype)
            if name in self.waves[0]:
                values[order] = np.concatenate([rows[name] for rows in self.waves])
            return values

        def offset(to: Ints, origin: Ints) -> npt.NDArray[np.int32]:
            offsets = np.zeros(self.requests, np.int32)
            offsets[order[origin]] = order[to] - order[origin]
            return offsets

        parents, children = (np.concatenate(part) for part in zip(*self.released, strict=True))
        if self.joined:
            waiting, frame = (np.concatenate(part) for part in zip(*self.joined, strict=True))
            parents, children = (
                np.append(parents, waiting),
                np.append(children, self.frames.join[frame]),
            )
        elder = np.concatenate([NONE, *self.before_siblings])
        reuse, context = np.zeros((2, self.requests), np.int32)
        if self.plan.context == "reuse":
            reuse = column("reuse", np.int32)
            holder = np.concatenate([rows["holder"] for rows in self.waves])
            context = offset(holder, np.arange(self.requests))
            context[reuse == 0] = 0
        return Jobs(
            arrival_s=arrival_s, workflow=np.zeros(arrival_s.size, np.int32), first_request=first,
            stage=column("stage", np.int32), prompt=column("prompt", np.int32),
            output=column("output", np.int32),
            reuse=reuse, context=context, delay_s=column("delay_s", np.float64),
            pending=column("pending", np.int32),
            child=offset(children, parents), sibling=offset(elder + 1, elder),
            coin=column("coin", np.uint32), sender=self._senders(offset, children, parents),
            transfer_s=column("transfer_s", np.float64) if self.transfers else None,
        )  # fmt: skip

    def _senders(
        self, offset: Callable[[Ints, Ints], npt.NDArray[np.int32]], children: Ints, parents: Ints
    ) -> npt.NDArray[np.int32] | None:
        """Return from whom requests that only decode get their KV memory, None where none does."""
        if self.prefills.all():
            return None
        stage = np.concatenate([rows["stage"] for rows in self.waves])
        decodes = ~self.prefills[stage[children]] & ~self.is_join[stage[children]]
        return offset(parents[decodes], children[decodes])
