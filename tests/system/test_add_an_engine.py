"""What the page on adding an engine says, done in a copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development" / "add-an-engine.md"


def block(first: str) -> str:
    """The block of Python that begins so."""
    return next(text for text in re.findall(r"```python.*?\n(.*?)```", PAGE.read_text(), re.DOTALL) if first in text)


@pytest.mark.slow
def test_a_rule_and_an_entry_make_an_engine_that_the_laws_are_tried_on(tmp_path: Path) -> None:
    """Nothing else is written: two files of the sources."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "laws", tmp_path / "laws", ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "src" / "penstock"
    (package / "kernel" / "engines" / "one_prompt.py").write_text(block("def one_prompt("))
    (package / "system" / "engines" / "one_prompt.py").write_text(block("class OnePrompt("))
    laws = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "one-prompt", "laws/test_engines.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(laws, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 40  # type: ignore[index]
