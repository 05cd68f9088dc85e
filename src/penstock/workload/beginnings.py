"""Where the jobs of a workflow begin: at one stage, or each by the length of its prompt."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.workload.lengths import LONGEST
from penstock.workload.stage import Stage, released


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
            return cls({stages[0] if first is None else first: np.inf}, stages)
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
