"""Pages of one address, read one after another: which engine they are of, and what each says.

A number that cannot be right is not given, and a note says so. What tells a broken page from a
whole one: negative and infinite values, series that were there before, counters that fall alone,
what a page says twice, histograms whose buckets do not add up.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from penstock.live.engines import KINDS
from penstock.live.engines.engine_kind import Kind
from penstock.live.engines.metric import first, metrics
from penstock.live.engines.tensorrt import NAME as TENSORRT
from penstock.live.engines.tensorrt import TensorRT
from penstock.live.exposition import Labels, Samples, read_page
from penstock.live.iterations_seen import Seen
from penstock.live.scrape import Scrape

_MOST_SHARE = 1.001  # of KV memory; beyond, the gauge is no share
_MULTIPROCESS = 0.05  # by which two metrics may differ where several processes write them

_COUNTS = ("_total", "_count", "_sum", "_bucket")

Key = tuple[str, ...]
"""The labels that tell one engine of a page from another."""


@dataclasses.dataclass(frozen=True)
class Note:
    """What happened, and at which engine."""

    engine: str
    text: str


@dataclasses.dataclass(frozen=True)
class Read:
    """What a page said, or what an engine told of its iterations."""

    scrapes: tuple[Scrape, ...] = ()
    notes: tuple[Note, ...] = ()
    kind: str = ""
    seen: Seen | None = None


def kind_of(samples: Mapping[str, Any]) -> Kind | None:
    """Return the kind of engine whose metrics have such names."""
    marked = (kind for kind in KINDS for name in samples if kind.short(name) == kind.mark)
    return next(marked, None)


def is_wanted(name: str) -> bool:
    """Return whether some engine has a metric of that name that is read."""
    return any(kind.short(name) for kind in KINDS)


class Pages:
    """What is remembered of an address, whose name its engines have, from page to page.

    Where a page has several, they are called by their labels, too.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._names: dict[Key, str] = {}
        self._engines: dict[str, _Engine] = {}
        self._iterations = TensorRT(address)

    def read(self, page: bytes, time_s: float) -> Read:
        """Return what a page says; never raises, whatever the page holds."""
        if page.lstrip()[:1] in (b"[", b"{"):
            return self._json(page, time_s)
        return self.of(read_page(page, is_wanted), time_s)

    def of(self, samples: Samples, time_s: float) -> Read:
        """Return what samples say."""
        kind = kind_of(samples.by_name)
        notes = [Note(self.address, fault) for fault in samples.faults]
        if kind is None:
            text = "the page has no metrics of an engine that is known (vLLM, SGLang, TensorRT-LLM)"
            return Read(notes=(*notes, Note(self.address, text)))
        parts = _apart(kind, samples)
        engines = {key: part for key, part in parts.items() if _is_engine(kind, part)}
        shared = Samples({})
        for key, part in parts.items():
            if key in engines:
                continue
            if _is_shared(key, engines):
                shared = _joined(shared, part)
            else:
                text = f"an engine without {kind.mark}, or with nothing else, is left out"
                notes.append(Note(self.address, text))
        scrapes: list[Scrape] = []
        for key, part in sorted(engines.items()):
            name = self._name(key, len(engines))
            engine = self._engines.setdefault(name, _Engine(kind, name))
            said = engine.read(part, shared, len(engines), time_s)
            scrapes += said.scrapes
            notes += said.notes
        return Read(tuple(scrapes), tuple(notes), kind.name)

    def _name(self, key: Key, count: int) -> str:
        """Return what an engine is called: by the address alone if it was alone at first."""
        if key not in self._names:
            labels = "/".join(part for part in key if part)
            alone = count == 1 and not self._names
            self._names[key] = self.address if alone else f"{self.address} {labels}".strip()
        return self._names[key]

    def _json(self, page: bytes, time_s: float) -> Read:
        try:
            document = json.loads(page)
        except (ValueError, RecursionError):
            return Read(notes=(Note(self.address, "the page is broken JSON, and is left out"),))
        scrape, texts = self._iterations.read(document, time_s)
        notes = tuple(Note(self.address, text) for text in texts)
        return Read((scrape,) if scrape else (), notes, TENSORRT)


