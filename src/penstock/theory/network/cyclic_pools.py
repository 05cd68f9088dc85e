"""What is known of pools between which jobs go round."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import InputError
from penstock.system.network_model import NetworkModel
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis
from penstock.theory.network.fluid_classes import fluid_classes
from penstock.theory.network.hypotheses import PoolRules

if TYPE_CHECKING:
    from penstock.theory.network.cycles import GlobalStability
    from penstock.theory.network.virtual_stations import VirtualStation

CERTIFIED = "cycles of pools are certified"


@dataclasses.dataclass(frozen=True)
class Cycles:
    """What is known of pools between which jobs go round."""

    anyone: "GlobalStability | None" = None  # certified for every work-conserving policy
    fixed: "GlobalStability | None" = None  # for the static order, if there is one
    virtual: "VirtualStation | None" = None  # where the static order fails
    spiral: tuple[str, float] | None = None  # a class whose flood grows, and the factor
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def certified(self) -> float:
        """Factor on all rates up to which a linear program certifies them; inf without cycles."""
        programs = [program for program in (self.anyone, self.fixed) if program is not None]
        return max((program.max_load for program in programs), default=np.inf)


def cycles_of(model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]) -> Cycles:
    """Return what is known of the pools between which jobs go round."""
    # What few networks need is loaded where they do.
    from penstock.theory.network.cycles import global_stability, priority_stability
    from penstock.theory.network.virtual_stations import priority_limit

    phases = [rule.phases for rule in rules]
    balanced = [rule.router.sends == "to the least" and not rule.affinity for rule in rules]
    anyone = global_stability(model, phases, balanced)
    ranking = _ranking(model, rules, cyclic)
    if not ranking:
        return Cycles(anyone, hypotheses=_hypotheses(model, rules, cyclic, anyone, None))
    fixed = priority_stability(model, ranking, phases)
    virtual, spiral = priority_limit(model, ranking, phases), None
    if fixed.max_load < 1 and (virtual is None or virtual.max_load >= 1 - CRITICAL_BAND):
        spiral = _spiral(model, ranking, phases)
    if virtual is not None and not _alike(model, rules, virtual):
        virtual = None
    hypotheses = _hypotheses(model, rules, cyclic, anyone, fixed)
    return Cycles(anyone, fixed, virtual, spiral, hypotheses)


def _ranking(
    model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]
) -> list[str] | None:
    """Return a ranking of all stages if every pool in a cycle has a static one, of whole stages."""
    prefill = dict(zip(model.stages, model.prefill.tolist(), strict=True))
    ranking: list[str] = []
    for s, rule in enumerate(rules):
        stages = [name for name, pool in zip(model.stages, model.pool, strict=True) if pool == s]
        # Decode-first: stages without prompts before all others.
        order = sorted(stages, key=lambda name: prefill[name] > 0)
        static = rule.order == "decode-first"
        if rule.order == "priority" and rule.ranking is not None:
            static, order = True, list(rule.ranking)
            if sorted(order) != sorted(stages):
                raise InputError(
                    f"the ranking of pool {model.pools[s]!r} has the stages {', '.join(order)}, "
                    f"but it serves {', '.join(stages)}; rank these"
                )
        if s in cyclic and (rule.phases or not static):
            return None
        ranking += order
    return ranking


def _spiral(
    model: NetworkModel, ranking: list[str], phases: list[bool]
) -> tuple[str, float] | None:
    """Return the stage whose flood grows the most on the fluid path, and the factor, or None."""
    if (model.replicas > 1).any() or model.joins.any():
        return None
    from penstock.theory.network.fluid import network_path

    grown = {}
    for stage in fluid_classes(model, phases).names:
        try:
            path = network_path(model, ranking, stage, phases=phases)
        except InputError:  # none was found from there
            continue
        if path.grows and path.growth is not None:
            grown[stage] = path.growth
    return max(grown.items(), key=operator.itemgetter(1), default=None)


def _alike(model: NetworkModel, rules: Sequence[PoolRules], virtual: "VirtualStation") -> bool:
    """Whether replicas have equal shares of both pools' fluid; others may serve both at once."""
    both = [model.pools.index(name) for name in virtual.pools]
    return all(model.replicas[s] == 1 or rules[s].router.sends == "at random" for s in both)


def _hypotheses(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    cyclic: list[int],
    anyone: "GlobalStability",
    fixed: "GlobalStability | None",
) -> tuple[Hypothesis, ...]:
    """Return what the linear program asks for, and whether it certifies the load."""
    # Jobs at a stage must be alike, whichever way they came.
    remembered = _remembered(model, rules, cyclic)
    forgets = model.sampled is None and not remembered
    reason = "lengths and routes are drawn anew at each stage"
    if model.sampled is not None:
        reason = (
            "caps on visits or growing contexts make later visits unlike earlier ones, and only "
            "their mean is known"
        )
    elif remembered:
        reason = (
            f"{', '.join(remembered)}: lengths come with the job, so its later requests are like "
            "its earlier ones"
        )

    # The linear program, for the static order or for every policy: whichever certifies more.
    best, whose = anyone, "every work-conserving order of the stages"
    if fixed is not None and fixed.max_load >= anyone.max_load:
        best, whose = fixed, "this priority order"
    if any(rules[s].phases for s in cyclic):
        whose = "every work-conserving policy"
    pools = "; ".join(" - ".join(cycle.pools) for cycle in best.cycles)
    limit = f"the linear program certifies {whose} up to {best.max_load:.4g} times this load"
    if best.max_load == 0:
        limit = "nothing is known of such a cycle with these routers"
    certified = best.max_load > 1 or best.stable
    return (
        Hypothesis("stages forget the way to them", forgets, reason),
        Hypothesis(CERTIFIED, certified, f"jobs go round between {pools}; {limit}"),
    )


def _remembered(model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]) -> list[str]:
    """Return stages in cycles whose lengths are the job's, where several requests may have them."""
    stages = [name for s in cyclic for name in rules[s].of_job]
    workflows = [name.split(".")[0] for name in stages]
    visits = np.linalg.inv(np.eye(len(model.stages)) - model.onward).diagonal()
    again = dict(zip(model.stages, visits > 1 + 1e-9, strict=True))
    return [
        name
        for name, workflow in zip(stages, workflows, strict=True)
        if again[name] or workflows.count(workflow) > 1
    ]
