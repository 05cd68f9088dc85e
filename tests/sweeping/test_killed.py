"""Real processes, really killed: sweeps go on where they stopped."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import penstock as ps
from penstock.sweeping import workers
from penstock.sweeping.store import journal_of


def begun(scenario: Path, out: Path, jobs: int, points: int = 60) -> "subprocess.Popen[bytes]":
    """Start a sweep of so many points in a process of its own."""
    vary = f"workload.poisson.rate=1:{1 + (points - 1) / 10}:0.1"
    command = [sys.executable, "-c", "from penstock.cli import main; main()", "sweep"]
    options = ["--vary", vary, "--out", str(out), "--jobs", str(jobs)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [*command, str(scenario), *options],
        stdout=quiet,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def lines(out: Path) -> int:
    return journal_of(out).read_bytes().count(b"\n") if journal_of(out).exists() else 0


def wait_for_lines(process: "subprocess.Popen[bytes]", out: Path, count: int) -> None:
    """Wait until the journal has so many lines, or the process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and lines(out) < count and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("jobs", "kills"), [(1, 1), pytest.param(1, 6, marks=pytest.mark.slow), pytest.param(2, 6, marks=pytest.mark.slow)]
)
def test_killed_again_and_again_a_sweep_ends_as_if_it_never_was(long_scenario: Path, jobs: int, kills: int) -> None:
    """kill -9 at random moments: every call adds points, none is lost, none stands twice."""
    out, moments = long_scenario.with_name("t.csv"), random.Random(jobs)
    kept = [0]
    points = 20 if kills == 1 else 60
    for _ in range(kills):
        process = begun(long_scenario, out, jobs, points)
        wait_for_lines(process, out, kept[-1] + moments.randrange(1, 7))
        time.sleep(moments.random() * 0.1)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()  # type: ignore[union-attr]
        kept.append(lines(out))
        assert kept[-1] > kept[-2]
        assert not out.exists()
    assert kept[-1] < points + 1
    vary = {"workload.poisson.rate": f"1:{1 + (points - 1) / 10}:0.1"}
    found = ps.sweep(long_scenario, vary, out=out, jobs=jobs)
    written = [line.split(b",")[0] for line in journal_of(out).read_bytes().splitlines()[1:]]
    assert len(written) == len(set(written)) == points
    assert_frame_equal(found, ps.sweep(long_scenario, vary, jobs=1), check_exact=True)


@pytest.mark.slow
def test_ctrl_c_leaves_what_the_next_call_goes_on_with(long_scenario: Path) -> None:
    out = long_scenario.with_name("t.csv")
    process = begun(long_scenario, out, 2)
    wait_for_lines(process, out, 5)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1].decode()
    assert process.returncode == 130
    assert said.strip().splitlines()[-1].startswith("penstock: interrupted")
    assert "Traceback" not in said
    assert "Warning" not in said
    kept = lines(out)
    assert kept >= 5
    assert not out.exists()
    assert ps.sweep(long_scenario, {"workload.poisson.rate": "1:6.9:0.1"}, out=out, jobs=1)["error"].is_null().all()
    assert lines(out) == 61


@pytest.mark.parametrize(
    "after_s", [0.1, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(0.3, marks=pytest.mark.slow)]
)
def test_workers_that_are_still_starting_say_nothing_of_ctrl_c(long_scenario: Path, after_s: float) -> None:
    """A terminal sends it to the workers, too, which are importing NumPy then."""
    process = begun(long_scenario, long_scenario.with_name("t.csv"), 2)
    deadline = time.monotonic() + 60
    while not children(process.pid) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1].decode().splitlines()
    assert process.returncode == 130
    assert [line for line in said if not line.startswith("Compiling")] == ["penstock: interrupted"]


def test_ctrl_c_that_a_thread_hands_on_waits_until_workers_have_started() -> None:
    """Polars and NumPy have threads that no mask of this one keeps it from."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    begun_all = False
    with pytest.raises(KeyboardInterrupt), workers._ctrl_c_kept_from_workers():  # noqa: PT012
        other = threading.Thread(
            target=lambda: (
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}),
                signal.pthread_kill(threading.get_ident(), signal.SIGINT),
            )
        )
        other.start()
        other.join()
        time.sleep(0.01)
        begun_all = True
    signal.signal(signal.SIGINT, usual)
    assert begun_all


@pytest.mark.slow
def test_workers_end_with_a_sweep_that_is_killed(long_scenario: Path) -> None:
    process = begun(long_scenario, long_scenario.with_name("t.csv"), 2)
    wait_for_lines(process, long_scenario.with_name("t.csv"), 5)
    workers = [pid for pid in children(process.pid) if "popen_loky" in _command(pid)]
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in workers)


def children(pid: int) -> list[int]:
    """Processes below one, workers among them."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "loky"], capture_output=True, text=True, check=False)
    return [int(each) for each in found.stdout.split()]


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_point_and_repeats_none(long_scenario: Path) -> None:
    out = long_scenario.with_name("t.csv")
    killed: list[int] = []

    def kill(done: int, _: int) -> None:
        """Kill a worker after 3 points, and another after 12."""
        workers = [pid for pid in children(os.getpid()) if "popen_loky" in _command(pid)]
        if len(killed) < 2 and done >= (3, 12)[len(killed)] and workers:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    rows = ps.sweep(long_scenario, {"workload.poisson.rate": "1:4.9:0.1"}, out=out, jobs=2, progress=kill)
    assert len(set(killed)) == 2
    assert rows["error"].is_null().all()
    written = [line.split(b",")[0] for line in journal_of(out).read_bytes().splitlines()[1:]]
    assert len(written) == len(set(written)) == rows.height == 40


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for is a zombie, and does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
