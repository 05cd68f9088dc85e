"""How much of the library a question goes through: files entered, functions, changes of file.

Usage: ``python benchmarks/trace.py [--keep FILE]``. Each question is asked once before, so that
nothing is loaded or compiled while it is traced.
"""

import argparse
import contextlib
import io
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import penstock as ps
from penstock.cli import main

ROOT = Path(ps.__file__).parent
EXAMPLES = Path(__file__).parents[1] / "examples"
WORKLOAD = ps.Workload.poisson(3.0, ps.Geometric(300, max=4096), ps.Geometric(100, max=2048))
PAPER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, token_budget=512)
VLLM = ps.Server(PAPER.batch_time, 512, 128, "vllm", memory=ps.Memory(4_000))


def check(name: str) -> None:
    """Ask the command."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.argv = ["penstock", "check", str(EXAMPLES / name)]
        with contextlib.suppress(SystemExit):
            main()


QUESTIONS: dict[str, Callable[[], Any]] = {
    "simulate(workload, server)": lambda: ps.simulate(WORKLOAD, PAPER, requests=1_000),
    "simulate(workload, vLLM)": lambda: ps.simulate(WORKLOAD, VLLM, requests=1_000),
    "simulate(network)": lambda: ps.simulate(ps.Network.single(WORKLOAD, PAPER, 2), jobs=1_000),
    "certify(workload, server)": lambda: ps.certify(WORKLOAD, PAPER),
    "certify(network)": lambda: ps.certify(ps.Network.single(WORKLOAD, PAPER, 2)),
    "check azure_code.yaml": lambda: check("azure_code.yaml"),
    "check vllm_8b_h100.yaml": lambda: check("vllm_8b_h100.yaml"),
}


def traced(ask: Callable[[], Any]) -> dict[str, int]:
    """Return what a question goes through, the second time."""
    ask()
    path: list[tuple[str, str]] = []

    def called(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_name[0] != "<":
            path.append((code.co_filename, code.co_qualname))

    sys.setprofile(called)
    try:
        ask()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in path]
    changes = sum(one != other for one, other in itertools.pairwise(files))
    return {"files": len(set(files)), "functions": len(set(path)), "changes of file": changes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    figures = {name: traced(ask) for name, ask in QUESTIONS.items()}
    for name, of in figures.items():
        print(f"{name:28}", "  ".join(f"{count:6,} {what}" for what, count in of.items()))
    if options.keep:
        options.keep.write_text(json.dumps(figures, indent=2))
