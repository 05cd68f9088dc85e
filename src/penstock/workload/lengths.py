"""How long requests are: prompt and output tokens, one distribution each or both together.

Every length is a whole number from 1 to `LONGEST`. Means are exact means of those whole numbers,
because load and certificates rest on them. Give ``max`` to cut longer draws to a limit, as an
engine's ``max_tokens`` does; without one an unbounded distribution leaves Theorem 1(b) without its
hypothesis of bounded lengths.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Key
from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats

LONGEST = 2**24 - 1
"""Longest prompt or output, tokens."""

Tokens = npt.NDArray[np.int64]

_MEAN = Key("mean")  # as files call it
_CELLS = 2**15  # of a table of quantiles; a power of two, so that multiplying by it is exact
_TERM_BY_TERM = 2**16  # further terms of a mean come from an integral, which so far out is as exact


def _check_tokens(what: str, value: float) -> int:
    return checks.whole(what, value, 1, LONGEST, "tokens", "a request has at least one token")


def _check_mean(what: str, value: float) -> None:
    checks.number(what, value, 1, LONGEST, "tokens", "a request has at least one token")


def _check_cv(what: str, value: float) -> None:
    checks.number(
        what,
        value,
        1e-3,
        10,
        "",
        "it is the standard deviation over the mean, no percentage; for one length use Constant",
    )


def settle(lengths: object, **values: object) -> None:
    """Set a frozen record's attributes: checked parameters, and what follows from them."""
    for name, value in values.items():
        object.__setattr__(lengths, name, value)


class Length(abc.ABC):
    """Distribution of one length, in tokens."""

    max: int | None
    """Largest value; None: no limit but `LONGEST`."""

    min: int = 1
    """Smallest value, or a lower limit of it."""

    mean: float
    """Exact mean, tokens."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""

    def reaches(self, tokens: Floats) -> Floats | None:
        """Return P(N >= tokens), tokens >= 1, for theorems; None: not known."""
        chance = self._reaches(tokens)
        if chance is None:
            return None
        chance = np.where(tokens > 1, chance, 1.0)
        return np.where(tokens <= (self.max or LONGEST), chance, 0.0)

    def _reaches(self, tokens: Floats) -> Floats | None:
        """Return the same above 1 and up to the largest value."""
        return None


@dataclasses.dataclass(frozen=True)
class Constant(Length):
    """Always the same length.

    Parameters
    ----------
    tokens
        The length.
    """

    tokens: int

    def __post_init__(self) -> None:
        tokens = _check_tokens("a constant length", self.tokens)
        settle(self, tokens=tokens, min=tokens, max=tokens, mean=float(tokens))

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Return the length, so many times."""
        return np.full(size, self.tokens, np.int64)

    def _reaches(self, tokens: Floats) -> Floats:
        return np.ones(tokens.shape)


