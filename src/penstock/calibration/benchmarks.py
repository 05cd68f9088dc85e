"""End-to-end benchmark results, whichever tool wrote them, as one table."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from penstock import checks
from penstock.calibration import benchmark_csv, guidellm, load_tools
from penstock.errors import InputError, nearest
from penstock.workload.tables import Source

COLUMNS: dict[str, Any] = {
    "row": pl.Int64,
    "run": pl.String,
    "shape": pl.String,
    "load": pl.String,
    "pattern": pl.String,
    "rate": pl.Float64,
    "burstiness": pl.Float64,
    "burst": pl.Int64,
    "in_flight": pl.Int64,
    "duration_s": pl.Float64,
    "completed": pl.Int64,
    "incomplete": pl.Int64,
    **{f"{length}_{part}": pl.Float64 for length in ("prompt", "output") for part in ("tokens", "low", "high", "std")},
    **{
        f"{metric}_{statistic}_s": pl.Float64
        for metric in ("ttft", "itl", "tpot", "e2e")
        for statistic in ("mean", "p50", "p90", "p99")
    },
    "requests_per_s": pl.Float64,
    "concurrency": pl.Float64,
    "note": pl.String,
}
"""Columns of `read_benchmarks` and their types; seconds, tokens, requests. Null: not known.

``pattern`` is ``constant``, ``poisson`` (gamma gaps where a ``burstiness`` is given) or ``closed``: ``in_flight``
requests under way, each followed by another when it ends. ``burst`` requests more came at the very start.
``incomplete`` is how many were cut off at the end; 0: the tool waited for all. Rows of one ``shape`` have lengths of
one distribution. Rows of one ``run`` are of one deployment and client: a file, unless its table has such a column.
``note``: what was left out, or cannot be simulated.
"""

_PATTERNS = ("constant", "poisson", "closed")
_ALIKE = 0.2  # rows whose mean lengths differ by less are of one shape, where no tool says so

Rows = list[dict[str, Any]]


def read_benchmarks(paths: Sequence[str | Path] | str | Path, format: str | None = None) -> pl.DataFrame:
    """Read benchmark results into one table.

    Parameters
    ----------
    paths
        Files: GuideLLM JSON, ``vllm bench serve`` JSON, inference-perf ``*_lifecycle_metrics.json``, AIPerf or
        GenAI-Perf JSON exports, or CSV with columns such as rate, prompt, output, ttft_p50_ms, itl_mean_ms, e2e_mean_s.
        Also compressed with gzip.
    format
        One of `FORMATS`; None: detected.

    Returns
    -------
    polars.DataFrame
        The columns of `COLUMNS`, a row for each load that was measured, in order of files and loads.

    Raises
    ------
    InputError
        If a file, or a value in it, cannot be used; one line that says where and why.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown format {checks.shown(format)}{nearest(str(format), FORMATS)}")
    rows: Rows = []
    for path in paths:
        source = Source.at(path)
        every = _rows_of(source, format)
        found = [row for row in every if _measured(row)]
        if not found:
            raise source.fault(
                "has no row with lengths, a load and a TTFT or ITL, so there is nothing to compare with. Check that "
                "the benchmark streamed its answers and wrote its results completely"
            )
        found = [_checked(source, number, row) for number, row in enumerate(every, 1) if _measured(row)]
        if len(found) < len(every):
            lacking = f"{len(every) - len(found)} rows of {source.path.name} without a load, lengths or times left out"
            found[0]["note"] = "; ".join(filter(None, (found[0].get("note"), lacking)))
        rows += found
    if not rows:
        raise InputError("no file was given, so there is nothing to calibrate on; give benchmark results")
    for number, row in enumerate(rows):
        row["row"] = number
    _name_shapes(rows)
    return pl.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], schema=COLUMNS)


def _rows_of(source: Source, format: str | None) -> Rows:
    with source.open() as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if format == "csv" or (format is None and head[:1] not in (b"{", b"[")):
        return benchmark_csv.rows(source)
    document = _parsed(source)
    for name, (belongs, rows) in _READERS.items():
        if name == format or (format is None and belongs(document)):
            try:
                return rows(document, source.path.name)
            except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
                if isinstance(error, InputError):
                    raise
                what = f"{type(error).__name__}: {error}"
                raise source.fault(
                    f"is no {name} result after all ({checks.shown(what)}). Give its format, or write a CSV"
                ) from None
    raise source.fault(
        f"is JSON of no known benchmark. Known are {', '.join(FORMATS)}; give one of them as the format, or write a CSV"
    )


