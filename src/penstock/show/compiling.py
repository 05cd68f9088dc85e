"""What is said while the simulator is compiled: what, and how far that is."""

import contextlib
import functools
import time
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from numba.core import event
from numba.core.dispatcher import Dispatcher

from penstock.show import progress
from penstock.words import counted

WAITING = "penstock:waiting"  # the event of `kernel/kept_code.py`
LOOKS_EVERY_S = 0.5
TRANSLATING = 0.65  # of the time; then all functions are optimised together, in silence


class Compiling(event.Listener):
    """Counts the functions that are compiled for one that calls them."""

    def __init__(self) -> None:
        self.depth = self.done = self.total = 0
        self.began = self.latest = 0.0
        self.title = ""
        self.lines = contextlib.ExitStack()
        self.has_begun = False

    def on_start(self, event: Any) -> None:
        """Note that a function is compiled."""
        if not self.depth:
            self._begin(event.data["dispatcher"])
        self.depth += 1

    def _begin(self, dispatcher: Any) -> None:
        if not (self.has_begun or progress.on_terminal()):
            progress.log(
                "Compiling, once for the simulator and once for each policy, which takes ten "
                "seconds to a minute ..."
            )
        self.has_begun = True
        self.done, self.total = 0, functions_of(dispatcher)
        self.began = self.latest = time.monotonic()
        module = dispatcher.py_func.__module__.rpartition(".")[2]
        self.title = f"Compiling {module.replace('_', ' ')}, once"
        self.show = self.lines.enter_context(progress.bar(self.title))
        on_terminal = progress.on_terminal()
        every_s = LOOKS_EVERY_S if on_terminal else progress.SAYS_EVERY_S
        self.lines.enter_context(progress.now_and_then(every_s, self._say))

    def _say(self) -> None:
        done = f"{min(self.done, self.total):,} of {counted(self.total, 'function')}"
        if progress.on_terminal():
            self.show(self._share(), done)
        else:
            progress.log(f"{self.title}: {done} done")

    def _share(self) -> float:
        """Return the share that is done, of what takes time."""
        translated = min(self.done / self.total, 1.0)
        if translated < 0.9:
            return TRANSLATING * translated
        # how fast this machine is, the first part has shown
        rest = (1 - TRANSLATING) / TRANSLATING * (self.latest - self.began)
        passed = (time.monotonic() - self.latest) / rest
        return TRANSLATING * translated + 0.99 * (1 - TRANSLATING) * min(passed, 1.0)

    def on_end(self, event: Any) -> None:
        """Note that a function is compiled; of the last one, that all are."""
        self.depth -= 1
        self.done += 1
        self.latest = time.monotonic()
        if not self.depth:
            self.lines.close()


class Waiting(event.Listener):
    """Says that another process compiles what is needed."""

    def __init__(self) -> None:
        self.lines = contextlib.ExitStack()

    def on_start(self, event: Any) -> None:
        """Say for whom."""
        words = f"Waiting for another process, which compiles {event.data['function']}"
        if not progress.on_terminal():
            progress.log(f"{words} ...")
        self.lines.enter_context(progress.bar(words))

    def on_end(self, event: Any) -> None:
        """Go on."""
        self.lines.close()


def functions_of(dispatcher: Any) -> int:
    """Return how many functions are compiled for one, itself included."""
    reached = [dispatcher]
    for each in reached:  # which grows
        reached += [
            found
            for found in _called(each.py_func)
            if isinstance(found, Dispatcher)
            and not found.overloads  # else it is compiled already
            and all(found is not known for known in reached)
        ]
    return len(reached)


def _called(function: Any) -> list[Any]:
    """Return what a function may call: all that it names."""
    codes, names = [function.__code__], set()
    for code in codes:  # which grows
        names |= set(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    named = [function.__globals__.get(name) for name in names]
    modules = [each for each in named if isinstance(each, ModuleType)]
    named += [getattr(module, name, None) for module in modules for name in names]
    return named + [cell.cell_contents for cell in function.__closure__ or ()]


@functools.cache
def announce_compilation() -> None:
    """Say what is being compiled and how far it is; it takes seconds, the first time."""
    event.register("numba:compile", Compiling())  # type: ignore[no-untyped-call]
    event.register(WAITING, Waiting())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def simulating(title: str = "Simulating") -> Iterator[progress.Show]:
    """Show a bar for work with the simulator, and what of that is compiled before."""
    announce_compilation()
    with progress.bar(title) as show:
        yield show