@dataclasses.dataclass(frozen=True)
class Uniform(Length):
    """Every whole number from ``low`` to ``high`` alike, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        low = _check_tokens("the low end of a uniform length", self.low)
        high = _check_tokens("the high end of a uniform length", self.high)
        if high < low:
            raise InputError(
                f"a uniform length from {low:,} to {high:,} tokens ends below where it begins; "
                "swap them"
            )
        settle(self, low=low, high=high, min=low, max=high, mean=(low + high) / 2)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""
        return rng.integers(self.low, self.high, size, endpoint=True)

    def _reaches(self, tokens: Floats) -> Floats:
        return np.clip((self.high - tokens + 1) / float(self.high - self.low + 1), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Geometric(Length):
    """Geometric on 1, 2, ...: every token is the last with the same probability.

    Parameters
    ----------
    mean_tokens
        Mean before cutting.
    max
        Longer draws are cut to it; None: no limit but `LONGEST`.
    """

    mean_tokens: Annotated[float, _MEAN]
    max: int | None = None

    def __post_init__(self) -> None:
        _check_mean("the mean of a geometric length", self.mean_tokens)
        _check_max(self)
        mean = 1.0
        if self.mean_tokens > 1:  # m (1 - (1 - 1/m)^max)
            mean = -self.mean_tokens * math.expm1(
                (self.max or LONGEST) * math.log1p(-1 / self.mean_tokens)
            )
        settle(self, mean=mean)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""
        return np.minimum(rng.geometric(1 / self.mean_tokens, size), self.max or LONGEST)

    def _reaches(self, tokens: Floats) -> Floats:
        return np.asarray((1 - 1 / self.mean_tokens) ** (tokens - 1))


@dataclasses.dataclass(frozen=True)
class _Rounded(Length):
    """A continuous distribution, rounded to whole tokens of at least 1 and cut to ``max``.

    Parameters
    ----------
    mean_tokens
        Mean before rounding and cutting.
    cv
        Standard deviation over mean, before rounding and cutting.
    max
        Longer draws are cut to it; None: no limit but `LONGEST`.
    """

    mean_tokens: Annotated[float, _MEAN]
    cv: float
    max: int | None = None

    def __post_init__(self) -> None:
        what = f"a {type(self).__name__.lower()} length"
        _check_mean(f"the mean of {what}", self.mean_tokens)
        _check_cv(f"the cv of {what}", self.cv)
        _check_max(self)

    @abc.abstractmethod
    def _draw(self, rng: np.random.Generator, size: int) -> Floats:
        """Draw before rounding."""

    @abc.abstractmethod
    def _above(self, x: npt.ArrayLike) -> Floats:
        """Return P(X > x) before rounding."""

    @abc.abstractmethod
    def _excess(self, x: float) -> float:
        """Return E[(X - x)+] before rounding, the integral of P(X > .) from x on."""

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw, round and cut."""
        return np.clip(np.rint(self._draw(rng, size)), 1, self.max or LONGEST).astype(np.int64)

    def _reaches(self, tokens: Floats) -> Floats:
        return self._above(tokens - 0.5)

    @functools.cached_property
    def mean(self) -> float:  # type: ignore[override]
        """Exact mean after rounding and cutting."""
        # E[N] = 1 + sum over n >= 2 of P(N >= n), and P(N >= n) = P(X > n - 1/2) up to the limit
        limit = self.max or LONGEST
        last = min(limit, _TERM_BY_TERM)
        near = float(self._above(np.arange(2, last + 1) - 0.5).sum())
        return 1 + near + (self._excess(last) - self._excess(limit) if last < limit else 0.0)


@dataclasses.dataclass(frozen=True)
class LogNormal(_Rounded):
    """Lognormal, rounded to whole tokens: by ``mean_tokens`` and ``cv`` before rounding, and cut to
    ``max``.
    """

    @property
    def _sigma(self) -> float:
        return math.sqrt(math.log1p(self.cv**2))

    @property
    def _mu(self) -> float:
        return math.log(self.mean_tokens) - self._sigma**2 / 2

    def _draw(self, rng: np.random.Generator, size: int) -> Floats:
        return rng.lognormal(self._mu, self._sigma, size)

    def _above(self, x: npt.ArrayLike) -> Floats:
        return np.asarray(special.ndtr((self._mu - np.log(x)) / self._sigma))

    def _excess(self, x: float) -> float:
        z = (self._mu - math.log(x)) / self._sigma
        return float(self.mean_tokens * special.ndtr(z + self._sigma) - x * special.ndtr(z))


@dataclasses.dataclass(frozen=True)
class Gamma(_Rounded):
    """Gamma, rounded to whole tokens: by ``mean_tokens`` and ``cv`` before rounding, and cut to
    ``max``.
    """

    @property
    def _shape(self) -> float:
        return 1 / self.cv**2

    @property
    def _scale(self) -> float:
        return self.mean_tokens * self.cv**2

    def _draw(self, rng: np.random.Generator, size: int) -> Floats:
        return rng.gamma(self._shape, self._scale, size)

    def _above(self, x: npt.ArrayLike) -> Floats:
        return np.asarray(special.gammaincc(self._shape, np.divide(x, self._scale)))

    def _excess(self, x: float) -> float:
        above = special.gammaincc([self._shape + 1, self._shape], x / self._scale)
        return float(self.mean_tokens * above[0] - x * above[1])


def _check_max(length: Geometric | _Rounded) -> None:
    if length.max is None:
        return
    most = _check_tokens("the max of a length", length.max)
    if most < length.mean_tokens:
        raise InputError(
            f"the max of a length is {most:,} tokens, below its mean of {length.mean_tokens:,.6g}, "
            "so most draws would be cut to it; raise the max, or give the mean of what is sent"
        )
    settle(length, max=most)


