"""The loads above which priorities lose the two crossed servers, and the mean E2E of other orders
there.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from pydantic import Field
from scipy import stats

from penstock.checking.variants import with_order
from penstock.document import Section
from penstock.errors import InputError
from penstock.kernel.signatures import BY_PHASE, LINE_PREFILL_MEAN
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.reproducing.looks import channels
from penstock.reproducing.rybko_stolyar import (
    NEAR,
    REVERSED,
    at_load,
    first_stage,
    reversed_priorities,
    seed_of,
    slot_sentence,
    verdict_claim,
)
from penstock.scenario.network import NetworkScenario
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.simulation.network_run import NetworkRun
from penstock.simulation.simulate import simulate
from penstock.system.network import Network
from penstock.system.orders import order
from penstock.theory.network.cycles import priority_stability
from penstock.theory.network.fluid import network_path
from penstock.theory.network.virtual_stations import VirtualStation, priority_limit, worst_priority

_EXACT = 1e-3
_SHOWN = (0.3, 10.0)  # amplifications that are drawn


class _Settings(Section):
    loads: Different[Annotated[float, Field(ge=0.01, lt=1)]]
    stable_at: float = Field(gt=0, lt=1)
    unstable_at: float = Field(gt=0, lt=1)
    push_at: float = Field(gt=0, lt=1)
    orders: Different[str]
    orders_at: float = Field(gt=0, lt=1)


class E2E(NamedTuple):
    """Mean E2E, s, and the half width of its 95% interval."""

    mean: float
    half: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval, widened by 5%."""
        return abs(self.mean - value) <= self.half + NEAR * self.mean


_KNOWN_LIMIT, _KNOWN_PUSH = 0.5588, 0.5429
_AMPLIFIED = {0.5: 0.810, 0.7: 1.676, 0.9: 4.135}
# Mean E2E in slots, by order and load, from an independent slotted program.
_E2E = {
    (REVERSED, 0.9): 70, (REVERSED, 0.95): 74, (REVERSED, 0.98): 82, (REVERSED, 0.99): 93,
    ("back-pressure", 0.9): 79, ("back-pressure", 0.95): 82, ("back-pressure", 0.98): 90,
    ("back-pressure", 0.99): 102,
    ("back-pressure-phase", 0.9): 86, ("back-pressure-phase", 0.95): 91,
    ("back-pressure-phase", 0.98): 100,
    ("back-pressure-phase", 0.99): 112,
    ("hlpps", 0.9): 72, ("hlpps", 0.95): 81, ("hlpps", 0.98): 107, ("hlpps", 0.99): 158,
    ("fcfs", 0.9): 77, ("fcfs", 0.95): 90, ("fcfs", 0.98): 127, ("fcfs", 0.99): 192,
}  # fmt: skip

_WARMUP, _BATCHES = 0.2, 30


def run(setup: Setup) -> Reproduction:
    """Compare load limits, amplification and E2E with formulas and an independent program."""
    settings = setup.settings(_Settings)
    scenario = setup.network()
    network = at_load(scenario.network, 1.0)
    reversed_priorities(network)  # which refuses orders that are no priorities
    ranking = [stage for pool in network.pools.values() for stage in pool.order.stages]
    virtual = priority_limit(network.model(), ranking)
    push = worst_priority(network.model(), phases=True)
    if virtual is None or push is None:
        raise InputError(
            "the priorities of these pools have no virtual station, so nothing but a load of 1 "
            "makes them fail; serve the long second stage first at each pool"
        )
    # 1. limits and amplification by formula  2. floods below and above  3. E2E by order, simulated
    claims = _by_formula(network, ranking, virtual, push)
    claims += [_amplified(network, virtual, load) for load in settings.loads]
    setup.progress(0.2)
    claims += _by_floods(network, settings)
    setup.progress(0.5)
    measured = _simulated(setup, settings, scenario, network)
    claims += [
        claim for name, e2e in measured.items() for claim in _e2e(name, settings.orders_at, e2e)
    ]
    table = _e2e_table(measured, settings.orders_at)
    charts = {
        "Amplification of a backlog by half a cycle, over the load, for two priorities: each "
        "passes 1 at its limit.":
        _curves({"the paper's priorities": virtual, "push start": push}, _AMPLIFIED),
        f"Mean E2E by order at a load of {settings.orders_at:g}, with intervals, beside that of a "
        "slotted program.":
        _dots(table),
    }  # fmt: skip
    return setup.answer(
        claims, table, charts,
        "First figure: where half a cycle multiplies a backlog by more than 1, right of the "
        "vertical line, queues grow without end; the dots are the formula's figures. Second "
        "figure: E2E of an independent slotted program beside those simulated here. "
        f"{slot_sentence(network)}".rstrip(),
        assumed=(
            "Rows marked formula compare formulas with a linear program or a fluid path; rows "
            "marked simulated are simulated here",
            "Same means: limits within 0.0005, amplifications within 0.001; of E2E, the other "
            "figure lies in the 95% interval widened by 5%",
            "The E2E of the slotted program come from an independent program with slots of 1 s, "
            "where requests arrive and move on between slots; here they arrive at any time",
        ),
    )  # fmt: skip


