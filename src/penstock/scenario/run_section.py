"""How much of a scenario is simulated, of a server or a network."""

from typing import Annotated

from penstock.document import Section, Whole, stays_in
from penstock.errors import InputError
from penstock.fields import Range
from penstock.workload.arrivals import MOST_ARRIVALS

DEFAULT_ARRIVALS = 20_000

COUNT = Range(1, MOST_ARRIVALS, "", "it is how many arrive")
_UNTIL = Range(1e-9, 1e9, "s", "it is the simulated time at which to stop")
_SEED = Range(0, 2**128, "", "take any")


class RunSection(Section):
    """How much to simulate: ``until`` in simulated seconds, or arrivals, named by a subclass."""

    until: Annotated[float, stays_in(_UNTIL, whole=False)] | None = None
    seed: Annotated[Whole, stays_in(_SEED)] = 0

    def arrivals(self, unit: str) -> int | None:
        """Return how many arrivals of this unit there are to be, None where it does not say."""
        count: int | None = getattr(self, unit)
        if count is not None and self.until is not None:
            raise InputError(
                f"simulate: `{unit}` and `until` both say when to stop; give one of them"
            )
        return count
