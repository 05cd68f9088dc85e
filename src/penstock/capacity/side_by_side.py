"""The highest rates of a system and of others with fields changed, side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from penstock.capacity.held_by import point_with_memory
from penstock.capacity.max_rate import MaxRate, max_rate
from penstock.checking.doubt import beyond_rows
from penstock.checking.variants import ask
from penstock.show.answers import Meaning, Shown, computed
from penstock.simulation.progress import Progress
from penstock.system.prefix_cache import front_notes, network_notes, unsaid
from penstock.theory.operating_point import OperatingPoint, operating_point
from penstock.words import gathered

if TYPE_CHECKING:
    from penstock.system.kinds import System


@dataclasses.dataclass(frozen=True, eq=False)
class MaxRates(Shown):
    """The highest rates of a server under policies, or of a network as it is or by what varies."""

    rates: Annotated[
        Mapping[str, MaxRate],
        Meaning("By policy, or what varies.", key="policies", of_network="networks"),
    ]
    systems: Annotated["Mapping[str, System]", Meaning("What was asked about.", key=None)]
    point: Annotated[
        OperatingPoint | None,
        Meaning(
            "Where the load lies in the region of the first server, and what holds that back; None "
            "of networks.",
            key=None,
        ),
    ]
    notes: Annotated[Sequence[str], Meaning("What to know before rates are read.", key=None)] = ()
    notices: Annotated[Sequence[str], Meaning("What to know besides.", key=None)] = ()

    @computed()
    def warnings(self) -> list[str]:
        """What to know."""
        return [*self.notes, *self.notices]

    @property
    def is_network(self) -> bool:
        """Whether all that was asked about are networks."""
        return not any(isinstance(system, tuple) for system in self.systems.values())


def max_rates(
    systems: "Mapping[str, System]",
    notices: Sequence[str] = (),
    progress: Progress | None = None,
    **options: Any,
) -> MaxRates:
    """Find the highest rate of each system, with options of `max_rate`."""
    rates = ask(max_rate, systems, progress, **options)
    notes = gathered(
        {
            name: [*_within(rates[name]), *beyond_rows(system), *_front_notes(system)]
            for name, system in systems.items()
        }
    )
    name, first = next(iter(systems.items()))
    point = None
    if isinstance(first, tuple):
        if len(systems) == 1:
            point = point_with_memory(*first, rates[name].above)
        else:  # what limits any scheduler
            point = operating_point(*first)
    return MaxRates(rates, systems, point, notes, unsaid(notices, notes))


def _within(rate: MaxRate) -> list[str]:
    """Say between what the highest rate lies, where batch times are not exact."""
    if rate.ends is None:
        return []
    slow, fast = rate.ends.slow, rate.ends.fast
    return [
        f"As far as batch times are known, it is stable up to {slow.rate:,.4g} to {fast.rate:,.4g} "
        f"{rate.unit}, and no policy carries more than {slow.bound:,.4g} to {fast.bound:,.4g} "
        f"({rate.ends.origin}). Below are the middle batch times."
    ]


def _front_notes(system: "System") -> list[str]:
    """Return what to know of the KV memory of all servers, and of prefix caches."""
    if isinstance(system, tuple):
        return front_notes(*system)
    servers = [server for pool in system.pools.values() for server, _ in pool.servers]
    return [*network_notes(system), *(note for server in servers for note in server.kv_notes)]
