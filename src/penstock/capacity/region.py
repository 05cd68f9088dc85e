"""Where a workload lies in the region of a server, as far as its batch times are known."""

import dataclasses
import functools
from typing import Annotated

from penstock.capacity.held_by import point_with_memory
from penstock.checking.doubt import known_within, reach_of
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.show.answers import Meaning, Shown, computed
from penstock.system.kinds import OfSystem
from penstock.system.prefix_cache import as_serving, front_notes
from penstock.system.server import Server
from penstock.theory.exact_region import ExactRegion, exact_outline, exact_region
from penstock.theory.kv_blocks import reuses
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
    exact: Annotated[ExactRegion | None, Meaning(
        "What the best of all policies carries, counting that prompts end; null where it was not "
        "asked for."
    )]  # fmt: skip

    @computed()
    def calibration(self) -> EndsOfLoad | None:
        """Ends of load and limit; None: batch times are taken as exact."""
        reach = reach_of(self.system)
        return None if reach is None else EndsOfLoad([*reach.load], [*reach.max_rate])

    @computed()
    def warnings(self) -> list[str]:
        """What to know."""
        return [*known_within(self.system), *front_notes(*self.system)]

    @functools.cached_property
    def exact_outline(self) -> Floats | None:
        """What the best of all policies carries beside any number of decodes, for the figure."""
        workload, server = self.system
        return exact_outline(server, workload.lengths, self.exact) if self.exact else None


def load_in_region(workload: Workload, server: Server, *, exact: bool = False) -> LoadInRegion:
    """Say where a workload lies in the region of a server, and what holds it back."""
    point, of_best = point_with_memory(workload, server), None
    if exact:
        if reuses(workload, as_serving(workload, server)):
            raise InputError(
                "prompts may be found in the prefix cache, so what is computed of them is not "
                "known; leave --exact out, or turn the cache off (prefix_caching: false)"
            )
        of_best = exact_region(server, prompt=workload.lengths)
    return LoadInRegion((workload, server), point, of_best)
