"""Calibrate a server on a few rows of benchmarks, and hold its predictions against the others."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.calibration.equations import UNITS, Row, column_of, first_guess, itl_of, measured, ttft_of
from penstock.calibration.predict import Overhead, Requests, predict, requests_of, sustained_rate
from penstock.calibration.refine import Values, refine
from penstock.errors import InputError, nearest
from penstock.run import Progress
from penstock.system.batch_time import MOST_TOKENS, Affine, BatchTime, Composition, Measured
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.server import Server

METRICS = {
    "ttft": "Time to first token",
    "itl": "Inter-token latency",
    "e2e": "End to end",
    "requests_per_s": "Requests per second",
    "ttft_p99": "Time to first token, p99",
    "e2e_p99": "End to end, p99",
}
"""What predictions are judged by (`MEASURES`), in words."""

_SHORTEST_STEP_S = 1e-6
_MOST_REQUESTS = 10_000  # of a row, while it is fitted: the rest tells little more
_PER_RUN = ("nothing", "overhead", "all")
_KINDS = ("lowest", "spread", "all")
_PARTS = {"fitted": True, "judged": False, "all": None}


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """A calibrated server, and how well it predicts.

    Attributes
    ----------
    server
        With the batch times that were found, common to all runs: what a batch-time file holds.
    values
        The parameters that were fitted, in seconds and tokens, by the names of `UNITS`.
    held
        Why each of the other parameters was not fitted.
    values_of
        ``values`` as adjusted to each run.
    per_run
        What was adjusted.
    rows
        One row per row of the benchmarks: row, run, shape, load, fitted; ``measured``, ``predicted`` and relative
        ``error`` of each of `METRICS` as ``ttft_measured`` and so on, in seconds and requests per second, null where
        not measured; ``limit_per_s``, the requests per second that the server carries of this shape; ``beyond``,
        whether more than that arrive (null for a closed loop, which never offers more); ``note``, what of the row is
        not simulated. Each is predicted by the server of its run.
    common_rows
        The same, predicted by ``server`` and the common overhead.
    """

    server: Server
    values: Mapping[str, float]
    held: Mapping[str, str]
    values_of: Mapping[str, Mapping[str, float]]
    per_run: str
    rows: pl.DataFrame
    common_rows: pl.DataFrame

    def errors(self, fitted: bool | None = None, *, common: bool = False) -> dict[str, float | None]:
        """Return the mean of the absolute relative errors of each metric.

        Parameters
        ----------
        fitted
            Over the rows that were used to fit, or those that were not; None: over all.
        common
            Of the one common server, in place of one for each run.
        """
        rows = self.common_rows if common else self.rows
        rows = rows if fitted is None else rows.filter(pl.col("fitted") == fitted)
        means = {metric: rows[f"{metric}_error"].abs().mean() for metric in METRICS}
        return {metric: None if mean is None else float(mean) for metric, mean in means.items()}  # type: ignore[arg-type]

    @property
    def fitted(self) -> int:
        """Number of rows that were used to fit."""
        return int(self.rows["fitted"].sum())

    @property
    def adjusted(self) -> bool:
        """Whether any run has parameters of its own."""
        return any(values != self.values for values in self.values_of.values())

    @property
    def notes(self) -> list[str]:
        """What of the benchmarks was left out, or is not simulated."""
        counts = self.rows["note"].drop_nulls().value_counts().sort("count", "note", descending=[True, False])
        return [f"{note} ({count:,} rows)" if count > 1 else note for note, count in counts.iter_rows()]

    def batch_time_file(self, description: str, source: str) -> BatchTimeFile:
        """Return the common batch times as a file's content, with what is known of their own errors."""
        judged = self.errors(False, common=True) if self.fitted < self.rows.height else {}
        fit: dict[str, Any] = {
            "method": "end-to-end benchmarks",
            "rows_fitted": self.fitted,
            "rows_judged": self.rows.height - self.fitted,
            "mean_relative_error_of_rows_judged": {name: round(x, 4) for name, x in judged.items() if x is not None},
            "overhead_ms": round(self.values.get("overhead", 0.0) * 1e3, 3),
            "overhead_per_stream_us": round(self.values.get("overhead_per_stream", 0.0) * 1e6, 3),
        }
        fit |= {"kv_tokens": round(self.values["kv_tokens"])} if "kv_tokens" in self.values else {}
        unknown = [
            f"{name} was not fitted and counts as nothing: {self.held[name]}"
            for name in ("per_token", "decode_attention", "self_attention")
            if name in self.held
        ]
        fit |= {"warnings": unknown} if unknown else {}
        return BatchTimeFile(description, self.server.batch_time, source, fit=fit)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        server = self.server
        return {
            "server": {
                "policy": server.policy.name,
                "token_budget": server.token_budget,
                "max_batch_size": server.max_batch_size,
                "kv_tokens": None if server.memory is None else server.memory.tokens,
            },
            "parameters": _with_units(self.values),
            "held": dict(self.held),
            "per_run": self.per_run,
            "parameters_of_runs": {run: _with_units(values) for run, values in self.values_of.items()},
            "errors": {name: self.errors(fitted) for name, fitted in _PARTS.items()},
            "errors_of_common_server": {name: self.errors(fitted, common=True) for name, fitted in _PARTS.items()},
            "rows_fitted": self.fitted,
            "rows": self.rows.to_dicts(),
            "notes": self.notes,
        }


