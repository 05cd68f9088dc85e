"""How long requests are: prompt and output tokens, one distribution each or both together.

Every length is a whole number of at least 1. Means are exact means of those whole numbers, because load and
certificates rest on them. Give ``max`` to cut longer draws to a limit, as an engine's ``max_tokens`` does;
without one an unbounded distribution leaves Theorem 1(b) without its hypothesis of bounded lengths.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from penstock.errors import InputError

LONGEST = 2**24 - 1
"""Longest prompt or output, tokens."""

Tokens = npt.NDArray[np.int64]


def _whole(name: str, value: float) -> int:
    if isinstance(value, bool) or not np.isfinite(value) or value != int(value) or not 1 <= value <= LONGEST:
        raise InputError(f"{name} is {value} tokens, but must be a whole number from 1 to {LONGEST:,}")
    return int(value)


class Length(abc.ABC):
    """Distribution of one length, in tokens."""

    max: int | None
    """Largest value; None: unbounded."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""

    @property
    @abc.abstractmethod
    def mean(self) -> float:
        """Exact mean, tokens."""


@dataclasses.dataclass(frozen=True)
class Constant(Length):
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _whole("a constant length", self.tokens)

    @property
    def max(self) -> int:  # type: ignore[override]
        """The length."""
        return self.tokens

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Return the length, so many times."""
        return np.full(size, self.tokens, np.int64)

    @property
    def mean(self) -> float:
        """The length."""
        return float(self.tokens)


@dataclasses.dataclass(frozen=True)
class Uniform(Length):
    """Every whole number from ``low`` to ``high`` alike, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _whole("the low end of a uniform length", self.low)
        _whole("the high end of a uniform length", self.high)
        if self.high < self.low:
            raise InputError(f"a uniform length from {self.low} to {self.high} tokens: the high end is below the low one")

    @property
    def max(self) -> int:  # type: ignore[override]
        """The high end."""
        return self.high

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""
        return rng.integers(self.low, self.high, size, endpoint=True)

    @property
    def mean(self) -> float:
        """Middle of the range."""
        return (self.low + self.high) / 2


