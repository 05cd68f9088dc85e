"""Rounds: all that is watched is asked at once, again and again; who is silent delays none."""

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from penstock.errors import InputError
from penstock.inputs.recording import LATEST_S
from penstock.inputs.source import Source as File
from penstock.live.fetching import MOST_BYTES
from penstock.live.iterations_seen import Seen
from penstock.live.metrics_pages import Note, Pages, Read
from penstock.live.scrape import Scrape
from penstock.live.sources import GATEWAY, Source

_NEAREST_S = 0.5  # from one saved page to the next
_GRACE_S = 0.5  # beyond the limit of a request, for names that a name server is slow to find


@dataclasses.dataclass(frozen=True)
class Round:
    """What came within one round."""

    time_s: float  # when it ended, Unix time
    scrapes: tuple[Scrape, ...] = ()
    notes: tuple[Note, ...] = ()
    # Kinds of engines, by the name of the source.
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen: Seen | None = None  # of the engines' iterations, where they are followed


class _Poller:
    """A thread that asks one source, when it is told to."""

    def __init__(self, source: Source, answers: "queue.Queue[tuple[_Poller, Read]]") -> None:
        self.source = source
        self.busy = False
        self._answers = answers
        self._calls: queue.Queue[None] = queue.Queue()
        # As a daemon, so that one that hangs does not keep the command from ending.
        threading.Thread(target=self._run, daemon=True).start()

    def start(self) -> None:
        """Ask once."""
        self.busy = True
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            self._calls.get()
            try:
                read = self.source.read()
            except Exception as error:  # one source that fails leaves the others alone
                text = f"cannot be read ({type(error).__name__})"
                read = Read(notes=(Note(self.source.name, text),))
            self._answers.put((self, read))


def asked(sources: Sequence[Source], every_s: float, limit_s: float) -> Iterator[Round]:
    """Yield rounds without end: all sources are asked at once, every so many seconds."""
    # What takes longer than ``limit_s`` belongs to the next round.
    answers: queue.Queue[tuple[_Poller, Read]] = queue.Queue()
    pollers = [_Poller(source, answers) for source in sources]
    arrivals = _Arrivals()
    due = time.monotonic()
    while True:
        notes = [
            Note(poller.source.name, "still has not answered") for poller in pollers if poller.busy
        ]
        for poller in pollers:
            if not poller.busy:
                poller.start()
        reads = _collected(pollers, answers, time.monotonic() + limit_s + _GRACE_S)
        notes += [note for _, read in reads for note in read.notes]
        kinds = {poller.source.name: read.kind for poller, read in reads if read.kind}
        scrapes = arrivals.given([scrape for _, read in reads for scrape in read.scrapes])
        seen = next((read.seen for _, read in reads if read.seen), None)
        yield Round(time.time(), tuple(_with_iterations(scrapes, seen)), tuple(notes), kinds, seen)
        due = max(due + every_s, time.monotonic())  # rounds that are late are not made up for
        time.sleep(max(0.0, due - time.monotonic()))


def _collected(
    pollers: Sequence[_Poller], answers: "queue.Queue[tuple[_Poller, Read]]", until: float
) -> list[tuple[_Poller, Read]]:
    """Return the answers that come in time."""
    reads = []
    while any(poller.busy for poller in pollers):
        try:
            poller, read = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        poller.busy = False
        reads.append((poller, read))
    return reads


class _Arrivals:
    """What a gateway counts, given to the engines behind it.

    What was added between two rounds is divided as the engines' own counts say, so each has a
    counter, and all together are the gateway's.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._arrived: dict[str, float] = {}
        self._count: float | None = None

    def given(self, scrapes: Sequence[Scrape]) -> list[Scrape]:
        """Return the scrapes of engines, the last of each with its arrivals."""
        last = {scrape.engine: scrape for scrape in scrapes}
        gateway = last.pop(GATEWAY, None)
        engines = [scrape for scrape in scrapes if scrape.engine != GATEWAY]
        if gateway is None or gateway.arrived is None or not last:
            return engines
        added = gateway.arrived - (self._count or 0.0)
        self._count = gateway.arrived
        came = {name: self._came(scrape) for name, scrape in last.items()}
        whole = sum(came.values())
        for name, own in came.items():
            share = own / whole if whole else 1 / len(came)
            self._arrived[name] = self._arrived.get(name, 0.0) + added * share
        return [
            dataclasses.replace(scrape, arrived=self._arrived[scrape.engine])
            if scrape is last[scrape.engine]
            else scrape
            for scrape in engines
        ]

    def _came(self, scrape: Scrape) -> float:
        """Return how many requests an engine itself saw come since the round before."""
        parts = (scrape.finished, scrape.running, scrape.waiting)
        seen = sum(part for part in parts if part is not None)
        before = self._seen.get(scrape.engine, seen)
        self._seen[scrape.engine] = seen
        return max(0.0, seen - before)


def _with_iterations(scrapes: Sequence[Scrape], seen: Seen | None) -> list[Scrape]:
    """Return scrapes, with what waits in the engine followed, and its iterations if uncounted."""
    # Of several engines it is the one at the same host, if there is one only.
    if seen is None or not seen.batches:
        return list(scrapes)
    engines = {scrape.engine for scrape in scrapes}
    if len(engines) > 1:
        host = seen.source.removeprefix("tcp://").rpartition(":")[0]
        engines = {name for name in engines if name.startswith(f"{host}:")}
    if len(engines) != 1:
        return list(scrapes)
    last = max(index for index, scrape in enumerate(scrapes) if scrape.engine in engines)
    told = scrapes[last]
    if told.batches is None:
        batches = float(seen.batches + seen.lost + seen.unreadable)
        told = dataclasses.replace(told, batches=batches)
    if seen.queued is not None:
        told = dataclasses.replace(
            told,
            backlog_tokens=seen.queued.prompt_tokens,
            preempted=seen.queued.preempted,
            preempted_tokens=seen.queued.preempted_tokens,
        )
    return [*scrapes[:last], told, *scrapes[last + 1 :]]


def saved(pages: Sequence[Path]) -> Iterator[Round]:
    """Yield pages that were saved, in order of time: all of one address."""
    # A page's time is in a file beside it that ends in ``.time`` (Unix time, s), else its own.
    times = {path: _time_of(path) for path in pages}
    near = min(np.diff(np.sort(list(times.values()))), default=math.inf)
    if near < _NEAREST_S:
        raise InputError(
            f"two saved pages are {near:.3g} s apart, but what comes between two can only be told "
            f"from {_NEAREST_S:g} s on; write the Unix time at which each was read into a file "
            "beside it, such as page1.time for page1.txt"
        )
    reader = Pages("saved pages")
    for path in sorted(pages, key=times.__getitem__):
        with File.at(path, max_gib=MOST_BYTES / 2**30).open() as file:
            read = reader.read(file.read(MOST_BYTES), times[path])
        kinds = {reader.address: read.kind} if read.kind else {}
        yield Round(times[path], read.scrapes, read.notes, kinds)


def _time_of(path: Path) -> float:
    beside = path.with_suffix(".time")
    if not beside.exists():
        if not path.is_file():
            raise InputError(f"there is no file {path}, and it is no address; check its name")
        return path.stat().st_mtime
    text = File.at(beside, max_gib=MOST_BYTES / 2**30).document()
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not 0 <= time_s <= LATEST_S:
        raise InputError(
            f"{beside} holds no time; write there when the page was read, in seconds since 1970"
        )
    return time_s
