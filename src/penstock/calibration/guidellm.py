"""Results of GuideLLM: its JSON, and its table of statistics as JSON rows."""

import json
import math
import re
from typing import Any

_MS = 1e-3
_DEFAULT_IN_FLIGHT = 512  # GuideLLM's limit on concurrent requests, where it is not told another


def belongs(document: Any) -> bool:
    """Tell whether a JSON document is GuideLLM's."""
    if isinstance(document, dict):
        return isinstance(document.get("benchmarks"), list)
    return (
        isinstance(document, list)
        and bool(document)
        and isinstance(document[0], dict)
        and "Successful Time to first token ms mean" in document[0]
    )


def rows(document: Any, run: str) -> list[dict[str, Any]]:
    """Return a row for each benchmark in the file."""
    if isinstance(document, list):
        return [_flat(entry, run) for entry in document]
    return [_nested(entry, document, run) for entry in document["benchmarks"]]


def strategy(text: str, incomplete: int | None, in_flight: int | None = None) -> dict[str, Any]:
    """Return the load pattern that a strategy names: ``synchronous``, ``constant@2.5``, ``concurrent@8`` ..."""
    name, _, value = text.strip().partition("@")
    name = name.strip().lower()
    number = _number(value)
    if value.strip() and number is None:
        return {}
    if name == "synchronous":
        return {"pattern": "closed", "in_flight": 1}
    if name == "concurrent":
        return {"pattern": "closed", "in_flight": int(number) if number is not None and number >= 1 else in_flight}
    if name == "throughput":  # as many as it may: those under way at the end, where it was cut off
        return {"pattern": "closed", "in_flight": in_flight or incomplete or _DEFAULT_IN_FLIGHT}
    if name in ("constant", "poisson", "async"):
        found = {"pattern": "poisson" if name == "poisson" else "constant"}
        return found if number is None else found | {"rate": number, "client_limit": in_flight}
    return {}


def burst(chosen: dict[str, Any], rate: float) -> int:
    """Return the requests that came at once at the start: one second's, where GuideLLM 0.3 says ``initial_burst``."""
    return math.floor(rate) if chosen.get("initial_burst") else 0


def lengths(data: Any) -> dict[str, Any]:
    """Return what the data argument says of lengths: ``prompt_tokens=256,prompt_tokens_min=128,...``."""
    if isinstance(data, list) and data:
        data = data[0]
    if isinstance(data, str):
        text = data.strip().strip("[]'")
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            data = dict(re.findall(r"(\w+)\s*=\s*([^,\s'\"]+)", text))
    if not isinstance(data, dict):
        return {}
    found: dict[str, Any] = {}
    nominal = []
    for name in ("prompt", "output"):
        mean, low, high, deviation = (
            _number(data.get(f"{name}_tokens{end}")) for end in ("", "_min", "_max", "_stdev")
        )
        if mean is None:
            continue
        nominal.append(f"{mean:g}")
        if low is not None or high is not None:
            found[f"{name}_low"] = max(1.0, low if low is not None else mean - 5 * (deviation or 0))
            found[f"{name}_high"] = high if high is not None else mean + 5 * (deviation or 0)
        if deviation:
            found[f"{name}_std"] = deviation
    return found | ({"shape": "+".join(nominal)} if len(nominal) == 2 else {})


