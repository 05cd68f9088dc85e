"""Start a real vLLM server on the loopback interface, with the tiny Llama and the paced worker.

    python tests/vllm_server/real_server.py [OPTION OF VLLM SERVE ...]

serves until it is interrupted. It takes about a minute to start, on a busy machine three, and 3 GB of memory.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pace
from tiny_llama import make_model

HERE = Path(__file__).parent
BUDGET, MOST_REQUESTS, BLOCKS, BLOCK_SIZE = 128, 64, 250, 128
FLAGS = (
    "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager",
    "--max-model-len", "4096", "--max-num-batched-tokens", str(BUDGET), "--max-num-seqs", str(MOST_REQUESTS),
    "--num-gpu-blocks-override", str(BLOCKS), "--no-enable-prefix-caching", "--worker-cls", "paced_worker.PacedWorker",
)  # fmt: skip
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0",
}  # fmt: skip
MOST_SECONDS_TO_START = 300


@dataclasses.dataclass(frozen=True)
class RealServer:
    """A server that answers."""

    url: str
    log: Path
    steps_file: Path

    def steps(self) -> dict[str, np.ndarray]:
        """Return the steps so far: a column for each name of `pace.COLUMNS`."""
        rows = np.loadtxt(self.steps_file, delimiter=",", ndmin=2)
        return dict(zip(pace.COLUMNS, rows.T, strict=True))


@contextlib.contextmanager
def serve(folder: Path, *options: str, **environment: str) -> Iterator[RealServer]:
    """Serve the tiny Llama with further options and environment variables; stop it at the end."""
    port = free_port()
    server = RealServer(f"http://127.0.0.1:{port}", folder / "server.log", folder / "steps.csv")
    model = make_model(folder / "model")
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), *FLAGS, "--port", str(port)]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **SETTINGS, "PACED_STEPS": str(server.steps_file), "PYTHONPATH": path, **environment}
    with server.log.open("w") as log:
        process = subprocess.Popen(
            [*command, *options], env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until_it_answers(process, server)
        yield server
    finally:
        stop(process)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_answers(process: subprocess.Popen[bytes], server: RealServer) -> None:
    """Wait for the server; show the end of its log if it does not come."""
    until = time.monotonic() + MOST_SECONDS_TO_START
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5)
            return
        time.sleep(1)
    raise RuntimeError(f"vLLM does not answer; its log ends with\n{server.log.read_text()[-4000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started, which are a session of their own."""
    for signalled in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signalled)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, serve(Path(scratch), *sys.argv[1:]) as running:
        print(f"vLLM answers at {running.url}; {running.log} is its log, {running.steps_file} its steps", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
