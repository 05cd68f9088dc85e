"""What the results of load generators have in common: values checked at the door, and the row of one load."""

from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from penstock.document import Section, one_line
from penstock.errors import InputError
from penstock.inputs.source import Source

MS = 1e-3

Row = dict[str, Any]
"""One load that was measured, by the columns of `read_benchmarks`; a reader leaves out what it does not know.

Beside these: ``client_limit``, requests at once that a client with a rate did not exceed, and ``unusable``, why the row
says nothing.
"""


class NoResult(InputError):
    """A file that tools write beside their results, but that is none."""


Number = Annotated[float, Field(ge=0, le=1e15)]


class Entry(BaseModel):
    """A part of a JSON document of which some keys are read, strictly: numbers are finite, not negative, no text."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


Entries = TypeVar("Entries", bound=BaseModel)


class Statistics(Entry):
    """Statistics of one quantity, under the names that the tools give them."""

    unit: str | None = None
    mean: Number | None = Field(None, validation_alias=AliasChoices("mean", "avg"))
    p10: Number | None = None
    p50: Number | None = Field(None, validation_alias=AliasChoices("median", "p50", AliasPath("percentiles", "p50")))
    p90: Number | None = Field(None, validation_alias=AliasChoices("p90", AliasPath("percentiles", "p90")))
    p99: Number | None = Field(None, validation_alias=AliasChoices("p99", AliasPath("percentiles", "p99")))
    std: Number | None = Field(None, validation_alias=AliasChoices("std", "std_dev"))


def entry(model: type[Entries], document: Any, source: Source, place: str = "") -> Entries:
    """Return a part of a document as its model; InputError names the file, the key and the value."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = one_line(error, Section)
        raise source.fault(
            f"{place}{problem}, so this result cannot be trusted. Correct the value, leave the result out, or run the "
            "benchmark again"
        ) from None


def open_loop(kind: str, rate: float, burstiness: float | None = None, limit: float | None = None) -> Row:
    """Return a load whose arrivals do not wait for departures.

    Parameters
    ----------
    kind
        ``poisson`` or ``constant``.
    rate
        Requests per second.
    burstiness
        Shape of gamma-distributed gaps; None: as ``kind`` says.
    limit
        Requests at once that the client did not exceed; None: none.
    """
    row: Row = {"pattern": kind, "rate": rate, "load": f"{kind}@{rate:.6g}", "client_limit": limit}
    return row | ({} if burstiness is None else {"burstiness": burstiness})


def closed_loop(in_flight: float) -> Row:
    """Return a load of so many requests under way, each followed by another."""
    return {"pattern": "closed", "in_flight": in_flight, "load": f"closed@{in_flight:g}"}


def times(metric: str, part: Statistics | None, unit: float) -> Row:
    """Return the statistics of a latency as columns, in seconds; ``unit`` is that of the file, in seconds."""
    values = {} if part is None else {name: getattr(part, name) for name in ("mean", "p50", "p90", "p99")}
    return {f"{metric}_{name}_s": value * unit for name, value in values.items() if value is not None}


def lengths(name: str, part: Statistics | None) -> Row:
    """Return the mean of a length and its spread: where none is stated, of a normal one with these percentiles."""
    if part is None:
        return {}
    spread = part.std
    if spread is None and part.p10 is not None and part.p90 is not None:
        spread = (part.p90 - part.p10) / 2.563
    return {f"{name}_tokens": part.mean} | ({f"{name}_std": spread} if spread and spread > 0 else {})


def failed(count: float | None, completed: float) -> Row:
    """Return a note on requests that failed, if any did."""
    if not count:
        return {}
    return {"note": f"{count:,.0f} of {count + completed:,.0f} requests failed and are not simulated"}
