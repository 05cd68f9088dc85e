"""A line with a bar on a terminal, drawn by Rich."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

BAR_WIDTH = 16


def started(words: str, begun: float) -> Progress:
    """Return a line that is shown, for work that began at ``begun`` (`time.monotonic`, s)."""
    console = Console(stderr=True)
    line = Progress(*_columns(), console=console, transient=True, expand=True)
    task = line.add_task(words, total=None)
    line.tasks[task].start_time = begun
    line.start()
    return line


def _columns() -> list[ProgressColumn]:
    """Return a line's columns: words get what bar and times leave, and never push them away."""
    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=words),
        BarColumn(bar_width=BAR_WIDTH, table_column=Column(no_wrap=True)),
        TaskProgressColumn(table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        _TimeLeft(compact=True, table_column=Column(no_wrap=True)),
    ]


class _TimeLeft(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        """Return the time left, in words that tell it from time gone; nothing if unknown."""
        left = super().render(task)
        return Text(f"{left.plain} left") if task.time_remaining is not None else Text()
