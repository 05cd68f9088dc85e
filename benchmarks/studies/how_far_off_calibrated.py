"""How far off calibrations on a few points are, held against the points that were not fitted.

    python benchmarks/studies/how_far_off_calibrated.py ../shared/data vllm OUT.parquet

Each deployment of InferenceX is calibrated with its shape as the prior, and judged twice: on three
points (with the fewest, the most, and a middle number of requests in flight), all others judged;
and on three points of one prompt and output length, those of all other lengths judged. Beside it
stand the shape without rows, a straight line between the fitted points, and a queue with three
parameters. The priors of each are fitted to all other deployments of its engine
(`prior_fits.py`); never to Qwen3-32B and the B200, which are judged apart, with the priors
that are shipped.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml
from deployments import Deployment, Point, candidates, deployments
from prior_fits import LEFT_OUT, fitted, section
from scipy.optimize import nnls

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.laplace import Posterior
from penstock.measuring.calibration.priors import Priors, priors_in

SLOPE = 0.02  # change of a logarithm that slopes are taken over
N90, T90 = 1.645, 2.132  # half of 90% of a normal distribution, and of Student's t of four degrees
FACTORS = np.arange(1.0, 6.0, 0.1).round(1)  # of noise, that are tried
ONE_LEFT_OUT, NEVER_FITTED = "one left out", "never fitted"
CONTRADICTORY = "vllm 0.12"  # its points contradict each other: docs/how-far-off.md says how
MOST_SPLITS = 3  # lengths of a deployment that are fitted, each by itself


class Split(NamedTuple):
    """What is fitted and what is judged, by number of the point."""

    kind: str
    fitted: list[int]
    judged: list[int]


def splits(points: list[Point]) -> list[Split]:
    """Return three points against all others, and three of one length against other lengths."""
    everything = list(range(len(points)))
    by_load = sorted(everything, key=lambda n: (points[n]["batch_size"], points[n]["isl"]))
    three = _spread(by_load)
    answer = [Split("three points", three, [n for n in everything if n not in three])]
    lengths = dict.fromkeys((point["isl"], point["osl"]) for point in points)
    for length in lengths:
        of_it = [n for n in by_load if (points[n]["isl"], points[n]["osl"]) == length]
        others = [n for n in everything if n not in of_it]
        if len(of_it) >= 3 and others:
            answer.append(Split("one length", _spread(of_it), others))
    return answer[: 1 + MOST_SPLITS]


def _spread(numbers: list[int]) -> list[int]:
    return [numbers[0], numbers[len(numbers) // 2], numbers[-1]]


def calibrated(shapes: list[Deployment], split: Split) -> tuple[Deployment, Posterior]:
    """Return the shape that the fitted points speak for, and what they say of it."""
    fits = [(shape, shape.fit(split.fitted)) for shape in shapes]
    return min(fits, key=lambda fit: fit[1].cost)


def deviations(shape: Deployment, fit: Posterior, which: list[int], near: Floats) -> Floats:
    """Return what the parameters leave open of each predicted logarithm."""
    ahead = [shape.predicted(which, fit.mean + SLOPE * unit) for unit in np.eye(fit.mean.size)]
    slopes = np.stack([(then - near) / SLOPE for then in ahead], axis=-1)
    return np.asarray(np.sqrt(np.einsum("rmi,ij,rmj->rm", slopes, fit.covariance, slopes)))


def half_widths(rows: pl.DataFrame, metric: str, unseen: float) -> Floats:
    """Return half of the 90% interval of each predicted logarithm, where the noise of lengths that
    were not fitted is so many times that of others.
    """
    noise = rows[f"noise {metric}"].to_numpy() * np.where(rows["seen"].to_numpy(), 1.0, unseen)
    return np.asarray(np.hypot(N90 * rows[f"deviation {metric}"].to_numpy(), T90 * noise))


def unseen(rows: pl.DataFrame, metric: str) -> float:
    """Return how many times the noise lengths that were not fitted have: so that intervals of these
    rows hold nine of ten, deployments counting alike.
    """
    rows = rows.filter(~pl.col("seen"))
    off = rows[f"calibrated {metric}"].abs().to_numpy()
    for factor in FACTORS:
        held = rows.select("deployment", held=off <= half_widths(rows, metric, factor))
        if held.group_by("deployment").agg(pl.col("held").mean())["held"].mean() >= 0.9:
            return float(factor)
    return float(FACTORS[-1])


def with_intervals(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with half of each interval, the noise of unseen lengths being that of all other
    deployments to which priors are fitted.
    """
    parts = []
    for (name,), part in rows.group_by("deployment", maintain_order=True):
        others = rows.filter((pl.col("group") == ONE_LEFT_OUT) & (pl.col("deployment") != name))
        halves = {
            f"half {metric}": half_widths(part, metric, unseen(others, metric))
            for metric in ("ttft", "tpot")
        }
        parts.append(part.with_columns(**halves))
    return pl.concat(parts)


