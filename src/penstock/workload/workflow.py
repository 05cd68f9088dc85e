"""Workflows: the graphs that agents' tasks follow from one call of a language model to the next."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats, Ints
from penstock.words import counted
from penstock.workload.drawing import Beginnings, Drawing, inherited
from penstock.workload.jobs import MOST_JOBS, Jobs, checked_seed, first_jobs
from penstock.workload.lengths import Length
from penstock.workload.means import MOST_SAMPLED, Means, Sample, sampled_jobs
from penstock.workload.patience import Clients, Patience
from penstock.workload.prefixes import Prefixes
from penstock.workload.routes import END, Routes, checked, forgotten_joins
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage, check_delay, check_name, check_stage, is_fork, released
from penstock.workload.unfold import Plan, Streams, unfold
from penstock.workload.workload import ClosedLoop, Workload

CONTEXTS = ("new", "grow", "reuse")


@dataclasses.dataclass(frozen=True, eq=False)
class Workflow:
    """A graph of stages that each arriving job follows, drawn anew for each.

    Paths, lengths and delays draw from streams of their own, so none depends on arrival rates,
    pools or policies.

    Parameters
    ----------
    name
        For tables, figures and messages.
    arrivals
        When jobs arrive, and the lengths that come with each.
    stages
        By name, in the order in which tables show them.
    first
        Where jobs begin; None: at the first of the stages. Or several stages, and the longest
        prompt of the jobs that begin at each: a job begins at the stage with the least that its
        prompt does not exceed; None: whatever its prompt.
    context
        ``new``: every call has the prompt of its stage and nothing else. ``grow``: before it, all
        prompts and outputs of the calls on its path so far; after a join, of all branches.
        ``reuse``: the same lengths, and what a call has in common with the call before it (after a
        join, with the branch whose call comes first) need not be computed again by a replica that
        still has it. An engine with a prefix cache finds it in either case, a policy of the paper
        with ``reuse`` only.
    priority
        Of its jobs, where theirs have none of their own: at engines whose queue goes by priority,
        the smaller is served first.
    found_by_engines
        Whether contexts are found by the caches of the engines that serve it, whether they ``grow``
        or are to be reused. A network sets it.
    """

    name: str
    arrivals: Workload
    stages: Mapping[str, Stage]
    first: str | Mapping[str, int | None] | None = dataclasses.field(default=None, kw_only=True)
    context: str = dataclasses.field(default="new", kw_only=True)
    priority: int = dataclasses.field(default=0, kw_only=True)
    found_by_engines: bool = dataclasses.field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        check_name("a workflow", self.name)
        if not isinstance(self.arrivals, Workload):
            raise InputError(
                f"the arrivals of {self.name} are {checks.shown(self.arrivals)}; give a Workload"
            )
        if self.loop is None:
            _ = self.arrivals.rate  # which must be known
        most = 2**31 - 1
        reason = "it is a rank, the smaller is served first"
        checks.whole(f"the priority of {self.name}", self.priority, -most, most, "", reason)
        if not isinstance(self.stages, Mapping) or not self.stages:
            raise InputError(
                f"the stages of {self.name} are {checks.shown(self.stages)}, so its jobs do "
                "nothing; give at least one by name"
            )
        object.__setattr__(self, "stages", dict(self.stages))
        if not checks.named(self.context, CONTEXTS):
            raise InputError(
                f"unknown context {checks.shown(self.context)} of "
                f"{self.name}{nearest(str(self.context), CONTEXTS)}"
            )
        for name, stage in self.stages.items():
            check_stage(self.name, name, stage, self.stages)
        for first in self.begins:
            if first not in self.stages:
                raise InputError(
                    f"{self.name} begins at the unknown stage {checks.shown(first)}"
                    f"{nearest(str(first), self.stages)}"
                )
        _ = self._plan.routes  # which are checked

    @classmethod
    def chain(
        cls,
        name: str,
        arrivals: Workload,
        calls: Sequence[tuple[str, int | Length | str, int | Length | str]],
        *,
        context: str = "new",
    ) -> Self:
        """Return a workflow of calls one after another.

        Parameters
        ----------
        name, arrivals, context
            As in `Workflow`.
        calls
            (pool, prompt, output) of each; their stages are called ``1``, ``2`` and so on.
        """
        last = len(calls)
        stages = {
            str(number): Stage(*call, then=END if number == last else str(number + 1))
            for number, call in enumerate(calls, start=1)
        }
        return cls(name, arrivals, stages, context=context)

    @classmethod
    def single(cls, workload: Workload, pool: str, *, name: str | None = None) -> Self:
        """Return a workflow of one stage, ``call``: the requests of the workload as they are."""
        return cls(name or workload.name, workload, {"call": Stage(pool, "job", "job")})

    @classmethod
    def by_length(
        cls, workload: Workload, pools: Mapping[str, int | None], *, name: str | None = None
    ) -> Self:
        """Return the requests of a workload, each at the pool for prompts of its length.

        All are of one stream, so the law of arrivals and lengths together is that of the workload.

        Parameters
        ----------
        workload
            Arrivals and lengths.
        pools
            The longest prompt that each pool gets, such as ``{"short": 2_000, "long": None}``; one
            has None, and gets all longer ones. Their names are those of the stages, too.
        name
            For tables; None: the workload's.
        """
        if not isinstance(pools, Mapping):
            raise InputError(
                f"pools by length are {checks.shown(pools)}; give the longest prompt of each, "
                "such as {'short': 2000, 'long': None}"
            )
        stages = {pool: Stage(pool, "job", "job") for pool in pools}
        return cls(name or workload.name, workload, stages, first=pools)

    @classmethod
    def disaggregated(
        cls,
        workload: Workload,
        *,
        prefill: str,
        decode: str,
        transfer_ms: float | Length = 0.0,
        transfer_ms_per_token: float = 0.0,
        name: str | None = None,
    ) -> Self:
        """Return the requests of a workload, prefilled at one pool and decoded at another.

        Parameters
        ----------
        workload
            Arrivals and lengths.
        prefill, decode
            Pools. The first output token is the end of prefill; the other pool makes the rest.
        transfer_ms, transfer_ms_per_token
            Time from one to the other, and the part of it that each prompt token adds.
        name
            For tables; None: the workload's.
        """
        if prefill == decode:
            raise InputError(
                f"prefill and decode are both at pool {checks.shown(prefill)}, so nothing is "
                "apart; name two pools, or send the requests to one as they are"
            )
        check_delay("transfer_ms", transfer_ms)
        decoding = Stage(
            decode, 0, "rest", delay_ms=transfer_ms, transfer_ms_per_token=transfer_ms_per_token
        )
        stages = {"prefill": Stage(prefill, "job", 1, then="decode"), "decode": decoding}
        return cls(name or workload.name, workload, stages)

    @property
    def rate(self) -> float:
        """Long-run jobs per second."""
        return self.arrivals.rate

    @property
    def begins(self) -> tuple[str, ...]:
        """The stages at which jobs begin."""
        return tuple(self._begins.longest)

    @functools.cached_property
    def _begins(self) -> Beginnings:
        return Beginnings.of(self.name, self.first, tuple(self.stages))

    @property
    def notices(self) -> tuple[str, ...]:
        """What reading the data brought up, what of it is not used, and stages that may lack a
        ``join``.
        """
        return (*self.arrivals.notices, *forgotten_joins(self._plan.routes))

    @property
    def front(self) -> list[str]:
        """What to know of recorded jobs before an answer is read."""
        return self.arrivals.front

    @property
    def loop(self) -> ClosedLoop | None:
        """The clients who send its jobs, each when its last one has ended; None: at a rate."""
        return self.arrivals.loop

    @property
    def patience(self) -> Patience | None:
        """The patience of the clients of each of its requests."""
        return self.arrivals.patience

    @property
    def ends(self) -> bool:
        """Whether jobs are recorded, so that they come to an end."""
        return self.arrivals.rows is not None

    @property
    def reuses(self) -> bool:
        """Whether calls go on with the context of earlier ones."""
        return self.context == "reuse" or self.found_by_engines

    @property
    def goes_on(self) -> bool:
        """Whether calls have the context of earlier ones in their prompts."""
        return self.context != "new"

    @property
    def prefixes(self) -> Prefixes | None:
        """What recorded prompts have in common, where that is known."""
        return self.arrivals.prefixes

    @property
    def most_requests(self) -> Floats:
        """Shape (stages,), requests of each stage that one job can have at most, or a little more;
        infinite for loops without limit.
        """
        return self._plan.routes.most_requests()

    @property
    def branches(self) -> Ints:
        """Shape (stages,), how many branches each stage waits for at most; 0 where it is no
        join.
        """
        return self._plan.routes.branches()

    def served_by_engines(self, found_by_caches: bool) -> Self:
        """Return the same workflow, whose contexts the caches of engines find, or do not."""
        if found_by_caches == self.found_by_engines:
            return self
        return dataclasses.replace(self, found_by_engines=found_by_caches)

    def with_patience(self, patience: Patience | None) -> Self:
        """Return the same workflow, whose clients wait so long at each call."""
        return dataclasses.replace(self, arrivals=self.arrivals.with_patience(patience))

    def with_load(self, factor: float) -> Self:
        """Return the same workflow with its arrival rate times a factor."""
        checks.number(
            "the factor on the load", factor, 1e-9, 1e9, "", "it multiplies the arrival rate"
        )
        return dataclasses.replace(self, arrivals=self.arrivals.with_rate(self.rate * factor))

    def describe(self) -> str:
        """Say in a few words what it is."""
        count = len(self.stages)
        return f"{self.name}: {self.arrivals.describe()}, {counted(count, 'stage')}"

    def blocks(self, seed: int | None = None) -> Iterator[Jobs]:
        """Yield the jobs in order of arrival, a block at a time, for ever or until a recording
        ends.

        Arrivals, and the lengths that come with jobs, are exactly those of the workload.

        Parameters
        ----------
        seed
            For everything random; None: the workload's own.
        """
        arrivals = self.arrivals
        if seed is not None:
            arrivals = arrivals.with_seed(seed)
        streams = Streams((arrivals.seed, 2), len(self.stages))
        clients = Clients(arrivals.patience, arrivals.seed)
        plan, recorded = self._plan, arrivals.prefixes is not None
        at_a_time = self._drawing.at_a_time
        done = 0
        for block in arrivals.blocks():
            for start in range(0, block.arrival_s.size, at_a_time):
                some = block.where(slice(start, start + at_a_time))
                lengths = some.prompt_tokens, some.output_tokens
                jobs = unfold(
                    plan, streams, some.arrival_s, *lengths, self._begins.places(some.prompt_tokens)
                )
                first = done if recorded else None
                done += jobs.count
                jobs = inherited(jobs, some, plan.prompt, plan.output, self.priority, first)
                yield clients.of(jobs)

    def jobs(self, count: int, seed: int | None = None) -> Jobs:
        """Return the first ``count`` jobs."""
        return first_jobs(self.blocks(seed), count, self.name)

    def flooded(self, stage: str, count: int, seed: int) -> Jobs:
        """Return jobs that are all there at time 0 and begin at a stage.

        Forks around it count as done, so a join that is reached so waits for nobody. Lengths that
        come with a job are drawn at random, from the recording if they are recorded; those that
        begin there by their prompts where prompts say so.
        """
        if stage not in self.stages:
            raise InputError(
                f"{self.name} cannot be flooded at the unknown stage {checks.shown(stage)}"
                f"{nearest(str(stage), self.stages)}"
            )
        count = checks.whole("the number of jobs", count, 1, MOST_JOBS, "", "that many are made")
        seed = checked_seed(seed)
        jobs = Jobs.joined(list(self._drawing.jobs(count, (seed, 3), stage)))
        begins = jobs.first_request[:-1]
        jobs.delay_s[begins] = 0
        if jobs.transfer_s is not None:
            jobs.transfer_s[begins] = 0
        return jobs

    def means(self) -> Means:
        """Return mean visits and lengths of the stages.

        Exact, but for visits where some are limited and for prompts where the context grows: those
        are means of at most `MOST_SAMPLED` jobs, fewer where jobs are long.
        """
        return self._means

    @functools.cached_property
    def _plan(self) -> Plan:
        stages = self.stages.values()
        return Plan(
            routes=self._routes(),
            prompt=tuple(_tokens(stage.prompt) for stage in stages),
            output=tuple(_tokens(stage.output) for stage in stages),
            delay_s=tuple(
                s.delay_ms if isinstance(s.delay_ms, Length) else s.delay_ms / 1e3 for s in stages
            ),
            transfer_s=tuple(stage.transfer_ms_per_token / 1e3 for stage in stages),
            context="reuse" if self.reuses else self.context,
        )

    def _routes(self) -> Routes:
        index = {name: number for number, name in enumerate(self.stages)}
        edges = [released(stage) for stage in self.stages.values()]
        shares = (1.0,)
        if len(self.begins) > 1:
            prompts, _ = self.arrivals.lengths.at_random().sample(
                np.random.default_rng((0, 5)), MOST_SAMPLED
            )
            counts = np.bincount(self._begins.places(prompts), minlength=len(self.stages))
            shares = tuple(counts[[index[each] for each in self.begins]] / prompts.size)
        routes = Routes(
            workflow=self.name,
            names=tuple(self.stages),
            firsts=tuple(index[stage] for stage in self.begins),
            shares=shares,
            targets=tuple(tuple(index[target] for target, _ in edge) for edge in edges),
            chances=tuple(tuple(chance for _, chance in edge) for edge in edges),
            forks=tuple(is_fork(stage) for stage in self.stages.values()),
            joins=tuple(stage.join for stage in self.stages.values()),
            most_visits=tuple(
                None if stage.most_visits is None else int(stage.most_visits)
                for stage in self.stages.values()
            ),
        )
        return checked(routes)

    @functools.cached_property
    def _drawing(self) -> Drawing:
        return Drawing(self.name, self._plan, self._begins, self.arrivals.lengths.at_random())

    @functools.cached_property
    def _means(self) -> Means:
        routes, stages = self._plan.routes, self.stages.values()
        # By formula, as far as one goes.
        prompt, output, both, max_prompt, max_output = np.array(
            [self._lengths_of(stage) for stage in stages]
        ).T
        external = np.zeros(len(stages))
        external[list(routes.firsts)] = routes.shares
        onward, sampled, covariance = np.empty(0), None, np.zeros((len(stages), len(stages)))

        # From a sample: contexts that grow, visits where they are limited, and who has both phases.
        by_length = len(self.begins) > 1
        if self.context != "new" or routes.limited or np.isnan(both).any() or by_length:
            sampled = sampled_jobs(self._drawing.requests_of_job)
            sample = Sample.of(self._drawing.jobs(sampled, (self.arrivals.seed, 4)), len(stages))
            covariance, both = sample.covariance, np.where(np.isnan(both), sample.both, both)
            onward = sample.onward
            if by_length:
                external, prompt, output = sample.external, sample.prompt, sample.output
                both = sample.both
                max_prompt = self._begins.most(max_prompt, self.stages)
            if self.context != "new":
                prompt = sample.prompt
                most = float(
                    (routes.most_requests() * np.maximum(max_prompt + max_output, 1)).sum()
                )
                max_prompt = np.where(max_prompt > 0, most, 0)
        if not routes.limited:
            onward = routes.onward
        if routes.limited or by_length:
            visits = np.asarray(np.linalg.solve(np.eye(len(stages)) - onward.T, external))
        else:
            visits = routes.visits
        return Means(
            external,
            onward,
            visits,
            prompt,
            output,
            both,
            max_prompt,
            max_output,
            sampled,
            covariance,
        )

    @property
    def grows_without_end(self) -> bool:
        """Whether contexts grow round a loop that nothing limits, though each stage adds no more
        than so much.
        """
        added = [self._lengths_of(stage)[3:] for stage in self.stages.values()]
        return bool(np.isfinite(added).all()) and not self.means().bounded

    def _lengths_of(self, stage: Stage) -> tuple[float, float, float, float, float]:
        """Return mean prompt and output, share of requests with both (NaN: unknown), and limits."""
        drawn = self.arrivals.lengths
        prompt, most_prompt = _mean_and_most(stage.prompt, drawn.mean_prompt, drawn.max_prompt)
        output, most_output = _mean_and_most(stage.output, drawn.mean_output, drawn.max_output)
        both = float(prompt > 0 and output > 0)
        if both and stage.output == "rest" and drawn.min_output < 2:
            both = float("nan")
        return prompt, output, both, most_prompt, most_output


def _tokens(tokens: int | Length | str) -> int | Length | str:
    """Return tokens as a whole number, not 10.0; distributions and words as they are."""
    if isinstance(tokens, Length | str):
        return tokens
    return int(tokens)


def _mean_and_most(
    tokens: int | Length | str, mean_of_job: float, most_of_job: int | None
) -> tuple[float, float]:
    """Return the mean and the upper limit of a length of a stage."""
    if not isinstance(tokens, Length | str):
        return float(tokens), float(tokens)
    mean, most = (
        (tokens.mean, tokens.max) if isinstance(tokens, Length) else (mean_of_job, most_of_job)
    )
    less = tokens == "rest"
    return mean - less, float("inf") if most is None else float(most - less)


@functools.lru_cache(maxsize=4)  # each mean of one answer is taken over the same
def sample(workflow: Workflow | Sessions, most: int) -> tuple[Jobs, ...]:
    """Return a workflow's first jobs, at most so many, block by block; of sessions all."""
    if isinstance(workflow, Sessions):
        return (workflow.recorded,)
    jobs: list[Jobs] = []
    for block in workflow.blocks():
        jobs.append(block.first(most))
        most -= jobs[-1].count
        if not most:
            break
    return tuple(jobs)
