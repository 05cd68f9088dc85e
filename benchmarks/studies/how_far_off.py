"""How far off batch times from shapes and kernels are, on InferenceX points.

    python benchmarks/studies/how_far_off.py ../shared/data

Each point is a closed loop of `batch_size` requests, simulated: ten requests for each in flight,
all of the first at once, lengths evenly between 80% and 100% of those named. The same point occurs
up to three times in the file, under several names; it counts once.

SGLang's points of Qwen3 (`AT_ONCE`) are of another kind: TTFT grows as the requests in flight, and
is that of equal lengths which begin and end together. They are simulated so.

Constants of the host (`host_fits.py`) and the floor of latent attention were fitted to every second
row with fewer than 8,000 output tokens of the models that `hosts.yaml` names; the host of vLLM 0.12
to every second row of Qwen3-32B. Nothing was fitted to the B200, nor to rows that state no
precision but those of Qwen3-32B.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock.errors import InputError
from penstock.simulation.simulate import simulate
from penstock.system.engines import ENGINES
from penstock.system.gpu_memory import GIB
from penstock.system.models.batch_times import LayerTimes
from penstock.system.models.config import read_shape
from penstock.system.models.gpus import known_gpu
from penstock.system.models.hosts import Host, engine_fit
from penstock.system.scheduler import GpuBytes
from penstock.system.server import Server
from penstock.workload.workload import Workload

CONFIGS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-8B",
}
"""Models whose config has another name; others have their own."""

ENGINES_HERE = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
TOKEN_BUDGET = 8192
SLOTS = 1024
AT_ONCE = {("sglang", "Qwen/Qwen3-32B"), ("sglang", "Qwen/Qwen3-235B-A22B-FP8")}
"""Engines and models whose points are of equal lengths, all sent at once."""

TOO_FAST = 0.75
"""Share of the FLOP/s of the sheet that no server reaches end to end: a row that says so was not
measured as it says (cached prefixes, fewer tokens)."""

DEPLOYED = ("backend", "backend_version", "model_path", "system", "precision")
SAME = ("backend", "system", "precision", "tp_size", "isl", "osl", "batch_size", "ttft_2", "tpot_3")


def points(data: Path) -> pl.DataFrame:
    """Return the aggregated points, each once."""
    path = data / "real_runs/inferencex_points/points.csv"
    table = pl.read_csv(path, infer_schema_length=None).filter(pl.col("mode") == "agg")
    table = table.with_columns(
        ttft_2=pl.col("silicon_ttft_ms").round_sig_figs(2),
        tpot_3=pl.col("silicon_tpot_ms").round_sig_figs(3),
    )
    return table.unique(SAME, keep="first", maintain_order=True)


@functools.cache
def times_of(
    data: Path,
    engine: str,
    version: str | None,
    model: str,
    system: str,
    precision: str | None,
    tp: int,
    ep: int,
    host: Host,
) -> LayerTimes:
    """Return the layers' times of a model on its GPUs."""
    name = CONFIGS.get(model, model.replace("/", "--"))
    shape = read_shape(data / f"models/{name}_config.json")
    if shape.stored.experts != shape.stored.dense:
        # Published in 4 bits, whatever the row calls it, or converted to those of the GPU.
        converted = shape.stored.experts == "int4" and "fp4" in known_gpu(system).sheet.flops
        precision = "fp4" if converted and precision == "fp4" else None
    ep = ep if shape.experts is not None else 1
    shape.check_split(tp, ep)
    # NVIDIA's checkpoints ask for it, and TensorRT-LLM serves none but theirs in fewer bits.
    own = shape.stored.dense == "bf16" and precision in ("fp8", "fp4") and engine == "trtllm"
    kv = "fp8" if own or model.startswith("nvidia/") else None
    gpu = known_gpu(system, version if engine == "vllm" else None)
    return LayerTimes(shape, gpu, shape.numbers(precision, kv), tp, ep, host)


