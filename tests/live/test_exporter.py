"""What is exported is what was found, on loopback unless told otherwise, and never old figures."""

import dataclasses
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.live.conftest import FakeWatch

from penstock.live.exporter import Exporter
from penstock.live.reading import Answer
from penstock.live.scrape import Scrape
from penstock.live.watching import Settings


def found(time_s: float) -> Answer:
    watch = FakeWatch(None, Settings())
    watch.take(Scrape("a:1", time_s - 5, running=3))
    watch.take(Scrape("a:1", time_s, running=4))
    return watch.answer()


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
    exporter.show(found(time.time()))
    samples = scraped(exporter)
    assert samples["penstock_load", "all"] == 0.62
    assert samples["penstock_load_high", "a:1"] == 0.66
    assert samples["penstock_margin", "all"] == 0.38
    assert samples["penstock_arrival_rate", "all"] == 12.34
    assert samples["penstock_limit_load", "all", "KV memory"] == 0.31
    assert samples["penstock_replicas_wanted", "all"] == 3
    assert samples["penstock_until_seconds_high", "all", "queue of 200"] == float("inf")
    verdicts = {key[2]: value for key, value in samples.items() if key[:2] == ("penstock_verdict", "all")}
    assert verdicts == {"stable": 0, "unstable": 0, "undecided": 1, "unknown": 0}


def test_what_is_not_known_has_no_sample(exporter: Exporter) -> None:
    assert scraped(exporter) == {}
    answer = found(time.time())
    exporter.show(dataclasses.replace(answer, together=dataclasses.replace(answer.together, load=None, replicas=None)))
    samples = scraped(exporter)
    assert ("penstock_load", "all") not in samples
    assert ("penstock_replicas_wanted", "all") not in samples
    assert ("penstock_load", "a:1") in samples


def test_no_autoscaler_acts_on_figures_that_are_old(exporter: Exporter) -> None:
    exporter.show(found(time.time() - 61))
    assert {key[0] for key in scraped(exporter)} == {"penstock_last_scrape_timestamp_seconds"}


def test_it_listens_on_loopback_unless_told_otherwise(exporter: Exporter) -> None:
    assert exporter._server.server_address[0] == "127.0.0.1"
    everywhere = Exporter("0.0.0.0:0", 5.0)
    assert everywhere._server.server_address[0] == "0.0.0.0"
    everywhere.close()
