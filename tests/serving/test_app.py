"""The page answers as `penstock check --json` does, part by part, to whom it should alone."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="Starlette's test client needs httpx")

import httpx
import uvicorn
import yaml
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from penstock.planning.without_file import one_described
from penstock.serving.answering import ANSWER, Answers
from penstock.serving.app import application
from penstock.serving.connections import Impatient
from penstock.serving.controls import Controls

SMALL = {
    "workload": {"poisson": {"rate": 20.0, "prompt": 100, "output": {"geometric": 20}}},
    "server": {"batch_time": {"c_ms": 10, "a_ms": 20, "b0": 128}, "token_budget": 256},
    "simulate": {"requests": 300, "seed": 1},
}
Penstock = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


@pytest.fixture
def client(path: Path) -> TestClient:
    return TestClient(application(Controls(path)), base_url="http://localhost")


def parts(client: TestClient, **query: str) -> dict[str, Any]:
    lines = client.get("/answer", params=query).text.splitlines()
    return {part["part"]: part for part in map(json.loads, lines)}


@pytest.mark.parametrize("query", [{"rate": "25"}, {"rate": "400"}, {"replicas": "2", "token_budget": "128"}])
def test_the_page_says_what_check_says_of_the_scenario_that_is_downloaded(
    client: TestClient, penstock: Penstock, tmp_path: Path, query: dict[str, str]
) -> None:
    told = parts(client, **query)
    downloaded = tmp_path / "downloaded.yaml"
    downloaded.write_text(client.get("/scenario.yaml", params=query).text)
    _, out, _ = penstock("check", downloaded, "--json")
    said = json.loads(out)
    assert told["simulation"]["answer"] == {key: said[key] for key in told["simulation"]["answer"]}
    assert told["theory"]["certificate"] == said["certificate"]
    assert told["theory"]["load"]["rho"] == pytest.approx(said["load"]["rho"], rel=1e-12)


def test_theory_comes_first_then_a_short_run_then_what_check_says(client: TestClient) -> None:
    assert [*parts(client)] == ["theory", "bounds", "progress", "estimate", "simulation"]


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_lines_are_those_of_check_and_targets_are_judged(
    client: TestClient, penstock: Penstock, tmp_path: Path, replicas: str
) -> None:
    told = parts(client, replicas=replicas, target="ttft_p99<9s, e2e_p99<100ms")
    lines = told["simulation"]["lines"]
    assert lines[:2] == told["theory"]["lines"]
    assert [word for word, _ in told["simulation"]["words"]] == ["stable", "missed"]
    judged = next(text for label, text, tone in lines if (label, tone) == ("missed", "bad"))
    assert judged.startswith("e2e_p99<0.1s (")
    assert "; met: ttft_p99<9s (" in judged
    (unreachable,) = told["bounds"]["unreachable"]
    assert unreachable.startswith("target e2e_p99<0.1s asks for less than a request alone takes, ")
    downloaded = tmp_path / "small.yaml"
    downloaded.write_text(client.get("/scenario.yaml", params={"replicas": replicas}).text)
    targets = ["--target", "ttft_p99<9s", "--target", "e2e_p99<100ms"]
    _, out, _ = penstock("check", downloaded, *targets)
    printed = " ".join(out.split())
    assert 0 < told["simulation"]["latency"]["values"]["tbt_s"]["mean"] < 1
    assert [text for _, text, _ in lines if " ".join(text.split()) not in printed] == []


def test_targets_of_an_overloaded_fleet_are_missed(client: TestClient) -> None:
    told = parts(client, rate="400", replicas="2", target="ttft_p99<9s")
    assert [word for word, _ in told["simulation"]["words"]] == ["unstable", "missed"]
    assert told["bounds"]["unreachable"] == []


def test_the_load_of_the_region_is_that_of_all_replicas(client: TestClient) -> None:
    one, two = (parts(client, rate="20", replicas=replicas)["theory"]["region"] for replicas in ("1", "2"))
    assert two["point"] == pytest.approx(one["point"])
    assert two["vertices"][1] == pytest.approx([2 * value for value in one["vertices"][1]])


def test_a_scenario_that_is_refused_says_why_and_where(client: TestClient) -> None:
    told = parts(client, policy="sarati")
    assert [*told] == ["refused"]
    assert told["refused"]["field"] == "policy"
    assert "did you mean 'sarathi'?" in told["refused"]["message"]
    assert client.get("/scenario.yaml?rate=x").status_code == 400


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8765", 200), ("127.0.0.1:1", 200), ("[::1]:8765", 200), ("evil.example", 421), ("", 421)],
)
def test_names_that_others_can_point_here_are_refused(client: TestClient, host: str, status: int) -> None:
    assert client.get("/state", headers={"host": host}).status_code == status


def test_other_pages_get_nothing(client: TestClient) -> None:
    assert client.get("/answer", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert "access-control-allow-origin" not in client.get("/state").headers


BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}


@pytest.mark.parametrize("asked", ["/answer", "/state", "/scenario.yaml"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"referer": "http://evil.example/page"},
        {"sec-fetch-site": "same-site"},
        BROWSER,  # over plain HTTP a browser does not say more of an image with `referrerpolicy="no-referrer"`
        {**BROWSER, "referer": "http://10.0.0.5:8765.evil.example/"},
    ],
)
def test_beyond_loopback_no_page_elsewhere_makes_it_compute(asked: str, headers: dict[str, str], path: Path) -> None:
    client = TestClient(application(Controls(path), name="10.0.0.5"), base_url="http://10.0.0.5:8765")
    assert client.get(asked, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a program
        {**BROWSER, "referer": "http://10.0.0.5:8765/?rate=3"},
        {**BROWSER, "sec-fetch-site": "same-origin"},
        {**BROWSER, "origin": "http://10.0.0.5:8765"},
    ],
)
def test_its_own_page_and_programs_are_answered(headers: dict[str, str], path: Path) -> None:
    client = TestClient(application(Controls(path), name="10.0.0.5"), base_url="http://10.0.0.5:8765")
    assert client.get("/state", headers=headers).status_code == 200
    front = client.get("/", headers=BROWSER)
    assert front.status_code == 200
    assert front.headers["referrer-policy"] == "same-origin"  # or the page could not show that it is


def test_no_more_answers_are_worked_out_at_once_than_the_most(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 requests each had a thread."""
    monkeypatch.setattr(Answers, "warm", lambda _: None)
    monkeypatch.setattr("penstock.serving.answering._MOST_AT_ONCE", 2)
    go = threading.Event()

    def parts(*_: object) -> Iterator[dict[str, str]]:
        go.wait(10)
        yield {"part": "bounds"}

    monkeypatch.setattr(Answers, "_parts", parts)

    async def asked() -> list[int]:
        transport = httpx.ASGITransport(application(Controls(path)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asking = [asyncio.create_task(client.get("/answer")) for _ in range(30)]
            while sum(task.done() for task in asking) < 28:
                await asyncio.sleep(0.01)
            threads = sum(thread.name == ANSWER for thread in threading.enumerate())
            assert threads == 2
            go.set()
            statuses = [(await task).status_code for task in asking]
            again = (await client.get("/answer")).status_code
            return [*sorted(statuses), again]

    assert asyncio.run(asyncio.wait_for(asked(), 20)) == [200, 200, *[503] * 28, 200]


def test_who_leaves_before_the_first_part_leaves_no_work_and_no_place_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work went on to its end, and kept one of the places for so long."""
    monkeypatch.setattr(Answers, "warm", lambda _: None)
    monkeypatch.setattr("penstock.serving.answering._MOST_AT_ONCE", 1)
    begun: list[str] = []

    def parts(*_: object) -> Iterator[dict[str, str]]:
        begun.append("work")
        yield {"part": "bounds"}

    monkeypatch.setattr(Answers, "_parts", parts)

    async def asked() -> list[int]:
        app = application(Controls(path))

        async def gone() -> dict[str, str]:
            return {"type": "http.disconnect"}

        async def lost(_: object) -> None:
            raise OSError("nobody is there")

        scope = {
            "type": "http", "method": "GET", "path": "/answer", "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }  # fmt: skip
        for version in ("2.3", "2.4"):  # two ways in which Starlette notices
            with contextlib.suppress(OSError, ClientDisconnect):
                await app(scope | {"asgi": {"version": "3.0", "spec_version": version}}, gone, lost)
        assert not begun
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [(await client.get("/answer")).status_code for _ in range(2)]

    assert asyncio.run(asyncio.wait_for(asked(), 20)) == [200, 200]


def test_a_request_that_is_half_sent_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.serving.connections.PATIENCE_S", 1.0)
    monkeypatch.setattr(Answers, "warm", lambda _: None)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(Controls(path)), http=Impatient, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    place = listening.getsockname()
    whole = b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(place, timeout=60) as silent, socket.create_connection(place, timeout=60) as half:
        half.sendall(whole + whole[:20])  # one that is whole, and then half of one
        assert half.recv(8) == b"HTTP/1.1"
        while half.recv(65_536):
            pass
        assert silent.recv(1) == b""
    server.should_exit = True


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    front = client.get("/")
    assert front.headers["content-security-policy"].startswith("default-src 'self'")
    files = ["/", "/page.css", "/page.js", "/charts.js", "/live.js", "/lines.js"]
    for file in files:
        text = client.get(file).text
        assert "//" not in text.replace("// ", "").replace("http://localhost:8000", "").replace(
            "http://www.w3.org/2000/svg", ""
        ), file


def test_nothing_outside_the_folder_of_the_page_is_read(client: TestClient) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpus", "h100-sxm"], "--gpus goes with --model, give it, too"),
        (["x.yaml", "--rate", "3"], "--rate goes with --model, and x.yaml says it; leave it out"),
        (["x.yaml", "--model", "Qwen3-8B"], "--model is given beside x.yaml"),
        (["--model", "Qwen3-8B", "--rate", "3"], "--gpus is missing; name the GPU of --model"),
        (["--model", "Qwen3-8B", "--gpus", "l40s", "--rate", "3"], "the load lacks --prompt and --output; give"),
        (["--model", "Qwen3-8B", "--gpus", "l40s,l4", "--rate", "3"], "--gpus names 2, but a page begins with one"),
        (["--model", "Qwen3-8B", "--gpus", "l40", "--rate", "0", "--prompt", "9", "--output", "9"], "rate is 0"),
    ],
)
def test_what_a_page_cannot_begin_with_is_one_line(penstock: Penstock, options: list[str], said: str) -> None:
    status, out, err = penstock("serve", *options, "--port", "0")
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_page_begins_with_a_model_without_a_file() -> None:
    load = {"rate": 3.0, "prompt": 900, "output": 90, "trace": None}
    described = one_described(
        "Qwen3-8B", load | {"gpus": "l40s", "tp": "2", "engine": "sglang", "precision": "fp8"}, ["ttft_p99<2s"]
    )
    values = Controls(described=described, name="Qwen3-8B").values
    assert values == {
        "model": "Qwen3-8B", "gpu": "l40s", "tensor_parallel": 2, "rate": 3.0, "prompt": 900, "output": 90,
        "target": "ttft_p99<2s", "replicas": 1, "router": "jsq", "policy": "sglang", "token_budget": None,
        "max_batch_size": None,
    }  # fmt: skip


def test_a_port_that_is_taken_is_one_line(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, err = penstock("serve", "--port", taken.getsockname()[1])
    assert (status, out) == (2, "")
    assert "give --port a free one" in err
    assert err.count("\n") == 1
