"""How a load generator writes what it measured: a table of names, and the exceptions to it.

A format is a file with one `Format`, and `Format.rows` reads them all.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from penstock import checks
from penstock.document import Section, one_line
from penstock.errors import InputError
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_row import COLUMNS, METRICS, STATISTICS, Row, add_note

MS = 1e-3
_SECONDS = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": MS, "milliseconds": MS, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip

Number = Annotated[float, Field(ge=0, le=1e15)]
Names = Mapping[str, str | tuple[Any, ...]]
"""By field: the path of a `Number`, keys joined by dots; or another kind and paths, of which the
first that is there counts.
"""


class NoResult(InputError):
    """A file that tools write beside their results, but that is none."""


class Entry(BaseModel):
    """A part of a JSON document, read strictly: numbers are finite, not negative, no text."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def fields(names: Names, needed: Collection[str] = ()) -> type[Entry]:
    """Return the model of a document, or of a part of it, from a table of its fields."""
    # What stands at the paths ``needed`` must be there; other missing fields are None.
    table: dict[str, Any] = {}
    for name, spec in names.items():
        kind, *paths = (Number, spec) if isinstance(spec, str) else spec
        keys = paths[0].split(".")
        for depth in range(1, len(keys) if len(paths) == 1 else 0):
            above = ".".join(keys[:depth])
            table.setdefault(f"in_{above}", _field(dict[str, Any], [above], needed))
        table[name] = _field(kind, paths, needed)
    return create_model("Part", __base__=Entry, **table)


def _field(kind: Any, paths: list[str], needed: Collection[str]) -> tuple[Any, Any]:
    alias = AliasChoices(*(AliasPath(*path.split(".")) for path in paths))
    if paths[0] in needed:
        return kind, Field(validation_alias=alias)
    return kind | None, Field(None, validation_alias=alias)


def entry(model: type[Entry], document: Any, source: Source, place: str = "") -> Any:
    """Return a part of a document as its model; an error names the file, the key and the value."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = one_line(error, Section)
        raise source.fault(
            f"{place}{problem}, so this result cannot be trusted. Correct the value, leave the "
            "result out, or run the benchmark again"
        ) from None


# Percentiles as the tools call them, and the shares that they are.
_SHARES = {
    "min": 0.0, "p001": 0.001, "p01": 0.01, "p1": 0.01, "p05": 0.05, "p5": 0.05, "p10": 0.1,
    "p25": 0.25, "p50": 0.5, "median": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99,
    "p999": 0.999, "max": 1.0,
}  # fmt: skip
_PERCENTILES = {p: (Number, p, f"percentiles.{p}") for p in _SHARES if p not in ("p50", "median")}
Statistics: Any = fields(
    {
        "unit": (str, "unit"),
        "mean": (Number, "mean", "avg"),
        "p50": (Number, "median", "p50", "percentiles.p50"),
        **_PERCENTILES,
        "std": (Number, "std", "std_dev"),
    }
)
"""Statistics of one quantity, under the names that the tools give them."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One result in a file."""

    fields: Any  # of the table of its format, as attributes
    document: Any  # what they were taken from
    file: Any  # all of the JSON in the file
    source: Source
    place: str  # where in the file it stands, for messages

    def fault(self, message: str) -> InputError:
        """Return an error that says where the result stands."""
        return self.source.fault(f"{self.place}{message}")


