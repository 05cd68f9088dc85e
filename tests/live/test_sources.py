"""Whatever the other end does, a source gives what can be read, or one plain reason."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.errors import InputError
from penstock.live.exposition import read_page
from penstock.live.fetching import address
from penstock.live.metrics_pages import Read
from penstock.live.sources import EnginePage, GatewayPage, Prometheus, selector
from tests.live.conftest import Server, Told
from tests.live.vllm_page import page

Serve = Callable[..., Server]
PAGE = page()


def read(server: Server, path: str = "", limit_s: float = 5.0) -> Read:
    return EnginePage(address(server.name + path), limit_s).read()


def reason(said: Read) -> str:
    assert said.scrapes == ()
    [note] = said.notes
    return note.text


def test_a_page_is_asked_for_once_and_its_time_is_that_of_the_answer(serve: Serve) -> None:
    server = serve(PAGE)
    before = time.time()
    said = read(server)
    assert server.asked == ["/metrics"]
    assert before <= said.scrapes[0].time_s <= time.time()
    assert said.scrapes[0].engine == server.name
    assert said.kind == "vLLM"


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("a:8000", "http://a:8000/metrics", "a:8000"),
        ("https://a", "https://a/metrics", "a"),
        ("http://a:8000/", "http://a:8000/metrics", "a:8000"),
        ("http://a/x/metrics?y=1", "http://a/x/metrics?y=1", "a/x/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics", "[::1]:8000"),
        ("http://me:secret@a:1/metrics#count", "http://a:1/metrics", "a:1"),
    ],
)
def test_an_address_is_what_operators_write(text: str, url: str, name: str) -> None:
    assert (address(text).url, address(text).name) == (url, name)


@pytest.mark.parametrize("text", ["", "ftp://a", "http://", "a:notaport", "file:///etc/passwd", "http://a\n/x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no address and no file"):
        address(text)


def test_user_and_password_are_sent_and_never_shown(serve: Serve) -> None:
    server = serve(PAGE)
    where = address(f"me:se%40cret@{server.name}")
    EnginePage(where, 5.0).read()
    assert server.headers[0]["authorization"] == "Basic bWU6c2VAY3JldA=="
    assert "cret" not in repr(where)


def test_a_zipped_page_is_read(serve: Serve) -> None:
    assert read(serve(Told(PAGE).zipped())).scrapes[0].finished == 100


def test_a_bomb_is_not_unpacked_to_the_end(serve: Serve) -> None:
    assert (
        reason(read(serve(Told(b"x" * (64 << 20)).zipped()))) == "sends more than 16 MiB, which is no page of metrics"
    )


@pytest.mark.parametrize("status", [404, 500, 503, 204])
def test_a_status_that_is_no_page_is_said(serve: Serve, status: int) -> None:
    assert f"answers with status {status}" in reason(read(serve(Told(b"", status))))


def test_a_redirect_on_the_same_server_is_followed(serve: Serve) -> None:
    def answer(path: str) -> Told:
        return Told(PAGE) if path == "/metrics/" else Told(b"", 307, {"Location": "/metrics/"})

    assert read(serve(answer)).scrapes[0].finished == 100


def test_a_redirect_to_another_server_is_not_followed(serve: Serve) -> None:
    other = serve(PAGE)
    server = serve(Told(b"", 302, {"Location": f"http://{other.name}/metrics"}))
    assert "sends to another server" in reason(read(server))
    assert other.asked == []


def test_a_redirect_in_a_circle_ends(serve: Serve) -> None:
    server = serve(Told(b"", 302, {"Location": "/metrics"}))
    assert "without end" in reason(read(server))
    assert len(server.asked) == 4


def test_a_page_shorter_than_it_says_is_torn(serve: Serve) -> None:
    assert reason(read(serve(Told(PAGE, length=len(PAGE) + 50)))) == "sent a torn page, which is left out"


def test_a_broken_zip_is_torn(serve: Serve) -> None:
    assert "torn" in reason(read(serve(Told(b"no zip", headers={"Content-Encoding": "gzip"}))))


def test_who_never_answers_is_waited_for_no_longer_than_asked(serve: Serve) -> None:
    never = threading.Event()
    said = read(serve(Told(PAGE, wait=never)), limit_s=0.2)
    never.set()
    assert reason(said) == "has not answered within 0.2 s"


def test_who_drips_is_not_waited_for(serve: Serve) -> None:
    began = time.monotonic()
    assert "slowly" in reason(read(serve(Told(PAGE, drip_s=0.02)), limit_s=0.3))
    assert time.monotonic() - began < 5


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        said = EnginePage(address(f"127.0.0.1:{free.getsockname()[1]}"), 1.0).read()
    assert reason(said) == "takes no connections"


def test_a_server_that_comes_back_is_read_again(serve: Serve) -> None:
    first = serve(PAGE)
    source = EnginePage(address(first.name), 2.0)
    assert source.read().scrapes
    first.close()
    assert source.read().scrapes == ()
    serve(page(requests=3), first.port)
    assert source.read().scrapes[0].finished == 3


def gateway(page: bytes, metric: str = "") -> Read:
    source = GatewayPage(address("gateway:80" + metric), 1.0)
    source._fetcher.get = lambda: type("Page", (), {"content": page, "time_s": 7.0})()  # type: ignore[method-assign,assignment,return-value]
    return source.read()


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (b'llm_d_epp_request_total{model_name="m"} 7\nllm_d_epp_request_total{model_name="n"} 3\n', 10),
        (b"dynamo_frontend_requests_started_total 12\ndynamo_frontend_requests_total 5\n", 12),
        (b"dynamo_frontend_requests_total 5\ndynamo_frontend_inflight_requests 2\n", 7),
        (b"tgi_request_count 9\n", 9),
    ],
)
def test_gateways_count_what_comes(said: bytes, count: float) -> None:
    [scrape] = gateway(said).scrapes
    assert (scrape.arrived, scrape.time_s) == (count, 7.0)


def test_any_counter_counts_arrivals_where_it_is_named() -> None:
    assert gateway(b"requests_total 4\n", "#requests_total").scrapes[0].arrived == 4
    assert "no counter of arrivals that is known; name it" in reason(gateway(b"requests_total 4\n"))
    assert "has no other" in reason(gateway(b"requests_total 4\n", "#other"))
    assert "cannot be right" in reason(gateway(b"requests_total NaN\n", "#requests_total"))


def test_arrivals_go_on_where_the_gateway_begins_anew(serve: Serve) -> None:
    counts = iter((100, 130, 5))
    server = serve(lambda _: Told(f"tgi_request_count {next(counts)}\n".encode()))
    source = GatewayPage(address(server.name), 2.0)
    reads = [source.read() for _ in range(3)]
    assert [said.scrapes[0].arrived for said in reads] == [100, 130, 135]
    assert [note.text for note in reads[2].notes] == ["the gateway's counter of arrivals began anew"]


def matrix(pages: dict[float, bytes], instance: str = "10.0.0.1:8000") -> dict[str, Any]:
    """Return an answer of Prometheus with what it would have scraped at some times."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], list[list[Any]]] = {}
    for time_s, each in pages.items():
        samples = read_page(each, lambda name: name.startswith("vllm:"))
        for name, values in samples.by_name.items():
            for labels, value in values.items():
                series.setdefault((name, labels), []).append([time_s, str(value)])
    result = [
        {"metric": {"__name__": name, **dict(labels), "instance": instance, "job": "vllm"}, "values": values}
        for (name, labels), values in series.items()
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_prometheus_gives_its_scrapes_with_their_own_times_and_each_once(serve: Serve) -> None:
    now = time.time()
    known = {now - 20: page(requests=100), now - 10: page(requests=110)}
    server = serve(lambda _: Told(json.dumps(matrix(known)).encode()))
    source = Prometheus(address(server.name, "/api/v1/query"), '{namespace="prod"}', 2.0)
    first = source.read()
    assert [(s.engine, s.time_s, s.finished) for s in first.scrapes] == [
        ("10.0.0.1:8000", pytest.approx(now - 20), 100),
        ("10.0.0.1:8000", pytest.approx(now - 10), 110),
    ]
    assert first.notes == ()
    known[now] = page(requests=120)
    assert [s.finished for s in source.read().scrapes] == [120]
    [query, later] = (parse_qs(urlsplit(path).query)["query"][0] for path in server.asked)
    assert query.endswith('namespace="prod"}[600s]')
    assert int(later.rpartition("[")[2].removesuffix("s]")) in range(69, 73)


def test_prometheus_is_asked_for_nothing_but_what_is_read() -> None:
    asked = selector("")
    assert "num_requests_running" in asked
    assert "inter_token_latency" not in asked
    assert "namespace" not in asked


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(b'{"status":"success","data":{"result":[]}}'), "knows no engine that matches"),
        (Told(b'{"status":"error","error":"bad"}'), "refuses the query: 'bad'"),
        (Told(b'{"error":"parse error"}', 400, {"Content-Type": "application/json"}), "status 400: 'parse error'"),
        (Told(b"<html>"), "gives no answer of Prometheus' API"),
        (Told(b"[]"), "gives no answer of Prometheus' API"),
        (
            Told(b'{"status":"success","data":{"result":[{"metric":{"__name__":"vllm:x"},"values":[[1]]}]}}'),
            "gives samples that are none",
        ),
        (
            Told(b'{"status":"success","data":{"result":[{"metric":{"__name__":"vllm:x"},"values":[[1e300, "1"]]}]}}'),
            "gives samples that are none",
        ),
    ],
)
def test_what_prometheus_cannot_answer_is_said(serve: Serve, told: Told, words: str) -> None:
    source = Prometheus(address(serve(told).name, "/api/v1/query"), "", 2.0)
    assert words in reason(source.read())


def test_a_stale_marker_is_no_number(serve: Serve) -> None:
    gone = matrix({time.time(): page()})
    for row in gone["data"]["result"]:
        row["values"].append([time.time(), "NaN"])
    [*_, last] = Prometheus(address(serve(json.dumps(gone).encode()).name, "/api/v1/query"), "", 2.0).read().scrapes
    assert all(value is None or math.isfinite(value) for value in list(vars(last).values())[1:])
