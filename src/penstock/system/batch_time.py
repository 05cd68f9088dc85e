"""How long a batch takes: seconds as a function of its token load, or of what is in it.

Every model is a frozen dataclass that answers `batch_time(tokens)`, element by element for arrays.
An empty batch is no batch: it takes 0 s (the paper's formula would give c; its dynamics need 0).
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Key, Range, in_keys, keys_of
from penstock.inputs.arrays import Floats
from penstock.inputs.caching import cached

if TYPE_CHECKING:
    from penstock.system.uncertain import Known

MOST_TOKENS = 2**20
"""Largest token budget: batch times are tabulated up to it."""

LONGEST_S = 1e6
SHORTEST_S = 1e-12


def _cost(of: str = "") -> Range:
    """Return what a cost may be."""
    why = "no batch takes negative time, or days; give seconds, not ms or us"
    return Range(0, LONGEST_S, f"s {of}".rstrip(), why)


_BLOCK = Range(1, MOST_TOKENS, "tokens", "a block holds a whole number of tokens")
_FREE = Range(0, MOST_TOKENS, "tokens", "so many come at no extra cost")
_PER_TOKEN = _cost("per token")
_PER_PAIR = _cost("per pair of tokens")
_OF_CONTEXT = _cost("per token of context")
_C_MS = Key("c_ms", 1e3, "ms")
_A_MS = Key("a_ms_per_token", 1e3, "ms per token")


class BatchTime(abc.ABC):
    """Seconds that one forward pass takes, given the tokens in it."""

    by_load: bool = True
    """Whether the token load alone decides; else what `batch_time(tokens)` says is the least."""

    @property
    def by_tokens(self) -> "BatchTime":
        """The part that goes by token load: all of it, unless what is in a batch counts, too."""
        return self

    @abc.abstractmethod
    def _seconds(self, tokens: Floats) -> Floats:
        """Seconds for each positive token load."""

    def __call__(self, tokens: npt.ArrayLike) -> Floats:
        """Return the seconds of batches with so many tokens; 0 for an empty one.

        Parameters
        ----------
        tokens
            Any shape, tokens per batch, not negative.

        Raises
        ------
        InputError
            If a token load is no finite number of at least 0, or beyond what was measured.
        """
        load = checks.array("a token load", tokens)
        bad = ~(np.isfinite(load) & (load >= 0))
        if bad.any():
            raise InputError(
                f"a batch of {load[bad][0]} tokens: a token load is a finite number of at least "
                "0; mend it"
            )
        return np.where(load > 0, self._checked(np.where(load > 0, load, 1.0)), 0.0)

    def _checked(self, tokens: Floats) -> Floats:
        """Return what the model says, unless it is no time that a batch can take."""
        what = f"what {type(self).__name__}._seconds returns"
        seconds = checks.array(what, self._seconds(tokens))
        if seconds.shape != tokens.shape:
            raise InputError(
                f"{what} has the shape {seconds.shape} for token loads of shape {tokens.shape}, so "
                "which batch takes how long is unclear; return one number of seconds for each load"
            )
        bad = ~(np.isfinite(seconds) & (seconds > 0))
        if bad.any():
            raise InputError(
                f"{what} for {tokens[bad][0]:g} tokens is {seconds[bad][0]:g} s, but a batch takes "
                "a positive, finite time; mend the model"
            )
        return seconds

    def of_batches(
        self,
        prefill_tokens: npt.ArrayLike,
        decode_tokens: npt.ArrayLike,
        requests: npt.ArrayLike,
        squares: npt.ArrayLike,
        pairs: npt.ArrayLike,
        context: npt.ArrayLike,
    ) -> Floats:
        """Return the seconds of batches given what they add up to; 0 for an empty one.

        Parameters
        ----------
        prefill_tokens, decode_tokens, requests
            Any equal shapes: tokens in each phase, and requests.
        squares, pairs
            Over prompts, each with n new tokens and l before them: the sums of n^2 and of n l.
        context
            Over decodes: the sum of tokens before them.
        """
        return self(
            checks.array("prefill_tokens", prefill_tokens)
            + checks.array("decode_tokens", decode_tokens)
        )

    def of_batch(
        self, prefill: Sequence[tuple[int, int]] = (), decode: Sequence[int] = ()
    ) -> float:
        """Return the seconds of one batch.

        Parameters
        ----------
        prefill
            (new tokens, tokens before them) of each prompt.
        decode
            Tokens before each decode: its prompt, and what it has put out.
        """
        new, before = _counts("prefill", prefill, 2).T
        (decodes,) = _counts("decode", decode, 1).T
        sums = ((new * new).sum(), (new * before).sum(), decodes.sum())
        return float(self.of_batches(new.sum(), decodes.size, new.size + decodes.size, *sums))

    def scaled(self, factor: float) -> "BatchTime":
        """Return times so many times as long, as of another machine."""
        return _Scaled(self, factor)

    def with_host(self, seconds: float) -> "BatchTime":
        """Return times so many seconds longer: the host's between two batches."""
        raise InputError(
            f"{checks.shown(self)} is a model of your own, to which you alone can add the host's "
            "time; give another"
        )

    def as_section(self) -> dict[str, Any]:
        """Return the model as a scenario's ``batch_time`` says it."""
        raise InputError(
            f"{checks.shown(self)} is a model of your own, which a file cannot hold; give a table "
            "of it, Measured"
        )

    def table(self, token_budget: int) -> Floats:
        """Return t_b for b = 0 .. token_budget, in seconds; shape (token_budget + 1,)."""
        remedy = "a batch carries at least one token"
        return self(
            np.arange(
                checks.whole("the token budget", token_budget, 1, MOST_TOKENS, "tokens", remedy) + 1
            )
        )

    def capacity(self, token_budget: int) -> float:
        """Return the most tokens per second that batches within the budget can carry.

        It is max over 1 <= b <= token_budget of b / t_b, which is b_max / t_bmax where a fuller
        batch is never slower per token (the paper's Assumption 1).
        """
        return self.best_load(token_budget)[1]

    @cached(256)
    def rate_of(self, tokens: int) -> float:
        """Return the tokens/s of batches of so many tokens."""
        return tokens / float(self(tokens))

    @cached(256)
    def best_load(self, token_budget: int) -> tuple[int, float]:
        """Return the token load at which b / t_b is largest, and that rate in tokens/s."""
        seconds = self.table(token_budget)[1:]
        rates = np.arange(1, seconds.size + 1) / seconds
        best = int(np.argmax(rates))
        return best + 1, float(rates[best])