def served(times: LayerTimes, engine_name: str, token_budget: int = TOKEN_BUDGET) -> Server:
    """Return the server, with the KV memory that its engine would have."""
    engine, gpu, tp = ENGINES[engine_name], times.gpu, times.tensor_parallel
    weights = times.shape.weights_bytes(times.numbers, tp)
    overhead = GIB + 100 * 2**10 * token_budget
    room = GpuBytes(gpu.sheet.memory_gib * GIB, weights, overhead, token_budget, tp)
    rule = engine.memory.gpu_rule
    assert rule is not None
    left = rule.left(room, rule.share)
    tokens = int(left / times.shape.kv_bytes_per_token(times.numbers, tp))
    if tokens < token_budget:
        raise InputError("does not fit on so many GPUs")
    batch_time = times.composition(token_budget + SLOTS)
    return Server(batch_time, token_budget, SLOTS, engine, kv_tokens=tokens)


def predicted(row: dict[str, Any], data: Path, host: Host | None = None) -> dict[str, float]:
    """Return TTFT and TPOT in ms of a point, by a simulated closed loop."""
    engine = ENGINES_HERE[row["backend"]]
    host = host or engine_fit(engine).host_of(row["backend_version"])
    if row["attention_dp_size"] not in (None, 1):
        raise InputError("attention is not split but copied (data parallel), which is not modelled")
    split = (row["tp_size"], max(row["moe_ep_size"] or 1, 1))
    key = (*(row[name] for name in DEPLOYED), *split)
    times = times_of(data, *key, host)
    flying = row["batch_size"]
    # TensorRT-LLM splits no prompt, and is started with room for the longest beside all decodes.
    least = row["isl"] + flying + 64 if row["backend"] == "trtllm" else 0
    server = served(times, engine, max(TOKEN_BUDGET, least))
    rng = np.random.default_rng(0)
    at_once = (row["backend"], row["model_path"]) in AT_ONCE
    count, shortest = (flying, 1.0) if at_once else (max(10 * flying, 20), 0.8)
    prompt = rng.integers(int(shortest * row["isl"]), row["isl"] + 1, count)
    output = rng.integers(int(shortest * row["osl"]), row["osl"] + 1, count)
    run = simulate(Workload.from_arrays(None, prompt, output).with_clients(flying), server)
    rows = run.rows
    assert rows is not None
    ttft = (rows.first_token - rows.arrival) * run.tick_s
    tpot = (rows.finish - rows.first_token) * run.tick_s / (output - 1)
    return {"ttft": 1e3 * (ttft.mean() + host.front_s), "tpot": 1e3 * tpot.mean()}


def busy_share(row: dict[str, Any], data: Path) -> float:
    """Return the share of the sheet's FLOP/s that the measured throughput needs."""
    split = (row["tp_size"], max(row["moe_ep_size"] or 1, 1))
    key = (*(row[name] for name in DEPLOYED), *split)
    times = times_of(data, *key, Host())
    seconds = (row["silicon_ttft_ms"] + row["silicon_tpot_ms"] * (row["osl"] - 1)) / 1e3
    tokens = row["batch_size"] / seconds * 0.9 * (row["isl"] + row["osl"])
    flops = tokens * times.shape.flops_per_token(row["isl"] / 2)
    return flops / (row["tp_size"] * times._flops(times.numbers.dense))


def compared(data: Path) -> pl.DataFrame:
    """Return every point with its prediction, or why there is none."""
    answers = []
    for row in points(data).iter_rows(named=True):
        answer: dict[str, Any] = {"ttft": None, "tpot": None, "why": None, "busy": None}
        try:
            answer |= predicted(row, data)
            answer["busy"] = busy_share(row, data)
        except InputError as error:
            answer["why"] = str(error)
        answers.append(row | answer)
    table = pl.DataFrame(answers, infer_schema_length=None)

    def seconds(ttft: str, tpot: str) -> pl.Expr:
        return pl.col(ttft) + pl.col(tpot) * (pl.col("osl") - 1)

    series = ("backend", "backend_version", "model_path", "system", "precision", "tp_size")
    most = pl.col("batch_size") == pl.col("batch_size").max().over(*series, "isl", "osl")
    slower = seconds("ttft", "tpot") / seconds("silicon_ttft_ms", "silicon_tpot_ms")
    return table.with_columns(
        off_ttft=pl.col("ttft") / pl.col("silicon_ttft_ms"),
        off_tpot=pl.col("tpot") / pl.col("silicon_tpot_ms"),
        off_rate=pl.when(most).then(1 / slower),
    )


