"""Calibrate a server on a few rows of benchmarks, and hold its predictions against the others."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.measuring.calibration.equations import (
    UNITS,
    Row,
    column_of,
    first_guess,
    itl_of,
    measured,
    tokens_held,
    ttft_of,
)
from penstock.measuring.calibration.limits import limit_of
from penstock.measuring.calibration.predict import Overhead, Requests, predict, requests_of, sustained_rate
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import Fit, Values, misfits, refine
from penstock.show.page import Page, Shown
from penstock.simulation.progress import Progress
from penstock.system.batch_time import MOST_TOKENS, Affine, BatchTime, Composition, Measured
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.memory import Memory
from penstock.system.policies import resolve
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

MISSED = 0.25
"""Relative error beyond which a row counts as missed, in any of `JUDGED`."""

JUDGED = ("ttft", "itl", "e2e", "requests_per_s")
"""What a row is warned of; the p99s are not fitted, and their errors stand in the table."""

TOKEN_BUDGET = 8_192
"""Taken where none is given: vLLM's default on a large GPU."""

MAX_BATCH_SIZE = 1_024
"""The same."""

_MOST_REQUESTS = 10_000  # of a row, while it is fitted: the rest tells little more
LESS = 0.05
"""Share by which having no more KV memory than the rows held may lower what a shape carries, without a warning."""

