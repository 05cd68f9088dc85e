"""What results of load generators have in common: a table of fields each, the row of one load."""

from collections.abc import Collection, Mapping
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

from penstock.document import Section, one_line
from penstock.errors import InputError
from penstock.inputs.source import Source

MS = 1e-3
STATISTICS = ("mean", "p50", "p90", "p99")

Row = dict[str, Any]
"""One load that was measured, by the columns of `read_benchmarks`; what is not known is left out.

Beside these: ``unusable``, why the row says nothing, and ``schedule``, when its tool sends where
only the seed of its random numbers is not known.
"""

NOTHING_COMPLETED: Row = {"unusable": "no request was completed"}


class NoResult(InputError):
    """A file that tools write beside their results, but that is none."""


Number = Annotated[float, Field(ge=0, le=1e15)]


class Entry(BaseModel):
    """A part of a JSON document, read strictly: numbers are finite, not negative, no text."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def fields(
    paths: Mapping[str, str | tuple[Any, ...]], needed: Collection[str] = (), **usual: Any
) -> type[Entry]:
    """Return the model of a document, or of a part of it, from a table of its fields."""
    # By field: the path of a `Number`, keys joined by dots; or another kind and paths, of which the
    # first that is there counts. Those in ``needed`` must be. A missing field has its ``usual``
    # value, which may not be null; the others are None.
    table: dict[str, Any] = {}
    for name, spec in paths.items():
        kind, *places = (Number, spec) if isinstance(spec, str) else spec
        keys = places[0].split(".")
        for depth in range(1, len(keys) if len(places) == 1 else 0):
            above = ".".join(keys[:depth])
            table.setdefault(f"in_{above}", _field(dict[str, Any], [above], needed))
        table[name] = _field(kind, places, needed)
        if name in usual:
            table[name] = kind, Field(usual[name], validation_alias=_alias(places))
    return create_model("Part", __base__=Entry, **table)


def _field(kind: Any, paths: list[str], needed: Collection[str]) -> tuple[Any, Any]:
    if paths[0] in needed:
        return kind, Field(validation_alias=_alias(paths))
    return kind | None, Field(None, validation_alias=_alias(paths))


def _alias(paths: list[str]) -> AliasChoices:
    return AliasChoices(*(AliasPath(*path.split(".")) for path in paths))


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


def open_loop(
    kind: str, rate: float, burstiness: float | None = None, limit: float | None = None
) -> Row:
    """Return a load that does not wait for departures: requests/s, the shape of gamma gaps."""
    # ``kind``: ``poisson`` or ``constant``; ``limit``: the most requests that the client has under
    # way.
    row: Row = {"pattern": kind, "rate": rate, "load": f"{kind}@{rate:.6g}", "client_limit": limit}
    if burstiness is not None:
        row["burstiness"] = burstiness
    return row


def listed(value: Any) -> list[Any]:
    """Return a list, of one element if it was none."""
    return value if isinstance(value, list) else [value]


def closed_loop(in_flight: float) -> Row:
    """Return a load of so many requests under way, each followed by another."""
    return {"pattern": "closed", "in_flight": in_flight, "load": f"closed@{in_flight:g}"}


def times(result: Any, units: Mapping[str, float]) -> Row:
    """Return statistics of latencies as columns, in seconds; ``units``: of the file, in seconds."""
    return {
        f"{metric}_{name}_s": value * unit
        for metric, unit in units.items()
        for name in STATISTICS
        if (value := getattr(getattr(result, metric), name, None)) is not None
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


def mean(part: Any) -> float | None:
    """Return the mean of statistics, which may be missing."""
    return getattr(part, "mean", None)


def add_note(row: Row, *notes: str | None) -> None:
    """Add what is left out of a row, or not simulated, to its note."""
    row["note"] = "; ".join(filter(None, (row.get("note"), *notes))) or None


def failed(count: float | None, completed: float) -> str | None:
    """Return a note on requests that failed, if any did."""
    if not count:
        return None
    return f"{count:,.0f} of {count + completed:,.0f} requests failed and are not simulated"
