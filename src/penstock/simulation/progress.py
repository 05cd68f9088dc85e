"""What long work reports of itself."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

Item = TypeVar("Item")

Progress = Callable[[float], None]
"""Called now and then with the share of the work that is done."""


def silent(share: float) -> None:
    """Report nothing."""


def part_of(progress: Progress | None, begin: float, end: float) -> Progress:
    """Return what reports the progress of a part of the work, from one share of all of it to
    another.
    """
    if progress is None:
        return silent
    return lambda share: progress(begin + (end - begin) * min(share, 1.0))


def in_parts(progress: Progress | None, items: Collection[Item]) -> Iterator[tuple[Item, Progress]]:
    """Yield each item with where to report the share of it that is done; all take as long."""
    for index, item in enumerate(items):
        yield item, part_of(progress, index / len(items), (index + 1) / len(items))
