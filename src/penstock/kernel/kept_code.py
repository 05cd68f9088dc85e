"""Where the code of wholes is kept between runs, and how it is found again.

A file has one whole, and is named by what that depends on: the text of its file and of those of the
kernel that this imports, its arguments, the processor (or any of its kind, where that was asked
for), and the versions of what compiles. So no file is ever out of date: there is one of that name,
or there is none. It is looked for in the folder that ``PENSTOCK_COMPILED`` names, which may be
read-only, and in the user's place, where new ones go.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
import re
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import llvmlite  # type: ignore[import-untyped]
import numba
from numba.core import event
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.misc.appdirs import AppDirs

__all__ = ["WAITING", "keep", "keep_in", "size"]

WAITING = "penstock:waiting"  # as Numba's events are named: another process compiles the same
ANY_PROCESSOR = ("generic", "")  # as Numba names it, with no features
MOST_BYTES = 60_000_000  # of all that is kept in a folder
MOST_WAIT_S = 600.0  # who compiles longer hangs
DAY_S = 86_400.0
KEPT, LOCK, PART = ".kept", ".lock", ".part"

_KERNEL = Path(__file__).parent
_IMPORT = re.compile(rb" penstock\.kernel(?:\.([\w.]+)| import ([\w, ]+)$|)", re.MULTILINE)
_ABOUT_ALL = (
    numba.__version__,
    llvmlite.__version__,
    sys.implementation.cache_tag,
    getattr(sys, "abiflags", ""),
)
_said: set[str] = set()
_only: list[Path] = []  # the folder to keep all in, if one was chosen


def keep(whole: Any, options: dict[str, bool]) -> None:
    """Let a dispatcher of Numba find its code, and keep it."""
    whole._cache = kept = _Kept(whole.py_func, options)
    compile_at_once = whole.compile

    def compile_(signature: Any) -> Any:
        with global_compiler_lock:  # taken first, or two threads would wait for each other
            if tuple(normalize_signature(signature)[0]) in whole.overloads:
                return compile_at_once(signature)
            with kept.alone(signature, whole.targetctx):
                return compile_at_once(signature)

    whole.compile = compile_


def keep_in(folder: Path | None) -> Path:
    """Keep all code in one folder, what is found elsewhere too, and return which; by default the
    one that is shipped, else the user's.
    """
    _only[:] = [folder or _shipped() or _users()]
    _only[0].mkdir(parents=True, exist_ok=True)
    return _only[0]


def size(folder: Path) -> int:
    """Return how many bytes of code a folder has."""
    return sum(file.stat().st_size for file in folder.glob(f"*{KEPT}"))


class _Kept(NullCache):
    """What is kept of one whole, in the place of Numba's own cache."""

    def __init__(self, function: Any, options: dict[str, bool]) -> None:
        code = function.__code__
        self._file, self._function = Path(code.co_filename), function.__qualname__
        self._about = (self._function, code.co_firstlineno, sorted(options.items()), _ABOUT_ALL)
        self._names = functools.cache(self._names_for)

    def _names_for(self, signature: Any, context: Any) -> list[str]:
        """Return how a file for a signature is called: of this processor, of any of its kind."""
        system, *processor = context.codegen().magic_tuple()
        about = (self._about, text_of(self._file), str(normalize_signature(signature)), system)
        digests = [
            hashlib.sha256(repr((*about, *kind)).encode()).hexdigest()[:32]
            for kind in (processor, ANY_PROCESSOR)
        ]
        stem = f"{self._file.stem}.{re.sub('[<>]', '', self._function)}"
        return [f"{stem}-{digest}" for digest in digests]

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what is kept, or nothing.

        Numba would first load all that it can compile, which takes longer than many a run. Kept
        code calls nothing of that but what counts references.
        """
        names = self._names(signature, context)
        for folder, name in itertools.product(_folders(), names):
            file = folder / f"{name}{KEPT}"
            try:
                data = file.read_bytes()
                result = CompileResult._rebuild(context, *pickle.loads(_checked(data)))
            except Exception:  # not there, cut short, something else: pickle raises what it likes
                continue
            if _only and folder != _only[0]:
                _write(_only[0], name, data)
            _touch(file)
            return result
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled, where that is possible."""
        name, _ = self._names(signature, result.target_context)
        payload = dumps(result._reduce())
        data = zlib.crc32(payload).to_bytes(4, "big") + payload
        refused = None
        for folder in _own_folders():
            try:
                _write(folder, name, data)
            except OSError as error:
                if _only:
                    raise
                refused = refused or error
            else:
                if refused:
                    _note(_REFUSED, _users(), refused.strerror, f"goes to {folder}")
                return
        every = "is not kept: every run compiles it again"
        _note(_REFUSED, _users(), refused and refused.strerror, every)

    @contextlib.contextmanager
    def alone(self, signature: Any, context: Any) -> Iterator[None]:
        """Have no other process compile the same meanwhile; it finds it kept afterwards."""
        names = self._names(signature, context)
        files = itertools.product(_folders(), names)
        if any(os.path.exists(folder / f"{name}{KEPT}") for folder, name in files):
            yield
            return
        named = _shipped()
        if named and not _only:
            _note(_LACKING, named, self._function)
        with _lock(names[0], self._function):
            yield