# ------------------------------------------------------------------ what it is compared with


def between(points: list[Point], measured: Floats, split: Split) -> Floats:
    """Return straight lines between the fitted points, by requests in flight."""
    order = sorted(split.fitted, key=lambda n: points[n]["batch_size"])
    known = [float(points[n]["batch_size"]) for n in order]
    asked = [float(points[n]["batch_size"]) for n in split.judged]
    columns = [np.interp(asked, known, np.exp(measured[order, metric])) for metric in (0, 1)]
    return np.log(np.column_stack(columns))


def queue(points: list[Point], measured: Floats, split: Split) -> Floats:
    """Return a queue with three parameters, as autoscalers use it.

    A batch takes a + b (tokens of decodes and prompts in it) + c (tokens before them); TTFT is a
    batch with the whole prompt, and a wait for one more.
    """
    left, right = [], []
    for number in split.fitted:
        for metric, row in enumerate(_costs(points[number])):
            time = float(np.exp(measured[number, metric]))
            left.append(np.array(row) / time)
            right.append(1.0)
    costs, _ = nnls(np.array(left), np.array(right))
    rows = [[float(np.dot(row, costs)) for row in _costs(points[n])] for n in split.judged]
    return np.log(np.maximum(rows, 1e-6))


def _costs(point: Point) -> tuple[list[float], list[float]]:
    """Return what TTFT and time per output token count: batches, tokens, tokens before."""
    flying, prompt, output = point["batch_size"], 0.9 * point["isl"], 0.9 * point["osl"]
    share = flying / output  # prompts in a batch
    tokens = flying + share * prompt
    before = flying * (prompt + output / 2)
    tpot = [1.0, tokens, before]
    ttft = [2.0, tokens + prompt + flying, 2 * before]
    return ttft, tpot


# ------------------------------------------------------------------ judging


def judged(
    data: Path, points: list[Point], group: str, priors: Priors | None = None
) -> list[dict[str, Any]]:
    """Return a row for each prediction of each split of a deployment, with priors that have not
    seen it; None: those that are shipped.
    """
    shapes = candidates(data, points, priors)
    top = _largest(points)
    answers = []
    for split in splits(points):
        shape, fit = calibrated(shapes, split)
        near = shape.predicted(split.judged, fit.mean)
        left_open = deviations(shape, fit, split.judged, near)
        lengths = {(points[n]["isl"], points[n]["osl"]) for n in split.fitted}
        alone = shapes[0].predicted(split.judged, shapes[0].priors.normal.mean)
        others = {
            "shape without rows": alone,
            "straight line": between(points, shape.measured, split),
            "queue": queue(points, shape.measured, split),
        }
        for place, number in enumerate(split.judged):
            truth, point = shape.measured[number], points[number]
            answer = {"group": group, "kind": split.kind, "deployment": shape.name}
            for name, logs in {"calibrated": near, **others}.items():
                off = logs[place] - truth
                rate = _seconds(point, logs[place]) - _seconds(point, truth)
                answer |= {f"{name} ttft": off[0], f"{name} tpot": off[1]}
                answer[f"{name} rate"] = rate if number in top else None
            for column, (metric, name) in enumerate((("ttft", "ttft"), ("tpot", "itl"))):
                answer[f"deviation {metric}"] = left_open[place, column]
                answer[f"noise {metric}"] = shape.priors.noise[name]
            answer["seen"] = (point["isl"], point["osl"]) in lengths
            answers.append(answer | {"point": number, "kv": shape.build.served.numbers.kv})
    return answers


