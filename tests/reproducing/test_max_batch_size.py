"""Vertex C: only Sarathi-Serve at 128 tokens is bounded, and the others grow as was checked by other programs."""

from pathlib import Path

import pytest
import yaml
from tests.agreement.test_paper import GROWTH

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Reproduction, Setup


def changed(tmp_path: Path, old: str, new: str) -> Reproduction:
    text = item("fig-kmax").text
    assert old in text
    file = tmp_path / "changed.yaml"
    file.write_text(text.replace(old, new))
    return reproduce(file)


def run(old: str, new: str) -> Reproduction:
    """Run the item's own function with a part of its scenario replaced, its claims compared all the same."""
    assert old in item("fig-kmax").text
    document = yaml.safe_load(item("fig-kmax").text.replace(old, new))
    return measure(Setup(item("fig-kmax"), document, Path()))


@pytest.fixture(scope="module")
def found() -> Reproduction:
    return reproduce("fig-kmax")


def test_every_claim_is_the_same(found: Reproduction) -> None:
    assert not found.differing
    assert any("critical" in said for said in found.assumed)


def test_a_backlog_that_lies_on_the_zero_line_is_drawn_on_a_log_scale_too(found: Reproduction) -> None:
    for chart in found.charts.values():
        scales = [panel["layer"][0]["encoding"]["y"]["scale"] for panel in chart.to_dict()["hconcat"]]
        assert [scale.get("type", "linear") for scale in scales] == ["linear", "log"]


@pytest.mark.parametrize(
    ("budget", "policy", "low", "high"),
    [(128, "sarathi", 0, 0), *GROWTH],
)
def test_growth_is_that_of_the_table_checked_before(
    found: Reproduction, budget: int, policy: str, low: float, high: float
) -> None:
    rows = found.rows.filter(token_budget=budget, policy=policy)
    assert rows.height == 2
    assert rows["growth_percent_of_arrivals"].is_between(low - 0.06, high + 0.06).all()
    assert set(rows["backlog"]) == {"bounded" if high == 0 else "grows"}


def test_sarathi_at_128_tokens_cycles_between_49628_and_50780_tokens(found: Reproduction) -> None:
    claim = next(claim for claim in found.claims if claim.what == "sarathi at 128 tokens")
    assert claim.measured == "bounded: 49,628 to 50,780 tokens"


def test_once_settled_all_its_batches_hold_29_and_99_tokens(found: Reproduction) -> None:
    claim = next(claim for claim in found.claims if claim.what == "batches of sarathi at 128")
    assert claim.measured.startswith("29 + 99 in 100.00%")


def test_at_256_tokens_sarathi_grows_too() -> None:
    wrong = {claim.what for claim in run("token_budget: 128", "token_budget: 256").differing}
    assert "sarathi at 256 tokens" in wrong


def test_below_the_vertex_more_policies_are_bounded() -> None:
    found = run("rate: 2.1390374331550803", "rate: 1.5")
    wrong = {claim.what: claim for claim in found.differing}
    assert "orca at 128 tokens" in wrong
    assert "load of the operating point" in wrong
    assert all(claim.why for claim in wrong.values())


def test_growth_is_not_measured_where_arrivals_are_random(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is random"):
        changed(tmp_path, "deterministic:", "poisson:")


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("larger_budget: 1024", "larger_budget: 128", "no larger one to compare with; raise larger_budget"),
        ("until: 20000", "until: 50", "no time to settle.*give at least 463 s"),
    ],
)
def test_a_budget_that_is_no_larger_and_a_run_that_is_too_short_are_refused(old: str, new: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        run(old, new)


def test_the_shortest_run_that_is_allowed_tells_what_a_long_one_does() -> None:
    assert not run("until: 20000", "until: 464").differing
