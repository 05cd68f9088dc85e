"""The plan: the cheapest deployment that meets the targets, what binds it, what comes next, and why others do not."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from penstock import checks
from penstock.checking.targets import Estimate, Judgement, Target
from penstock.errors import InputError
from penstock.planning.evaluate import Aim, Evaluation
from penstock.planning.search import Prospect, Search, rank
from penstock.planning.space import Deployment, Discarded, Reason, Space
from penstock.words import amount, counted
from penstock.workload.workload import Workload

_BEYOND = (1.25, 2.0)
"""Times the replicas of the answer that are simulated besides, for the frontier."""


@dataclasses.dataclass(frozen=True)
class Unreachable:
    """Why no deployment does.

    Attributes
    ----------
    target
        What is not met, in words.
    why
        What keeps all of them from it.
    nearest
        The nearest value that was reached: seconds, or a share for goodput; None where none is stable.
    deployment
        That reached it, or None.
    """

    target: str
    why: str
    nearest: float | None
    deployment: Deployment | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        name = None if self.deployment is None else self.deployment.as_dict()
        return {"target": self.target, "why": self.why, "nearest": self.nearest, "deployment": name}


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """What to deploy.

    Attributes
    ----------
    workload
        What arrives.
    aim
        What a deployment has to do.
    best
        The cheapest that is known to do it; of equal cost the one with the least latency that the first target limits,
        then by name. None: there is none.
    frontier
        Of the simulated deployments that miss no target but the first, those that no cheaper one equals in the latency
        that the first target limits; the best among them; by rising cost.
    evaluated
        All that were simulated, in that order.
    discarded
        All others, and why.
    margins
        Of each target of the best: (limit - value) / limit; NaN where the value is not measured.
    binding
        What keeps a smaller fleet from doing, a sentence.
    next_best
        The cheapest other that does: of another family if one was found, else with more replicas.
    unreachable
        Why there is no best.
    space
        Deployments in the search space.
    priced
        Whether costs are money; else accelerators.
    notices
        What the user should know besides.
    """

    workload: Workload
    aim: Aim
    best: Evaluation | None
    frontier: tuple[Evaluation, ...]
    evaluated: tuple[Evaluation, ...]
    discarded: tuple[Discarded, ...]
    margins: tuple[float, ...]
    binding: str
    next_best: Evaluation | None
    unreachable: Unreachable | None
    space: int
    priced: bool
    notices: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """Upper limits of latencies."""
        return self.aim.targets

    @property
    def objective(self) -> str:
        """What was asked for: ``cost`` or ``goodput``."""
        return self.aim.objective

    @property
    def answer(self) -> Judgement:
        """Whether some deployment does what it has to; undecided where that is not known of some."""
        if self.best is not None:
            return "met"
        return "undecided" if any(found.answer == "undecided" for found in self.evaluated) else "missed"

    def __str__(self) -> str:
        """Return the answer in a sentence."""
        if self.best is None:
            assert self.unreachable is not None
            return f"{self.answer}: {self.unreachable.target}: {self.unreachable.why}"
        values = zip(self.targets, self.best.estimates, strict=True)
        said = [f"{target}: {told(target, found)}" for target, found in values]
        if self.objective == "goodput":
            said = [f"goodput {told('goodput', self.best.goodput)}"]
        return f"{self.best.deployment.name}; {'; '.join(said)}"

    @property
    def simulations(self) -> int:
        """Deployments simulated."""
        return len(self.evaluated)

    @property
    def undecided(self) -> tuple[Evaluation, ...]:
        """What was simulated, would be cheaper than the best, and may do: longer runs would tell; cheapest first."""
        most = math.inf if self.best is None else self.best.deployment.cost
        may = [
            found for found in self.evaluated
            if found.answer == "undecided" and found.verdict == "stable" and found.deployment.cost < most
        ]  # fmt: skip
        return tuple(sorted(may, key=lambda found: (found.deployment.cost, found.deployment.name)))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``plan``."""
        return {
            "objective": self.objective,
            "targets": [str(target) for target in self.targets],
            "goodput": self.aim.goodput if self.objective == "goodput" else None,
            "confidence": self.aim.confidence,
            "rate": self.workload.rate,
            "cost_unit": "money per hour" if self.priced else "accelerators",
            "answer": self.answer,
            "best": self.best.as_dict() if self.best else None,
            "margins": [None if math.isnan(margin) else margin for margin in self.margins],
            "binding": self.binding or None,
            "next_best": self.next_best.as_dict() if self.next_best else None,
            "unreachable": self.unreachable.as_dict() if self.unreachable else None,
            "undecided": [found.deployment.as_dict() for found in self.undecided],
            "frontier": [found.as_dict() for found in self.frontier],
            "evaluated": [found.as_dict() for found in self.evaluated],
            "discarded": [each.as_dict() for each in self.discarded],
            "simulations": self.simulations,
            "space": self.space,
            "notices": list(self.notices),
        }


