"""What long work reports of itself."""

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from penstock import checks
from penstock.errors import InputError

Item = TypeVar("Item")

Progress = Callable[[float], None]
"""Called now and then with the share of the work that is done."""


def silent(share: float) -> None:
    """Report nothing."""


def part_of(progress: Progress | None, begin: float, end: float) -> Progress:
    """Return what reports the progress of a part of the work, from one share to another."""
    if progress is None:
        return silent
    if not callable(progress):
        raise InputError(
            f"progress is {checks.shown(progress)}, but must be a function of the share that is "
            "done; leave it out"
        )
    return lambda share: progress(begin + (end - begin) * min(share, 1.0))


def counting(progress: Progress | None, most: int) -> Callable[[], None]:
    """Return what reports one more step of work that has at most so many."""
    steps = itertools.count(1)
    report = part_of(progress, 0.0, 1.0)
    return lambda: report(next(steps) / most)


def in_parts(progress: Progress | None, items: Collection[Item]) -> Iterator[tuple[Item, Progress]]:
    """Yield each item with where to report the share of it that is done; all take as long."""
    for index, item in enumerate(items):
        yield item, part_of(progress, index / len(items), (index + 1) / len(items))
