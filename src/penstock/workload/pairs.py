"""Prompt and output of a request together: drawn apart, joined by a copula, or as recorded."""

import abc
import dataclasses

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs import special_functions as special
from penstock.workload.lengths import LONGEST, Length, Tabulated, Tokens, settle


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
    min_prompt: int = 1
    """Shortest prompt, or a lower limit of it, tokens."""
    min_output: int = 1
    """Shortest output, or a lower limit of it, tokens."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, size: int) -> tuple[Tokens, Tokens]:
        """Draw (prompt, output) tokens of so many requests."""


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
