"""The paper's latency table: the published rows, the paper's policies, and the variants of the
Vidur simulator.
"""

import itertools
from typing import Annotated, Any

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from penstock import checks
from penstock.document import Section, Whole
from penstock.inputs.arrays import Floats
from penstock.reproducing.item import Claim, Reproduction, Setup, refuse
from penstock.reproducing.scheduler_families import (
    FITTED,
    METRICS,
    PERCENTILES,
    PUBLISHED,
    Family,
    measured_family,
)
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.show.page import Table

_ROUNDED = 0.005  # s, half of the last digit that is printed
_TIE = 0.005  # a difference that is printed as 0%
_SHAPES = ("circle", "square", "triangle-up", "diamond")
_BEST = (("E2E", "Sarathi-Serve"), ("TTFT", "Sarathi-Serve"), ("TBT", "FasterTransformer"))
_UNKNOWN = "what the paper measured is not stated"
_PROMPTS_FIRST = {
    "TTFT": "as the paper defines it, it serves prompts before decodes and cuts them, so that "
    "first tokens come early",
    "E2E": "as the paper defines it, it serves prompts before decodes, so that decodes wait long",
    "TBT": "as the paper defines it, it serves prompts before decodes, so that decodes wait long",
}
_WHOLE = "Vidur's takes whole prompts and runs few requests"
_REASONS = {
    ("paper", scheduler, metric): f"{reason}; {_WHOLE}"
    for scheduler in ("vLLM", "Orca")
    for metric, reason in _PROMPTS_FIRST.items()
} | {
    ("Vidur", "Orca", metric): (
        "probably because its batches hold many whole prompts, and Vidur takes those above 4,096 "
        "tokens to cost no more than at 4,096, as its predictor says"
    )
    for metric in METRICS
}


class _Settings(Section):
    trace: str | None = None
    requests: Annotated[Whole, Field(ge=1, le=1_000_000)] = 500
    seeds: Whole = 8
    within: Annotated[float, Field(gt=0, lt=1)] = 0.25
    schedulers: dict[str, dict[str, Any]]


def run(setup: Setup) -> Reproduction:
    """Measure each family of schedulers, and compare it with the published rows."""
    settings = setup.settings(_Settings)
    checks.whole(
        "reproduce.seeds",
        settings.seeds,
        2,
        1_000,
        "runs",
        "a spread takes two, and more take longer",
    )
    refuse(
        not settings.schedulers,
        "reproduce.schedulers is empty, but the table compares families of schedulers; give "
        "one, such as paper: "
        "{Sarathi-Serve: {server: {policy: sarathi}}, vLLM: {server: {policy: vllm-vanilla}}}",
    )
    scenario = setup.scenario()
    workload = scenario.workload
    assumed = []
    if settings.trace is not None:
        recorded, origin = setup.recorded(settings.trace)
        workload = recorded.with_rate(workload.rate, "poisson")
        assumed.append(
            f"{origin}; its requests are drawn at random, {settings.requests:,} in each of "
            f"{settings.seeds} runs"
        )
    families = []
    for name, rows in setup.each(list(settings.schedulers.items())):
        families.append(
            measured_family(
                setup, name, rows, workload, requests=settings.requests, seeds=settings.seeds
            )
        )
    assumed += _assumptions(settings, scenario.server.token_budget)
    claims = [claim for family in families for claim in _orders(family)]
    claims += [claim for family in families for claim in _numbers(family, settings)]
    cells = _rows(families)
    text = (
        "Seconds by percentile for E2E, TTFT and TBT: filled marks are measured, hollow ones are "
        "published."
    )
    return setup.answer(
        claims, cells, {text: _chart(cells)},
        "Filled marks: measured here, mean of the runs. Hollow marks: published. A line joins the "
        "two. Log scale. `paper`: the policies as the paper defines them. `Vidur`: those of that "
        "simulator, whose limits were fitted to the published numbers.",
        tuple(_table(families, metric) for metric in METRICS), tuple(assumed),
    )  # fmt: skip