def _largest(points: list[Point]) -> set[int]:
    """Return the point of each length with the most requests in flight."""
    best: dict[tuple[int, int], int] = {}
    for number, point in enumerate(points):
        key = (point["isl"], point["osl"])
        if key not in best or point["batch_size"] > points[best[key]]["batch_size"]:
            best[key] = number
    return set(best.values())


def _seconds(point: Point, logs: Floats) -> float:
    """Return the logarithm of the seconds of a request, to which throughput is inverse."""
    ttft, tpot = np.exp(logs)
    return float(np.log(ttft + tpot * (point["osl"] - 1)))


def summary(rows: pl.DataFrame) -> str:
    """Return a line of a table: medians of errors, and what intervals hold."""
    cells = [f"{rows.height}"]
    for name in ("calibrated", "shape without rows", "straight line", "queue"):
        medians = [_median(rows[f"{name} {metric}"]) for metric in ("tpot", "ttft", "rate")]
        cells.append(" / ".join(medians))
    for metric in ("tpot", "ttft"):
        off, half = rows[f"calibrated {metric}"].abs(), rows[f"half {metric}"]
        held = (off <= half).mean()
        usual = half.median() / off.quantile(0.9)
        cells.append(f"{held:.0%}, {usual:.1f}")
    return f"| {' | '.join(cells)} |"


def _median(off: pl.Series) -> str:
    errors = (off.cast(pl.Float64).drop_nulls().exp() - 1).abs()
    return f"{errors.median():.1%}" if errors.len() else "-"


def main() -> None:
    """Judge, and print tables."""
    data, backend = Path(sys.argv[1]), sys.argv[2]
    here = pl.col("backend") == backend
    both = fitted(data, backend)
    rows = []
    for points in deployments(data, here & ~LEFT_OUT):
        name = Deployment(data, points).name
        entry = section(backend, [fit for fit in both if fit[0].name != name])
        (priors,) = yaml.safe_load(entry).values()
        rows += judged(data, points, ONE_LEFT_OUT, priors_in(priors))
        print(name, file=sys.stderr, flush=True)
    for points in deployments(data, here & LEFT_OUT):
        rows += judged(data, points, NEVER_FITTED)
        print(rows[-1]["deployment"], file=sys.stderr, flush=True)
    table = with_intervals(pl.DataFrame(rows, infer_schema_length=None))
    known = table.filter(pl.col("group") == ONE_LEFT_OUT)
    if len(sys.argv) > 3:
        table.write_parquet(sys.argv[3])
    print(f"unseen: {{ttft: {unseen(known, 'ttft'):g}, itl: {unseen(known, 'tpot'):g}}}")
    for (group, kind), part in table.group_by("group", "kind", maintain_order=True):
        print(f"| {group}, {kind} {summary(part)}")
        consistent = part.filter(~pl.col("deployment").str.starts_with(CONTRADICTORY))
        if 0 < consistent.height < part.height:
            print(f"| {group}, {kind}, without {CONTRADICTORY} {summary(consistent)}")
        for (name,), own in part.group_by("deployment", maintain_order=True):
            print(f"|   {name} {summary(own)}")


if __name__ == "__main__":
    main()
