"""Two servers that are crossed both ways: priorities that lose a stable load, and the loads above
which they do.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import polars as pl
from pydantic import Field
from scipy import stats

from penstock.checking.orders import with_order
from penstock.checking.verdict import verdict
from penstock.document import Section
from penstock.errors import InputError
from penstock.kernel.signatures import BY_PHASE, LINE_PREFILL_MEAN
from penstock.reproducing import rybko_stolyar_figures as figures
from penstock.reproducing.claims import Claim, Reproduction
from penstock.reproducing.setup import Different, Setup
from penstock.scenario.network import NetworkScenario
from penstock.simulation.network_run import NetworkRun
from penstock.simulation.simulate import simulate
from penstock.system.network import Network
from penstock.system.orders import Order, order
from penstock.theory.certificate import certify
from penstock.theory.network.cycles import priority_stability
from penstock.theory.network.fluid import network_path
from penstock.theory.network.virtual_stations import VirtualStation, priority_limit, worst_priority
from penstock.workload.lengths import Constant, Geometric, Length, Uniform
from penstock.workload.sessions import Sessions

Kind = Literal["constant", "geometric", "uniform"]

AS_PUBLISHED, REVERSED = "as published", "reversed"
_NEAR = 0.05
"""Relative distance of a simulated figure from what is known that is noise."""
_EXACT = 1e-3


_MAKE: Mapping[Kind, Callable[[int], Length]] = {
    "constant": Constant,
    "geometric": Geometric,
    "uniform": lambda mean: Uniform(1, 2 * mean - 1),
}


class _Figure(Section):
    load: float = Field(0.9, gt=0, lt=1)
    lengths: Different[Kind] = Field(["constant", "geometric", "uniform"], min_length=1)


_PAPER: Mapping[str, tuple[str, str]] = {
    AS_PUBLISHED: ("unstable", "tokens grow without bound"),
    REVERSED: ("stable", "stability is restored"),
}
"""What the paper says of the priorities: the verdict, and its words; it gives no numbers."""


def figure(setup: Setup) -> Reproduction:
    """Simulate the published priorities and the reversed ones, with each kind of lengths."""
    settings = setup.settings(_Figure)
    scenario = setup.network()
    published = _at_load(scenario.network, settings.load)
    orders = {AS_PUBLISHED: published, REVERSED: reversed_priorities(published)}
    envelope = fluid_envelope(published)
    claims, parts, growth, requests = [], [], [], []
    steps = list(itertools.product(orders, settings.lengths))
    for index, (name, kind) in enumerate(steps):
        network = with_lengths(orders[name], kind)
        run = simulate(
            network,
            jobs=scenario.jobs,
            until=scenario.until,
            seed=_seed(network),
            record="jobs",
            drain=False,
        )
        claims.append(_verdict(network, f"{name}, {kind} lengths", *_PAPER[name]))
        series = totals(run)
        parts.append(series.with_columns(order=pl.lit(name), lengths=pl.lit(kind)))
        if name == REVERSED:
            requests.append(_requests(series, kind))
        else:
            growth += _growth(series, kind, envelope)
        setup.progress((index + 1) / len(steps))
    table = pl.concat(parts).select("order", "lengths", "time_s", "requests", "tokens")
    text = (
        "Requests and tokens over time under the published priorities and under the reversed "
        "ones, by kind of lengths."
    )
    return setup.answer(
        (*claims, *growth, *requests), table,
        {text: figures.panels(table, settings.lengths)},
        f"{_slots(published)}Tokens: all that the tasks in the network still need, their later "
        "stages included.",
        assumed=(
            "Same means: the flood test says what the paper says, and no theorem says otherwise; "
            "tokens grow by more "
            "than half of what the fluid path gives; the most tokens over time are within "
            f"{_NEAR:.0%} of the fluid "
            f"path; the mean number of requests in the later half is below {_LEVEL:g} times that "
            "in the second quarter",
            "The paper gives means only; each kind of lengths is simulated",
            "A fixed priority between classes is not K-FCFS, so the figure shows what work "
            "conservation alone cannot "
            "do, and contradicts none of the paper's theorems",
        ),
    )  # fmt: skip


def _slots(network: Network) -> str:
    """Say that a second is a slot, where every batch of every pool takes one."""
    servers = [pool.server for pool in network.pools.values()]
    seconds = {
        float(server.batch_time(load)) for server in servers for load in (1, server.token_budget)
    }
    return "A batch takes 1 s, so a second is a slot. " if seconds == {1.0} else ""


def _at_load(network: Network, load: float) -> Network:
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
        if not pool.order.ranks_stages:
            raise InputError(
                f"network.pools.{name}.order is {pool.order.name}, which cannot be turned around; "
                f"{_GIVE}"
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


def _seed(network: Network) -> int:
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
    path = network_path(model, virtual.ranking, _first_stage(network))
    if not path.grows:
        return None
    late = slice(path.time_s.size // 2, None)
    tokens = path.work_s[late] * float(model.full_batch.max())
    return float((tokens / path.time_s[late]).max())


def _first_stage(network: Network) -> str:
    """Return a stage that jobs begin with."""
    return network.stages[int(network.first_stage[0])]


def _verdict(network: Network, what: str, expected: str, published: str) -> Claim:
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
        near = abs(most / envelope - 1) <= _NEAR
        claims.append(
            Claim.judged(
                f"most tokens over time, {kind} lengths", words,
                f"{most:,.0f} tokens/s simulated, {envelope:,.0f} by the fluid path", near,
                "the run has too few waves to come near the fluid path",
            )
        )  # fmt: skip
    return claims


_LEVEL = 1.5
"""Ratio of requests, late in a run to earlier, below which they do not grow; it is 2 where they
grow as time does.
"""


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


class _Thresholds(Section):
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
        return abs(self.mean - value) <= self.half + _NEAR * self.mean


_KNOWN_LIMIT, _KNOWN_PUSH = 0.5588, 0.5429
_AMPLIFIED = {0.5: 0.810, 0.7: 1.676, 0.9: 4.135}
_E2E = {
    (REVERSED, 0.9): 70, (REVERSED, 0.95): 74, (REVERSED, 0.98): 82, (REVERSED, 0.99): 93,
    ("back-pressure", 0.9): 79, ("back-pressure", 0.95): 82, ("back-pressure", 0.98): 90,
    ("back-pressure", 0.99): 102,
    ("back-pressure-phase", 0.9): 86, ("back-pressure-phase", 0.95): 91,
    ("back-pressure-phase", 0.98): 100,
    ("back-pressure-phase", 0.99): 112,
    ("hlpps", 0.9): 72, ("hlpps", 0.95): 81, ("hlpps", 0.98): 107, ("hlpps", 0.99): 158,
    ("fcfs", 0.9): 77, ("fcfs", 0.95): 90, ("fcfs", 0.98): 127, ("fcfs", 0.99): 192,
    ("global-age", 0.9): 198, ("global-age", 0.95): 281, ("global-age", 0.98): 416,
    ("global-age", 0.99): 515,
}  # fmt: skip
"""Mean E2E in slots, by order and load, from an independent slotted program."""

_WARMUP, _BATCHES = 0.2, 30


def thresholds(setup: Setup) -> Reproduction:
    """Compare load limits, amplification and E2E with formulas and an independent program."""
    settings = setup.settings(_Thresholds)
    scenario = setup.network()
    network = _at_load(scenario.network, 1.0)
    reversed_priorities(network)  # which refuses orders that are no priorities
    ranking = [stage for pool in network.pools.values() for stage in pool.order.stages]
    virtual = priority_limit(network.model(), ranking)
    push = worst_priority(network.model(), phases=True)
    if virtual is None or push is None:
        raise InputError(
            "the priorities of these pools have no virtual station, so nothing but a load of 1 "
            "makes them fail; serve "
            "the long second stage first at each pool"
        )
    # 1. limits and amplification by formula  2. floods below and above  3. E2E by order, simulated
    claims = _by_formula(network, ranking, virtual, push)
    claims += [_amplified(network, virtual, load) for load in settings.loads]
    setup.progress(0.2)
    claims += _by_floods(network, settings)
    setup.progress(0.6)
    measured = _simulated(setup, settings, scenario, network)
    claims += [
        claim for name, e2e in measured.items() for claim in _e2e(name, settings.orders_at, e2e)
    ]
    table = _e2e_table(measured, settings.orders_at)
    charts = {
        "Amplification of a backlog by half a cycle, over the load, for two priorities: each "
        "passes 1 at its limit.":
        figures.curves({"the paper's priorities": virtual, "push start": push}, _AMPLIFIED),
        f"Mean E2E by order at a load of {settings.orders_at:g}, with intervals, beside that of a "
        "slotted program.":
        figures.dots(table),
    }  # fmt: skip
    return setup.answer(
        claims, table, charts,
        "First figure: where half a cycle multiplies a backlog by more than 1, right of the "
        "vertical line, queues grow "
        "without end; the dots are the formula's figures. "
        "Second figure: E2E of an independent slotted program beside those simulated here. "
        f"{_slots(network)}".rstrip(),
        assumed=(
            "Rows marked formula compare formulas with a linear program or a fluid path; rows "
            "marked simulated are "
            "simulated here",
            "Same means: limits within 0.0005, amplifications within 0.001; of E2E, the other "
            "figure lies in the 95% "
            "interval widened by 5%",
            "The E2E of the slotted program come from an independent program with slots of 1 s, "
            "where requests arrive "
            "and move on between slots; here they arrive at any time",
        ),
    )  # fmt: skip


def _simulated(
    setup: Setup, settings: _Thresholds, scenario: NetworkScenario, network: Network
) -> dict[str, E2E]:
    """Return the mean E2E under each order."""
    measured = {}
    for index, name in enumerate(settings.orders):
        busy = _at_load(network, settings.orders_at)
        chosen = reversed_priorities(busy) if name == REVERSED else with_order(busy, name)
        run = simulate(
            chosen, jobs=scenario.jobs, until=scenario.until, seed=_seed(chosen), record="jobs"
        )
        measured[name] = mean_e2e(run)
        setup.progress(0.6 + 0.4 * (index + 1) / len(settings.orders))
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


def _by_floods(network: Network, settings: _Thresholds) -> list[Claim]:
    """Compare the flood test below and above the limits with what the formulas say."""
    pushed = with_order(_at_load(network, settings.push_at), order(push_start))
    cases = (
        (
            _at_load(network, settings.stable_at),
            f"the paper's priorities at {settings.stable_at:g}",
            "stable",
        ),
        (
            _at_load(network, settings.unstable_at),
            f"the paper's priorities at {settings.unstable_at:g}",
            "unstable",
        ),
        (pushed, f"a push start at {settings.push_at:g}", "unstable"),
    )
    return [
        _verdict(case, f"simulated: {what}", answer, f"{answer} (formula)")
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
        _at_load(network, load).model(), virtual.ranking, _first_stage(network)
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
    if e2e.size < _BATCHES:
        raise InputError(
            f"simulate: only {e2e.size} jobs end after the warm-up, too few for an interval; "
            "raise `jobs`"
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
    same = measured.holds(expected)
    return [
        Claim.judged(
            f"simulated: mean E2E at {load:g}, {name}", f"{expected} s (slotted program)",
            f"{measured.mean:.1f} +- {measured.half:.1f} s", same,
            "outside the 95% interval widened by 5%: the run is too short",
        )
    ]  # fmt: skip
