"""The exact region under a max batch size, in scope ``batch``: what the best of all policies
carries, where the region of `penstock.theory.region` is an upper bound.

A batch has n_s pieces of prompts of s tokens each and y decodes, at most k requests and b tokens in
all, and takes t_{x+y} seconds, x = sum s n_s; t does not fall. Prompts P and decodes D of a request
are drawn anew for each. A prompt is cut into pieces, of which each takes a place in a batch: that
prompts end, and leave the last piece's place half empty, the region does not see.

**Theorem (exact region).** Let 1 / lambda* be the greatest E[v(P)] + q E[D] over prices p_1 <= p_2
<= ... of pieces and q >= 0 of a decode under which no batch earns more than its time,

    sum_s n_s p_s + q y <= t_{x+y},

where v(r) is the least that the pieces of a prompt of r tokens cost. (a) Above lambda* no policy is
stable, even one that knows all lengths before. (b) Below lambda* some policy is. (c) With s the
largest piece in a best mix of the region, region * m_p / (m_p + s - 1) <= lambda* <= region, so as
lengths grow the two meet.

Proofs are in docs/theory/open-problem.md; of (b) by max-pressure over residual lengths.

The prices are found by column generation: batches are priced by a knapsack over slots and tokens,
cuttings of prompts by a shortest path over what is left of them. At each step the prices, scaled so
that no batch earns more than its time, bound lambda* from above, and the mix from below.
"""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.show.answers import AsData, Meaning
from penstock.system.server import Server
from penstock.theory.attention import refuse_composition
from penstock.theory.region import region
from penstock.workload.lengths import Empirical, Independent, Length, Lengths, pair_of

GAP = 1e-3
"""Between the bounds, as a share."""

_MOST_STEPS = 400
_MOST_CELLS = (
    1e7  # of a knapsack, and of a prompt's cuttings: half a minute for one pair of lengths
)
_SMOOTH = 0.6  # share of the best prices so far in those that are tried (Wentges)
_EQUAL = 1e-9
_POINTS, _ROUGH = 13, 5e-3  # of an outline, and the gap of each


@dataclasses.dataclass(frozen=True, eq=False)
class ExactRegion(AsData):
    """What the best of all policies carries of some lengths, in scope ``batch``."""

    rate: Annotated[float, Meaning("Requests/s below which some policy is stable.")]
    upper: Annotated[float, Meaning("Requests/s above which none is.")]
    piece_prices: Annotated[Floats, Meaning(
        "Server time of a piece of a prompt, s, by its tokens from 0 on."
    )]  # fmt: skip
    decode_price: Annotated[float, Meaning("Server time of a decode, s.")]
    prompt_prices: Annotated[Floats, Meaning(
        "Server time of a prompt that is cut the cheapest way, s, by its tokens from 0 on."
    )]  # fmt: skip


def exact_region(
    server: Server,
    *,
    prompt: int | Length | Lengths,
    output: int | Length | None = None,
    gap: float = GAP,
) -> ExactRegion:
    """Return what the best of all policies carries of such lengths, in scope ``batch``.

    In scope ``running`` no policy carries more than that, and the best may carry less.

    Parameters
    ----------
    server
        Batch times by token load, token budget, max batch size and convention. Its policy does not
        matter. Where a larger batch takes less time, the two rates lie further apart.
    prompt
        Tokens, a distribution with a ``max``, or a joint distribution of prompt and output.
    output
        Tokens, or a distribution; only its mean counts.
    gap
        Between the two rates, as a share, at most (after 400 steps it may be more).

    Raises
    ------
    InputError
        If batch times depend on what is in a batch, prompts have no upper limit or no known
        distribution, or there are too many batches.

    >>> import penstock as ps
    >>> batch_time = ps.Affine(1.0, 0.0)
    >>> server = ps.Server(batch_time, 2, 1, scope="batch", convention="paper")
    >>> exact = ps.exact_region(server, prompt=3, output=1)  # two batches and one
    >>> round(exact.rate, 6), round(ps.region(server, prompt=3, output=1).max_rate, 6)
    (0.333333, 0.4)
    """
    least, most, slots, chances = _asked(server, lengths := pair_of(prompt, output))
    decodes = server.tokens_per_request(lengths.mean_prompt, lengths.mean_output)
    asked = slots, chances, decodes - lengths.mean_prompt, gap
    exact = solve(least, *asked)
    if np.array_equal(least, most):
        return exact
    return dataclasses.replace(exact, rate=solve(most, *asked).rate)


def exact_outline(server: Server, lengths: Lengths, known: ExactRegion) -> Floats:
    """Return rates that the best of all policies carries of such prompts beside more and more
    decodes, through those that are known; prefill and decode tokens/s, shape (points, 2).
    """
    _, most, slots, chances = _asked(server, lengths)
    vertices = region(server, prompt=lengths).vertices
    across, up = vertices.max(axis=0)
    mean = lengths.mean_prompt
    whole = server.tokens_per_request(mean, lengths.mean_output)
    points = [(known.rate * mean, known.rate * (whole - mean)), tuple(vertices[-1].tolist())]
    for angle in np.linspace(0.0, np.pi / 2, _POINTS)[:-1]:
        decodes = mean * up / across * float(np.tan(angle))
        rate = solve(most, slots, chances, decodes, _ROUGH).rate
        points.append((rate * mean, rate * decodes))
    return np.array(sorted(points, key=lambda point: np.arctan2(point[1], point[0])))