def plan(
    workload: Workload,
    space: Space,
    targets: Sequence[Target | str] = (),
    *,
    objective: str = "cost",
    goodput: float = 0.99,
    requests: int | None = None,
    most_requests: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    aim: Aim | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Plan:
    """Find the cheapest deployment that meets the targets.

    Theory discards what no policy keeps stable. What is left is searched by branch and bound
    (`penstock.planning.search`) and decided by simulation alone, each deployment on the same requests: so the answer is
    the one that simulating every deployment gives, wherever more replicas of the same do not harm.

    Parameters
    ----------
    workload
        What arrives at the whole fleet.
    space
        What may be deployed; see `search_space`.
    targets
        Upper limits of latencies; as text such as ``ttft_p99<2s``.
    objective
        ``cost``: the least cost that meets every target. ``goodput``: the least cost at which a share ``goodput`` of
        the requests stay within all limits, each with its own TTFT, mean time per output token and E2E.
    goodput
        That share.
    requests, most_requests
        Simulated of each replica, to begin with and while undecided; see `Aim`.
    confidence
        Of the intervals that the targets are judged by.
    seed
        Instead of the workload's.
    aim
        Targets to confidence at once, instead of them.
    progress
        Called now and then with the share that is done, and what is being simulated.

    Raises
    ------
    InputError
        If a value cannot be used, or no deployment can be judged by the targets.
    """
    if not isinstance(workload, Workload) or not isinstance(space, Space):
        raise InputError(
            f"plan takes a Workload and a Space, not {checks.shown(workload)} and {checks.shown(space)}; make a space "
            "with search_space"
        )
    if aim is None:
        aim = Aim.of(
            targets, objective=objective, goodput=goodput, requests=requests, most_requests=most_requests,
            confidence=confidence,
        )  # fmt: skip
    if seed is not None:
        workload = workload.with_seed(seed)
    search = Search(workload, space, aim, progress)
    if not search.prospects and all(each.by == "impossible" for each in search.hopeless):
        raise InputError(f"no deployment can be judged: {search.hopeless[0].why}")
    search.run()
    best, prospect = search.best or (None, None)
    next_best = None
    if best is not None and prospect is not None:
        _frontier_beyond(search, prospect)
        next_best = _next_best(search, best)
    unreachable = _unreachable(search) if best is None else None
    server = None if best is None else best.deployment.server
    known = [] if server is None else [note for note in (server.kv_note, server.scope_warning) if note]
    return Plan(
        workload=workload,
        aim=aim,
        best=best,
        frontier=_frontier(search.evaluated, best),
        evaluated=search.evaluated,
        discarded=(*space.refused, *_discarded(search)),
        margins=() if best is None else _margins(best, aim.targets),
        binding="" if prospect is None else _binding(search, prospect),
        next_best=next_best,
        unreachable=unreachable,
        space=len(space),
        priced=space.priced,
        notices=(*known, *workload.notices, *_not_judged(search)),
    )


def _not_judged(search: Search) -> list[str]:
    """Say how many deployments fell away because the targets say nothing of them."""
    left = [each for each in search.hopeless if each.by == "impossible"]
    if not left:
        return []
    count = sum(len(each.family.counts) for each in left)
    return [f"{count:,} deployments are left out, such as {left[0].family.name}: {left[0].why}"]


def _margins(best: Evaluation, targets: Sequence[Target]) -> tuple[float, ...]:
    return tuple(
        math.nan if found.value is None else 1 - found.value / target.limit_s
        for target, found in zip(targets, best.estimates, strict=True)
    )


def _frontier_beyond(search: Search, prospect: Prospect) -> None:
    """Simulate somewhat larger fleets of the family that won, so that the frontier shows what more money buys."""
    assert prospect.found is not None
    counts = prospect.family.counts
    for times in _BEYOND:
        wanted = times * counts[prospect.found]
        place = next((p for p in range(prospect.found + 1, len(counts)) if counts[p] >= wanted), None)
        if place is not None:
            search.at(prospect, place)


def _next_best(search: Search, best: Evaluation) -> Evaluation | None:
    """Return the cheapest other that does; one more family is searched if none is known."""

    def others() -> list[Evaluation]:
        name = best.deployment.family
        return [e for e in search.evaluated if e.answer == "met" and e.deployment.family != name]

    if not others():
        assert search.best is not None
        untried = [
            p for p in search.prospects
            if p is not search.best[1] and p.found is None and p.most < len(p.family.counts) - 1
        ]  # fmt: skip
        # those that failed at the cost of the answer come after those never asked
        for prospect in sorted(untried, key=lambda p: (p.most >= p.least, p.cost(p.guess), p.family.name))[:1]:
            searched, prospect.most = prospect.most, len(prospect.family.counts) - 1
            search.search(prospect, max(prospect.guess, searched + 1 if searched >= prospect.least else prospect.guess))
    known = others() or [e for e in search.evaluated if e.answer == "met" and e is not best]
    return min(known, key=rank, default=None)


def _frontier(evaluated: Sequence[Evaluation], best: Evaluation | None) -> tuple[Evaluation, ...]:
    """Return those that miss no target but the first, and in its latency are equalled by no cheaper one."""
    kept: list[Evaluation] = []
    for found in sorted(evaluated, key=rank):
        fit = found.verdict == "stable" and found.estimates[0].value is not None
        if not fit or ("missed" in found.judgements[1:] and found is not best):
            continue
        if found is best or not kept or rank(found)[1] < rank(kept[-1])[1]:
            kept.append(found)
    return tuple(kept)


def told(target: Target | str, found: Estimate) -> str:
    """Say a value and its interval: ``1.43 s (1.31 to 1.74)``; shares for goodput."""
    if found.value is None:
        return "unknown"
    if isinstance(target, Target):
        scale, unit = target.unit(max(found.value, found.high or 0.0))
        unit, digits = f" {unit}", ".3g"
    else:
        scale, unit, digits = 100.0, "%", ".4g"
    ends = [None if end is None else f"{end * scale:{digits}}" for end in (found.low, found.high)]
    if ends == [None, None]:
        said = "no interval: the run is too short"
    elif ends[1] is None:
        said = f"at least {ends[0]}"
    else:
        said = f"{ends[0]} to {ends[1]}" if ends[0] else f"at most {ends[1]}"
    return f"{found.value * scale:{digits}}{unit} ({said})"


def shortfalls(found: Evaluation, aim: Aim) -> list[str]:
    """Say what a deployment does not do, or is not known to do: a part of a sentence for each target."""
    if found.verdict == "unstable":
        return [f"it is unstable ({found.known_by})"]
    said = [f"its stability is undecided ({found.known_by})"] if found.verdict == "undecided" else []
    if aim.objective == "goodput":
        if found.answer == "met":
            return said
        word = "is" if found.answer == "missed" else "may be"
        return [*said, f"goodput {word} {told('goodput', found.goodput)}, below {aim.goodput:.4g}"]
    for target, value, judgement in zip(aim.targets, found.estimates, found.judgements, strict=True):
        if judgement != "met":
            name = f"{target.metric[:-2]}_{target.statistic}"
            undecided = "" if judgement == "missed" else f", undecided at {found.requests:,} requests"
            said.append(f"{name} is {told(target, value)}{undecided}")
    return said


def _binding(search: Search, prospect: Prospect) -> str:
    """Say what keeps fewer replicas of the answer from doing."""
    assert prospect.found is not None
    counts, place = prospect.family.counts, prospect.found
    fewer = search.known(prospect, place - 1)
    if fewer is not None:
        return f"with {counted(counts[place - 1], 'replica')} {'; '.join(shortfalls(fewer, search.aim))}"
    if place and place == prospect.least:
        return f"stability: {prospect.why_not_fewer}"
    best = search.at(prospect, place)
    targets = search.aim.targets
    known = [(m, str(t)) for m, t in zip(_margins(best, targets), targets, strict=True) if not math.isnan(m)]
    nearest = f"; {min(known)[1]} is nearest its limit" if known else ""
    return f"none: no smaller fleet is in the search space{nearest}"


def _discarded(search: Search) -> list[Discarded]:
    """Account for every deployment that was not simulated."""
    found = []
    for each in search.hopeless:
        counts = tuple(count for count in each.family.counts if not search.simulated(each.family, count))
        if counts:
            found.append(Discarded(each.family.name, (counts[0], counts[-1]), len(counts), each.by, each.why))
    for prospect in search.prospects:
        found += _left_out(search, prospect)
    return found


def _left_out(search: Search, prospect: Prospect) -> list[Discarded]:
    """Account for the deployments of a family that were not simulated."""
    counts, aim = prospect.family.counts, search.aim
    fewer: list[int] = []
    dearer: list[int] = []
    for place in range(prospect.least, len(counts)):
        if search.known(prospect, place) is None:
            below = prospect.most if prospect.found is None else prospect.found
            (fewer if place <= below else dearer).append(counts[place])
    parts: list[tuple[Sequence[int], Reason, str]] = [(counts[: prospect.least], "theory", prospect.why_not_fewer)]
    if fewer:
        failed = [
            each for count in counts
            if (each := search.known(prospect, counts.index(count))) is not None
            and each.answer != "met" and count > max(fewer)
        ]  # fmt: skip
        first = failed[0]
        why = f"with {counted(first.deployment.replicas, 'replica')} {'; '.join(shortfalls(first, aim))}"
        parts.append((fewer, "simulation", why))
    if dearer:
        bound = search.best[0].deployment.cost if search.best else 0.0
        least = prospect.family.at(dearer[0]).cost
        parts.append((dearer, "cost", f"costs {amount(least)} or more, the answer {amount(bound)}"))
    return [
        Discarded(prospect.family.name, (places[0], places[-1]), len(places), by, why)
        for places, by, why in parts
        if places
    ]


def _unreachable(search: Search) -> Unreachable:
    """Say which target keeps all deployments from the answer, and how near they come."""
    aim, targets = search.aim, search.aim.targets
    largest = [e for p in search.prospects if (e := search.known(p, p.most)) is not None]
    too_slow = [each for each in search.hopeless if each.excess < math.inf]
    if too_slow:  # what the least hopeless of them reaches
        family = min(too_slow, key=lambda each: each.excess).family
        largest.append(search.simulate(family, family.counts[-1]))
    stable = [e for e in largest if e.verdict == "stable"]
    if not stable:
        whys = [each.why for each in search.hopeless if each.by == "theory"]
        why = whys[0] if whys else "; ".join(shortfalls(largest[0], aim))
        return Unreachable("stability", f"{why}; allow more replicas or other hardware", None, None)
    if aim.objective == "goodput":
        nearest = max(stable, key=lambda e: (e.goodput.value or 0.0, -e.deployment.cost))
        name = f"goodput of {aim.goodput:.4g}"
        return Unreachable(name, _why_not(search, nearest), nearest.goodput.value, nearest.deployment)

    def excess(found: Evaluation, place: int) -> float:
        value = found.estimates[place].value
        return math.inf if value is None else value / targets[place].limit_s

    places = range(len(targets))
    by_target = [min(stable, key=lambda e: (excess(e, place), e.deployment.cost)) for place in places]
    never = [place for place in places if all(e.judgements[place] != "met" for e in stable)]
    if never:
        place = max(never, key=lambda place: excess(by_target[place], place))
        nearest, why = by_target[place], _why_not(search, by_target[place])
    else:
        nearest = min(stable, key=lambda e: (max(excess(e, place) for place in places), e.deployment.cost))
        place = max(places, key=lambda place: excess(nearest, place))
        why = f"each target is met by some deployment, but none meets all; {_why_not(search, nearest)}"
    return Unreachable(str(targets[place]), why, nearest.estimates[place].value, nearest.deployment)


def _why_not(search: Search, nearest: Evaluation) -> str:
    """Say what the nearest deployment does not do."""
    for each in search.hopeless:
        if each.family.name == nearest.deployment.family:
            return f"{each.why}; the simulation of {nearest.deployment.name} agrees"
    said = "; ".join(shortfalls(nearest, search.aim))
    if nearest.answer == "undecided":
        said += "; simulate more requests to decide it"
        said += "" if search.workload.rows is None else ", of a recording drawn at random (arrivals: poisson)"
    most = counted(nearest.deployment.replicas, "replica")
    return f"with {most} of {nearest.deployment.family}, the most allowed, {said}"
