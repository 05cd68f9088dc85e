"""The latency table: the order of the schedulers, how near the numbers are, and that a scenario decides."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, measure
from penstock.reproducing.item import Claim, Reproduction, Setup
from penstock.reproducing.latency_table import _REASONS, _orders
from penstock.reproducing.scheduler_families import METRICS, PUBLISHED, Family


def document() -> Any:
    """Return the item's scenario, in fewer runs."""
    found = copy.deepcopy(yaml.safe_load(item("table-latency").text))
    found["reproduce"]["seeds"] = 4
    return found


def measured(given: Any, folder: Path) -> Reproduction:
    """Run the item's own function on a changed scenario, its claims compared all the same."""
    return measure(Setup(item("table-latency"), given, folder))


def claim(found: Reproduction, what: str) -> Claim:
    """Return the claim of that name."""
    (each,) = [each for each in found.claims if each.what == what]
    return each


def mean(found: Reproduction, policies: str, scheduler: str, metric: str = "E2E", percentile: str = "P50") -> float:
    """Return the seconds of a cell."""
    row = found.rows.filter(policies=policies, scheduler=scheduler, metric=metric, percentile=percentile)
    return float(row["measured_s"].item())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return measured(document(), tmp_path_factory.mktemp("latency"))


def test_sarathi_has_the_lowest_e2e_and_fastertransformer_the_lowest_tbt_under_both_families(
    found: Reproduction,
) -> None:
    for family in ("paper", "Vidur, fitted"):
        assert claim(found, f"lowest E2E, {family}").same
        assert claim(found, f"lowest TBT, {family}").same


def test_every_claim_about_what_was_fitted_says_so_by_its_name(found: Reproduction) -> None:
    """The limits of Vidur's schedulers were chosen to come near: agreement is no independent check."""
    for each in found.claims:
        assert each.what.endswith(", Vidur, fitted") != each.what.endswith(", paper")


def test_each_metric_of_each_scheduler_is_a_claim_of_its_own(found: Reproduction) -> None:
    for scheduler, (e2e, ttft, tbt) in PUBLISHED.items():
        for metric, published in (("E2E", e2e), ("TTFT", ttft), ("TBT", tbt)):
            assert claim(found, f"{scheduler}, {metric}, paper").published == (
                " / ".join(f"{value:.2f}" for value in published) + " s"
            )
    assert "at P90" in claim(found, "vLLM, TBT, paper").why
    assert "first tokens come early" in claim(found, "vLLM, TTFT, paper").why


def test_it_is_said_how_near_a_number_must_be(found: Reproduction) -> None:
    assert any("Verdict `same` of a row" in said and "within 25%" in said for said in found.assumed)


def test_curves_cannot_hide_each_other_and_a_metric_has_one_scale(found: Reproduction) -> None:
    (chart,) = found.charts.values()
    for row in (rows := chart.to_dict()["vconcat"]):
        for panel in row["hconcat"]:
            assert all("xOffset" in layer["encoding"] for layer in panel["layer"]), "schedulers stand side by side"
    scales = [[panel["layer"][0]["encoding"]["y"]["scale"] for panel in row["hconcat"]] for row in rows]
    assert scales[0] == scales[1]


def test_sarathi_has_the_lowest_ttft_where_prompts_are_whole_but_not_where_others_cut_them_too(
    found: Reproduction,
) -> None:
    assert claim(found, "lowest TTFT, Vidur, fitted").same
    assert not claim(found, "lowest TTFT, paper").same


def test_vidur_with_few_requests_comes_near_the_published_rows(found: Reproduction) -> None:
    """A trace noted elsewhere: Sarathi with 9 requests at most 3.73 s at the median, vLLM 6.50 s, 10 to 25% by seed."""
    assert mean(found, "Vidur", "Sarathi-Serve") == pytest.approx(3.73, rel=0.3)
    assert mean(found, "Vidur", "vLLM") == pytest.approx(6.50, rel=0.3)


def test_fastertransformer_cannot_carry_the_rate_so_its_latency_grows_with_the_run(
    found: Reproduction, tmp_path: Path
) -> None:
    given = document()
    given["reproduce"]["requests"] = 1_000
    longer = measured(given, tmp_path)
    assert mean(longer, "paper", "FasterTransformer") > 1.5 * mean(found, "paper", "FasterTransformer")
    assert "cannot carry this rate" in claim(longer, "FasterTransformer, E2E, paper").why


def test_a_lower_rate_shortens_latency(found: Reproduction, tmp_path: Path) -> None:
    given = document()
    given["workload"]["rate"] = 0.6
    assert mean(measured(given, tmp_path), "paper", "Sarathi-Serve") < mean(found, "paper", "Sarathi-Serve")


def test_the_table_is_in_seconds_and_says_so(found: Reproduction) -> None:
    assert any("they are seconds" in said for said in found.assumed)
    assert found.rows.height == 2 * 4 * 3 * 4


def test_a_row_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    given = document()
    given["reproduce"]["schedulers"]["paper"] = {"SGLang": {"server": {"policy": "sglang"}}}
    with pytest.raises(InputError, match="SGLang"):
        measured(given, tmp_path)


def test_a_table_without_schedulers_is_refused(tmp_path: Path) -> None:
    given = document()
    given["reproduce"]["schedulers"] = {}
    with pytest.raises(InputError, match="schedulers is empty"):
        measured(given, tmp_path)


def test_the_published_seconds_are_in_their_own_order_and_a_difference_of_0_percent_is_a_tie() -> None:
    names = tuple(PUBLISHED)
    seconds = np.array([[PUBLISHED[name] for name in names]])
    assert all(claim.same for claim in _orders(Family("own", names, seconds, frozenset())))
    tied = seconds.copy()
    tied[0, :, 0] = 5.0
    tied[0, names.index("Sarathi-Serve"), 0] = 5.01
    lowest, *_, order = _orders(Family("tied", names, tied, frozenset()))
    assert lowest.same
    assert order.same
    tied[0, names.index("Sarathi-Serve"), 0] = 5.1
    lowest, *_, order = _orders(Family("slower", names, tied, frozenset()))
    assert lowest.same is False
    assert order.same is False


def test_what_is_guessed_is_said_to_be_a_guess() -> None:
    assert all(_REASONS["Vidur", "Orca", metric].startswith("probably because") for metric in METRICS)
