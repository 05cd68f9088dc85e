"""Shares of the boundary: those known hold, and another server has others."""

import pytest
import yaml

import penstock as ps
from penstock.reproducing.adaptive import KNOWN, RUN, Bracket, bracket
from penstock.reproducing.asked import Asked
from penstock.reproducing.catalogue import item, reproduce

DOCUMENT = yaml.safe_load(item("adaptive-policies").text)


def itself(name, path):
    """Return what an item makes of a file, before `reproduce` says that it was changed."""
    return RUN[name](Asked(yaml.safe_load(path.read_text()), path.parent, None, lambda share: None), item(name))


def changed(tmp_path, server=None, **settings):
    """Write a scenario with other settings, and return what it says."""
    file = tmp_path / "changed.yaml"
    again = DOCUMENT | {"reproduce": DOCUMENT["reproduce"] | settings, "server": DOCUMENT["server"] | (server or {})}
    file.write_text(yaml.safe_dump(again, sort_keys=False))
    return itself("adaptive-policies", file)


@pytest.mark.slow
def test_all_known_shares_hold_but_that_of_constant_lengths_that_keep_step() -> None:
    found = reproduce("adaptive-policies")
    assert [claim.what for claim in found.differing] == ["C, sarathi-1024"]
    assert "in step" in found.differing[0].why
    assert len(found.claims) == 25
    assert found.rows.height == len(KNOWN) == 50


def test_at_c_a_large_budget_carries_less_than_a_small_one_and_maxweight_carries_all(tmp_path) -> None:
    found = changed(tmp_path, points={"C": 290}, lengths=["geometric"])
    shares = {policy: (low, high) for _, policy, _, _, low, high in found.rows.iter_rows()}
    assert shares["sarathi-1024"][1] < shares["sarathi-128"][0]
    assert shares["maxweight"][0] > 0.98
    assert not found.differing
    assert all(claim.published.startswith("known: .") or "1.0" in claim.published for claim in found.claims)


def test_a_point_of_which_nothing_is_known_is_measured_without_a_claim(tmp_path) -> None:
    known = {"points": {"C": 290}, "lengths": ["geometric"]}
    found = changed(tmp_path, **known | {"points": {"mine": 290}, "policies": {"sarathi-1024": {"policy": "sarathi"}}})
    assert not found.claims
    _, _, _, published, low, high = found.rows.row(0)
    assert published is None
    assert low - 0.01 < KNOWN["C", "sarathi-1024", "geometric"] < high + 0.01


def test_another_max_batch_size_changes_the_answer(tmp_path) -> None:
    one = {"points": {"C": 290}, "lengths": ["geometric"], "policies": {"sarathi-1024": {"policy": "sarathi"}}}
    found = changed(tmp_path, {"max_batch_size": 1000}, **one)
    assert len(found.differing) == 1, "with as many slots as that the budget binds, and Sarathi-Serve carries all"
    assert found.rows["unstable_at"][0] > 0.99


def test_a_bracket_is_found_from_either_side() -> None:
    server = ps.Server(ps.PiecewiseConstant(c=0.01, a=0.02, b0=64), 64, policy="sarathi", convention="paper")
    workload = ps.Workload.poisson(1.0, ps.Geometric(50), ps.Geometric(50))
    workload = workload.with_rate(ps.certify(workload, server).max_rate)
    for first in (0.7, 1.0, 1.4):
        found = bracket(workload, server, first, 0.1)
        assert found.stable < 1 < found.unstable
        assert found.unstable - found.stable == pytest.approx(0.1)


def test_a_share_may_lie_half_a_percent_beside_the_bracket() -> None:
    assert Bracket(0.9, 0.93).holds(0.896)
    assert not Bracket(0.9, 0.93).holds(0.894)
    assert str(Bracket(0.986, 1.016)) == ".986-1.016"


def test_a_search_that_would_not_end_is_refused() -> None:
    server = ps.Server(ps.PiecewiseConstant(c=0.01, a=0.02, b0=64), 64, policy="sarathi", convention="paper")
    workload = ps.Workload.poisson(1.0, ps.Geometric(50), ps.Geometric(50))
    slow = workload.with_rate(0.2 * ps.certify(workload, server).max_rate)
    with pytest.raises(ps.InputError, match="sarathi is judged stable at"):
        bracket(slow, server, 1.45, 0.09)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 1e-9}, "width"),
        ({"width": 0.4}, "width"),
        ({"points": {"C": 10**12}}, "points"),
        ({"lengths": ["constant", "constant"]}, "constant. stands twice"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, settings, said) -> None:
    with pytest.raises(ps.InputError, match=said):
        changed(tmp_path, **settings)
