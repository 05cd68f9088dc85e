"""What the command line sets for its process: Ctrl-C is one line and status 130, whenever it comes.

Imported by the command line alone, and first, for what follows takes most of a second to import. An
exception there would end in a traceback, or in none: some libraries swallow what is raised while
they are imported. What is imported here, Python has loaded before.
"""

# `signal` has the same functions, and takes as long as all before it to load
import _signal  # type: ignore[import-not-found]
import atexit
import gc
import os
import sys

TYPE_CHECKING = False  # that of `typing` takes long to load
if TYPE_CHECKING:
    from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130


def complain() -> None:
    """Say on standard error that the user has stopped it."""
    if sys.stderr is None:  # what is printed to None goes to standard output
        return
    try:  # noqa: SIM105 - contextlib takes as long to load as all before it
        print("penstock: interrupted", file=sys.stderr, flush=True)
    except (OSError, RuntimeError):  # nobody reads it, or it came while something was printed
        pass


def _leave_at_once() -> None:
    complain()
    os._exit(EXIT_INTERRUPTED)


class _Work:
    """The work of a command, which cleans up behind itself when it is interrupted."""

    goes_on = False

    def __enter__(self) -> None:
        self.goes_on = True

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        trace: "TracebackType | None",
    ) -> None:
        self.goes_on = False


work = _Work()
"""Within it Ctrl-C is a `KeyboardInterrupt`; before and after it, the process just ends."""


def _on_signal(_: int, frame: "FrameType | None") -> None:
    """Leave at once where nothing is written yet: outside the work, or during an import."""
    # Else the work cleans up.
    if not work.goes_on:
        _leave_at_once()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave_at_once()
        frame = frame.f_back
    raise KeyboardInterrupt


def _on_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Leave where an interrupt came in code whose exceptions Python only prints."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _leave_at_once()
    _usual_hook(unraisable)


_usual_hook = sys.unraisablehook
# Else it is ignored, as in the background.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    try:
        _signal.signal(_signal.SIGINT, _on_signal)
        sys.unraisablehook = _on_unraisable
    except ValueError:  # not the main thread, so not the command line
        pass

# Imports make hundreds of thousands of objects, none of them garbage. To look through them every
# 700 allocations, and once more at the end, as Python does, takes a quarter of a short command.
gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)
