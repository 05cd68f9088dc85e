"""The page answers as `penstock check --json` does, part by part, to whom it should alone."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="Starlette's test client needs httpx")

import yaml
from starlette.testclient import TestClient

from penstock.serving import command
from penstock.serving.app import application
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
    assert told["test"]["stability"] == said["stability"]
    assert told["theory"]["certificate"] == said["certificate"]
    assert told["theory"]["load"]["rho"] == pytest.approx(said["load"]["rho"], rel=1e-12)


def test_theory_comes_first_then_the_test_then_the_simulation(client: TestClient) -> None:
    assert [*parts(client)] == ["theory", "estimate", "bounds", "progress", "test", "simulation"]


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


def test_a_port_that_is_taken_is_one_line(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, err = penstock("serve", "--port", taken.getsockname()[1])
    assert (status, out) == (2, "")
    assert "give --port a free one" in err
    assert err.count("\n") == 1


def test_without_what_it_needs_it_says_how_to_install_it(penstock: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_NEEDED", ("a_module_that_is_not_there",))
    status, _, err = penstock("serve")
    assert status == 2
    assert "pip install '.[serve]'" in err
