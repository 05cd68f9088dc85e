"""How often three ways to ask "is it stable?" are wrong near the critical load."""

import math
from typing import Annotated, Any

import altair as alt
import numpy as np
import polars as pl
from pydantic import Field
from scipy import stats

from penstock.checking.verdict import verdict
from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.scenario.scenario import Scenario
from penstock.show.charts import on_grid
from penstock.simulation.simulate import simulate
from penstock.theory.certificate import certify
from penstock.workload.workload import Workload

LEAST_SQUARES, BATCH_MEANS, SEQUENTIAL = "least squares", "batch means", "sequential test"
PUBLISHED = {LEAST_SQUARES: (0.80, 0.97), BATCH_MEANS: (0.60, 0.90)}
"""Known shares of stable runs near the critical load that are called unstable."""

_CLOSEST = 1e-3  # to 1 that a load may be: closer, no run is long enough to tell

_FEWEST = 1000  # requests of a run

_COLOURS = ("#56B4E9", "#E69F00", "#F0E442", "#CC79A7", "#009E73")  # the last bar is black


class _Settings(Section):
    loads: Different[Annotated[float, Field(ge=0.5, le=2)]] = Field(min_length=1)
    near: float = Field(0.02, gt=0, le=0.5)  # loads so close to 1 are compared with what is known
    seeds: Whole = Field(24, ge=10, le=10_000)
    significance: float = Field(0.01, ge=1e-6, lt=0.25)
    batches: Different[Annotated[Whole, Field(ge=3, le=2000)]] = Field([20, 200], min_length=1)


def run(setup: Setup) -> Reproduction:
    """Count the wrong verdicts of slopes and of the sequential test, by load."""
    settings = setup.settings(_Settings)
    scenario = setup.scenario()
    _refuse_untellable(settings, scenario)
    # loads are shares of the rate up to which Theorem 1 says stable, wherever its hypotheses hold
    limit = _stable_up_to(scenario)
    # each way is asked about the same workload
    rows = []
    for index, load in enumerate(settings.loads):
        wrong = []
        for seed in setup.each(range(settings.seeds), index, len(settings.loads)):
            workload = scenario.workload.with_rate(load * limit).with_seed(
                scenario.workload.seed + seed
            )
            wrong.append(_wrong(scenario, workload, settings, load < 1))
        rows += [(load, way, sum(run[way] for run in wrong), settings.seeds) for way in wrong[0]]
    columns = ["load", "way", "wrong", "verdicts"]
    table = pl.DataFrame(rows, columns, orient="row").with_columns(
        share=pl.col("wrong") / pl.col("verdicts")
    )
    text = (
        "Share of verdicts that are wrong, by load: slopes from an empty system, and the "
        "sequential test."
    )
    return setup.answer(
        _claims(table, settings), table, {text: _chart(table, settings)},
        "By Theorem 1 the server is stable below load 1 and unstable above. Least squares and "
        "batch means fit a slope to the tokens in a run that starts empty, batch means after "
        "averages over so many parts of it. They say unstable if the slope is above 0 at a "
        f"significance of {settings.significance:.2g}. The sequential test starts from large "
        "backlogs.",
        assumed=(
            f"{settings.seeds} seeds at each load, so that a share is known to within about "
            f"{100 * 1.96 * math.sqrt(0.25 / settings.seeds):.0f} percentage points; "
            "docs/verdicts.md has 200 seeds",
            f"Loads below 1 and at most {settings.near:g} from it are compared with what is "
            "known. Verdict `same` of a "
            "slope: its 95% interval, in brackets, and the known range have a share in common",
            "Verdict `same` of the sequential test: so many wrong verdicts have a probability "
            f"above 1% if each is wrong with probability {settings.significance:.2g}, its alpha",
        ),
    )  # fmt: skip


def _refuse_untellable(settings: _Settings, scenario: Scenario) -> None:
    """Refuse servers, loads and runs of which nothing says which verdict is right."""
    server = scenario.server
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        raise InputError(
            f"server.max_batch_size is {server.max_batch_size:,}, below the token budget of "
            f"{server.token_budget:,}, so Theorem 1 does not tell which loads are stable; leave it "
            "out"
        )
    refuse(
        server.policy.work_conserving is not True,
        f"server.policy is {server.policy.name}, which is not known to be work-conserving, so "
        "Theorem 1 does not tell which loads are stable; give one that is, such as sarathi",
    )
    if close := [load for load in settings.loads if abs(load - 1) < _CLOSEST]:
        raise InputError(
            f"reproduce.loads has {close[0]:g}, within {_CLOSEST:g} of 1, where no theorem or no "
            "run of this length says what is right; give loads further below and above 1"
        )
    if scenario.requests is not None and scenario.requests < _FEWEST:
        raise InputError(
            f"simulate.requests is {scenario.requests:,}, in which no trend can show; give at "
            f"least {_FEWEST:,}"
        )


