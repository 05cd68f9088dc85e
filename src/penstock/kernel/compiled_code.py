"""Where compiled code is kept between runs: where Numba keeps it, else in a temporary folder, else
nowhere.

Imported before anything is compiled. Beside the package or in the user's cache nothing can be kept
where both are read-only, as in many containers; Numba then refuses to compile at all.
"""

import functools
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

__all__ = ["allocating_nothing", "entry", "find_place", "uncounted"]


def uncounted(*, inline: bool = False) -> Callable[[Any], Any]:
    """Compile without counting references to arrays.

    Functions of the kernel take rows of arrays, and Numba would count each of those, which costs
    more than what they do. Nothing is allocated, so nothing needs counting.
    """
    return functools.partial(allocating_nothing, forceinline=inline, nogil=True)


def allocating_nothing(function: Any, **options: bool) -> Any:
    """Return what `numba.njit` makes of a function that allocates nothing; kept code is loaded
    alone.

    Numba would load all that it can compile first, which takes longer than many a run. Kept code
    calls nothing of that but what counts references; to compile, Numba loads it all the same.
    """
    dispatcher = numba.njit(cache=True, _nrt=False, **options)(function)  # type: ignore[call-overload]
    cache = getattr(dispatcher, "_cache", None)
    if isinstance(cache, FunctionCache):
        cache.load_overload = functools.partial(_load_overload, cache)  # type: ignore[method-assign]
        # What is kept of a function has those that it calls inside: it is good as long as no file
        # of the kernel has changed, where Numba looks at the function's own only.
        kept = cache._cache_file
        kept._source_stamp = (kept._source_stamp, _STAMP)
    return dispatcher


def _load_overload(cache: FunctionCache, signature: Any, context: Any) -> Any:
    """Do what Numba's method does, but for a refresh of the context."""
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)  # type: ignore[no-untyped-call]


def _stamp() -> tuple[float, int]:
    """Return when a file of the kernel changed last, and the size of all."""
    files = [path.stat() for path in Path(__file__).parent.glob("*.py")]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


_STAMP = _stamp()


def entry(function: Any, signature: Any) -> Callable[..., Any]:
    """Compile a function of the kernel under one signature; return what calls it without delay.

    A call of what `numba.njit` returns looks up the types of all arguments, which takes longer than
    many a run. Here they are known: arguments of other types are refused by Numba as it takes them
    apart, or misread. The first time takes seconds; later ones load what was kept.
    """
    compiled = uncounted()(function)
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return compiled  # type: ignore[no-any-return]
    compiled.compile(signature)
    call: Callable[..., Any] = compiled.overloads[signature.args].entry_point
    return call


def find_place() -> None:
    """Let Numba keep compiled code where it can; say so on standard error where that is not its
    usual place.
    """
    if _is_kept():
        return
    folder = private_folder()
    if folder is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(folder)  # for processes that this one starts
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
        if _is_kept():
            _note(f"goes to {folder}")
            return
    Dispatcher.enable_caching = _keep_nothing  # type: ignore[method-assign,assignment]
    _note("is not kept: every run compiles it again")


def _is_kept() -> bool:
    """Ask Numba whether it has a place for the code of this package."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """Stand for any function that is compiled."""


def _keep_nothing(_: "Dispatcher[Any]") -> None:
    """Stand for what Numba does to keep compiled code."""


def private_folder() -> Path | None:
    """Return a temporary folder that only this user can change, or nothing.

    Whoever can write there can run code as this user, for Numba unpickles what it finds. So a
    folder of another owner, one that others may open, and a link are refused.
    """
    if sys.platform == "win32":  # Numba always has a place there
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return folder if private and stat.S_ISDIR(status.st_mode) else None


def _note(what: str) -> None:
    print(
        f"Note: compiled code cannot be kept beside Penstock nor in the user's cache, and {what}. "
        "Set NUMBA_CACHE_DIR to a folder of your own to choose another place.",
        file=sys.stderr,
        flush=True,
    )


find_place()
