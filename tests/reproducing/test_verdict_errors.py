"""Slopes from empty systems are wrong near the critical load, the sequential test is not."""

import numpy as np
import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Setup
from penstock.reproducing.verdict_errors import rising

DOCUMENT = yaml.safe_load(item("verdict-errors").text)


def itself(name, path):
    """Return what an item makes of a file, before `reproduce` says that it was changed."""
    return measure(Setup(item(name), yaml.safe_load(path.read_text()), path.parent))


def changed(tmp_path, server=None, sections=None, **settings):
    """Write a scenario with other settings, and return what it says, claims by their name."""
    file = tmp_path / "changed.yaml"
    again = DOCUMENT | {"reproduce": DOCUMENT["reproduce"] | settings, "server": DOCUMENT["server"] | (server or {})}
    file.write_text(yaml.safe_dump(again | (sections or {})))
    found = itself("verdict-errors", file)
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
    assert sum("Verdict `same`" in said for said in found.assumed) == 2, "how a slope and how the test are compared"


def test_far_below_the_critical_load_least_squares_is_seldom_wrong_and_the_claim_differs(tmp_path) -> None:
    _, claims = changed(tmp_path, loads=[0.5], near=0.5, seeds=12, batches=[20])
    assert not claims["stable runs called unstable by least squares"].same
    means = claims["stable runs called unstable by batch means, 20"]
    assert not means.same
    assert means.why.endswith("another number than theirs gives another share, and this is no contradiction")


def test_a_line_rises_or_does_not() -> None:
    noise = np.random.default_rng(0).normal(size=100)
    assert rising(np.arange(100.0) + noise, 0.01)
    assert not rising(-np.arange(100.0) + noise, 0.01)


@pytest.mark.parametrize(
    ("server", "settings", "said"),
    [
        ({"max_batch_size": 64}, {}, "server.max_batch_size is 64"),
        (None, {"loads": [1.0]}, "reproduce.loads has 1"),
        (None, {"loads": [0.9999999]}, "reproduce.loads has 1, within"),
        (None, {"loads": [0.0001]}, "loads"),
        (None, {"loads": [0.9, 0.9]}, "0.9 stands twice"),
        (None, {"seeds": 1}, "seeds"),
        ({"policy": "fastertransformer"}, {}, "not known to be work-conserving"),
        (None, {"sections": {"server": 1e308}}, "server"),
        (None, {"sections": {"simulate": {"requests": 2}}}, "simulate.requests is 2"),
        (None, {"sections": {"workload": {"preset": "azure-code"}}}, "asks for i.i.d. arrivals"),
    ],
)
def test_what_leaves_the_truth_unknown_is_refused(tmp_path, server, settings, said) -> None:
    with pytest.raises(InputError, match=said):
        changed(tmp_path, server, **settings)
