"""The Foster-Lyapunov function of Theorem 1(b), and what it says of the mean backlog (Appendix C,
corrected).

The paper's function is the unprocessed tokens |X| plus a small multiple of the sum over requests of
(remaining decode iterations + one for the prefill)^2. As printed its drift need not be negative:
the full rate is b_max / t_bmax, not b_max; E[(d + 1)^2] <= 2 E[d^2] fails for d = 1 and d = 2; with
d the tokens left after the batch is scheduled, a square falls by 2 d + 1; and tokens leave |X| when
their batch starts, so during the rest of that batch |X| only grows. Here the seconds left of the
batch are part of the function,

    V = |X| + c sum over requests of (1{prefill left} + decode left)^2 + (b_max / t_bmax) (seconds
    left),

and c = (full rate - offered rate) / (2 arrival rate E[(1 + decodes)^2]), which needs no inequality
between moments and allows requests without a decode iteration.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.system.server import Server
from penstock.theory.fluid import full_batch_rate
from penstock.workload.lengths import LONGEST


@dataclasses.dataclass(frozen=True)
class Foster:
    """A function of the state that falls on average, wherever it is large.

    Attributes
    ----------
    full_batch_tokens_per_s, offered_tokens_per_s
        b_max / t_bmax, and forward tokens that arrive per second.
    square_weight
        c, tokens per squared iteration.
    drift_tokens_per_s
        While a batch runs, when a full batch starts, and wherever ``value`` is at least ``level``,
        the mean of ``value`` changes at most at this rate over the next slot: (offered - full) / 2.
    level
        Tokens. States in which a batch can start, and the drift is greater, have a smaller value:
        finitely many.
    mean_work
        Lowest and highest that the long-run mean of |X| + (b_max / t_bmax) (seconds left) can be
        under Poisson arrivals and any policy that fills the token budget whenever it can, tokens.
    """

    full_batch_tokens_per_s: float
    offered_tokens_per_s: float
    square_weight: float
    level: float
    mean_work: tuple[float, float]

    @property
    def drift_tokens_per_s(self) -> float:
        """Half the difference of offered and full rate, below 0."""
        return (self.offered_tokens_per_s - self.full_batch_tokens_per_s) / 2

    def value(self, prefill_left: npt.ArrayLike, decode_left: npt.ArrayLike, seconds_left: float = 0.0) -> float:
        """Return V of a state.

        Parameters
        ----------
        prefill_left, decode_left
            Shape (requests,), tokens and iterations that are not yet in a batch (the paper's P_i
            and D_i).
        seconds_left
            Until the batch that runs is over (the paper's R).
        """
        prefill, decode = np.asarray(prefill_left, np.float64), np.asarray(decode_left, np.float64)
        squares = float((((prefill > 0) + decode) ** 2).sum())
        waiting = float((prefill + decode).sum())
        return waiting + self.square_weight * squares + self.full_batch_tokens_per_s * seconds_left


def foster(server: Server, *, arrival_rate: float, prompt: npt.ArrayLike, output: npt.ArrayLike) -> Foster:
    """Return the Foster-Lyapunov function of a server below load 1.

    For i.i.d. arrivals per slot, a slot being any time of which all batch times are multiples, and
    batches that carry as many tokens as the budget and what waits allow.

    The bounds on the mean work are Kingman's: with A the tokens that arrive in a slot, and U the
    tokens that the rate b_max / t_bmax would have processed beyond what the server does, the work
    changes by A - slot rate + U. The mean of U makes up for the spare rate, it is never above
    b_max, and it is not 0 only where fewer than b_max requests are left. Setting the mean change of
    the square to 0 gives, with S the forward tokens of a request,

        low = arrival rate E[S^2] / (2 (full - offered)),   high = low + b_max / 2 + (b_max - 1) (1
        + longest decode).

    Parameters
    ----------
    server
        Full batches must be the fastest per token (Assumption 1) and the slowest of all.
    arrival_rate
        Requests/s, above 0.
    prompt, output
        Shape (rows,), tokens: equally likely pairs, such as the rows of a trace, or one number
        each.

    Raises
    ------
    InputError
        If a value cannot be used, the load is not below 1, the policy is not known to be
        work-conserving, or a max batch size could bind.
    """
    full = full_batch_rate(server)
    if not server.work_conserving:
        raise InputError(
            f"{server.policy.name} is not known to be work-conserving, so V may grow where it "
            "should fall; take one "
            "that is, or if it is, say so with @policy(work_conserving=True)"
        )
    rate = checks.number(
        "the arrival rate",
        arrival_rate,
        1e-12,
        1e12,
        "requests/s",
        "without arrivals nothing drifts",
    )
    prompts, outputs = _tokens("prompt", prompt), _tokens("output", output)
    if prompts.size != outputs.size:
        raise InputError(
            f"{prompts.size} prompts for {outputs.size} outputs: they come in pairs, so give as many of both"
        )
    decodes = np.array([server.tokens_per_request(p, o) - p for p, o in zip(prompts, outputs, strict=True)])
    tokens = prompts + decodes
    offered = rate * float(tokens.mean())
    if not offered < full:
        raise InputError(
            f"{offered:g} tokens/s arrive and full batches carry {full:g}, so the backlog does not fall; lower the rate"
        )
    _full_batches_are_best(server, full)
    budget = server.token_budget
    spare = full - offered
    weight = spare / (2 * rate * float(((1 + decodes) ** 2).mean()))
    low = rate * float((tokens**2).mean()) / (2 * spare)
    high = low + budget / 2 + (budget - 1) * (1 + float(decodes.max()))
    return Foster(full, offered, weight, _level(budget, weight), (low, high))


def _level(budget: int, weight: float) -> float:
    """Return a value that no state has in which a short batch starts, or none, and V falls too
    slowly; tokens.

    Each request in a short batch of b >= 1 tokens takes one from its k = 1{prefill left} + decode
    left, so V falls fast enough if c sum (2 k - 1) >= b_max - b. Else, with at most b requests, the
    sum of k is below s = (b_max - 1) (1 / c + 1) / 2, and V below b_max + s + c s^2.
    """
    most = (budget - 1) * (1 / weight + 1) / 2
    return budget + most + weight * most**2


def _full_batches_are_best(server: Server, full: float) -> None:
    """Check that no batch carries more tokens/s than a full one, and none takes longer."""
    best, capacity = server.batch_time.best_load(server.token_budget)
    if capacity > full * (1 + 1e-9):
        raise InputError(
            f"batches of {best:,} tokens carry {capacity:g} tokens/s and full ones of "
            f"{server.token_budget:,} only "
            f"{full:g}, against Assumption 1; lower the token budget to {best:,}"
        )
    seconds = server.batch_time.table(server.token_budget)
    if seconds.max() > seconds[-1] * (1 + 1e-9):
        raise InputError(
            f"a batch of {int(seconds.argmax()):,} tokens takes {seconds.max():g} s, longer than "
            "a full one of "
            f"{server.token_budget:,} with {seconds[-1]:g} s, so the drift is not bounded; mend "
            "the batch times"
        )


def _tokens(name: str, values: npt.ArrayLike) -> Floats:
    tokens = checks.column(f"the {name}", values).astype(np.float64)
    bad = ~((tokens >= 1) & (tokens <= LONGEST) & (tokens == np.rint(tokens)))
    if bad.any():
        raise InputError(
            f"a {name} has {tokens[bad][0]:g} tokens, but must have a whole number from 1 to {LONGEST:,}; mend it"
        )
    return tokens