@dataclasses.dataclass(frozen=True)
class _Scaled(BatchTime):
    """A model of the user's own, so many times as long."""

    model: BatchTime
    factor: float

    def _seconds(self, tokens: Floats) -> Floats:
        return self.factor * self.model._seconds(tokens)


class _Formula(Checked, BatchTime):
    """Batch times by a formula: what every batch takes, and what is more with its tokens."""

    c: float
    a: float

    def scaled(self, factor: float) -> BatchTime:
        """Return times so many times as long."""
        return dataclasses.replace(self, c=self.c * factor, a=self.a * factor)  # type: ignore[type-var]

    def with_host(self, seconds: float) -> BatchTime:
        """Return times so many seconds longer."""
        return dataclasses.replace(self, c=self.c + seconds)  # type: ignore[type-var]

    def as_section(self) -> dict[str, Any]:
        """Return the formula under its name."""
        return {type(self).__name__.lower(): in_keys(self)}

    def settle(self) -> None:
        """Refuse one by which a token takes no time."""
        if self._seconds(np.ones(1))[0] < SHORTEST_S:
            raise InputError(
                f"{self} takes no time for one token, so its capacity is infinite; give a positive "
                "c or a"
            )


@dataclasses.dataclass(frozen=True)
class PiecewiseConstant(_Formula):
    """t_b = c + a ceil(b / b0): a step for every block of b0 tokens (paper,
    eq:batch-processing-time).

    Parameters
    ----------
    c
        Seconds that every batch takes, whatever is in it.
    a
        Seconds per block.
    b0
        Tokens per block.
    """

    c: Annotated[float, _cost(), _C_MS]
    a: Annotated[float, _cost(), Key("a_ms", 1e3, "ms")]
    b0: Annotated[int, _BLOCK, Key("b0")]

    def as_section(self) -> dict[str, Any]:
        """Return c_ms, a_ms and b0."""
        return in_keys(self)

    def _seconds(self, tokens: Floats) -> Floats:
        return self.c + self.a * np.ceil(tokens / self.b0)


