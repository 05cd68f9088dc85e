"""Routers: which replica of a pool gets a request."""

import dataclasses

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.signatures import (
    ROUTE_POWER_OF_TWO,
    ROUTE_RANDOM,
    ROUTE_REQUESTS,
    ROUTE_ROUND_ROBIN,
    ROUTE_TOKENS,
    ROUTE_WORK,
)

_SMALLEST, _LARGEST = 1e-3, 1e6


@dataclasses.dataclass(frozen=True)
class Router:
    """A rule that chooses among the replicas of a pool; ties go to the lowest replica.

    Attributes
    ----------
    name
        How tables and messages call it.
    code
        What the kernel calls it (``ROUTE_...`` in `penstock.kernel.signatures`).
    prefill_weight, decode_weight
        For a `measure`: what a request in each phase counts.
    """

    name: str
    code: int
    prefill_weight: float | None = None
    decode_weight: float | None = None

    @staticmethod
    def measure(*, prefill: float, decode: float) -> "Router":
        """Return the router to the replica with the least ``prefill`` x prompts + ``decode`` x
        decoding requests.

        Parameters
        ----------
        prefill, decode
            What a request counts while it is in prefill, and in decode; both above 0, because a
            measure that vanishes at a busy replica would send it everything (rem:jsq+ holds for
            measures that vanish only at empty ones).
        """
        reason = "a measure that is 0 at a busy replica sends it everything"
        weights = [
            checks.number(
                f"the {phase} weight of a measure", weight, _SMALLEST, _LARGEST, "", reason
            )
            for phase, weight in (("prefill", prefill), ("decode", decode))
        ]
        return Router("measure", ROUTE_WORK, *weights)


ROUTERS: dict[str, Router] = {
    r.name: r
    for r in (
        Router("random", ROUTE_RANDOM),
        Router("round-robin", ROUTE_ROUND_ROBIN),
        Router("jsq", ROUTE_REQUESTS),
        Router("tokens", ROUTE_TOKENS),
        Router("work", ROUTE_WORK),
        Router("power-of-two", ROUTE_POWER_OF_TWO),
    )
}
"""The routers that have a name.

``random``; ``round-robin``, in turns; ``jsq``, fewest unfinished requests; ``tokens``, fewest
unprocessed tokens; ``work``, least expected work by the mean lengths of the stages;
``power-of-two``, the one of two replicas drawn at random with fewer unfinished requests.
`Router.measure` makes others.
"""


def resolve_router(choice: str | Router) -> Router:
    """Return the router of that name.

    Raises
    ------
    InputError
        If there is none; it says which there are.
    """
    if isinstance(choice, Router):
        return choice
    if not isinstance(choice, str) or choice not in ROUTERS:
        raise InputError(f"unknown router {checks.shown(choice)}{nearest(str(choice), ROUTERS)}")
    return ROUTERS[choice]
