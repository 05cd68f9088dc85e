"""What is exported is what was found, on loopback unless told otherwise, and never old figures."""

import contextlib
import dataclasses
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.live.exporter import Exporter
from penstock.live.reading import Answer
from tests.live.engines_simulated import answer


def found(load: float = 0.6, ago_s: float = 0.0) -> Answer:
    """What was found of an engine at a load, so long ago."""
    return answer(load, round(time.time()) - ago_s)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter("0", 5.0)
    yield exporter
    exporter.close()


def test_a_server_that_does_not_start_is_an_error_and_listens_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its construction waited for ever."""
    listening: list[socket.socket] = []

    async def fails(*_: object, sock: socket.socket, **__: object) -> None:
        listening.append(sock)
        raise OSError("no more files")

    monkeypatch.setattr("asyncio.start_server", fails)
    with pytest.raises(OSError, match="no more files"):
        Exporter("0", 5.0)
    assert listening[0].fileno() == -1


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
    assert exporter.address == "127.0.0.1"
    everywhere = Exporter("0.0.0.0:0", 5.0)
    assert everywhere.address == "0.0.0.0"
    everywhere.close()


def status(exporter: Exporter, *headers: str, method: str = "GET") -> int:
    """Ask with these headers, and nothing else."""
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=5) as asking:
        lines = "\r\n".join((f"{method} /metrics HTTP/1.1", *headers))
        asking.sendall(f"{lines}\r\n\r\n".encode())
        return int(asking.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (["Host: localhost:9400"], 200),
        (["Host: 127.0.0.1:9400"], 200),
        (["Host: [::1]:9400"], 200),
        (["Host: evil.example:9400"], 421),  # a name that leads here (DNS rebinding)
        (["Host: watch"], 421),
        (["Host: evil.example:9400", "Host: localhost:9400"], 421),
        (["Host: localhost:9400", "Host: localhost:9400"], 421),
        (["Host: localhost", "Origin: http://evil.example", "Origin: http://localhost"], 403),
        ([], 421),
        (["Host: localhost", "Origin: http://evil.example"], 403),
        (["Host: localhost", "Sec-Fetch-Site: cross-site"], 403),
    ],
)
def test_names_that_others_can_point_here_read_nothing(exporter: Exporter, headers: list[str], expected: int) -> None:
    assert status(exporter, *headers) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("watch", 200), ("watch.monitoring.svc.cluster.local:9400", 200), ("host.docker.internal", 200),
     ("evil.example", 421)],
)  # fmt: skip
def test_beyond_loopback_names_of_the_own_network_are_names_of_this_machine(host: str, expected: int) -> None:
    everywhere = Exporter("0.0.0.0:0", 5.0)
    try:
        assert status(everywhere, f"Host: {host}") == expected
    finally:
        everywhere.close()


def test_nothing_but_get_is_answered(exporter: Exporter) -> None:
    assert status(exporter, "Host: localhost", method="POST") == 405


def test_requests_that_are_half_sent_hold_no_thread_and_end(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.live.exporter._PATIENCE_S", 0.3)
    threads = threading.active_count()
    halves = [socket.create_connection(("127.0.0.1", exporter.port), timeout=5) for _ in range(60)]
    for half in halves:
        half.sendall(b"GET /metrics HTTP/1.1\r\nHost: local")
    exporter.show(found())
    assert ("penstock_load", "all") in scraped(exporter)
    assert threading.active_count() == threads
    for half in halves:
        assert half.recv(1) == b""  # closed from there
        half.close()


def test_more_connections_than_anybody_needs_are_closed_at_once(exporter: Exporter) -> None:
    halves = [socket.create_connection(("127.0.0.1", exporter.port), timeout=5) for _ in range(80)]
    assert halves[-1].recv(1) == b""
    for half in halves:
        half.close()
    exporter.show(found())
    assert scraped(exporter)


def test_a_request_of_megabytes_is_not_read(exporter: Exporter) -> None:
    asking = socket.create_connection(("127.0.0.1", exporter.port), timeout=5)
    with asking, contextlib.suppress(ConnectionError):
        asking.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x" * 10**6)
        assert asking.recv(1) == b""
