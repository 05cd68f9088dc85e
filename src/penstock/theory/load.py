"""Load: how much is asked of a server, and how much it can give, for one class of requests or
several.

Only means matter. A batch time that is random, drawn anew for each batch with mean t_b, has the
load of t_b itself, and both halves of Theorem 1 hold for it (remark after thm:main): so any
batch-time model of means will do. Several measurements at one token load are to be averaged, as
`Measured.read` does.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.attention import (
    attention,
    attention_of_a_decode,
    beside,
    beside_prefill,
    refuse_composition,
)
from penstock.theory.kv_blocks import Served, reuses, served
from penstock.theory.unforeseen import wasted
from penstock.workload.lengths import LONGEST
from penstock.workload.loops import closed_loop
from penstock.workload.workload import Workload

_ROUNDING = 1e-12
"""Probabilities that add up to 1 within this are taken for 1."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What a workload asks of a server.

    Attributes
    ----------
    arrival_rate
        Requests/s.
    tokens_per_request
        Forward tokens of a request, on average: prompt + output (convention ``paper``), or prompt +
        output - 1 (``engine``: the end of prefill yields the first output token), and what it
        surely costs after its end. Those that are dropped have none.
    best_batch_tokens_per_s
        max over 1 <= b <= token budget of b / t_b. A few engines go beyond the token budget; then
        over all batches that they form.
    best_token_load
        The b at which that maximum is attained.
    filled_batch_tokens_per_s
        b_max / t_bmax: what batches filled to the token budget (without one: as large as they come)
        process.
    work
        The requests that are served.
    attention_s
        Seconds of a request beside those by token load, on average: the least under any policy, and
        the most in batches filled in order of arrival (see `penstock.theory.attention`); (0, 0) for
        batch times by token load.
    sampled
        Whether a sample of the lengths says so.
    wasted
        Tokens that a request costs after its end, on average, at least and at most: see
        `penstock.theory.unforeseen`.
    """

    arrival_rate: float
    tokens_per_request: float
    best_batch_tokens_per_s: float
    best_token_load: int
    filled_batch_tokens_per_s: float
    work: Served = dataclasses.field(repr=False, compare=False)
    attention_s: tuple[float, float] = (0.0, 0.0)
    sampled: bool = False
    wasted: tuple[float, float] = (0.0, 0.0)

    @property
    def capacity_tokens_per_s(self) -> float:
        """Forward tokens/s of such requests that no policy exceeds (Theorem 1(a))."""
        return self._carried(self.best_batch_tokens_per_s, self.attention_s[0])

    @property
    def capacity_in_words(self) -> str:
        """What the capacity counts."""
        attention = ", with the least that attention takes" if any(self.attention_s) else ""
        return f"tokens/s, with batches of {self.best_token_load:,}{attention}"

    @property
    def most_tokens_per_request(self) -> float:
        """Forward tokens of a request with the most that it may cost after its end."""
        return self.tokens_per_request + self.wasted[1] - self.wasted[0]

    @property
    def full_batch_rate(self) -> float:
        """Requests/s that filled batches are sure to carry."""
        by_tokens = self.filled_batch_tokens_per_s / self.most_tokens_per_request
        return beside(by_tokens, self.attention_s[1])

    @property
    def full_batch_tokens_per_s(self) -> float:
        """Forward tokens/s of such requests that filled batches are sure to process."""
        return self.full_batch_rate * self.most_tokens_per_request

    def _carried(self, tokens_per_s: float, seconds: float) -> float:
        if not seconds:
            return tokens_per_s
        return self.tokens_per_request / (self.tokens_per_request / tokens_per_s + seconds)

    @property
    def offered_tokens_per_s(self) -> float:
        """Forward tokens that arrive per second."""
        return self.arrival_rate * self.tokens_per_request

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load>, eq:load<)."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.capacity_tokens_per_s / self.tokens_per_request


def load(workload: Workload, server: Server) -> Load:
    """Return what a workload asks of a server.

    Raises
    ------
    InputError
        If the workload has no arrival rate, or a request can never be served.
    """
    if not workload.rate > 0:
        raise InputError(
            f"{workload.name} has no arrival rate (its requests span no time, or next to none), "
            "so it has no load; "
            "give a rate with arrivals 'poisson'"
        )
    server = as_serving(workload, server)
    linear = server.batch_time.by_tokens
    best, capacity = linear.best_load(server.most_tokens)
    full = server.most_tokens
    if server.policy.has_token_budget:
        full = min(full, server.token_budget)
    work = served(workload, server)
    least_wasted, most_wasted = wasted(workload, server, work)
    tokens = server.tokens_per_request(work.lengths.mean_prompt, work.lengths.mean_output)
    tokens += least_wasted
    # What is found in a cache is left out of bounds, not of the load.
    plain = server.without_cache if reuses(workload, server) else server
    least, most, sampled = attention(work.lengths, plain)
    most += (tokens + most_wasted - least_wasted) / full * beside_prefill(server.batch_time)
    if most_wasted:
        most += attention_of_a_decode(work.lengths, server)
    return Load(
        arrival_rate=workload.rate,
        tokens_per_request=tokens * work.share,
        best_batch_tokens_per_s=capacity,
        best_token_load=best,
        filled_batch_tokens_per_s=full / float(linear(full)),
        work=work,
        attention_s=(least * work.share, most * work.share),
        sampled=sampled,
        wasted=(least_wasted * work.share, most_wasted * work.share),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class MulticlassLoad:
    """What several classes of requests ask of one server together (eq:load-multi-class).

    Attributes
    ----------
    arrival_rates
        Shape (classes,), effective requests/s of each class: from outside, and routed to it from
        other classes.
    tokens_per_request
        Shape (classes,), forward tokens of a mean request of each class.
    capacity_tokens_per_s
        As in `Load`.
    """

    arrival_rates: Floats
    tokens_per_request: Floats
    capacity_tokens_per_s: float

    @property
    def offered_tokens_per_s(self) -> float:
        """Forward tokens that arrive per second, of all classes."""
        return float(self.arrival_rates @ self.tokens_per_request)

    @property
    def shares(self) -> Floats:
        """Shape (classes,), share of the load that each class brings; they add up to 1."""
        return np.asarray(self.arrival_rates * self.tokens_per_request / self.offered_tokens_per_s)

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def max_scale(self) -> float:
        """Factor on all external arrival rates at which rho is 1: beyond it no policy is stable."""
        return 1 / self.rho


def multiclass_load(
    server: Server,
    arrival_rates: npt.ArrayLike,
    prompt: npt.ArrayLike,
    output: npt.ArrayLike,
    routing: npt.ArrayLike | None = None,
    *,
    names: Sequence[str] | None = None,
) -> MulticlassLoad:
    """Return the load of several classes of requests on one server (thm:multi-class).

    Above rho 1 no policy is stable; below it every work-conserving K-FCFS policy is, where batches
    filled to the token budget carry the capacity and no max batch size binds.

    Parameters
    ----------
    server
        Batch times, token budget and convention.
    arrival_rates
        Shape (classes,), requests/s from outside; at least one positive.
    prompt, output
        Shape (classes,), or one number for all: mean tokens of a request.
    routing
        As in `traffic`; None: requests leave when they are done.
    names
        Of the classes, for messages.

    Raises
    ------
    InputError
        If shapes differ, a value cannot be used, or some requests never leave.

    >>> import penstock as ps
    >>> server = ps.Server(ps.Affine(c=0.0, a=1e-3), token_budget=512)
    >>> routing = [[0, 0.5], [0, 0]]
    >>> asked = multiclass_load(server, [1.0, 0.0], [101, 51], [100, 50], routing=routing)
    >>> asked.arrival_rates.tolist(), asked.shares.tolist(), round(asked.rho, 12)
    ([1.0, 0.5], [0.8, 0.2], 0.25)
    """
    external = _rates(arrival_rates)
    classes = external.size
    if not external.any():
        raise InputError(
            "all arrival rates are 0, so there is no load; give at least one class arrivals from "
            "outside"
        )
    effective = traffic(
        external, np.zeros((classes, classes)) if routing is None else routing, names=names
    )
    prompts, outputs = (
        _mean_tokens("prompt", prompt, classes),
        _mean_tokens("output", output, classes),
    )
    if not isinstance(server, Server):
        raise InputError(f"multiclass_load takes a Server, not {checks.shown(server)}; give one")
    refuse_composition(
        server,
        "the load of classes given by mean lengths",
        "ask `check` with the lengths themselves",
    )
    tokens = [
        server.tokens_per_request(p, o)
        for p, o in zip(prompts.tolist(), outputs.tolist(), strict=True)
    ]
    return MulticlassLoad(effective, np.array(tokens), server.capacity)


def traffic(
    arrival_rates: npt.ArrayLike, routing: npt.ArrayLike, *, names: Sequence[str] | None = None
) -> Floats:
    """Return the effective arrival rate of each class: the solution of lambda = alpha + P^T lambda
    (eq:traffic).

    Parameters
    ----------
    arrival_rates
        alpha, shape (classes,), requests/s from outside.
    routing
        P, shape (classes, classes): row i holds the probabilities with which a request done in
        class i goes on to each class; what is missing to 1 is the probability of leaving.
    names
        Of the classes, for messages.

    Raises
    ------
    InputError
        If a value cannot be used, or I - P is not invertible: then requests never leave some loop,
        which is named.

    >>> traffic([1.0, 0.0], [[0.0, 1.0], [0.5, 0.0]]).tolist()
    [2.0, 2.0]
    """
    external = _rates(arrival_rates)
    classes = external.size
    labels = (
        [f"class {i}" for i in range(classes)] if names is None else [str(name) for name in names]
    )
    if len(labels) != classes:
        raise InputError(
            f"{len(labels)} names for {classes} arrival rates; give one name per class"
        )
    chances = checks.array("routing", routing).astype(np.float64)
    if chances.shape != (classes, classes):
        raise InputError(
            f"routing has the shape {chances.shape}, but {classes} classes need "
            f"{(classes, classes)}: a row for each "
            "class that requests leave, a column for each that they go to"
        )
    bad = ~((chances >= 0) & (chances <= 1))
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise InputError(
            f"the routing from {labels[i]} to {labels[j]} is {chances[i, j]}, but a probability "
            "is from 0 to 1; mend it"
        )
    total = chances.sum(axis=1)
    if (total > 1 + _ROUNDING).any():
        i = int(np.argmax(total))
        raise InputError(
            f"the routing from {labels[i]} adds up to {total[i]:.12g}, but probabilities add up "
            "to 1 at most, and what "
            "is missing to 1 leaves; scale that row"
        )
    _refuse_closed_loop(chances, total, labels)
    return np.asarray(np.linalg.solve(np.eye(classes) - chances.T, external), np.float64)


def _refuse_closed_loop(chances: Floats, total: Floats, names: list[str]) -> None:
    """Raise if there are classes from which no path leads out of the system; I - P is invertible if
    there are none.
    """
    loop = closed_loop(chances, total < 1 - _ROUNDING)
    if not loop:
        return
    path = " -> ".join(names[index] for index in loop)
    raise InputError(
        f"requests never leave the loop {path}, so their number grows for ever; lower one of its "
        "routing probabilities"
    )


def _rates(arrival_rates: npt.ArrayLike) -> Floats:
    rates = checks.column("arrival_rates", arrival_rates).astype(np.float64)
    bad = ~(np.isfinite(rates) & (rates >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"arrival_rates[{row}] is {rates[row]}, but a rate is a finite number of at least 0 "
            "requests/s; mend it"
        )
    return rates


def _mean_tokens(name: str, mean: npt.ArrayLike, classes: int) -> Floats:
    tokens = checks.column(name, mean).astype(np.float64)
    if tokens.size not in (1, classes):
        raise InputError(
            f"{tokens.size} mean values of {name} for {classes} classes; give one per class"
        )
    for value in tokens.tolist():
        checks.number(
            f"a mean {name}", value, 1, LONGEST, "tokens", "a request has at least one token"
        )
    return np.broadcast_to(tokens, (classes,))
