"""Which share of the stability region's boundary policies carry under a max batch size, along that
boundary.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import altair as alt
import polars as pl
from pydantic import Field

from penstock.capacity.max_rate import max_rate
from penstock.checking.verdict import verdict
from penstock.document import Section, Whole
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.reproducing.looks import SHAPES, cycled
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.system.server import Server
from penstock.theory.region import region
from penstock.workload.lengths import Constant, Geometric, Length
from penstock.workload.workload import Workload

Kind = Literal["constant", "geometric"]
MAKE: Mapping[Kind, Callable[[int], Length]] = {"constant": Constant, "geometric": Geometric}

_POLICIES = ("sarathi-128", "sarathi-256", "sarathi-1024", "maxweight", "pool-controlled")
_KNOWN = {
    "middle of CD": (
        (1.001, 0.999),
        (0.934, 0.921),
        (0.924, 0.909),
        (0.999, 1.001),
        (0.999, 1.001),
    ),
    "C": ((0.999, 0.971), (0.876, 0.871), (0.859, 0.849), (1.001, 1.001), (0.999, 0.991)),
    "quarter of CB": (
        (0.936, 0.936),
        (0.926, 0.929),
        (0.879, 0.881),
        (0.999, 1.001),
        (0.984, 0.986),
    ),
    "middle of CB": (
        (0.881, 0.881),
        (0.989, 0.984),
        (0.921, 0.919),
        (0.999, 1.001),
        (0.986, 0.989),
    ),
    "B": ((0.789, 0.789), (0.896, 0.896), (0.999, 0.996), (0.999, 0.999), (0.996, 0.994)),
}
KNOWN: dict[tuple[str, str, Kind], float] = {
    (point, policy, kind): value
    for point, cells in _KNOWN.items()
    for policy, pair in zip(_POLICIES, cells, strict=True)
    for kind, value in zip(MAKE, pair, strict=True)
}
"""Shares found by an independent program, to within .005, by point, policy and kind of lengths."""

_KNOWN_TO = 0.005  # how near the known shares are to the truth


class _Policy(Section):
    policy: str
    token_budget: Whole | None = None


class _Settings(Section):
    points: dict[str, Annotated[Whole, Field(ge=1, le=1_000_000)]] = Field(min_length=1)
    policies: dict[str, _Policy] = Field(min_length=1)
    lengths: Different[Kind] = Field(["geometric", "constant"], min_length=1)
    # Relative distance between the largest share found stable and the next one found not to be.
    precision: float = Field(0.01, ge=0.002, le=0.1)


class Bracket(NamedTuple):
    """The largest share that was found stable, and the least above it that was not."""

    stable: float
    unstable: float

    def holds(self, share: float) -> bool:
        """Whether a share that is known to its precision can lie in it."""
        return self.stable - _KNOWN_TO <= share <= self.unstable + _KNOWN_TO

    def __str__(self) -> str:
        return f"{self.stable:.3f} to {self.unstable:.3f}"


class _Cell(NamedTuple):
    """A policy at a point with lengths of a kind: what it carries, what is known, and why they
    differ if they do.
    """

    bracket: Bracket
    expected: float | None
    reason: str = ""


def run(setup: Setup) -> Reproduction:
    """Search for the share of the boundary that each policy carries, at each point."""
    settings = setup.settings(_Settings)
    scenario = setup.scenario()
    servers = {
        name: _server(setup, name, policy, scenario.server)
        for name, policy in settings.policies.items()
    }
    output = round(scenario.workload.mean_output)
    rows = []
    claims = []
    for point, name in setup.each(list(itertools.product(settings.points, servers))):
        by_kind: dict[Kind, _Cell] = {}
        for kind in settings.lengths:
            prompts = MAKE[kind](settings.points[point])
            outputs = MAKE[kind](output)
            boundary = region(scenario.server, prompt=prompts, output=outputs).max_rate
            workload = Workload.poisson(boundary, prompts, outputs, seed=scenario.workload.seed)
            by_kind[kind] = _cell(
                workload, servers[name], KNOWN.get((point, name, kind)), settings.precision
            )
            rows.append((point, name, kind, by_kind[kind].expected, *by_kind[kind].bracket))
        claims += _claims(point, name, by_kind)
    columns = {"point": pl.String, "policy": pl.String, "lengths": pl.String} | dict.fromkeys(
        ("known", "stable_at", "unstable_at"), pl.Float64
    )
    table = pl.DataFrame(rows, columns, orient="row")
    text = (
        "Share of the region's boundary that each policy carries, by point of the boundary, "
        "beside what is known."
    )
    prompts_of = ", ".join(f"{point} {tokens:,}" for point, tokens in settings.points.items())
    return setup.answer(
        claims, table, {text: _chart(table)},
        "A bar goes from the largest share of the boundary that was found stable to the least "
        "above it that was not. A white mark is the known share, from an independent program. "
        "Beyond 1 no policy is stable.",
        assumed=(
            f"Every share was searched for, to a precision of {settings.precision:.2g}; the known "
            "one plays no part in the search. The test of stability asks that no backlog grows: it "
            "tries one of prompts, a mixed one and one of decodes",
            "Verdict `same`: the known share lies between the two measured ones, or at most "
            f"{_KNOWN_TO} beside them, since it is known to within {_KNOWN_TO}",
            f"Arrivals are Poisson. Mean prompt tokens by point: {prompts_of}. Mean output "
            f"tokens: {output:,}",
            "Policies: " + ", ".join(_described(name, server) for name, server in servers.items()),
        ),
    )  # fmt: skip


def _described(name: str, server: Server) -> str:
    policy = "" if name == server.policy.name else f"{server.policy.name}, "
    return f"{name} ({policy}token budget {server.token_budget:,})"


def _server(setup: Setup, name: str, policy: _Policy, common: Server) -> Server:
    """Return the server of a policy, whose boundary is no further out than that of all."""
    choice = {key: value for key, value in policy.model_dump().items() if value is not None}
    server = setup.scenario(server=choice).server
    refuse(
        server.token_budget > common.token_budget,
        f"reproduce.policies.{name}.token_budget is {server.token_budget:,}, above "
        f"server.token_budget, {common.token_budget:,}, so the region of `server` does not bound "
        "this policy; lower it, or raise server.token_budget",
    )
    return server


def _cell(workload: Workload, server: Server, expected: float | None, precision: float) -> _Cell:
    """Search for the share of a workload's rate that a server carries, and say why if it is not the
    known one.
    """
    most = max_rate(workload, server, precision=precision, seed=workload.seed)
    bracket = Bracket(most.rate / workload.rate, most.above / workload.rate)
    if expected is None or bracket.holds(expected):
        return _Cell(bracket, expected)
    return _Cell(bracket, expected, _why(workload, server, expected))


def _why(workload: Workload, server: Server, expected: float) -> str:
    """Say which backlogs grow just below the known share, and which shrink."""
    share = expected - 2 * _KNOWN_TO
    watches = verdict(workload.with_rate(share * workload.rate), server, seed=workload.seed).watches
    grow, shrink = (
        [
            f"{_BACKLOGS[w.start]} {does} by {abs(w.drift):.1%}"
            for w in watches
            if w.outcome == outcome
        ]
        for outcome, does in (("unstable", "grows"), ("stable", "shrinks"))
    )
    where = f"at {share:.3f}, just below the known share,"
    if not (grow and shrink):
        return f"{where} {' and '.join(grow or shrink) or 'the test is undecided'}"
    drifts = f"{' and '.join(shrink)}, but {' and '.join(grow)}: the answer depends on the start"
    return f"{where} {drifts}, and the test asks that no backlog grows"


_BACKLOGS = {
    "prefill": "a backlog of prompts",
    "mixed": "a mixed backlog",
    "decode": "a backlog of decodes",
}


def _claims(point: str, name: str, cells: Mapping[Kind, _Cell]) -> list[Claim]:
    """Compare a policy at a point with what is known, a claim for all kinds of lengths; none if
    nothing is known.
    """
    expected = {kind: cell for kind, cell in cells.items() if cell.expected is not None}
    if not expected:
        return []
    apart = {kind: cell.reason for kind, cell in expected.items() if cell.reason}
    return [
        Claim(
            f"{point}, {name}",
            ", ".join(f"{kind} {cell.expected:.3f}" for kind, cell in expected.items()),
            ", ".join(f"{kind} {cell.bracket}" for kind, cell in expected.items()),
            not apart,
            "; ".join(f"{kind} lengths: {reason}" for kind, reason in apart.items()),
        )
    ]


def _chart(table: pl.DataFrame) -> Any:
    names = list(dict.fromkeys(table["policy"]))
    points = list(dict.fromkeys(table["point"]))
    x = alt.X("point:N", sort=points, title="Point of the boundary", axis=alt.Axis(labelAngle=-30))
    offset = alt.XOffset("policy:N", sort=names)
    legend = alt.Legend(title="Policy", symbolSize=130)
    colour = alt.Color("policy:N", sort=names, scale=cycled(names, charts.COLOURS), legend=legend)
    shape = alt.Shape("policy:N", sort=names, scale=cycled(names, SHAPES), legend=legend)
    least = min(0.75, float(table["stable_at"].min()) - 0.02)  # type: ignore[arg-type]
    scale = alt.Scale(domain=[least, 1.01], zero=False, nice=False)
    low = alt.Y("stable_at:Q", title="Share of the boundary", scale=scale)
    rule = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(strokeDash=[4, 3]).encode(y="y:Q")
    panels = []
    for kind in dict.fromkeys(table["lengths"]):
        base = alt.Chart(table.filter(lengths=kind), title=f"{kind.capitalize()} lengths")
        bars = base.mark_bar(size=12, stroke="#333333", strokeWidth=0.7).encode(
            x=x, xOffset=offset, y=low, y2="unstable_at:Q", color=colour
        )
        known = base.transform_filter("datum.known != null")
        dots = known.mark_point(
            size=26, filled=True, fill="white", stroke="black", strokeWidth=1, opacity=1
        ).encode(x=x, xOffset=offset, y=alt.Y("known:Q"), shape=shape)
        panels.append(
            alt.layer(rule, bars, dots).properties(width=max(60, 66 * len(points)), height=300)
        )
    return on_grid(alt.hconcat(*panels))
