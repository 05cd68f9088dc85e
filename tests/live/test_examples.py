"""The examples for Prometheus, autoscalers and Grafana fit what is exported, and what those programs read."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.live.exporter import Exporter
from penstock.live.fetching import address
from penstock.live.sources import Prometheus
from tests.live.conftest import Server
from tests.live.test_exporter import found
from tests.live.vllm_page import page

LIVE = Path(__file__).parents[2] / "examples" / "live"
DASHBOARD = json.loads((LIVE / "grafana-dashboard.json").read_text())


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter("0", 5.0)
    exporter.show(found())
    yield exporter
    exporter.close()


def test_all_metrics_that_the_examples_name_are_exported(exporter: Exporter) -> None:
    exported = {metric.name for metric in exporter.collect()}
    for path in LIVE.iterdir():
        named = set(re.findall(r"\bpenstock_[a-z_]+", path.read_text()))
        assert named <= exported, path.name
        assert named or path.name == "prometheus.yml"


def test_the_dashboard_has_only_what_grafana_knows() -> None:
    """Grafana's own types read it and write all of it again: a key that is unknown, or misplaced, would be lost."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="the types come from Grafana")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()

    def written(dashboard: dict[str, Any]) -> Any:
        return json.loads(json.dumps(models.Dashboard.from_json(dashboard), cls=encoder.JSONEncoder))

    assert lost(DASHBOARD, written(DASHBOARD)) == []
    odd = {**DASHBOARD, "panels": [{**DASHBOARD["panels"][0], "grid": 3}]}
    assert lost(odd, written(odd)) == ["panels.0.grid"]  # or the types would take anything


def lost(given: Any, written: Any, place: str = "") -> list[str]:
    """Return the places of what was given and is not written."""
    if isinstance(given, dict) and isinstance(written, dict):
        parts = [lost(value, written[key], f"{place}.{key}") if key in written else [f"{place}.{key}"[1:]]
                 for key, value in given.items()]  # fmt: skip
        return [name for part in parts for name in part]
    if isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        return [name for index, (one, other) in enumerate(zip(given, written, strict=True))
                for name in lost(one, other, f"{place}.{index}")]  # fmt: skip
    return [] if given == written else [place[1:]]


def test_panels_of_the_dashboard_lie_beside_each_other_and_never_on_each_other() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells
        assert at["x"] + at["w"] <= 24
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_autoscaler_is_valid_by_the_schema_of_kubernetes() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the schemas come with kubernetes-validate")
    document = yaml.safe_load((LIVE / "hpa.yaml").read_text())
    validator.validate(document, validator.latest_version(), strict=True)


def test_keda_never_takes_what_is_not_known_for_no_replicas() -> None:
    spec = yaml.safe_load((LIVE / "keda.yaml").read_text())["spec"]
    [trigger] = spec["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert spec["minReplicaCount"] >= 1


@pytest.fixture
def prometheus(tmp_path: Path, exporter: Exporter) -> Iterator[Callable[[str], str]]:
    """Return a function that starts a real Prometheus on the examples, with more targets, and gives its address."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus; apt-get install prometheus")
    started: list[subprocess.Popen[bytes]] = []

    def start(engine: str) -> str:
        config = (LIVE / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9400", f"127.0.0.1:{exporter.port}").replace("5s", "1s")
        more = {"job_name": "vllm", "static_configs": [{"targets": [engine], "labels": {"namespace": "prod"}}]}
        document = yaml.safe_load(config)
        document["scrape_configs"].append(more)
        (tmp_path / "prometheus.yml").write_text(yaml.dump(document))
        shutil.copy(LIVE / "alerts.yml", tmp_path)
        place = f"127.0.0.1:{free_port()}"
        command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--web.listen-address={place}",
                   f"--storage.tsdb.path={tmp_path / 'data'}"]  # fmt: skip
        with (tmp_path / "log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return place

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(looked: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """Look again and again until there is something."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            answer = looked()
        except OSError:
            answer = None
        if answer:
            return answer
        time.sleep(0.3)
    raise AssertionError("it did not come about in time")


def firing(place: str) -> set[str]:
    with urllib.request.urlopen(f"http://{place}/api/v1/alerts", timeout=5) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.prometheus
def test_a_real_prometheus_scrapes_what_is_exported_and_its_alert_fires(
    prometheus: Callable[[str], str],
    exporter: Exporter,
    serve: Callable[..., Server],
) -> None:
    place = prometheus(serve(page()).name)
    until(lambda: firing(place) == set())
    exporter.show(found(load=1.5))
    assert until(lambda: firing(place)) == {"EnginesUnstable"}


@pytest.mark.prometheus
def test_engines_are_read_from_a_real_prometheus(
    prometheus: Callable[[str], str], serve: Callable[..., Server]
) -> None:
    engine = serve(page())
    source = Prometheus(address(prometheus(engine.name), "/api/v1/query"), 'namespace="prod"', 5.0)
    first, *_ = until(lambda: source.read().scrapes)
    assert (first.engine, first.finished, first.kv_tokens) == (f"prod/{engine.name}", 100, 32_000)
    [second, *_] = until(lambda: source.read().scrapes)
    assert second.time_s - first.time_s >= 0.9
    assert source.read().notes == ()


@pytest.mark.prometheus
def test_prometheus_itself_finds_no_fault_in_the_examples() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool; apt-get install prometheus")
    for what in (["check", "config", LIVE / "prometheus.yml"], ["check", "rules", LIVE / "alerts.yml"]):
        done = subprocess.run(["promtool", *map(str, what)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