def _nested(entry: dict[str, Any], document: dict[str, Any], run: str) -> dict[str, Any]:
    """Read one entry of ``benchmarks``, as versions from 0.2 on write it."""
    settings = entry.get("config") or entry.get("args") or {}
    chosen = settings.get("strategy") or entry.get("strategy") or {}
    if isinstance(chosen, str):
        chosen = {"type_": chosen}
    metrics = entry["metrics"]
    totals = (
        metrics.get("request_totals")
        or entry.get("request_totals")
        or entry.get("run_stats", {}).get("requests_made")
        or {}
    )
    incomplete = totals.get("incomplete")
    kind = str(chosen.get("type_") or chosen.get("strategy_type") or settings.get("strategy_type") or "")
    in_flight = chosen.get("max_concurrency") or chosen.get("streams")
    value = in_flight if kind == "concurrent" else chosen.get("rate")
    label = kind if value is None else f"{kind}@{value:.6g}"
    found = strategy(label, incomplete, in_flight)
    if "rate" in found and value is not None:
        found |= {"rate": float(value), "burst": burst(chosen, float(value))}

    def successful(name: str) -> dict[str, Any]:
        part = metrics.get(name) or {}
        return part.get("successful") or {} if isinstance(part, dict) else {}

    begun, ended = entry.get("start_time"), entry.get("end_time")
    duration = entry.get("duration")
    if duration is None and begun is not None and ended is not None:
        duration = ended - begun
    found |= lengths(_data(entry, settings, document))
    for column, name, unit in (
        ("ttft", "time_to_first_token_ms", _MS),
        ("itl", "inter_token_latency_ms", _MS),
        ("tpot", "time_per_output_token_ms", _MS),
        ("e2e", "request_latency", 1.0),
    ):
        part = successful(name)
        percentiles = part.get("percentiles") or {}
        values = {"mean": part.get("mean"), "p50": part.get("median", percentiles.get("p50"))}
        values |= {key: percentiles.get(key) for key in ("p90", "p99")}
        found |= {f"{column}_{key}_s": value * unit for key, value in values.items() if value is not None}
    return found | {
        "run": run,
        "load": label or "unknown",
        "duration_s": duration,
        "completed": totals.get("successful") or successful("request_latency").get("count"),
        "incomplete": incomplete,
        "prompt_tokens": successful("prompt_token_count").get("mean"),
        "output_tokens": successful("output_token_count").get("mean"),
        "requests_per_s": successful("requests_per_second").get("mean"),
        "concurrency": successful("request_concurrency").get("mean"),
    }


def _data(entry: dict[str, Any], settings: dict[str, Any], document: dict[str, Any]) -> Any:
    """Return the data argument, which has moved from version to version."""
    for holder in (
        entry.get("request_loader"),
        settings.get("requests"),
        settings,
        document.get("args"),
        document.get("config"),
    ):
        if isinstance(holder, dict) and holder.get("data"):
            return holder["data"]
    return None


def _flat(entry: dict[str, Any], run: str) -> dict[str, Any]:
    """Read a row of the table of statistics."""
    settings = json.loads(entry.get("Args") or "{}")
    loader = json.loads(entry.get("Request Loader") or "{}")
    chosen = settings.get("strategy") or {}
    incomplete = int(entry.get("Incomplete Requests") or 0)
    found = strategy(entry["Name"], incomplete, chosen.get("max_concurrency"))
    if "rate" in found:
        found["rate"] = float(chosen.get("rate") or found["rate"])
        found["burst"] = burst(chosen, found["rate"])
    found |= lengths(loader.get("data"))

    def value(name: str, unit: float = 1.0) -> float | None:
        text = entry.get(f"Successful {name}")
        return None if text in (None, "") else float(text) * unit

    for column, name, unit in (
        ("ttft", "Time to first token ms", _MS),
        ("itl", "Inter token latency ms", _MS),
        ("tpot", "Time per output token ms", _MS),
        ("e2e", "Request latency", 1.0),
    ):
        found |= {f"{column}_mean_s": value(f"{name} mean", unit), f"{column}_p50_s": value(f"{name} median", unit)}
        eleven = entry.get(f"Successful {name} [min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]")
        if eleven:
            percentiles = json.loads(eleven)
            found |= {f"{column}_p90_s": percentiles[7] * unit, f"{column}_p99_s": percentiles[9] * unit}
    return found | {
        "run": run,
        "load": entry["Name"],
        "duration_s": float(entry["Duration"]),
        "completed": int(entry["Successful Requests"]),
        "incomplete": incomplete,
        "prompt_tokens": value("Prompt token count mean"),
        "output_tokens": value("Output token count mean"),
        "requests_per_s": value("Requests per second mean"),
        "concurrency": value("Request concurrency mean"),
    }


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
