"""Speculative decoding: how many of the tokens that were drafted for a request are accepted."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

WORD = 2**64


def accepted(chances: Sequence[float], request: int, outputs: int) -> int:
    """Return how many of the drafts behind so many outputs of a request are accepted.

    Parameters
    ----------
    chances
        Of each draft: that it is accepted if those before it are.
    request, outputs
        A row and a number of output tokens, which decide the coin.

    >>> accepted([1.0, 1.0, 0.0], 7, 12)
    2
    """
    coin = stirred(request * 2**32 + outputs) >> 11
    return sum(coin < share * 2**53 for share in accumulate(chances, mul))


def stirred(key: int) -> int:
    """Return 64 bits that look random (SplitMix64; Steele, Lea and Flood, 2014)."""
    z = (key + 1) * 0x9E3779B97F4A7C15 % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)
