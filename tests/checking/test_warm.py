"""What `penstock warm` has compiled, no command compiles again."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTS = """
import sys
from numba.core import event
from penstock.cli import main
class Counts(event.Listener):
    def on_start(self, about):
        print("compiled", about.data["dispatcher"].py_func.__name__, file=sys.stderr)
    def on_end(self, about):
        pass
event.register("numba:compile", Counts())
main()
"""


def run(*arguments: object, **environment: object) -> tuple[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, *(("-m", "penstock") if arguments[0] == "warm" else ("-c", COUNTS)), *map(str, arguments)],
        env=ours | {name: str(value) for name, value in environment.items()},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def test_a_folder_that_was_filled_is_all_that_an_answer_needs(tmp_path: Path) -> None:
    said, _ = run("warm", "--for", "vllm", "--folder", tmp_path / "shipped")
    assert said.startswith("vllm: ")
    assert f"All that {tmp_path / 'shipped'} has: " in said
    there = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "shipped").iterdir()}
    assert {name.partition("-")[0] for name in there} >= {"events.advance", "vllm.vllm"}

    said, complained = run("warm", "--for", "vllm", PENSTOCK_COMPILED=tmp_path / "shipped")
    assert (said.splitlines()[0], complained) == ("vllm: was there", "")

    elsewhere = {"PENSTOCK_COMPILED": tmp_path / "shipped", "XDG_CACHE_HOME": tmp_path / "cache"}
    said, complained = run("check", EXAMPLES / "vllm_8b_h100.yaml", "--requests", 300, **elsewhere)
    assert said
    assert complained == ""
    assert not (tmp_path / "cache").exists()
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "shipped").iterdir()} == there


def test_each_function_that_a_system_may_lack_is_compiled_for_some_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.checking import warm
    from penstock.kernel import apart, events
    from penstock.kernel.records import APART
    from penstock.system.engines import ENGINES

    compiled: list[str] = []
    monkeypatch.setattr(apart, "address", compiled.append)
    monkeypatch.setattr(events, "compiled_advance", lambda: None)
    for prepare in [prepare[-1] for prepare in warm._parts().values()]:
        prepare()
    assert set(compiled) == {*APART, *(engine.rule for engine in ENGINES.values())}


@pytest.mark.slow
def test_all_that_is_compiled_for_any_processor_serves_every_example_here(tmp_path: Path) -> None:
    empty = {"XDG_CACHE_HOME": tmp_path / "empty"}
    said, _ = run("warm", "--any-cpu", "--folder", tmp_path / "shipped", **empty)
    assert "was there" not in said
    assert sum(file.stat().st_size for file in (tmp_path / "shipped").iterdir()) < 20e6
    elsewhere = {"PENSTOCK_COMPILED": tmp_path / "shipped", "XDG_CACHE_HOME": tmp_path / "cache"}
    for example in sorted(EXAMPLES.glob("*.yaml")):
        assert run("check", example, **elsewhere)[1] == "", example
    assert run("compare", EXAMPLES / "azure_code.yaml", **elsewhere)[1] == ""
    assert run("max-rate", EXAMPLES / "vllm_8b_h100.yaml", **elsewhere)[1] == ""


def test_a_name_without_code_and_a_folder_that_cannot_be_written_to_are_refused(
    penstock: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    status, _, complained = penstock("warm", "--for", "vllm,vlm")
    assert status == 2
    assert complained == (
        "penstock: --for vlm: there is nothing of that name to compile. "
        "Choose among policies, vllm, sglang, tensorrt-llm, networks\n"
    )
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "warm", "--for", "vllm", "--folder", tmp_path / "file"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"penstock: cannot use {tmp_path / 'file'}: ")
