"""The command ``penstock diagnose``: what benchmark results are worth."""

from pathlib import Path
from typing import Any

from penstock.measuring.calibration.command import in_short
from penstock.show.commands import command
from penstock.show.options import Form


@command("read_benchmarks", form="report strict")
def diagnose(results: list[Path], *, form: Form, **options: Any) -> None:
    """Say what benchmark results are worth.

    Each load is steady or filling, held back by the client, or too short: what it shows, and what
    it does not.

    Parameters
    ----------
    results : RESULTS...
        Benchmark results or folders of them: GuideLLM, vllm bench, inference-perf, AIPerf,
        GenAI-Perf, CSV; -: standard input.
    strict
        Exit with status 1 if a load is not worth its numbers.
    """
    form.check(results)
    from penstock.measuring.diagnosis.diagnose import diagnose as diagnosed

    answer = diagnosed(results, **options, names=in_short(results))
    form.show(answer.page(), answer.as_dict(), is_no=not answer.worth)
