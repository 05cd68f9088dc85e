"""Predict four real runs of vLLM from layer profiles, and compare.

The runs and the profiles are LLMServingSim's (MIT): 300 ShareGPT requests at about 10 per second
into vLLM 0.19.0 on an RTX 4090 and on one or two RTX PRO 6000, and times of each model's layers on
these cards. Nothing is fitted to a run: the batch-time model comes from the profile, the limits
from the engine's configuration, what arrives is what arrived.

Run ``PYTHONPATH=. python benchmarks/studies/real_runs.py ../shared/data``; it prints the tables of
docs/real-runs.md.
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl

import penstock as ps
from paper.batches import Batches, draw_batches
from paper.layer_times import Grid, LayerTimes, read_llmservingsim
from penstock.inputs.arrays import Floats
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.families import Linear, known_terms
from penstock.measuring.fitting.relative_errors import Judged, seconds_of
from penstock.measuring.fitting.robust import apply, solve
from penstock.system.measured_times import Measured

METRICS = ("ttft_s", "tpot_s", "e2e_s")
STATISTICS = {
    "mean": np.mean,
    **{f"p{q}": (lambda x, q=q: np.percentile(x, q)) for q in (50, 90, 99)},
}


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins accelerators: bytes per second that each sends and receives at once, seconds that
    each exchange takes, however small, and bytes of a token's activations.
    """

    bandwidth: float
    latency: float
    token_bytes: float

    def exchange(self, tokens: Floats) -> Floats:
        """Return the seconds to send the activations of so many tokens."""
        return self.latency + tokens * (self.token_bytes / self.bandwidth)


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A model on accelerators: the times of its layers on one, and what the others change.

    ``tensor_parallel`` of them share every layer. ``data_parallel`` of them share the experts, each
    with requests of its own, all in step: a batch is what all of them do in one step. ``experts``
    are seconds of one layer's by tokens and experts at work.
    """

    profile: LayerTimes
    tensor_parallel: int = 1
    data_parallel: int = 1
    link: Link | None = None
    experts: Grid | None = None

    def of(self, batches: Batches) -> Floats:
        """Return the seconds of each batch."""
        ranks = dealt(batches, self.data_parallel)
        seconds = self.profile.of(ranks) + self.exchange(ranks.tokens)
        loads = ranks.tokens.reshape(-1, self.data_parallel)
        slowest = seconds.reshape(loads.shape).max(axis=1)
        return slowest + self.of_experts(loads.sum(axis=1), loads.max(axis=1))

    def linear(self, loads: Floats) -> Floats:
        """Return the seconds of all layers but attention."""
        share = loads / self.data_parallel
        dense = self.profile.without_attention(share) + self.exchange(share)
        return dense + self.of_experts(loads, share)

    def exchange(self, loads: Floats) -> Floats:
        """Return the seconds of a ring: each passes 2 (p - 1)/p of the activations on, after two
        layers.
        """
        p = self.tensor_parallel
        if p == 1 or self.link is None:
            return np.zeros(loads.size)
        return (2 * self.profile.layers + 1) * self.link.exchange(2 * (p - 1) / p * loads)

    def of_experts(self, total: Floats, largest: Floats) -> Floats:
        """Return the seconds of all layers' experts given tokens in all, and on the fullest rank.

        Routing is taken as uniform: of E experts of which each token takes k, E (1 - (1 -
        k/E)^tokens) are at work, on each of r ranks the r-th part of them, with the r-th part of
        the work. Profiles go from one token, k, to all experts, E.
        """
        if self.experts is None:
            return np.zeros(total.size)
        r, k, experts = self.data_parallel, *self.experts.axes[1][[0, -1]]
        at_work = experts * (1 - (1 - k / experts) ** total)
        seconds = self.experts(total / r, at_work / r)
        if r > 1 and self.link is not None:  # activations go to all ranks, and results come back
            seconds = seconds + 2 * self.link.exchange((r - 1) * largest)
        return self.profile.layers * seconds

    def measured(self, batches: Batches) -> MeasuredBatches:
        """Return batches with their seconds, as if they had been measured."""
        return MeasuredBatches(
            self.of(batches),
            batches.tokens,
            prefill_tokens=batches.prefill,
            decode_tokens=batches.decodes,
            requests=batches.requests,
            squares=batches.squares,
            pairs=batches.pairs,
            context=batches.context,
            sweep=True,
            averaged=True,
        )


def dealt(batches: Batches, ranks: int) -> Batches:
    """Deal each batch out to so many ranks: prompts in turn, decodes evenly; ``ranks`` batches for
    one.
    """
    first = np.searchsorted(batches.batch, np.arange(batches.decodes.size))
    turn = np.arange(batches.batch.size) - first[batches.batch]
    batch = batches.batch * ranks + turn % ranks
    order = np.argsort(batch, kind="stable")
    share = np.floor((batches.decodes[:, None] + np.arange(ranks)) / ranks)
    each = (batches.context / np.maximum(batches.decodes, 1))[:, None]
    longest = np.where(np.arange(ranks) == 0, batches.longest[:, None], each)
    longest = np.where(share > 0, longest, 0.0)
    by_rank = share.ravel(), (share * each).ravel(), longest.ravel()
    return Batches(*by_rank, batch[order], batches.new[order], batches.before[order])


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted(Judged):
    """A model fitted to a deployment, and batches that were not used to fit it."""

    model: ps.Composition
    batches: MeasuredBatches
    predicted: Floats


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


def deployed(run: RealRun, data: Path) -> Deployment:
    """Return what a run's model takes on its cards."""
    folder = data / "profiling" / "llmservingsim" / run.profile
    experts = None
    if (file := folder / "moe.csv.gz").exists():
        rows = pl.read_csv(file)
        at = rows.select("tokens", "activated_experts").to_numpy()
        experts = Grid(at, rows["time_us"].to_numpy() / 1e6)
    profile = read_llmservingsim(folder, run.layers)
    return Deployment(profile, int(run.profile[-1]), run.data_parallel, run.link, experts)


