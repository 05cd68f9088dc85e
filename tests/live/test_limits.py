"""What each limit carries."""

import pytest

import penstock as ps
from penstock.live.limits import Limits
from tests.live.engines_simulated import engine


def test_means_that_moved_a_little_carry_what_is_worked_out_for_them():
    near, far = Limits(engine()), Limits(engine())
    near.carried(100.0, 42.0, (0.5, 0.5))
    moved = near.carried(104.0, 43.5, (0.5, 0.5))
    for name, carried in far.carried(104.0, 43.5, (0.5, 0.5)).items():
        assert moved[name].rate == pytest.approx(carried.rate, rel=0.01)


@pytest.mark.parametrize(
    ("server", "binds"),
    [
        (engine(), "token budget"),
        (engine(blocks=30), "KV memory"),
        (ps.Server(ps.Affine(0.04, 1e-4), 2_048, 16), "max batch size"),
    ],
)
def test_the_limit_that_binds_is_named(server, binds):
    carried = Limits(server).carried(100.0, 42.0, (0.3, 0.3))
    assert min(carried, key=lambda name: carried[name].rate) == binds


@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_a_full_memory_carries_the_highest_stable_rate(spread):
    """Where outputs are alike, requests keep step and are preempted together."""
    server = engine(blocks=30)
    rate = Limits(server).carried(100.0, 42.0, (spread, spread))["KV memory"].rate
    lengths = (ps.LogNormal(mean, spread, max=1_000) for mean in (100, 42))
    assert rate == pytest.approx(ps.max_rate(ps.Workload.poisson(1.0, *lengths), server).rate, rel=0.03)
