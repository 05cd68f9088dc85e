"""What a terminal shows while work goes on, on standard error, and nothing for work that is done in
a moment.
"""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from penstock.words import counted

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0  # nothing is said about work that takes less
SAYS_EVERY_S = 30.0  # where standard error is no terminal, so that a log shows that long work lives


class Show(Protocol):
    """What a bar is told now and then."""

    def __call__(self, share: float, doing: str = "", /) -> None:
        """Show the share that is done, and what is being done."""


def _on_terminal() -> bool:
    return sys.stderr.isatty()


class _Line:
    """One line on standard error, shown when its work has taken longer than a moment."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.progress: Progress | None = None  # what draws it, once it is shown
        self._words = title
        self._share: float | None = None
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        # Work that reports nothing is shown too.
        self._timer = threading.Timer(PATIENCE_S, self._start)
        self._timer.daemon = True
        if _on_terminal():
            self._timer.start()

    def _start(self) -> None:
        # Imported here, as most work is done before a line is shown.
        from penstock.show import progress_line

        with self._lock:
            if not self._timer.finished.is_set():
                self.progress = progress_line.started(self._words, self._begun)
                self._update()

    def show(self, share: float, doing: str = "", /) -> None:
        """Show what is being done, and how far it is."""
        self._share = share
        self.say(f"{self.title}: {doing}" if doing else self.title)

    def say(self, words: str) -> None:
        """Show what is being done."""
        with self._lock:
            self._words = words
            self._update()

    def _update(self) -> None:
        if self.progress is None:
            return
        task = self.progress.task_ids[0]
        self.progress.update(task, description=self._words)
        if self._share is not None:
            self.progress.update(task, completed=self._share, total=1.0)

    def close(self) -> None:
        """Take the line away."""
        with self._lock:
            self._timer.cancel()
        if self.progress is not None:
            self.progress.stop()


_open: list[_Line] = []  # the line of the work that goes on, if any: a terminal shows one at a time


@contextlib.contextmanager
def bar(title: str) -> Iterator[Show]:
    """Show a bar on standard error for work that takes longer than a moment."""
    line = _Line(title)
    _open.append(line)
    try:
        yield line.show
    finally:
        _open.remove(line)
        line.close()


@contextlib.contextmanager
def count(title: str, noun: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for counted work (done, in all) and its speed; in a log a line now and then."""
    started = time.monotonic()
    ended = threading.Event()
    begun: int | None = None  # those of an earlier call took none of the time
    state = ""

    def say() -> None:
        while not ended.wait(SAYS_EVERY_S):
            if state:
                print(f"{title}: {state} done", file=sys.stderr, flush=True)

    if not _on_terminal():
        threading.Thread(target=say, daemon=True).start()
    with bar(title) as show:

        def report(done: int, total: int) -> None:
            nonlocal begun, state
            begun = done if begun is None else begun
            state = f"{done:,} of {counted(total, noun)}"
            speed = (done - begun) / (time.monotonic() - started)
            show(done / total, f"{state}, {speed:,.3g}/s" if speed else state)

        try:
            yield report
        finally:
            ended.set()


@functools.cache
def announce_compilation() -> None:
    """Say what is being compiled and how far it is; it takes seconds, the first time."""
    from numba.core import event

    class Announcement(event.Listener):
        def __init__(self) -> None:
            self.depth = 0  # functions that are compiled for one that calls them
            self.done = 0
            self.lines = contextlib.ExitStack()

        def on_start(self, event: Any) -> None:
            if not self.depth:
                self._begin()
            self.depth += 1
            _open[-1].say(
                f"Compiling, once: {self.done} done, {event.data['dispatcher'].py_func.__name__}"
            )

        def _begin(self) -> None:
            if not (self.done or _on_terminal()):
                words = (
                    "Compiling, once for the simulator and once for each policy, which takes ten "
                    "seconds to a minute ..."
                )
                print(words, file=sys.stderr, flush=True)
            if not _open:
                self.lines.enter_context(bar("Compiling"))

        def on_end(self, _: Any) -> None:
            self.depth -= 1
            self.done += 1
            if not self.depth:
                for line in _open[-1:]:
                    line.say(line.title)
                self.lines.close()

    event.register("numba:compile", Announcement())  # type: ignore[no-untyped-call]
