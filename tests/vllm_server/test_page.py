"""Who starts the server by hand, as the page says, has a server that answers."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from real_server import RealServer, free_port, stop, wait_until_it_answers

pytestmark = pytest.mark.vllm_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "real-vllm-server.md"
BY_HAND = PAGE.read_text().split("## By hand")[1]
OURS, CLIENT, PLAIN = re.findall(r"^```sh\n(.*?)^```", BY_HAND, re.DOTALL | re.MULTILINE)
HERE = "http://127.0.0.1:8000"


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, object]:
    """How commands run in an empty folder beside our tests, with this Python."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"cwd": tmp_path, "env": {**os.environ, "PATH": path}, "start_new_session": True}


def test_the_plain_commands_start_a_server_that_answers_the_client(shell: dict, tmp_path: Path) -> None:
    port = free_port()
    url = HERE.replace("8000", str(port))
    server = RealServer(url, tmp_path / "server.log", tmp_path / "steps.csv")
    with server.log.open("w") as log:
        command = ["bash", "-ec", f"{PLAIN.rstrip()} --port {port}"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **shell)
    try:
        wait_until_it_answers(process, server)
        command = ["bash", "-ec", CLIENT.replace(HERE, url)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, **shell).stdout
    finally:
        stop(process)
    assert re.fullmatch(r"\{'ttft_s': [\d.]+, 'tbt_s': [\d.]+, 'e2e_s': [\d.]+\}\n", printed)


def test_our_script_starts_a_server_and_stops_it_when_it_is_interrupted(shell: dict) -> None:
    process = subprocess.Popen(["bash", "-ec", f"exec {OURS}"], stdout=subprocess.PIPE, text=True, **shell)
    try:
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url, line
        assert urlopen(f"{url[0]}/health").status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            urlopen(f"{url[0]}/health")
    finally:
        stop(process)
