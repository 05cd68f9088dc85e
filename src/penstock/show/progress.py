"""What standard error shows while work goes on; nothing for work that is done in a moment."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from penstock.words import counted

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0  # nothing is said about work that takes less
SAYS_EVERY_S = 30.0  # where standard error is no terminal, so that a log shows that long work lives


class Show(Protocol):
    """What a bar is told now and then."""

    def __call__(self, share: float, doing: str = "", /) -> None:
        """Show the share that is done, and what is being done."""


def on_terminal() -> bool:
    """Return whether somebody sees what moves."""
    return sys.stderr.isatty()


class _Line:
    """One line on standard error, shown when its work has taken longer than a moment."""

    def __init__(self, title: str, below: "_Line | None" = None) -> None:
        self.title = title
        self.progress: Progress | None = None  # what draws it, once it is shown
        self._below = below  # the line in whose place it is shown
        self._words = title
        self._share: float | None = None
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        # Work that reports nothing is shown too.
        self._timer = threading.Timer(PATIENCE_S, self._start)
        self._timer.daemon = True
        if on_terminal():
            self._timer.start()

    def _start(self) -> None:
        # Imported here, as most work is done before a line is shown.
        from penstock.show import progress_line

        with self._lock:
            if not self._timer.finished.is_set():
                if self._below is not None and self._below.progress is not None:
                    self._below.progress.stop()
                self.progress = progress_line.started(self._words, self._begun)
                self._update()

    def show(self, share: float, doing: str = "", /) -> None:
        """Show what is being done, and how far it is."""
        with self._lock:
            self._share = share
            self._words = f"{self.title}: {doing}" if doing else self.title
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
            if self._below is not None and self._below.progress is not None:
                self._below.progress.start()


_open: list[_Line] = []  # the line of the work that goes on, if any: a terminal shows one at a time


@contextlib.contextmanager
def bar(title: str) -> Iterator[Show]:
    """Show a bar on standard error for work that takes longer than a moment."""
    line = _Line(title, _open[-1] if _open else None)
    _open.append(line)
    try:
        yield line.show
    finally:
        _open.remove(line)
        line.close()


@contextlib.contextmanager
def now_and_then(every_s: float, say: Callable[[], None]) -> Iterator[None]:
    """Have something said every so many seconds."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(every_s):
            say()

    threading.Thread(target=go_on, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def log(words: str) -> None:
    """Write a line on standard error."""
    print(words, file=sys.stderr, flush=True)


@contextlib.contextmanager
def count(title: str, noun: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for counted work (done, in all) and its speed; in a log a line now and then."""
    started = time.monotonic()
    begun: int | None = None  # those of an earlier call took none of the time
    state = ""

    def say() -> None:
        if state and not on_terminal():
            log(f"{title}: {state} done")

    with now_and_then(SAYS_EVERY_S, say), bar(title) as show:

        def report(done: int, total: int) -> None:
            nonlocal begun, state
            begun = done if begun is None else begun
            state = f"{done:,} of {counted(total, noun)}"
            speed = (done - begun) / (time.monotonic() - started)
            show(done / total, f"{state}, {speed:,.3g}/s" if speed else state)

        yield report
