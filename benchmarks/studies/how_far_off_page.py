"""Write docs/how-far-off.md: what is predicted of real runs, without rows and with three of them.

    python benchmarks/studies/how_far_off_calibrated.py ../shared/data vllm CAL/vllm.parquet
    aic/bin/python benchmarks/studies/aiconfigurator_points.py ../shared/data aic.json
    python benchmarks/studies/how_far_off_page.py ../shared/data CAL aic.json

``CAL`` has what the first says of each engine. To be run again at each change of kernel times.
"""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from how_far_off import CONFIGS, DEPLOYED, ENGINES_HERE, compared
from how_far_off_calibrated import CONTRADICTORY, ONE_LEFT_OUT, summary

from penstock.system.models.config import read_shape
from penstock.system.models.gpus import known_gpu
from penstock.system.models.hosts import engine_fit

PAGE = Path(__file__).parents[2] / "docs" / "how-far-off.md"
TEXT = Path(__file__).with_suffix(".md")
METRICS = ("tpot", "ttft", "rate")
MOST_AT_ONCE = 512  # requests in flight, from which on vLLM's limits are not known


def kind_of(data: Path, model: str) -> str:
    """Return what decides a model's kernels."""
    shape = read_shape(data / f"models/{CONFIGS.get(model, model.replace('/', '--'))}_config.json")
    if shape.latent is not None:
        return "experts, latent attention"
    return "dense" if shape.experts is None else "experts"


def cell(off: pl.Series) -> str:
    """Return median and p90 of the errors."""
    errors = (off.drop_nulls() - 1).abs()
    if errors.is_empty():
        return "-"
    return f"{errors.median():.1%}, {errors.quantile(0.9):.0%}"


def held(rows: pl.DataFrame) -> str:
    """Return the share of TPOT and TTFT within the factors that are given."""
    shares = []
    for metric in ("tpot", "ttft"):
        factors = [engine_fit(ENGINES_HERE[backend]).within[metric] for backend in rows["backend"]]
        off = rows[f"off_{metric}"].log().abs().to_numpy()
        shares.append(float((off <= np.log(factors)).mean()))
    return " / ".join(f"{share:.0%}" for share in shares)


def blind(table: pl.DataFrame) -> str:
    """Return the table of predictions without rows, by engine, GPU and kind of model."""
    lines = [
        "| engine | GPU | model | points | TPOT: median, 90% | TTFT | throughput | held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for backend, name in ENGINES_HERE.items():
        here = table.filter(pl.col("backend") == backend)
        parts = here.partition_by("system", "kind", maintain_order=True)
        for rows in (here, *sorted(parts, key=lambda part: (part["system"][0], part["kind"][0]))):
            whole = rows is here
            gpu = "all" if whole else known_gpu(rows["system"][0]).name
            what = [engine_fit(name).title, gpu, "all" if whole else rows["kind"][0], rows.height]
            cells = [cell(rows[f"off_{metric}"]) for metric in METRICS]
            lines.append(f"| {' | '.join(map(str, what))} | {' | '.join(cells)} | {held(rows)} |")
    return "\n".join(lines)


def beside(table: pl.DataFrame, answers: Path) -> str:
    """Return the table of both tools' medians on the same points."""
    keys = [*DEPLOYED, "tp_size", "moe_ep_size", "isl", "osl", "batch_size"]
    asked = pl.DataFrame(json.loads(answers.read_text()), infer_schema_length=None)
    asked = asked.filter(pl.col("ttft").is_not_null()).with_columns(
        *(pl.when(pl.col(name) != "").then(name).cast(table.schema[name]) for name in keys),
    )
    theirs = asked.select(*keys, aic_ttft="ttft", aic_tpot="tpot")
    theirs = theirs.unique(keys, keep="first", maintain_order=True)
    both = table.join(theirs, on=keys, nulls_equal=True)
    seconds = pl.col("aic_ttft") + pl.col("aic_tpot") * (pl.col("osl") - 1)
    truth = pl.col("silicon_ttft_ms") + pl.col("silicon_tpot_ms") * (pl.col("osl") - 1)
    both = both.with_columns(
        aic_off_ttft=pl.col("aic_ttft") / pl.col("silicon_ttft_ms"),
        aic_off_tpot=pl.col("aic_tpot") / pl.col("silicon_tpot_ms"),
        aic_off_rate=pl.when(pl.col("off_rate").is_not_null()).then(truth / seconds),
    )
    lines = [
        "| engine | points | Penstock: TPOT | TTFT | throughput "
        "| AIConfigurator: TPOT | TTFT | throughput |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for backend, name in ENGINES_HERE.items():
        rows = both.filter(pl.col("backend") == backend)
        cells = [cell(rows[f"{who}off_{metric}"]) for who in ("", "aic_") for metric in METRICS]
        lines.append(f"| {engine_fit(name).title} | {rows.height} | {' | '.join(cells)} |")
    return "\n".join(lines)


def calibrated(folder: Path) -> str:
    """Return the lines of calibrations."""
    lines = []
    for backend, name in ENGINES_HERE.items():
        table = pl.read_parquet(folder / f"{backend}.parquet")
        for (group, kind), part in table.group_by("group", "kind", maintain_order=True):
            never = "" if group == ONE_LEFT_OUT else ", never fitted"
            what = f"{engine_fit(name).title}{never}, {kind}"
            lines.append(f"| {what} {summary(part)}")
            rest = part.filter(~pl.col("deployment").str.starts_with(CONTRADICTORY))
            if 0 < rest.height < part.height:
                version = CONTRADICTORY.replace("vllm", "vLLM")
                lines.append(f"| {what}, without {version} {summary(rest)}")
    return "\n".join(lines)


def main() -> None:
    """Predict, compare, and write."""
    data, folder, answers = (Path(argument) for argument in sys.argv[1:4])
    table = compared(data).filter(pl.col("why").is_null())
    unknown = (pl.col("backend") == "vllm") & (pl.col("batch_size") >= MOST_AT_ONCE)
    kinds = {model: kind_of(data, model) for model in table["model_path"].unique()}
    table = table.filter(~unknown).with_columns(kind=pl.col("model_path").replace_strict(kinds))
    PAGE.write_text(
        TEXT.read_text(encoding="utf-8").format(
            aic_version="0.12",
            blind=blind(table),
            aic=beside(table, answers),
            calibrated=calibrated(folder),
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
