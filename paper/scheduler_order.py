"""Whether two schedulers are measured in the order in which they are published."""

import numpy as np

TIE = 0.005  # a difference that is printed as 0%


def in_order(one, other):
    """Return where the published order of two schedulers, rows 0, is that of the measured ones, rows 1, or a tie."""
    slower = np.where(one[0] > other[0], one[1], other[1])
    faster = np.where(one[0] > other[0], other[1], one[1])
    return faster < (1 + TIE) * slower
