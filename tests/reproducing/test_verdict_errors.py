"""Slopes from empty systems are wrong near the critical load, the sequential test is not."""

import numpy as np
import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, reproduce
from penstock.reproducing.verdict_errors import rising

DOCUMENT = yaml.safe_load(item("verdict-errors").text)


def changed(tmp_path, server=None, **settings):
    """Write a scenario with other settings, and return what it says, claims by their name."""
    file = tmp_path / "changed.yaml"
    again = DOCUMENT | {"reproduce": DOCUMENT["reproduce"] | settings, "server": DOCUMENT["server"] | (server or {})}
    file.write_text(yaml.safe_dump(again))
    found = reproduce(file)
    return found, {claim.what: claim for claim in found.claims}


@pytest.mark.slow
def test_slopes_are_wrong_as_often_as_known_and_the_test_as_seldom_as_its_alpha() -> None:
    found = reproduce("verdict-errors")
    assert [claim.what for claim in found.differing] == ["stable runs called unstable by batch means, 20"]
    assert found.rows.height == 7 * 4


def test_least_squares_calls_most_stable_runs_unstable_and_the_sequential_test_none(tmp_path) -> None:
    found, claims = changed(tmp_path, loads=[0.98, 1.05], seeds=10)
    assert claims["stable runs called unstable by least squares"].same
    assert claims["wrong verdicts by the sequential test"].measured == "0 of 20"
    assert set(found.rows["verdicts"]) == {10}


def test_far_below_the_critical_load_least_squares_is_seldom_wrong_and_the_claim_differs(tmp_path) -> None:
    _, claims = changed(tmp_path, loads=[0.3], near=0.8, seeds=12, batches=[20])
    assert not claims["stable runs called unstable by least squares"].same


def test_a_line_rises_or_does_not() -> None:
    noise = np.random.default_rng(0).normal(size=100)
    assert rising(np.arange(100.0) + noise, 0.01)
    assert not rising(-np.arange(100.0) + noise, 0.01)


@pytest.mark.parametrize(
    ("server", "settings", "said"),
    [({"max_batch_size": 64}, {}, "server.max_batch_size is 64"), (None, {"loads": [1.0]}, "reproduce.loads has 1")],
)
def test_what_leaves_the_truth_unknown_is_refused(tmp_path, server, settings, said) -> None:
    with pytest.raises(InputError, match=said):
        changed(tmp_path, server, **settings)