def _asked(server: Server, lengths: Lengths) -> tuple[Floats, Floats, int, Floats]:
    """Return what bounds and what can be carried takes by token load, the slots, and the chances of
    a prompt's tokens.
    """
    refuse_composition(server, "the exact region", "ask `max-rate`, which simulates")
    if server.policy.batching.drafts:
        raise InputError(
            f"{server.policy.name} drafts tokens, so a decode may bring several, and the exact "
            "region is not known; ask `max-rate`, which simulates"
        )
    chances = _chances(lengths)
    budget = server.token_budget
    slots = min(server.max_batch_size or budget, budget)
    if (cells := max(slots * budget, chances.size) * min(budget, chances.size)) > _MOST_CELLS:
        raise InputError(
            f"{slots:,} slots, {budget:,} tokens and prompts of up to {chances.size - 1:,} make "
            f"{cells:,.0f} cases for each step, more than {_MOST_CELLS:,.0f}, so the exact region "
            "takes too long; with prompts of many pieces the region itself is near it"
        )
    seconds = np.asarray(server.batch_time.table(budget), np.float64)
    # Where a larger batch is faster, what the theorem says of the least that such a batch or a
    # larger one takes bounds what can be carried, and of the most up to it what is.
    least = np.append(0.0, np.minimum.accumulate(seconds[:0:-1])[::-1])
    most = np.maximum.accumulate(seconds)
    return least, most, slots, chances


def solve(seconds: Floats, slots: int, chances: Floats, decodes: float, gap: float) -> ExactRegion:
    """Return the same for seconds by token load, and chances by tokens of a prompt, from 0 on."""
    program = _Program(seconds, min(slots, seconds.size - 1), chances, decodes)
    rate, upper, best = 0.0, np.inf, None
    for _ in range(_MOST_STEPS):
        rate, pieces, decode = program.mixed()
        news = 0
        for share in (_SMOOTH, 0.0):
            near, near_decode = best or (pieces, decode)
            tried = (
                share * near + (1 - share) * pieces,
                share * near_decode + (1 - share) * decode,
            )
            bound, news = program.priced(*tried, rate, pieces, decode)
            if bound < upper:
                upper, best = bound, tried
            if news:
                break
        if upper <= rate * (1 + gap) or not news:
            break
    assert best is not None
    dearest, _ = program.dearest(*best)
    costs, _, _ = program.cut(best[0])
    most = dearest.max()
    return ExactRegion(rate, float(upper), best[0] / most, float(best[1] / most), costs / most)


