"""What is known of pools between which jobs go round."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import InputError
from penstock.system.network_model import NetworkModel
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis
from penstock.theory.network.fluid_classes import fluid_classes
from penstock.theory.network.rules import PoolRules
from penstock.theory.network.unequal_replicas import SHORTEST

if TYPE_CHECKING:
    from penstock.theory.network.cycles import GlobalStability
    from penstock.theory.network.virtual_stations import VirtualStation

CERTIFIED = "cycles of pools are certified"


class Cycles:
    """What is known of pools between which jobs go round.

    ``anyone`` and ``fixed``: certified for every work-conserving policy, and the static order if
    there is one; where that fails, a ``virtual`` station, and a ``spiral``: a class whose flood
    grows, and the factor.
    """

    def __init__(self, model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]) -> None:
        self.anyone: GlobalStability | None = None
        self.fixed: GlobalStability | None = None
        self.virtual: VirtualStation | None = None
        self.spiral: tuple[str, float] | None = None
        self.hypotheses: tuple[Hypothesis, ...] = ()
        if not cyclic:
            return
        # What few networks need is loaded where they do.
        from penstock.theory.network.cycles import global_stability, priority_stability
        from penstock.theory.network.virtual_stations import priority_limit

        phases = [rule.phases for rule in rules]
        balanced = [rule.router in SHORTEST and not rule.affinity for rule in rules]
        self.anyone = global_stability(model, phases, balanced)
        ranking = _ranking(model, rules, cyclic)
        if ranking:
            self.fixed = priority_stability(model, ranking, phases)
            self.virtual = priority_limit(model, ranking, phases)
            stands = self.virtual is None or self.virtual.max_load >= 1 - CRITICAL_BAND
            if self.fixed.max_load < 1 and stands:
                self.spiral = _spiral(model, ranking, phases)
            if self.virtual is not None and not _alike(model, rules, self.virtual):
                self.virtual = None
        self.hypotheses = _cycle_hypotheses(model, rules, cyclic, self.anyone, self.fixed)


def _ranking(
    model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]
) -> list[str] | None:
    """Return a ranking of all stages if every pool in a cycle has a static one, of whole stages."""
    ranking: list[str] = []
    for s, rule in enumerate(rules):
        here = [name for name, pool in zip(model.stages, model.pool, strict=True) if pool == s]
        own = rule.ranking if rule.order == "priority" else None
        if own is not None and sorted(own) != sorted(here):
            raise InputError(
                f"the ranking of pool {model.pools[s]!r} has the stages {', '.join(own)}, but it "
                "serves "
                f"{', '.join(here)}; rank these"
            )
        if s in cyclic and (rule.phases or (own is None and rule.order != "decode-first")):
            return None
        if own is None:  # decode-first: stages without prompts before all others
            prefill = dict(zip(model.stages, model.prefill.tolist(), strict=True))
            here.sort(key=lambda name: prefill[name] > 0)
        ranking += here if own is None else own
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
    return max(grown.items(), key=lambda pair: pair[1], default=None)


def _alike(model: NetworkModel, rules: Sequence[PoolRules], virtual: "VirtualStation") -> bool:
    """Whether replicas have equal shares of both pools' fluid; others may serve both at once."""
    both = [model.pools.index(name) for name in virtual.pools]
    return all(model.replicas[s] == 1 or rules[s].router == "random" for s in both)


def _cycle_hypotheses(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    cyclic: list[int],
    anyone: "GlobalStability",
    fixed: "GlobalStability | None",
) -> tuple[Hypothesis, ...]:
    # Jobs at a stage must be alike, whichever way they came.
    remembered = _remembered(model, rules, cyclic)
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
    forgets = model.sampled is None and not remembered

    # The linear program, for the static order or for every policy: whichever certifies more.
    best = anyone if fixed is None or anyone.max_load > fixed.max_load else fixed
    pools = "; ".join(" - ".join(cycle.pools) for cycle in best.cycles)
    whose = "every work-conserving policy"
    if not any(rules[s].phases for s in cyclic):
        whose = (
            "this priority order" if best is fixed else "every work-conserving order of the stages"
        )
    held = best.max_load > 1 or best.stable
    if best.max_load == 0:
        limit = "nothing is known of such a cycle with these routers"
    else:
        limit = f"the linear program certifies {whose} up to {best.max_load:.4g} times this load"
    return (
        Hypothesis("stages forget the way to them", forgets, reason),
        Hypothesis(CERTIFIED, held, f"jobs go round between {pools}; {limit}"),
    )


def _remembered(model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]) -> list[str]:
    """Return stages in cycles whose lengths are the job's, where several requests may have them."""
    stages = [name for s in cyclic for name in rules[s].of_job]
    workflows = [name.split(".")[0] for name in stages]
    visits = np.linalg.inv(np.eye(len(model.stages)) - model.onward).diagonal()
    again = dict(zip(model.stages, visits > 1 + 1e-9, strict=True))
    return [
        name
        for name, own in zip(stages, workflows, strict=True)
        if again[name] or workflows.count(own) > 1
    ]
