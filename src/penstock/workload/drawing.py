"""Jobs of a workflow drawn at random, apart from any arrivals: for its means and for floods."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.workload.arrivals import BLOCK
from penstock.workload.jobs import Jobs, Requests
from penstock.workload.lengths import LONGEST, Empirical, Lengths
from penstock.workload.means import MOST_SAMPLED
from penstock.workload.stage import Stage, released
from penstock.workload.unfold import Plan, Streams, Tokens, requests_of, unfold


@dataclasses.dataclass(frozen=True)
class Beginnings:
    """The stages at which jobs begin."""

    longest: dict[str, float]  # the longest prompt of the jobs that begin at each, rising
    stages: tuple[str, ...]  # all stages of the workflow

    @classmethod
    def of(
        cls, workflow: str, first: str | Mapping[str, int | None] | None, stages: tuple[str, ...]
    ) -> "Beginnings":
        """Return what ``first`` of `Workflow` says."""
        if not isinstance(first, Mapping):
            if first is None:
                first = stages[0]
            return cls({first: np.inf}, stages)
        reason = "it is a prompt; give each stage another, and one of them null, for all longer"
        limits = {
            stage: np.inf
            if longest is None
            else checks.whole(f"the longest prompt of {stage}", longest, 1, LONGEST, "", reason)
            for stage, longest in first.items()
        }
        if sorted(limits.values())[-1:] != [np.inf] or len(set(limits.values())) < len(limits):
            raise InputError(
                f"the longest prompts of {workflow} are {checks.shown(dict(first))}, so "
                f"where each job begins is unclear; {reason.partition('; ')[2]}"
            )
        return cls(dict(sorted(limits.items(), key=lambda pair: pair[1])), stages)

    def places(self, prompt: Ints) -> Ints:
        """Return the place of the stage at which each job begins, by the prompt it comes with."""
        limits = np.array(list(self.longest.values()))
        places = np.array([self.stages.index(stage) for stage in self.longest])
        begins: Ints = places[np.searchsorted(limits, prompt, "left")]
        return begins

    def most(self, max_prompt: Floats, stages: Mapping[str, Stage]) -> Floats:
        """Return upper limits of prompts, where those of jobs that begin at a stage limit them."""
        most = max_prompt.copy()
        targets = {target for stage in stages.values() for target, _ in released(stage)}
        for place, (name, stage) in enumerate(stages.items()):
            if stage.prompt == "job" and name in self.longest and name not in targets:
                most[place] = min(most[place], self.longest[name])
        return most


_REQUESTS = 2**18  # to be unfolded at a time, about; so many fit a cache
_FEWEST_AT_A_TIME = 128  # jobs, however long they are: the time goes by visits, not by jobs
MOST_REQUESTS_OF_JOB = 2**14
"""On average: what `_FEWEST_AT_A_TIME` of them hold fits the memory, and is drawn in seconds."""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """What jobs of a workflow are drawn from."""

    workflow: str
    plan: Plan
    begins: Beginnings
    lengths: Lengths  # what comes with jobs, drawn at random

    @functools.cached_property
    def at_a_time(self) -> int:
        """Jobs unfolded at a time: the workflow's own number, not that of the jobs asked for."""
        fitting = np.log2(_REQUESTS / self.requests_of_job)
        return 1 << int(np.clip(fitting, np.log2(_FEWEST_AT_A_TIME), np.log2(BLOCK)))

    @functools.cached_property
    def requests_of_job(self) -> float:
        """Mean requests of a job, if so many can be drawn; else of a few if no formula gives it."""
        routes = self.plan.routes
        limited = routes.limited
        mean = self._requests_of_few(256, 1024) if limited else float(routes.visits.sum())
        if limited and mean > 1024:  # fewer do for longer ones
            mean = self._requests_of_few(32, MOST_REQUESTS_OF_JOB)
        if mean > MOST_REQUESTS_OF_JOB:
            many = f"more than {MOST_REQUESTS_OF_JOB:,}" if limited else f"{mean:,.0f}"
            raise InputError(
                f"a job of {self.workflow} has {many} requests on average, but jobs are drawn "
                f"whole, of at most {MOST_REQUESTS_OF_JOB:,}; lower the probabilities of loops, or "
                "most_visits"
            )
        return mean

    def _requests_of_few(self, jobs: int, most: int) -> float:
        """Return the mean requests of so many jobs, or a number above ``most`` if that is more."""
        drawn = self.lengths.sample(np.random.default_rng((0, 1)), jobs)
        streams = Streams((0,), len(self.begins.stages))
        begin = self.begins.places(drawn[0])
        return requests_of(self.plan, streams, *drawn, begin, most * jobs) / jobs

    def jobs(self, count: int, seed: tuple[int, ...], stage: str | None = None) -> Iterator[Jobs]:
        """Yield jobs at time 0 of random lengths, all begun at a stage, or each where it would."""
        stages = self.begins.stages
        streams, rng = Streams(seed, len(stages)), np.random.default_rng((*seed, 1))
        lengths = self.lengths
        if stage in self.begins.longest and len(self.begins.longest) > 1:
            lengths = self._beginning_at(stage)
        # in full, so that the first jobs do not depend on how many there are
        for done in range(0, count, self.at_a_time):
            drawn = lengths.sample(rng, self.at_a_time)
            begin = self.begins.places(drawn[0]) if stage is None else stages.index(stage)
            jobs = unfold(self.plan, streams, np.zeros(self.at_a_time), *drawn, begin)
            yield jobs.first(count - done)

    def _beginning_at(self, stage: str) -> Empirical:
        """Return lengths of jobs that begin at a stage by their prompts: those of many drawn."""
        if isinstance(self.lengths, Empirical):
            prompt, output = self.lengths.prompt_tokens, self.lengths.output_tokens
        else:
            prompt, output = self.lengths.sample(np.random.default_rng((0, 5)), MOST_SAMPLED)
        here = self.begins.places(prompt) == self.begins.stages.index(stage)
        if not here.any():
            raise InputError(
                f"none of {prompt.size:,} prompts of {self.workflow} begins at {stage!r}, so what "
                "it carries is not known; change the longest prompts of its stages"
            )
        return Empirical(prompt[here], output[here])


def inherited(
    jobs: Jobs,
    requests: Requests,
    prompt: Sequence[Tokens],
    output: Sequence[Tokens],
    priority: int,
    first_prefix: int | None,
) -> Jobs:
    """Return jobs with what their requests have from those that they came with."""
    # Stages that draw ``job`` have the requests' lengths, declared tokens and recorded prompt.
    # ``priority`` is of jobs whose request has none; ``first_prefix`` is the first recorded prompt,
    # None: none.
    declared = prefix = None
    ranks: npt.NDArray[np.int32] | None = None
    if requests.priority is not None:
        ranks = requests.priority[jobs.job].astype(np.int32)
    elif priority != 0:
        ranks = np.full(jobs.requests, priority, np.int32)
    if requests.declared is not None:
        more = requests.declared - requests.output_tokens
        spared = np.array([tokens in ("job", "rest") for tokens in output])[jobs.stage]
        declared = jobs.output + np.where(spared, more[jobs.job], 0).astype(np.int32)
    if first_prefix is not None:
        of_job = np.array([tokens == "job" for tokens in prompt])[jobs.stage]
        prefix = np.where(of_job & (jobs.reuse == 0), first_prefix + jobs.job, -1).astype(np.int32)
    return dataclasses.replace(jobs, priority=ranks, declared=declared, prefix=prefix)