def _simulated(
    setup: Setup, settings: _Settings, scenario: NetworkScenario, network: Network
) -> dict[str, E2E]:
    """Return the mean E2E under each order."""
    measured = {}
    for name in setup.each(settings.orders, 1, 2):
        busy = at_load(network, settings.orders_at)
        chosen = reversed_priorities(busy) if name == REVERSED else with_order(busy, name)
        served = simulate(
            chosen, jobs=scenario.jobs, until=scenario.until, seed=seed_of(chosen), record="jobs"
        )
        measured[name] = mean_e2e(served)
    return measured


def _e2e_table(measured: Mapping[str, E2E], load: float) -> pl.DataFrame:
    """Return a row per order: its mean E2E, and that of the slotted program."""
    return pl.DataFrame(
        [(name, e2e.mean, e2e.half, _E2E.get((name, load))) for name, e2e in measured.items()],
        {
            "order": pl.String,
            "mean_e2e_s": pl.Float64,
            "half_width_s": pl.Float64,
            "known_s": pl.Float64,
        },
        orient="row",
    )


def _by_formula(
    network: Network, ranking: Sequence[str], virtual: VirtualStation, push: VirtualStation
) -> list[Claim]:
    """Compare the load limits of the paper's priorities and of a push start with what is known."""
    model = network.model()
    by_stage = priority_stability(model, ranking).max_load
    by_phase = priority_stability(model, push.ranking, phases=True).max_load
    return [
        _limit("formula: the paper's priorities fail above", virtual, by_stage, _KNOWN_LIMIT),
        _limit("formula: a push start fails above", push, by_phase, _KNOWN_PUSH),
    ]


def _by_floods(network: Network, settings: _Settings) -> list[Claim]:
    """Compare the flood test below and above the limits with what the formulas say."""
    pushed = with_order(at_load(network, settings.push_at), order(push_start))
    cases = (
        (
            at_load(network, settings.stable_at),
            f"the paper's priorities at {settings.stable_at:g}",
            "stable",
        ),
        (
            at_load(network, settings.unstable_at),
            f"the paper's priorities at {settings.unstable_at:g}",
            "unstable",
        ),
        (pushed, f"a push start at {settings.push_at:g}", "unstable"),
    )
    return [
        verdict_claim(case, f"simulated: {what}", answer, f"{answer} (formula)")
        for case, what, answer in cases
    ]


def push_start(lines: Any, params: Any, weights: Any) -> int:
    """Prompts of the stage with the shortest ones first, then other stages, then the decodes of
    that stage.
    """
    short = 0
    for line in range(lines.shape[0]):
        if lines[line, LINE_PREFILL_MEAN] < lines[short, LINE_PREFILL_MEAN]:
            short = line
    for line in range(lines.shape[0]):
        weights[line, 0] = 2.0
        weights[line, 1] = 3.0
    weights[short, 0] = 4.0
    weights[short, 1] = 1.0
    return BY_PHASE


def _limit(what: str, virtual: VirtualStation, program: float, expected: float) -> Claim:
    """Compare the load limit of a virtual station, and that of the linear program, with what is
    known.
    """
    same = abs(virtual.max_load - expected) < _EXACT / 2 and abs(program - expected) < _EXACT / 2
    return Claim.judged(
        what, f"a load of {expected} (formula)",
        f"{virtual.max_load:.4f} (virtual station), {program:.4f} (linear program)",
        same, "formula, program or path is not the known one",
    )  # fmt: skip


def _amplified(network: Network, virtual: VirtualStation, load: float) -> Claim:
    """Compare the amplification by half a cycle, by formula and along a fluid path, with what is
    known.
    """
    first, second = virtual.amplification(load)
    formula = float(np.sqrt(first * second))
    growth = network_path(
        at_load(network, load).model(), virtual.ranking, first_stage(network)
    ).growth
    along = float("nan") if growth is None else float(np.sqrt(growth))
    published = next((value for at, value in _AMPLIFIED.items() if abs(at - load) < 1e-9), None)
    expected = formula if published is None else published
    same = abs(formula - expected) < _EXACT and abs(along - expected) < _EXACT
    return Claim.judged(
        f"formula: half a cycle multiplies a backlog, at {load:g}", f"{expected:.3f} (formula)",
        f"{formula:.3f} by formula, {along:.3f} along a fluid path", same,
        "the fluid path, or the formula, gives another figure",
    )  # fmt: skip


def mean_e2e(run: NetworkRun) -> E2E:
    """Return mean E2E of the jobs after a warm-up, with an interval by batch means."""
    done = run.finish >= 0
    e2e = ((run.finish - run.arrival)[done] * run.tick_s)[int(_WARMUP * done.sum()) :]
    refuse(
        e2e.size < _BATCHES,
        f"simulate: only {e2e.size} jobs end after the warm-up, too few for an interval; "
        "raise `jobs`",
    )
    means = np.array([batch.mean() for batch in np.array_split(e2e, _BATCHES)])
    half = stats.t.ppf(0.975, _BATCHES - 1) * means.std(ddof=1) / np.sqrt(_BATCHES)
    return E2E(float(e2e.mean()), float(half))


