"""Draw how many of 200 random servers and workloads each policy keeps stable at .98 of the region's
boundary.

Batch times, budgets, max batch sizes (scope ``batch``) and mean lengths are drawn from wide ranges;
a point is a direction, so its rate is put at .98 of what the stability region allows.
`penstock.verdict` judges, at a resolution of a quarter of a percent. Sarathi-Serve is tried with
its whole token budget and with every multiple of b0 below it, one after the other until one is
stable.

Run ``python benchmarks/studies/adaptive_sweep.py`` (7.5 minutes of processor time, on two cores);
it writes ``docs/figures/adaptive_sweep.svg`` and prints the points that fail.
"""

import concurrent.futures
import dataclasses
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from penstock.show import charts

POINTS = 200
SHARE = 0.98
RESOLUTION = 0.0025  # so fine that the backlogs dwarf the queues that MaxWeight keeps
LONGEST = 8  # means: lengths beyond are cut
BEST_BUDGET = "sarathi, best budget"


@dataclasses.dataclass(frozen=True)
class Point:
    """A server without its policy, and a workload at a share of the boundary."""

    number: int
    server: ps.Server
    prompt: ps.Geometric
    output: ps.Geometric

    @classmethod
    def draw(cls, number: int) -> "Point":
        """Draw one, each from a seed of its own."""
        rng = np.random.default_rng([2026, number])
        b0 = int(2 ** rng.integers(4, 9))
        batch_time = ps.PiecewiseConstant(
            c=_between(rng, 1e-3, 5e-2), a=_between(rng, 1e-3, 5e-2), b0=b0
        )
        budget = b0 * int(rng.integers(1, 17))
        slots = max(round(b0 * _between(rng, 1 / 8, 4)), 4)
        prompt, output = (float(round(_between(rng, 10, 4000))) for _ in range(2))
        lengths = (ps.Geometric(mean, max=round(LONGEST * mean)) for mean in (prompt, output))
        server = ps.Server(batch_time, budget, slots, scope="batch", convention="paper")
        return cls(number, server, *lengths)

    def verdict(self, policy: str, budget: int | None = None, share: float = SHARE) -> str:
        """Judge a policy, at another token budget if given."""
        bound = ps.region(self.server, prompt=self.prompt, output=self.output).max_rate
        workload = ps.Workload.poisson(share * bound, self.prompt, self.output)
        server = (
            self.server if budget is None else dataclasses.replace(self.server, token_budget=budget)
        )
        return ps.verdict(
            workload, server.with_policy(policy), resolution=RESOLUTION, seed=self.number
        ).verdict

    def verdicts(self) -> dict[str, str]:
        """Judge every policy."""
        found = {policy: self.verdict(policy) for policy in ps.POLICIES}
        found[BEST_BUDGET] = found["sarathi"]
        b0 = self.server.batch_time.b0  # type: ignore[attr-defined]
        for budget in range(b0, self.server.token_budget, b0):
            if found[BEST_BUDGET] != "stable":
                found[BEST_BUDGET] = self.verdict("sarathi", budget)
        return found

    def __str__(self) -> str:
        time = self.server.batch_time
        return (
            f"{self.number:3} c {time.c * 1e3:5.1f} a {time.a * 1e3:5.1f} ms b0 {time.b0:3} "  # type: ignore[attr-defined]
            f"b_max {self.server.token_budget:4} k {self.server.max_batch_size:4} "
            f"{self.prompt.mean_tokens:5.0f}/{self.output.mean_tokens:.0f}"
        )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def judged(number: int) -> tuple[Point, dict[str, str]]:
    """Return a point and its verdicts."""
    point = Point.draw(number)
    return point, point.verdicts()


def main() -> None:
    """Judge, print and draw."""
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        found = list(pool.map(judged, range(POINTS)))
    order = [*ps.POLICIES]
    order.insert(order.index("sarathi") + 1, BEST_BUDGET)
    rows = []
    for policy in order:
        outcomes = [verdicts[policy] for _, verdicts in found]
        shares = {
            outcome: outcomes.count(outcome) / POINTS
            for outcome in ("stable", "undecided", "unstable")
        }
        print(
            f"{policy:22}",
            "  ".join(f"{outcome} {share:6.1%}" for outcome, share in shares.items()),
        )
        rows += [
            {"policy": policy, "verdict": outcome, "share": share}
            for outcome, share in shares.items()
        ]
    for policy in order[order.index(BEST_BUDGET) + 1 :]:
        for point, verdicts in found:
            if verdicts[policy] != "stable":
                print(f"{policy:18} {verdicts[policy]:10} {point}")
    draw(rows, order)


def draw(rows: list[dict[str, str | float]], order: list[str]) -> None:
    """Draw the share of each verdict, a bar for each policy."""
    outcomes = ["stable", "undecided", "unstable"]
    colours = alt.Scale(domain=outcomes, range=["#0072B2", "#BBBBBB", "#E69F00"])
    bars = alt.Chart(pl.DataFrame(rows)).encode(
        y=alt.Y("policy:N", title=None, sort=order),
        x=alt.X(
            "share:Q",
            title=f"Share of {POINTS} points at {SHARE} of the boundary",
            axis=alt.Axis(format="%"),
        ),
        order=alt.Order("rank:Q"),
    )
    chart = (
        alt.layer(
            bars.mark_bar(stroke="#333333", strokeWidth=0.6).encode(
                color=alt.Color("verdict:N", title=None, sort=outcomes, scale=colours)
            ),
            bars.transform_filter("datum.verdict == 'stable' && datum.share > 0.1")
            .mark_text(align="right", dx=-6, fontSize=10, color="white")
            .encode(text=alt.Text("share:Q", format=".1%")),
        )
        .transform_calculate(rank="indexof(['stable', 'undecided', 'unstable'], datum.verdict)")
        .properties(
            width=560, height=260, title="Policies near the boundary of the stability region"
        )
        .configure_axis(labelLimit=300)
        .configure_legend(orient="top")
    )
    charts.save({"adaptive_sweep": chart}, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main()
