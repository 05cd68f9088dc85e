"""Results kept for arguments that come again, where these can be keys."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def cached(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep so many results; none where the user's own lengths or batch times cannot be keys."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        remembered = functools.lru_cache(size, typed=True)(function)  # True is not 1

        @functools.wraps(function)
        def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                hash((args, tuple(kwargs.values())))
            except TypeError:
                return function(*args, **kwargs)
            return remembered(*args, **kwargs)  # type: ignore[arg-type]

        return answer

    return decorated
