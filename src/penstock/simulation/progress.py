"""What long work reports of itself."""

from collections.abc import Callable

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