def errors(table: pl.DataFrame) -> dict[str, Any]:
    """Return medians of errors, and the factor that nine of ten are within."""
    answer: dict[str, Any] = {"rows": table.height}
    for what in ("tpot", "ttft", "rate"):
        off = table[f"off_{what}"].drop_nulls()
        answer[what] = f"{(off - 1).abs().median():.1%}" if off.len() else "-"
        answer[f"{what} bias"] = f"{off.median() - 1:+.0%}" if off.len() else "-"
        answer[f"{what} x"] = f"{float(np.exp(off.log().abs().quantile(0.9))):.2f}"
    return answer


def show_batch_rates(table: pl.DataFrame) -> None:
    """Print the factors that half and nine of ten throughputs are within, by engine: without rows
    in which requests waited most of their time, where memory or a limit that is not known was
    measured.
    """
    qwen = pl.col("model_path").str.contains("Qwen3-32B")
    told = pl.col("precision").is_not_null() & (pl.col("system") != "b200_sxm")
    old = pl.col("backend_version").fill_null("") == "0.12.0"
    waited = pl.col("silicon_ttft_ms") > pl.col("silicon_tpot_ms") * (pl.col("osl") - 1)
    for engine in ENGINES_HERE:
        rows = table.filter((pl.col("backend") == engine) & (qwen | told & ~old) & ~waited)
        off = rows["off_rate"].drop_nulls().log().abs()
        half, most = (float(np.exp(off.quantile(share))) for share in (0.5, 0.9))
        print(f"{engine}: {off.len()} throughputs, half within {half:.3f}, 90% within {most:.3f}")


def show(title: str, table: pl.DataFrame, by: tuple[str, ...] = ()) -> None:
    """Print errors of a part of the points, in all and by what tells them apart."""
    print(f"\n## {title}")
    rows: list[dict[str, Any]] = [dict.fromkeys(by, "all") | errors(table)]
    if by:
        for key, part in table.group_by(*by, maintain_order=True):
            rows.append(dict(zip(by, map(str, key), strict=True)) | errors(part))
    with pl.Config(tbl_rows=100, tbl_cols=30, tbl_width_chars=200, fmt_str_lengths=34) as config:
        config.set_tbl_hide_column_data_types(True).set_tbl_formatting("ASCII_MARKDOWN")
        config.set_tbl_hide_dataframe_shape(True)
        print(pl.DataFrame(rows))


def main() -> None:
    """Print what was predicted, how well, and what was not."""
    table = compared(Path(sys.argv[1]))
    refused = table.filter(pl.col("why").is_not_null())
    print(f"{table.height} points, {refused.height} without an answer:")
    for key, part in refused.group_by("backend", "model_path", "why", maintain_order=True):
        print(f"  {part.height:3} {key[0]} {key[1]}: {key[2]}")
    table = table.filter(pl.col("why").is_null())
    told = pl.col("precision").is_not_null()
    left_out = pl.col("model_path").str.contains("Qwen3-32B") | (pl.col("system") == "b200_sxm")
    main_rows = table.filter(told & ~left_out & (pl.col("backend") != "trtllm"))
    by = ("backend", "backend_version", "system", "model_path", "precision")
    show("vLLM and SGLang on H100 and H200, precision stated", main_rows, by)
    possible = pl.col("busy") < TOO_FAST
    show("the same, without rows faster than the units", main_rows.filter(possible))
    fitted = pl.col("backend_version").is_null() | (pl.col("backend_version") != "0.12.0")
    show("the same, without vLLM 0.12", main_rows.filter(fitted))
    for engine in ("vllm", "sglang"):
        rows = main_rows.filter(possible & fitted & (pl.col("backend") == engine))
        show(f"{engine}, the versions that constants were fitted to", rows)
    show("TensorRT-LLM", table.filter(told & ~left_out & (pl.col("backend") == "trtllm")), by)
    show("precision not stated, taken as published", table.filter(~told & ~left_out), by)
    show("left out: Qwen3-32B", table.filter(pl.col("model_path").str.contains("Qwen3-32B")), by)
    show("left out: B200", table.filter(pl.col("system") == "b200_sxm"), by)
    show_batch_rates(table)


if __name__ == "__main__":
    main()
