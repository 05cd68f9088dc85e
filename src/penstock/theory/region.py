"""The stability region under a max batch size: outside it no policy carries prefill and decode
tokens at these rates.

Necessary condition (paper, Section 6, Condition stable_condition, made tighter): with u the share
of time spent in each batch of x prefill tokens, y decode tokens and k_p prefill requests, taking
t_{x+y} seconds,

    prefill rate <= sum u x / t,   decode rate <= sum u y / t,   request rate <= sum u k_p / t,
    sum u <= 1

over the batches with 0 < x + y <= b_max, k_p + y <= k_max and x <= k_p (longest prompt); a request
is in at least one batch as a prefill request, which the paper does not ask. No policy is stable
outside. Whether one policy is stable everywhere inside is open. A max batch size in scope
``running`` binds every batch too, so the condition holds there.

For a given token load and y, more prefill requests only help, so k_p = min(k_max, b) - y (x bounds
it too). Then (x, y, k_p) is linear in y, and for each token load only y = 0 and the largest y
matter: two columns per token load describe all that the condition allows, for any batch-time model
by token load. It is a necessary one, so what can be carried may be less. Where batches take longer
for what is in them, t_{x+y} is the least for so many tokens, and the region holds still more than
can be carried; the bounds of a workload (`penstock.theory.limits`)
count its attention.
"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.show.answers import Meaning
from penstock.system import hull
from penstock.system.server import Server
from penstock.theory.attention import refuse_composition
from penstock.workload.lengths import LONGEST, Length, Lengths, as_length, pair_of


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    """Token rates outside which no policy is stable: a convex polygon with all smaller rates in it.

    Attributes
    ----------
    vertices
        Shape (n, 2), prefill tokens/s and decode tokens/s, counter-clockwise from the origin.
    request
        Prefill and decode tokens of a mean request (for engines the last prefill yields the first
        output token), or None where no output length was given.
    """

    vertices: Floats
    request: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        vertices = np.array(self.vertices, np.float64)
        vertices.flags.writeable = False
        object.__setattr__(self, "vertices", vertices)

    def scale(self, direction: npt.ArrayLike) -> float:
        """Return the largest s with s * direction in the region.

        Parameters
        ----------
        direction
            Prefill and decode tokens, shape (2,), in any unit: tokens per request give requests/s,
            tokens/s a factor.

        Raises
        ------
        InputError
            If it is not two numbers of at least 0, or both are 0.
        """
        return 1 / float(self.prices(direction) @ _direction(direction))

    def prices(self, direction: npt.ArrayLike) -> Floats:
        """Return the server time that a prefill and a decode token cost where the boundary is met,
        s; shape (2,).

        No batch does more than its time's worth of tokens at these prices, and those that carry the
        most along the direction do as much. Where it meets a corner, the prices are those of an
        edge that ends there.

        Parameters
        ----------
        direction
            As in `scale`.
        """
        normals = self.normals
        prices = normals / (normals * self.vertices[1:-1]).sum(axis=1)[:, None]
        return np.asarray(prices[np.argmax(prices @ _direction(direction))])

    @property
    def normals(self) -> Floats:
        """Prices of a prefill and a decode token, in some unit, at which each edge that is not on
        an axis earns the same all along; shape (edges, 2).
        """
        start, end = self.vertices[1:-1], self.vertices[2:]
        return np.column_stack([end[:, 1] - start[:, 1], start[:, 0] - end[:, 0]])

    def margin(self, point: npt.ArrayLike) -> float:
        """Return 1 less the load: what is left before the boundary along the point's ray, negative
        outside.

        Parameters
        ----------
        point
            Prefill and decode tokens/s, shape (2,).
        """
        rates = _pair("the point", point)
        if not rates.any():
            return 1.0
        return 1 - 1 / self.scale(rates)

    def contains(self, point: npt.ArrayLike) -> bool:
        """Return whether the region, its boundary included, holds the point (prefill, decode
        tokens/s).
        """
        return self.margin(point) >= -hull.FLAT

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        if self.request is None:
            raise InputError(
                "this region knows no output length, so it has no request rate; give `output` to "
                "`region`"
            )
        return self.scale(self.request)


def sarathi_region(server: Server) -> Region:
    """Return the rates that Sarathi-Serve carries at its fixed token budget b, for long prompts."""
    # conv(O, A_b, Q_b, D): Sarathi fills every batch. Below k_max decoding requests a batch lies on
    # the segment from A_b, prefill alone, to Q_b, k_max - 1 decodes and b - k_max + 1 prefill
    # tokens; with k_max of them no prompt is let in and the batch is D. A fluid argument, no
    # theorem; simulation agrees within .02.
    instead = "ask `certify`, or `max_rate`, which simulates"
    refuse_composition(server, "the region of sarathi", instead)
    b = server.token_budget
    k = min(server.max_batch_size or b, b)
    full, decodes = float(server.batch_time(b)), float(server.batch_time(k))
    corners = [(b / full, 0.0), ((b - k + 1) / full, (k - 1) / full), (0.0, k / decodes)]
    return Region(_outline(np.array(corners)))


class Use(NamedTuple):
    """A batch of the best mix, its share of the server's time, and its most prefill requests."""

    prefill_tokens: Annotated[int, Meaning("Of the batch.")]
    decode_tokens: Annotated[int, Meaning("Of the batch.")]
    prefill_requests: Annotated[int, Meaning("The most that it has.")]
    share: Annotated[float, Meaning("Of the server's time.")]


