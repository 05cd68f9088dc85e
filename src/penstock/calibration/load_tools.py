"""Results of vllm bench, inference-perf, AIPerf and GenAI-Perf: one JSON document per load."""

import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

_MS = 1e-3
_PER_UNIT = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}


def is_vllm_bench(document: Any) -> bool:
    """Tell whether a JSON document is one of ``vllm bench serve --save-result``, or several in a list."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and "request_throughput" in first and "mean_ttft_ms" in first


def vllm_bench(document: Any, run: str) -> list[dict[str, Any]]:
    """Return a row for each result; it waited for all requests."""
    return [_vllm_bench(entry, run) for entry in (document if isinstance(document, list) else [document])]


def _vllm_bench(entry: dict[str, Any], run: str) -> dict[str, Any]:
    completed, duration = int(entry["completed"]), float(entry["duration"])
    rate = math.inf if entry.get("request_rate") in (None, "inf") else float(entry["request_rate"])
    in_flight = entry.get("max_concurrency")
    found: dict[str, Any] = {"run": run, "completed": completed, "incomplete": 0, "duration_s": duration}
    found |= _open_or_closed(rate, in_flight, completed, float(entry.get("burstiness") or 1.0))
    found |= {
        f"{metric}_{column}_s": entry[f"{name}_{metric if metric != 'e2e' else 'e2el'}_ms"] * _MS
        for metric in ("ttft", "tpot", "itl", "e2e")
        for column, name in (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99"))
        if entry.get(f"{name}_{metric if metric != 'e2e' else 'e2el'}_ms") is not None
    }
    for name, total, each in (
        ("prompt", entry.get("total_input_tokens", entry.get("total_input")), entry.get("input_lens")),
        ("output", entry.get("total_output_tokens", entry.get("total_output")), entry.get("output_lens")),
    ):
        found[f"{name}_tokens"] = float(total) / completed if total else None
        lengths = [length for length in each or () if length > 0]
        if len(lengths) > 1:
            found[f"{name}_std"] = statistics.pstdev(lengths) or None
    if entry.get("ttfts") and entry.get("itls"):  # --save-detailed
        e2e = np.array([a + sum(b) for a, b in zip(entry["ttfts"], entry["itls"], strict=True) if a > 0 and b])
        if e2e.size:
            found |= {"e2e_mean_s": float(e2e.mean()), "e2e_p50_s": float(np.median(e2e))}
            found["e2e_p99_s"] = float(np.quantile(e2e, 0.99))
    return found | {"requests_per_s": float(entry["request_throughput"])}


def is_inference_perf(document: Any) -> bool:
    """Tell whether a JSON document is a ``*_lifecycle_metrics.json`` of inference-perf."""
    return isinstance(document, dict) and "successes" in document and "load_summary" in document


def inference_perf(document: Any, run: str) -> list[dict[str, Any]]:
    """Return one row. A stage sends at a rate for a while, with Poisson arrivals, and waits for all."""
    load, good = document["load_summary"], document["successes"]
    completed = int(good.get("count") or load["count"])
    rate = load.get("requested_rate") or load.get("achieved_rate") or math.inf
    found: dict[str, Any] = {"run": run, "completed": completed, "incomplete": 0}
    found |= _open_or_closed(float(rate), load.get("concurrency"), completed, 1.0)
    found["duration_s"] = load.get("send_duration") or completed / float(rate)
    latency = good["latency"]
    for metric, name in (
        ("ttft", "time_to_first_token"),
        ("tpot", "time_per_output_token"),
        ("itl", "inter_token_latency"),
        ("e2e", "request_latency"),
    ):
        part = latency.get(name) or {}
        for column, keys in (("mean", ("mean",)), ("p50", ("p50", "median")), ("p90", ("p90",)), ("p99", ("p99",))):
            value = next((part[key] for key in keys if part.get(key) is not None), None)
            found |= {} if value is None else {f"{metric}_{column}_s": float(value)}
    for name, key in (("prompt", "prompt_len"), ("output", "output_len")):
        found[f"{name}_tokens"] = float(good[key]["mean"])
        found |= _spread(name, good[key])
    return [found | {"requests_per_s": (good.get("throughput") or {}).get("requests_per_sec")}]


def is_aiperf(document: Any) -> bool:
    """Tell whether a JSON document is an export of AIPerf or GenAI-Perf: metrics with a unit and an average."""
    if not isinstance(document, dict):
        return False
    metric = document.get("time_to_first_token") or document.get("request_latency")
    return isinstance(metric, dict) and "unit" in metric and "avg" in metric


def aiperf(document: Any, run: str) -> list[dict[str, Any]]:
    """Return one row; it waited for all requests. The load stands somewhere in ``input_config``."""
    settings = dict(_leaves(document.get("input_config") or {}))
    throughput = (document.get("request_throughput") or {}).get("avg")
    completed = (document.get("request_count") or {}).get("avg") or (document.get("request_latency") or {}).get("count")
    duration = document.get("benchmark_duration")
    seconds = float(duration["avg"]) * _PER_UNIT.get(str(duration.get("unit")), 1.0) if duration else None
    if completed is None and seconds and throughput:
        completed = seconds * throughput
    completed = int(completed or settings.get("request_count") or settings.get("num_requests") or 100)
    if seconds is None and throughput:
        seconds = completed / throughput
    rate = settings.get("request_rate")
    mode = str(settings.get("arrival_pattern") or settings.get("request_rate_mode") or "").lower()
    found: dict[str, Any] = {"run": run, "completed": completed, "incomplete": 0, "duration_s": seconds}
    in_flight = settings.get("concurrency")
    found |= _open_or_closed(float(rate) if rate else math.inf, in_flight, completed, 1.0)
    if rate and "poisson" not in mode and (mode or "perf_analyzer" in (document.get("input_config") or {})):
        found["pattern"] = "constant"
    for metric, names in (
        ("ttft", ("time_to_first_token",)),
        ("itl", ("inter_token_latency",)),
        ("e2e", ("request_latency",)),
    ):
        part: dict[str, Any] = next((document[each] for each in names if isinstance(document.get(each), dict)), {})
        unit = _PER_UNIT.get(str(part.get("unit", "ms")).lower(), _MS)
        for column, key in (("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
            found |= {f"{metric}_{column}_s": float(part[key]) * unit} if part.get(key) is not None else {}
    for name, keys in (
        ("prompt", ("input_sequence_length",)),
        ("output", ("output_sequence_length", "output_token_count")),
    ):
        part = next((document[key] for key in keys if isinstance(document.get(key), dict)), {})
        found[f"{name}_tokens"] = part.get("avg")
        found |= {f"{name}_std": part["std"]} if part.get("std") else {}
    return [found | {"requests_per_s": throughput}]


def _open_or_closed(rate: float, in_flight: Any, completed: int, burstiness: float) -> dict[str, Any]:
    """Return the pattern: a rate, a number of requests under way, or all at once."""
    if math.isfinite(rate) and rate > 0:
        found = {"pattern": "poisson", "rate": rate, "burstiness": burstiness, "load": f"poisson@{rate:.6g}"}
        return found | ({"client_limit": int(in_flight)} if in_flight else {})
    places = int(in_flight) if in_flight else completed
    return {"pattern": "closed", "in_flight": places, "load": f"closed@{places}"}


def _spread(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a standard deviation guessed from percentiles, where none is stated: the middle 80% of a normal one."""
    low, high = part.get("p10"), part.get("p90")
    return {f"{name}_std": (high - low) / 2.563} if low is not None and high is not None and high > low else {}


def _leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with a plain value, however deep; of two with one name the last counts."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield key, value
