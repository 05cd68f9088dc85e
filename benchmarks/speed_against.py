"""How fast the main loops of the kernel are against another revision: in one session, by turns.

Usage: ``python benchmarks/speed_against.py REVISION [ROUNDS]``. Prints for each loop the median of
the ratios of CPU seconds, theirs over ours, and exits with 1 where one is below 0.93. Compiling the
other revision takes minutes, once.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from old_version import ROOT, checkout

LEAST = 0.93
ROUNDS = 15
REQUESTS = 20_000


def loops() -> dict[str, Callable[[], object]]:
    """Return the main loops, each on requests drawn beforehand."""
    import penstock as ps

    times = ps.hardware("codellama-34b-a100-tp1").batch_time
    limit = 1.8  # requests/s, of a server without memory limits

    def conversations(rate: float) -> ps.Workload:
        drawn = ps.Workload.preset("azure-conv").with_rate(rate, arrivals="poisson")
        return ps.Workload.from_arrays(*drawn.requests(REQUESTS))

    def alone(policy: str, memory: ps.Memory | None, load: float) -> Callable[[], object]:
        server = ps.Server(times, 512, 128, policy=policy, memory=memory)
        workload = conversations(load * limit)
        return lambda: ps.simulate(workload, server)

    pool = ps.Server(times, 512, 128, policy="sarathi")
    network = ps.Network.single(conversations(8 * 0.9 * limit), pool, 8, "jsq")

    caches = ps.Memory(20_000, prefix_caching=True)
    engine = ps.Server(times, 512, 128, policy="vllm", memory=caches)
    turns = [("engines", ps.Geometric(200), ps.Geometric(50))] * 4
    chat = ps.Workflow.chain("chat", ps.Workload.poisson(15, 1, 1), turns, context="reuse")
    cached = ps.Network({"engines": ps.Pool(engine, 64, router="prefix")}, [chat])

    both = [("first", ps.Geometric(200), ps.Geometric(50)), ("second", ps.Geometric(100), 20)]
    line = ps.Workflow.chain("line", ps.Workload.poisson(3, 1, 1), both)
    paper = ps.Network({name: ps.Pool(pool) for name in ("first", "second")}, [line])
    return {
        "sarathi": alone("sarathi", None, 0.9),
        "vllm, ample": alone("vllm", ps.Memory(20_000), 0.9),
        "vllm, tight": alone("vllm", ps.Memory(2_500), 0.7),
        "sglang": alone("sglang", ps.Memory(40_000, 1), 0.7),
        "8 replicas, jsq": lambda: ps.simulate(network, jobs=REQUESTS),
        "64 replicas, prefix": lambda: ps.simulate(cached, jobs=REQUESTS // 4),
        "two servers in a line": lambda: ps.simulate(paper, jobs=REQUESTS // 2),
    }


def work() -> None:
    """Run each loop that is asked for on standard input, and answer with its CPU seconds."""
    known = loops()
    for run in known.values():
        run()
    print(*known, sep="|", flush=True)
    for line in sys.stdin:
        begun = time.process_time()
        known[line.strip()]()
        print(time.process_time() - begun, flush=True)


class Version:
    """A process that runs the loops with the sources of one revision."""

    def __init__(self, source: Path) -> None:
        self._process: Any = subprocess.Popen(
            [sys.executable, __file__, "work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=os.environ | {"PYTHONPATH": str(source)},
        )  # fmt: skip
        out: IO[str] = self._process.stdout
        self.names = out.readline().strip().split("|")

    def seconds(self, name: str) -> float:
        """Return the CPU seconds of one run."""
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main(revision: str, rounds: int) -> int:
    """Print the ratios, and return the exit status."""
    with checkout(revision) as source:
        theirs, ours = Version(source), Version(ROOT / "src")
        slow = 0
        for name in ours.names:
            ratios = [theirs.seconds(name) / ours.seconds(name) for _ in range(rounds)]
            median = statistics.median(ratios)
            slow += median < LEAST
            print(f"{name:18} {median:6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS))
