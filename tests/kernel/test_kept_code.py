"""Compiled code is found again as long as what it depends on is the same, and whatever becomes of the folder."""

import ast
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.kernel import kept_code

PACKAGE = Path(kept_code.__file__).parents[1]
ADD = """
from penstock.kernel import counting
from penstock.kernel.compiled_code import from_python
add = from_python(counting.add)
print(add(counting.new_multiset(), 5, 1), sum(add.stats.cache_hits.values()))
"""
COMPILED, LOADED = "1 0\n", "1 1\n"
FORKS = """
import atexit, json, os, sys, tempfile, traceback
import numba
numba.njit(lambda one: one + 1)(1)  # which loads what compiles
for line in sys.stdin:
    code, environment, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
        status = 0
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            status = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each program that it is given in a process of its own, which has Numba already, but nothing of Penstock."""
PRIVATE = f"penstock-{os.getuid()}"


class Home:
    """Where a process of a user has its cache and its temporary files."""

    def __init__(self, folder: Path, forks: subprocess.Popen[str]) -> None:
        self.folder, self.forks = folder, forks
        self.cache, self.temporary = folder / "cache", folder / "temporary"
        self.kept = self.cache / "penstock" / "compiled"
        self.temporary.mkdir()
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PENSTOCK_"))}
        self.environment = ours | {"XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.temporary)}

    def start(self, code: str = ADD, **more: object) -> subprocess.Popen[str]:
        environment = self.environment | {name: str(value) for name, value in more.items()}
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, code: str = ADD, **more: object) -> tuple[str, str]:
        environment = self.environment | {name: str(value) for name, value in more.items()}
        out, err = self.folder / "out", self.folder / "err"
        assert self.forks.stdin
        assert self.forks.stdout
        self.forks.stdin.write(json.dumps([code, environment, str(out), str(err)]) + "\n")
        self.forks.stdin.flush()
        status = self.forks.stdout.readline()
        said = out.read_text(), err.read_text()
        assert status == "0\n", said
        return said


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-c", FORKS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as process:
        yield process


@pytest.fixture
def home(tmp_path: Path, forks: subprocess.Popen[str]) -> Home:
    return Home(tmp_path, forks)


def test_only_a_change_of_what_a_function_depends_on_compiles_it_again(home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "penstock", ignore=shutil.ignore_patterns("__pycache__"))

    def change(file: str) -> None:
        with (copy / "penstock" / file).open("a") as opened:
            opened.write("# changed\n")

    assert home.run() == (COMPILED, "")
    assert home.run(PYTHONPATH=copy) == (LOADED, "")  # installed elsewhere, later
    for file in ("show/page.py", "words.py", "system/policies.py", "kernel/events.py"):
        change(file)
    assert home.run(PYTHONPATH=copy) == (LOADED, "")
    for file in ("kernel/counting.py", "kernel/compiled_code.py"):
        change(file)
        assert home.run(PYTHONPATH=copy) == (COMPILED, "")
    assert home.run() == (LOADED, "")  # beside the code of the other version


def test_the_text_of_a_function_is_that_of_all_files_of_the_kernel_that_it_can_have_something_of() -> None:
    kernel = PACKAGE / "kernel"
    for file in kernel.rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            paths = [name.removeprefix("penstock.kernel.").replace(".", "/") for name in names]
            imported |= {kernel / f"{path}.py" for path in paths}
        assert kept_code._imported(file) == {each for each in imported if each.exists()}, file


def test_functions_outside_the_kernel_use_nothing_of_files_that_their_kept_code_does_not_depend_on() -> None:
    from penstock.system.orders import ORDERS
    from penstock.system.policies import POLICIES
    from penstock.system.routing import ROUTERS

    functions = [made.function for named in (POLICIES, ORDERS, ROUTERS) for made in named.values() if made.function]
    assert len(functions) > 10
    while functions:
        function = functions.pop()
        assert function.__closure__ is None
        used = set(function.__code__.co_names)
        text = ast.parse(Path(function.__code__.co_filename).read_text())
        for node in ast.walk(text):
            if isinstance(node, ast.ImportFrom) and used & {alias.name for alias in node.names}:
                assert str(node.module).startswith("penstock.kernel."), (function, node.module)
        found = [function.__globals__.get(name) for name in used]
        functions += [each.py_func for each in found if hasattr(each, "py_func")]


