"""The paper's latency table: the published rows, the paper's policies, and the variants of the
Vidur simulator.
"""

import dataclasses
import itertools
from typing import Annotated, Any

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from penstock import checks
from penstock.checking.verdict import verdict
from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.reproducing.claims import Claim, Reproduction
from penstock.reproducing.looks import on_grid
from penstock.reproducing.setup import Setup
from penstock.show import charts
from penstock.show.page import Table
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import MOST_TOKENS, BatchTime, Measured
from penstock.workload.workload import Workload

Floats = npt.NDArray[np.float64]

METRICS = ("E2E", "TTFT", "TBT")
PERCENTILES = (50, 90, 95, 99)
PUBLISHED = {
    "FasterTransformer": (
        (45.38, 116.81, 123.98, 139.65),
        (44.61, 114.53, 123.63, 138.87),
        (0.04, 0.04, 0.04, 0.05),
    ),
    "Orca": ((7.1, 16.13, 18.6, 30.59), (4.55, 13.99, 14.83, 15.9), (0.08, 0.19, 0.24, 0.38)),
    "vLLM": ((6.22, 14.62, 20.74, 40.75), (2.52, 7.07, 8.58, 10.09), (0.17, 0.43, 0.47, 0.65)),
    "Sarathi-Serve": (
        (3.78, 8.8, 12.29, 22.36),
        (2.02, 3.87, 5.81, 7.47),
        (0.13, 0.17, 0.17, 0.17),
    ),
}
"""Seconds by scheduler, metric and percentile (tab:latency-code)."""

_ROUNDED = 0.005  # s, half of the last digit that is printed
_TIE = 0.005  # a difference that is printed as 0%
_SHAPES = ("circle", "square", "triangle-up", "diamond")
_BEST = (("E2E", "Sarathi-Serve"), ("TTFT", "Sarathi-Serve"), ("TBT", "FasterTransformer"))
_UNKNOWN = "what the paper measured is not stated"
_FITTED = frozenset({"Vidur"})
"""Families whose limits were chosen to come near the published rows: agreement is no independent
check.
"""

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
        "tokens to cost no "
        "more than at 4,096, as its predictor says"
    )
    for metric in METRICS
}


class _Row(Section):
    server: dict[str, Any]
    flat_beyond: Whole | None = None
    """Batches of more tokens take no longer."""
    longest_gap: Annotated[float, Field(gt=0)] | None = None
    """Between arrivals, in means."""


class _Settings(Section):
    trace: str | None = None
    requests: Annotated[Whole, Field(ge=1, le=1_000_000)] = 500
    seeds: Whole = 8
    within: Annotated[float, Field(gt=0, lt=1)] = 0.25
    schedulers: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Family:
    """Four schedulers measured; ``seconds`` has the shape (seeds, schedulers, metrics,
    percentiles).
    """

    name: str
    schedulers: tuple[str, ...]
    seconds: Floats
    overloaded: frozenset[str]

    @property
    def mean(self) -> Floats:
        return np.asarray(self.seconds.mean(axis=0))

    @property
    def spread(self) -> Floats:
        return np.asarray(self.seconds.std(axis=0, ddof=min(1, len(self.seconds) - 1)))

    @property
    def published(self) -> Floats:
        return np.array([PUBLISHED[name] for name in self.schedulers])

    @property
    def label(self) -> str:
        """The name, and whether the family was made to agree."""
        return f"{self.name}, fitted" if self.name in _FITTED else self.name


def run(setup: Setup) -> Reproduction:
    """Measure each family of schedulers, and compare it with the published rows."""
    settings = setup.settings(_Settings)
    _refuse_few(settings)
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
    for index, (name, rows) in enumerate(settings.schedulers.items()):
        families.append(_family(setup, name, rows, settings, workload))
        setup.progress((index + 1) / len(settings.schedulers))
    budget = scenario.server.token_budget
    assumed += [
        "The four numbers of a row are P50 / P90 / P95 / P99 in seconds. The table says (ms), but "
        "a decode alone takes "
        "47 ms and its TBT are 0.04 to 0.65: they are seconds",
        f"No token budget, max batch size or number of requests is published: {budget:,} tokens, "
        "no limit for the "
        f"paper's policies, {settings.requests:,} requests",
        "TBT is (last token - first token)/output tokens of a request, as Vidur has it, and not a "
        "gap between tokens",
        "`fitted`: the limits of Vidur's schedulers, and the flat batch times of one, were chosen "
        "to come near the "
        "published rows, so that agreement is no independent check. No configuration of Vidur "
        "gives all four rows",
        f"Verdict `same` of a row: the mean of the {settings.seeds} runs is within "
        f"{settings.within:.0%} of each "
        f"published number (rounded to {2 * _ROUNDED:g} s), or that lies between the lowest and "
        "the highest run. "
        f"Verdict `same` of an order: it holds at every percentile; less than {_TIE:.1%} apart is "
        "a tie",
    ]
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
        "two. Log scale. "
        "`paper`: the policies as the paper defines them. `Vidur`: those of that simulator, whose "
        "limits were "
        "fitted to the published numbers.",
        tuple(_table(families, metric) for metric in METRICS), tuple(assumed),
    )  # fmt: skip


def _refuse_few(settings: _Settings) -> None:
    """Refuse too few runs for a spread, and no schedulers."""
    checks.whole(
        "reproduce.seeds",
        settings.seeds,
        2,
        1_000,
        "runs",
        "a spread takes two, and more take longer",
    )
    if not settings.schedulers:
        raise InputError(
            "reproduce.schedulers is empty, but the table compares families of schedulers; give "
            "one, such as paper: "
            "{Sarathi-Serve: {server: {policy: sarathi}}, vLLM: {server: {policy: vllm-vanilla}}}"
        )


