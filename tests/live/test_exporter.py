"""What is exported is what was found, on loopback unless told otherwise, and never old figures."""

import dataclasses
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.engines_simulated import answer

from penstock.live.exporter import Exporter
from penstock.live.reading import Answer


def found(load: float = 0.6, ago_s: float = 0.0) -> Answer:
    """What was found of an engine at a load, so long ago."""
    return answer(load, round(time.time()) - ago_s)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter("0", 5.0)
    yield exporter
    exporter.close()


def scraped(exporter: Exporter) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=5) as page:
        families = text_string_to_metric_families(page.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }


def test_load_margin_verdict_and_replicas_can_be_scraped(exporter: Exporter) -> None:
    shown = found()
    exporter.show(shown)
    samples = scraped(exporter)
    reading = shown.together
    assert reading.load is not None
    assert reading.arrival_rate is not None
    assert reading.load.low < 0.6 < reading.load.high
    assert samples["penstock_load", "all"] == reading.load.value
    assert samples["penstock_load_high", "a:1"] == reading.load.high
    assert samples["penstock_margin", "all"] == 1 - reading.load.value
    assert samples["penstock_arrival_rate", "all"] == reading.arrival_rate.value
    for each in reading.loads:
        assert samples["penstock_limit_load", "all", each.limit] == each.load.value
    assert samples["penstock_replicas_wanted", "all"] == 1
    assert samples["penstock_until_seconds_high", "all", "queue of 200"] == float("inf")
    verdicts = {key[2]: value for key, value in samples.items() if key[:2] == ("penstock_verdict", "all")}
    assert verdicts == {"stable": 1, "unstable": 0, "undecided": 0, "unknown": 0}


def test_what_is_not_known_has_no_sample(exporter: Exporter) -> None:
    assert scraped(exporter) == {}
    shown = found()
    exporter.show(dataclasses.replace(shown, together=dataclasses.replace(shown.together, load=None, replicas=None)))
    samples = scraped(exporter)
    assert ("penstock_load", "all") not in samples
    assert ("penstock_replicas_wanted", "all") not in samples
    assert ("penstock_load", "a:1") in samples


def test_no_autoscaler_acts_on_figures_that_are_old(exporter: Exporter) -> None:
    exporter.show(found(ago_s=61))
    assert {key[0] for key in scraped(exporter)} == {"penstock_last_scrape_timestamp_seconds"}


def test_it_listens_on_loopback_unless_told_otherwise(exporter: Exporter) -> None:
    assert exporter._server.server_address[0] == "127.0.0.1"
    everywhere = Exporter("0.0.0.0:0", 5.0)
    assert everywhere._server.server_address[0] == "0.0.0.0"
    everywhere.close()