@dataclasses.dataclass(frozen=True)
class Mixture(Length):
    """One of several distributions, chosen anew for each request.

    Parameters
    ----------
    parts
        The distributions.
    weights
        Their shares, scaled to add up to 1.
    """

    parts: Sequence[Length]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Iterable):
            raise InputError(
                f"the parts of a mixture are {checks.shown(self.parts)}; give a list of "
                "distributions"
            )
        parts = tuple(self.parts)
        weights = checks.column("mixture weights", self.weights).astype(np.float64)
        for part in parts:
            if not isinstance(part, Length):
                raise InputError(
                    f"a part of a mixture is {checks.shown(part)}; give distributions such as "
                    "Constant(100)"
                )
        if len(parts) != weights.size:
            raise InputError(
                f"a mixture of {len(parts)} parts with {weights.size} weights: give one weight "
                "per part"
            )
        shares = tuple(_shares("mixture weights", weights).tolist())
        limits = [part.max for part in parts]
        settle(
            self,
            parts=parts,
            weights=shares,
            min=min(part.min for part in parts),
            max=None if None in limits else max(filter(None, limits)),
            mean=sum(share * part.mean for share, part in zip(shares, parts, strict=True)),
        )

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw a part for each length, then the length."""
        choice = rng.choice(len(self.parts), size, p=self.weights)
        drawn = np.empty(size, np.int64)
        for index, part in enumerate(self.parts):
            chosen = choice == index
            drawn[chosen] = part.sample(rng, int(chosen.sum()))
        return drawn

    def reaches(self, tokens: Floats) -> Floats | None:
        """Return P(N >= tokens), tokens >= 1; None: it is not known of a part."""
        parts = [part.reaches(tokens) for part in self.parts]
        if any(part is None for part in parts):
            return None
        return np.asarray(np.array(self.weights) @ np.array(parts))


@dataclasses.dataclass(frozen=True, eq=False)
class Tabulated(Length):
    """A distribution given by its probabilities."""

    low: int  # smallest value, tokens
    probabilities: Floats  # of low, low + 1, ...; scaled to add up to 1

    def __post_init__(self) -> None:
        low = _check_tokens("the smallest tabulated length", self.low)
        probabilities = checks.column("probabilities", self.probabilities).astype(np.float64)
        high = _check_tokens("the largest tabulated length", low + probabilities.size - 1)
        shares = _shares("probabilities", probabilities)
        # no `@`: what BLAS makes of long sums depends on its threads
        mean = float(np.sum((low + np.arange(shares.size)) * shares))
        settle(self, low=low, probabilities=shares, min=low, max=high, mean=mean)

    @functools.cached_property
    def _cumulative(self) -> Floats:
        cumulative = np.cumsum(self.probabilities)
        return cumulative / float(cumulative[-1])

    @functools.cached_property
    def _guide(self) -> Tokens:
        """Of each multiple of 1 / `_CELLS`, how many cumulative probabilities lie below it."""
        return np.searchsorted(self._cumulative, np.arange(_CELLS + 1) / _CELLS).astype(np.int64)

    def quantile(self, share: Floats) -> Tokens:
        """Return the smallest length whose cumulative probability reaches each share, 0 to 1."""
        # Imported here, as it loads a compiler that a look at a workload does without.
        from penstock.kernel.quantiles import compiled_find_quantiles

        lengths = np.empty(share.size, np.int64)
        shares = np.ascontiguousarray(share, np.float64)
        compiled_find_quantiles()(shares, self._cumulative, self._guide, lengths)
        lengths += self.low
        return lengths

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw by inversion."""
        return self.quantile(rng.random(size))

    def _reaches(self, tokens: Floats) -> Floats:
        beyond = np.r_[np.cumsum(self.probabilities[::-1])[::-1], 0.0]
        place = np.clip(tokens.astype(np.int64) - self.low, 0, beyond.size - 1)
        return np.asarray(beyond[place])


BY_MEAN: dict[str, type[Length]] = {"geometric": Geometric, "lognormal": LogNormal, "gamma": Gamma}
"""Distributions that go by a mean, by what files call them."""


def _shares(what: str, weights: Floats) -> Floats:
    """Scale weights to add up to 1."""
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{what}[{row}] is {weights[row]}, but a share must not be negative; mend or drop it"
        )
    largest = float(weights.max())
    if largest == 0:
        raise InputError(f"{what} are all 0, so nothing is ever chosen; make one of them positive")
    weights = weights / largest  # or the sum of large ones would overflow
    return weights / float(weights.sum())


def as_length(name: str, length: int | Length) -> Length:
    """Return a length given as tokens as a `Constant`, and a distribution as it is."""
    if isinstance(length, Length):
        return length
    remedy = "give tokens, or a distribution such as Geometric(112)"
    return Constant(checks.whole(name, length, 1, LONGEST, "tokens", remedy))