def _assumptions(settings: _Settings, budget: int) -> list[str]:
    """Say what the paper does not, and what the words of the answer mean."""
    return [
        "The four numbers of a row are P50 / P90 / P95 / P99 in seconds. The table says (ms), but "
        "a decode alone takes 47 ms and its TBT are 0.04 to 0.65: they are seconds",
        f"No token budget, max batch size or number of requests is published: {budget:,} tokens, "
        f"no limit for the paper's policies, {settings.requests:,} requests",
        "TBT is (last token - first token)/output tokens of a request, as Vidur has it, and not a "
        "gap between tokens",
        "`fitted`: the limits of Vidur's schedulers, and the flat batch times of one, were chosen "
        "to come near the published rows, so that agreement is no independent check. No "
        "configuration of Vidur gives all four rows",
        f"Verdict `same` of a row: the mean of the {settings.seeds} runs is within "
        f"{settings.within:.0%} of each published number (rounded to {2 * _ROUNDED:g} s), or that "
        "lies between the lowest and the highest run. Verdict `same` of an order: it holds at "
        f"every percentile; less than {_TIE:.1%} apart is a tie",
    ]


def _orders(family: Family) -> list[Claim]:
    """Compare which scheduler is best, and in which order they are."""
    claims = []
    everywhere = ", ".join(f"P{percentile}" for percentile in PERCENTILES)
    for metric, best in _BEST:
        if best not in family.schedulers:
            continue
        at = family.mean[:, METRICS.index(metric)]
        first = np.where(at[family.schedulers.index(best)] < (1 + _TIE) * at.min(axis=0), best, "")
        lowest = [
            name or family.schedulers[i]
            for name, i in zip(first.tolist(), at.argmin(axis=0), strict=True)
        ]
        where_lowest = {
            name: ", ".join(
                f"P{p}" for p, low in zip(PERCENTILES, lowest, strict=True) if low == name
            )
            for name in dict.fromkeys(lowest)
        }
        same = set(lowest) == {best}
        others = " and ".join(f"{name} at {where}" for name, where in where_lowest.items())
        claims.append(
            Claim.judged(
                f"lowest {metric}, {family.label}", f"{best} at {everywhere}", others, same,
                _why_not_best(family, metric, best),
            )
        )  # fmt: skip
    published, mean = family.published, family.mean
    held = np.array(
        [
            _in_order(*pair)
            for pair in itertools.combinations(np.stack([published, mean], axis=1), 2)
        ]
    )
    off = [
        f"{METRICS[i]} P{PERCENTILES[j]}"
        for i, j in zip(*np.nonzero(~held.all(axis=0)), strict=True)
    ]
    reason = (
        f"another order at {', '.join(off)}; {_UNKNOWN if family.name in FITTED else _CUT}"
        if off
        else ""
    )
    claims.append(
        Claim(
            f"order of the schedulers, {family.label}", f"{held.size} pairs",
            f"{held.sum()} of {held.size} pairs are in that order", not off, reason,
        )
    )  # fmt: skip
    return claims


_CUT = (
    "vanilla vLLM and Orca, as the paper defines them, serve prompts before decodes and cut them, "
    "so that first tokens come early and others late; Vidur's take prompts whole"
)