def test_code_of_another_version_is_left_alone_and_lies_beside(home: Home) -> None:
    other = f"from penstock.kernel import kept_code\nkept_code._ABOUT_ALL = ('another Numba',)\n{ADD}"
    assert [home.run(code)[0] for code in (ADD, ADD, other, other, ADD)] == [
        COMPILED, LOADED, COMPILED, LOADED, LOADED,
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"no code", None])
def test_kept_code_that_cannot_be_read_is_compiled_again(content: bytes | None, home: Home) -> None:
    home.run()
    for file in home.kept.iterdir():
        file.write_bytes(file.read_bytes()[:5000] if content is None else content)
    assert home.run() == (COMPILED, "")
    assert home.run() == (LOADED, "")


def test_processes_that_start_together_compile_once(home: Home) -> None:
    together = (
        f"import time\nfrom penstock.kernel import counting\ntime.sleep(max({time.time() + 3} - time.time(), 0))\n{ADD}"
    )
    said = [process.communicate() for process in [home.start(together) for _ in range(3)]]
    assert sorted(said) == [(COMPILED, ""), (LOADED, ""), (LOADED, "")]
    assert {file.suffix for file in home.kept.iterdir()} == {".kept"}


def test_who_waits_says_so_and_goes_on_when_the_other_is_killed(home: Home) -> None:
    hanging = f"""
import time
from penstock.kernel import kept_code
kept_code._write = lambda *_: (print("compiled", flush=True), time.sleep(1000))
{ADD}"""
    waiting = f"""
from numba.core import event
from penstock.kernel import kept_code
class Waits(event.Listener):
    def on_start(self, about):
        print("waits for", about.data["function"], flush=True)
    def on_end(self, about):
        print("waits no more", flush=True)
event.register(kept_code.WAITING, Waits())
{ADD}"""
    holder = home.start(hanging)
    assert holder.stdout
    assert holder.stdout.readline() == "compiled\n"
    waiter = home.start(waiting)
    assert waiter.stdout
    assert waiter.stdout.readline() == "waits for add\n"
    holder.send_signal(signal.SIGKILL)
    said, complained = waiter.communicate()
    holder.communicate()
    assert (said, complained) == (f"waits no more\n{COMPILED}", "")
    assert home.run() == (LOADED, "")


def test_a_folder_that_is_shipped_is_read_and_never_written_to(home: Home, tmp_path: Path) -> None:
    home.run()
    shipped = home.kept.rename(tmp_path / "shipped")
    (damaged,) = [file for file in shipped.iterdir() if file.name.startswith("counting.add-")]
    before = {file.name: file.read_bytes() for file in shipped.iterdir()}
    assert home.run(PENSTOCK_COMPILED=shipped) == (LOADED, "")
    assert not home.kept.exists()

    damaged.write_bytes(b"")
    assert home.run(PENSTOCK_COMPILED=shipped) == (COMPILED, "")
    assert home.run(PENSTOCK_COMPILED=shipped) == (LOADED, "")
    assert [file.name for file in home.kept.iterdir()] == [damaged.name]
    assert {file.name: file.read_bytes() for file in shipped.iterdir()} == before | {damaged.name: b""}


def no_folder(path: Path) -> None:
    path.write_text("")


