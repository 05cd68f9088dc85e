"""Means of functions of a length: E[f(N)] from P(N >= n), for the distributions that say it.

Summed by parts, E[f(N)] = f(1) + sum over n >= 2 of (f(n) - f(n - 1)) P(N >= n). Up to
`_ONE_BY_ONE` tokens that is done token by token; beyond, in steps of 0.1%, from below and from
above.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats
from penstock.workload.lengths import LONGEST, Independent, Length, Tabulated

_ONE_BY_ONE = 2**17
_STEP = 1.001
_ORDERS = 64  # of the expansion of a Gaussian copula


def mean_of(function: Callable[[Floats], Floats], length: Length) -> tuple[float, float] | None:
    """Return bounds of the mean of a rising function of tokens, shape (n,); None: not known."""
    tokens = _edges(length.max or LONGEST)
    chance = length.reaches(np.concatenate([tokens[1:], tokens[:-1] + 1]))
    if chance is None:
        return None
    values = function(tokens)
    low, high = (float(values[0] + np.sum(np.diff(values) * part)) for part in np.split(chance, 2))
    return low, high


def mean_product(lengths: Independent) -> tuple[float, float]:
    """Return bounds of E[prompt output], tokens^2."""
    # Under a Gaussian copula with correlation r, Mehler's expansion of the covariance is the sum
    # over k >= 1 of r^k a_k b_k, with a_k = E[prompt He_k(Z)] / sqrt(k!), and what is left out is
    # at most |r|^(k + 1) times the product of the standard deviations. A tabulated length is a step
    # function of Z, for which a_k is a sum over its steps.
    product = lengths.mean_prompt * lengths.mean_output
    prompt, output, r = lengths.prompt, lengths.output, lengths.correlation
    if not (r and isinstance(prompt, Tabulated) and isinstance(output, Tabulated)):
        return product, product
    a, b = _hermite(prompt), _hermite(output)
    covariance = float((r ** np.arange(1, _ORDERS + 1) * a) @ b)
    rest = abs(r) ** (_ORDERS + 1) * math.sqrt(_variance(prompt) * _variance(output))
    return product + covariance - rest, product + covariance + rest


@functools.lru_cache(maxsize=16)
def _edges(longest: int) -> Floats:
    """Return token counts from 1 to the longest, each of the first ones."""
    edges = np.arange(1.0, min(longest, _ONE_BY_ONE) + 1)
    if longest > _ONE_BY_ONE:
        steps = math.ceil(math.log(longest / _ONE_BY_ONE) / math.log(_STEP))
        edges = np.r_[edges, np.rint(np.geomspace(_ONE_BY_ONE, longest, steps + 1))[1:]]
    edges.flags.writeable = False
    return edges


def _hermite(length: Tabulated) -> Floats:
    """Return E[N He_k(Z)] / sqrt(k!), k = 1 .. _ORDERS, of a rising N of a standard normal Z."""
    # N = low + the number of z_i below Z, and E[1{Z > z} He_k(Z)] = phi(z) He_{k-1}(z).
    below = np.cumsum(length.probabilities)[:-1]
    z = special.ndtri(below[(below > 0) & (below < 1)])
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    means = np.empty(_ORDERS)
    polynomial, before = np.ones_like(z), np.zeros_like(z)  # He_k / sqrt(k!), and the one before
    for k in range(_ORDERS):
        means[k] = np.sum(density * polynomial) / math.sqrt(k + 1)
        polynomial, before = (z * polynomial - math.sqrt(k) * before) / math.sqrt(k + 1), polynomial
    return means


def _variance(length: Tabulated) -> float:
    """Return the variance of a tabulated length, tokens^2."""
    tokens = length.low + np.arange(length.probabilities.size)
    return float(np.sum((tokens - length.mean) ** 2 * length.probabilities))