@dataclasses.dataclass(frozen=True)
class Affine(_Formula):
    """t_b = c + a b: a fixed cost, and a cost for every token.

    Parameters
    ----------
    c
        Seconds that every batch takes.
    a
        Seconds per token.
    """

    c: Annotated[float, _cost(), _C_MS]
    a: Annotated[float, _PER_TOKEN, _A_MS]

    def _seconds(self, tokens: Floats) -> Floats:
        return self.c + self.a * tokens


@dataclasses.dataclass(frozen=True)
class Hinge(_Formula):
    """t_b = c + a max(b - b0, 0): flat while memory-bound, then a cost for every further token.

    Parameters
    ----------
    c
        Seconds of a batch of up to b0 tokens.
    a
        Seconds for each token beyond.
    b0
        Tokens that come at no extra cost.
    """

    c: Annotated[float, _cost(), _C_MS]
    a: Annotated[float, _PER_TOKEN, _A_MS]
    b0: Annotated[float, _FREE, Key("b0")]

    def _seconds(self, tokens: Floats) -> Floats:
        return self.c + self.a * np.maximum(tokens - self.b0, 0.0)


def _ns(field: str) -> Key:
    return Key(f"{field}_ns", 1e9, "ns")


@dataclasses.dataclass(frozen=True)
class Composition(Checked, BatchTime):
    """Batch times that depend on what is in a batch (paper, Appendix A).

    A request with n new tokens in the batch and l before them adds ``per_request + self_attention
    n^2``, and ``cross_attention n l`` in prefill or ``decode_attention l`` in decode, to what the
    token load costs. The paper's t_b = c + a_1 sum n + a_2 sum n^2 + a_3 sum n l is
    ``Composition(Affine(c, a_1), a_2, a_3)``.

    Parameters
    ----------
    linear
        Seconds by token load: the linear layers, and what every batch takes.
    self_attention
        Seconds for each pair of new tokens of a request (a_2).
    cross_attention
        Seconds for each pair of a new token and one before it (a_3), in prefill.
    decode_attention
        Seconds for each token before a decode; None: as ``cross_attention``. Decodes read memory
        where prefill computes, so on real machines it is much larger.
    mixed_attention
        The same in a batch that has prefill, too; None: as ``decode_attention``.
    per_request
        Seconds for each request in the batch: sampling, and the engine's own work.
    with_prefill
        Seconds that a batch with prefill takes beside: engines run decodes alone from CUDA graphs,
        and others not.
    uncertainty
        How well these times are known; None: they are taken as exact.

    >>> batch_time = Composition(Affine(c=0.01, a=1e-4), self_attention=1e-8, cross_attention=2e-8)
    >>> batch_time.of_batch(prefill=[(512, 0)], decode=[1_000, 3_000])
    0.06410146
    """

    linear: BatchTime
    self_attention: Annotated[float, _PER_PAIR, _ns("self_attention")] = 0.0
    cross_attention: Annotated[float, _PER_PAIR, _ns("cross_attention")] = 0.0
    decode_attention: Annotated[float, _OF_CONTEXT, _ns("decode_attention")] | None = None
    mixed_attention: Annotated[float, _OF_CONTEXT, _ns("mixed_attention")] | None = None
    per_request: Annotated[float, _cost("per request"), Key("per_request_us", 1e6, "us")] = 0.0
    with_prefill: Annotated[float, _cost(), Key("with_prefill_ms", 1e3, "ms")] = 0.0
    uncertainty: "Known | None" = dataclasses.field(default=None, compare=False, repr=False)

    by_load = False

    def settle(self) -> None:
        """Refuse a linear part that is none."""
        if not isinstance(self.linear, BatchTime) or not self.linear.by_load:
            raise InputError(
                f"linear is {checks.shown(self.linear)}, but the linear layers take a time by "
                "token load; give a model such as Affine(c, a)"
            )

    @property
    def by_tokens(self) -> BatchTime:
        """The linear part."""
        return self.linear

    def scaled(self, factor: float) -> "Composition":
        """Return times so many times as long, without what is known of them."""
        known = {name: getattr(self, name) for name in keys_of(self)}
        costs: dict[str, Any] = {n: s if s is None else s * factor for n, s in known.items()}
        linear = self.linear.scaled(factor)
        return dataclasses.replace(self, linear=linear, uncertainty=None, **costs)

    def with_host(self, seconds: float) -> BatchTime:
        """Return times so many seconds longer."""
        return dataclasses.replace(self, linear=self.linear.with_host(seconds))

    @property
    def of_decodes(self) -> tuple[float, float]:
        """Seconds for each token before a decode: in a batch of decodes alone, and in one with
        prefill.
        """
        alone, mixed = self.decode_attention, self.mixed_attention
        if alone is None:
            alone = self.cross_attention
        if mixed is None:
            mixed = alone
        return alone, mixed

    def as_section(self) -> dict[str, Any]:
        """Return what batches take by token load, and what attention takes."""
        return {"composition": {"linear": self.linear.as_section(), **in_keys(self)}}

    def _seconds(self, tokens: Floats) -> Floats:
        """Return a time that no batch of so many tokens stays below: the fewest pairs."""
        # The fewest: nothing comes before these tokens.
        return self.linear._seconds(tokens) + self.self_attention * tokens + self.per_request

    def of_batches(
        self,
        prefill_tokens: npt.ArrayLike,
        decode_tokens: npt.ArrayLike,
        requests: npt.ArrayLike,
        squares: npt.ArrayLike,
        pairs: npt.ArrayLike,
        context: npt.ArrayLike,
    ) -> Floats:
        """Return the seconds of batches; see `BatchTime.of_batches`."""
        sums = (prefill_tokens, decode_tokens, requests, squares, pairs, context)
        x, y, k, nn, nl, before = (
            checks.array("what a batch adds up to", column) for column in sums
        )
        alone, mixed = self.of_decodes
        attention = (
            self.self_attention * (nn + y)
            + self.cross_attention * nl
            + np.where(x > 0, mixed, alone) * before
        )
        others = self.per_request * k + np.where(x > 0, self.with_prefill, 0.0)
        return np.where(x + y > 0, self.linear(x + y) + others + attention, 0.0)


def _counts(name: str, values: Sequence[Any], columns: int) -> Floats:
    """Return what is in a batch, shape (n, columns); refuse what counts no tokens."""
    if not len(values):
        return np.empty((0, columns))
    counts = checks.array(name, values)
    shape = (len(values), columns) if columns > 1 else (len(values),)
    if counts.shape != shape or not (np.isfinite(counts) & (counts >= 0)).all():
        what = (
            "pairs of tokens, (new, before)"
            if columns == 2
            else "numbers of tokens before each decode"
        )
        raise InputError(
            f"{name} is {checks.shown(values)}, but must be a list of {what}, none below 0; mend it"
        )
    return counts.reshape(-1, columns).astype(np.float64)
