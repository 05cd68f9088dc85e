"""Every example in the documentation runs, every command in it exists, and every link and figure is there."""

import importlib
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.main import get_command

from penstock.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FOLLOWED = [page for page in PAGES if page.parent.name in ("tutorial", "how-to")]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r'^( *)```(\w*)(?: title="([^"]+)")?\n(.*?)^\1```$', page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(language, title, textwrap.dedent(text)) for _, language, title, text in found]


def commands(page: Path) -> Iterator[str]:
    """Yield lines that call penstock: in blocks, indented, and in a sentence where they are more than a name."""
    text = page.read_text().replace("\\\n", "")
    for line in re.findall(r"^(?:\$ | {4,})?(penstock [a-z].*)$", text, re.MULTILINE):
        yield line
    for line in re.findall(r"`(penstock [a-z][^`]* -[^`]*)`", text):
        yield line.replace("\n", " ")


@every_page
def test_the_examples_of_a_page_run_in_order(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in FOLLOWED:
        pytest.skip("what it says is followed step by step below")
    examples = [block.text for block in blocks(page) if block.language == "python"]
    monkeypatch.chdir(ROOT)
    exec(compile("\n".join(examples), page.name, "exec"), {"__name__": page.stem})
    assert capsys.readouterr().out or not examples


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.stem)
def test_who_follows_a_guide_step_by_step_sees_what_it_shows(
    page: Path,
    penstock: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files with a title are written, Python runs, and all lines shown under a command are among those it prints."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    steps = 0
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        if block.language == "python":
            exec(compile(block.text, str(tmp_path / (block.title or "step.py")), "exec"), names)
            assert block.title or capsys.readouterr().out
        for told in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:] if block.language == "console" else []:
            command, *shown = told.splitlines()
            status, printed, error = penstock(*shlex.split(command)[1:])
            assert status == 0, error
            lines = {line.rstrip() for line in printed.splitlines()}
            assert [line for line in shown if line.rstrip() not in {*lines, "", "..."}] == []
            steps += 1
    assert steps


@every_page
def test_every_command_of_a_page_exists_with_the_options_that_it_is_given(page: Path) -> None:
    for line in commands(page):
        name, *arguments = shlex.split(line, comments=True)[1:]
        if not name.isascii() or name.isupper():
            continue  # penstock COMMAND
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.split("=")[0] for word in arguments if word.startswith("--")}
        assert given <= known | {"--help"}, line


@every_page
def test_every_other_block_is_what_it_says(page: Path) -> None:
    """YAML is YAML; there is no language that nobody checks."""
    for block in blocks(page):
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)
        else:
            assert block.language in ("python", "console", "sh", "bash", "")


@every_page
def test_figures_and_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert name.startswith(("https://", "#")) or (page.parent / name.split("#")[0]).exists(), name
    for name in re.findall(r"`((?:docs|tests|benchmarks|examples)/[\w./-]+?)`", text):
        assert (ROOT / name).exists(), name


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = ROOT / "README.md"
    for name in re.findall(r"\]\(([^)]+)\)", readme.read_text()):
        assert name.startswith("https://") or (ROOT / name).exists(), name


def test_a_page_tells_no_path_of_the_machine_on_which_it_was_written() -> None:
    for page in PAGES:
        assert not re.search(r"/(work|home|root|tmp)/", page.read_text()), page


def test_the_scripts_of_the_pages_find_what_they_import() -> None:
    """They are run by hand, and must not rot."""
    wanted = {
        name
        for script in DOCS.glob("*.py")
        for name in re.findall(r"^(?:from|import) (penstock[\w.]*)", script.read_text(), re.MULTILINE)
    }
    for name in sorted(wanted):
        importlib.import_module(name)