def _parsed(source: Source) -> Any:
    """Return a JSON document, or a list of documents that stand one per line."""
    try:
        with source.text() as text:
            content = text.read()
        try:
            return json.loads(content)
        except json.JSONDecodeError as error:
            if "Extra data" not in error.msg:
                raise
            return [json.loads(line) for line in content.splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise source.not_text() from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise source.fault(f"cannot be read as JSON ({error}). Fetch or write the file again") from None


_READERS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, str], Rows]]] = {
    "guidellm": (guidellm.belongs, guidellm.rows),
    "vllm-bench": (load_tools.is_vllm_bench, load_tools.vllm_bench),
    "inference-perf": (load_tools.is_inference_perf, load_tools.inference_perf),
    "aiperf": (load_tools.is_aiperf, load_tools.aiperf),
}

FORMATS = (*_READERS, "csv")
"""Names of the formats that `read_benchmarks` knows; ``aiperf`` is GenAI-Perf, too."""


_MOST_SENT = 1e7
"""Requests of a row; all of them are simulated."""


def _measured(row: dict[str, Any]) -> bool:
    """Tell whether a row says what was sent, and something of how long it took."""
    known = (row.get(name) for name in ("ttft_p50_s", "ttft_mean_s", "itl_mean_s", "itl_p50_s", "tpot_mean_s"))
    load = row.get("in_flight") if row.get("pattern") == "closed" else row.get("rate")
    return bool(load and row.get("prompt_tokens") and row.get("output_tokens") and any(known))


def _checked(source: Source, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Refuse what no benchmark can have measured; take a negative time, of a clock that jumped, for unknown."""
    place = f"{source.name}: row {number:,} ({row.get('load', 'no load')})"
    for name, low, high, unit in (
        ("rate", 1e-6, 1e6, "requests/s"),
        ("in_flight", 1, 1e6, "requests"),
        ("duration_s", 1e-3, 1e7, "s"),
        ("completed", 1, 1e6, "requests"),
        ("prompt_tokens", 1, 1e7, "tokens"),
        ("output_tokens", 1, 1e7, "tokens"),
    ):
        if row.get(name) is not None:
            checks.number(f"{place}: {name}", row[name], low, high, unit, "correct the row, or leave it out")
    if row["pattern"] not in _PATTERNS:
        raise InputError(f"{place}: pattern is {checks.shown(row['pattern'])}{nearest(str(row['pattern']), _PATTERNS)}")
    if row.get("duration_s") is None:
        if not row.get("completed") or not row.get("requests_per_s"):
            raise InputError(f"{place} does not say how long it took; add duration_s")
        row["duration_s"] = row["completed"] / row["requests_per_s"]
    if row.get("completed") is None:
        rate = row.get("requests_per_s") or row.get("rate")
        if not rate:
            raise InputError(f"{place} does not say how many requests were completed; add completed")
        row["completed"] = max(1, round(row["duration_s"] * rate))
    if (row.get("rate") or 0) * row["duration_s"] > _MOST_SENT:
        raise InputError(
            f"{place}: at {row['rate']:,.4g} requests/s for {row['duration_s']:,.4g} s there were "
            f"{row['rate'] * row['duration_s']:,.0f} requests, more than a benchmark sends; correct rate or duration_s"
        )
    for name, value in row.items():
        if name.split("_")[0] in ("ttft", "itl", "tpot", "e2e") and value is not None and not 0 < value < 1e7:
            row[name] = None
    limit, under_way = row.pop("client_limit", None), _under_way(row)
    if limit and row["pattern"] != "closed" and (under_way is None or under_way > limit / 2):
        row["note"] = f"the client sent no more than {limit:.0f} requests at once, which is not simulated beside a rate"
    for name in ("burst", "in_flight", "completed", "incomplete"):
        row[name] = None if row.get(name) is None else int(row[name])
    return row


def _under_way(row: dict[str, Any]) -> float | None:
    """Return the mean number of requests under way, by Little's law where it is not stated."""
    rate, e2e = row.get("requests_per_s"), row.get("e2e_mean_s")
    return row.get("concurrency") or (rate * e2e if rate and e2e else None)


def _name_shapes(rows: Rows) -> None:
    """Name the shapes that no tool named after the mean lengths of their first row."""
    seen: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row.get("shape"):
            continue
        lengths = row["prompt_tokens"], row["output_tokens"]
        for name, others in seen.items():
            if all(abs(a / b - 1) < _ALIKE for a, b in zip(lengths, others, strict=True)):
                row["shape"] = name
                break
        else:
            row["shape"] = f"{lengths[0]:.0f}+{lengths[1]:.0f}"
            seen[row["shape"]] = lengths
