"""What a workload is given, checked: lengths, and what recorded requests have besides."""

import numbers

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.workload.lengths import Length, Tokens, as_length
from penstock.workload.pairs import Independent, Lengths, checked_lengths


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


def checked_priority(priority: npt.ArrayLike | None, rows: int) -> Tokens | None:
    """Return priorities as integers, one per request."""
    if priority is None:
        return None
    try:
        values = np.asarray(priority)
    except ValueError:  # lists of unequal lengths
        values = np.array(None)
    whole = values.shape == (rows,) and values.dtype.kind in "iu"
    if not whole or values.max(initial=0) >= 2**31 or values.min(initial=0) <= -(2**31):
        raise InputError(
            f"priority is {checks.shown(priority)}, but each of the {rows:,} requests has one, a "
            "whole number below 2^31"
        )
    return values.astype(np.int32)


def checked_declared(
    declared: npt.ArrayLike | Length | None, output: Tokens
) -> Tokens | Length | None:
    """Return declared outputs as integers, one per request, or as a distribution."""
    if declared is None:
        return None
    if isinstance(declared, Length | numbers.Integral):
        return as_length("declared", declared)
    values = checked_lengths("declared", declared)
    if values.size != output.size:
        raise InputError(
            f"{values.size:,} declared outputs for {output.size:,} requests: each has one, so give "
            "as many of both"
        )
    if (values < output).any():
        first = int(np.argmax(values < output))
        raise InputError(
            f"request {first} declares {values[first]:,} output tokens at most, but makes "
            f"{output[first]:,}; declare at least as many"
        )
    return values
