"""Figure 1: who loses 14 requests/s, and who serves a finite workload with the fewest requests in the system."""

from pathlib import Path

import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.instable import _Case, _least
from penstock.reproducing.item import Reproduction, Setup

LEFT, RIGHT = "fig-instable-left", "fig-instable-right"


def changed(tmp_path: Path, name: str, old: str, new: str) -> Reproduction:
    text = item(name).text
    assert old in text
    file = tmp_path / "changed.yaml"
    file.write_text(text.replace(old, new))
    return reproduce(file)


def run(name: str, old: str, new: str) -> Reproduction:
    """Run an item's own function with a part of its scenario replaced, its claims compared all the same."""
    assert old in item(name).text
    document = yaml.safe_load(item(name).text.replace(old, new))
    return measure(Setup(item(name), document, Path()))


@pytest.fixture(scope="module")
def left() -> Reproduction:
    return reproduce(LEFT)


@pytest.fixture(scope="module")
def right() -> Reproduction:
    return reproduce(RIGHT)


def test_two_policies_lose_the_load_at_1024_tokens_and_two_carry_it(left: Reproduction) -> None:
    assert not left.differing
    rows = left.rows.filter(token_budget=1024)
    verdicts = dict(rows.select("policy", "verdict").iter_rows())
    assert verdicts == {
        "fastertransformer": "unstable", "vllm-vanilla": "unstable", "orca": "stable", "sarathi": "stable"
    }  # fmt: skip
    assert rows["rho"][0] == pytest.approx(0.972, abs=5e-4)
    growth = dict(rows.select("policy", "growth_of_the_run").iter_rows())
    assert growth["fastertransformer"] == pytest.approx(1 - 1.44 / 14, abs=0.03)
    assert growth["vllm-vanilla"] == pytest.approx(1 - 11.4 / 14, abs=0.03)


@pytest.mark.parametrize(("budget", "rho"), [(256, 1.084), (512, 1.009)])
def test_at_smaller_budgets_all_are_unstable_which_is_why_a_larger_one_is_assumed(
    left: Reproduction, budget: int, rho: float
) -> None:
    rows = left.rows.filter(token_budget=budget)
    assert set(rows["verdict"]) == {"unstable"}
    assert rows["rho"][0] == pytest.approx(rho, abs=5e-4)
    assert any(f"{budget}" in said and "unstable" in said for said in left.assumed)


def test_at_512_tokens_the_figure_is_not_the_paper_s_and_the_load_is_the_reason() -> None:
    found = run(LEFT, "token_budget: 1024", "token_budget: 512")
    wrong = {claim.what: claim for claim in found.differing}
    assert set(wrong) == {"orca at 512 tokens", "sarathi at 512 tokens"}
    assert "1.009 times as fast as any policy can process" in wrong["sarathi at 512 tokens"].why


def test_at_a_lower_rate_vanilla_vllm_is_stable_too() -> None:
    found = run(LEFT, "rate: 14", "rate: 10")
    assert "vllm-vanilla at 1,024 tokens" in {claim.what for claim in found.differing}


def test_another_policy_is_judged_and_drawn_but_the_paper_claims_nothing_of_it(tmp_path: Path) -> None:
    found = changed(tmp_path, LEFT, "orca, sarathi]", "orca, sarathi, maxweight]")
    assert "maxweight" in set(found.rows["policy"])
    assert not any("maxweight" in claim.what for claim in found.claims)


def test_sarathi_has_the_fewest_requests_in_the_system_whatever_rate_is_assumed(right: Reproduction) -> None:
    assert not right.differing
    assert {1.2, 14.0} <= set(right.rows["rate"])
    for _, rows in right.rows.group_by("rate", "arrivals", "seed"):
        assert rows.sort("mean_requests_in_system")["policy"][0] == "sarathi"
    assert any("without the number of requests" in said for said in right.assumed)


def test_mean_requests_in_the_system_are_little_s_law(right: Reproduction) -> None:
    """Requests times their mean time in the system, over the time until the last policy is done."""
    for _, rows in right.rows.group_by("rate", "arrivals", "seed"):
        whole = rows["last_leaves_s"].max()
        for row in rows.iter_rows(named=True):
            assert row["mean_requests_in_system"] == pytest.approx(500 * row["mean_e2e_s"] / whole)


def test_own_requests_replace_the_trace_and_the_order_is_measured_anew(tmp_path: Path) -> None:
    own = "workload: {poisson: {rate: 1, prompt: 1, output: 100}}\nserver:"
    found = changed(tmp_path, RIGHT, "server:", own)
    assert any("those of the scenario" in said for said in found.assumed)
    assert found.rows.filter(rate=1.2)["mean_requests_in_system"].max() < 10


def test_nothing_can_be_compared_without_sarathi(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="compares sarathi with other policies"):
        changed(tmp_path, RIGHT, "orca, sarathi]", "orca]")


@pytest.mark.parametrize("policies", ["[]", "[maxweight]"])
def test_figure_1_compares_at_least_one_of_its_own_policies(policies: str) -> None:
    with pytest.raises(InputError, match="add one of fastertransformer"):
        run(LEFT, "[fastertransformer, vllm-vanilla, orca, sarathi]", policies)


def test_the_paper_compares_at_14_requests_per_second_and_other_rates_check_it(right: Reproduction) -> None:
    assert right.claims[0].what == "mean requests in the system, 14 requests/s, poisson"
    assert right.claims[0].published == "sarathi the fewest"
    assert all("checked at 1.2" in claim.published for claim in right.claims[1:])
    assert any("Verdict `same`" in said for said in right.assumed)


def test_who_serves_the_last_request_first_is_no_claim_of_the_paper(right: Reproduction) -> None:
    assert not [claim for claim in right.claims if "last" in claim.what]
    assert "last_leaves_s" in right.rows.columns


def test_a_tie_of_sarathi_is_no_defeat_and_a_defeat_has_a_reason_that_is_a_sentence() -> None:
    case = _Case(rate=14.0)
    assert _least(case, {"orca": [2.0], "sarathi": [2.0]}).same
    lost = _least(case, {"orca": [1.0] * 2, "sarathi": [3.0, 0.5]})
    assert lost.same is False
    assert lost.why.startswith("sarathi has the fewest in 1 of 2 seeds; on average orca")