def nothing(_: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [no_folder, nothing, empty])
def test_a_shipped_folder_without_the_code_is_said_once_and_done_without(make, home: Home, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "shipped")
    two = f"{ADD}\nfrom penstock.kernel.quantiles import compiled_find_quantiles\ncompiled_find_quantiles()"
    said, complained = home.run(two, PENSTOCK_COMPILED=tmp_path / "shipped")
    assert said == COMPILED
    (line,) = complained.splitlines()
    assert f"PENSTOCK_COMPILED={tmp_path / 'shipped'} has no code of `add`" in line
    assert home.run(PENSTOCK_COMPILED=tmp_path / "shipped") == (LOADED, "")


@pytest.mark.parametrize("place", ["file/cache", "/proc/cache"])
def test_where_the_users_cache_is_read_only_a_private_folder_keeps_compiled_code(place: str, home: Home) -> None:
    no_folder(home.temporary / "file")
    said, complained = home.run(XDG_CACHE_HOME=home.temporary / place)
    assert said == COMPILED
    assert len(complained.splitlines()) == 1
    assert f"goes to {home.temporary / PRIVATE}" in complained
    assert stat.S_IMODE((home.temporary / PRIVATE).stat().st_mode) == 0o700
    assert home.run(XDG_CACHE_HOME=home.temporary / place) == (LOADED, "")


def open_to_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("trap", [open_to_others, link, no_folder])
def test_a_folder_that_others_may_have_made_is_not_used(trap, home: Home) -> None:  # type: ignore[no-untyped-def]
    home.run(XDG_CACHE_HOME="/proc")
    shutil.rmtree(home.temporary / PRIVATE)
    trap(home.temporary / PRIVATE)
    said, complained = home.run(XDG_CACHE_HOME="/proc")
    assert said == COMPILED
    assert len(complained.splitlines()) == 1
    assert "is not kept" in complained
    assert not list(home.temporary.rglob("*.kept"))


def test_where_nothing_can_be_kept_all_works(home: Home) -> None:
    no_folder(home.temporary / PRIVATE)
    source = """
from numba.core import caching
caching.CacheImpl._locator_classes = []  # as in an image where the package and the user's cache are read-only
import numpy as np
from penstock.kernel.signatures import DECODE_FIRST, Limits, Queue
from penstock.system.policies import POLICIES, policy
def mine(queue, limits, params):
    return 1, queue.decoding, DECODE_FIRST
params = np.array([0.0, 0.0, 512.0, 2.0])
for made in (POLICIES["maxweight"], policy(mine)):
    print(made.compiled(Queue(*range(1, 1 + len(Queue._fields))), Limits(512, 8), params)[:2])
"""
    said, complained = home.run(source, XDG_CACHE_HOME="/proc")
    assert said == "(509, 3)\n(1, 3)\n"
    assert len(complained.splitlines()) == 1


def test_a_folder_of_another_owner_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert kept_code.private_folder() == tmp_path / PRIVATE
    stranger = os.getuid() + 1
    (tmp_path / PRIVATE).rename(tmp_path / f"penstock-{stranger}")
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    assert kept_code.private_folder() is None


def test_where_there_is_no_room_the_answer_comes_all_the_same(home: Home) -> None:
    """No file may have more than 5 kB, as on a disk that is nearly full."""
    small = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n{ADD}"
    said, complained = home.run(small)
    assert said == COMPILED
    (line,) = complained.splitlines()
    assert line.startswith(f"Note: compiled code cannot be kept in {home.kept} (File too large), and is not kept")
    assert not list(home.kept.iterdir())


def test_a_folder_keeps_what_was_used_last_and_no_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_code, "MOST_BYTES", 250)
    now = time.time()
    for name, days in (("a.kept", 3), ("b.kept", 9), ("c.kept", 2), ("left.lock", 4), ("new.lock", 0), ("other", 99)):
        (tmp_path / name).write_bytes(b"" if "lock" in name else bytes(80))
        os.utime(tmp_path / name, (now - days * kept_code.DAY_S,) * 2)
    kept_code._touch(tmp_path / "b.kept")
    kept_code._write(tmp_path, "d", bytes(80))
    assert {file.name for file in tmp_path.iterdir()} == {"b.kept", "c.kept", "d.kept", "new.lock", "other"}
