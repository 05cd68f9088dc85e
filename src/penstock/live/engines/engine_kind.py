"""A kind of engine: where its metrics hold the fields of a scrape."""

import dataclasses
import functools
from collections.abc import Mapping

from penstock.live.engines.metric import Metric


@dataclasses.dataclass(frozen=True)
class Same:
    """Two ways in which a page says the same, so that one tells when the other is damaged.

    Attributes
    ----------
    fields
        The fields that are not known if the two differ.
    one, other
        The two.
    """

    fields: tuple[str, ...]
    one: Metric
    other: Metric


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of engine.

    Attributes
    ----------
    name
        What it is called.
    prefixes
        What the names of its metrics may begin with; all names below are without.
    mark
        The gauge that each of its engines has: series without it are no engine.
    fields
        Where each field of a `Scrape` is found; of several places, the first that the page has.
    usual
        Fields that every version says: a page without one of them is damaged.
    identity
        Labels that tell engines of one page apart.
    only
        Label values of the series that are read, where they have the label at all.
    same
        What the page says twice.
    """

    name: str
    prefixes: tuple[str, ...]
    mark: str
    fields: Mapping[str, tuple[Metric, ...]]
    usual: frozenset[str]
    identity: tuple[str, ...] = ("model_name",)
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    same: tuple[Same, ...] = ()

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
