"""The crossed servers: priorities that lose a stable load, where they fail, and what a changed scenario says."""

import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Setup
from penstock.reproducing.rybko_stolyar import (
    fluid_envelope,
    reversed_priorities,
    slot_sentence,
    with_lengths,
)
from penstock.reproducing.rybko_stolyar_thresholds import E2E
from penstock.scenario.network import build_network

FIGURE, THRESHOLDS = (yaml.safe_load(item(name).text) for name in ("fig-rs", "rs-thresholds"))


def itself(name, path):
    """Return what an item makes of a file, before `reproduce` says that it was changed."""
    return measure(Setup(item(name), yaml.safe_load(path.read_text()), path.parent))


def changed(tmp_path, document, simulate=None, network=None, **settings):
    """Write a scenario with other settings, and return what it says, claims by their name."""
    file = tmp_path / "changed.yaml"
    again = document | {"reproduce": document["reproduce"] | settings}
    again |= {"simulate": simulate or document["simulate"], "network": network or document["network"]}
    file.write_text(yaml.safe_dump(again, sort_keys=False))
    found = itself(document["reproduce"]["item"], file)
    return found, {claim.what: claim for claim in found.claims}


def network(load: float = 0.9):
    found = build_network({key: FIGURE[key] for key in ("network", "simulate")}, None).network
    return found.with_load(load * 768 / 608)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig-rs", "rs-thresholds"])
def test_everything_known_of_the_crossed_servers_holds(name: str) -> None:
    found = reproduce(name)
    assert not found.differing
    assert len(found.charts) == {"fig-rs": 1, "rs-thresholds": 2}[name]


def test_the_published_priorities_diverge_by_both_witnesses_and_the_reversed_ones_do_not(tmp_path) -> None:
    found, claims = changed(tmp_path, FIGURE, lengths=["constant"])
    assert claims["as published, constant lengths"].measured == "unstable by floods, unstable by theorem"
    assert claims["reversed, constant lengths"].measured == "stable by floods, stable by theorem"
    assert not found.differing
    assert set(found.rows["order"]) == {"as published", "reversed"}


def test_below_the_threshold_the_figure_shows_no_instability_and_says_so(tmp_path) -> None:
    _, claims = changed(tmp_path, FIGURE, lengths=["constant"], load=0.5)
    assert not claims["as published, constant lengths"].same
    assert not claims["growth, constant lengths"].same
    assert {claim.published for claim in claims.values()} == {"tokens grow without bound", "stability is restored"}
    assert "most tokens over time, constant lengths" not in claims, "the fluid path does not grow"


def test_the_fluid_envelope_is_that_of_the_notes() -> None:
    assert fluid_envelope(network()) == pytest.approx(524, abs=1)
    assert fluid_envelope(network(0.5)) is None


def test_kinds_of_lengths_have_the_same_means() -> None:
    for kind in ("constant", "geometric", "uniform"):
        model = with_lengths(network(), kind).model()  # type: ignore[arg-type]
        assert model.rho == pytest.approx(0.9)
        assert sorted(model.prefill) == pytest.approx([32, 32, 512, 512])


def test_priorities_are_turned_around_twice_to_themselves_and_other_orders_are_refused() -> None:
    twice = reversed_priorities(reversed_priorities(network()))
    orders = [{name: pool.order.stages for name, pool in each.pools.items()} for each in (twice, network())]
    assert orders[0] == orders[1]
    fcfs = FIGURE["network"]["pools"]["retrieval"] | {"order": "fcfs"}
    pools = FIGURE["network"]["pools"] | {"retrieval": fcfs}
    document = {"network": FIGURE["network"] | {"pools": pools}, "simulate": {"jobs": 10}}
    with pytest.raises(InputError, match=r"network\.pools\.retrieval\.order is fcfs"):
        reversed_priorities(build_network(document, None).network)


@pytest.mark.slow
def test_a_longer_second_stage_lowers_the_threshold_and_differs_from_what_is_known(tmp_path) -> None:
    """The virtual station of stages of m tokens behind short ones of 64 has the limit (m + 64) / 2 m."""
    longer = yaml.safe_load(
        yaml.safe_dump(THRESHOLDS["network"], sort_keys=False).replace("prompt: 512", "prompt: 1024")
    )
    _, claims = changed(
        tmp_path, THRESHOLDS, {"jobs": 2000}, longer, loads=[], orders=["fcfs"], stable_at=0.4, push_at=0.6
    )
    claim = claims["formula: the paper's priorities fail above"]
    assert not claim.same
    assert f"{(1056 + 64) / (2 * 1056):.4f} (virtual station)" in claim.measured


def test_an_e2e_is_the_same_within_its_interval_and_five_percent_beyond() -> None:
    assert E2E(70.0, 1.0).holds(74.4)
    assert not E2E(70.0, 1.0).holds(74.6)


def test_priorities_without_a_virtual_station_are_refused(tmp_path) -> None:
    turned = {
        name: pool | {"order": {"priority": pool["order"]["priority"][::-1]}}
        for name, pool in THRESHOLDS["network"]["pools"].items()
    }
    with pytest.raises(InputError, match="no virtual station"):
        changed(tmp_path, THRESHOLDS, network=THRESHOLDS["network"] | {"pools": turned})


@pytest.mark.parametrize(
    ("document", "settings", "said"),
    [
        (FIGURE, {"lengths": ["constant", "constant"]}, "constant. stands twice"),
        (FIGURE, {"load": float("nan")}, "load"),
        (THRESHOLDS, {"loads": [0.5, 1e30]}, "loads"),
        (THRESHOLDS, {"orders": ["fcfs", "fcfs"]}, "fcfs. stands twice"),
        (FIGURE | {"network": 1e308}, {}, "network"),
        (FIGURE | {"blah": 3}, {}, "blah is no section that fig-rs reads"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, document, settings, said) -> None:
    with pytest.raises(InputError, match=said):
        changed(tmp_path, document, **settings)


@pytest.mark.slow
def test_each_row_says_whether_it_is_a_formula_or_simulated(tmp_path) -> None:
    _, claims = changed(tmp_path, THRESHOLDS, {"jobs": 2000}, loads=[0.5, 0.6], orders=["fcfs"])
    assert {what.split(":")[0] for what in claims} == {"formula", "simulated"}
    assert claims["simulated: mean E2E at 0.9, fcfs"].published == "77 s (slotted program)"


def test_a_second_is_called_a_slot_only_where_a_batch_takes_one() -> None:
    half = yaml.safe_load(yaml.safe_dump(FIGURE["network"], sort_keys=False).replace("c_ms: 1000", "c_ms: 500"))
    slower = build_network({"network": half, "simulate": {"jobs": 10}}, None).network
    assert "slot" in slot_sentence(network())
    assert slot_sentence(slower) == ""