@dataclasses.dataclass(frozen=True)
class Optimum:
    """How a server carries the most along a direction, and what holds it back.

    Shadow prices: ``q_p x + q_d y + q_r k_p <= t`` for every batch, and the direction's own load
    ``q_p p + q_d d + q_r p / m_p`` is 1 on the boundary.
    """

    scale: float  # largest s with s * direction in the region
    mix: tuple[Use, ...]  # batches that carry it; others may do as well
    prices: "Prices"
    # `token budget`, `max batch size`: a limit without whose last token or slot the server carries
    # less. `batch time` where neither does: only faster batches help.
    binding: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Prices:
    """What a token or a request more costs, and what another slot would bring."""

    # q_p, q_d and q_r; the last is 0 for prompts of one length.
    seconds_per_prefill_token: Annotated[float, Meaning("Server time.")]
    seconds_per_decode_token: Annotated[float, Meaning("Server time.")]
    seconds_per_prefill_request: Annotated[float, Meaning("Server time of its slot besides.")]
    # A finite difference, which is exact: the problem is solved again with k_max + 1. 0 without a
    # max batch size.
    tokens_per_s_per_slot: Annotated[float, Meaning("Along the direction of the load.")]


_MANY = 20_000  # batches


class _Prompt(NamedTuple):
    """Tokens of a prompt: the mean, and the longest."""

    mean: float
    longest: int


class _Columns(NamedTuple):
    """Batches that matter: tokens and prefill requests, and seconds; shape (batches,) each."""

    prefill: Ints
    decode: Ints
    requests: Ints
    seconds: Floats


def region(
    server: Server, *, prompt: int | Length | Lengths, output: int | Length | None = None
) -> Region:
    """Return the token rates outside which no policy is stable under the limits of a server.

    The necessary condition is solved exactly, for any batch-time model by token load and any
    limits; whether a policy carries all that lies inside is open. Every batch is a point (x / t, y
    / t), and the region is the convex hull of those points and all that lies below them. Where
    prompts differ in length, a prefill request brings m_p tokens on average, but up to the longest
    prompt to one batch: then a vertex may mix two batches, one with more tokens than its k_p m_p
    and one with fewer.

    Parameters
    ----------
    server
        Batch times, token budget, max batch size and convention. Its policy does not matter.
    prompt
        Tokens, a distribution, or a joint distribution of prompt and output. Where it is not
        constant, its mean and its longest value count.
    output
        Tokens, or a distribution; only for `Region.max_rate`.

    Raises
    ------
    InputError
        If a length cannot be used.

    >>> import penstock as ps
    >>> batch_time = ps.PiecewiseConstant(c=0.0, a=0.1, b0=100)
    >>> server = ps.Server(batch_time, token_budget=100, max_batch_size=51)
    >>> region(server, prompt=1_000).vertices.round().tolist()
    [[0.0, 0.0], [1000.0, 0.0], [500.0, 500.0], [0.0, 510.0]]
    """
    if not isinstance(server, Server):
        raise InputError(f"a region belongs to a Server, not to {checks.shown(server)}; give one")
    tokens = _prompt(prompt)
    vertices = _outline(_operating_points(_columns(server, tokens.longest), tokens.mean))
    return Region(vertices, _request(server, prompt, output, tokens.mean))


