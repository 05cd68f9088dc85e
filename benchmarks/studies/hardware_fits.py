"""Fit the entries of ``penstock hardware`` that come from published measurements, and write their
files.

Run ``PYTHONPATH=. python benchmarks/studies/hardware_fits.py ../shared/data``. No row is copied:
each file holds the parameters of a fit.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from real_runs import Deployment, Link

import penstock as ps
from paper.batches import draw_batches
from paper.layer_times import read_llmservingsim
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.fit import fit
from penstock.system.batch_time_file import write_batch_time

TARGET = Path(ps.__file__).parent / "system" / "hardware_files"
CHAT = ps.Workload.preset("azure-conv").with_rate(1.0, arrivals="poisson")
"""Contexts as long as these are what the fits of composition are for."""

SPLITWISE = (
    "runs of whole models profiled for Splitwise (Patel et al., ISCA 2024), batches of up to "
    "16,384 tokens"
)
LLMSERVINGSIM = (
    "LLMServingSim's layer profiles (Cho et al.), batches drawn with the lengths of Azure "
    "conversations"
)
YEARS = {SPLITWISE: 2024, LLMSERVINGSIM: 2026}
"""Of publication; the profiles of LLMServingSim say when they were made."""
MOST_TOKENS = 16_384
"""Of batches that are fitted: larger ones were measured to take less."""
MOST_BIAS = 0.03
"""Of the sum of batch times: fits that are further off are left out."""
CARDS = {"a100": "A100 80 GB", "h100": "H100 80 GB"}
PRO = "RTX PRO 6000"
PROFILES = (
    (
        "llama-3.1-8b-rtx4090-tp1",
        "Llama-3.1-8B",
        "RTX 4090",
        "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1",
        32,
        0,
    ),
    (
        "llama-3.1-8b-rtxpro6000-tp1",
        "Llama-3.1-8B",
        "RTX PRO 6000",
        "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1",
        32,
        0,
    ),
    ("qwen3-32b-rtxpro6000-tp1", "Qwen3-32B", PRO, "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp1", 64, 0),
    ("qwen3-32b-rtxpro6000-tp2", "Qwen3-32B", PRO, "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2", 64, 5_120),
)

Found = tuple[str, str, str, int, str, str, str, MeasuredBatches]
"""File name, language model, accelerator, tensor parallel, what was measured, licence, model to
fit, the batches.
"""


def runs(file: Path, model: str, card: str, degree: int) -> MeasuredBatches:
    """Read Splitwise's profile: each row is the prefill of all prompts, and the mean decode."""
    rows = pl.read_csv(file).filter(model=model, hardware=card, tensor_parallel=degree)
    many, prompt = rows["batch_size"].to_numpy(), rows["prompt_size"].to_numpy()
    nothing = np.zeros(rows.height)
    context = many * (prompt + rows["token_size"].to_numpy() / 2)
    return MeasuredBatches(
        seconds=np.concatenate([rows["prompt_time"], rows["token_time"]]) / 1e3,
        tokens=np.concatenate([many * prompt, many]),
        prefill_tokens=np.concatenate([many * prompt, nothing]),
        decode_tokens=np.concatenate([nothing, many]),
        requests=np.concatenate([many, many]),
        squares=np.concatenate([many * prompt**2, nothing]),
        pairs=np.zeros(2 * rows.height),
        context=np.concatenate([nothing, context]),
        source=f"{file.name} ({model}, {card}, tensor parallel {degree})",
        sweep=True,
    )


def whole_models(data: Path) -> Iterator[Found]:
    """Yield Splitwise's runs of whole models."""
    file = data / "profiling" / "splitwise_sim" / "perf_model.csv"
    for name, label, degrees in (
        ("llama2-70b", "Llama-2-70B", (2, 4, 8)),
        ("bloom-176b", "BLOOM-176B", (8,)),
    ):
        for card, degree in itertools.product(CARDS, degrees):
            batches = runs(file, name, f"{card}-80gb", degree).up_to(MOST_TOKENS)
            yield (
                f"{label.lower()}-{card}-tp{degree}",
                label,
                CARDS[card],
                degree,
                SPLITWISE,
                "MIT",
                "composition",
                batches,
            )


def layers_with_attention(data: Path) -> Iterator[Found]:
    """Yield batches drawn from LLMServingSim's profiles."""
    rows = CHAT.requests(4_000)
    for name, model, accelerator, folder, layers, hidden in PROFILES:
        degree = int(folder[-1])
        profile = read_llmservingsim(data / "profiling" / "llmservingsim" / folder, layers)
        link = Link(16e9, 20e-6, token_bytes=2 * hidden)  # as of the published deployment
        drawn = draw_batches(
            rows.prompt_tokens,
            rows.output_tokens,
            token_budget=2_048,
            max_batch_size=256,
            count=4_000,
            seed=0,
        )
        batches = Deployment(profile, degree, link=link).measured(drawn)
        exchange = (
            "; exchange between them at 16 GB/s and 20 us, as in the published deployment"
            if degree > 1
            else ""
        )
        yield (
            name,
            model,
            accelerator,
            degree,
            LLMSERVINGSIM + exchange,
            "MIT",
            "composition",
            batches,
        )


def main(data: Path) -> None:
    """Write a file for each, and say how well it fits."""
    for kind in (whole_models, layers_with_attention):
        for name, model, accelerator, degree, source, licence, family, batches in kind(data):
            found = fit(batches, family)
            model_of = found.model
            warnings = [warning for warning in found.warnings if "extrapolated" in warning]
            if isinstance(model_of, ps.Composition) and not np.any(batches.pairs):
                warnings.append(
                    "no prompt was cut in these measurements: to cut one is taken to cost nothing"
                )
                # No prompt was cut, so the cost of a token before it was not seen: cuts are taken
                # to cost nothing.
                model_of = dataclasses.replace(
                    model_of, cross_attention=2 * model_of.self_attention
                )
            if abs(found.bias) > MOST_BIAS or (
                isinstance(model_of, ps.Composition) and not any(model_of.of_decodes)
            ):
                print(
                    f"{name:36} left out: bias {found.bias:+.1%}, or decodes cost nothing for "
                    "their context"
                )
                (TARGET / f"{name}.yaml").unlink(missing_ok=True)
                continue
            many = (
                f"{degree} {accelerator}, tensor parallel {degree}"
                if degree > 1
                else f"one {accelerator}"
            )
            file = found.as_file(f"{model} on {many}", licence)
            said = {
                "model": found.name,
                "batches": found.n,
                "tokens": [int(batches.tokens.min()), int(batches.tokens.max())],
                "outliers": int(found.outliers.sum()),
                "r2": round(found.r2, 4),
                "r2_without_outliers": round(found.r2_without_outliers, 4),
                "mean_absolute_error": round(found.mean_absolute_error, 4),
                "error_of_95_in_100_within": round(
                    float(np.quantile(np.abs(found.errors), 0.95)), 4
                ),
                "bias": round(found.bias, 4),
                "warnings": warnings,
            }
            facts = {
                **vars(file),
                "batch_time": model_of,
                "source": source,
                "model": model,
                "fit": said,
            }
            facts["accelerator"] = accelerator
            facts["year"] = next(year for known, year in YEARS.items() if source.startswith(known))
            write_batch_time(
                TARGET / f"{name}.yaml", type(file)(**facts | {"tensor_parallel": degree})
            )
            print(
                f"{name:36} {found.name:22} R2 {found.r2:.4f}  mean error "
                f"{found.mean_absolute_error:.1%}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
