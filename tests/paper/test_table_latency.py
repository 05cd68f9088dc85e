"""The latency table: which of two schedulers is the faster."""

import numpy as np

from paper.scheduler_order import in_order


def test_less_than_half_a_percent_apart_the_wrong_way_round_is_a_tie() -> None:
    published, behind = [5.0, 5.0, 5.0], [6.0, 6.0, 6.0]
    one, other = np.array([published, [5.0, 5.01, 5.1]]), np.array([behind, [5.5, 5.0, 5.0]])
    assert in_order(one, other).tolist() == in_order(other, one).tolist() == [True, True, False]
