"""What AIConfigurator says of the points that `how_far_off.py` predicts: TTFT and TPOT, as JSON.

    python -m venv aic && aic/bin/pip install aiconfigurator==0.12.0
    aic/bin/python benchmarks/studies/aiconfigurator_points.py ../shared/data OUT.json

Every setting but those that a point states is its own default. Models that it does not know by name
get their config from a folder. What it refuses has the reason in place of times.
"""

import csv
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiconfigurator.cli.api import cli_estimate

CONFIGS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-8B",
}
QUANTISED = {"fp8": "fp8", "fp4": "nvfp4"}
"""Of models that are published in 16 bits, by the precision of a point."""

EVERY = 6
"""One point of so many is asked: each takes it about a second."""

KEYS = ("backend", "backend_version", "model_path", "system", "precision", "tp_size", "moe_ep_size",
        "isl", "osl", "batch_size")  # fmt: skip


def config_of(data: Path, model: str, folder: Path) -> str:
    """Return a folder with the config of a model."""
    place = folder / model.replace("/", "--")
    if not place.exists():
        place.mkdir(parents=True)
        name = CONFIGS.get(model, model.replace("/", "--"))
        shutil.copy(data / f"models/{name}_config.json", place / "config.json")
    return str(place)


def answered(row: dict[str, str], data: Path, folder: Path) -> dict[str, Any]:
    """Return what it says of a point."""
    path = config_of(data, row["model_path"], folder)
    plain = "quantization_config" not in json.loads((Path(path) / "config.json").read_text())
    quantised = QUANTISED.get(row["precision"]) if plain else None
    tensor, experts = int(row["tp_size"]), max(int(float(row["moe_ep_size"] or 1)), 1)
    mixture = "experts" in (Path(path) / "config.json").read_text()
    split = {"moe_tp_size": tensor // experts, "moe_ep_size": experts} if mixture else {}
    try:
        answer = cli_estimate(
            path, row["system"], backend_name=row["backend"], isl=int(row["isl"]),
            osl=int(row["osl"]), batch_size=int(row["batch_size"]), tp_size=tensor,
            gemm_quant_mode=quantised, **split,
        )  # fmt: skip
    except Exception as error:  # its reasons are of many kinds
        return {"why": f"{type(error).__name__}: {error}"[:200]}
    return {"ttft": float(answer.ttft), "tpot": float(answer.tpot)}


def main() -> None:
    """Ask, and write."""
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    answers: list[dict[str, Any]] = []
    number = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        (data / "real_runs/inferencex_points/points.csv").open() as file,
    ):
        for row in csv.DictReader(file):
            if row["mode"] != "agg" or float(row["attention_dp_size"] or 1) != 1:
                continue
            number += 1
            if number % EVERY == 0:
                answer = answered(row, data, Path(folder))
                answers.append({key: row[key] for key in KEYS} | answer)
    out.write_text(json.dumps(answers, indent=0))


if __name__ == "__main__":
    main()
