"""Fit what an engine adds to the kernels: the constants of `system/models/hosts.yaml`.

    python benchmarks/studies/host_fits.py ../shared/data vllm
    python benchmarks/studies/host_fits.py ../shared/data vllm 0.12

A search (Powell) over logarithms, on every second InferenceX point with fewer than 8,000 output
tokens of the models that the file names for the engine, with the newest kernels. It prints what it
finds, which is shipped rounded; it writes nothing. Points of Qwen3-32B and of the B200, and of vLLM
before 0.16, are left out, but for the older host: what 0.12 adds to the newest one is fitted to
Qwen3-32B. What 0.6 to 0.9 add is what others measured.

Front ends of SGLang and TensorRT-LLM are not those found here (.15 s each): another benchmark has
.028 and .052 s, and .1 and .08 s are between.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from how_far_off import ENGINES_HERE, points, predicted
from scipy.optimize import minimize

from penstock.errors import InputError
from penstock.system.models.hosts import Host, engine_fit

MODELS = {
    "vllm": "Llama-3.1-70B|gpt-oss|MiniMax",
    "sglang": "DeepSeek|Qwen3-235B|Llama-3.1-8B",
    "trtllm": "Llama-3.1-70B|Qwen3-235B|DeepSeek",
}
SEARCHED = {
    "layer_s": (1e-7, 5e-6, 1e-4),
    "reduce_s": (1e-7, 3e-6, 3e-5),
    "batch_s": (1e-6, 1e-4, 1e-2),
    "launch_experts_s": (1e-6, 7e-4, 5e-3),
    "expert_token_bytes": (100.0, 3e5, 1e7),
    "front_s": (1e-4, 5e-3, 0.5),
}
"""The least, first and largest value of each constant."""
OF_OLDER = {
    "batch_s": (1e-5, 1e-3, 1e-2),
    "request_s": (1e-7, 5e-5, 1e-3),
    "front_s": (1e-3, 5e-3, 0.2),
}
MOST_TRIES = 250
WEIGHT = 0.6  # of the error of TTFT beside that of the time per output token
MOST_AT_ONCE = 512  # requests in flight, from which on engines had limits that are not known


def rows_of(data: Path, backend: str, version: str | None = None) -> list[dict[str, Any]]:
    """Return the points that constants are fitted to."""
    models = MODELS[backend] if version is None else "Qwen3-32B"
    of_version = pl.col("backend_version").fill_null("").str.starts_with(version or "0.12.")
    here = of_version if version else ~(of_version & (backend == "vllm"))
    table = points(data).filter(
        (pl.col("backend") == backend)
        & (pl.col("precision").is_not_null() if version is None else pl.col("precision").is_null())
        & (pl.col("system") != "b200_sxm")
        & pl.col("model_path").str.contains(models)
        & (pl.col("osl") < 8000)
        & (pl.col("batch_size") < MOST_AT_ONCE)
        & here
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
    version = sys.argv[3] if len(sys.argv) > 3 else None
    rows = rows_of(data, backend, version)
    shipped = engine_fit(ENGINES_HERE[backend]).host
    begin, searched = (Host(layer_s=0.0), SEARCHED) if version is None else (shipped, OF_OLDER)
    low, first, high = np.log(np.array(list(searched.values()))).T

    def host_of(logs: np.ndarray) -> Host:
        return dataclasses.replace(begin, **dict(zip(searched, np.exp(logs).tolist(), strict=True)))

    best = minimize(
        lambda logs: error(rows, data, host_of(np.clip(logs, low, high))),
        first,
        method="Powell",
        bounds=list(zip(low, high, strict=True)),
        options={"maxfev": MOST_TRIES, "xtol": 0.03, "ftol": 1e-3},
    )
    print(f"{len(rows)} points, shipped: {error(rows, data, shipped):.4f}  {shipped}")
    print(f"found: {best.fun:.4f}  {host_of(best.x)}")


if __name__ == "__main__":
    main()
