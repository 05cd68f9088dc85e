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


def replace(path: Path, old: str, new: str) -> None:
    """Put something in the place of what stands there once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new))


@pytest.mark.slow
def test_a_rule_and_an_entry_make_an_engine_that_the_laws_are_tried_on(tmp_path: Path) -> None:
    """Nothing else is written but its number and where the rule stands."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "laws", tmp_path / "laws", ignore=shutil.ignore_patterns("__pycache__"))
    kernel, entries = tmp_path / "src" / "penstock" / "kernel", tmp_path / "src" / "penstock" / "system" / "engines.py"
    (kernel / "engines" / "one_prompt.py").write_text(block("def one_prompt("))
    numbers = kernel / "records.py"
    replace(numbers, "TENSORRT = range(4)", "TENSORRT, ONE_PROMPT = range(5)")
    replace(numbers, '"tensorrt"),', '"tensorrt", "one_prompt"),')
    replace(kernel / "apart.py", '"engines.tensorrt")', '"engines.tensorrt", "engines.one_prompt")')
    entry = block("class OnePrompt(").replace("4  # records.ONE_PROMPT, once it is there", "records.ONE_PROMPT")
    replace(entries, "ENGINES: dict[str, Engine] = {", f"{entry}\n\nENGINES: dict[str, Engine] = {{")
    replace(entries, "TensorRtLlm())}", "TensorRtLlm(), OnePrompt())}")
    laws = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "one-prompt", "laws/test_engines.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(laws, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 40  # type: ignore[index]
