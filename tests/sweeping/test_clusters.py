"""Sweeps on a local Ray cluster and a local Dask cluster: the same rows, and workers that die cost nothing."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

import penstock as ps
from penstock.sweeping import workers
from penstock.sweeping.store import journal_of

VARY = {"workload.poisson.rate": "6:9.9:0.1"}


def finished_once(out: Path, points: int) -> bool:
    """Whether the journal has every point once."""
    written = Counter(line.split(b",")[0] for line in journal_of(out).read_bytes().splitlines()[1:])
    return len(written) == points and set(written.values()) == {1}


@pytest.mark.dask
def test_rows_from_dask_are_those_of_one_process_though_its_workers_are_killed(long_scenario: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs pip install '.[test,dask]'")
    out, killed = long_scenario.with_name("t.csv"), []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):

        def kill(done: int, _: int) -> None:
            """Kill a worker after 5 points, and another after 20."""
            if len(killed) < 2 and done >= (5, 20)[len(killed)]:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[-1], signal.SIGKILL)

        backend = cluster.scheduler_address.replace("tcp", "dask")
        rows = ps.sweep(long_scenario, VARY, out=out, backend=backend, progress=kill)
    assert len(set(killed)) == 2
    assert finished_once(out, 40)
    assert_frame_equal(rows, ps.sweep(long_scenario, VARY, jobs=1), check_exact=True)


@pytest.mark.dask
def test_a_local_dask_cluster_is_started_and_ended_where_no_address_is_given(scenario: Path) -> None:
    pytest.importorskip("distributed", reason="needs pip install '.[test,dask]'")
    rows = ps.sweep(scenario, VARY, backend="dask", jobs=2)
    assert_frame_equal(rows, ps.sweep(scenario, VARY, jobs=1), check_exact=True)


@pytest.mark.dask
def test_a_dask_cluster_that_does_not_answer_is_refused_in_one_line(scenario: Path, monkeypatch: Any) -> None:
    pytest.importorskip("distributed", reason="needs pip install '.[test,dask]'")
    monkeypatch.setattr("penstock.sweeping.workers._PATIENCE_S", 1.0)
    with pytest.raises(ps.InputError, match=r"no dask cluster answers at 127\.0\.0\.1:9"):
        ps.sweep(scenario, VARY, backend="dask://127.0.0.1:9")


@pytest.fixture
def stranger(tmp_path: Path) -> dict[str, str]:
    """The environment of a worker that has another package called penstock."""
    (tmp_path / "other" / "penstock").mkdir(parents=True)
    (tmp_path / "other" / "penstock" / "__init__.py").write_text("def gate(): ...\n")
    return os.environ | {"PYTHONPATH": str(tmp_path / "other")}


def test_another_package_called_penstock_is_told_apart_from_this_one(stranger: dict[str, str]) -> None:
    """What a worker imports is looked at by a function that needs nothing of this package there."""
    cloudpickle = pytest.importorskip("cloudpickle", reason="joblib brings it, or has it within")
    code = "import pickle, sys; print(pickle.dumps(pickle.load(sys.stdin.buffer)()).hex())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(workers._look()), env=stranger, capture_output=True,
        check=True,
    )  # fmt: skip
    installed = pickle.loads(bytes.fromhex(done.stdout.decode()))
    assert not installed[2]
    with pytest.raises(ps.InputError, match=r"worker a:1 imports another package as `penstock`, .*other.penstock"):
        workers._check_installed({"a:1": installed})
    workers._check_installed({"a:1": workers._look()()})


@pytest.mark.parametrize(
    ("version", "path", "ours", "words"),
    [
        (None, None, False, "has no Penstock"),
        ("0.0.1", "x/penstock/__init__.py", True, "has penstock-llm 0.0.1, but this process"),
        ("0.0.1", "x/penstock/__init__.py", False, "pip uninstall penstock"),
    ],
)
def test_a_worker_without_this_version_is_named_with_the_line_that_mends_it(
    version: str | None, path: str | None, ours: bool, words: str
) -> None:
    with pytest.raises(ps.InputError) as refused:
        workers._check_installed({"b:2": (version, path, ours)})
    assert "the worker b:2 " in str(refused.value)
    assert words in str(refused.value)
    assert f"pip install penstock-llm=={metadata.version('penstock-llm')}" in str(refused.value)


@pytest.mark.dask
def test_a_dask_worker_with_another_package_called_penstock_is_refused(
    scenario: Path, stranger: dict[str, str]
) -> None:
    distributed = pytest.importorskip("distributed", reason="needs pip install '.[test,dask]'")
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny"]
        extra = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        there = [path for path in extra if path and not (Path(path) / "penstock").exists()]
        environment = stranger | {"PYTHONPATH": os.pathsep.join([stranger["PYTHONPATH"], *there])}
        worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            with pytest.raises(ps.InputError, match="imports another package as `penstock`"):
                ps.sweep(scenario, VARY, backend=address.replace("tcp", "dask"))
        finally:
            worker.terminate()
            worker.wait()


@pytest.mark.ray
def test_rows_from_ray_are_those_of_one_process_though_a_worker_is_killed(long_scenario: Path) -> None:
    pytest.importorskip("ray", reason="needs pip install '.[test,ray]'")
    psutil = pytest.importorskip("psutil", reason="needs pip install psutil, to find the workers of Ray")
    out, over, killed = long_scenario.with_name("t.csv"), threading.Event(), []

    def kill() -> None:
        """Kill a worker while it runs points, as soon as there is one."""
        while not killed and not over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                if process.name().startswith("ray::PoolActor.run"):
                    process.kill()
                    killed.append(process.pid)
                    break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        rows = ps.sweep(long_scenario, VARY, out=out, backend="ray", jobs=2)
    finally:
        over.set()
        thread.join()
    assert killed
    assert finished_once(out, 40)
    assert_frame_equal(rows, ps.sweep(long_scenario, VARY, jobs=1), check_exact=True)


@pytest.mark.parametrize("backend", ["slurm", "loky://here:1", "dask://", ""])
def test_an_unknown_backend_is_refused_with_those_there_are(scenario: Path, backend: str) -> None:
    with pytest.raises(ps.InputError, match="ray://host:port"):
        ps.sweep(scenario, VARY, backend=backend)