_DIGITS = 15  # of a number of rows: more than anybody measures
_PER_RUN = ("nothing", "overhead", "all")
_KINDS = ("lowest", "spread", "all")
_TOLD = 0.6  # of the prior's standard deviation: a cost that stays less certain is not identified by the rows
_NEAR = 0.1  # standard deviation of a parameter's logarithm between runs of one server
_LENGTHS = 1.2  # factor beyond the lengths of the fitted rows at which a prediction hinges on priors
_HINGES = {
    "prompt": ("per_token", "per_token_below", "self_attention", "with_prefill", "overhead"),
    "context": ("decode_attention",),
}
_PARTS = {"fitted": True, "judged": False, "all": None}


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration(Shown):
    """A calibrated server, and how well it predicts.

    Attributes
    ----------
    server
        With the batch times that were found, common to all runs: what a batch-time file holds.
    values
        The parameters that were fitted, in seconds and tokens, by the names of `UNITS`.
    held
        Why each of the other parameters was left out.
    priors, deviations
        The prior of each of ``values``, and the standard deviation of its logarithm given the rows, too.
    values_of
        ``values`` as adjusted to each run.
    per_run
        What was adjusted.
    limit_warning
        What is not certain of the limits; None: nothing.
    assumed
        Which of ``token_budget`` and ``max_batch_size`` were not given.
    tokens_held
        Most tokens that the requests of a row held at a time, by Little's law: the KV memory has room for them.
    rows
        One row per row of the benchmarks: row, run, shape, load, fitted; ``measured``, ``predicted`` and relative
        ``error`` of each of `METRICS` as ``ttft_measured`` and so on, in seconds and requests per second, null where
        not measured; ``limit_per_s``, the requests per second that the server carries of this shape, and
        ``limit_at_least_per_s``, with no more KV memory than the rows held, where no limit is known; ``beyond``,
        whether more than that arrive (null for a closed loop, which never offers more); ``missed``, whether any of
        `JUDGED` is off by more than `MISSED`; ``hinges_on``, the unidentified costs that its prediction hinges on;
        ``note``, what of the row is not simulated. Each is predicted by the server of its run.
    common_rows
        The same, predicted by ``server`` and the common overhead.
    """

    server: Server
    values: Mapping[str, float]
    held: Mapping[str, str]
    priors: Mapping[str, Prior]
    deviations: Mapping[str, float]
    limit_warning: str | None
    assumed: tuple[str, ...]
    values_of: Mapping[str, Mapping[str, float]]
    per_run: str
    tokens_held: float
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
    def unidentified(self) -> dict[str, str]:
        """The costs that the rows do not identify, each with its interval and the reason of its prior."""
        return {
            name: f"{self.interval(name)}: {prior.reason}"
            for name, prior in self.priors.items()
            if name in self.values and self.deviations[name] > _TOLD * prior.deviation
        }

    def interval(self, name: str) -> str:
        """Return the 95% interval of a parameter in words, given rows and priors."""
        factor = math.exp(2 * self.deviations[name])
        low, high = (float(f"{self.values[name] * times:.2g}") for times in (1 / factor, factor))
        less, more = quantity(name, low), quantity(name, high)
        unit = more.rpartition(" ")[2]
        return f"{less.removesuffix(f' {unit}')} to {more}"

    @property
    def missed(self) -> list[str]:
        """The rows that are missed, the worst first: where they are, and by how much their worst metric is off."""
        worst = pl.max_horizontal(pl.col(f"{name}_error").abs() for name in JUDGED)
        rows = self.rows.filter("missed").sort(worst, descending=True)
        several = self.rows["run"].n_unique() > 1
        words = []
        for row in rows.iter_rows(named=True):
            metric = max(JUDGED, key=lambda name: abs(row[f"{name}_error"] or 0.0))
            which = [row["run"]] if several else []
            which += [row["shape"], row["load"]]
            which += ["used to fit"] if row["fitted"] else []
            predicted, known = (_shown(metric, row[f"{metric}_{kind}"]) for kind in ("predicted", "measured"))
            words.append(
                f"row {row['row']} ({', '.join(which)}): {METRICS[metric].lower()} off by "
                f"{row[f'{metric}_error']:+,.0%} (predicted {predicted}, measured {known})"
            )
        return words

    @property
    def warnings(self) -> list[str]:
        """What a reader must know before using any of this: rows missed, costs and limits that no row tells."""
        words = []
        if self.missed:
            which = f"{len(self.missed):,} of {self.rows.height:,} benchmark results"
            which = "the only benchmark result" if self.rows.height == 1 else which
            words.append(f"the calibration missed {which} by more than {MISSED:.0%}")
        words += self._untrusted()
        words += [] if self.limit_warning is None else [self.limit_warning]
        if self.unidentified:
            costs = ", ".join(f"{name} ({self.interval(name)})" for name in self.unidentified)
            words.append(f"the benchmarks say little about {costs}, which were assumed within their usual ranges")
        if (held_more := self.rows.filter(pl.col("limit_at_least_per_s") < (1 - LESS) * pl.col("limit_per_s"))).height:
            least = held_more.unique("shape", maintain_order=True)
            shapes = ", ".join(
                f"{row['shape']}: at least {row['limit_at_least_per_s']:,.4g}" for row in least.iter_rows(named=True)
            )
            words.append(
                f"what these shapes carry takes more KV memory than the {self.tokens_held:,.0f} tokens that the rows "
                f"held, and nothing says that there is more ({shapes} requests/s); give kv_tokens"
            )
        hinging = self.rows.filter(pl.col("hinges_on").is_not_null())
        if hinging.height:
            loads = ", ".join(dict.fromkeys(hinging["shape"]))
            costs = ", ".join(dict.fromkeys(", ".join(hinging["hinges_on"]).split(", ")))
            words.append(f"predictions for other lengths than were fitted ({loads}) hinge on {costs}")
        return words

    def _untrusted(self) -> list[str]:
        """Say where nothing judges the calibration, and where it took a queue for an overhead."""
        words = []
        if self.fitted == self.rows.height:
            fewer = ", or fit fewer (--fit-rows lowest:1)" if self.rows["shape"].is_duplicated().any() else ""
            words.append(
                "every row was used to fit, so no row was left to judge this by: the errors do not say how well other "
                f"loads are predicted; benchmark more loads{fewer}"
            )
        overhead, prior = self.values.get("overhead", 0.0), self.priors.get("overhead")
        if prior is not None and overhead > prior.centre * math.exp(2 * prior.deviation):
            words.append(
                f"an overhead of {quantity('overhead', overhead)} is more than front ends take: requests rather waited "
                "in a queue that this policy and these limits do not have; check --policy, --token-budget and "
                "--max-batch-size"
            )
        return words

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
        fit |= {name: round(self.values[name]) for name in ("kv_tokens", "max_batch_size") if name in self.values}
        if "kv_tokens" not in self.values:
            fit["kv_tokens_at_least"] = round(self.tokens_held)
        fit |= {"priors": self.unidentified} if self.unidentified else {}
        left_out = [
            f"{name} was not fitted and counts as nothing: {self.held[name]}"
            for name in ("per_token", "decode_attention", "self_attention")
            if name in self.held
        ]
        fit |= {"warnings": words} if (words := [*self.warnings, *left_out]) else {}
        return BatchTimeFile(description, self.server.batch_time, source, fit=fit)

    def page(self, names: str = "") -> Page:
        """Return the calibration as a page; the names are those of the benchmarks."""
        from penstock.measuring.calibration.view import calibration_page

        return calibration_page(self, names)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        server = self.server
        return {
            "server": {
                "policy": server.policy.name,
                "token_budget": server.token_budget,
                "max_batch_size": server.max_batch_size,
                "assumed": list(self.assumed),
                "kv_tokens": None if server.memory is None else server.memory.tokens,
            },
            "warnings": self.warnings,
            "missed": self.missed,
            "parameters": _with_units(self.values),
            "intervals": {name: self.interval(name) for name in self.values},
            "unidentified": self.unidentified,
            "kv_tokens_at_least": None if "kv_tokens" in self.values else round(self.tokens_held),
            "held": dict(self.held),
            "per_run": self.per_run,
            "parameters_of_runs": {run: _with_units(values) for run, values in self.values_of.items()},
            "errors": {name: self.errors(fitted) for name, fitted in _PARTS.items()},
            "errors_of_common_server": {name: self.errors(fitted, common=True) for name, fitted in _PARTS.items()},
            "rows_fitted": self.fitted,
            "rows": self.rows.to_dicts(),
            "notes": self.notes,
        }


