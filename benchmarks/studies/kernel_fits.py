"""Fit the kernel model to measured kernel times: what `system/models/kernel_times.yaml` ships.

    pip download --no-deps aiconfigurator-core==0.12.0  # and unzip it
    python benchmarks/studies/kernel_fits.py aiconfigurator_core/systems/data
    python benchmarks/studies/kernel_fits.py ../shared/data/profiling/aiconfigurator 0.19.0

Four rows of five are fitted, the fifth is held out, and errors are those of the fifth. Rows that
no model serves are left out: matrices with fewer than 512 columns or rows, 16,384 tokens and more.

Of the older version only what became another kernel is fitted: GEMMs and experts.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from scipy.optimize import least_squares

from penstock.system.models import kernels
from penstock.system.models.gpus import OUT, SHEETS, TYPICAL
from penstock.system.models.shape import BYTES

FOLDERS = {
    "a100-sxm": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm", "gb200": "gb200", "l40s": "l40s", "rtxpro6000": "rtx_pro_6000_server",
}  # fmt: skip
"""Where the tables of each GPU lie."""

NEWEST = "0.24.0"
OTHER_TABLES = {("l40s", "comm"): "0.22.0"}  # the only ones

L2_MB = {
    "a100-sxm": 40, "h100-sxm": 50, "h200-sxm": 50, "b200-sxm": 126, "b300-sxm": 126, "gb200": 126,
    "l40s": 96, "rtxpro6000": 128,
}  # fmt: skip
"""A call that is repeated finds a KV cache of this size there, one of a served model with its many
layers does not: decodes are fitted where it is much smaller or twice as large."""

LONGEST_START_US = 30.0
"""GEMMs whose smallest call takes longer were measured with the host that starts them, as those of
0.24 in blocks of fp8; a CUDA graph has no such wait, so those of another version stay."""

NAMES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "fp4"}
EXPERTS = NAMES | {"int4_wo": "int4", "w4a16_mxfp4": "mxfp4"}
UNITS = {"int4": "bf16", "mxfp4": "bf16"}  # widened before they are computed with
FEWEST_ROWS = 50
LONGEST_START_OF_EXPERTS_US = 80.0
"""The same of experts, which are several kernels: 0.19 timed those in MXFP4 with the host."""

SLOWER_THAN_BEFORE = {("h100-sxm", "fp8"), ("h200-sxm", "fp8")}
"""Experts whose kernel of 0.24 (FlashInfer's, through ModelOpt) takes 2 to 3.5 times as long as
that of 0.19, and longer than 16 bits: no server is left with it, so those of 0.19 stay."""

DEEPSEEK = {"hidden": 7168, "query_rank": 1536, "kv_rank": 512, "rope": 64, "plain": 128}

HEAD = """\
# Parameters of kernel times, by GPU and version of vLLM whose kernels were timed, fitted by
# benchmarks/studies/kernel_fits.py to measurements that ai-dynamo/aiconfigurator publishes
# (0.24 and 0.14: its wheel 0.12.0; 0.19: commit 095f58a; Apache-2.0; collectives of the L40S are
# of 0.22); errors are those of rows that were held out.
"""

LIMITS = {
    "memory": (0.05, 1.3),  # small matrices stay in the L2 cache, which is faster
    "compute": (0.02, 1.2),
    "attention": (0.02, 1.2),
    "sharpness": (1.0, 8.0),
    "growth": (0.5, 1.0),
    "uneven": (0.001, 0.9),
    "floor_us": (0.5, 500.0),
}
LIKELY = (1e-3, 100.0)


def fitted(
    predict: Callable[[dict[str, float], np.ndarray], np.ndarray],
    names: tuple[str, ...],
    seconds: np.ndarray,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return parameters, and errors on the rows that were held out."""
    rng = np.random.default_rng(0)
    held = rng.random(seconds.size) < 0.2
    rows = np.flatnonzero(~held)
    if rows.size > 12_000:
        rows = rng.choice(rows, 12_000, replace=False)
    start = np.log([(TYPICAL | {"uneven": 0.3})[name] for name in names])

    def off(logs: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.log(predict(dict(zip(names, np.exp(logs), strict=True)), at) / seconds[at])

    low = np.log([LIMITS.get(name, LIKELY)[0] for name in names])
    high = np.log([LIMITS.get(name, LIKELY)[1] for name in names])
    best = least_squares(off, start, args=(rows,), bounds=(low, high), loss="soft_l1", f_scale=0.1)
    error = np.abs(np.expm1(off(best.x, np.flatnonzero(held))))
    errors = {
        "rows": int(seconds.size),
        "median": round(float(np.median(error)), 3),
        "p90": round(float(np.quantile(error, 0.9)), 3),
    }
    return {n: float(f"{v:.3g}") for n, v in zip(names, np.exp(best.x), strict=True)}, errors


def path_of(root: Path, gpu: str, operation: str, table: str) -> Path:
    """Return where a table lies: as in the wheel, or in a folder for each version."""
    version = OTHER_TABLES.get((gpu, operation), version_of(gpu))
    plain = root / FOLDERS[gpu] / f"vllm_{version}"
    folder = plain if plain.exists() else root / FOLDERS[gpu] / operation / "vllm" / version
    return folder / f"{table}_perf.parquet"


def version_of(gpu: str) -> str:
    """Return which version of vLLM is fitted."""
    if len(sys.argv) > 2:
        return sys.argv[2]
    return "0.14.0" if gpu == "a100-sxm" else NEWEST


def flops_of(gpu: str, precision: str) -> float:
    """Return the FLOP/s of the units that compute with such weights."""
    return SHEETS[gpu].flops[UNITS.get(precision, precision.split("-")[0])]


def columns(table: pl.DataFrame, *names: str) -> list[np.ndarray]:
    """Return columns as numbers."""
    return [table[name].to_numpy().astype(float) for name in names]


def fit_gemm(gpu: str, root: Path) -> dict[str, Any]:
    """GEMMs, by precision."""
    sheet = SHEETS[gpu]
    rows = pl.read_parquet(path_of(root, gpu, "gemm", "gemm")).filter(
        (pl.col("n") >= 512)
        & (pl.col("k") >= 512)
        & (pl.col("m") <= 16384)
        & (pl.col("n") * pl.col("k") < 2**30)
    )
    answer = {}
    for dtype, precision in NAMES.items():
        table = rows.filter(pl.col("gemm_dtype") == dtype)
        if table.height < FEWEST_ROWS:
            continue
        m, n, k, ms = columns(table, "m", "n", "k", "latency")
        names: tuple[str, ...] = ("floor_us", "memory", "compute", "sharpness", "tile_ns")
        if precision != "bf16":
            names += ("activation",)
        flops, each = flops_of(gpu, precision), BYTES[precision]

        def predict(p, at, m=m, n=n, k=k, flops=flops, each=each):
            return kernels.gemm(sheet, p, flops, each, m[at], n[at], k[at])

        fit = fitted(predict, names, ms * 1e-3)
        if fit[0]["floor_us"] < LONGEST_START_US:
            answer[precision] = fit
    return answer


def fit_experts(gpu: str, root: Path) -> dict[str, Any]:
    """Experts, by precision; tokens go to some experts more often than to others.

    Of GPUs that have whole experts the tables time the busiest.
    """
    sheet = SHEETS[gpu]
    rows = pl.read_parquet(path_of(root, gpu, "moe", "moe")).filter(
        (pl.col("distribution") == "power_law_1.01")
        & (pl.col("inter_size") / pl.col("moe_tp_size") >= 128)
        & (pl.col("moe_ep_size") <= 8)
        & (pl.col("num_tokens") <= 16384)
        & ~pl.col("kernel_source").str.contains("w4a4mxfp4")  # of another format
    )
    answer = {}
    for dtype, precision in EXPERTS.items():
        table = rows.filter(pl.col("moe_dtype") == dtype)
        if table.height < FEWEST_ROWS:
            continue
        columns_of = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
        n, h, w, k, count = columns(table, *columns_of)
        tp, ep, ms = columns(table, "moe_tp_size", "moe_ep_size", "latency")
        names = ("floor_us", "memory", "compute", "sharpness", "activation", "spread", "uneven")
        flops, each = flops_of(gpu, precision), BYTES[precision]

        def predict(p, i, n=n, h=h, w=w / tp, k=k, count=count, ep=ep, flops=flops, each=each):
            layer = kernels.ExpertLayer(h[i], w[i], k[i], count[i], ep[i])
            tokens = n[i] * ep[i] ** p["uneven"]
            return kernels.experts(sheet, p, flops, each, tokens, layer)

        parameters, errors = fitted(predict, names, ms * 1e-3)
        del parameters["uneven"]  # of the table's choice of experts, and of no model's
        slow = (gpu, precision) in SLOWER_THAN_BEFORE and version_of(gpu) == NEWEST
        if parameters["floor_us"] < LONGEST_START_OF_EXPERTS_US and not slow:
            answer[precision] = parameters, errors
    return answer


def attention_rows(path: Path) -> pl.DataFrame:
    """Return rows of attention as models have it; a missing window is none."""
    rows = pl.read_parquet(path)
    if "window_size" not in rows.columns:
        rows = rows.with_columns(window_size=pl.lit(0))
    return rows.filter(
        pl.col("head_dim").is_in([64, 128])
        & pl.col("window_size").is_in([0, 128])
        & (pl.col("num_heads") <= 64)
        & (pl.col("num_heads") >= pl.col("num_key_value_heads"))
    )


def by_cache(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each precision of the KV cache that was timed, and its rows."""
    for dtype in ("bfloat16", "fp8"):
        table = rows.filter(pl.col("kv_cache_dtype") == dtype)
        if not table.is_empty():
            yield NAMES[dtype], table


def fit_prefill(gpu: str, root: Path) -> dict[str, Any]:
    """Attention of prompts, by the precision of the KV cache."""
    sheet = SHEETS[gpu]
    rows = attention_rows(path_of(root, gpu, "attention", "context_attention")).filter(
        (pl.col("isl") >= 64) & (pl.col("batch_size") * pl.col("isl") <= 65536)
    )
    answer = {}
    for precision, table in by_cache(rows):
        b, new, window, ms = columns(table, "batch_size", "isl", "window_size", "latency")
        h, kv, d = columns(table, "num_heads", "num_key_value_heads", "head_dim")
        tokens, pairs = (
            b * new,
            b * new * np.where(window > 0, np.minimum(new / 2, window), new / 2),
        )

        def predict(p, i, t=tokens, q=pairs, h=h, kv=kv, d=d):
            return kernels.prefill_attention(sheet, p, t[i], q[i], h[i], kv[i], d[i])

        names = ("floor_us", "memory", "compute", "sharpness", "block")
        answer[precision] = fitted(predict, names, ms * 1e-3)
    return answer


def fit_decode(gpu: str, root: Path) -> dict[str, Any]:
    """Attention of decodes, by the precision of the KV cache."""
    sheet = SHEETS[gpu]
    rows = attention_rows(path_of(root, gpu, "attention", "generation_attention")).filter(
        (pl.col("step") <= 32768) & (pl.col("batch_size") <= 512)
    )
    answer = {}
    for precision, table in by_cache(rows):
        b, step, window, ms = columns(table, "batch_size", "step", "window_size", "latency")
        h, kv, d = columns(table, "num_heads", "num_key_value_heads", "head_dim")
        seen = np.where(window > 0, np.minimum(step + 1, window), step + 1)
        each = BYTES[precision]
        moved = b * seen * 2 * kv * d * each / L2_MB[gpu] / 1e6
        not_cached = (moved < 1 / 16) | (moved > 2)
        b, seen, h, kv, d, ms = (column[not_cached] for column in (b, seen, h, kv, d, ms))

        def predict(p, i, b=b, seen=seen, h=h, kv=kv, d=d, each=each):
            return kernels.decode_attention(sheet, p, each, b[i], seen[i], h[i], kv[i], d[i])

        names = ("floor_us", "memory", "sharpness", "walk_ns", "head_ns")
        answer[precision] = fitted(predict, names, ms * 1e-3)
    return answer


def latent_weights(heads: np.ndarray) -> np.ndarray:
    """Return the weights of DeepSeek's attention with so many heads on a GPU."""
    d = DEEPSEEK
    copied = d["hidden"] * (d["query_rank"] + d["kv_rank"] + d["rope"])
    head = d["query_rank"] * 192 + d["kv_rank"] * 256 + 128 * d["hidden"]
    return copied + heads * head


def fit_latent(gpu: str, root: Path, phase: str) -> dict[str, Any]:
    """Latent attention with its projections, by the precision of these."""
    sheet = SHEETS[gpu]
    path = path_of(root, gpu, "mla", f"mla_{phase}_module")
    if not path.exists():
        return {}
    rows = pl.read_parquet(path).filter(pl.col("kv_cache_dtype") == "bfloat16")
    if phase == "context":
        small = (pl.col("batch_size") * pl.col("isl") <= 65536) & (pl.col("isl") >= 64)
        rows = rows.filter(small)
    else:
        rows = rows.filter((pl.col("step") <= 32768) & (pl.col("batch_size") <= 512))
    answer = {}
    for dtype, precision in NAMES.items():
        table = rows.filter((pl.col("gemm_type") == dtype) & (pl.col("num_heads") >= 8))
        if table.height < FEWEST_ROWS:
            continue
        h, b, isl, step, ms = columns(table, "num_heads", "batch_size", "isl", "step", "latency")
        if phase == "context":
            tokens, pairs, kept = b * isl, b * isl * isl / 2, b * isl * 576 * 2
            each_pair = h * 2 * (192 + 128)
        else:
            tokens, pairs, kept = b, b * step, b * step * 576 * 2
            each_pair = h * 2 * (576 + 512)
        flops, each = flops_of(gpu, precision), BYTES[precision]
        weights = latent_weights(h)

        def predict(p, i, w=weights, t=tokens, q=pairs, c=kept, e=each_pair, f=flops, by=each):
            moved = w[i] * by + c[i]
            return kernels.latent_attention(sheet, p, f, w[i], moved, t[i], q[i], e[i])

        names = ("floor_us", "memory", "compute", "attention", "sharpness", "token_ns")
        answer[precision] = fitted(predict, names, ms * 1e-3)
    return answer


def fit_all_reduce(gpu: str, root: Path) -> dict[str, Any]:
    """All-reduce inside one machine, from a CUDA graph."""
    sheet = SHEETS[gpu]
    rows = pl.read_parquet(path_of(root, gpu, "comm", "custom_allreduce")).filter(
        (pl.col("backend") == "vllm_graph") & (pl.col("message_size") <= 2**28)
    )
    numbers, gpus, ms = columns(rows, "message_size", "num_gpus", "latency")
    # Sizes count numbers of 16 bits: of as many, NCCL moves 8 bits in half of the time, and 16 bits
    # in the time of these.
    size = 2 * numbers
    names = ("floor_us", "per_gpu", "link", "growth", "partners")

    def predict(p, i):
        return kernels.all_reduce(sheet, p, size[i], gpus[i])

    return {"bf16": fitted(predict, names, ms * 1e-3)}


def main() -> None:
    """Fit, print, and write the parameters."""
    root, newest = Path(sys.argv[1]), len(sys.argv) == 2
    document = yaml.safe_load(OUT.read_text()) if OUT.exists() else {}
    for gpu in FOLDERS:
        if not path_of(root, gpu, "gemm", "gemm").exists():
            continue
        fits = {"gemm": fit_gemm(gpu, root), "experts": fit_experts(gpu, root)}
        if newest:
            fits |= {
                "prefill_attention": fit_prefill(gpu, root),
                "decode_attention": fit_decode(gpu, root),
                "latent_prefill": fit_latent(gpu, root, "context"),
                "latent_decode": fit_latent(gpu, root, "generation"),
                "all_reduce": fit_all_reduce(gpu, root),
            }
        version = version_of(gpu).rpartition(".")[0]
        document.setdefault(gpu, {})[version] = {
            operation: {precision: {**p, "errors": e} for precision, (p, e) in answers.items()}
            for operation, answers in fits.items()
            if answers
        }
        for operation, answers in fits.items():
            for precision, (p, errors) in answers.items():
                print(f"{gpu:9} {operation:18} {precision:9} {errors}  {p}", flush=True)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    OUT.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
