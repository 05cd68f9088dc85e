"""What the values along an axis of a search space stand for: routers with their settings, numbers
of replicas, and the ratio of those for prompts to those that decode.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock import checks
from penstock.errors import InputError
from penstock.planning.deployment import lowest
from penstock.system.pool import MOST_REPLICAS
from penstock.system.routing import Router, resolve_router

NamedRouter = tuple[str, tuple[tuple[str, float], ...]]
"""A router by its name, and the settings that are not those of the name."""


def named_router(choice: str | Router | Mapping[str, Any]) -> NamedRouter:
    """Return a router by its name, and what is set of it besides."""
    if isinstance(choice, str):
        return choice, ()
    chosen = resolve_router(choice)
    name = chosen.name if isinstance(choice, Router) else next(iter(choice))
    usual = resolve_router(name)  # or the search could not name it
    return name, tuple(pair for pair in chosen.settings if pair not in usual.settings)


def allowed_counts(replicas: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of replicas that are allowed, rising."""
    reason = "it is a number of replicas; a list, or the most"
    if isinstance(replicas, Iterable) and not isinstance(replicas, str):
        counts = sorted(
            {
                checks.whole("search.replicas", count, 1, MOST_REPLICAS, "", reason)
                for count in replicas
            }
        )
        if not counts:
            raise InputError(
                "search.replicas is empty, so there is nothing to deploy; give at least one number"
            )
        return tuple(counts)
    return tuple(
        range(1, checks.whole("search.replicas.max", replicas, 1, MOST_REPLICAS, "", reason) + 1)
    )


def ratio_of(text: str | None) -> tuple[int, int] | None:
    """Read prefill:decode."""
    if text is None:
        return None
    match = (
        re.fullmatch(r"\s*([0-9]{1,4})\s*:\s*([0-9]{1,4})\s*", text)
        if isinstance(text, str)
        else None
    )
    prefill, decode = (int(match[1]), int(match[2])) if match else (0, 0)
    if not prefill or not decode:
        raise InputError(
            f"search.disaggregation is {checks.shown(text)}, but must be replicas for prompts to "
            "replicas that decode, "
            'in quotes, such as "1:2"; null: each does both'
        )
    return lowest(prefill, decode)
