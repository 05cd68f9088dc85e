"""Two servers that are crossed both ways: priorities that lose a stable load."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import polars as pl
from pydantic import Field
from scipy import stats

from penstock.checking.variants import with_order
from penstock.checking.verdict import verdict
from penstock.document import Section
from penstock.errors import InputError
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.reproducing.looks import channels
from penstock.show.charts import on_grid
from penstock.simulation.network_run import NetworkRun
from penstock.simulation.simulate import simulate
from penstock.system.network import Network
from penstock.system.orders import Order
from penstock.theory.certificate import certify
from penstock.theory.network.fluid import network_path
from penstock.workload.lengths import Constant, Geometric, Length, Uniform
from penstock.workload.sessions import Sessions

Kind = Literal["constant", "geometric", "uniform"]

AS_PUBLISHED, REVERSED = "as published", "reversed"
NEAR = 0.05
"""Relative distance of a simulated figure from what is known that is noise."""

_MAKE: Mapping[Kind, Callable[[int], Length]] = {
    "constant": Constant,
    "geometric": Geometric,
    "uniform": lambda mean: Uniform(1, 2 * mean - 1),
}


class _Figure(Section):
    load: float = Field(0.9, gt=0, lt=1)
    lengths: Different[Kind] = Field(["constant", "geometric", "uniform"], min_length=1)


# What the paper says of the priorities: the verdict, and its words; it gives no numbers.
_PAPER: Mapping[str, tuple[str, str]] = {
    AS_PUBLISHED: ("unstable", "tokens grow without bound"),
    REVERSED: ("stable", "stability is restored"),
}


def figure(setup: Setup) -> Reproduction:
    """Simulate the published priorities and the reversed ones, with each kind of lengths."""
    settings = setup.settings(_Figure)
    scenario = setup.network()
    published = at_load(scenario.network, settings.load)
    orders = {AS_PUBLISHED: published, REVERSED: reversed_priorities(published)}
    envelope = fluid_envelope(published)
    claims, parts, growth, requests = [], [], [], []
    for name, kind in setup.each(list(itertools.product(orders, settings.lengths))):
        network = with_lengths(orders[name], kind)
        run = simulate(
            network,
            jobs=scenario.jobs,
            until=scenario.until,
            seed=seed_of(network),
            record="jobs",
            drain=False,
        )
        claims.append(verdict_claim(network, f"{name}, {kind} lengths", *_PAPER[name]))
        series = totals(run)
        parts.append(series.with_columns(order=pl.lit(name), lengths=pl.lit(kind)))
        if name == REVERSED:
            requests.append(_requests(series, kind))
        else:
            growth += _growth(series, kind, envelope)
    table = pl.concat(parts).select("order", "lengths", "time_s", "requests", "tokens")
    text = (
        "Requests and tokens over time under the published priorities and under the reversed "
        "ones, by kind of lengths."
    )
    return setup.answer(
        (*claims, *growth, *requests), table,
        {text: _panels(table, settings.lengths)},
        f"{slot_sentence(published)}Tokens: all that the tasks in the network still need, their "
        "later stages included.",
        assumed=(
            "Same means: the flood test says what the paper says, and no theorem says otherwise; "
            "tokens grow by more than half of what the fluid path gives; the most tokens over time "
            f"are within {NEAR:.0%} of the fluid path; the mean number of requests in the later "
            f"half is below {_LEVEL:g} times that in the second quarter",
            "The paper gives means only; each kind of lengths is simulated",
            "A fixed priority between classes is not K-FCFS, so the figure shows what work "
            "conservation alone cannot do, and contradicts none of the paper's theorems",
        ),
    )  # fmt: skip


def slot_sentence(network: Network) -> str:
    """Say that a second is a slot, where every batch of every pool takes one."""
    servers = [pool.server for pool in network.pools.values()]
    seconds = {
        float(server.batch_time(load)) for server in servers for load in (1, server.token_budget)
    }
    return "A batch takes 1 s, so a second is a slot. " if seconds == {1.0} else ""


def at_load(network: Network, load: float) -> Network:
    """Return a network with its rates scaled so that its busiest pool has a load."""
    return network.with_load(load / float(network.model().rho.max()))


def reversed_priorities(network: Network) -> Network:
    """Return a network with the priorities of each pool turned around.

    Raises
    ------
    InputError
        If a pool has no priorities.
    """
    for name, pool in network.pools.items():
        refuse(
            not pool.order.ranks_stages,
            f"network.pools.{name}.order is {pool.order.name}, which cannot be turned around; "
            f"{_GIVE}",
        )
    return with_order(
        network,
        {name: Order.priority(pool.order.stages[::-1]) for name, pool in network.pools.items()},
    )


_GIVE = "give {priority: [stages]}, most urgent first"


def with_lengths(network: Network, kind: Kind) -> Network:
    """Return a network whose lengths are of a kind, their means as they were."""
    model = network.model()
    means = {
        name: (round(float(prompt)), round(float(output)))
        for name, prompt, output in zip(model.stages, model.prefill, model.decode, strict=True)
    }
    workflows = []
    for workflow in network.workflows:
        if isinstance(workflow, Sessions):
            raise InputError(
                f"workflow {workflow.name} has recorded lengths; give it stages with lengths of "
                "their own"
            )
        stages = {}
        for name, stage in workflow.stages.items():
            prompt, output = means[f"{workflow.name}.{name}"]
            stages[name] = dataclasses.replace(
                stage, prompt=_MAKE[kind](prompt), output=_MAKE[kind](output)
            )
        workflows.append(dataclasses.replace(workflow, stages=stages))
    return dataclasses.replace(network, workflows=workflows)


def seed_of(network: Network) -> int:
    """Return the seed of a network's first workflow."""
    first = network.workflows[0]
    return first.seed if isinstance(first, Sessions) else first.arrivals.seed