def quantity(name: str, value: float) -> str:
    """Return a parameter with its unit, in words."""
    unit, per = UNITS[name]
    unit = unit.split(" ")[0]
    if unit == "us" and value * per >= 1_000:
        unit, per = "ms", 1e3
    return f"{value * per:,.4g} {unit}"


def _shown(metric: str, value: float | None) -> str:
    """Return one of `METRICS` with its unit; None: no request ended."""
    if value is None:
        return "none"
    if metric == "requests_per_s":
        return f"{value:,.4g}/s"
    return f"{value * 1e3:,.4g} ms" if value < 1 else f"{value:,.4g} s"


def _with_units(values: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    return {name: {"value": value * UNITS[name][1], "unit": UNITS[name][0]} for name, value in values.items()}


def calibrate(
    benchmarks: pl.DataFrame,
    *,
    fit_rows: str | Sequence[bool] = "spread:3",
    parameters: Sequence[str] | None = None,
    token_budget: int | None = None,
    max_batch_size: int | None = None,
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
        What to fit, of `UNITS`; None: all. Costs that the rows cannot tell rest on their `priors`.
    token_budget, max_batch_size, policy, kv_tokens
        Of the server, as it ran. None for ``kv_tokens``: found where rows identify it (`limit_of`), else no limit; for
        the others: `TOKEN_BUDGET` and `MAX_BATCH_SIZE` are assumed.
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
    checks.whole("seed", seed, 0, 2**62, "", "take any")
    if max_batch_size is not None:
        serves = "a batch serves at least one request; leave it out where it is not known"
        checks.whole("max_batch_size", max_batch_size, 1, MOST_TOKENS, "requests", serves)
    stated = {"token_budget": token_budget, "max_batch_size": max_batch_size}
    assumed = tuple(name for name, limit in stated.items() if limit is None)
    token_budget = TOKEN_BUDGET if token_budget is None else token_budget
    max_batch_size = MAX_BATCH_SIZE if max_batch_size is None else max_batch_size
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
        places = max_batch_size
        if "max_batch_size" in values:
            places = max(round(values["max_batch_size"]), 1)
        memory = None
        if "kv_tokens" in values:  # one that is tried may be too short for some requests
            size = resolve(policy).block_size
            memory = dataclasses.replace(Memory.of_tokens(round(values["kv_tokens"]), size), too_long="drop")
        server = Server(
            _batch_time(known),
            token_budget,
            places,
            policy,
            memory=memory,
            kv_tokens=kv_tokens,
        )
        return server, Overhead(known["overhead"], known["overhead_per_stream"], known["idle"])

    # -- one server for all runs: costs, then what else holds requests back
    guesses = [first_guess(fitted, names, token_budget, loss) for loss in ("soft_l1", "linear")]
    guessed = build(guesses[0].values)[0]
    sent = [(row, requests_of(row, guessed, seed, _MOST_REQUESTS)) for row in fitted]
    guess = min(guesses, key=lambda one: np.abs(misfits(sent, *build(one.values))).sum())
    fit = refine(sent, build, guess.values, guess.priors, progress)
    priors, held, warning = dict(guess.priors), dict(guess.held), None
    if kv_tokens is not None:
        held["kv_tokens"] = f"given: {kv_tokens:,}"
    elif "kv_tokens" in names:
        others = [
            (row, requests_of(row, guessed, seed, _MOST_REQUESTS))
            for row, use in zip(rows, chosen, strict=True)
            if not use
        ]
        fit, reason, warning = limit_of(fit, sent, others, build, priors, max_batch_size)
        held |= {} if reason is None else {"kv_tokens": reason}
    held |= {} if "max_batch_size" in fit.values else {"max_batch_size": f"stated: {max_batch_size:,}"}
    if "max_batch_size" in assumed and "max_batch_size" in held:
        held["max_batch_size"] = f"{max_batch_size:,} assumed, give --max-batch-size"

    # -- each run: as the common server, but for what its own rows say
    values = fit.values
    near = {name: Prior(value, math.exp(_NEAR), "the server of all runs") for name, value in values.items()}
    values_of = {row["run"]: values for row in rows}
    for run in values_of if len(values_of) > 1 and per_run != "nothing" else ():
        own = [(row, load) for row, load in sent if row["run"] == run]
        if len(own) < 2:
            continue
        if per_run == "all":
            values_of[run] = refine(own, build, values, near).values
        if "overhead" in values:
            values_of[run] = values_of[run] | {"overhead": _own_overhead(own, *build(values_of[run]))}

    # -- predictions of every row
    hinges = _hinges(fit, priors, fitted)
    least = None if build(values)[0].memory else max(tokens_held(row) for row in rows)
    common = _judged(rows, chosen, dict.fromkeys(values_of, build(values)), seed, hinges, least)
    adjusted = {run: build(each) for run, each in values_of.items()}
    same = all(each == values for each in values_of.values())
    judged = common if same else _judged(rows, chosen, adjusted, seed, hinges, least)
    return Calibration(
        server=build(values)[0],
        values=values,
        held=held,
        priors=priors,
        deviations=fit.deviations,
        limit_warning=warning,
        assumed=assumed,
        values_of=values_of,
        per_run=per_run,
        tokens_held=max(tokens_held(row) for row in rows),
        rows=judged,
        common_rows=common,
    )


def _with_tokens(server: Server, load: Requests, tokens: float | None) -> Server:
    """Return a server whose KV memory holds no more than so many tokens, or the longest of the requests."""
    if tokens is None:
        return server
    longest = int((load.prompt_tokens + load.output_tokens).max())
    size = server.policy.block_size
    memory = Memory.of_tokens(max(round(tokens), longest + 2 * size), size)
    return dataclasses.replace(server, memory=memory)


def _hinges(fit: Fit, priors: Mapping[str, Prior], fitted: Sequence[Row]) -> dict[str, tuple[float, float, str]]:
    """Return between which lengths predictions rest on the rows, and the unidentified costs on which others hinge."""
    hinges = {}
    for kind, costs in _HINGES.items():
        unknown = [n for n in costs if n in fit.values and fit.deviations[n] > _TOLD * priors[n].deviation]
        lengths = [_length(row, kind) for row in fitted]
        if unknown:
            hinges[kind] = min(lengths) / _LENGTHS, max(lengths) * _LENGTHS, ", ".join(unknown)
    return hinges


def _length(row: Row, kind: str) -> float:
    return float(row["prompt_tokens"] + (row["output_tokens"] if kind == "context" else 0.0))


def _batch_time(values: Mapping[str, float]) -> Composition:
    step, knee = values["step"], values["knee"]
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
    count = int(number) if number.isdecimal() and len(number) <= _DIGITS else 0
    if kind not in _KINDS or (count < 1 if kind != "all" else number):
        raise InputError(f"fit_rows is {checks.shown(fit_rows)}; give lowest:3, spread:3 (of each shape), or all")
    by_shape: dict[str, list[Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], []).append(row)
    used: set[int] = set()
    for same in by_shape.values():
        ordered = sorted(same, key=lambda row: (row["requests_per_s"] or row["rate"] or 0, row["in_flight"] or 0))
        places = list(range(len(ordered)))
        if kind == "lowest":
            places = places[:count]
        elif kind == "spread":
            spread = np.linspace(0, len(ordered) - 1, min(count, len(ordered)))
            places = np.unique(np.rint(spread).astype(int)).tolist()
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
    hinges: Mapping[str, tuple[float, float, str]],
    least_tokens: float | None,
) -> pl.DataFrame:
    """Predict every row, and put what was measured beside it."""
    limits: dict[tuple[str, str], tuple[float, float]] = {}
    found = []
    for row, fitted in zip(rows, chosen, strict=True):
        server, overhead = servers[row["run"]]
        load = requests_of(row, server, seed)
        predicted = predict(load, server, overhead)
        kind = row["run"], row["shape"]
        if kind not in limits:
            limit = sustained_rate(load, server)
            tight = _with_tokens(server, load, least_tokens)
            limits[kind] = limit, limit if tight is server else min(sustained_rate(load, tight), limit)
        limit, at_least = limits[kind]
        entry: dict[str, Any] = {name: row[name] for name in ("row", "run", "shape", "load")} | {"fitted": fitted}
        for metric in METRICS:
            known, value = measured(row, metric), predicted[column_of(row, metric)]
            said = value if np.isfinite(value) else None
            error = None
            if known is not None:
                error = -1.0 if said is None else said / known - 1
            entry |= {f"{metric}_measured": known, f"{metric}_predicted": said, f"{metric}_error": error}
        entry["limit_per_s"] = limit
        entry["limit_at_least_per_s"] = at_least
        entry["beyond"] = None if row["pattern"] == "closed" else bool(row["rate"] > limit)
        entry["missed"] = any(abs(entry[f"{metric}_error"] or 0.0) > MISSED for metric in JUDGED)
        beyond = [costs for kind, (low, high, costs) in hinges.items() if not low <= _length(row, kind) <= high]
        entry["hinges_on"] = ", ".join(beyond) or None
        entry["note"] = row["note"]
        found.append(entry)
    numbers = {name: pl.Float64 for name in found[0] if name.rpartition("_")[2] in ("measured", "predicted", "error")}
    return pl.DataFrame(
        found,
        infer_schema_length=None,
        schema_overrides=numbers | {"beyond": pl.Boolean} | dict.fromkeys(("hinges_on", "note"), pl.String),
    )
