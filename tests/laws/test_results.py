"""One measurement is one row, whichever load generator wrote it; what cannot be is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import TOOLS, read_benchmarks
from penstock.measuring.calibration.result_format import Format, Number, Statistics
from penstock.measuring.calibration.result_row import METRICS

every_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)

COLUMNS = {"completed": 120, "duration_s": 60.0, "requests_per_s": 2.0, "concurrency": 1.8, "failed": 3}
MEANS = {"ttft": 0.1, "itl": 0.02, "tpot": 0.02, "e2e": 0.9}
LENGTHS = {"prompt": 100, "output": 41}
SHARES = {"mean": 1.0, "p50": 0.9, "p90": 1.5, "p99": 2.0}
TIMES = {f"{name}_{part}_s": mean * share for name, mean in MEANS.items() for part, share in SHARES.items()}


def kind_and_paths(tool: Format, name: str) -> tuple[Any, tuple[str, ...]]:
    spec = tool.names[name]
    return (Number, (spec,)) if isinstance(spec, str) else (spec[0], spec[1:])


def put(document: dict[str, Any], path: str, value: Any) -> None:
    *above, key = path.split(".")
    for part in above:
        document = document.setdefault(part, {})
    document[key] = value


def written(tool: Format, **changes: Any) -> str:
    """Return the measurement as a tool's table of names says that it is written, values at paths changed."""
    document: dict[str, Any] = json.loads(json.dumps(tool.example))
    for name in tool.names:
        kind, (path, *_) = kind_and_paths(tool, name)
        unit = tool.units.get(name, 1.0)
        value = (COLUMNS | MEANS | LENGTHS | TIMES).get(name)
        if value is None:
            continue
        if kind is Statistics:
            shares = {part: value / unit * (share if name in METRICS else 1) for part, share in SHARES.items()}
            put(document, path, shares | {"avg": value / unit, "unit": "ms" if unit == 1e-3 else "s"})
        else:
            put(document, path, value / unit)
    for path, value in changes.items():
        put(document, path, value)
    return json.dumps({tool.listed_in: [document]} if tool.listed_in else document)


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "result.json"
    path.write_text(text)
    table = read_benchmarks(path)
    assert table.height == 1
    return table.row(0, named=True)


@every_tool
def test_a_measurement_is_the_same_row_whichever_tool_wrote_it(tool: Format, tmp_path: Path) -> None:
    row = read(tmp_path, written(tool))
    assert (row["pattern"], row["rate"], row["completed"], row["duration_s"]) == ("poisson", 2.0, 120, 60.0)
    assert (row["prompt_tokens"], row["output_tokens"], row["requests_per_s"]) == (100.0, 41.0, 2.0)
    for name in ("ttft", "e2e"):
        for part in SHARES:
            assert row[f"{name}_{part}_s"] == pytest.approx(TIMES[f"{name}_{part}_s"])
    assert row["itl_mean_s"] == pytest.approx(0.02), "stated, or (E2E - TTFT) / (output - 1)"
    assert str(row["note"]).startswith("3 of 123 requests failed and are not simulated")


@every_tool
def test_a_document_is_of_one_tool(tool: Format) -> None:
    document = json.loads(written(tool))
    assert [other.name for other in TOOLS if other.is_of(document)] == [tool.name]
    assert not any(other.is_of(odd) for other in TOOLS for odd in (None, 7, "x", [], {}, [[]], [None]))


@every_tool
def test_a_number_that_cannot_be_is_refused_in_one_line_that_names_it(tool: Format, tmp_path: Path) -> None:
    for name in tool.names:
        kind, paths = kind_and_paths(tool, name)
        if kind not in (Number, Statistics):
            continue
        for odd in (-1, "8", float("nan"), 1e300, True):
            place = paths[0] if kind is Number else f"{paths[0]}.mean"
            with pytest.raises(InputError) as refused:
                read(tmp_path, written(tool, **{place: odd}))
            assert str(refused.value).startswith("result.json: ")
            assert f"{place.rpartition('.')[2]} must be" in str(refused.value)
            assert "\n" not in str(refused.value)


ALWAYS_WRITTEN = {
    "guidellm": {
        "metrics": "metrics is missing",
        "strategy": "no strategy is stated",
        "strategy.rate": "its rate or streams are missing",
        "metrics.prompt_token_count": "no prompt length",
        "metrics.output_token_count": "no output length",
    },
    "vllm-bench": {
        "completed": "completed is missing",
        "duration": "duration is missing",
        "request_throughput": "no known benchmark",
        "total_input_tokens": "total_input_tokens is missing",
        "total_output_tokens": "total_output_tokens is missing",
    },
    "inference-perf": {
        "load_summary": "no known benchmark",
        "load_summary.requested_rate": "states no requested_rate and no concurrency",
        "successes": "no known benchmark",
        "successes.count": "successes.count is missing",
        "successes.prompt_tokens": "no prompt length",
        "successes.output_tokens": "no output length",
    },
    "aiperf": {
        "input_config": "states no rate and no concurrency",
        "request_count request_throughput": "no request was completed, or request_count is missing",
        "input_sequence_length": "no prompt length",
        "output_sequence_length": "no output length",
        "time_to_first_token inter_token_latency request_latency": "no known benchmark",
    },
}
"""By tool, what stands in each of its documents, and what is said where it does not."""


@every_tool
def test_what_a_tool_always_writes_is_missed(tool: Format, tmp_path: Path) -> None:
    assert set(tool.needed) <= ALWAYS_WRITTEN[tool.name].keys()
    for paths, said in ALWAYS_WRITTEN[tool.name].items():
        document = json.loads(written(tool))
        for path in paths.split():
            holder = document[tool.listed_in][0] if tool.listed_in else document
            *above, key = path.split(".")
            for part in above:
                holder = holder[part]
            del holder[key]
        with pytest.raises(InputError, match=said):
            read(tmp_path, json.dumps(document))


@every_tool
def test_a_benchmark_that_completed_nothing_says_so(tool: Format, tmp_path: Path) -> None:
    kind, (path, *_) = kind_and_paths(tool, "completed")
    with pytest.raises(InputError, match="no request was completed"):
        read(tmp_path, written(tool, **{path: {"avg": 0} if kind is Statistics else 0}))
