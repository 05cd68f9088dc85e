"""Deployments of InferenceX points, as a calibration reads them: rows, and the shape behind them.

Read by `prior_fits.py` and `how_far_off_calibrated.py`.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from how_far_off import AT_ONCE, CONFIGS, ENGINES_HERE, SLOTS, TOKEN_BUDGET, points

from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.laplace import Normal, Posterior, most_probable
from penstock.measuring.calibration.posterior import WholeRequests
from penstock.measuring.calibration.predict import predict, requests_of
from penstock.measuring.calibration.priors import Priors, shape_priors
from penstock.measuring.calibration.shape import ShapeBuild
from penstock.system.models.config import read_shape
from penstock.system.models.served import ServedModel, served_model

KEYS = ("backend", "backend_version", "model_path", "system", "precision", "tp_size", "moe_ep_size")
FEWEST = 6
"""Points that a deployment must have: three to fit, and as many to judge."""

BUDGETS = {"trtllm": 16384}
"""TensorRT-LLM was given a token budget with room for a whole prompt beside the decodes."""

Point = dict[str, Any]


class Deployment:
    """One engine with one model on some GPUs, and what was measured of it."""

    def __init__(
        self,
        data: Path,
        points: list[Point],
        kv: str | None = None,
        priors: Priors | None = None,
    ) -> None:
        self.data, self.points = data, points
        backend = points[0]["backend"]
        self.engine = ENGINES_HERE[backend]
        budget = BUDGETS.get(backend, TOKEN_BUDGET)
        served = served_of(data, points[0], kv)
        self.build = ShapeBuild(budget, SLOTS, self.engine, None, served=served)
        self.priors = priors or shape_priors(self.engine)
        server = self.build(self.priors.values(self.priors.normal.mean))[0]
        rows = [row_of(point, number) for number, point in enumerate(points)]
        self.sent = [requests_of(row, server) for row in rows]
        self.measured = np.log([[row["ttft_mean_s"], row["tpot_mean_s"]] for row in rows])

    @property
    def name(self) -> str:
        """Its engine, model and GPUs."""
        point = self.points[0]
        model = point["model_path"].rpartition("/")[2]
        version = point["backend_version"] or "-"
        gpus = f"{point['tp_size']} x {point['system']}"
        return f"{point['backend']} {version}, {model}, {gpus}, {point['precision']}"

    def predicted(self, which: list[int], theta: Floats) -> Floats:
        """Return logarithms of TTFT and time per output token of some points, in seconds."""
        server, overhead = self.build(self.priors.values(theta))
        times = [predict(self.sent[number], server, overhead) for number in which]
        return np.log([[time["ttft_mean_s"], time["tpot_mean_s"]] for time in times])

    def fit(
        self, which: list[int], prior: Normal | None = None, noise: dict[str, float] | None = None
    ) -> Posterior:
        """Return what some points say of its parameters."""
        known = self.measured[which]
        outputs = np.array([0.9 * self.points[number]["osl"] for number in which])
        requests = WholeRequests.of(np.exp(known), outputs)
        stray = requests.noise(noise or self.priors.noise)
        return most_probable(
            lambda theta: requests.misfits(self.predicted(which, theta) - known),
            prior or self.priors.normal,
            lambda _: stray,
        )


def deployments(data: Path, kept: pl.Expr) -> list[list[Point]]:
    """Return the points of each deployment that has enough of them."""
    plain = pl.col("attention_dp_size").fill_null(1) == 1
    table = points(data).filter(plain & kept)
    parts = [part.to_dicts() for part in table.partition_by(KEYS, maintain_order=True)]
    return [part for part in parts if len(part) >= FEWEST and _fits(data, part[0])]


def candidates(data: Path, points: list[Point], priors: Priors | None = None) -> list[Deployment]:
    """Return a deployment with its KV cache as published, and in 8 bits, which no point states."""
    published = Deployment(data, points, None, priors)
    assert published.build.served is not None
    if published.build.served.numbers.kv != "bf16":
        return [published]
    return [published, Deployment(data, points, "fp8", priors)]


def row_of(point: Point, number: int) -> dict[str, Any]:
    """Return a point as a row of benchmarks: a closed loop, lengths from 80% to 100%."""
    flying = point["batch_size"]
    at_once = (point["backend"], point["model_path"]) in AT_ONCE
    least = 1.0 if at_once else 0.8
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, most in (("prompt", point["isl"]), ("output", point["osl"])):
        low, mean = int(least * most), (1 + least) / 2 * most
        row |= {f"{name}_low": low, f"{name}_high": most, f"{name}_tokens": mean}
    return row | {
        "row": number,
        "pattern": "closed",
        "in_flight": flying,
        "completed": flying if at_once else max(10 * flying, 20),
        "incomplete": 0,
        "ttft_mean_s": point["silicon_ttft_ms"] / 1e3,
        "tpot_mean_s": point["silicon_tpot_ms"] / 1e3,
    }


@functools.cache
def _stored(path: Path) -> tuple[bool, bool]:
    """Return whether a model is published in mixed precision, and whether it has experts."""
    shape = read_shape(path)
    return shape.stored.experts != shape.stored.dense, shape.experts is not None


def served_of(data: Path, point: Point, kv: str | None = None) -> ServedModel:
    """Return the model of a point on its GPUs."""
    model, engine = point["model_path"], ENGINES_HERE[point["backend"]]
    name = CONFIGS.get(model, model.replace("/", "--"))
    path = data / f"models/{name}_config.json"
    mixed, experts = _stored(path)
    version = point["backend_version"] if engine == "vllm" else None
    return served_model(
        str(path),
        point["system"],
        point["tp_size"],
        max(point["moe_ep_size"] or 1, 1) if experts else 1,
        None if mixed else point["precision"],
        "fp8" if model.startswith("nvidia/") else kv,  # their checkpoints ask for it
        engine if version is None else f"{engine}-{version}",
    )


def _fits(data: Path, point: Point) -> bool:
    try:
        Deployment(data, [point])
    except InputError:
        return False
    return True
