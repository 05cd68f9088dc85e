"""Where a workload lies in the region of a server, as far as its batch times are known."""

import dataclasses
from typing import Annotated

from penstock.capacity.held_by import point_with_memory
from penstock.checking.doubt import known_within, reach_of
from penstock.show.answers import Meaning, Shown, computed
from penstock.system.kinds import OfSystem
from penstock.system.prefix_cache import front_notes
from penstock.system.server import Server
from penstock.theory.operating_point import OperatingPoint
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True)
class EndsOfLoad:
    """Between what load and limit lie."""

    load: Annotated[list[float], Meaning("At the fast and at the slow end.")]
    max_rate: Annotated[list[float], Meaning("At the slow and at the fast end, requests/s.")]


@dataclasses.dataclass(frozen=True, eq=False)
class LoadInRegion(OfSystem, Shown):
    """A workload in the region of a server, and what is not known of it."""

    system: Annotated[tuple[Workload, Server], Meaning("What was asked about.", key=None)]
    point: Annotated[OperatingPoint, Meaning("Where the load lies.", key="**")]

    @computed()
    def calibration(self) -> EndsOfLoad | None:
        """Ends of load and limit; None: batch times are taken as exact."""
        reach = reach_of(self.system)
        return None if reach is None else EndsOfLoad([*reach.load], [*reach.max_rate])

    @computed()
    def warnings(self) -> list[str]:
        """What to know."""
        return [*known_within(self.system), *front_notes(*self.system)]


def load_in_region(workload: Workload, server: Server) -> LoadInRegion:
    """Say where a workload lies in the region of a server, and what holds it back."""
    return LoadInRegion((workload, server), point_with_memory(workload, server))