class _Program:
    """The batches and cuttings that are known so far."""

    def __init__(self, seconds: Floats, slots: int, chances: Floats, decodes: float) -> None:
        self.seconds, self.slots, self.chances, self.decodes = seconds, slots, chances, decodes
        self.budget, self.largest = seconds.size - 1, min(seconds.size, chances.size) - 1
        self.batches: dict[tuple[int, ...], tuple[Floats, int, float]] = {}
        self.cuttings: list[Floats] = []
        for size in np.unique(np.linspace(1, self.largest, 24).astype(int)):
            self._add(np.array([size]), min(slots - 1, self.budget - size))
            dear = np.where(np.arange(self.largest + 1) <= size, 1.0, 50.0)
            self.cuttings.append(self.cut(dear)[2])
        self._add(np.empty(0, np.int64), slots)

    def _add(self, pieces: Ints, decodes: int) -> bool:
        """Add a batch of such pieces and decodes, and say whether it is new."""
        key = (*sorted(pieces.tolist()), -decodes)
        if key in self.batches or not pieces.sum() + decodes:
            return False
        counts = np.bincount(pieces, minlength=self.largest + 1).astype(np.float64)
        self.batches[key] = counts, decodes, float(self.seconds[pieces.sum() + decodes])
        return True

    def mixed(self) -> tuple[float, Floats, float]:
        """Return the requests/s of the best mix of what is known, and its prices."""
        from scipy.optimize import linprog  # takes a while to load, and few servers need it

        size, cuttings = self.largest, len(self.cuttings)
        batches = list(self.batches.values())
        made = np.array([counts[1:] / seconds for counts, _, seconds in batches]).T
        decoded = np.array([decodes / seconds for _, decodes, seconds in batches])
        # A place for a piece may hold a smaller one.
        smaller = np.eye(size, size - 1, -1) - np.eye(size, size - 1)
        none = np.zeros(size - 1)
        rows = np.vstack([
            np.hstack([np.array(self.cuttings)[:, 1:].T, -made, smaller]),
            np.concatenate([np.full(cuttings, self.decodes), -decoded, none]),
            np.concatenate([np.zeros(cuttings), np.ones(len(batches)), none]),
        ])  # fmt: skip
        aim = np.concatenate([-np.ones(cuttings), np.zeros(len(batches) + size - 1)])
        limits = np.append(np.zeros(size + 1), 1.0)
        solved = linprog(aim, A_ub=rows, b_ub=limits, method="highs")
        if solved.status:
            raise InputError(
                f"the program of the exact region has no solution here ({solved.message}); leave "
                "--exact out, or ask `max-rate`, which simulates"
            )
        prices = np.maximum(-solved.ineqlin.marginals, 0.0)
        return float(-solved.fun), np.append(0.0, prices[:size]), float(prices[size])

    def priced(
        self, pieces: Floats, decode: float, rate: float, now: Floats, decode_now: float
    ) -> tuple[float, int]:
        """Return the requests/s that no policy exceeds by some prices, and how many columns they
        bring that are worth more at those of ``now``.
        """
        dearest, contents = self.dearest(pieces, decode)
        _, mean, cutting = self.cut(pieces)
        news = 0
        for places in np.argsort(-dearest)[:8]:
            batch, decodes = contents(int(places))
            load = int(batch.sum()) + decodes
            worth = (now[batch].sum() + decode_now * decodes) / self.seconds[max(load, 1)]
            if worth > rate * (1 + _EQUAL):
                news += self._add(batch, decodes)
        if now @ cutting + decode_now * self.decodes < 1 - _EQUAL:
            self.cuttings.append(cutting)
            news += 1
        cost = mean + decode * self.decodes
        return float(dearest.max() / cost) if cost > 0 else np.inf, news

    def dearest(self, pieces: Floats, decode: float) -> tuple[Floats, "_Contents"]:
        """Return what the dearest batch of each number of pieces earns per second, and what is in
        them.
        """
        slots, budget = self.slots, self.budget
        worth = np.full((slots + 1, budget + 1), -np.inf)
        worth[0, 0] = 0.0
        chosen = np.zeros(worth.shape, np.int64)
        falling = pieces[:0:-1]
        for places in range(1, slots + 1):
            before = np.concatenate([np.full(falling.size, -np.inf), worth[places - 1]])
            sums = sliding_window_view(before, falling.size)[: budget + 1] + falling
            best = sums.argmax(axis=1)
            worth[places], chosen[places] = sums[np.arange(budget + 1), best], falling.size - best
        earned, tokens, decodes = (
            np.full(slots + 1, -np.inf),
            np.zeros(slots + 1, np.int64),
            np.zeros(slots + 1, np.int64),
        )
        for places in range(slots + 1):
            beside = np.arange(slots - places + 1)
            load = np.arange(budget + 1)[:, None] + beside
            fits = (load <= budget) & (load > 0)
            rates = np.where(
                fits,
                (worth[places][:, None] + decode * beside) / self.seconds[np.clip(load, 1, budget)],
                -np.inf,
            )
            tokens[places], decodes[places] = np.unravel_index(rates.argmax(), rates.shape)
            earned[places] = rates[tokens[places], decodes[places]]
        return earned, _Contents(chosen, tokens, decodes)

    def cut(self, pieces: Floats) -> tuple[Floats, float, Floats]:
        """Return the least that prompts of each length cost, the mean, and their pieces by size."""
        longest, largest = self.chances.size - 1, self.largest
        costs, first = np.zeros(longest + 1), np.zeros(longest + 1, np.int64)
        for left in range(1, longest + 1):
            most = min(largest, left)
            whole = pieces[1 : most + 1] + costs[left - most : left][::-1]
            first[left] = 1 + int(whole.argmin())
            costs[left] = whole[first[left] - 1]
        counts, ahead = np.zeros(largest + 1), self.chances.copy()
        for left in range(longest, 0, -1):
            counts[first[left]] += ahead[left]
            ahead[left - first[left]] += ahead[left]
        return costs, float(self.chances @ costs), counts


class _Contents(NamedTuple):
    """What is in the dearest batches, by number of pieces."""

    chosen: Ints  # the last piece, by number and tokens of all; shape (slots + 1, budget + 1)
    tokens: Ints
    decodes: Ints

    def __call__(self, places: int) -> tuple[Ints, int]:
        """Return the pieces and decodes of the dearest batch of so many pieces."""
        left, pieces = int(self.tokens[places]), []
        for place in range(places, 0, -1):
            pieces.append(int(self.chosen[place, left]))
            left -= pieces[-1]
        return np.array(pieces, np.int64), int(self.decodes[places])


def _chances(lengths: Lengths) -> Floats:
    """Return the chance of each number of tokens of a prompt, from 0 to the longest."""
    if lengths.max_prompt is None:
        raise InputError("prompts have no upper limit, so no batches can be priced; give a `max`")
    if isinstance(lengths, Empirical):
        return np.bincount(lengths.prompt_tokens) / lengths.prompt_tokens.size
    reached = None
    if isinstance(lengths, Independent):
        reached = lengths.prompt.reaches(np.arange(1.0, lengths.max_prompt + 2))
    if reached is None:
        raise InputError(
            "the chance of each length of a prompt is not known, so no batches can be priced; give "
            "one of Penstock's distributions, or recorded lengths"
        )
    return np.append(0.0, np.maximum(-np.diff(reached), 0.0))
