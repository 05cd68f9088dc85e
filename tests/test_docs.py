"""Every example in the documentation runs, and every link and figure is there."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_in_order(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile("\n".join(examples), page.name, "exec"), {"__name__": page.stem})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"\]\(([^)]+)\)", text) + [f"../{name}" for name in re.findall(r"`(docs/\S+?)`", text)]
    assert named
    for name in named:
        assert name.startswith("https://") or (DOCS / name).exists(), name


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = DOCS.parent / "README.md"
    for name in re.findall(r"\]\(([^)]+)\)", readme.read_text()):
        assert name.startswith("https://") or (DOCS.parent / name).exists(), name