def _e2e(name: str, load: float, measured: E2E) -> list[Claim]:
    expected = next(
        (value for (of, at), value in _E2E.items() if of == name and abs(at - load) < 1e-9), None
    )
    if expected is None:
        return []
    return [
        Claim.judged(
            f"simulated: mean E2E at {load:g}, {name}", f"{expected} s (slotted program)",
            f"{measured.mean:.1f} +- {measured.half:.1f} s", measured.holds(expected),
            "outside the 95% interval widened by 5%: the run is too short",
        )
    ]  # fmt: skip


def _curves(stations: Mapping[str, VirtualStation], amplified: Mapping[float, float]) -> Any:
    """Draw the amplification by half a cycle over the load, with the threshold of each."""
    rows = [
        (name, float(load), float(np.sqrt(np.prod(virtual.amplification(load)))))
        for name, virtual in stations.items()
        for load in np.linspace(0.3, 0.9, 121)
    ]
    table = pl.DataFrame(rows, ["order", "load", "amplification"], orient="row")
    table = table.filter(pl.col("amplification").is_between(*_SHOWN))
    limits = pl.DataFrame(
        [(name, virtual.max_load) for name, virtual in stations.items()],
        ["order", "load"],
        orient="row",
    )
    look = channels("order", list(stations), "Order")
    x = alt.X(
        "load:Q",
        title="Load of each server",
        scale=alt.Scale(domain=[0.3, 0.9]),
        axis=alt.Axis(values=[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], format=".1f"),
    )
    y = alt.Y(
        "amplification:Q",
        title="Amplification by half a cycle (log scale)",
        scale=alt.Scale(type="log", domain=_SHOWN, nice=False),
        axis=alt.Axis(values=[0.3, 0.5, 1, 2, 3, 5, 10], minExtent=40),
    )
    lines = alt.Chart(table).mark_line(strokeWidth=2).encode(x=x, y=y, **look)
    one = alt.Chart(pl.DataFrame({"amplification": [1.0]})).mark_rule(color="black").encode(y=y)
    rules = alt.Chart(limits).mark_rule(strokeWidth=1.2).encode(x=x, **look)
    published = [(at, value) for at, value in amplified.items() if _SHOWN[0] <= value <= _SHOWN[1]]
    points = alt.Chart(pl.DataFrame(published, ["load", "amplification"], orient="row")).mark_point(
        size=60, filled=True, fill="white", stroke="black", opacity=1
    )
    texts = [
        alt.Chart(
            limits.filter(order=name).with_columns(text=pl.format("{}", pl.col("load").round(4)))
        )
        .mark_text(align="right" if index else "left", dx=-5 if index else 5, fontSize=11)
        .encode(x=x, y=alt.value(12), text="text:N")
        for index, name in enumerate(stations)
    ]
    return on_grid(
        alt.layer(one, rules, lines, points.encode(x=x, y=y), *texts).properties(
            width=430, height=280
        )
    )


def _dots(table: pl.DataFrame) -> Any:
    """Draw mean E2E by order with its interval, and what is known."""
    names = ["simulated here", "slotted program"]
    rows = [
        {"order": name, "low": mean - half, "high": mean + half, "mean": mean, "of": names[0]}
        for name, mean, half, _ in table.iter_rows()
    ]
    rows += [
        {"order": name, "low": None, "high": None, "mean": float(expected), "of": names[1]}
        for name, _, _, expected in table.iter_rows()
        if expected is not None
    ]
    base = alt.Chart(pl.DataFrame(rows))
    y = alt.Y(
        "order:N",
        sort=list(table["order"]),
        title=None,
        axis=alt.Axis(labelLimit=300, minExtent=150),
    )
    x = alt.X(
        "mean:Q", title="Mean E2E (s)", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6)
    )
    legend = alt.Legend(title=None, labelLimit=300, columns=1)
    marks = base.mark_point(opacity=1, strokeWidth=2).encode(
        x=x,
        y=y,
        size=alt.Size("of:N", scale=alt.Scale(domain=names, range=[150, 45]), legend=legend),
        color=alt.Color(
            "of:N", scale=alt.Scale(domain=names, range=list(charts.COLOURS[:2])), legend=legend
        ),
        shape=alt.Shape(
            "of:N", scale=alt.Scale(domain=names, range=["circle", "cross"]), legend=legend
        ),
    )
    bars = base.transform_filter("datum.low != null").mark_rule(
        strokeWidth=2, color=charts.COLOURS[0]
    )
    return on_grid(
        alt.layer(bars.encode(x=alt.X("low:Q"), x2="high:Q", y=y), marks).properties(
            width=430, height=200
        )
    )
