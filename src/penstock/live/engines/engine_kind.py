"""A kind of engine: where its metrics hold the fields of a scrape."""

import dataclasses
import functools
from collections.abc import Mapping

from penstock.live.engines.metric import Metric


@dataclasses.dataclass(frozen=True)
class Same:
    """Two ways in which a page says the same, so that one tells when the other is damaged."""

    fields: tuple[str, ...]  # that are not known if the two differ
    one: Metric
    other: Metric


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of engine."""

    name: str
    # What the names of its metrics may begin with; all names below are without.
    prefixes: tuple[str, ...]
    mark: str  # the gauge that each of its engines has: series without it are no engine
    # Where each field of a `Scrape` is found; of several places, the first that the page has.
    fields: Mapping[str, tuple[Metric, ...]]
    usual: frozenset[str]  # that every version says: a page without one is damaged
    identity: tuple[str, ...] = ("model_name",)  # labels that tell engines of one page apart
    # Label values of the series that are read, where they have the label at all.
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    same: tuple[Same, ...] = ()  # what the page says twice

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """All names that are read, without prefix."""
        metrics = [place for places in self.fields.values() for place in places]
        metrics += [metric for same in self.same for metric in (same.one, same.other)]
        return frozenset((self.mark, *(name for metric in metrics for name in metric.reads)))

    def short(self, name: str) -> str | None:
        """Return a metric's name without prefix, None where it is not read."""
        for prefix in self.prefixes:
            if name.startswith(prefix) and name[len(prefix) :] in self.reads:
                return name[len(prefix) :]
        return None
