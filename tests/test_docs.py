"""Every block of the documentation runs and shows what it prints; every link and figure is there."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.main import get_command

from paper import ITEMS
from penstock.cli import command_line

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DATA = ROOT.parent / "shared" / "data"
SOURCES = ROOT / "src" / "penstock"
PAGES = sorted(DOCS.rglob("*.md"))
REAL_SERVER = DOCS / "how-to" / "real-vllm-server.md"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


class Block(NamedTuple):
    language: str
    title: str
    text: str
    mark: str
    """Of the tests that run it: `<!-- slow -->` before it; empty for all tests."""
    needs: str
    """What follows the mark: a file below shared/data."""
    gap: str
    """What stands between the block before and this one."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fence = re.compile(
        r'^(?:<!-- (\w+)(?:: (\S+))? -->\n+)?( *)```(\w*)(?: title="([^"]+)")?\n(.*?)^\3```$', re.DOTALL | re.MULTILINE
    )
    found: list[Block] = []
    end = 0
    for match in fence.finditer(text):
        mark, needs, _, language, title, inside = match.groups(default="")
        if language == "text" and found:
            mark, needs = found[-1].mark, found[-1].needs
        found.append(Block(language, title, textwrap.dedent(inside), mark, needs, text[end : match.start()]))
        end = match.end()
    return found


def commands(page: Path) -> Iterator[str]:
    """Yield lines that call penstock: in blocks, and in a sentence where they are more than a name."""
    text = page.read_text().replace("\\\n", "")
    for line in re.findall(r"^\$ (penstock [a-z].*)$", text, re.MULTILINE):
        yield line
    for line in re.findall(r"`(penstock [a-z][^`]* -[^`]*)`", text):
        yield line.replace("\n", " ")


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def assert_shown(shown: str, printed: str) -> None:
    """All that is printed is shown, line by line, but for what a line `...` stands for."""
    if "..." not in lines(shown):
        assert lines(shown) == lines(printed)
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in lines(shown))
    assert re.fullmatch(pattern, "".join(f"{line}\n" for line in lines(printed))), f"{shown}\nis not in\n{printed}"


def runs() -> Iterator[Any]:
    """Yield each page without a mark, and with each mark that one of its blocks has."""
    for page in PAGES:
        for mark in ("", *sorted({block.mark for block in blocks(page)} - {""})):
            name = page.relative_to(DOCS).as_posix() + (f", {mark}" if mark else "")
            yield pytest.param(page, mark, id=name, marks=getattr(pytest.mark, mark) if mark else ())


def bring(needs: str, folder: Path) -> None:
    """Put the file that a block needs into the folder, or skip with the reason."""
    if needs and not (DATA / needs).is_file():
        pytest.skip(f"no {needs} in shared/data beside the repository")
    elif needs:
        shutil.copy(DATA / needs, folder)
        if (beside := (DATA / needs).with_suffix(".time")).is_file():  # when a saved page was read
            shutil.copy(beside, folder)


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show the clock of a page in UTC, and of the pages after it as before."""
    with monkeypatch.context() as context:
        context.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(("page", "mark"), [*runs()])
def test_who_follows_a_page_sees_what_it_shows(
    page: Path,
    mark: str,
    penstock: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files with a title are written, Python and commands run, and what they print stands right below."""
    for name in ("examples", "pyproject.toml"):  # as in a checkout
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    printed = ""  # and not shown so far
    for block in blocks(page):
        if block.mark not in ("", mark):
            continue
        bring(block.needs, tmp_path)
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        if block.language == "text":
            assert not block.gap.strip(), "what is printed stands right below what prints it"
            assert_shown(block.text, printed)
            printed = ""
        assert not printed, f"a block prints this, and the page does not show it:\n{printed}"
        if block.language == "python":
            exec(compile(block.text, str(tmp_path / (block.title or "step.py")), "exec"), names)
            printed = capsys.readouterr().out
        if block.language == "console":
            for told in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                end = re.match(r"(?:.*\\\n)*.*\n?", told).end()  # type: ignore[union-attr]
                said = answer(shlex.split(told[:end].replace("\\\n", " ")), penstock)
                if told[end:].strip():
                    assert_shown(told[end:], said)
    assert not printed, f"a block prints this, and the page does not show it:\n{printed}"


def answer(command: list[str], penstock: Callable[..., tuple[int, str, str]]) -> str:
    """Return what a command prints: `penstock` in this process, anything else in one of its own, as from a clone."""
    if command[0] == "penstock":
        status, printed, error = penstock(*command[1:])
        assert status == 0, error
        return printed
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.mark.parametrize("shown", ["a\nb\nc", "a\n\nb\nc\n", "a\n...", "...\nb\n...", "...\na\nb\nc\n..."])
def test_a_page_may_cut_what_is_printed_only_by_a_line_of_dots(shown: str) -> None:
    assert_shown(shown, "a\nb\n\nc \n")


