"""Shares of the boundary: those known hold, and another server has others."""

import pytest
import yaml

import penstock as ps
from penstock.reproducing.adaptive import KNOWN, Bracket
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Setup

DOCUMENT = yaml.safe_load(item("adaptive-policies").text)


def itself(name, path):
    """Return what an item makes of a file, before `reproduce` says that it was changed."""
    return measure(Setup(item(name), yaml.safe_load(path.read_text()), path.parent))


def changed(tmp_path, server=None, **settings):
    """Write a scenario with other settings, and return what it says."""
    file = tmp_path / "changed.yaml"
    again = DOCUMENT | {"reproduce": DOCUMENT["reproduce"] | settings, "server": DOCUMENT["server"] | (server or {})}
    file.write_text(yaml.safe_dump(again, sort_keys=False))
    return itself("adaptive-policies", file)


@pytest.mark.slow
def test_all_known_shares_are_found_again_but_two_with_constant_lengths_that_depend_on_the_start() -> None:
    found = reproduce("adaptive-policies")
    assert [claim.what for claim in found.differing] == ["C, sarathi-1024", "middle of CB, sarathi-1024"]
    assert all(claim.why.startswith("constant lengths: ") for claim in found.differing)
    assert len(found.claims) == 25
    assert found.rows.height == len(KNOWN) == 50
    assert (found.rows["unstable_at"] / found.rows["stable_at"]).max() < 1.011, "every share is searched for as closely"


def test_why_a_known_share_differs_says_which_backlogs_grow_below_it_and_which_shrink(tmp_path) -> None:
    """At C with constant lengths the known share is that of a backlog of prompts; a mixed one grows from .82 on."""
    found = changed(tmp_path, points={"C": 290}, lengths=["constant"], policies={"sarathi-1024": {"policy": "sarathi"}})
    (claim,) = found.claims
    assert not claim.same
    assert claim.published == "constant 0.859"
    assert "at 0.849" in claim.why
    assert "a backlog of prompts shrinks" in claim.why
    assert "a mixed backlog grows" in claim.why
    assert found.rows["stable_at"][0] == pytest.approx(0.822, abs=0.008)


def test_at_c_a_large_budget_carries_less_than_a_small_one_and_maxweight_carries_all(tmp_path) -> None:
    found = changed(tmp_path, points={"C": 290}, lengths=["geometric"])
    shares = {policy: (low, high) for _, policy, _, _, low, high in found.rows.iter_rows()}
    assert shares["sarathi-1024"][1] < shares["sarathi-128"][0]
    assert shares["maxweight"][0] > 0.98
    assert not found.differing
    assert all(claim.published.startswith("geometric ") for claim in found.claims), (
        "a number says of which lengths it is"
    )


def test_a_share_is_searched_for_without_what_is_known_of_it(tmp_path) -> None:
    policies = {"sarathi-1024": {"policy": "sarathi"}}
    named, mine = (
        changed(tmp_path, points={point: 290}, lengths=["geometric"], policies=policies) for point in ("C", "mine")
    )
    assert named.rows.select("stable_at", "unstable_at").equals(mine.rows.select("stable_at", "unstable_at"))
    assert not mine.claims, "a point of which nothing is known is measured without a claim"
    assert mine.rows["known"].to_list() == [None]


def test_another_max_batch_size_changes_the_answer(tmp_path) -> None:
    one = {"points": {"C": 290}, "lengths": ["geometric"], "policies": {"sarathi-1024": {"policy": "sarathi"}}}
    found = changed(tmp_path, {"max_batch_size": 1000}, **one)
    assert len(found.differing) == 1, "with as many slots as that the budget binds, and Sarathi-Serve carries all"
    assert found.rows["unstable_at"][0] > 0.99


def test_a_known_share_may_lie_half_a_percent_beside_the_measured_ones_and_no_further() -> None:
    assert Bracket(0.9, 0.93).holds(0.896)
    assert Bracket(0.9, 0.93).holds(0.934)
    assert not Bracket(0.9, 0.93).holds(0.894)
    assert not Bracket(0.9, 0.93).holds(0.936)
    assert str(Bracket(0.986, 1.0)) == "0.986 to 1.000"


def test_a_policy_with_a_larger_budget_than_the_region_is_refused(tmp_path) -> None:
    with pytest.raises(ps.InputError, match=r"policies.large.token_budget is 2,048, above server.token_budget, 1,024"):
        changed(tmp_path, points={"C": 290}, policies={"large": {"policy": "sarathi", "token_budget": 2048}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": 1e-9}, "precision"),
        ({"precision": 0.4}, "precision"),
        ({"points": {"C": 10**12}}, "points"),
        ({"lengths": ["constant", "constant"]}, "constant. stands twice"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, settings, said) -> None:
    with pytest.raises(ps.InputError, match=said):
        changed(tmp_path, **settings)
