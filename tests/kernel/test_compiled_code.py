"""Compiled code is kept in a private temporary folder where Numba has no place, and nowhere where that is unsafe."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = f"penstock-{os.getuid()}"
COMPILE = """
from numba.core import caching
caching.CacheImpl._locator_classes = caching.CacheImpl._locator_classes[:1]  # a read-only package and home
from penstock.kernel import counting
print(counting.add(counting.new_multiset(), 5, 1))
"""


def run(code: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=environment | {"TMPDIR": str(temporary)},
    )  # fmt: skip


def test_where_package_and_home_are_read_only_a_private_folder_keeps_compiled_code(tmp_path: Path) -> None:
    done = run(COMPILE, tmp_path)
    assert done.stdout == "1\n"
    assert len(done.stderr.splitlines()) == 1
    assert f"goes to {tmp_path / FOLDER}" in done.stderr
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    assert list((tmp_path / FOLDER).rglob("*.nbi"))


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def no_folder(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize("trap", [open_to_others, link, no_folder])
def test_a_folder_that_others_may_have_made_is_not_used(trap, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trap(tmp_path / FOLDER)
    done = run(COMPILE, tmp_path)
    assert done.stdout == "1\n"
    assert len(done.stderr.splitlines()) == 1
    assert "is not kept" in done.stderr
    assert not list(tmp_path.rglob("*.nbi"))


def test_a_folder_of_another_owner_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.kernel import compiled_code

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert compiled_code.private_folder() == tmp_path / FOLDER
    stranger = os.getuid() + 1
    (tmp_path / FOLDER).rename(tmp_path / f"penstock-{stranger}")
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    assert compiled_code.private_folder() is None


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_no_compiler(option: str, tmp_path: Path) -> None:
    code = f"import sys; sys.argv = ['penstock', {option!r}]\nfrom penstock.cli import main\ntry: main()\n"
    done = run(code + "finally: print('numba' in sys.modules)", tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
    assert done.stderr == ""


def test_what_is_kept_of_a_function_is_good_while_no_file_of_the_kernel_has_changed(tmp_path: Path) -> None:
    """A function has those that it calls inside, from other files; Numba would look at its own file only."""
    source = """
import sys
from pathlib import Path
from penstock.kernel import compiled_code
if sys.argv[1] == "later":
    compiled_code._STAMP = "another"
from penstock.kernel.due_epochs import next_due_epoch
import numpy as np
next_due_epoch(np.array([4], np.uint64), 0)
print(sum(next_due_epoch.stats.cache_hits.values()))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    hits = [
        subprocess.run(
            [sys.executable, "-c", source, when], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for when in ("now", "now", "later", "later")
    ]
    assert hits == ["0", "1", "0", "1"]


def test_a_part_that_python_calls_says_that_it_is_none_of_its_business() -> None:
    from penstock.kernel.blocks import blocks_of

    for _ in range(2):  # compiled, and known
        with pytest.raises(KeyError, match="blocks_of is called by compiled functions only"):
            blocks_of(5, 16)


@pytest.mark.parametrize("ending", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("content", [b"", b"no code", b"\x80\x04cut"])
def test_kept_code_that_cannot_be_read_is_compiled_again(ending: str, content: bytes, tmp_path: Path) -> None:
    source = "from penstock.kernel.counting import add, new_multiset\nprint(add(new_multiset(), 5, 1))"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", source]
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("1\n", "")
        kept = [*tmp_path.rglob(ending)]
        assert kept
        for file in kept:
            file.write_bytes(content)


def test_kept_code_is_loaded_without_what_compiles_and_a_policy_of_ones_own_compiles_after_it(
    tmp_path: Path,
) -> None:
    source = """
import sys
import numpy as np
from penstock.kernel.counting import add, new_multiset
from penstock.kernel.signatures import DECODE_FIRST, Limits, Queue
from penstock.system.policies import POLICIES, policy

add(new_multiset(), 5, 1)
POLICIES["orca"].compiled
print("numba.np.arraymath" in sys.modules)

def mine(queue, limits, params):
    shares = np.ones(2)  # counted, as what Penstock has of its own is not
    return int(shares.sum()), queue.decoding, DECODE_FIRST

for made in (POLICIES["orca"], policy(mine)):
    print(made.compiled(Queue(*range(len(Queue._fields))), Limits(512, 8), np.ones(1))[:2])
"""
    path = tmp_path / "source.py"
    path.write_text(source)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    cold, warm = [
        subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert (cold[0], warm[0]) == ("True", "False")
    assert cold[1:] == warm[1:]
    assert len(warm) == 3