@pytest.mark.parametrize("shown", ["a\nb", "a\nc", "b\nc", "...\nb", "a\n...\nd", "...\nc\n...\nb\n...", "a\nb\nc\nd"])
def test_a_line_that_is_not_printed_there_or_left_out_in_silence_is_found(shown: str) -> None:
    with pytest.raises(AssertionError):
        assert_shown(shown, "a\nb\nc\n")


def test_the_marks_of_a_block_hold_for_what_it_prints_too(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- slow: traces/a.csv -->\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\nls\n```\n")
    assert [(block.language, block.mark, block.needs) for block in blocks(page)] == [
        ("python", "slow", "traces/a.csv"),
        ("text", "slow", "traces/a.csv"),
        ("sh", "", ""),
    ]


@every_page
def test_every_command_of_a_page_exists_with_the_options_that_it_is_given(page: Path) -> None:
    for line in commands(page):
        name, *arguments = shlex.split(line, comments=True)[1:]
        if not name.isascii() or name.isupper():
            continue  # penstock COMMAND
        command = get_command(command_line()).commands[name]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.split("=")[0] for word in arguments if word.startswith("--")}
        assert given <= known | {"--help"}, line


@every_page
def test_what_a_page_says_to_measure_again_is_an_item_of_the_paper(page: Path) -> None:
    for name in re.findall(r"python -m paper ([a-z][\w-]*)", page.read_text()):
        assert name in (*ITEMS, "all"), name


@every_page
def test_there_is_no_block_that_nobody_runs(page: Path) -> None:
    """YAML is YAML, each block names its language, and no paragraph is indented to look like a block."""
    for block in blocks(page):
        assert block.language in ("python", "console", "sh", "text", "yaml"), block.text
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)
        if block.language == "console":
            assert block.text.startswith("$ ")
            told = [shlex.split(line) for line in re.findall(r"^\$ (.*[^\\\n])$", block.text, re.MULTILINE)]
            assert not [word for words in told for word in words if word in ("|", ">", "<", "&&", ";")], "no shell runs"
    fences = re.findall(r"^[ \t>*+-]*(?:\d+\. *)?(?:`{3,}|~{3,}).*", page.read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence that is written otherwise, so that nobody runs it"
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"(?:\A|\n\n)(?: {4,}|\t)\S.*", prose) == []


def test_what_developers_are_told_to_run_is_run() -> None:
    """By CI, by the test of the site, or by the tests of a real server."""
    if not (ROOT / ".ci" / "run").is_file():
        pytest.skip("the workflow of CI is not part of a source distribution")
    ci, site = (ROOT / ".ci" / "run").read_text(), (ROOT / "tests" / "test_site.py").read_text()
    run = ci.replace("\\", "") + site.replace('", "', " ")
    for page in {*PAGES} - {REAL_SERVER}:
        for told in (block.text for block in blocks(page) if block.language == "sh"):
            for command in re.split(r" && |\n", told.strip()):
                assert command in run, f"{page.name}: nothing runs {command}"


def test_the_version_to_cite_is_that_of_the_project_and_its_date_that_of_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == project["version"]
    dated = f"## [{cited['version']}] - {cited['date-released']}"
    assert dated in (ROOT / "CHANGELOG.md").read_text().splitlines()


@every_page
def test_figures_and_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert name.startswith(("https://", "#")) or (page.parent / name.split("#")[0]).exists(), name
    for name in re.findall(r"`((?:docs|tests|benchmarks|examples|paper|src)/[\w./-]+?)`", text):
        pattern = name.replace("ENGINE", "*")  # an engine that a page speaks of in general
        assert [*ROOT.glob(pattern.rstrip("/"))], name


@pytest.mark.parametrize("page", ["architecture", "add-a-policy"])
def test_places_that_a_row_names_are_there(page: str) -> None:
    """Files of the package or of the repository, tests among them, and in one of them each name beside them."""
    files = 0
    for row in (DOCS / "development" / f"{page}.md").read_text().splitlines():
        places = re.findall(r"[`( ]((?:[\w-]+/)+\w+\.(?:py|yaml)|__init__\.pyi)\b", row)
        if not row.startswith("|") or not places:
            continue
        found = [path for place in places for path in (SOURCES / place, ROOT / place) if path.is_file()]
        assert len(found) == len(places), row
        text = "\n".join(path.read_text() for path in found)
        names = re.findall(r"`([A-Za-z_]\w+)`", row)
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == [], row
        files += len(found)
    assert files > 15


def test_what_the_architecture_places_in_a_file_is_made_there() -> None:
    """``name`` of ``file``: a function, a class, a method, a field or a constant of that file."""
    text = " ".join((DOCS / "development" / "architecture.md").read_text().split())
    listed = re.findall(r"((?:`\w+`(?:, | and | or )?)+) of `((?:[\w-]+/)+\w+\.py|\w+\.py)`", text)
    assert len(listed) > 20
    for names, file in listed:
        made = (SOURCES / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^ *(?:def|class) {name}\b|^ *{name}(?::| =)", made, re.MULTILINE), (name, file)


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = ROOT / "README.md"
    for name in re.findall(r"\]\(([^)]+)\)", readme.read_text()):
        assert name.startswith("https://") or (ROOT / name.split("#")[0]).exists(), name


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
