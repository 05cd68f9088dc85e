"""Whether twelve commands say in JSON what they said at another revision.

Usage: ``python benchmarks/same_answers.py REVISION``. Both versions answer for the examples of this
checkout; what differs is printed by its place in the document. Exits with 1 where something
differs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

COMMANDS = (
    "check examples/azure_code.yaml",
    "check examples/azure_code.yaml --policy vllm --requests 4000 --target ttft_p99<2s",
    "check examples/research_fork_join.yaml --jobs 2000",
    "check examples/rybko_stolyar.yaml --jobs 2000",
    "check examples/self_reflection.yaml --jobs 2000 --orders fcfs,hlpps",
    "check examples/disaggregated.yaml --jobs 2000",
    "compare examples/azure_code.yaml --requests 2000",
    "simulate examples/azure_code.yaml --policy orca",
    "region examples/azure_code.yaml",
    "max-rate examples/azure_code.yaml --policies sarathi,orca",
    "recommend examples/azure_code.yaml --requests 2000 --policies sarathi,orca",
    "hardware codellama-34b-a100-tp1",
)


def answers(source: Path) -> list[Any]:
    """Return the JSON of each command, with the sources of one checkout."""
    environment = os.environ | {"PYTHONPATH": str(source / "src")}
    documents = []
    for command in COMMANDS:
        line = [sys.executable, "-m", "penstock", *command.split(), "--json"]
        done = subprocess.run(
            line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        documents.append(json.loads(done.stdout))
    return documents


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield the places of two documents that differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(
                before.get(key, "absent"), after.get(key, "absent"), f"{where}.{key}"
            )
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{where}[{index}]")
    elif before != after:
        yield f"{where}: {before!r} is now {after!r}"


def main(revision: str) -> int:
    """Compare this checkout with a revision, and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", str(other), revision], cwd=ROOT, check=True
        )
        try:
            before = answers(other)
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True
            )
    status = 0
    for command, old, new in zip(COMMANDS, before, answers(ROOT), strict=True):
        places = list(differences(old, new))
        status = status or int(bool(places))
        print(f"{'differs' if places else 'same   '}  penstock {command}")
        for place in places:
            print(f"         {place}")
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
