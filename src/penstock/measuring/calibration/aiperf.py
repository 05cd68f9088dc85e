"""Results of AIPerf and GenAI-Perf: one JSON document per load."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock import checks
from penstock.measuring.calibration.result_format import (
    MS,
    Format,
    Names,
    Result,
    Statistics,
    entry,
    fields,
    listed,
)
from penstock.measuring.calibration.result_row import Row, closed_loop, open_loop

# What AIPerf's command line, or GenAI-Perf's, says of the load.
_SETTING = fields(
    {
        **{name: name for name in ("concurrency", "request_rate", "arrival_smoothness")},
        "pattern": (str, "arrival_pattern", "request_rate_mode"),
    }
)
_PHASE_NAMES: Names = {
    **{name: (str, name) for name in ("kind", "name", "type")},
    **{name: name for name in ("rate", "concurrency", "smoothness")},
    "exclude_from_results": (bool, "exclude_from_results"),
}
_PHASE = fields(_PHASE_NAMES, needed=("type",))
# Settings of a phase that are read, or that change nothing of the load.
_HARMLESS = (
    *_PHASE_NAMES, "requests", "duration", "sessions", "grace_period", "sla", "seamless",
    "failed_request_threshold",
)  # fmt: skip
# Settings, before there were phases, with which the load is not what rate and concurrency say.
_UNLIKE = (
    "fixed_schedule", "user_centric_rate", "num_users", "request_rate_ramp_duration",
    "concurrency_ramp_duration", "prefill_concurrency", "request_cancellation_rate",
)  # fmt: skip


def _load(result: Result, row: Row) -> Row:
    """Return the load that ``input_config`` states; it waited for all requests."""
    settings = result.fields.input_config or {}
    if result.fields.was_cancelled:
        raise result.fault(
            "says was_cancelled: true, so how many requests were cut off is unknown. Run it to "
            "its end"
        )
    if row["completed"] is None:
        return {"unusable": "no request was completed, or request_count is missing"}
    if "phases" in settings:
        return _phase_load(settings["phases"], result)
    stated = dict(_leaves(settings))
    unlike = next((name for name in _UNLIKE if stated.get(name)), None)
    if unlike:
        raise _not_simulated(result, f"input_config has {unlike}: {checks.shown(stated[unlike])}")
    load = entry(_SETTING, stated, result.source, "in input_config, ")
    usual = "constant" if "perf_analyzer" in settings else "poisson"
    if load.request_rate:
        kind = (load.pattern or usual).lower()
        return _at_rate(kind, load.request_rate, load.arrival_smoothness, load.concurrency, result)
    if load.concurrency:
        return closed_loop(load.concurrency)
    raise result.fault(
        "states no rate and no concurrency in input_config, so its load is unknown. Write a CSV "
        "instead"
    )


def _phase_load(phases: Any, result: Result) -> Row:
    """Return the load of the one phase whose results these are."""
    measured = []
    for number, raw in enumerate(listed(phases)):
        phase = entry(_PHASE, raw, result.source, f"in input_config.phases[{number}], ")
        if (phase.kind or phase.name) != "warmup" and not phase.exclude_from_results:
            measured.append((phase, raw))
    if len(measured) != 1:
        raise result.fault(
            f"has the results of {len(measured):,} phases together (input_config.phases), but a "
            "row is one load. Benchmark each load in a run of its own"
        )
    phase, raw = measured[0]
    for key, value in raw.items():
        if key not in _HARMLESS and value not in (None, False):
            what = f"{checks.shown(key)}: {checks.shown(value)}"
            raise _not_simulated(result, f"input_config.phases has {what}")
    if phase.type == "concurrency":
        return closed_loop(phase.concurrency or 1)  # which AIPerf takes where none is given
    if phase.rate is None:
        kind = checks.shown(phase.type)
        raise _not_simulated(result, f"input_config.phases has the type {kind} without a rate")
    return _at_rate(phase.type, phase.rate, phase.smoothness, phase.concurrency, result)


def _at_rate(
    kind: str, rate: float, smoothness: float | None, limit: float | None, result: Result
) -> Row:
    if kind in ("poisson", "constant"):
        return open_loop(kind, rate, limit=limit)
    if kind == "gamma":
        return open_loop("poisson", rate, smoothness or 1.0, limit)
    raise _not_simulated(result, f"arrivals are of the kind {checks.shown(kind)}")


def _not_simulated(result: Result, what: str) -> Exception:
    return result.fault(
        f"{what}, a load that is not simulated. Benchmark with a rate (constant, Poisson or gamma) "
        "or a concurrency that stays"
    )


def _leaves(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every key with a plain value, however deep; of two with one name the last counts."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield key, value


AIPERF = Format(
    name="aiperf",
    marks=(
        "time_to_first_token.unit time_to_first_token.avg",
        "request_latency.unit request_latency.avg",
    ),
    names={
        "requests_per_s": (Statistics, "request_throughput"),
        "completed": (Statistics, "request_count"),
        "failed": (Statistics, "error_request_count"),
        "duration_s": (Statistics, "benchmark_duration"),
        "ttft": (Statistics, "time_to_first_token"),
        # Of a request it is (E2E - TTFT) / (output - 1), and it is averaged over requests.
        "tpot": (Statistics, "inter_token_latency"),
        "e2e": (Statistics, "request_latency"),
        "prompt": (Statistics, "input_sequence_length"),
        "output": (Statistics, "output_sequence_length", "output_token_count"),
        "was_cancelled": (bool, "was_cancelled"),
        "input_config": (dict[str, Any], "input_config"),
    },
    units={"ttft": MS, "tpot": MS, "e2e": MS, "duration_s": 1.0},
    more=_load,
    example={"input_config": {"loadgen": {"request_rate": 2.0}}},
)