_REFUSED = (
    "compiled code cannot be kept in {} ({}), and {}. "
    "Set NUMBA_CACHE_DIR to a folder of your own to choose another place."
)
_LACKING = (
    "PENSTOCK_COMPILED={} has no code of `{}` for this Penstock, Numba, Python and processor, so "
    "this, and what else it lacks, is compiled and kept elsewhere. `penstock warm` puts it there."
)


def _note(what: str, *of: object) -> None:
    """Say something once, whatever it is said of next."""
    if what not in _said:
        _said.add(what)
        print(f"Note: {what.format(*of)}", file=sys.stderr, flush=True)


@functools.cache
def text_of(file: Path) -> str:
    """Return a digest of a file, and of all those of the kernel that it imports."""
    files = [file]
    for one in files:  # which grows
        files += _imported(one) - set(files)
    digests = sorted((one.name, _read(one)[0]) for one in files)
    return hashlib.sha256(repr(digests).encode()).hexdigest()


@functools.cache
def _read(file: Path) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the digest of a file, and what it imports of the kernel."""
    text = file.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(text).digest(), _IMPORT.findall(text)


@functools.cache
def _files() -> dict[str, Path]:
    """Return the kernel's files, each by the name of its module."""
    names = {file: file.relative_to(_KERNEL).with_suffix("") for file in _KERNEL.rglob("*.py")}
    return {".".join(name.parts): file for file, name in names.items()}


def _imported(file: Path) -> set[Path]:
    """Return the files of the kernel that a file imports; all, where that is not plain."""
    names = {
        name.strip() for one, some in _read(file)[1] for name in (one or some).decode().split(",")
    }
    files = _files()
    return {files[name] for name in names} if names <= files.keys() else set(files.values())


def _checked(data: bytes) -> memoryview:
    """Return what follows the sum of a file."""
    payload = memoryview(data)[4:]
    if zlib.crc32(payload) != int.from_bytes(data[:4], "big"):
        raise ValueError("cut short, or something else")
    return payload


def _shipped() -> Path | None:
    """Return the folder that a user names, to be read only."""
    named = os.environ.get("PENSTOCK_COMPILED")
    return Path(os.path.expanduser(named)) if named else None


@functools.cache
def _users() -> Path:
    """Return the user's place: the folder that Numba was told, or one in the user's cache."""
    folder = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if folder:
        return Path(folder) / "penstock"
    return Path(AppDirs("penstock").user_cache_dir) / "compiled"


def _own_folders() -> Iterator[Path]:
    """Return where code may be kept, best first."""
    if _only:
        yield from _only
        return
    yield _users()
    if private := private_folder():
        yield private


def _folders() -> Iterator[Path]:
    """Return where code may be found."""
    yield from _only
    if named := _shipped():
        yield named
    yield _users()
    if private := private_folder(make=False):
        yield private


def private_folder(make: bool = True) -> Path | None:
    """Return a temporary folder that only this user can change, or nothing.

    Whoever can write there can run code as this user, for what is found is unpickled. So a folder
    of another owner, one that others may open, and a link are refused.
    """
    if sys.platform == "win32":  # there is always a place there
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return folder if private and stat.S_ISDIR(status.st_mode) else None


def _write(folder: Path, name: str, data: bytes) -> None:
    """Write a file whole or not at all, and make room for it."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}-{os.urandom(4).hex()}{PART}"
    try:
        part.write_bytes(data)
        part.replace(folder / f"{name}{KEPT}")
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _trim(folder)


def _touch(file: Path) -> None:
    """Note, at most once a day, that a file is used."""
    with contextlib.suppress(OSError):
        if file.stat().st_mtime < time.time() - DAY_S:
            os.utime(file)


def _trim(folder: Path) -> None:
    """Delete what was not used for the longest time, and what killed processes have left."""
    with contextlib.suppress(OSError):
        files = [
            (status.st_mtime, status.st_size, file)
            for file in folder.iterdir()
            if file.suffix in (KEPT, LOCK, PART) and (status := file.stat())
        ]
        room = MOST_BYTES
        for used, size, file in sorted(files, reverse=True):
            room -= size
            if room < 0 or (file.suffix != KEPT and used < time.time() - DAY_S):
                file.unlink()  # who has read it needs it no more


@contextlib.contextmanager
def _lock(name: str, function: str) -> Iterator[None]:
    """Hold a file's lock, which the system takes from a process that ends, however it does."""
    opened = _opened(name)
    if opened is None:  # a place that is read-only, or full: nobody can wait there
        yield
        return
    with opened:
        held = _is_locked(opened)
        if not held:
            with event.trigger_event(WAITING, {"function": function}):
                end = time.monotonic() + MOST_WAIT_S
                while not (held := _is_locked(opened)) and time.monotonic() < end:
                    time.sleep(0.1)
        try:
            yield
        finally:
            if held:
                with contextlib.suppress(OSError):  # open elsewhere, which hinders on Windows
                    os.unlink(opened.name)


def _opened(name: str) -> BinaryIO | None:
    for folder in _own_folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return (folder / f"{name}{LOCK}").open("ab")
    return None


def _is_locked(file: BinaryIO) -> bool:
    """Lock a file, unless another process has; where files have no locks nobody waits."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True