def linear_program(
    server: Server, direction: npt.ArrayLike, *, prompt: int | Length | Lengths
) -> Optimum:
    """Solve the necessary condition along a direction as a linear program (HiGHS), with prices."""
    # The direction is prefill and decode tokens, shape (2,).
    # Rates in units of the fastest, so that all numbers of the program are about 1.
    tokens, along = _prompt(prompt), _direction(direction)
    columns = _corners(_columns(server, tokens.longest), tokens.mean)
    fastest = server.capacity
    rates = (
        np.vstack([columns.prefill, columns.decode, columns.requests * tokens.mean])
        / columns.seconds
        / fastest
    )
    towards = along[[0, 1, 0]] / along.sum()
    # Where prompts are alike x <= k_p m_p in every batch: the condition on requests says nothing.
    if tokens.mean == tokens.longest:
        rates, towards = rates[:2], towards[:2]
    size = rates.shape[1]
    from scipy.optimize import linprog  # takes a while to load, and few servers need it

    solved = linprog(
        np.r_[-1.0, np.zeros(size)],
        A_ub=np.vstack([np.column_stack([towards, -rates]), np.r_[0.0, np.ones(size)]]),
        b_ub=np.r_[np.zeros(len(towards)), 1.0],
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solved.status:
        raise RuntimeError(f"HiGHS found no optimum: {solved.message}")
    reach, shares = solved.x[0] * fastest, solved.x[1:]
    prices = np.r_[np.maximum(-solved.ineqlin.marginals[:-1], 0.0) / reach, 0.0]
    binding, slot_price = binding_limits(server, along, prompt=prompt)
    return Optimum(
        scale=float(reach / along.sum()),
        mix=tuple(
            Use(
                int(columns.prefill[i]),
                int(columns.decode[i]),
                int(columns.requests[i]),
                float(shares[i]),
            )
            for i in np.flatnonzero(shares > hull.FLAT)
        ),
        prices=Prices(
            float(prices[0]), float(prices[1]), float(prices[2] * tokens.mean), slot_price
        ),
        binding=binding,
    )


def _columns(server: Server, longest: int) -> _Columns:
    """Return two batches for each token load b: no decodes, and the most decodes."""
    # The most decodes: b where b <= k_max, else the largest y with b - y <= (k_max - y) longest.
    # Token loads above k_max longest cannot be formed.
    budget = server.most_tokens
    k = min(server.max_batch_size or budget, budget)
    load = np.arange(1, min(budget, k * longest) + 1)
    most = np.where(load <= k, load, (k * longest - load) // max(longest - 1, 1))
    decode = np.concatenate([np.zeros_like(load), most])
    load = np.tile(load, 2)
    return _Columns(load - decode, decode, np.minimum(load, k) - decode, server.batch_time(load))


def _operating_points(columns: _Columns, mean_prompt: float) -> Floats:
    """Return points (prefill, decode tokens/s) whose hull is the region; shape (points, 2)."""
    # A batch brings min(x, k_p m_p) / t of sustained prefill. A vertex of the linear program uses
    # at most two batches, and two only if the first has x > k_p m_p, the second x < k_p m_p, and
    # together they are in balance.
    tokens, decode, requests = np.vstack(columns[:3]) / columns.seconds
    due = requests * mean_prompt
    single = np.column_stack([np.minimum(tokens, due), decode])
    if not (tokens > due).any():
        return single
    corners = _extreme(np.column_stack([tokens, decode, due]))
    tokens, decode, due = tokens[corners], decode[corners], due[corners]
    above, below = np.flatnonzero(tokens > due), np.flatnonzero(tokens < due)
    excess, lack = (tokens - due)[above, None], (due - tokens)[None, below]
    share = lack / (excess + lack)
    pairs = [
        share * rate[above, None] + (1 - share) * rate[None, below] for rate in (tokens, decode)
    ]
    return np.vstack([single, np.column_stack([pair.ravel() for pair in pairs])])


def _corners(columns: _Columns, mean_prompt: float) -> _Columns:
    """Keep the batches a best mix may need, where the linear program would take long."""
    if columns.prefill.size <= _MANY:
        return columns
    tokens = np.column_stack([columns.prefill, columns.decode, columns.requests * mean_prompt])
    corners = _extreme(tokens / columns.seconds[:, None])
    return _Columns._make(column[corners] for column in columns)


def _extreme(points: Floats) -> Ints:
    """Return which points are corners of the hull with origin and axes; shape (corners,)."""
    from scipy.spatial import ConvexHull

    vertices = ConvexHull(np.vstack([points / points.max(axis=0), np.zeros(3), np.eye(3)])).vertices
    return np.asarray(vertices[vertices < len(points)], np.int64)


def _outline(points: Floats) -> Floats:
    """Return corners of the hull of points and all below, counter-clockwise from the origin."""
    tops = points.max(axis=0)
    points = points[np.lexsort((points[:, 1], points[:, 0]))[::-1]] / tops
    rising = np.r_[True, points[1:, 1] > np.maximum.accumulate(points[:, 1])[:-1]]
    path = np.vstack([(1.0, 0.0), points[rising], (0.0, 1.0)])
    return np.asarray(np.vstack([(0.0, 0.0), hull.corners(path)]) * tops)


def binding_limits(
    server: Server, direction: Floats, *, prompt: int | Length | Lengths
) -> tuple[tuple[str, ...], float]:
    """Return the limits that bind along a direction, and the tokens/s that one more slot brings."""

    def carried(**limits: int) -> float:
        if 0 in limits.values():
            return 0.0
        budget, slots = limits.get("token_budget"), server.max_batch_size
        if budget is not None and slots is not None and slots > budget:
            limits["max_batch_size"] = budget  # no batch has more requests than tokens
        try:
            changed: Server = dataclasses.replace(server, **limits)  # type: ignore[arg-type]
        except InputError:  # the engine needs this limit as it is
            return 0.0
        return region(changed, prompt=prompt).scale(direction) * float(direction.sum())

    now = carried()
    k = server.max_batch_size
    tighter = {"token budget": carried(token_budget=server.token_budget - 1)}
    gain = 0.0
    if k is not None:
        tighter["max batch size"] = carried(max_batch_size=k - 1)
        if k < server.token_budget:
            gain = carried(max_batch_size=k + 1) - now
    noise = 1e-10 * now
    if gain <= noise:
        gain = 0.0
    binding = tuple(name for name, rate in tighter.items() if rate < now - noise)
    return binding or ("batch time",), gain


def _prompt(prompt: int | Length | Lengths) -> _Prompt:
    """Return what counts of prompts."""
    if isinstance(prompt, Lengths):
        return _Prompt(prompt.mean_prompt, prompt.max_prompt or LONGEST)
    length = as_length("prompt", prompt)
    return _Prompt(length.mean, length.max or LONGEST)


def _request(
    server: Server, prompt: int | Length | Lengths, output: int | Length | None, mean_prompt: float
) -> tuple[float, float] | None:
    """Return the forward tokens of a mean request in each phase, if its output is known."""
    if output is None and not isinstance(prompt, Lengths):
        return None
    mean_output = pair_of(prompt, output).mean_output
    return mean_prompt, max(server.tokens_per_request(mean_prompt, mean_output) - mean_prompt, 0.0)


def _pair(what: str, value: npt.ArrayLike) -> Floats:
    """Return tokens of prefill and decode, or refuse them."""
    pair = checks.array(what, value)
    if pair.shape != (2,) or not (np.isfinite(pair) & (pair >= 0)).all():
        raise InputError(
            f"{what} is {checks.shown(value)}, but must be two finite numbers of at least 0: "
            "prefill and decode tokens"
        )
    return np.array(pair, np.float64)


def _direction(value: npt.ArrayLike) -> Floats:
    """Return a direction that is not (0, 0), or refuse it."""
    direction = _pair("the direction", value)
    if not direction.any():
        raise InputError(
            "the direction is (0, 0), which points nowhere; give tokens of prefill, of decode, or "
            "of both"
        )
    return direction