class Lengths(abc.ABC):
    """Prompt and output of a request, together."""

    iid: bool = True
    """Whether requests are independent and identically distributed."""

    mean_prompt: float
    """Exact mean prompt, tokens."""
    mean_output: float
    """Exact mean output, tokens."""
    max_prompt: int | None
    """Longest prompt, tokens; None: no limit but `LONGEST`."""
    max_output: int | None
    """Longest output, tokens; None: no limit but `LONGEST`."""
    rows: int | None = None
    """How many requests were recorded, to be taken in order; None: they are drawn without end."""
    min_prompt: int = 1
    """Shortest prompt, or a lower limit of it, tokens."""
    min_output: int = 1
    """Shortest output, or a lower limit of it, tokens."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw (prompt, output) tokens of so many requests."""

    def at_random(self) -> "Lengths":
        """Return the same lengths, drawn at random if they are recorded."""
        return self


@dataclasses.dataclass(frozen=True)
class Independent(Lengths):
    """Prompt and output drawn apart, or joined by a Gaussian copula."""

    prompt: Length
    output: Length
    correlation: float = 0.0  # of the Gaussian copula; not 0 only for two `Tabulated` ones

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            length = getattr(self, name)
            if not isinstance(length, Length):
                raise InputError(
                    f"{name} is {checks.shown(length)}, but must be a distribution of lengths "
                    "such as Constant(100)"
                )
            settle(
                self,
                **{
                    f"mean_{name}": length.mean,
                    f"max_{name}": length.max,
                    f"min_{name}": length.min,
                },
            )
        checks.number(
            "the correlation", self.correlation, -1, 1, "", "a Gaussian copula knows no other"
        )
        if self.correlation and not (
            isinstance(self.prompt, Tabulated) and isinstance(self.output, Tabulated)
        ):
            raise InputError(
                f"the correlation is {self.correlation}, but only tabulated prompts and outputs "
                "can be joined; use Empirical rows instead"
            )

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw requests."""
        if isinstance(self.prompt, Tabulated) and isinstance(self.output, Tabulated):
            # As rng.standard_normal, which would not let other threads work meanwhile.
            first, second = rng.normal(size=(2, size))
            second *= np.sqrt(1 - self.correlation**2)
            second += self.correlation * first
            prompt = self.prompt.quantile(special.ndtr(first))
            return prompt, self.output.quantile(special.ndtr(second))
        return self.prompt.sample(rng, size), self.output.sample(rng, size)


@dataclasses.dataclass(frozen=True, eq=False)
class Empirical(Lengths):
    """Recorded requests, prompt and output together, drawn at random with replacement.

    Parameters
    ----------
    prompt_tokens, output_tokens
        Shape (rows,), tokens.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            tokens = checked_lengths(f"{name}_tokens", getattr(self, f"{name}_tokens"))
            mean, most, least = float(tokens.mean()), int(tokens.max()), int(tokens.min())
            settle(
                self,
                **{
                    f"{name}_tokens": tokens,
                    f"mean_{name}": mean,
                    f"max_{name}": most,
                    f"min_{name}": least,
                },
            )
        if self.prompt_tokens.size != self.output_tokens.size:
            raise InputError(
                f"{self.prompt_tokens.size:,} prompts and {self.output_tokens.size:,} outputs: "
                "a request has one of each, so give as many of both"
            )

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw rows."""
        rows = rng.integers(0, self.prompt_tokens.size, size)
        return self.prompt_tokens[rows], self.output_tokens[rows]


class Recorded(Empirical):
    """Recorded requests, to be taken in their own order, once."""

    iid = False

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, rows=self.prompt_tokens.size)

    def at_random(self) -> Empirical:
        """Return the same rows, drawn at random."""
        return Empirical(self.prompt_tokens, self.output_tokens)


def checked_lengths(name: str, tokens: npt.ArrayLike) -> Tokens:
    """Return lengths as int64, or raise an `InputError` that names the first bad one."""
    lengths = checks.column(name, tokens)
    bad = ~((lengths >= 1) & (lengths <= LONGEST) & (lengths == np.floor(lengths)))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{name}[{row}] is {lengths[row]}, but a length is a whole number from 1 to "
            f"{LONGEST:,} tokens; drop or mend that row"
        )
    return lengths.astype(np.int64)


def pair_of(prompt: int | Length | Lengths, output: int | Length | None) -> Lengths:
    """Return prompts and outputs together, from a distribution of each or a joint one."""
    if isinstance(prompt, Lengths):
        if output is not None:
            raise InputError("a joint distribution gives prompt and output; leave `output` out")
        return prompt
    if output is None:
        raise InputError(
            "no output length given; give tokens, a distribution, or a joint distribution as "
            "`prompt`"
        )
    return Independent(as_length("prompt", prompt), as_length("output", output))
