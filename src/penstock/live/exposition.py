"""A page of metrics in Prometheus' text format: the samples that are wanted, and what is broken."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock import checks

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LONGEST_LINE = 65_536  # bytes; the parser's time grows with the square of it

Labels = frozenset[tuple[str, str]]


class Sample(NamedTuple):
    """A value with its labels."""

    labels: Mapping[str, str]
    value: float


@dataclasses.dataclass(frozen=True)
class Samples:
    """What a page says, by name; and its faults, clauses that are the same from page to page."""

    by_name: Mapping[str, Mapping[Labels, float]]
    faults: tuple[str, ...] = ()

    def of(self, name: str) -> list[Sample]:
        """Return the samples of a name."""
        return [Sample(dict(key), value) for key, value in self.by_name.get(name, {}).items()]

    @classmethod
    def of_series(cls, series: Iterable[tuple[str, Mapping[str, str], float]]) -> "Samples":
        """Gather samples by name; those that stand twice with two values are left out."""
        by_name: dict[str, dict[Labels, float]] = {}
        twice: set[tuple[str, Labels]] = set()
        for name, labels, value in series:
            key = frozenset(labels.items())
            values = by_name.setdefault(name, {})
            if key in values and values[key] != value:
                twice.add((name, key))
            values[key] = value
        for name, key in twice:
            del by_name[name][key]
        faults = {f"{name} stands twice with two values, and is left out" for name, _ in twice}
        return cls(by_name, tuple(sorted(faults)))


def read_page(page: bytes, wanted: Callable[[str], bool]) -> Samples:
    """Return a page's samples of the names wanted; other lines are not parsed."""
    *whole, torn = page.decode("utf-8", "replace").split("\n")
    faults = []
    if torn.strip():
        faults.append("the page ends in the middle of a line, which is left out")
    series = []
    for line in whole:
        name = _NAME.match(line)
        if name is None or not wanted(name[0]):
            continue
        sample = _sample(line) if len(line) <= _LONGEST_LINE else None
        if sample is None:
            faults.append(f"a line that begins with {checks.shown(name[0])} is no metric")
        else:
            series.append(sample)
    samples = Samples.of_series(series)
    return Samples(samples.by_name, tuple(dict.fromkeys((*faults, *samples.faults))))


def _sample(line: str) -> tuple[str, Mapping[str, str], float] | None:
    """Return name, labels and value of a line, or None where it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    if "\ufffd" in line:
        return None
    try:
        [family] = text_string_to_metric_families(line)
        [sample] = family.samples
        return sample.name, sample.labels, float(sample.value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
