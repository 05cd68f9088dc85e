"""Calibrate a server on a few rows of benchmarks, and hold its predictions against the others."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.measuring.calibration.allowed import Range, allowed, ranges_of, seen_in
from penstock.measuring.calibration.build import Build, with_known
from penstock.measuring.calibration.calibration import Calibration
from penstock.measuring.calibration.costs import cost_fit
from penstock.measuring.calibration.judge import hinges_of, judged, unidentified
from penstock.measuring.calibration.loads import Row, measured, tokens_held
from penstock.measuring.calibration.posterior import FITTED, Fit, with_intervals
from penstock.measuring.calibration.predict import requests_of
from penstock.measuring.calibration.quantities import COSTS
from penstock.measuring.calibration.runs import values_of_runs
from penstock.measuring.calibration.shape import open_of, possible_shapes, shape_fit
from penstock.simulation.progress import Progress
from penstock.system.engines import ENGINES
from penstock.system.uncertain import Known

__all__ = ["Calibration", "calibrate"]

_PER_RUN = ("nothing", "overhead", "all")
_DIGITS = 15  # of a number of rows: more than anybody measures
_KINDS = ("lowest", "spread", "all")


def calibrate(
    benchmarks: pl.DataFrame,
    *,
    hardware: Mapping[str, Any] | None = None,
    fit_rows: str | Sequence[bool] = "spread:3",
    parameters: Sequence[str] | None = None,
    token_budget: int | None = None,
    max_batch_size: int | None = None,
    policy: str | None = None,
    policy_params: Mapping[str, Any] | None = None,
    kv_tokens: int | None = None,
    prefix_hits: float | None = None,
    declared_tokens: int | None = None,
    per_run: str = "all",
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate a server on some rows of benchmarks, and predict all of them.

    Each row is simulated with its own load pattern, for as long as the benchmark lasted, and its
    statistics are as the tool takes them (`predict`). The most probable parameters are taken, given
    what was measured and what is likely before (`Priors`).

    Parameters
    ----------
    benchmarks
        What `read_benchmarks` returns.
    hardware
        The model on its GPUs, as a scenario's ``hardware`` says it: ``{"model": "Qwen3-32B",
        "gpu": "h100-sxm", "tensor_parallel": 2}``. Then its shape is the prior: few factors are
        fitted to what the shape says (`shape_fit`), and every prediction has an interval. None:
        all costs are fitted (`cost_priors`).
    fit_rows
        Rows to fit, of each shape: ``lowest:3``, those with the fewest requests per second,
        ``spread:3``, from the lowest to the highest at equal distances, or ``all``. Also a value
        for each row.
    parameters
        What to fit, of `COSTS`, ``step`` among them, without ``hardware``. Default: all. Costs
        that the rows cannot tell rest on their priors.
    token_budget
        Of the server, as it ran (``max_num_batched_tokens``). Default: 8,192 is assumed, as vLLM
        has it on a large GPU.
    max_batch_size
        Of the server, as it ran (``max_num_seqs``). Default: 1,024 is assumed, as vLLM has it on a
        large GPU.
    policy
        A policy or an engine's scheduler. Default: ``sglang`` where its client wrote all results,
        else ``vllm``.
    kv_tokens
        Tokens that KV memory holds. Default: found where rows identify it, else no limit. See
        `cost_fit`.
    policy_params
        Settings of the policy, as `Server` takes them: ``{"async_scheduling": False}``, or drafts
        of speculative decoding and the chances that they are accepted.
    prefix_hits
        Share of prompt tokens that the server's prefix cache held, where rows do not say it; then
        ``kv_tokens`` are needed, too. All prompts are taken to begin alike.
    declared_tokens
        Output tokens that requests said they may make (``max_tokens``), where rows do not say it.
        Default: those that they made.
    per_run
        What to adjust to each run: ``nothing``, the ``overhead`` or ``all``. Runs (the column:
        files are separate deployments or clients) are those with two fitted rows or more; of
        ``all`` parameters stay near those of all runs together.
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
    benchmarks = _said(benchmarks, prefix_hits, declared_tokens)
    caches = prefix_hits is not None or bool((benchmarks["prefix_hits"] > 0).any())
    if prefix_hits is None and kv_tokens is None:
        benchmarks, caches = _without_hits(benchmarks), False
    if policy is None:
        engines = set(benchmarks["engine"]) if "engine" in benchmarks.columns else set()
        named = engines.pop() if len(engines) == 1 else None
        policy = named if named in ENGINES else next(iter(ENGINES))
    build = Build(token_budget, max_batch_size, policy, kv_tokens, policy_params or {}, caches)
    rows = list(benchmarks.iter_rows(named=True))
    metrics = FITTED if hardware is None else (*FITTED, "e2e")
    fitted = chosen(rows, fit_rows, metrics)
    to_fit = list(itertools.compress(rows, fitted))
    if not to_fit:
        raise InputError(
            f"of {len(rows):,} rows none is left to fit: none of those chosen has any of "
            f"{', '.join(metrics)}; choose others, or fit E2E to a shape (--model, --gpu)"
        )
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in to_fit)
    if kv_tokens is not None and kv_tokens < longest:
        raise InputError(
            f"kv_tokens is {kv_tokens:,}, but requests of the rows have {longest:,.0f} tokens, so "
            "none could be served; give what the engine logs"
        )
    if hardware is not None:
        if parameters is not None:
            raise InputError(
                "parameters are given beside hardware, but to a shape the same few factors are "
                "always fitted; leave one of them out"
            )
        fit = shape_fit(rows, to_fit, possible_shapes(hardware, build), seed, progress)
    else:
        fit = cost_fit(rows, to_fit, build, _names(parameters), seed, progress)
    values_of = values_of_runs(rows, fit, per_run)
    return _calibration(rows, fitted, fit, values_of, per_run, seed, shape=hardware is not None)


def _names(parameters: Sequence[str] | None) -> list[str]:
    """Return which costs to fit."""
    names = list(COSTS if parameters is None else parameters)
    for name in names:
        if name not in COSTS:
            asked = checks.shown(name)
            raise InputError(f"unknown parameter {asked}{nearest(str(name), COSTS)}")
    if "step" not in names:
        raise InputError(
            f"the parameters {checks.shown(', '.join(names))} are fitted without step, the time "
            "that every batch takes; add it"
        )
    # Neither of these is anything without the other.
    pairs = {"knee", "per_token_below"}, {"front_end", "front_end_per_token"}
    return [*names, *(name for pair in pairs if pair & set(names) for name in sorted(pair))]


def _calibration(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    fit: Fit,
    values_of: dict[str, dict[str, float]],
    per_run: str,
    seed: int,
    *,
    shape: bool,
) -> Calibration:
    """Predict every row, by the common server and by that of its run."""
    values, build = fit.values, fit.build
    server, overhead = build(values)
    to_fit = [row for row, _ in fit.sent]
    seen = seen_in(rows, server, values)
    ranges: dict[str, Range] = {}
    if shape:
        known: Known = open_of(fit, seen)
    else:
        budget, ahead = build.limit("token_budget"), bool(server.policy.batching.ahead)
        ranges = ranges_of(to_fit, values, fit.priors.of, ahead=ahead, token_budget=budget)
        known = allowed(ranges, seen)
    one = with_known(server, known), overhead
    unsure = unidentified(fit, ranges)
    hinges = hinges_of(unsure, to_fit)
    most = max(tokens_held(row) for row in rows)
    least = None if server.memory else most
    of_common = judged(rows, fitted, dict.fromkeys(values_of, one), seed, hinges, least)
    if shape:
        sent = [(row, requests_of(row, server, seed)) for row in rows]
        of_common = with_intervals(of_common, fit, sent)
    of_runs = of_common
    if any(own != values for own in values_of.values()):
        servers = {run: build(own) for run, own in values_of.items()}
        of_runs = judged(rows, fitted, servers, seed, hinges, least)
    return Calibration(
        server=one[0],
        values=values,
        held=fit.held,
        priors=fit.priors.of,
        deviations=fit.deviations,
        strained=fit.strained,
        ranges={name: (of.low, of.high) for name, of in ranges.items() if of.open},
        unsure=unsure,
        limit_warning=fit.warning,
        assumed=build.assumed,
        values_of=values_of,
        per_run=per_run,
        tokens_held=most,
        rows=of_runs,
        common_rows=of_common,
    )


def _said(
    benchmarks: pl.DataFrame, prefix_hits: float | None, declared_tokens: int | None
) -> pl.DataFrame:
    """Return the rows with what was said of all of them, where they do not say it themselves."""
    said: dict[str, float] = {}
    if prefix_hits is not None:
        unit = "of the prompt tokens"
        said["prefix_hits"] = checks.number("prefix_hits", prefix_hits, 0, 1, unit, "it is a share")
    if declared_tokens is not None:
        reason = "requests declare as many as they may make"
        checks.whole("declared_tokens", declared_tokens, 1, 10**7, "tokens", reason)
        said["declared_tokens"] = float(declared_tokens)
    return benchmarks.with_columns(pl.col(name).fill_null(value) for name, value in said.items())


def _without_hits(benchmarks: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without hits of prefixes, for which no memory is known; a note says so."""
    note = pl.lit("prefix hits that the file states are not simulated; give kv_tokens")
    noted = pl.concat_str("note", note, separator="; ", ignore_nulls=True)
    hits = pl.col("prefix_hits") > 0
    return benchmarks.with_columns(
        note=pl.when(hits).then(noted).otherwise("note"), prefix_hits=pl.lit(None, pl.Float64)
    )


