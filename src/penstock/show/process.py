"""What the command line sets for its process: Ctrl-C is one line and status 130, whenever it comes.

Imported by the command line alone, and first, for what follows takes most of a second to import. An
exception there would end in a traceback, or in none: some libraries swallow what is raised while
they are imported.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130


def complain() -> None:
    """Say on standard error that the user has stopped it."""
    print("penstock: interrupted", file=sys.stderr, flush=True)


def _leave_at_once() -> None:
    complain()
    os._exit(EXIT_INTERRUPTED)


def _on_signal(_: int, frame: FrameType | None) -> None:
    """Leave where a module is being imported, when nothing is written yet; else let the work clean
    up.
    """
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
if (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):  # else it is ignored, as in the background
    with contextlib.suppress(ValueError):  # not the main thread, so not the command line
        signal.signal(signal.SIGINT, _on_signal)
        sys.unraisablehook = _on_unraisable

# Imports make hundreds of thousands of objects, none of them garbage. To look through them every
# 700 allocations, and once more at the end, as Python does, takes a quarter of a short command.
gc.set_threshold(100_000, 20, 20)
atexit.register(gc.freeze)
