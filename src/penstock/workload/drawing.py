"""Jobs of a workflow drawn at random, apart from any arrivals: for its means and for floods."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from penstock.errors import InputError
from penstock.workload.arrivals import BLOCK
from penstock.workload.beginnings import Beginnings
from penstock.workload.draws import Plan, Streams
from penstock.workload.jobs import Jobs
from penstock.workload.means import MOST_SAMPLED
from penstock.workload.pairs import Empirical, Lengths, Recorded
from penstock.workload.unfold import requests_of, unfold

_REQUESTS = 2**18  # to be unfolded at a time, about; so many fit a cache
_FEWEST_AT_A_TIME = 128  # jobs, however long they are: the time goes by visits, not by jobs
MOST_REQUESTS_OF_JOB = 2**14
"""On average: what `_FEWEST_AT_A_TIME` of them hold fits the memory, and is drawn in seconds."""


def at_random(lengths: Lengths) -> Lengths:
    """Return lengths that come with jobs, drawn at random, recorded or not."""
    return (
        Empirical(lengths.prompt_tokens, lengths.output_tokens)
        if isinstance(lengths, Recorded)
        else lengths
    )


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