def _with_units(values: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    return {name: {"value": value * UNITS[name][1], "unit": UNITS[name][0]} for name, value in values.items()}


def calibrate(
    benchmarks: pl.DataFrame,
    *,
    fit_rows: str | Sequence[bool] = "spread:3",
    parameters: Sequence[str] | None = None,
    token_budget: int = 8192,
    max_batch_size: int | None = 1024,
    policy: str = "vllm",
    kv_tokens: int | None = None,
    per_run: str = "all",
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate a server on some rows of benchmarks, and predict all of them.

    Linear equations of the rows give a first guess (`equations`), which is refined by simulating each row with its own
    load pattern, for as long as the benchmark lasted, and its statistics as the tool takes them (`predict`).

    Parameters
    ----------
    benchmarks
        What `read_benchmarks` returns.
    fit_rows
        Rows to fit, of each shape: ``lowest:3``, those with the fewest requests per second; ``spread:3``, the lowest,
        the highest and those between at equal distances; ``all``; or a value for each row.
    parameters
        What to fit, of `UNITS`; None: all. Those that the rows cannot tell apart are held at 0.
    token_budget, max_batch_size, policy, kv_tokens
        Of the server, as it ran. None for ``kv_tokens``: found in rows that memory holds back, else no limit.
    per_run
        What to adjust to each run (the column: files are separate deployments or clients) that has two fitted rows or
        more: ``nothing``, the ``overhead``, or ``all``, where parameters stay near those of all runs together.
    seed
        For arrivals and the order of lengths.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, or too few rows are left to fit.

    >>> calibration = calibrate(read_benchmarks("benchmarks.json"))  # doctest: +SKIP
    >>> calibration.errors(fitted=False)["ttft"]  # doctest: +SKIP
    0.05
    """
    if per_run not in _PER_RUN:
        raise InputError(f"per_run is {checks.shown(per_run)}{nearest(str(per_run), _PER_RUN)}")
    names = list(UNITS) if parameters is None else [_parameter(name) for name in parameters]
    rows = list(benchmarks.iter_rows(named=True))
    chosen = _chosen(rows, fit_rows)
    fitted = [row for row, use in zip(rows, chosen, strict=True) if use]
    if not any(itl_of(row) for row in fitted) or not any(ttft_of(row) for row in fitted):
        raise InputError(
            f"{len(fitted)} rows to fit have no inter-token latency or no time to first token, so steps cannot be told "
            "from prompts; choose rows with both, or benchmark with streaming"
        )

    def build(values: Values) -> tuple[Server, Overhead]:
        known = dict.fromkeys(UNITS, 0.0) | values
        kv = round(values["kv_tokens"]) if "kv_tokens" in values else kv_tokens
        server = Server(_batch_time(known), token_budget, max_batch_size, policy, kv_tokens=kv)
        return server, Overhead(known["overhead"], known["overhead_per_stream"])

    guess = first_guess(fitted, names, kv_tokens, max_batch_size)
    sent = [requests_of(row, build(guess.values)[0], seed, _MOST_REQUESTS) for row in fitted]
    values = refine(fitted, sent, build, guess.values, guess.sizes, progress)
    values_of = {row["run"]: values for row in rows}
    for run in values_of if len(values_of) > 1 and per_run != "nothing" else ():
        own = [(row, load) for row, load in zip(fitted, sent, strict=True) if row["run"] == run]
        if len(own) < 2:
            continue
        if per_run == "all":
            own_rows, own_loads = zip(*own, strict=True)
            values_of[run] = refine(own_rows, own_loads, build, values, guess.sizes, stay=True)
        if "overhead" in values:
            values_of[run] = values_of[run] | {"overhead": _own_overhead(own, *build(values_of[run]))}
    common = _judged(rows, chosen, dict.fromkeys(values_of, build(values)), seed)
    adjusted = {run: build(each) for run, each in values_of.items()}
    judged = common if all(each == values for each in values_of.values()) else _judged(rows, chosen, adjusted, seed)
    return Calibration(build(values)[0], values, guess.held, values_of, per_run, judged, common)


def _batch_time(values: Mapping[str, float]) -> Composition:
    step, knee = max(values["step"], _SHORTEST_STEP_S), values["knee"]
    linear: BatchTime = Affine(step, values["per_token"])
    if knee > 1:
        at_knee = step + knee * values["per_token_below"]
        beyond = (MOST_TOKENS - knee) * values["per_token"]
        linear = Measured((1, knee, MOST_TOKENS), (step + values["per_token_below"], at_knee, at_knee + beyond))
    return Composition(
        linear,
        self_attention=values["self_attention"],
        cross_attention=2 * values["self_attention"],  # of the whole prompt, however it is cut
        decode_attention=values["decode_attention"],
        per_request=values["per_request"],
        with_prefill=values["with_prefill"],
    )


def _parameter(name: str) -> str:
    if name not in UNITS:
        raise InputError(f"unknown parameter {checks.shown(name)}{nearest(str(name), UNITS)}")
    return name


def _chosen(rows: Sequence[Row], fit_rows: str | Sequence[bool]) -> list[bool]:
    """Return which rows to fit."""
    if not isinstance(fit_rows, str):
        chosen = [bool(use) for use in fit_rows]
        if len(chosen) != len(rows):
            raise InputError(f"fit_rows has {len(chosen):,} values for {len(rows):,} rows; give one for each")
        return chosen
    kind, _, number = fit_rows.partition(":")
    if kind not in _KINDS or (kind != "all") != number.isdecimal() or (number and int(number) < 1):
        raise InputError(f"fit_rows is {checks.shown(fit_rows)}; give lowest:3, spread:3 (of each shape), or all")
    by_shape: dict[str, list[Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], []).append(row)
    used: set[int] = set()
    for same in by_shape.values():
        ordered = sorted(same, key=lambda row: (row["requests_per_s"] or row["rate"] or 0, row["in_flight"] or 0))
        places = list(range(len(ordered)))
        if kind == "lowest":
            places = places[: int(number)]
        elif kind == "spread":
            places = np.unique(np.rint(np.linspace(0, len(ordered) - 1, int(number))).astype(int)).tolist()
        used |= {ordered[place]["row"] for place in places}
    return [row["row"] in used for row in rows]


def _own_overhead(rows: Sequence[tuple[Row, Requests]], server: Server, overhead: Overhead) -> float:
    """Return the overhead, in seconds, with the median of what the fitted rows of a run lack.

    Rows whose closed loop queues say little of it, and count only where there are no others.
    """
    lacks: dict[bool, list[float]] = {False: [], True: []}
    for row, load in rows:
        known, predicted = ttft_of(row), predict(load, server, overhead)[column_of(row, "ttft")]
        if known is not None and np.isfinite(predicted):
            lacks[(load.in_flight or 1) > 1].append(known - predicted)
    lack = lacks[False] or lacks[True] or [0.0]
    return max(overhead.fixed + float(np.median(lack)), 0.0)


def _judged(
    rows: Sequence[Row],
    chosen: Sequence[bool],
    servers: Mapping[str, tuple[Server, Overhead]],
    seed: int,
) -> pl.DataFrame:
    """Predict every row, and put what was measured beside it."""
    limits: dict[tuple[str, str], float] = {}
    found = []
    for row, fitted in zip(rows, chosen, strict=True):
        server, overhead = servers[row["run"]]
        load = requests_of(row, server, seed)
        predicted = predict(load, server, overhead)
        kind = row["run"], row["shape"]
        if kind not in limits:
            limits[kind] = sustained_rate(load, server)
        limit = limits[kind]
        entry: dict[str, Any] = {name: row[name] for name in ("row", "run", "shape", "load")} | {"fitted": fitted}
        for metric in METRICS:
            known, value = measured(row, metric), predicted[column_of(row, metric)]
            said = value if np.isfinite(value) else None
            error = None if known is None else -1.0 if said is None else said / known - 1
            entry |= {f"{metric}_measured": known, f"{metric}_predicted": said, f"{metric}_error": error}
        entry["limit_per_s"] = limit
        entry["beyond"] = None if row["pattern"] == "closed" else bool(row["rate"] > limit)
        entry["note"] = row["note"]
        found.append(entry)
    numbers = {name: pl.Float64 for name in found[0] if name.rpartition("_")[2] in ("measured", "predicted", "error")}
    return pl.DataFrame(found, infer_schema_length=None, schema_overrides=numbers | {"note": pl.String})