@dataclasses.dataclass(frozen=True)
class Format:
    """How a load generator writes what it measured."""

    name: str
    # Keys, joined by dots, by which its documents are known: all of one of these groups.
    marks: tuple[str, ...]
    # A name that is a column of a row is that column, ``ttft``, ``itl``, ``tpot`` and ``e2e`` are
    # its columns of times, ``prompt`` and ``output`` those of lengths; ``failed`` are for a note.
    # All others are for ``more``.
    names: Names
    # What the table does not say, above all the load: columns that go before those of the table,
    # by a result and its row so far.
    more: Callable[[Result, Row], Row]
    # A document with the least that ``more`` needs: a Poisson load of two requests/s, and where it
    # works out lengths, 120 requests of 100 and of 41 tokens.
    example: Mapping[str, Any]
    needed: tuple[str, ...] = ()  # paths that must be there
    # Seconds in the unit of a name, where the document does not say its unit; usually one.
    units: Mapping[str, float] = dataclasses.field(default_factory=dict)
    listed_in: str = ""  # the key with the list of results; else the document is one, or a list
    place: str = ""  # what messages call the result of an ``index`` or ``number``
    in_text: Callable[[Source], list[Any]] = lambda _: []  # documents in a text that is no JSON

    @functools.cached_property
    def _model(self) -> type[Entry]:
        return fields(self.names, self.needed)

    def is_of(self, document: Any) -> bool:
        """Tell whether a JSON document is of this format."""
        if not any(all(_has(document, key) for key in group.split()) for group in self.marks):
            return False
        return not self.listed_in or isinstance(document[self.listed_in], list)

    def rows(self, file: Any, source: Source) -> Iterator[Row]:
        """Yield the row of each result in a JSON document."""
        for index, part in enumerate(listed(file[self.listed_in] if self.listed_in else file)):
            place = self.place.format(index=index, number=index + 1)
            values = entry(self._model, part, source, place)
            yield self._row(Result(values, part, file, source, place))

    def _row(self, result: Result) -> Row:
        row: Row = {"incomplete": 0}
        for name in self.names:
            value = getattr(result.fields, name)
            if name in METRICS:
                row |= _times(name, value, self._unit_s(name, result))
            elif name in ("prompt", "output"):
                row |= lengths(name, value)
            elif name in COLUMNS:
                amount = mean(value)
                row[name] = None if amount is None else amount * self._unit_s(name, result)
        completed, seconds, rate = map(row.get, ("completed", "duration_s", "requests_per_s"))
        if completed is None and seconds and rate:
            row["completed"] = completed = round(seconds * rate)
        if completed == 0:
            return {"unusable": "no request was completed"}
        if failed := mean(getattr(result.fields, "failed", None)):
            sent = failed + (completed or 0)
            add_note(row, f"{failed:,.0f} of {sent:,.0f} requests failed and are not simulated")
        return row | self.more(result, row)

    def _unit_s(self, name: str, result: Result) -> float:
        """Return the seconds in the unit of a name: that which the document says, or the usual."""
        usual = self.units.get(name)
        unit = getattr(getattr(result.fields, name), "unit", None)
        if usual is None or not unit:
            return usual or 1.0
        if unit.lower() not in _SECONDS:
            raise result.fault(
                f"{self.names[name][1]}.unit is {checks.shown(unit)}, so how long that is, is "
                f"unknown. Known are {', '.join(_SECONDS)}"
            )
        return _SECONDS[unit.lower()]


def _has(document: Any, path: str) -> bool:
    *above, key = path.split(".")
    holder = at(document, *above)
    return isinstance(holder, dict) and key in holder


def at(document: Any, *keys: str) -> Any:
    """Return what stands under one key in another; None: nothing does."""
    for key in keys:
        if isinstance(document, list) and key == "0":
            document = next(iter(document), None)
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return document


def listed(value: Any) -> list[Any]:
    """Return a list, of one element if it was none."""
    return value if isinstance(value, list) else [value]


def _times(metric: str, part: Any, unit_s: float) -> Row:
    return {
        f"{metric}_{name}_s": value * unit_s
        for name in STATISTICS
        if (value := getattr(part, name, None)) is not None
    }


def lengths(name: str, part: Any) -> Row:
    """Return a length's mean, quantiles and spread, if need be that of a normal one."""
    if part is None:
        return {}
    row: Row = {f"{name}_tokens": part.mean}
    stated = ((share, getattr(part, key, None)) for key, share in _SHARES.items())
    quantiles = {share: value for share, value in stated if value is not None}
    if {0.0, 0.5, 1.0} <= quantiles.keys():
        row[f"{name}_quantiles"] = [list(pair) for pair in sorted(quantiles.items())]
    spread = part.std
    if spread is None and {0.1, 0.9} <= quantiles.keys():
        spread = (quantiles[0.9] - quantiles[0.1]) / 2.563
    if spread and spread > 0:
        row[f"{name}_std"] = spread
    return row


def mean(value: Any) -> Any:
    """Return the mean of statistics; a number is its own."""
    return value.mean if isinstance(value, Statistics) else value