def _in_order(one: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    """Return where the published order of two schedulers, rows 0, is that of the measured ones,
    rows 1, or a tie.
    """
    slower = np.where(one[0] > other[0], one[1], other[1])
    faster = np.where(one[0] > other[0], other[1], one[1])
    return np.asarray(faster < (1 + _TIE) * slower)


def _why_not_best(family: Family, metric: str, best: str) -> str:
    """Say by how much another is lower."""
    at = family.mean[:, METRICS.index(metric)]
    gap = (at[family.schedulers.index(best)] / at.min(axis=0)).max() - 1
    reason = f"{best} is up to {gap:.0%} above the lowest"
    return f"{reason}; {_CUT}" if metric == "TTFT" and family.name == "paper" else reason


def _numbers(family: Family, settings: _Settings) -> list[Claim]:
    """Compare each row of the table, a claim for each metric."""
    off = _off(family, settings.within)
    claims = []
    for (i, scheduler), (j, metric) in itertools.product(
        enumerate(family.schedulers), enumerate(METRICS)
    ):
        published, measured = (
            " / ".join(f"{value:,.2f}" for value in values[i, j])
            for values in (family.published, family.mean)
        )
        same = not off[i, j].any()
        claims.append(
            Claim.judged(
                f"{scheduler}, {metric}, {family.label}", f"{published} s", f"{measured} s", same,
                _why_off(family, i, j, off[i, j], settings),
            )
        )  # fmt: skip
    return claims


def _off(family: Family, within: float) -> npt.NDArray[np.bool_]:
    """Return which numbers are further off than a share, and not among those of the runs."""
    published, seconds = family.published, family.seconds
    near = np.abs(family.mean - published) <= within * published + _ROUNDED
    among = (seconds.min(axis=0) <= published) & (published <= seconds.max(axis=0))
    return np.asarray(~(near | among))


def _why_off(
    family: Family, i: int, j: int, off: npt.NDArray[np.bool_], settings: _Settings
) -> str:
    """Say how far off a metric of a scheduler is, and why."""
    scheduler, ratio = family.schedulers[i], family.mean[i, j] / family.published[i, j]
    cells = ", ".join(f"{ratio[k]:.2f} at P{PERCENTILES[k]}" for k in np.flatnonzero(off))
    if scheduler in family.overloaded:
        reason = (
            "it cannot carry this rate (unstable by the test of stability), so that latency grows "
            f"with the number of requests, {settings.requests:,} here and not published"
        )
    else:
        reason = _REASONS.get((family.name, scheduler, METRICS[j]), _UNKNOWN)
    return f"measured / published is {cells}: {reason}"


def _rows(families: list[Family]) -> pl.DataFrame:
    rows = [
        (
            family.name, scheduler, metric, f"P{percentile}", *(
                float(values[i, j, k]) for values in (family.published, family.mean, family.spread)
            ),
        )
        for family in families
        for i, scheduler in enumerate(family.schedulers)
        for j, metric in enumerate(METRICS)
        for k, percentile in enumerate(PERCENTILES)
    ]  # fmt: skip
    columns = [
        "policies",
        "scheduler",
        "metric",
        "percentile",
        "published_s",
        "measured_s",
        "deviation_over_seeds_s",
    ]
    return pl.DataFrame(rows, columns, orient="row")


def _table(families: list[Family], metric: str) -> Table:
    at = METRICS.index(metric)
    rows = []
    for scheduler, published in PUBLISHED.items():
        rows.append((f"{scheduler}, published", *(f"{value:.2f}" for value in published[at])))
        for family in families:
            if scheduler in family.schedulers:
                mean = family.mean[family.schedulers.index(scheduler), at]
                rows.append((f"{scheduler}, {family.name}", *(f"{value:.2f}" for value in mean)))
    return Table((f"{metric} (s)", *(f"P{percentile}" for percentile in PERCENTILES)), rows)


def _chart(rows: pl.DataFrame) -> Any:
    """Draw a panel for each family and metric, the schedulers side by side: filled is measured,
    hollow is published.
    """
    names = [name for name in PUBLISHED if name in set(rows["scheduler"])]
    legend = alt.Legend(title=["Scheduler", "filled: measured", "hollow: published"], symbolSize=90)
    scales = {
        "color": alt.Scale(domain=names, range=list(charts.COLOURS[: len(names)])),
        "shape": alt.Scale(domain=names, range=list(_SHAPES[: len(names)])),
    }
    looks: dict[str, Any] = {
        "color": alt.Color("scheduler:N", scale=scales["color"], legend=legend),
        "shape": alt.Shape("scheduler:N", scale=scales["shape"], legend=legend),
    }
    order = [f"P{percentile}" for percentile in PERCENTILES]
    position: dict[str, Any] = {
        "x": alt.X("percentile:O", sort=order, title="Percentile", axis=alt.Axis(labelAngle=0)),
        "xOffset": alt.XOffset(
            "scheduler:N", sort=names, scale=alt.Scale(domain=names, paddingOuter=0.4)
        ),
    }
    panels = []
    families = rows["policies"].unique(maintain_order=True).to_list()
    for family, metric in itertools.product(families, METRICS):
        both = rows.filter(metric=metric).select("published_s", "measured_s").to_numpy()
        # Of a metric: the families can be compared.
        domain = [
            float(both.min()) / 1.2,
            1.2 * float(both.max()),
        ]
        scale = alt.Scale(type="log", domain=domain, nice=False)
        measured, published = (
            alt.Y(f"{what}_s:Q", title=f"{metric} (s)", scale=scale, axis=alt.Axis(tickCount=5))
            for what in ("measured", "published")
        )
        here = alt.Chart(rows.filter(policies=family, metric=metric))
        panel = alt.layer(
            here.mark_rule(strokeWidth=1.2).encode(
                y=measured, y2="published_s:Q", color=looks["color"], **position
            ),
            here.mark_point(filled=False, size=75, opacity=1, fill="white").encode(
                y=published, **looks, **position
            ),
            here.mark_point(filled=True, size=22, opacity=1).encode(
                y=measured, **looks, **position
            ),
        )
        title = f"{metric}, policies: {family}{' (fitted)' if family in FITTED else ''}"
        panels.append(panel.properties(width=230, height=200, title=title))
    lines = [
        alt.hconcat(*panels[i : i + len(METRICS)]) for i in range(0, len(panels), len(METRICS))
    ]
    return on_grid(alt.vconcat(*lines))
