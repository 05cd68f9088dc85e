"""Fit what an engine adds to the kernels: the constants of `system/models/hosts.yaml`.

    python benchmarks/studies/host_fits.py ../shared/data vllm

A search along one constant after another, on every second InferenceX point with fewer than 8,000
output tokens of the models that the file names for the engine. It begins at what is shipped,
which was found so and rounded, and prints what it finds; it writes nothing. Points of Qwen3-32B and
of the B200, and of vLLM before 0.16, are left out.

SGLang's front end stays at the 0.15 s that DeepSeek-R1 shows at few requests. The search takes up
to 0.3 s, which stands for queues of hundreds of requests to Llama-3.1-8B, and for no front end.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from how_far_off import ENGINES_HERE, points, predicted

from penstock.errors import InputError
from penstock.system.models.hosts import Host, engine_fit

MODELS = {
    "vllm": "Llama-3.1-70B|gpt-oss|MiniMax",
    "sglang": "DeepSeek|Qwen3-235B|Llama-3.1-8B",
    "trtllm": "Llama-3.1-70B|Qwen3-235B|DeepSeek",
}
TRIED = ("layer_s", "reduce_s", "batch_s", "launch_s", "launch_experts_s", "request_s", "front_s",
         "front_token_s")  # fmt: skip
LEAST_S = 1e-7
WEIGHT = 0.6  # of the error of TTFT beside that of the time per output token
MOST_AT_ONCE = 512  # requests in flight, from which on engines had limits that are not known


def rows_of(data: Path, backend: str) -> list[dict[str, Any]]:
    """Return the points that constants are fitted to."""
    old = (pl.col("backend_version") == "0.12.0").fill_null(False) & (backend == "vllm")
    table = points(data).filter(
        (pl.col("backend") == backend)
        & pl.col("precision").is_not_null()
        & (pl.col("system") != "b200_sxm")
        & pl.col("model_path").str.contains(MODELS[backend])
        & (pl.col("osl") < 8000)
        & (pl.col("batch_size") < MOST_AT_ONCE)
        & ~old
    )
    return list(table.gather_every(2).iter_rows(named=True))


def error(rows: list[dict[str, Any]], data: Path, host: Host) -> float:
    """Return the mean error of the logarithms, which a few wild points do not decide."""
    off = []
    for row in rows:
        try:
            answer = predicted(row, data, host)
        except InputError:
            continue
        off.append(np.log(answer["tpot"] / row["silicon_tpot_ms"]))
        off.append(WEIGHT * np.log(answer["ttft"] / row["silicon_ttft_ms"]))
    return float(np.abs(off).mean())


def main() -> None:
    """Search, and print."""
    data, backend = Path(sys.argv[1]), sys.argv[2]
    rows = rows_of(data, backend)
    host = engine_fit(ENGINES_HERE[backend]).host
    best = error(rows, data, host)
    print(f"{len(rows)} points, shipped: {best:.4f}  {host}", flush=True)
    for step in (1.6, 1.25, 1.1):
        for name in TRIED:
            for factor in (step, 1 / step):
                value = max(getattr(host, name), LEAST_S) * factor
                tried = dataclasses.replace(host, **{name: value})
                now = error(rows, data, tried)
                if now < best:
                    host, best = tried, now
        print(f"steps of {step}: {best:.4f}  {host}", flush=True)


if __name__ == "__main__":
    main()