def _stable_up_to(scenario: Scenario) -> float:
    """Return the rate up to which Theorem 1 says stable, once its hypotheses hold."""
    server = scenario.server
    limit = certify(scenario.workload, server).max_rate
    fails = [
        h for h in certify(scenario.workload.with_rate(limit / 2), server).hypotheses if not h.held
    ]
    if fails := [
        h for h in fails if h.name != "bounded lengths"
    ]:  # which geometric ones are but for a tail
        raise InputError(
            f"Theorem 1 does not tell which loads are stable, for it asks for {fails[0].name}, but "
            f"{fails[0].why}; change workload or server until it holds"
        )
    return limit


def _wrong(
    scenario: Scenario, workload: Workload, settings: _Settings, stable: bool
) -> dict[str, bool]:
    """Return which of the ways is wrong about one run; an undecided test is wrong too."""
    run = simulate(
        workload,
        scenario.server,
        requests=scenario.requests,
        until=scenario.until,
        record="summary",
        drain=False,
    )
    tokens = run.series_rows[:, 3].astype(np.float64)
    refuse(
        tokens.size < max(settings.batches),
        f"reproduce.batches has {max(settings.batches)}, but a run of this length is seen at "
        f"{tokens.size} instants; lower it, or raise simulate.requests or simulate.until",
    )
    wrong = {LEAST_SQUARES: rising(tokens, settings.significance) == stable}
    for count in settings.batches:
        means = np.array([part.mean() for part in np.array_split(tokens, count)])
        wrong[f"{BATCH_MEANS}, {count}"] = rising(means, settings.significance) == stable
    answer = verdict(
        workload, scenario.server, alpha=settings.significance, seed=workload.seed
    ).verdict
    return wrong | {SEQUENTIAL: answer != ("stable" if stable else "unstable")}


def rising(values: Floats, significance: float) -> bool:
    """Whether a line through values at equal distances rises significantly, its residuals taken for
    independent.
    """
    fitted = stats.linregress(np.arange(float(values.size)), values, alternative="greater")
    return bool(fitted.pvalue < significance)


def _claims(table: pl.DataFrame, settings: _Settings) -> tuple[Claim, ...]:
    """Compare the stable loads near 1 with what is known, and the test at all loads with its
    alpha.
    """
    near = table.filter((pl.col("load") < 1) & (1 - pl.col("load") <= settings.near + 1e-9))
    reasons = {
        LEAST_SQUARES: "the load, the length of the runs, or chance: see the figure",
        BATCH_MEANS: (
            "the known shares come from a number of batches that is not stated; more batches give "
            "more wrong verdicts, so that another number than theirs gives another share, and this "
            "is no contradiction"
        ),
    }
    claims = []
    for way in dict.fromkeys(near.filter(pl.col("way") != SEQUENTIAL)["way"]):
        wrong, count = near.filter(way=way).select(pl.col("wrong", "verdicts").sum()).row(0)
        kind = LEAST_SQUARES if way == LEAST_SQUARES else BATCH_MEANS
        low, high = PUBLISHED[kind]
        least, most = stats.binomtest(wrong, count).proportion_ci()
        claims.append(
            Claim.judged(
                f"stable runs called unstable by {way}", f"known: {low:.0%} to {high:.0%}",
                f"{wrong / count:.0%} ({least:.0%} to {most:.0%}) of {count}",
                least <= high and most >= low, reasons[kind],
            )
        )  # fmt: skip
    wrong, count = table.filter(way=SEQUENTIAL).select(pl.col("wrong", "verdicts").sum()).row(0)
    chance = stats.binomtest(wrong, count, settings.significance, alternative="greater").pvalue
    claims.append(
        Claim.judged(
            "wrong verdicts by the sequential test",
            f"at most {settings.significance:.0%}, its alpha", f"{wrong:,} of {count:,}",
            bool(chance > 0.01),
            "alpha holds where a load is at least the test's resolution of 1% away from 1",
        )
    )  # fmt: skip
    return tuple(claims)


def _chart(table: pl.DataFrame, settings: _Settings) -> Any:
    ways = list(dict.fromkeys(table["way"]))
    colours = [*(_COLOURS[i % len(_COLOURS)] for i in range(len(ways) - 1)), "#000000"]
    shown = table.with_columns(load=pl.col("load").map_elements("{:g}".format, pl.String))
    bars = alt.Chart(shown).encode(
        x=alt.X("load:O", title="Load (stable below 1)", sort=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("way:N", sort=ways),
        y=alt.Y(
            "share:Q",
            title=f"Share of {settings.seeds} verdicts that is wrong",
            axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, 1]),
        ),
    )
    return on_grid(
        alt.layer(
            bars.mark_bar(stroke="#333333", strokeWidth=0.6).encode(
                color=alt.Color(
                    "way:N",
                    sort=ways,
                    scale=alt.Scale(domain=ways, range=colours),
                    legend=alt.Legend(title="Way to ask", symbolStrokeWidth=0.6),
                )
            ),
            bars.mark_text(dy=-6, fontSize=9).encode(text=alt.Text("share:Q", format=".0%")),
        ).properties(width=640, height=280)
    )