def totals(run: NetworkRun) -> pl.DataFrame:
    """Return requests in the network, and tokens that its jobs still need, while jobs arrive."""
    until = run.last_arrival * run.tick_s
    shown = pl.col("what").is_in(["prefill", "decode"])
    return (
        run.series.filter(pl.col("time_s") <= until)
        .group_by("time_s", maintain_order=True)
        .agg(
            pl.col("value").filter(shown).sum().alias("requests"),
            pl.col("value").filter(pl.col("what") == "job_tokens").sum().alias("tokens"),
        )
    )


def fluid_envelope(network: Network) -> float | None:
    """Return the most tokens over time, per second, along the fluid path; None where it does not
    grow for ever.
    """
    model = network.model()
    virtual = certify(network).virtual_station
    if virtual is None:
        return None
    path = network_path(model, virtual.ranking, first_stage(network))
    if not path.grows:
        return None
    late = slice(path.time_s.size // 2, None)
    tokens = path.work_s[late] * float(model.full_batch.max())
    return float((tokens / path.time_s[late]).max())


def first_stage(network: Network) -> str:
    """Return a stage that jobs begin with."""
    return network.stages[int(network.first_stage[0])]


def verdict_claim(network: Network, what: str, expected: str, published: str) -> Claim:
    """Compare both of the library's verdicts with the one that is expected, for what was said."""
    certificate, simulated = certify(network), verdict(network).verdict
    theory = certificate.verdict
    same = simulated == expected and theory in (expected, "unknown")
    measured = f"{simulated} by floods, {theory} by theorem"
    reason = "" if same else "too close to critical for the test, or the verdict is wrong"
    if same and theory == "unknown":
        reason = f"no theorem decides, so the flood test does: {certificate.reason}"
    return Claim(what, published, measured, same, reason)


def _growth(series: pl.DataFrame, kind: Kind, envelope: float | None) -> list[Claim]:
    """Compare the slope of all tokens, and the most tokens over time in the later half, with the
    fluid path.
    """
    time, tokens = series["time_s"].to_numpy(), series["tokens"].to_numpy()
    slope = float(stats.linregress(time, tokens).slope)
    same = envelope is not None and slope > envelope / 2
    late = time > time[-1] / 2
    most = float((tokens[late] / time[late]).max())
    words = _PAPER[AS_PUBLISHED][1]
    claims = [
        Claim.judged(
            f"growth, {kind} lengths", words, f"{slope:,.0f} tokens/s", same,
            "waves grow ever longer, so a slope depends on where in a wave the run ends",
        )
    ]  # fmt: skip
    if envelope is not None:
        near = abs(most / envelope - 1) <= NEAR
        claims.append(
            Claim.judged(
                f"most tokens over time, {kind} lengths", words,
                f"{most:,.0f} tokens/s simulated, {envelope:,.0f} by the fluid path", near,
                "the run has too few waves to come near the fluid path",
            )
        )  # fmt: skip
    return claims


# Ratio of requests, late in a run to earlier, below which they do not grow; it is 2 where they grow
# as time does.
_LEVEL = 1.5


def _requests(series: pl.DataFrame, kind: Kind) -> Claim:
    """Compare the mean number of requests in the later half of a run with that in the quarter
    before.
    """
    end = series["time_s"][-1]
    early, late = (
        float(series.filter(pl.col("time_s").is_between(a * end, b * end))["requests"].mean())  # type: ignore[arg-type]
        for a, b in ((0.25, 0.5), (0.5, 1.0))
    )
    same = late < _LEVEL * early
    return Claim.judged(
        f"requests when reversed, {kind} lengths", _PAPER[REVERSED][1],
        f"{early:,.0f} in the second quarter, {late:,.0f} in the later half", same,
        "the run is too short for its means to settle",
    )  # fmt: skip


def _panels(table: pl.DataFrame, kinds: Sequence[str]) -> Any:
    """Draw requests and tokens over time, a row per priority, a line per kind of lengths."""
    rows = []
    look = channels("lengths", kinds, "Lengths")
    for name in dict.fromkeys(table["order"]):
        here = table.filter(order=name)
        thin = -(-here.height // (400 * len(kinds)))
        thinned = pl.concat([here.filter(lengths=kind).gather_every(thin) for kind in kinds])
        side_by_side = [
            alt.Chart(thinned)
            .mark_line(strokeWidth=1.5)
            .encode(
                x=alt.X(
                    "time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5, format="~s", offset=5)
                ),
                y=alt.Y(f"{of}:Q", title=unit, axis=alt.Axis(format="~s", tickCount=6, offset=5)),
                **look,
            )
            .properties(width=330, height=200)
            for of, unit in (
                ("requests", "Requests in the network"),
                ("tokens", "Tokens still needed"),
            )
        ]
        rows.append(
            alt.hconcat(*side_by_side).properties(
                title=alt.TitleParams(f"Priorities {name}", anchor="start")
            )
        )
    return on_grid(alt.vconcat(*rows))
