"""How a file says where an engine's metrics hold what is wanted: sums, products, spreads."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from penstock.live.exposition import Samples


class Metric(Protocol):
    """Where a page says something."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Names that are read, without the prefix of the engine."""

    def value(self, samples: Samples) -> float | None:
        """Return what it says, None where it says nothing, NaN where it cannot be right."""


Place = Metric | str
"""A metric; a name: its `Total`."""


def metrics(places: Place | tuple[Place, ...]) -> tuple[Metric, ...]:
    """Return the metrics of several places, or of one."""
    several = places if isinstance(places, tuple) else (places,)
    return tuple(Total(place) if isinstance(place, str) else place for place in several)


def first(places: Iterable[Metric], samples: Samples) -> float | None:
    """Return what the first place says that says something."""
    return next((v for place in places if (v := place.value(samples)) is not None), None)


@dataclasses.dataclass(frozen=True)
class Total:
    """The sum over all labels of a metric, or of those series that have some values of a label."""

    name: str  # without prefix
    # Values by label, of the series that are summed.
    only: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """Its name, and that of the times when its series began, which tell what is missing."""
        return (self.name, _began(self.name), *_bucket(self.name))

    def value(self, samples: Samples) -> float | None:
        """Return the sum."""
        series = samples.by_name.get(self.name)
        if not series:
            return None
        if not samples.by_name.get(_began(self.name), {}).keys() <= series.keys():
            return math.nan  # a series is missing that began
        values = [
            sample.value
            for sample in samples.of(self.name)
            if all(sample.labels.get(label) in values for label, values in self.only.items())
        ]
        if not values:
            return None
        whole = all(math.isfinite(value) and value >= 0 for value in values)
        return math.fsum(values) if whole and _agrees(samples, self.name) else math.nan


@dataclasses.dataclass(frozen=True)
class Sum:
    """The sum of several totals, all of which must be there."""

    names: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of all."""
        return tuple(name for part in self.names for name in Total(part).reads)

    def value(self, samples: Samples) -> float | None:
        """Return the sum."""
        values = [Total(name).value(samples) for name in self.names]
        return None if None in values else math.fsum(values)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Product:
    """The product of numbers that stand in labels of an info metric."""

    name: str
    labels: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Its name."""
        return (self.name,)

    def value(self, samples: Samples) -> float | None:
        """Return the product; None where a label holds no number."""
        for sample in samples.of(self.name):
            numbers = [_number(sample.labels.get(label)) for label in self.labels]
            product = math.prod(number or 0.0 for number in numbers)
            if 0 < product < math.inf:
                return product
        return None


@dataclasses.dataclass(frozen=True)
class Spread:
    """Standard deviation over mean of a histogram's values, each in the middle of its bucket.

    The mean is exact, from sum and count; that of the buckets is scaled to it.
    """

    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        """Its buckets, sum and count."""
        return tuple(f"{self.name}{ending}" for ending in ("_bucket", "_sum", "_count"))

    def value(self, samples: Samples) -> float | None:
        """Return the spread; None where it has no values, NaN where its buckets cannot be right."""
        bounds = _buckets(samples, f"{self.name}_bucket")
        if len(bounds) < 2:
            return None
        if not _rising(bounds) or not _agrees(samples, f"{self.name}_count"):
            return math.nan
        weights, middles = [], []
        low, below = 0.0, 0.0
        for high, count in bounds:
            # Nothing is known above the last bound but that values lie there.
            middles.append((low + high) / 2 if math.isfinite(high) else low)
            weights.append(count - below)
            low, below = high, count
        total = math.fsum(weights)
        if not total:
            return None
        mean = math.fsum(w * m for w, m in zip(weights, middles, strict=True)) / total
        square = math.fsum(w * m * m for w, m in zip(weights, middles, strict=True)) / total
        return math.sqrt(max(0.0, square - mean**2)) / mean if mean else None


def _number(text: Any) -> float | None:
    """Return a number of at least 0 that stands in a label."""
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if number >= 0 else None


def _began(name: str) -> str:
    for ending in ("_total", "_count", "_sum"):
        name = name.removesuffix(ending)
    return f"{name}_created"


def _bucket(name: str) -> tuple[str, ...]:
    return (f"{name.removesuffix('_count')}_bucket",) if name.endswith("_count") else ()


def _agrees(samples: Samples, name: str) -> bool:
    """Return whether a histogram's count is that of its last bucket."""
    if not name.endswith("_count"):
        return True
    bounds = _buckets(samples, _bucket(name)[0])
    if not bounds:
        return True
    counted = math.fsum(sample.value for sample in samples.of(name))
    return not math.isinf(bounds[-1][0]) or bounds[-1][1] == counted


def _buckets(samples: Samples, name: str) -> list[tuple[float, float]]:
    """Return upper bounds and cumulative counts of a histogram, over all its series."""
    counts: dict[float, float] = {}
    for sample in samples.of(name):
        bound = _number(sample.labels.get("le"))
        if bound is None:
            return []
        counts[bound] = counts.get(bound, 0.0) + sample.value
    return sorted(counts.items())


def _rising(bounds: Iterable[tuple[float, float]]) -> bool:
    """Return whether cumulative counts are counts and never fall."""
    counts = [0.0, *(count for _, count in bounds)]
    whole = all(map(math.isfinite, counts))
    return whole and all(low <= high for low, high in itertools.pairwise(counts))
