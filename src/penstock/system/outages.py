"""Outages: a replica dies and comes back, and what becomes of the requests that were there."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Checked, Key, Range
from penstock.system.pool import Pool

SENT_AGAIN, LOST = "sent-again", "lost"
_PLACE = Range(0, 10**6, "", "it is its place in its pool, from 0")


def _second(of: str, does: str) -> Range:
    """Return when an outage may begin or end."""
    why = f"it is the second of the run at which the replica {does}"
    return Range(0, 1e9, "s", why, f"the {of} of an outage")


@dataclass(frozen=True)
class Outage(Checked):
    """A replica that dies and comes back.

    It loses its batch in progress, its KV memory and its caches, and comes back empty. Its pool's
    router knows at once who serves. Where nobody does, requests wait at the router.

    Attributes
    ----------
    pool, replica
        Which: the name of its pool, and its place there, from 0, kind by kind.
    start_s, end_s
        From when to when, seconds from the beginning of the run. Batches that end at its start
        have ended.
    requests
        What becomes of those that were there: they are ``sent-again``, at once, and begin anew; or
        they are ``lost``, and with them all that would have come after them in their jobs.

    Raises
    ------
    InputError
        If it does not end after its start, or a value is out of range.
    """

    pool: str
    replica: Annotated[int, _PLACE]
    start_s: Annotated[float, _second("start", "dies"), Key("from")]
    end_s: Annotated[float, _second("end", "comes back"), Key("to")]
    requests: Literal["sent-again", "lost"] = "sent-again"

    @classmethod
    def called(cls, field: str) -> str:
        """Return how messages call a field."""
        return "what becomes of requests (`requests`)" if field == "requests" else field

    def settle(self) -> None:
        """Refuse an outage of nothing, or that ends before it begins."""
        if not isinstance(self.pool, str):
            raise InputError(
                f"the pool of an outage is {checks.shown(self.pool)}; give the name of one"
            )
        if self.end_s <= self.start_s:
            raise InputError(
                f"an outage ends at {self.end_s:g} s, but begins at {self.start_s:g} s; let it end "
                "later"
            )

    @property
    def name(self) -> str:
        """The replica, as tables call it."""
        return f"{self.pool}/{self.replica}"


def listed(outages: Any) -> tuple[Any, ...]:
    """Return what should be outages."""
    if isinstance(outages, str) or not isinstance(outages, Iterable):
        raise InputError(
            f"outages are {checks.shown(outages)}; give a list of penstock.Outage(...)"
        )
    return tuple(outages)


def checked_outages(outages: Iterable[Any], pools: Mapping[str, Pool]) -> tuple[Outage, ...]:
    """Return outages in order of their starts, if the pools of a network can have them."""
    outages = listed(outages)
    for outage in outages:
        if not isinstance(outage, Outage):
            raise InputError(f"{checks.shown(outage)} is no outage; give penstock.Outage(...)")
        if outage.pool not in pools:
            raise InputError(
                f"an outage is of pool {checks.shown(outage.pool)}{nearest(outage.pool, pools)}"
            )
        replicas = pools[outage.pool].replicas
        if outage.replica >= replicas:
            raise InputError(
                f"an outage is of replica {outage.replica:,} of pool {outage.pool!r}, which has "
                f"{replicas:,}, counted from 0; give at most {replicas - 1:,}"
            )
    ordered = sorted(outages, key=lambda outage: (outage.pool, outage.replica, outage.start_s))
    for earlier, later in itertools.pairwise(ordered):
        if earlier.name == later.name and later.start_s <= earlier.end_s:
            raise InputError(
                f"{later.name} dies at {later.start_s:g} s, but is away until "
                f"{earlier.end_s:g} s; let it die after that"
            )
    return tuple(sorted(outages, key=lambda outage: outage.start_s))
