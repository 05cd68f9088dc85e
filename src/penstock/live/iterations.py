"""Batch times fitted to an engine's iterations as they come, the last few thousand of them."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.inputs.source import Source as File
from penstock.live.iterations_seen import Queued, Seen
from penstock.live.metrics_pages import Note, Read
from penstock.live.reading import Z95, Estimate, FittedTimes
from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.estimate import estimate
from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.fit import Fit, fit
from penstock.system.batch_time import (
    Affine,
    BatchTime,
    Composition,
    Hinge,
    PiecewiseConstant,
)
from penstock.system.measured_times import Measured

_KEPT = 4_000  # iterations: those before say less and less of the engine as it is
_FEWEST = 100  # before the first fit
_EVERY = 250  # from one fit to the next
_LARGE = 0.9  # share of the largest token load seen, from which on batches are large
_FULL = 20  # batches that have the largest token load exactly, for it to be the token budget
_FOLDS = 10


@dataclasses.dataclass(frozen=True)
class Came:
    """What came since the time before."""

    records: Sequence[bytes] = ()  # of iterations, each a line of the format
    head: bytes = b""  # a line that tells something of all of them
    anew: bool = False  # the engine began anew before them
    # Records that were lost on the way, and that are none.
    lost: int = 0
    unreadable: int = 0
    queued: Queued | None = None  # what waits now; None: not known
    notes: Sequence[str] = ()  # what happened


class Feed(Protocol):
    """Where records of iterations come from."""

    name: str

    def take(self) -> Came:
        """Return what came, without waiting for more."""

    def batches(self, file: File) -> MeasuredBatches:
        """Read records; InputError where nothing in them can be used."""


class IterationSource:
    """The iterations of an engine, asked with its page again and again.

    The family of the given batch time is fitted; None: an affine composition.
    """

    def __init__(self, feed: Feed, given: BatchTime | None) -> None:
        self.name = feed.name
        self._feed = feed
        self._given = given
        self._kept: collections.deque[bytes] = collections.deque(maxlen=_KEPT)
        self._head = b""
        self._unfitted = 0
        self._seen = Seen(feed.name)

    def read(self) -> Read:
        """Take what came, and fit anew where that is much."""
        came = self._feed.take()
        if came.anew:
            self._kept.clear()
            self._unfitted = 0
            self._seen = Seen(self.name)
        self._head = came.head or self._head
        self._kept.extend(came.records)
        self._unfitted += len(came.records)
        self._seen = dataclasses.replace(
            self._seen,
            batches=self._seen.batches + len(came.records),
            lost=self._seen.lost + came.lost,
            unreadable=self._seen.unreadable + came.unreadable,
            queued=came.queued,
        )
        if self._unfitted >= (_FEWEST if self._seen.fitted is None else _EVERY):
            self._unfitted = 0
            self._fit()
        notes = tuple(Note(self.name, text) for text in came.notes)
        return Read(notes=notes, seen=self._seen)

    def _fit(self) -> None:
        try:
            batches = self._batches()
            model, fitted = fitted_times(batches, self._given)
        except InputError as error:
            self._seen = dataclasses.replace(self._seen, reason=str(error))
            return
        gap_s = 0.0 if batches.gap is None else batches.gap.seconds
        self._seen = dataclasses.replace(
            self._seen,
            model=model,
            fitted=fitted,
            gap_s=gap_s,
            token_budget=_full(batches.tokens),
            reason="",
        )

    def _batches(self) -> MeasuredBatches:
        """Read the records that are kept, without those that cannot be read."""
        try:
            batches = self._feed.batches(self._file(self._kept))
            if not batches.left_out:
                return batches
        except InputError:
            pass
        good = [record for record in self._kept if self._is_readable(record)]
        bad = len(self._kept) - len(good)
        self._kept = collections.deque(good, maxlen=_KEPT)
        self._seen = dataclasses.replace(
            self._seen,
            batches=self._seen.batches - bad,
            unreadable=self._seen.unreadable + bad,
        )
        return self._feed.batches(self._file(good))

    def _is_readable(self, record: bytes) -> bool:
        try:
            return not self._feed.batches(self._file([record])).left_out
        except InputError:
            return False

    def _file(self, records: Sequence[bytes]) -> File:
        return File(Path(self.name), b"\n".join([self._head, *records]))


def fitted_times(
    batches: MeasuredBatches, given: BatchTime | None
) -> tuple[BatchTime, FittedTimes]:
    """Fit batch times, without what is between two batches."""
    # Of the family and step of those given, and compared with them; None: ``composition-affine``,
    # or ``affine`` where only token loads are known.
    bare = dataclasses.replace(batches, gap=None)
    name, b0 = _family(given)
    fitted = fit(bare, name, b0=b0)
    largest = bare.tokens >= _LARGE * bare.tokens.max()
    mean_s = float(bare.seconds.mean())
    parameters = {key: Estimate(*ends) for key, ends in fitted.parameters.items()}
    return fitted.model, FittedTimes(
        len(bare),
        mean_s,
        float(bare.tokens[largest].mean()),
        _of_largest(fitted, bare, largest),
        parameters,
        None if given is None else _given_over(given, bare, fitted),
    )


def _family(model: BatchTime | None) -> tuple[str, int | None]:
    """Return the family of a batch time as `fit` names it, and its step or bend."""
    match model:
        case Composition():
            name, b0 = _family(model.linear)
            return f"{COMPOSED}{name}", b0
        case Affine():
            return "affine", None
        case Measured():
            return "table", None
        case PiecewiseConstant():
            return "steps", model.b0
        case Hinge():
            whole = model.b0 >= 1 and float(model.b0).is_integer()
            return "hinge", int(model.b0) if whole else None
        case _:
            return f"{COMPOSED}affine", None


def _of_largest(fitted: Fit, batches: MeasuredBatches, largest: npt.NDArray[np.bool_]) -> Estimate:
    """Return how long the largest batches take, with an interval by jackknife over blocks."""
    # That leaves out a tenth at a time.
    b0 = fitted.parameters["b0"][0] if "b0" in fitted.parameters else None
    large = batches.take(largest)
    value = float(fitted.predicted[largest].mean())
    values = []
    for block in batches.blocks(_FOLDS):
        others = np.delete(np.arange(len(batches)), block)
        part = estimate(batches.take(others), fitted.name, b0)
        values.append(float(part.predicted(large).mean()))
    folds = len(values)
    reach = Z95 * math.sqrt((folds - 1) * float(np.var(values)))
    return Estimate(value, value - reach, value + reach)


def _given_over(given: BatchTime, batches: MeasuredBatches, fitted: Fit) -> float | None:
    """Return the given batch time of the batches over theirs; outliers are left out."""
    names = ("prefill_tokens", "decode_tokens", "requests", "squares", "pairs", "context")
    zeros = np.zeros(len(batches))
    columns = [getattr(batches, name) for name in names]
    if given.by_load:
        expected = given(batches.tokens)
    else:
        expected = given.of_batches(*(zeros if c is None else c for c in columns))
    kept = ~fitted.outliers
    return float(expected[kept].sum() / batches.seconds[kept].sum())


def _full(tokens: Array) -> int | None:
    """Return the token budget, if so many batches were as large as can be."""
    most = tokens.max()
    return int(most) if np.count_nonzero(tokens == most) >= _FULL else None
