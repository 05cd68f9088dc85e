"""The mean backlog of a server: bounds by the Foster function of Appendix C, corrected.

The paper's function is the unprocessed tokens |X| and a small multiple of a square. It grows while
a batch runs, since tokens leave |X| when their batch starts. The work

    W = |X| + (b_max / t_bmax) (seconds left of the batch that runs)

does not. Let requests come as a Poisson process of rate lambda, with S forward tokens each. W rises
by S with each. It falls at the rate b_max / t_bmax, but for U: what this rate would have processed
beyond what the server does, t_b b_max / t_bmax - b at the start of a batch of b tokens, and all of
it while the server idles. In the long run U makes up for the spare rate, b_max / t_bmax - lambda
E[S]. Setting the mean change of W^2 to 0 gives Kingman's

    2 (b_max / t_bmax - lambda E[S]) E[W] = lambda E[S^2] + (mean of 2 W U + U^2 per second).

U is not below 0 if full batches are the fastest per token, and at most b_max if none takes longer.
It is 0 at full batches. A batch that is not full leaves no more than b_max - 1 tokens that could be
in it, so at most that many of prompts, and as many requests that decode, each with at most d more.
Hence

    low = lambda E[S^2] / (2 spare),    high = low + b_max / 2 + (b_max - 1) (1 + d).
"""

import dataclasses
from typing import Annotated

import numpy as np

from penstock.show.answers import AsData, Meaning, computed
from penstock.system.server import Server
from penstock.theory import hypotheses as conditions
from penstock.theory.hypotheses import Hypothesis
from penstock.theory.load import Load
from penstock.theory.moments import mean_of, mean_product
from penstock.workload.arrivals import Poisson
from penstock.workload.lengths import Empirical, Independent, Lengths
from penstock.workload.workload import Workload

_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class MeanBacklog(AsData):
    """Bounds of the long-run mean of the work that a server has before it (Appendix C, corrected).

    The work is the tokens of all requests that are in no batch yet, and of the batch that runs what
    full batches would process in the seconds that it still takes.

    Attributes
    ----------
    hypotheses
        What the bounds ask for, those of Theorem 1(b) first.
    """

    low: Annotated[float | None, Meaning("Tokens; None where a hypothesis fails.")]
    high: Annotated[float | None, Meaning("Tokens; None where a hypothesis fails.")]
    hypotheses: tuple[Hypothesis, ...]

    @computed()
    def failed(self) -> list[str]:
        """The hypotheses that fail, and why."""
        return [f"{h.name}: {h.why}" for h in self.hypotheses if not h.held]


def mean_backlog(load: Load) -> MeanBacklog:
    """Return the bounds for a server with a load."""
    workload, server = load.workload, load.server
    hypotheses = (
        *conditions.of_requests(load.workload),
        *conditions.of_replica(load),
        _poisson(workload),
        _by_lines(server),
        _full_batches_are_best(server),
    )
    longest = workload.lengths.max_output
    if longest is None or not all(h.held for h in hypotheses):
        return MeanBacklog(None, None, hypotheses)
    squares = _mean_square(workload.lengths, server)
    name = "mean square of lengths is known"
    if squares is None:
        why = "it is not; take a distribution of Penstock's"
        return MeanBacklog(None, None, (*hypotheses, Hypothesis(name, False, why)))
    hypotheses = (*hypotheses, Hypothesis(name, True, "by the distribution"))
    spare = server.full_batch_rate - load.offered_tokens_per_s
    least, most = (load.arrival_rate * square / (2 * spare) for square in squares)
    budget = server.token_budget
    decodes = max(longest - server.outputs_of_prefill, 0)
    return MeanBacklog(least, most + budget / 2 + (budget - 1) * (1 + decodes), hypotheses)


def _mean_square(lengths: Lengths, server: Server) -> tuple[float, float] | None:
    """Return bounds of the mean square of the forward tokens of a request; None: not known."""
    last = server.outputs_of_prefill
    if isinstance(lengths, Empirical):
        tokens = lengths.prompt_tokens + lengths.output_tokens - last
        square = float(np.square(tokens.astype(np.float64)).mean())
        return square, square
    if not isinstance(lengths, Independent):
        return None
    prompts = mean_of(np.square, lengths.prompt)
    decodes = mean_of(lambda output: np.square(output - last), lengths.output)
    if prompts is None or decodes is None:
        return None
    products = (product - last * lengths.mean_prompt for product in mean_product(lengths))
    low, high = (p + 2 * x + d for p, x, d in zip(prompts, products, decodes, strict=True))
    return low, high


def _poisson(workload: Workload) -> Hypothesis:
    """Arrivals see time averages, and the work that they bring has a known mean square."""
    if isinstance(workload.arrivals, Poisson):
        return Hypothesis("Poisson arrivals", True, "they are")
    why = "they are not; the mean square of a renewal's work is another"
    return Hypothesis("Poisson arrivals", False, why)


def _by_lines(server: Server) -> Hypothesis:
    """Batches are formed by the two phases, once the last has ended, and timed by token load."""
    if server.by_lines and not server.policy.batching.ahead:
        why = "by phases, one after the other, with times by token load"
        return Hypothesis("batches as in the paper", True, why)
    why = "an engine's rules, KV memory, priorities or attention decide; nothing is shown"
    return Hypothesis("batches as in the paper", False, why)


def _full_batches_are_best(server: Server) -> Hypothesis:
    """No batch carries more tokens/s than a full one (Assumption 1), and none takes longer."""
    full, budget = server.full_batch_rate, server.token_budget
    best, capacity = server.batch_time.best_load(budget)
    seconds = server.batch_time.table(budget)
    name = "full batches are the fastest per token and the slowest"
    if capacity > full * (1 + _ROUNDING):
        why = f"batches of {best:,} tokens carry more: lower the token budget to {best:,}"
        return Hypothesis(name, False, why)
    if seconds.max() > seconds[-1] * (1 + _ROUNDING):
        longer = int(seconds.argmax())
        return Hypothesis(name, False, f"a batch of {longer:,} tokens takes longer than a full one")
    return Hypothesis(name, True, f"of all up to {budget:,} tokens")
