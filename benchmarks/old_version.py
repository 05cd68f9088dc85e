"""The sources of another revision, to compare with: a worktree of its own."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give the folder ``src`` of a revision.

    The worktree stays, in the folder for temporary files, and with it what was compiled: that takes
    minutes, and so serves the next time.
    """
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")
    folder = Path(tempfile.gettempdir()) / f"penstock-{commit[:12]}"
    if not folder.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "-q", "--detach", str(folder), commit)
    changed = _git("-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise SystemExit(f"{folder} is not what {revision} was: {changed}; remove it")
    yield folder / "src"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
