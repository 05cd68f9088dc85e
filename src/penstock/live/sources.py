"""Where scrapes come from: pages of engines, counters of gateways, Prometheus."""

import abc
import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from penstock import checks
from penstock.inputs.recording import LATEST_S
from penstock.live.engines import KINDS
from penstock.live.engines.gateways import ARRIVALS
from penstock.live.engines.metric import first, metrics
from penstock.live.exposition import Samples, read_page
from penstock.live.fetching import Address, Fetcher, FetchFault
from penstock.live.metrics_pages import Note, Pages, Read
from penstock.live.scrape import Scrape

GATEWAY = "arrivals"
"""The name of scrapes that are of a gateway and of no engine."""

_FIRST_S = 600  # of history that Prometheus is asked for at first, so that an answer comes at once
_LATE_S = 60  # by which a scrape may reach Prometheus late
_TARGET = ("cluster", "namespace", "pod", "instance")
"""Labels that Prometheus adds: which page a sample is from."""


class Source(Protocol):
    """Something that can be asked again and again."""

    name: str

    def read(self) -> Read:
        """Return what it says now; never raises for what is wrong at the other end."""


class _Address(abc.ABC):
    """Something that is asked over HTTP; what is wrong at the other end is a note."""

    def __init__(self, address: Address, limit_s: float) -> None:
        self.name = address.name
        self._fetcher = Fetcher(address, limit_s)

    def read(self) -> Read:
        """Return what it says now."""
        try:
            return self._read()
        except FetchFault as fault:
            return Read(notes=(Note(self.name, str(fault)),))

    @abc.abstractmethod
    def _read(self) -> Read: ...


class EnginePage(_Address):
    """The page of one address: one engine, or several."""

    def __init__(self, address: Address, limit_s: float) -> None:
        super().__init__(address, limit_s)
        self._pages = Pages(address.name)

    def _read(self) -> Read:
        page = self._fetcher.get()
        return self._pages.read(page.content, page.time_s)


class GatewayPage(_Address):
    """The counter of arrivals of a gateway; it goes on where the gateway begins anew."""

    def __init__(self, address: Address, limit_s: float) -> None:
        super().__init__(address, limit_s)
        self._metric = address.fragment
        self._places = metrics(self._metric or ARRIVALS)
        self._names = {name for metric in self._places for name in metric.reads}
        self._last = 0.0
        self._arrived = 0.0

    def _read(self) -> Read:
        page = self._fetcher.get()
        samples = read_page(page.content, self._names.__contains__)
        count = first(self._places, samples)
        if count is None:
            metric = self._metric or "counter of arrivals that is known"
            raise FetchFault(f"its page has no {metric}; name it as URL#METRIC")
        if not math.isfinite(count):
            raise FetchFault("its counter of arrivals cannot be right, and is left out")
        texts = list(samples.faults)
        if count < self._last:
            texts.append("the gateway's counter of arrivals began anew")
            self._last = 0.0
        self._arrived += count - self._last
        self._last = count
        scrape = Scrape(GATEWAY, page.time_s, arrived=self._arrived)
        return Read((scrape,), tuple(Note(self.name, text) for text in texts))


class Prometheus(_Address):
    """What Prometheus has scraped of engines: with the times of its scrapes, and those before.

    ``match``: label matchers, such as ``namespace="prod"``; empty: all. Answers may take
    ``limit_s``.
    """

    def __init__(self, address: Address, match: str, limit_s: float) -> None:
        super().__init__(address, limit_s)
        self._match = match.strip().removeprefix("{").removesuffix("}").strip(" ,")
        self._pages: dict[str, Pages] = {}
        self._read_s: dict[str, float] = {}
        self._newest_s: float | None = None

    def _read(self) -> Read:
        """Ask for the samples since the last that are known, and return those that are new."""
        from urllib.parse import urlencode

        span = _FIRST_S if self._newest_s is None else time.time() - self._newest_s + _LATE_S
        query = f"{selector(self._match)}[{math.ceil(min(max(span, 1), _FIRST_S))}s]"
        page = self._fetcher.get("?" + urlencode({"query": query}))
        targets = _by_target(_series(page.content))
        if not targets:
            raise FetchFault("knows no engine that matches")
        reads = [
            self._page(target, time_s, rows)
            for target, times in targets.items()
            for time_s, rows in sorted(times.items())
            if time_s > self._read_s.get(target, -math.inf)
        ]
        scrapes = sorted((s for read in reads for s in read.scrapes), key=lambda s: s.time_s)
        kinds = {read.kind for read in reads if read.kind}
        notes = tuple(note for read in reads for note in read.notes)
        return Read(tuple(scrapes), notes, ", ".join(sorted(kinds)))

    def _page(self, target: str, time_s: float, rows: list[Any]) -> Read:
        """Return what one scrape of one target says."""
        self._read_s[target] = time_s
        self._newest_s = max(time_s, self._newest_s or time_s)
        pages = self._pages.setdefault(target, Pages(target))
        return pages.of(Samples.of_series(rows), time_s)


def selector(match: str) -> str:
    """Return what selects all metrics of engines that are read, and no others."""
    kinds = []
    for kind in KINDS:
        prefixes = "|".join(kind.prefixes)
        kinds.append(f"({prefixes})({'|'.join(sorted(kind.reads))})")
    names = f'__name__=~"{"|".join(kinds)}"'
    return f"{{{', '.join(part for part in (names, match) if part)}}}"


def _series(content: bytes) -> list[tuple[Mapping[str, str], list[Any]]]:
    """Return labels and values of the series in an answer of Prometheus."""
    import json

    try:
        document = json.loads(content)
        if document["status"] != "success":
            raise FetchFault(f"refuses the query: {checks.shown(document.get('error'))}")
        return [(dict(row["metric"]), list(row["values"])) for row in document["data"]["result"]]
    except (LookupError, TypeError, ValueError, RecursionError):
        raise FetchFault("gives no answer of Prometheus' API") from None


def _by_target(
    series: list[tuple[Mapping[str, str], list[Any]]],
) -> dict[str, dict[float, list[tuple[str, Mapping[str, str], float]]]]:
    """Gather samples by the target that they were scraped from, and by time."""
    targets: dict[str, dict[float, list[Any]]] = {}
    try:
        for metric, values in series:
            labels = {label: value for label, value in metric.items() if label != "__name__"}
            target = "/".join(labels[label] for label in _TARGET if label in labels) or "engine"
            times = targets.setdefault(target, {})
            for time_s, value in values:
                row = (metric["__name__"], labels, float(value))
                if not 0 <= float(time_s) <= LATEST_S:
                    raise ValueError
                times.setdefault(float(time_s), []).append(row)
    except (LookupError, TypeError, ValueError):
        raise FetchFault("gives samples that are none") from None
    return targets
