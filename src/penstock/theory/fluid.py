"""The fluid model of one server: what a large backlog does, exactly, when randomness averages out.

Scaled by its size, the path of a server that starts with a large backlog approaches a solution of
eq:f1 to eq:f7 (for several classes eq:mf1 to eq:mf5): a fluid of requests in prefill and in decode,
in straight lines between breakpoints. While there is any of it, batches are full and b_max / t_bmax
tokens are processed per second. These equations fix the total work

    f = sum over classes of (work of a request in prefill) Z_p + (work of a request in decode) Z_d

and no more: it falls by b_max / t_bmax - offered tokens/s until all is drained. Which phase the
tokens go to is the policy's choice, so a path also needs an order of the buffers (class, phase),
highest priority first, each served first-come-first-served (eq:f4). So it is a path of a network of
one station under a static priority (`penstock.theory.network.fluid`). One class is decode-first
(Sarathi-Serve) or prefill-first (Orca).

In eq:f3 and eq:mf3 the rate of each phase is bounded by b_max / t_bmax; it is the sum of the rates
that must be, else an overloaded server could stay empty.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats
from penstock.system.kinds import refuse_guarded
from penstock.system.server import Server
from penstock.theory.attention import refuse_composition
from penstock.theory.network.fluid import walk
from penstock.theory.network.fluid_classes import DECODE, PREFILL, FluidClasses
from penstock.workload.lengths import LONGEST
from penstock.workload.routes import closed_loop

Phase = Literal["prefill", "decode"]
Order = Literal["decode-first", "prefill-first"] | Sequence[tuple[int, Phase]]

_NAMED = ("decode-first", "prefill-first")
_PHASES: tuple[Phase, Phase] = ("prefill", "decode")
_ROUNDING = 1e-12
"""Sums of chances this close to 1 are 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class FluidPath:
    """A solution of the fluid model, in straight lines between breakpoints, the last of which goes
    on for ever.

    Shapes: n breakpoints; ``...`` is (classes,), or nothing where one class was given as numbers.

    Attributes
    ----------
    time_s
        Shape (n,), seconds, the first 0.
    prefill, decode
        Shape (n, ...), requests in each phase (Z_p, Z_d). One in prefill has its whole prompt
        before it and one in decode its whole output, on average: W_p = m_p Z_p and W_d = m_d Z_d
        tokens (eq:f5). A backlog of other requests counts by its tokens, W_d / m_d; so for engines
        one output token counts, although it never decodes.
    prefill_tokens_per_s, decode_tokens_per_s
        Shape (n, ...), tokens processed per second from each breakpoint on. Over the full rate: the
        composition of the batches.
    prefill_growth, decode_growth
        Shape (n, ...), requests/s, slopes of ``prefill`` and ``decode`` from each breakpoint on.
    prefill_work, decode_work
        Shape (...), forward tokens that a request in this phase still costs, those of later visits
        included.
    offered_tokens_per_s
        Forward tokens that arrive per second, later visits included.
    full_batch_tokens_per_s
        b_max / t_bmax.
    """

    time_s: Floats
    prefill: Floats
    decode: Floats
    prefill_tokens_per_s: Floats
    decode_tokens_per_s: Floats
    prefill_growth: Floats
    decode_growth: Floats
    prefill_work: Floats
    decode_work: Floats
    offered_tokens_per_s: float
    full_batch_tokens_per_s: float

    @property
    def drift_tokens_per_s(self) -> float:
        """Slope of the work while there is any, tokens/s; the same under every work-conserving
        policy.
        """
        return self.offered_tokens_per_s - self.full_batch_tokens_per_s

    @property
    def work(self) -> Floats:
        """Forward tokens still to be processed at each breakpoint, shape (n,): the Lyapunov
        function eq:laypunov.
        """
        return self._work(self.prefill, self.decode)

    @property
    def drain_s(self) -> float:
        """Seconds until nothing is left: work / (full rate - offered rate); inf where that is not
        positive.
        """
        grows = self.prefill_growth[-1].any() or self.decode_growth[-1].any()
        if grows or self.work[-1] > 0:
            return float("inf")
        return float(self.time_s[-1])

    def at(self, time_s: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the requests in prefill and in decode.

        Parameters
        ----------
        time_s
            Seconds from the start, of any shape.

        Returns
        -------
        prefill, decode
            The shape of ``time_s``, then that of the classes.
        """
        time = checks.array("a time on the fluid path", time_s).astype(np.float64)
        _not_negative("a time on the fluid path", time, "the path starts at 0 s; give a later time")
        stretch = np.searchsorted(self.time_s, time, side="right") - 1
        since = (time - self.time_s[stretch]).reshape(time.shape + (1,) * (self.prefill.ndim - 1))
        prefill = self.prefill[stretch] + self.prefill_growth[stretch] * since
        decode = self.decode[stretch] + self.decode_growth[stretch] * since
        return np.maximum(prefill, 0.0), np.maximum(decode, 0.0)

    def work_at(self, time_s: npt.ArrayLike) -> Floats:
        """Return the forward tokens still to be processed at each time, seconds of any shape."""
        return self._work(*self.at(time_s))

    def _work(self, prefill: Floats, decode: Floats) -> Floats:
        """Return eq:laypunov of some requests in each phase."""
        classes = tuple(range(-self.prefill_work.ndim, 0))
        return np.asarray(
            (prefill * self.prefill_work + decode * self.decode_work).sum(axis=classes)
        )


def fluid(
    server: Server,
    *,
    arrival_rate: npt.ArrayLike,
    prompt: npt.ArrayLike,
    output: npt.ArrayLike,
    prefill: npt.ArrayLike = 0.0,
    decode: npt.ArrayLike = 0.0,
    routing: npt.ArrayLike | None = None,
    order: Order | None = None,
) -> FluidPath:
    """Follow a backlog through the fluid model of a server (eq:f1 to eq:f7, eq:mf1 to eq:mf5).

    Above b_max / t_bmax offered tokens/s the work grows, even if smaller batches would carry the
    load, and from an empty server too: sooner or later it has a backlog, and then its batches are
    full.

    Parameters
    ----------
    server
        Batch times, token budget, convention and policy, without a max batch size that could bind.
    arrival_rate
        Requests/s from outside; a number, or shape (classes,), as the next four.
    prompt, output
        Mean tokens of a request.
    prefill, decode
        Requests at time 0 in each phase, any numbers of at least 0; see `FluidPath` for what one
        is.
    routing
        Shape (classes, classes), chance that a request of class i goes on as one of class j.
        Default: all leave.
    order
        Buffers by priority: ``decode-first`` or ``prefill-first`` (inside each phase classes as
        given), or all pairs (class, phase), the highest first. Default: that of the policy. The
        work and the drain time are the same under every order; between classes served
        first-come-first-served, the rest depends on how their arrivals mix.

    Raises
    ------
    InputError
        If a value cannot be used, the policy is not work-conserving or its order is not known, a
        max batch size could bind, or requests never leave.

    >>> from penstock import PiecewiseConstant, Server
    >>> batch_time = PiecewiseConstant(c=0, a=1, b0=100)
    >>> server = Server(batch_time, token_budget=100, policy="orca", convention="paper")
    >>> path = fluid(server, arrival_rate=1, prompt=30, output=20, prefill=14)
    >>> path.time_s.tolist(), path.decode.tolist(), path.drain_s
    ([0.0, 6.0, 14.0], [0.0, 20.0, 0.0], 14.0)
    """
    full = full_batch_rate(server)
    refuse_guarded(server)
    values = {
        "arrival rate": arrival_rate,
        "prompt": prompt,
        "output": output,
        "prefill": prefill,
        "decode": decode,
    }
    shape, (arrivals, prompts, outputs, in_prefill, in_decode) = _by_class(values)
    chances = np.zeros((arrivals.size, arrivals.size))
    if routing is not None:
        chances = _routing(routing, arrivals.size)
    decodes = np.array(
        [server.tokens_per_request(p, o) - p for p, o in zip(prompts, outputs, strict=True)]
    )
    if (in_decode[decodes == 0] > 0).any():
        raise InputError(
            f"{in_decode[decodes == 0].max():g} requests are in decode, but with an output of 1 "
            "token engines have nothing to decode; leave `decode` out, or give a longer output"
        )
    buffers = _buffers(full, arrivals, prompts, decodes, chances)
    rank = np.argsort(_by_priority(server, order, arrivals.size, decodes))
    path = walk(buffers, rank, np.concatenate([in_prefill, in_decode]))
    # A request in a phase has the tokens of that phase before it, and the work of where it goes
    # next.
    tokens = np.concatenate([prompts, decodes])
    work = np.linalg.solve(np.eye(tokens.size) - buffers.onward, tokens)

    def phases(values: Floats) -> tuple[Floats, Floats]:
        prefill, decode = np.split(values, 2, axis=-1)
        return prefill.reshape(values.shape[:-1] + shape), decode.reshape(values.shape[:-1] + shape)

    return FluidPath(
        path.time_s,
        *phases(path.requests),
        *phases(path.served * tokens),
        *phases(path.slope),
        *phases(work),
        offered_tokens_per_s=float(buffers.external @ work),
        full_batch_tokens_per_s=full,
    )


def _buffers(
    full: float, arrivals: Floats, prompts: Floats, decodes: Floats, chances: Floats
) -> FluidClasses:
    """Return the prefills of the classes, then their decodes, as classes of one station."""
    count, none = arrivals.size, np.zeros_like(chances)
    seconds = np.concatenate([prompts, decodes]) / full
    onward = np.block([[none, np.eye(count)], [chances, none]])
    external = np.concatenate([arrivals, np.zeros(count)])
    station = np.zeros(2 * count, np.int64)
    return FluidClasses(
        names=tuple(f"{j} {phase}" for phase in _PHASES for j in range(count)),
        stage=np.tile(np.arange(count), 2),
        phase=np.repeat([PREFILL, DECODE], count),
        station=station,
        seconds=seconds,
        fastest=seconds,
        external=external,
        onward=onward,
        rate=np.linalg.solve(np.eye(2 * count) - onward.T, external),
        joins=station > 0,
        pools=("server",),
        left_out=(),
    )


def full_batch_rate(server: Server) -> float:
    """Return b_max / t_bmax, the tokens/s of full batches."""
    if not isinstance(server, Server):
        raise InputError(
            f"the server is {checks.shown(server)}, which has no batches; give a Server"
        )
    if server.memory is not None:
        raise InputError(
            f"the KV memory of {server.usable_blocks:,} blocks may keep batches from filling, and "
            "fluid models know none; leave it out, or ask `certify`"
        )
    limit = server.max_batch_size
    if limit is not None and (server.scope == "running" or limit < server.token_budget):
        reason = "bounds the running requests, so none pile up in decode"
        if limit < server.token_budget:
            reason = (
                f"is below the token budget of {server.token_budget:,}, so batches need not be "
                "full (eq:f7)"
            )
        raise InputError(f"the max batch size of {limit:,} {reason}; leave it out, or ask `region`")
    refuse_composition(server, "the fluid limit", "ask `certify` or `verdict`")
    return server.full_batch_rate


def _by_priority(server: Server, order: Order | None, classes: int, decodes: Floats) -> list[int]:
    """Return buffers by priority; first those without tokens: requests pass them at once."""
    policy = server.policy
    if server.work_conserving is False:
        raise InputError(
            f"{policy.name} leaves room in batches while requests wait, so the fluid model does "
            "not fix how fast it works (eq:f7); take a work-conserving policy, or simulate"
        )
    chosen: object = order
    if order is None:
        chosen = policy.batching.phases
    if chosen is None:
        raise InputError(
            f"which phase {policy.name} serves first is not known, and the fluid model fixes the "
            "total work only; give order='decode-first' or 'prefill-first' if it fills its batches "
            "so"
        )
    buffers = [(j, phase) for phase in _PHASES for j in range(classes)]
    if isinstance(chosen, str):
        if chosen not in _NAMED:
            raise InputError(f"order is {checks.shown(chosen)}{nearest(chosen, _NAMED)}")
        first = chosen.removesuffix("-first")
        chosen = sorted(buffers, key=lambda buffer: buffer[1] != first)
    try:
        ranked = [buffers.index(pair) for pair in map(tuple, chosen)]  # type: ignore[call-overload]
    except (TypeError, ValueError):
        ranked = []
    if sorted(ranked) != list(range(2 * classes)):
        raise InputError(
            f"order is {checks.shown(chosen)}, but must name each of the {2 * classes} buffers "
            f"once, as pairs of a class from 0 to {classes - 1} and 'prefill' or 'decode'; add or "
            "remove what differs"
        )
    has_tokens = np.concatenate([np.ones(classes), decodes]) > 0
    return sorted(ranked, key=lambda buffer: bool(has_tokens[buffer]))


def _by_class(values: dict[str, npt.ArrayLike]) -> tuple[tuple[int, ...], list[Floats]]:
    """Check numbers or columns; return their shape, () or (classes,), and columns of each."""
    shape = (max(checks.column(f"the {name}", value).size for name, value in values.items()),)
    columns = []
    for name, value in values.items():
        column = checks.column(f"the {name}", value).astype(np.float64)
        if column.size not in (1, shape[0]):
            raise InputError(
                f"the {name} has {column.size} classes where {shape[0]} are given; give one for "
                "each"
            )
        if name in ("prompt", "output"):
            bad = ~((column >= 1) & (column <= LONGEST))
            if bad.any():
                raise InputError(
                    f"a mean {name} is {column[bad][0]:g} tokens, but must be from 1 to "
                    f"{LONGEST:,}: a request has at least one token; mend it"
                )
        _not_negative(f"the {name}", column, "requests are counted; give at least 0")
        columns.append(np.broadcast_to(column, shape))
    if all(np.ndim(value) == 0 for value in values.values()):
        return (), columns
    return shape, columns


def _routing(routing: npt.ArrayLike, classes: int) -> Floats:
    """Return the chances of going on as each class, with which all requests leave in the end."""
    chances = checks.array("routing", routing).astype(np.float64)
    if chances.shape != (classes, classes):
        raise InputError(
            f"routing has the shape {chances.shape}, but must have {(classes, classes)}: a row for "
            "each class that requests leave, a column for each that they go to"
        )
    bad = np.argwhere(~((chances >= 0) & (chances <= 1)))
    if bad.size:
        i, j = bad[0]
        raise InputError(
            f"the routing from class {i} to class {j} is {chances[i, j]}, but a probability is "
            "from 0 to 1; mend it"
        )
    total = chances.sum(axis=1)
    if (total > 1 + _ROUNDING).any():
        i = int(np.argmax(total))
        raise InputError(
            f"the routing from class {i} adds up to {total[i]:.12g}, but probabilities add up to 1 "
            "at most, and what is missing to 1 leaves; scale that row"
        )
    loop = closed_loop(chances, total < 1 - _ROUNDING)
    if loop:
        path = " -> ".join(f"class {place}" for place in loop)
        raise InputError(
            f"requests never leave the loop {path}, so their number grows for ever; lower one of "
            "its routing probabilities"
        )
    return chances


def _not_negative(what: str, values: Floats, reason: str) -> None:
    """Refuse a value that is not a finite number of at least 0."""
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        raise InputError(
            f"{what} is {values[bad][0]:g}, but must be a finite number of at least 0: {reason}"
        )
