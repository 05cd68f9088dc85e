"""The crossed servers of the paper's Section 5.4, by hand and against the theory of virtual stations."""

import pytest

import penstock as ps
from paper.crossed_servers import LENGTHS, LONG, OUTPUT, PUBLISHED, REVERSED, SHORT, crossed


@pytest.mark.parametrize("kind", LENGTHS)
def test_kinds_of_lengths_have_the_same_means(kind: str) -> None:
    model = crossed(0.9, PUBLISHED, LENGTHS[kind]).model()
    assert model.rho == pytest.approx([0.9, 0.9])
    assert sorted(model.prefill) == pytest.approx([SHORT, SHORT, LONG, LONG])
    assert list(model.decode) == pytest.approx([OUTPUT] * 4)


def test_the_published_priorities_fail_where_the_second_stages_alone_take_all_the_time_of_one_server() -> None:
    """Of m and s tokens a job at a server, the virtual station serves both m: it has 2 m / (m + s) of their load."""
    m, s = LONG + OUTPUT, SHORT + OUTPUT
    station = ps.certify(crossed(0.9, PUBLISHED)).virtual_station
    assert station is not None
    assert 0.9 * station.max_load == pytest.approx((m + s) / (2 * m))
    assert ps.certify(crossed(0.9, REVERSED)).virtual_station is None
