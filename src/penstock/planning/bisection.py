"""The fewest that do: in steps that double from a guess, then by halves."""

from collections.abc import Callable


def fewest(
    does: Callable[[int], bool],
    low: int,
    end: int,
    start: int,
    after_miss: Callable[[int], int | None] = lambda index: 0,
) -> int | None:
    """Return the least index that does, where every larger one does too; None: none is found."""
    # No index is asked about twice. The answer is from ``low`` to before ``end``; ``start`` is a
    # guess. ``after_miss`` gets an index that does not, and returns the least one worth asking
    # about while none is known to do, or None to give up.
    high, index, step = end, start, 1
    while low < high:
        if does(index):
            high = index
            index = max((low + high) // 2, high - step)
        else:
            low = index + 1
            least = after_miss(index)
            if least is None:
                return None
            index = (low + high) // 2 if high < end else min(max(least, index + step), end - 1)
        step *= 2
    return high if high < end else None
