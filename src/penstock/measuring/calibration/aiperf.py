"""Results of AIPerf and GenAI-Perf: one JSON document per load."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_fields import (
    Row,
    Statistics,
    closed_loop,
    entry,
    failed,
    fields,
    lengths,
    listed,
    mean,
    open_loop,
    times,
)

_PER_UNIT = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip
# Its inter-token latency is (E2E - TTFT) / (output - 1) of a request, averaged over requests.
_AIPERF_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2e": "request_latency",
}
_AIPERF = fields(
    {
        "requests_per_s": (Statistics, "request_throughput"),
        "completed": (Statistics, "request_count"),
        "failed": (Statistics, "error_request_count"),
        "duration": (Statistics, "benchmark_duration"),
        **{metric: (Statistics, key) for metric, key in _AIPERF_METRICS.items()},
        "prompt": (Statistics, "input_sequence_length"),
        "output": (Statistics, "output_sequence_length", "output_token_count"),
        "was_cancelled": (bool, "was_cancelled"),
        "input_config": (dict[str, Any], "input_config"),
    },
    input_config={},
)
# What AIPerf's command line, or GenAI-Perf's, says of the load.
_SETTING = fields(
    {
        **{name: name for name in ("concurrency", "request_rate", "arrival_smoothness")},
        "pattern": (str, "arrival_pattern", "request_rate_mode"),
    }
)
_PHASE_FIELDS: dict[str, str | tuple[Any, ...]] = {
    **{name: (str, name) for name in ("kind", "name", "type")},
    **{name: name for name in ("rate", "concurrency", "smoothness")},
    "exclude_from_results": (bool, "exclude_from_results"),
}
_PHASE = fields(_PHASE_FIELDS, needed=("type",), exclude_from_results=False)
# Settings of a phase that are read, or that change nothing of the load.
_HARMLESS = (
    *_PHASE_FIELDS, "requests", "duration", "sessions", "grace_period", "sla", "seamless",
    "failed_request_threshold",
)  # fmt: skip
# Settings, before there were phases, with which the load is not what rate and concurrency say.
_UNLIKE = (
    "fixed_schedule", "user_centric_rate", "num_users", "request_rate_ramp_duration",
    "concurrency_ramp_duration", "prefill_concurrency", "request_cancellation_rate",
)  # fmt: skip


def belongs(document: Any) -> bool:
    """Tell whether a document is an export of AIPerf or GenAI-Perf: a unit and an average."""
    if not isinstance(document, dict):
        return False
    metric = document.get("time_to_first_token") or document.get("request_latency")
    return isinstance(metric, dict) and "unit" in metric and "avg" in metric


def rows(document: Any, source: Source) -> list[Row]:
    """Return one row; it waited for all requests."""
    result = entry(_AIPERF, document, source)
    if result.was_cancelled:
        raise source.fault(
            "says was_cancelled: true, so how many requests were cut off is unknown. Run it to "
            "its end"
        )
    throughput, completed, seconds = map(
        mean, (result.requests_per_s, result.completed, result.duration)
    )
    if seconds is not None:
        seconds *= _unit(source, "benchmark_duration", result.duration, "sec")
    if completed is None and seconds and throughput:
        completed = round(seconds * throughput)
    if not completed:
        return [{"unusable": "no request was completed, or request_count is missing"}]
    if seconds is None and throughput:
        seconds = completed / throughput
    load = _aiperf_load(result.input_config, source)
    units = {
        metric: _unit(source, key, getattr(result, metric), "ms")
        for metric, key in _AIPERF_METRICS.items()
    }
    row = {
        "completed": completed,
        "incomplete": 0,
        "duration_s": seconds,
        "requests_per_s": throughput,
        "note": failed(mean(result.failed), completed),
        **load,
        **times(result, units),
        **lengths("prompt", result.prompt),
        **lengths("output", result.output),
    }
    return [row]


def _unit(source: Source, name: str, part: Any, usual: str) -> float:
    """Return seconds in the unit of a metric."""
    unit = (part.unit if part else None) or usual
    if unit.lower() not in _PER_UNIT:
        raise source.fault(
            f"{name}.unit is {checks.shown(unit)}, so how long that is, is unknown. Known are "
            f"{', '.join(_PER_UNIT)}"
        )
    return _PER_UNIT[unit.lower()]


def _aiperf_load(settings: Mapping[str, Any], source: Source) -> Row:
    """Return the load that ``input_config`` states."""
    if "phases" in settings:
        return _phase_load(settings["phases"], source)
    stated = dict(_leaves(settings))
    unlike = next((name for name in _UNLIKE if stated.get(name)), None)
    if unlike:
        raise _not_simulated(source, f"input_config has {unlike}: {checks.shown(stated[unlike])}")
    load = entry(_SETTING, stated, source, "in input_config, ")
    usual = "constant" if "perf_analyzer" in settings else "poisson"
    if load.request_rate:
        kind = (load.pattern or usual).lower()
        return _at_rate(kind, load.request_rate, load.arrival_smoothness, load.concurrency, source)
    if load.concurrency:
        return closed_loop(load.concurrency)
    raise source.fault(
        "states no rate and no concurrency in input_config, so its load is unknown. Write a CSV "
        "instead"
    )


def _phase_load(phases: Any, source: Source) -> Row:
    """Return the load of the one phase whose results these are."""
    measured = []
    for number, raw in enumerate(listed(phases)):
        phase = entry(_PHASE, raw, source, f"in input_config.phases[{number}], ")
        if (phase.kind or phase.name) != "warmup" and not phase.exclude_from_results:
            measured.append((phase, raw))
    if len(measured) != 1:
        raise source.fault(
            f"has the results of {len(measured):,} phases together (input_config.phases), but a "
            "row is one load. Benchmark each load in a run of its own"
        )
    phase, raw = measured[0]
    for key, value in raw.items():
        if key not in _HARMLESS and value not in (None, False):
            what = f"{checks.shown(key)}: {checks.shown(value)}"
            raise _not_simulated(source, f"input_config.phases has {what}")
    if phase.type == "concurrency":
        return closed_loop(phase.concurrency or 1)  # which AIPerf takes where none is given
    if phase.rate is None:
        kind = checks.shown(phase.type)
        raise _not_simulated(source, f"input_config.phases has the type {kind} without a rate")
    return _at_rate(phase.type, phase.rate, phase.smoothness, phase.concurrency, source)


def _at_rate(
    kind: str, rate: float, smoothness: float | None, limit: float | None, source: Source
) -> Row:
    if kind in ("poisson", "constant"):
        return open_loop(kind, rate, limit=limit)
    if kind == "gamma":
        return open_loop("poisson", rate, smoothness or 1.0, limit)
    raise _not_simulated(source, f"arrivals are of the kind {checks.shown(kind)}")


def _not_simulated(source: Source, what: str) -> Exception:
    return source.fault(
        f"{what}, a load that is not simulated. Benchmark with a rate (constant, Poisson or gamma) "
        "or a concurrency that stays"
    )


def _leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with a plain value, however deep; of two with one name the last counts."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield key, value
