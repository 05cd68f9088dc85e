"""What a terminal shows while work goes on, on standard error, and nothing for work that is done in a moment."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PATIENCE_S = 1.0  # nothing is said about work that takes less


class Show(Protocol):
    """What a bar is told now and then."""

    def __call__(self, share: float, doing: str = "", /) -> None:
        """Show the share that is done, and what is being done."""


@contextlib.contextmanager
def bar(title: str) -> Iterator[Show]:
    """Show a bar on standard error for work that takes longer than a moment."""
    begun = time.monotonic()
    shown_bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = shown_bar.add_task(title, total=1.0)
    shown = False

    def report(share: float, doing: str = "", /) -> None:
        nonlocal shown
        if not shown and shown_bar.console.is_terminal and time.monotonic() - begun > PATIENCE_S:
            shown = True
            shown_bar.start()
        if shown:
            shown_bar.update(task, completed=share, description=f"{title}: {doing}" if doing else title)

    try:
        yield report
    finally:
        if shown:
            shown_bar.stop()


def announce_compilation() -> None:
    """Say once, when it begins, that the kernel is being compiled: it takes seconds the first time on a machine."""
    from numba.core import event

    class Announcement(event.Listener):
        said = False

        def on_start(self, _: Any) -> None:
            if not self.said:
                self.said = True
                print("Compiling, once for the simulator and once for each policy ...", file=sys.stderr, flush=True)

        def on_end(self, _: Any) -> None:
            pass

    event.register("numba:compile", Announcement())  # type: ignore[no-untyped-call]
