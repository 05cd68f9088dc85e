"""A kind of engine: where its metrics hold the fields of a scrape."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

from penstock.live.engines.metric import Metric, Place, metrics


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of engine."""

    name: str
    # What the names of its metrics may begin with; all names below are without.
    prefixes: tuple[str, ...]
    mark: str  # the gauge that each of its engines has: series without it are no engine
    # Where each field of a `Scrape` is found; of several places, the first that the page has.
    fields: Mapping[str, Place | tuple[Place, ...]]
    usual: tuple[str, ...]  # fields that every version has: a page without one is damaged
    identity: tuple[str, ...] = ("model_name",)  # labels that tell engines of one page apart
    # Label values of the series that are read, where they have the label at all.
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Fields that are not known if two places differ that say the same: of a damaged page.
    same: Mapping[tuple[str, ...], tuple[Place, Place]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def places(self) -> dict[str, tuple[Metric, ...]]:
        """Where each field is found."""
        return {field: metrics(places) for field, places in self.fields.items()}

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """All names that are read, without prefix."""
        places = [*self.places.values(), *map(metrics, self.same.values())]
        return frozenset({self.mark, *(name for m in itertools.chain(*places) for name in m.reads)})

    def short(self, name: str) -> str | None:
        """Return a metric's name without prefix, None where it is not read."""
        for prefix in self.prefixes:
            if name.startswith(prefix) and name[len(prefix) :] in self.reads:
                return name[len(prefix) :]
        return None
