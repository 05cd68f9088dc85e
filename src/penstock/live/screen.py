"""A page on the terminal that is drawn anew in its place."""

import io
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.show.page import Page
from penstock.show.terminal import print_page


class Screen:
    """The terminal, until it is left."""

    def __init__(self) -> None:
        self._console = Console(emoji=False)
        self._live = Live(
            Text("Watching ..."),
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, page: Page) -> None:
        """Draw a page; lines for which the terminal is too low are counted instead."""
        text = io.StringIO()
        apart = Console(
            file=text, force_terminal=True, width=self._console.width, emoji=False
        )  # the terminal's own would draw what it shows now, too
        print_page(page, apart)
        lines = text.getvalue().splitlines()
        room = self._console.height
        if len(lines) > room:
            left = len(lines) - room + 1
            lines = [*lines[: room - 1], f"... {left} more lines: a taller window shows them"]
        self._live.update(Text.from_ansi("\n".join(lines)), refresh=True)