def chosen(
    rows: Sequence[Row], fit_rows: str | Sequence[bool], metrics: Sequence[str]
) -> list[bool]:
    """Return which rows to fit: those named, or some of each shape by load; with all metrics."""
    usable = [any(measured(row, metric) for metric in metrics) for row in rows]
    if not isinstance(fit_rows, str):
        if len(fit_rows) != len(rows):
            raise InputError(
                f"fit_rows has {len(fit_rows):,} values for {len(rows):,} rows; give one for each"
            )
        return [bool(use) and can for use, can in zip(fit_rows, usable, strict=True)]
    kind, _, number = fit_rows.partition(":")
    count = int(number) if number.isdecimal() and len(number) <= _DIGITS else 0
    if kind not in _KINDS or (count < 1 if kind != "all" else number):
        raise InputError(
            f"fit_rows is {checks.shown(fit_rows)}; give lowest:3, spread:3 (of each shape), or all"
        )
    by_shape: dict[str, list[Row]] = {}
    for row in sorted(itertools.compress(rows, usable), key=_load):
        by_shape.setdefault(row["shape"], []).append(row)
    used = {row["row"] for same in by_shape.values() for row in _some(same, kind, count)}
    return [row["row"] in used for row in rows]


def _load(row: Row) -> tuple[float, float]:
    return row["requests_per_s"] or row["rate"] or 0, row["in_flight"] or 0


def _some(rows: list[Row], kind: str, count: int) -> list[Row]:
    """Return all, the lowest, or some at equal distances of rows with rising loads."""
    if kind == "all":
        return rows
    if kind == "lowest":
        return rows[:count]
    spread = np.linspace(0, len(rows) - 1, min(count, len(rows)))
    return [rows[index] for index in np.unique(np.rint(spread).astype(int))]
