"""A kind of engine is a table, and what it names is there."""

import dataclasses

import pytest

from penstock.live.engines import KINDS
from penstock.live.engines.engine_kind import Kind
from penstock.live.exposition import Samples
from penstock.live.metrics_pages import kind_of
from penstock.live.scrape import COUNTERS, GAUGES, Scrape


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_kind_maps_are_fields_of_a_scrape(kind: Kind) -> None:
    assert kind.fields.keys() <= {field.name for field in dataclasses.fields(Scrape)}
    assert kind.fields.keys() >= {*kind.usual, *(field for fields in kind.same for field in fields)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_engine_is_known_by_its_mark_under_each_prefix_and_is_of_one_kind(kind: Kind) -> None:
    for prefix in kind.prefixes:
        samples = Samples.of_series([(f"{prefix}{kind.mark}", {}, 1.0)])
        assert kind_of(samples.by_name) is kind


def test_a_number_of_a_scrape_is_a_counter_or_a_gauge_but_for_spreads() -> None:
    others = {"engine", "time_s", "prompt_spread", "output_spread"}
    assert {field.name for field in dataclasses.fields(Scrape)} == {*COUNTERS, *GAUGES, *others}
