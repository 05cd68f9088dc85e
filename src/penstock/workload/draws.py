"""What is drawn at each stage of a workflow, and from which random numbers."""

import dataclasses

import numpy as np
import numpy.typing as npt

from penstock.inputs.arrays import Ints
from penstock.workload.lengths import Length
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
