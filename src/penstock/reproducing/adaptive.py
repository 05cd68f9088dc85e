"""Which share of the stability region's boundary policies carry under a max batch size, along that boundary."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import altair as alt
import polars as pl
from pydantic import Field

from penstock import plotting
from penstock.analysis.stability import verdict
from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.reproducing.asked import Asked, Different
from penstock.reproducing.catalogue import Item
from penstock.reproducing.claims import Claim, Reproduction
from penstock.system.server import Server
from penstock.theory.region import region
from penstock.workload.lengths import Constant, Geometric, Length
from penstock.workload.workload import Workload

Kind = Literal["constant", "geometric"]
MAKE: Mapping[Kind, Callable[[int], Length]] = {"constant": Constant, "geometric": Geometric}

_POLICIES = ("sarathi-128", "sarathi-256", "sarathi-1024", "maxweight", "pool-controlled")
_KNOWN = {
    "middle of CD": ((1.001, 0.999), (0.934, 0.921), (0.924, 0.909), (0.999, 1.001), (0.999, 1.001)),
    "C": ((0.999, 0.971), (0.876, 0.871), (0.859, 0.849), (1.001, 1.001), (0.999, 0.991)),
    "quarter of CB": ((0.936, 0.936), (0.926, 0.929), (0.879, 0.881), (0.999, 1.001), (0.984, 0.986)),
    "middle of CB": ((0.881, 0.881), (0.989, 0.984), (0.921, 0.919), (0.999, 1.001), (0.986, 0.989)),
    "B": ((0.789, 0.789), (0.896, 0.896), (0.999, 0.996), (0.999, 0.999), (0.996, 0.994)),
}
KNOWN: dict[tuple[str, str, Kind], float] = {
    (point, policy, kind): value
    for point, cells in _KNOWN.items()
    for policy, pair in zip(_POLICIES, cells, strict=True)
    for kind, value in zip(MAKE, pair, strict=True)
}
"""Shares found by an independent program, to within .005, by point, policy and kind of lengths."""

_PRECISION = 0.005
_FIRST = 0.95
"""Where a cell of which nothing is known is looked for."""
_LEAST, _MOST = 0.05, 1.5
"""Shares beyond which no cell is looked for."""
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]


class _Policy(Section):
    policy: str
    token_budget: Whole | None = None


class _Settings(Section):
    points: dict[str, Annotated[Whole, Field(ge=1, le=1_000_000)]] = Field(min_length=1)
    policies: dict[str, _Policy] = Field(min_length=1)
    lengths: Different[Kind] = Field(["constant", "geometric"], min_length=1)
    width: float = Field(0.03, ge=0.01, le=0.1)


class Bracket(NamedTuple):
    """The largest share that was judged stable, and the least that was judged unstable."""

    stable: float
    unstable: float

    def holds(self, share: float) -> bool:
        """Whether a share that is known to its precision can lie in it."""
        return self.stable - _PRECISION <= share <= self.unstable + _PRECISION

    def __str__(self) -> str:
        return f"{_share(self.stable)}-{_share(self.unstable)}"


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _run(asked: Asked, item: Item) -> Reproduction:
    settings, given = asked.settings(_Settings), asked.scenario()
    output = round(given.workload.mean_output)
    cells = [(point, policy) for point in settings.points for policy in settings.policies]
    rows, claims = [], []
    for place, (point, name) in enumerate(cells):
        choice = {key: value for key, value in settings.policies[name].model_dump().items() if value is not None}
        server = asked.scenario(server=choice).server
        found: dict[Kind, Bracket] = {}
        for kind in settings.lengths:
            prompts, outputs = MAKE[kind](settings.points[point]), MAKE[kind](output)
            most = region(given.server, prompt=prompts, output=outputs).max_rate
            workload = Workload.poisson(most, prompts, outputs, seed=given.workload.seed)
            found[kind] = bracket(workload, server, KNOWN.get((point, name, kind), _FIRST), settings.width)
            rows.append((point, name, kind, KNOWN.get((point, name, kind)), *found[kind]))
        claims += _claims(point, name, found)
        asked.progress((place + 1) / len(cells))
    columns = {"point": pl.String, "policy": pl.String, "lengths": pl.String} | dict.fromkeys(
        ("published", "stable_at", "unstable_at"), pl.Float64
    )
    table = pl.DataFrame(rows, columns, orient="row")
    text = "Share of the region's boundary that each policy carries, by point of the boundary, beside what is known."
    return Reproduction(
        item.name, item.title, item.source, tuple(claims), table, {text: _chart(table)},
        "Bars: from the largest share of the boundary that was judged stable to the least that was judged unstable; a "
        "white mark is the share known from an independent program. Beyond 1 every policy is unstable.",
        assumed=("Arrivals are Poisson; a share is judged on both sides of the known one, and not found more closely",),
    )  # fmt: skip


def bracket(workload: Workload, server: Server, first: float, width: float) -> Bracket:
    """Return shares of the workload's rate between which a server ceases to be stable, from a first guess outwards.

    Raises
    ------
    InputError
        If it does not cease to be stable anywhere near the rate.
    """

    def judged(share: float) -> str:
        return verdict(workload.with_rate(share * workload.rate), server, seed=workload.seed).verdict

    low, high, carried = first - width / 2, first + width / 2, False
    while (said := judged(high)) != "unstable":
        if high > _MOST:
            raise InputError(
                f"{server.policy.name} is judged {said} at {high:.3g} times the boundary of the region of `server`, so "
                "that is not its boundary; give no policy a token_budget above server.token_budget"
            )
        low, high, carried = (high, high + width, True) if said == "stable" else (low, high + width, carried)
    while not carried and low > _LEAST and (said := judged(low)) != "stable":
        low, high = low - width, low if said == "unstable" else high
    return Bracket(max(low, 0.0), high)


_IN_STEP = (
    "constant lengths keep requests in step, or out of step, for ever, and out of step a fixed budget carries less; "
    "the test starts from both and calls unstable what grows in either, a run that begins empty sees one of them"
)
_FOUND = "the test asks for no growth from three large backlogs, and a run that begins empty may miss what grows slowly"


def _claims(point: str, name: str, found: Mapping[Kind, Bracket]) -> list[Claim]:
    """Compare a cell with what is known, a claim for all its kinds of lengths; none where nothing is known."""
    known = {kind: KNOWN[point, name, kind] for kind in found if (point, name, kind) in KNOWN}
    if not known:
        return []
    apart = [kind for kind, share in known.items() if not found[kind].holds(share)]
    why = "" if not apart else _IN_STEP if "constant" in apart else _FOUND
    return [
        Claim(
            f"{point}, {name}",
            "known: " + " / ".join(_share(share) for share in known.values()),
            " / ".join(str(found[kind]) for kind in known),
            not apart,
            why,
        )
    ]


def _chart(table: pl.DataFrame) -> alt.HConcatChart:
    names, points = list(dict.fromkeys(table["policy"])), list(dict.fromkeys(table["point"]))
    panels = []
    for kind in dict.fromkeys(table["lengths"]):
        x = alt.X("point:N", sort=points, title="Point of the boundary", axis=alt.Axis(labelAngle=-30))
        offset = alt.XOffset("policy:N", sort=names)
        legend = alt.Legend(title="Policy", symbolSize=130)
        colour = alt.Color(
            "policy:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[plotting.COLOURS[i % 7] for i in range(len(names))]),
            legend=legend,
        )
        base = alt.Chart(table.filter(lengths=kind), title=f"{kind.capitalize()} lengths")
        scale = alt.Scale(domainMin=min(0.75, float(table["stable_at"].min()) - 0.02), zero=False, nice=False)  # type: ignore[arg-type]
        low = alt.Y("stable_at:Q", title="Share of the boundary", scale=scale)
        bars = base.mark_bar(size=10, stroke="#333333", strokeWidth=0.7).encode(
            x=x, xOffset=offset, y=low, y2="unstable_at:Q", color=colour
        )
        seen = base.transform_filter("datum.published != null")
        shape = alt.Shape("policy:N", sort=names, scale=alt.Scale(domain=names, range=_SHAPES), legend=legend)
        dots = seen.mark_point(size=32, filled=True, fill="white", stroke="black", strokeWidth=1, opacity=1).encode(
            x=x, xOffset=offset, y=alt.Y("published:Q"), shape=shape
        )
        rule = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(strokeDash=[4, 3]).encode(y="y:Q")
        panels.append(alt.layer(rule, bars, dots).properties(width=max(60, 66 * len(points)), height=300))
    chart: Any = alt.hconcat(*panels).configure_axis(gridColor=plotting.GRID)
    return chart  # type: ignore[no-any-return]


RUN: dict[str, Callable[[Asked, Item], Reproduction]] = {"adaptive-policies": _run}
