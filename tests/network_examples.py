"""Networks that several tests ask about: two servers crossed both ways, a loop, a fork and join."""

from collections.abc import Callable

import penstock as ps
from penstock.workload.lengths import Length

UNIT = ps.Server(ps.Affine(c=1.0, a=0.0), 768, convention="paper")
"""A batch of up to 768 tokens takes a second."""

DESTABILISING = (["b.long", "a.short"], ["a.long", "b.short"])
"""At each server what leaves after it goes first (Section 5.4 of the paper)."""

REVERSED = (["a.short", "b.long"], ["b.short", "a.long"])


def constant(tokens: int) -> Length:
    return ps.Constant(tokens)


def uniform(tokens: int) -> Length:
    """From 1 to 2 m - 1: mean m."""
    return ps.Uniform(1, 2 * tokens - 1)


def rybko_stolyar(
    rho: float,
    order: str | tuple[list[str], list[str]] = "fcfs",
    lengths: Callable[[int], Length] = constant,
) -> ps.Network:
    """Two workflows cross two servers in opposite directions, each a short call and then a long one."""
    rate = rho * 768 / (64 + 544)
    orders = [order, order] if isinstance(order, str) else [ps.Order.priority(stages) for stages in order]

    def crossing(name: str, first: str, second: str, seed: int) -> ps.Workflow:
        stages = {
            "short": ps.Stage(first, lengths(32), lengths(32), then="long"),
            "long": ps.Stage(second, lengths(512), lengths(32)),
        }
        return ps.Workflow(name, ps.Workload.poisson(rate, 1, 1, seed=seed), stages)

    pools = {name: ps.Pool(UNIT, order=each) for name, each in zip(("one", "two"), orders, strict=True)}
    return ps.Network(pools, [crossing("a", "one", "two", 0), crossing("b", "two", "one", 1)])


def self_reflection(rho: float, again: float = 0.5) -> ps.Network:
    """Generate, evaluate, and with some probability once more: both servers at the same load."""
    rate = rho * 768 * (1 - again) / 600
    stages = {
        "generate": ps.Stage("generator", 500, 100, then="evaluate"),
        "evaluate": ps.Stage("evaluator", 550, 50, then={"generate": again, "end": 1 - again}),
    }
    pools = {name: ps.Pool(UNIT) for name in ("generator", "evaluator")}
    return ps.Network(pools, [ps.Workflow("reflect", ps.Workload.poisson(rate, 1, 1), stages)])


def fork_join(rho: float) -> ps.Network:
    """Plan, search and analyse side by side, synthesise (Figure "agentic workflows" (b)): the search is at the load."""
    rate = rho * 768 / 640
    stages = {
        "plan": ps.Stage("planner", 300, 60, then=["search", "analyse"]),
        "search": ps.Stage("searcher", 600, 40, then="synthesise"),
        "analyse": ps.Stage("analyst", ps.Geometric(200, max=2000), ps.Geometric(150, max=1500), then="synthesise"),
        "synthesise": ps.Stage("writer", 400, 120, join=True),
    }
    pools = {name: ps.Pool(UNIT) for name in ("planner", "searcher", "analyst", "writer")}
    return ps.Network(pools, [ps.Workflow("research", ps.Workload.poisson(rate, 1, 1), stages)])


def dag(rho: float) -> ps.Network:
    """Two workflows through three servers, with branches and a loop on one server; the last is at the load."""
    draft = {
        "read": ps.Stage("small", 200, 20, then={"write": 0.7, "end": 0.3}),
        "write": ps.Stage("middle", 300, 100, then={"write": 0.2, "check": 0.5, "end": 0.3}),
        "check": ps.Stage("large", 500, 140),
    }
    answer = {
        "route": ps.Stage("small", 100, 10, then={"solve": 0.4, "end": 0.6}),
        "solve": ps.Stage("large", 250, 150),
    }
    # per unit of rate the large server gets .4375 checks of 640 tokens and .4 answers of 400
    rate = rho * 768 / (0.4375 * 640 + 0.4 * 400)
    pools = {name: ps.Pool(UNIT) for name in ("small", "middle", "large")}
    workflows = [
        ps.Workflow(name, ps.Workload.poisson(rate, 1, 1, seed=seed), stages)
        for seed, (name, stages) in enumerate((("draft", draft), ("answer", answer)))
    ]
    return ps.Network(pools, workflows)