def fitted(run: RealRun, data: Path, seed: int = 0) -> Fitted:
    """Fit a `Composition` to batches such as a run's server forms for requests as long as its own.

    Its linear part is the profile's own by token load, plus what a line with bends at powers of two
    explains of the rest: what attention takes at least, the head. The costs are those of least
    squared relative error, none negative; then all are scaled, so that the seconds of the batches
    drawn are right in sum.
    """
    deployment, rows = deployed(run, data), recorded(run, data)
    drawn, others = (
        deployment.measured(
            draw_batches(
                rows["prompt"].to_numpy(),
                rows["output"].to_numpy(),
                token_budget=TOKEN_BUDGET,
                max_batch_size=run.max_batch_size,
                kv_tokens=run.memory.tokens if run.memory else np.inf,
                count=4_000,
                seed=each,
            )
        )
        for each in (2 * seed, 2 * seed + 1)
    )
    profiled = deployment.profile.tokens * run.data_parallel
    loads = np.append(profiled[profiled < TOKEN_BUDGET], TOKEN_BUDGET)
    linear = deployment.linear(loads)
    bent = Linear("table", tuple((2.0 ** np.arange(np.log2(TOKEN_BUDGET) + 1)).tolist()))
    terms = known_terms(drawn, split=True)
    del terms["with_prefill"]  # what graphs save is in no profile of layers
    line = bent.columns(drawn.tokens)
    columns = np.column_stack((line, *terms.values()))
    known = np.interp(drawn.tokens, loads, linear)
    costs = solve(columns, drawn.seconds - known, 1 / drawn.seconds)
    in_sum = float(drawn.seconds.sum() / (known + apply(columns, costs)).sum())
    with_line = in_sum * (linear + apply(bent.columns(loads), costs[: line.shape[1]]))
    named = dict(zip(terms, (in_sum * costs[line.shape[1] :]).tolist(), strict=True))
    model = ps.Composition(Measured(loads.tolist(), with_line.tolist()), **named)
    return Fitted(model, others, seconds_of(model, others))


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
