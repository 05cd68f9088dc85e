"""Predict four real runs of vLLM from layer profiles, and compare.

The runs and the profiles are LLMServingSim's (MIT): 300 ShareGPT requests at about 10 per second
into vLLM 0.19.0 on an RTX 4090 and on one or two RTX PRO 6000, and times of each model's layers on
these cards. Nothing is fitted to a run: the batch-time model comes from the profile, the limits
from the engine's configuration, what arrives is what arrived.

Run ``python -m docs.real_runs ../shared/data``; it prints the tables of docs/real-runs.md.
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from paper.layer_times import LayerFit, Link
from paper.profiles import read_llmservingsim

import penstock as ps

METRICS = ("ttft_s", "tpot_s", "e2e_s")
STATISTICS = {
    "mean": np.mean,
    **{f"p{q}": (lambda x, q=q: np.percentile(x, q)) for q in (50, 90, 99)},
}


@dataclasses.dataclass(frozen=True)
class RealRun:
    """A run, the profile of its model on its card, and its engine's configuration.

    ``link`` and ``data_parallel`` are of the deployment (``config.json`` beside each run: 16 GB/s,
    20 us).
    """

    name: str
    folder: str
    profile: str
    layers: int
    max_batch_size: int
    memory: ps.Memory | None = None
    link: Link | None = None
    data_parallel: int = 1


RUNS = (
    RealRun(
        "Llama-3.1-8B, RTX 4090",
        "RTX4090/Llama-3.1-8B",
        "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1",
        layers=32,
        max_batch_size=256,
        memory=ps.Memory(2_588, 16, prefix_caching=True),
    ),
    RealRun(
        "Llama-3.1-8B, RTX PRO 6000",
        "RTXPRO6000/Llama-3.1-8B",
        "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1",
        layers=32,
        max_batch_size=128,
    ),
    RealRun(
        "Qwen3-32B, TP 2, RTX PRO 6000",
        "RTXPRO6000/Qwen3-32B",
        "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2",
        layers=64,
        max_batch_size=128,
        link=Link(16e9, 20e-6, token_bytes=5_120 * 2),
    ),
    RealRun(
        "Qwen3-30B-A3B, DP 2 and EP 2, RTX PRO 6000",
        "RTXPRO6000/Qwen3-30B-A3B-Instruct-2507",
        "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1",
        layers=48,
        max_batch_size=2 * 128,  # each of two ranks
        link=Link(16e9, 20e-6, token_bytes=2_048 * 2),
        data_parallel=2,
    ),
)
TOKEN_BUDGET = 2_048


def recorded(run: RealRun, data: Path) -> pl.DataFrame:
    """Return what happened to each request: seconds since the first arrival, and tokens.

    Arrivals were stamped by another clock than the engine's; its offset is that of the request
    which the engine saw soonest after it was sent.
    """
    file = data / "real_runs" / "llmservingsim_bench" / run.folder / "vllm" / "requests.jsonl.gz"
    with gzip.open(file, "rt") as lines:
        rows = pl.DataFrame([json.loads(line) for line in lines])
    arrival = pl.col("arrival_time") + (pl.col("queued_ts") - pl.col("arrival_time")).min()
    start = arrival.min()
    return rows.select(
        arrival_s=arrival - start,
        first_token_s=pl.col("first_token_ts") - start,
        finish_s=pl.col("last_token_ts") - start,
        prompt=pl.col("input_toks"),
        output=pl.col("output_toks"),
    ).sort("arrival_s", maintain_order=True)


def fitted(run: RealRun, data: Path) -> LayerFit:
    """Return the batch-time model of a run's profile, for requests as long as those that come."""
    profile = read_llmservingsim(
        data / "profiling" / "llmservingsim" / run.profile,
        run.layers,
        data_parallel=run.data_parallel,
        link=run.link,
    )
    rows = recorded(run, data)
    return profile.composition(
        rows["prompt"],
        rows["output"],
        max_batch_size=run.max_batch_size,
        token_budget=TOKEN_BUDGET,
        kv_tokens=run.memory.tokens if run.memory else None,
    )


def predicted(run: RealRun, data: Path, batch_time: ps.BatchTime) -> pl.DataFrame:
    """Return what Penstock says of each request: columns as of `recorded`."""
    rows = recorded(run, data)
    server = ps.Server(
        batch_time, TOKEN_BUDGET, run.max_batch_size, policy="vllm", memory=run.memory
    )
    workload = ps.Workload.from_arrays(rows["arrival_s"].to_numpy(), rows["prompt"], rows["output"])
    found = ps.simulate(workload, server).requests.sort("request")
    seconds = {
        f"{name}_s": pl.col(f"{name}_ns") / 1e9 for name in ("arrival", "first_token", "finish")
    }
    return found.select(**seconds, prompt=pl.col("prompt_tokens"), output=pl.col("output_tokens"))


def metrics(rows: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return statistics of the latencies, seconds: from arrival to the first token, per further
    token, to the last.
    """
    columns = rows.with_columns(
        ttft_s=pl.col("first_token_s") - pl.col("arrival_s"),
        tpot_s=pl.when(pl.col("output") > 1).then(
            (pl.col("finish_s") - pl.col("first_token_s")) / (pl.col("output") - 1)
        ),
        e2e_s=pl.col("finish_s") - pl.col("arrival_s"),
    )
    return {
        m: {name: float(of(columns[m].drop_nulls().to_numpy())) for name, of in STATISTICS.items()}
        for m in METRICS
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.1f}"


def main(data: Path) -> None:
    """Print the tables."""
    print("| run | metric | " + " | ".join(STATISTICS) + " |")
    print("|---|---|" + "---|" * len(STATISTICS))
    models = []
    for run in RUNS:
        fit = fitted(run, data)
        models.append((run, fit))
        real, said = metrics(recorded(run, data)), metrics(predicted(run, data, fit.model))
        for metric in METRICS:
            pairs = [(real[metric][name], said[metric][name]) for name in STATISTICS]
            cells = [f"{_ms(a)} / {_ms(b)} ({100 * (b / a - 1):+.1f}%)" for a, b in pairs]
            print(
                f"| {run.name} | {metric.removesuffix('_s').upper()} | " + " | ".join(cells) + " |"
            )
    print()
    for run, fit in models:
        low, high = (100 * fit.quantiles[share] for share in (0.05, 0.95))
        print(f"| {run.name} | {low:+.1f}% .. {high:+.1f}% | {100 * fit.bias:+.2f}% |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data"))
