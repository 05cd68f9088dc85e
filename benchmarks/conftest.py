"""Benchmarks print requests per second or ratios, and write them to
``benchmarks/results/<name>.json``.

Small by default, so that they never rot; ``PENSTOCK_BENCHMARK=full pytest benchmarks`` runs them at
full size.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
RESULTS = Path(__file__).parent / "results"
_lines: list[str] = []


@pytest.fixture(autouse=True)
def _alone(benchmark: Any) -> None:
    """Skip where pytest-benchmark cannot time anything."""
    if benchmark.disabled:
        pytest.skip("timings need the machine to themselves: run without -n")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Iterator[Callable[[str, float, str], None]]:
    """Keep named figures of one benchmark: print them at the end, and write them as JSON."""
    figures: dict[str, dict[str, float | str]] = {}

    def keep(name: str, value: float, unit: str) -> None:
        figures[name] = {"value": value, "unit": unit}
        _lines.append(f"{request.node.name:48} {name:28} {value:>14,.3g} {unit}")

    yield keep
    if figures:
        RESULTS.mkdir(exist_ok=True)
        name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")
        (RESULTS / f"{name}.json").write_text(
            json.dumps({"full": FULL, "figures": figures}, indent=2)
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every figure."""
    if _lines:
        terminalreporter.section("figures of the benchmarks" + ("" if FULL else " (small sizes)"))
        for line in _lines:
            terminalreporter.write_line(line)