class _Rounded(Length):
    """A positive distribution, rounded to whole tokens of at least 1 and cut to ``max``."""

    max: int | None

    @abc.abstractmethod
    def _draw(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        """Draw before rounding."""

    @property
    @abc.abstractmethod
    def _law(self) -> Any:
        """The scipy distribution before rounding."""

    def _beyond(self, x: float) -> float:
        """Return E[(X - x)+], to sum the far tail in one piece."""
        value, _ = self._law.expect(lambda v: v - x, lb=x), 0
        return float(value)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw, round and cut."""
        return np.clip(np.rint(self._draw(rng, size)), 1, self.max or LONGEST).astype(np.int64)

    @functools.cached_property
    def _mean(self) -> float:
        # E[N] = sum over n >= 1 of P(N >= n), and P(N >= n) = P(X >= n - 1/2) for n >= 2
        last = min(self.max or LONGEST, 2**20)
        head = 1 + float(self._law.sf(np.arange(2, last + 1) - 0.5).sum())
        far = self._beyond(last) - self._beyond(self.max or LONGEST) if last < (self.max or LONGEST) else 0.0
        return head + far

    @property
    def mean(self) -> float:
        """Exact mean after rounding and cutting."""
        return self._mean


def _positive(what: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{what} is {value}, but must be positive")


def _bounded(maximum: int | None) -> None:
    if maximum is not None:
        _whole("max", maximum)


@dataclasses.dataclass(frozen=True)
class Geometric(Length):
    """Geometric on 1, 2, ...: every token is the last with the same probability.

    Parameters
    ----------
    mean_tokens
        Mean before cutting, at least 1.
    max
        Longer draws are cut to it; None: unbounded.
    """

    mean_tokens: float
    max: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean_tokens) and self.mean_tokens >= 1):
            raise InputError(f"the mean of a geometric length is {self.mean_tokens} tokens, but must be at least 1")
        _bounded(self.max)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw lengths."""
        return np.minimum(rng.geometric(1 / self.mean_tokens, size), self.max or LONGEST)

    @property
    def mean(self) -> float:
        """Exact mean: m (1 - (1 - 1/m)^max)."""
        if self.max is None:
            return float(self.mean_tokens)
        return self.mean_tokens * (1 - (1 - 1 / self.mean_tokens) ** self.max)


@dataclasses.dataclass(frozen=True)
class LogNormal(_Rounded):
    """Lognormal, rounded to whole tokens.

    Parameters
    ----------
    mean_tokens
        Mean before rounding and cutting.
    cv
        Standard deviation over mean.
    max
        Longer draws are cut to it; None: unbounded.
    """

    mean_tokens: float
    cv: float
    max: int | None = None

    def __post_init__(self) -> None:
        _positive("the mean of a lognormal length", self.mean_tokens)
        _positive("the cv of a lognormal length", self.cv)
        _bounded(self.max)

    @property
    def _sigma(self) -> float:
        return float(np.sqrt(np.log1p(self.cv**2)))

    @property
    def _mu(self) -> float:
        return float(np.log(self.mean_tokens) - self._sigma**2 / 2)

    @property
    def _law(self) -> Any:
        return stats.lognorm(s=self._sigma, scale=np.exp(self._mu))

    def _draw(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        return rng.lognormal(self._mu, self._sigma, size)

    def _beyond(self, x: float) -> float:
        above = (self._mu - np.log(x)) / self._sigma
        return float(self.mean_tokens * special.ndtr(above + self._sigma) - x * special.ndtr(above))


@dataclasses.dataclass(frozen=True)
class Gamma(_Rounded):
    """Gamma, rounded to whole tokens.

    Parameters
    ----------
    mean_tokens
        Mean before rounding and cutting.
    cv
        Standard deviation over mean.
    max
        Longer draws are cut to it; None: unbounded.
    """

    mean_tokens: float
    cv: float
    max: int | None = None

    def __post_init__(self) -> None:
        _positive("the mean of a gamma length", self.mean_tokens)
        _positive("the cv of a gamma length", self.cv)
        _bounded(self.max)

    @property
    def _law(self) -> Any:
        return stats.gamma(1 / self.cv**2, scale=self.mean_tokens * self.cv**2)

    def _draw(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
        return rng.gamma(1 / self.cv**2, self.mean_tokens * self.cv**2, size)

    def _beyond(self, x: float) -> float:
        shape, scale = 1 / self.cv**2, self.mean_tokens * self.cv**2
        return float(self.mean_tokens * stats.gamma.sf(x, shape + 1, scale=scale) - x * stats.gamma.sf(x, shape, scale=scale))


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

    parts: tuple[Length, ...]
    weights: tuple[float, ...]

    def __init__(self, parts: Sequence[Length], weights: Sequence[float]) -> None:
        if len(parts) != len(weights) or not parts:
            raise InputError(f"a mixture of {len(parts)} parts with {len(weights)} weights: give one weight per part")
        if min(weights) < 0 or not sum(weights) > 0 or not np.isfinite(sum(weights)):
            raise InputError(f"mixture weights {list(weights)}: none may be negative, and one must be positive")
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "weights", tuple(w / sum(weights) for w in weights))

    @property
    def max(self) -> int | None:  # type: ignore[override]
        """Largest of the parts' limits; None if one has none."""
        limits = [part.max for part in self.parts]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw a part for each length, then the length."""
        choice = rng.choice(len(self.parts), size, p=self.weights)
        drawn = np.empty(size, np.int64)
        for index, part in enumerate(self.parts):
            chosen = choice == index
            drawn[chosen] = part.sample(rng, int(chosen.sum()))
        return drawn

    @property
    def mean(self) -> float:
        """Weighted mean of the parts."""
        return sum(w * part.mean for w, part in zip(self.weights, self.parts, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class Tabulated(Length):
    """A distribution given by its probabilities.

    Parameters
    ----------
    low
        Smallest value, tokens.
    probabilities
        Of low, low + 1, ...; scaled to add up to 1.
    """

    low: int
    probabilities: npt.NDArray[np.float64]

    @property
    def max(self) -> int:  # type: ignore[override]
        """Largest value."""
        return self.low + self.probabilities.size - 1

    @functools.cached_property
    def _cumulative(self) -> npt.NDArray[np.float64]:
        cumulative = np.cumsum(self.probabilities)
        return cumulative / cumulative[-1]

    def quantile(self, share: npt.NDArray[np.float64]) -> Tokens:
        """Return the smallest length whose cumulative probability reaches each share."""
        return self.low + np.searchsorted(self._cumulative, share, side="left").clip(0, self.probabilities.size - 1)

    def sample(self, rng: np.random.Generator, size: int) -> Tokens:
        """Draw by inversion."""
        return self.quantile(rng.random(size))

    @property
    def mean(self) -> float:
        """Weighted mean."""
        values = self.low + np.arange(self.probabilities.size)
        return float(values @ self.probabilities / self.probabilities.sum())


class Lengths(abc.ABC):
    """Prompt and output of a request, together."""

    iid: bool = True
    """Whether requests are independent and identically distributed."""

    mean_prompt: float
    mean_output: float
    max_prompt: int | None
    max_output: int | None

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw (prompt, output) tokens of so many requests."""


@dataclasses.dataclass(frozen=True)
class Independent(Lengths):
    """Prompt and output drawn apart, or joined by a Gaussian copula.

    Parameters
    ----------
    prompt, output
        The two distributions.
    correlation
        Of the Gaussian copula between them; not 0 only for two `Tabulated` ones.
    """

    prompt: Length
    output: Length
    correlation: float = 0.0

    def __post_init__(self) -> None:
        joined = isinstance(self.prompt, Tabulated) and isinstance(self.output, Tabulated)
        if self.correlation and not joined:
            raise InputError("a correlation needs tabulated prompt and output distributions; use Empirical rows instead")

    @property
    def mean_prompt(self) -> float:  # type: ignore[override]
        """Exact mean prompt, tokens."""
        return self.prompt.mean

    @property
    def mean_output(self) -> float:  # type: ignore[override]
        """Exact mean output, tokens."""
        return self.output.mean

    @property
    def max_prompt(self) -> int | None:  # type: ignore[override]
        """Longest prompt, or None."""
        return self.prompt.max

    @property
    def max_output(self) -> int | None:  # type: ignore[override]
        """Longest output, or None."""
        return self.output.max

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw requests."""
        if isinstance(self.prompt, Tabulated) and isinstance(self.output, Tabulated):
            first, second = rng.standard_normal((2, size))
            second = self.correlation * first + np.sqrt(1 - self.correlation**2) * second
            return self.prompt.quantile(special.ndtr(first)), self.output.quantile(special.ndtr(second))
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
        for name in ("prompt_tokens", "output_tokens"):
            object.__setattr__(self, name, checked_lengths(name, getattr(self, name)))
        if self.prompt_tokens.size != self.output_tokens.size or not self.prompt_tokens.size:
            raise InputError(
                f"{self.prompt_tokens.size} prompts and {self.output_tokens.size} outputs: give one of each per request"
            )

    @property
    def mean_prompt(self) -> float:  # type: ignore[override]
        """Mean of the rows, tokens."""
        return float(self.prompt_tokens.mean())

    @property
    def mean_output(self) -> float:  # type: ignore[override]
        """Mean of the rows, tokens."""
        return float(self.output_tokens.mean())

    @property
    def max_prompt(self) -> int:  # type: ignore[override]
        """Longest prompt recorded."""
        return int(self.prompt_tokens.max())

    @property
    def max_output(self) -> int:  # type: ignore[override]
        """Longest output recorded."""
        return int(self.output_tokens.max())

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw rows."""
        rows = rng.integers(0, self.prompt_tokens.size, size)
        return self.prompt_tokens[rows], self.output_tokens[rows]


class Recorded(Empirical):
    """Recorded requests in their own order, once."""

    iid = False

    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Recorded rows are taken in order, never drawn."""
        raise NotImplementedError


def checked_lengths(name: str, tokens: npt.ArrayLike) -> Tokens:
    """Return lengths as int64, or raise an `InputError` that names the first bad one."""
    given = np.atleast_1d(np.asarray(tokens))
    if given.ndim != 1 or given.dtype.kind not in "iuf":
        raise InputError(f"{name} must be a one-dimensional array of numbers, not {given.dtype} of shape {given.shape}")
    bad = ~np.isfinite(given) | (given < 1) | (given > LONGEST) | (given != np.floor(given))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{name}[{row}] is {given[row]}, but a length is a whole number from 1 to {LONGEST:,} tokens; drop or mend that row"
        )
    return given.astype(np.int64)
