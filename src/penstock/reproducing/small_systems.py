"""Small systems to audit a policy in, the smallest first, and random ones; and what waited before
each batch.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine
from penstock.system.scheduler import Scheduler
from penstock.system.server import Convention, Server
from penstock.workload.workload import Workload


class System(NamedTuple):
    """Requests (arrival ticks, prompt and output tokens) and a token budget."""

    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    budget: int

    def fits(self, policy: Scheduler) -> bool:
        """Whether the policy can serve it: some engines cut no prompt."""
        return policy.cuts_prompts or not policy.has_token_budget or max(self.prompt) <= self.budget

    def run(self, policy: Scheduler, convention: Convention = "paper") -> Run:
        """Serve it, a tick a batch."""
        server = Server(Affine(c=1.0, a=0.0), self.budget, policy=policy, convention=convention)
        workload = Workload.from_arrays(self.arrival, self.prompt, self.output)
        return simulate(workload, server, record="allocations", tick_s=1.0)

    def in_words(self) -> str:
        """Return its requests in words: ``A 1+2 at 0`` has a prompt token, two output tokens, and
        comes at tick 0.
        """
        requests = zip(self.arrival, self.prompt, self.output, strict=True)
        words = (
            f"{chr(65 + i)} {prompt}+{output} at {at}"
            for i, (at, prompt, output) in enumerate(requests)
        )
        return f"{', '.join(words)}; token budget {self.budget}"


class Small(Section):
    """How large the largest of the small systems are: requests, all their tokens, ticks between two
    arrivals.
    """

    requests: Annotated[Whole, Field(ge=1, le=50)] = 3
    tokens: Annotated[Whole, Field(ge=2, le=100)] = 7
    gap: Annotated[Whole, Field(ge=0, le=100)] = 2


class Random(Section):
    """How many random systems, and the most of what they have: requests, ticks between arrivals,
    tokens.
    """

    systems: Annotated[Whole, Field(ge=1, le=20_000)] = 300
    requests: Annotated[Whole, Field(ge=1, le=100)] = 12
    gap: Annotated[Whole, Field(ge=1, le=10_000)] = 8
    tokens: Annotated[Whole, Field(ge=1, le=200)] = 30
    token_budget: Annotated[Whole, Field(ge=1, le=100_000)] = 40
    seed: Annotated[Whole, Field(ge=0)] = 0


MOST_SYSTEMS = 100_000
"""Small ones that are audited within a minute or two."""


def count_small(most: Small) -> int:
    """Return how many small systems there are."""
    return sum(
        tokens * (most.gap + 1) ** (n - 1) * math.comb(tokens - 1, 2 * n - 1)
        for n in range(1, most.requests + 1)
        for tokens in range(2 * n, most.tokens + 1)
    )


def small_systems(most: Small) -> Iterator[System]:
    """Yield all small systems: fewest requests first, then fewest tokens, smallest budget, closest
    arrivals.

    Raises
    ------
    InputError
        If there are more than can be gone through.
    """
    if (count := count_small(most)) > MOST_SYSTEMS:
        raise InputError(
            f"reproduce.small: there are {count:.3g} systems as small as that, of which at most "
            f"{MOST_SYSTEMS:,} can be audited; lower small.requests, small.tokens or small.gap"
        )
    for n in range(1, min(most.requests, most.tokens // 2) + 1):
        gaps = sorted(itertools.product(range(most.gap + 1), repeat=n - 1), key=sum)
        for tokens in range(2 * n, most.tokens + 1):
            for budget, gap in itertools.product(range(1, tokens + 1), gaps):
                for fences in itertools.combinations(range(1, tokens), 2 * n - 1):
                    lengths = [b - a for a, b in itertools.pairwise((0, *fences, tokens))]
                    yield System(
                        (0, *itertools.accumulate(gap)),
                        tuple(lengths[:n]),
                        tuple(lengths[n:]),
                        budget,
                    )


def random_systems(most: Random) -> Iterator[System]:
    """Yield larger ones, crowded and sparse, of short and of long requests."""
    rng = np.random.default_rng(most.seed)
    for _ in range(most.systems):
        n = int(rng.integers(1, most.requests + 1))
        gaps = rng.integers(0, rng.integers(1, most.gap + 1) + 1, n - 1)
        prompt, output = (
            rng.integers(1, longest + 1, n) for longest in rng.integers(1, most.tokens + 1, 2)
        )
        arrival = (0, *np.cumsum(gaps).tolist())
        budget = int(rng.integers(1, most.token_budget + 1))
        yield System(arrival, tuple(prompt.tolist()), tuple(output.tolist()), budget)


class Waiting(NamedTuple):
    """For each batch of a run: tokens served and tokens that waited and could have been, by phase.

    ``cut`` says whether some prompt was spread over several batches.
    """

    prefill: Ints
    decode: Ints
    prompt_tokens: Ints
    decodes: Ints
    cut: bool

    @property
    def load(self) -> Ints:
        """Tokens in the batch."""
        return self.prefill + self.decode

    @property
    def supply(self) -> Ints:
        """What a batch without a limit would carry: the left-hand side of the paper's condition."""
        return self.prompt_tokens + self.decodes

    def short(self, budget: int) -> npt.NDArray[np.bool_]:
        """Whether the batch has less than the budget although the supply is at least that."""
        return (self.supply >= budget) & (self.load < budget)


def waiting(
    run: Run, arrival: Sequence[int], prompt: Sequence[int], output: Sequence[int]
) -> Waiting:
    """Rebuild what waited before each batch of a run without a max batch size, from its
    allocations.
    """
    assert run.batch_rows is not None
    assert run.allocation_rows is not None
    came, prompts, decodes = (np.asarray(values, np.int64) for values in (arrival, prompt, output))
    if run.server.convention == "engine":
        decodes = decodes - 1
    batch, request, prefill, decode = np.asarray(run.allocation_rows, np.int64).T
    served_tokens = np.zeros((2, run.batch_rows.shape[0], came.size), np.int64)
    served_tokens[0, batch, request], served_tokens[1, batch, request] = prefill, decode
    before = served_tokens.cumsum(axis=1) - served_tokens
    there = came <= run.batch_rows[:, :1]
    left = np.where(there, prompts - before[0], 0)
    ready = there & (prompts == before[0]) & (before[1] < decodes)
    served = served_tokens.sum(axis=2)
    cut = bool(((served_tokens[0] > 0).sum(axis=0) > 1).any())
    return Waiting(served[0], served[1], left.sum(axis=1), ready.sum(axis=1), cut)