class _Engine:
    """What is remembered of one engine."""

    def __init__(self, kind: Kind, name: str) -> None:
        self._kind = kind
        self._name = name
        self._series: dict[tuple[str, Labels], float] = {}
        self._last: dict[str, float] = {}
        self._whole: dict[str, float] = {}
        self._share: dict[str, float] = {}

    def read(self, own: Samples, shared: Samples, engines: int, time_s: float) -> Read:
        """Return what its part of a page says; what counts all engines together is divided."""
        both = _joined(own, shared)
        suspects = self._suspects(both)
        fields: dict[str, float | None] = {}
        notes = []
        for field, places in self._kind.places.items():
            value = first(places, own)
            if value is None:
                value = self._divided(field, first(places, shared), engines)
            if any(name in suspects for place in places for name in place.reads):
                value = math.nan
            if value is None and (field in self._kind.usual or field in self._last):
                notes.append(f"the page lacks its metrics of `{field}`, which is not known now")
            if value is not None and not _possible(field, value):
                notes.append(f"`{field}` cannot be right on this page, and is left out")
                value = None
            if field == "kv_used" and value is not None:
                value = min(value, 1.0)
            fields[field] = value
        exact = any(name.endswith("_created") for name in both.by_name)
        for of_fields, pair in self._kind.same.items():
            one, other = (metric.value(both) for metric in metrics(pair))
            if _differ(one, other, exact=exact):
                blamed = " and ".join(f"`{field}`" for field in of_fields)
                notes.append(f"the page says two things of {blamed}: left out")
                fields |= dict.fromkeys(of_fields)
        self._last |= {field: value for field, value in fields.items() if value is not None}
        scrape = Scrape(self._name, time_s, **fields)
        texts = dict.fromkeys(notes)
        return Read((scrape,), tuple(Note(self._name, text) for text in texts))

    def _divided(self, field: str, whole: float | None, engines: int) -> float | None:
        """Return this engine's share of a counter of all engines of the page."""
        # What was added is divided: a share falls if the counter began anew, not if an engine
        # joins.
        if whole is None or not _possible(field, whole):
            return whole
        last, share = self._whole.get(field, 0.0), self._share.get(field, 0.0)
        began_anew = whole < last
        self._whole[field] = whole
        self._share[field] = whole / engines if began_anew else share + (whole - last) / engines
        return self._share[field]

    def _suspects(self, samples: Samples) -> set[str]:
        """Return the metrics of which a series is gone that was there, or a counter has fallen."""
        # If most counters have fallen, the engine began anew, and nothing is suspect.
        series = {
            (name, key): value
            for name, values in samples.by_name.items()
            for key, value in values.items()
        }
        counts = {
            place: value
            for place, value in self._series.items()
            if place[0].endswith(_COUNTS) and place in series and value > 0
        }
        fallen = {place for place, value in counts.items() if series[place] < value}
        if 2 * len(fallen) > len(counts):
            self._series = series
            return set()
        gone = self._series.keys() - series.keys()
        self._series |= series
        return {name for name, _ in gone | fallen}


def _apart(kind: Kind, samples: Samples) -> dict[Key, Samples]:
    """Return each engine's samples, by names without prefix; of equal ranks the first alone."""
    parts: dict[Key, dict[str, dict[Labels, float]]] = {}
    for full, series in samples.by_name.items():
        name = kind.short(full)
        if name is None:
            continue
        for labels, value in series.items():
            said = dict(labels)
            if any(said.get(label, wanted) != wanted for label, wanted in kind.only.items()):
                continue
            key = tuple(said.get(label, "") for label in kind.identity)
            parts.setdefault(key, {}).setdefault(name, {})[labels] = value
    return {key: Samples(names) for key, names in parts.items()}


def _is_engine(kind: Kind, samples: Samples) -> bool:
    """Return whether samples have an engine's gauge, and more than a damaged label leaves."""
    known = (first(kind.places[field], samples) is not None for field in kind.usual)
    return bool(samples.of(kind.mark)) and sum(known) > 1


def _is_shared(key: Key, engines: Mapping[Key, object]) -> bool:
    """Return whether series count all engines: their labels are fewer, and none are others."""
    return "" in key and any(
        all(part in ("", of_engine) for part, of_engine in zip(key, engine, strict=True))
        for engine in engines
    )


def _joined(one: Samples, other: Samples) -> Samples:
    names = {*one.by_name, *other.by_name}
    return Samples({n: {**one.by_name.get(n, {}), **other.by_name.get(n, {})} for n in names})


def _possible(field: str, value: float) -> bool:
    limit = _MOST_SHARE if field == "kv_used" else math.inf
    return 0 <= value <= limit and math.isfinite(value)


def _differ(one: float | None, other: float | None, *, exact: bool) -> bool:
    """Return whether two ways to say the same differ, where both say something."""
    # A page that several processes write is no picture of one instant.
    if one is None or other is None or math.isnan(one) or math.isnan(other):
        return False
    allowed = 1e-9 if exact else _MULTIPROCESS
    return abs(one - other) > allowed * max(abs(one), abs(other))