def _family(
    setup: Setup, name: str, rows: dict[str, Any], settings: _Settings, workload: Workload
) -> _Family:
    unknown = [row for row in rows if row not in PUBLISHED]
    if unknown or len(rows) < 2:
        raise InputError(
            f"reproduce.schedulers.{name} has the rows {', '.join(rows) or 'none'}, but a "
            "comparison takes two or more "
            f"of the table's: {', '.join(PUBLISHED)}"
        )
    seconds = np.empty((settings.seeds, len(rows), len(METRICS), len(PERCENTILES)))
    overloaded = set()
    for index, (scheduler, document) in enumerate(rows.items()):
        row = parsed(document, _Row, f"reproduce.schedulers.{name}.{scheduler}", "a server")
        server = setup.scenario(server=row.server).server
        if row.flat_beyond is not None:
            server = dataclasses.replace(
                server, batch_time=_flat(server.batch_time, row.flat_beyond)
            )
        for seed in range(settings.seeds):
            drawn = _drawn(
                workload.with_seed(workload.seed + seed), settings.requests, row.longest_gap
            )
            seconds[seed, index] = _latency(simulate(drawn, server))
        if verdict(workload, server, resolution=0.05).verdict == "unstable":
            overloaded.add(scheduler)
    return _Family(name, tuple(rows), seconds, frozenset(overloaded))


def _flat(model: BatchTime, tokens: int) -> Measured:
    """Return batch times that rise no more beyond a token load."""
    loads = np.arange(
        1,
        checks.whole("flat_beyond", tokens, 1, MOST_TOKENS - 1, "tokens", "a batch has tokens") + 1,
    )
    return Measured([*loads.tolist(), MOST_TOKENS], [*model(loads).tolist(), float(model(tokens))])


def _drawn(workload: Workload, count: int, longest_gap: float | None) -> Workload:
    """Return so many requests, gaps longer than some means cut to that."""
    rows = workload.requests(count)
    arrival = rows.arrival_s
    if longest_gap is not None:
        gaps = np.minimum(np.diff(arrival, prepend=0.0), longest_gap / workload.rate)
        arrival = np.cumsum(gaps)
    return Workload.from_arrays(arrival, rows.prompt_tokens, rows.output_tokens, name=workload.name)


def _latency(run: Run) -> Floats:
    """Return seconds by metric and percentile."""
    rows = run.requests
    arrival, first, last = (
        rows[name].to_numpy() * 1e-9 for name in ("arrival_ns", "first_token_ns", "finish_ns")
    )
    samples = (last - arrival, first - arrival, (last - first) / rows["output_tokens"].to_numpy())
    return np.array([np.percentile(sample, PERCENTILES) for sample in samples])


def _orders(family: _Family) -> list[Claim]:
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
        f"another order at {', '.join(off)}; {_UNKNOWN if family.name in _FITTED else _CUT}"
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
    "so that first tokens "
    "come early and others late; Vidur's take prompts whole"
)


def _in_order(one: Floats, other: Floats) -> npt.NDArray[np.bool_]:
    """Return where the published order of two schedulers, rows 0, is that of the measured ones,
    rows 1, or a tie.
    """
    slower = np.where(one[0] > other[0], one[1], other[1])
    faster = np.where(one[0] > other[0], other[1], one[1])
    return np.asarray(faster < (1 + _TIE) * slower)


def _why_not_best(family: _Family, metric: str, best: str) -> str:
    """Say by how much another is lower."""
    at = family.mean[:, METRICS.index(metric)]
    gap = (at[family.schedulers.index(best)] / at.min(axis=0)).max() - 1
    reason = f"{best} is up to {gap:.0%} above the lowest"
    return f"{reason}; {_CUT}" if metric == "TTFT" and family.name == "paper" else reason


def _numbers(family: _Family, settings: _Settings) -> list[Claim]:
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


def _off(family: _Family, within: float) -> npt.NDArray[np.bool_]:
    """Return which numbers are further off than a share, and not among those of the runs."""
    published, seconds = family.published, family.seconds
    near = np.abs(family.mean - published) <= within * published + _ROUNDED
    among = (seconds.min(axis=0) <= published) & (published <= seconds.max(axis=0))
    return np.asarray(~(near | among))


def _why_off(
    family: _Family, i: int, j: int, off: npt.NDArray[np.bool_], settings: _Settings
) -> str:
    """Say how far off a metric of a scheduler is, and why."""
    scheduler, ratio = family.schedulers[i], family.mean[i, j] / family.published[i, j]
    cells = ", ".join(f"{ratio[k]:.2f} at P{PERCENTILES[k]}" for k in np.flatnonzero(off))
    if scheduler in family.overloaded:
        reason = (
            "it cannot carry this rate (unstable by the test of stability), so that latency grows "
            "with the number of "
            f"requests, {settings.requests:,} here and not published"
        )
    else:
        reason = _REASONS.get((family.name, scheduler, METRICS[j]), _UNKNOWN)
    return f"measured / published is {cells}: {reason}"


def _rows(families: list[_Family]) -> pl.DataFrame:
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


def _table(families: list[_Family], metric: str) -> Table:
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
        domain = [
            float(both.min()) / 1.2,
            1.2 * float(both.max()),
        ]  # of a metric: the families can be compared
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
        title = f"{metric}, policies: {family}{' (fitted)' if family in _FITTED else ''}"
        panels.append(panel.properties(width=230, height=200, title=title))
    lines = [
        alt.hconcat(*panels[i : i + len(METRICS)]) for i in range(0, len(panels), len(METRICS))
    ]
    return on_grid(alt.vconcat(*lines))
