"""The plan: the cheapest deployment that meets the targets, what binds it, and why not others."""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated

from penstock import checks
from penstock.checking.doubt import beyond_rows
from penstock.checking.targets import Judgement, Target, refuse_gaps_of_one_token
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation
from penstock.planning.ranking import SKETCH, Ranked, ranked
from penstock.planning.search import Search
from penstock.planning.space import Discarded, Space
from penstock.planning.targets_at_rate import TargetsAtRate, at_both_ends
from penstock.planning.why import Unreachable, binding, in_words, why_unreachable
from penstock.show.answers import Meaning, Shown, computed, texts
from penstock.system.prefix_cache import cache_notes, doubts_of, unsaid
from penstock.system.server import Server
from penstock.theory.ends import Ends, known_of
from penstock.workload.workload import Workload

_BEYOND = (1.25, 2.0)
"""Times the replicas of the answer that are simulated besides, for the frontier."""


def _deployments(evaluations: Sequence[Evaluation]) -> list[Deployment]:
    """Return what was simulated."""
    return [evaluation.deployment for evaluation in evaluations]


@dataclasses.dataclass(frozen=True, eq=False)
class FleetsAtEnds:
    """The fleets at both ends of the batch times; null: none does."""

    slow: Annotated[Deployment | None, Meaning("At the slow end.")]
    fast: Annotated[Deployment | None, Meaning("At the fast end.")]
    origin: Annotated[str, Meaning("What the interval comes from.")]


def _of_fleets(ends: Ends[Evaluation | None] | None) -> FleetsAtEnds | None:
    """Return what JSON has of the fleets at both ends."""
    if ends is None:
        return None
    slow, fast = (None if end is None else end.deployment for end in (ends.slow, ends.fast))
    return FleetsAtEnds(slow, fast, ends.origin)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan(Shown):
    """What to deploy."""

    workload: Annotated[Workload, Meaning("What arrives.", key=None)]
    aim: Annotated[Aim, Meaning("What a deployment has to do.", key=None)]
    best: Annotated[Evaluation | None, Meaning(
        "The cheapest that is known to do it; of equal cost the one with the least latency that "
        "the first target limits, then by name. None: there is none."
    )]  # fmt: skip
    frontier: Annotated[tuple[Evaluation, ...], Meaning(
        "By rising cost, the simulated that miss no target but the first, and are quicker by that "
        "than all that are cheaper; the best among them."
    )]  # fmt: skip
    evaluated: Annotated[tuple[Evaluation, ...], Meaning("All that were simulated, in that order.")]
    discarded: Annotated[tuple[Discarded, ...], Meaning("All others, and why.")]
    margins: Annotated[tuple[float, ...], Meaning(
        "Of each target of the best: (limit - value) / limit; NaN where no value is measured."
    )]  # fmt: skip
    binding: Annotated[str, Meaning(
        "What keeps a smaller fleet from doing, a sentence.", data=lambda of: of or None
    )]  # fmt: skip
    next_best: Annotated[Evaluation | None, Meaning(
        "The cheapest other that does: of another family if there is one, else with more replicas."
    )]  # fmt: skip
    unreachable: Annotated[Unreachable | None, Meaning("Why there is no best.")]
    space: Annotated[int, Meaning("Deployments in the search space.")]
    priced: Annotated[bool, Meaning(
        "Whether costs are money per hour; else accelerators.",
        key="cost_unit", data=lambda of: "money per hour" if of else "accelerators",
    )]  # fmt: skip
    notices: Annotated[tuple[str, ...], Meaning("What the user should know besides.")] = ()
    ends: Annotated[Ends[Evaluation | None] | None, Meaning(
        "The cheapest of the best's family that do at the slow and at the fast end of the batch "
        "times, None where none does; None: they are taken as exact, or there is no best.",
        data=_of_fleets,
    )] = None  # fmt: skip
    ranking: Annotated[
        tuple[Ranked, ...], Meaning("The cheapest fleet of each hardware, if that is asked for.")
    ] = ()

    @computed(data=texts)
    def targets(self) -> tuple[Target, ...]:
        """Upper limits of latencies."""
        return self.aim.targets

    @computed()
    def objective(self) -> str:
        """What was asked for: ``cost`` or ``goodput``."""
        return self.aim.objective

    @computed()
    def answer(self) -> Judgement:
        """Whether some deployment does what it has to; undecided where that is not known of
        some, or where batch times that may be the true ones take another fleet.
        """
        if self.best is not None:
            return "undecided" if self.hinges_on_calibration else "met"
        is_open = any(result.answer == "undecided" for result in self.evaluated)
        return "undecided" if is_open else "missed"

    @property
    def hinges_on_calibration(self) -> bool:
        """Whether the slow and the fast end of the batch times take fleets of other sizes."""
        if self.ends is None:
            return False
        slow, fast = (end and end.deployment.fleet for end in (self.ends.slow, self.ends.fast))
        return slow != fast

    def __str__(self) -> str:
        """Return the answer in a sentence."""
        if self.best is None:
            assert self.unreachable is not None
            return f"{self.answer}: {self.unreachable.target}: {self.unreachable.why}"
        values = zip(self.targets, self.best.estimates, strict=True)
        answers = [f"{target}: {in_words(target, estimate)}" for target, estimate in values]
        if self.objective == "goodput":
            answers = [f"goodput {in_words('goodput', self.best.goodput)}"]
        return f"{self.best.deployment.name}; {'; '.join(answers)}"

    @computed()
    def simulations(self) -> int:
        """Deployments simulated."""
        return len(self.evaluated)

    @property
    def measured(self) -> tuple[Evaluation, ...]:
        """What was simulated, is stable, and has the latency that the first target limits."""
        return tuple(result for result in self.evaluated if result.is_measured)

    @computed(data=_deployments)
    def undecided(self) -> tuple[Evaluation, ...]:
        """What was simulated, would be cheaper than the best, and may do: longer runs would tell;
        cheapest first.
        """
        most = math.inf if self.best is None else self.best.deployment.cost
        may_do = filter(lambda result: result.may_do, self.evaluated)
        cheaper = [result for result in may_do if result.deployment.cost < most]
        return tuple(sorted(cheaper, key=lambda result: result.deployment.by_cost))

    @computed()
    def goodput(self) -> float | None:
        """The share that was asked for, where goodput was."""
        return self.aim.goodput if self.objective == "goodput" else None

    @computed()
    def confidence(self) -> float:
        """Of the intervals."""
        return self.aim.confidence

    @computed()
    def rate(self) -> float:
        """Requests/s."""
        return self.workload.rate


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
    rank: bool = False,
    first: Callable[[Sequence[Deployment]], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Plan:
    """Find the cheapest deployment that meets the targets.

    Theory discards what no policy keeps stable. What is left is searched by branch and bound
    (`penstock.planning.search`) and decided by simulation alone, each deployment on the same
    requests: so the answer is the one that simulating every deployment gives, wherever more
    replicas of the same do not harm.

    Parameters
    ----------
    workload
        What arrives at the whole fleet.
    space
        What may be deployed; see `search_space`.
    targets
        Upper limits of latencies; as text such as ``ttft_p99<2s``.
    objective, goodput, requests, most_requests, confidence
        As in `Aim`: the least cost that meets every target, or at which a share of the requests
        stay within all limits.
    seed, aim
        Instead of the workload's; targets to confidence at once, instead of them.
    rank
        Whether to put the cheapest fleets of all hardware side by side. They are then sketched by
        short runs first, and only the cheapest few are searched.
    first
        Called before anything is simulated, where hardware is put side by side: with the fleet of
        each that carries the load at the usual share of its capacity, the cheapest first.
    progress
        Called now and then with the share that is done, and what is being simulated.

    Raises
    ------
    InputError
        If a value cannot be used, or no deployment can be judged by the targets.
    """
    if not isinstance(workload, Workload) or not isinstance(space, Space):
        raise InputError(
            f"plan takes a Workload and a Space, not {checks.shown(workload)} and "
            f"{checks.shown(space)}; make a space with search_space"
        )
    if aim is None:
        aim = Aim.of(
            targets, objective=objective, goodput=goodput, requests=requests,
            most_requests=most_requests, confidence=confidence,
        )  # fmt: skip
    refuse_gaps_of_one_token(aim.targets, workload)
    question = TargetsAtRate(workload if seed is None else workload.with_seed(seed), aim)
    ranking: list[Ranked] = []
    left_out: list[Discarded] = []
    if rank:
        search, ranking, left_out = ranked(question, space.families, progress, first)
    else:
        search = Search(question, space.families, progress)
        search.run()
    if not search.prospects and all(family.by == "impossible" for family in search.hopeless):
        raise InputError(f"no deployment can be judged: {search.hopeless[0].why_not_fewer}")
    best = search.best
    notices, bound, unreachable, next_best, ends = [], "", None, None, None
    if best is None:
        unreachable = why_unreachable(search, aim)
        notices = _of_the_middle(space)
    else:
        if not rank:  # else a larger fleet is of no interest beside other hardware
            _frontier_beyond(search, best)
        next_best = _next_best(search, best)
        bound = binding(search, best, aim)
        ends = at_both_ends(question, search.family_of(best.deployment), SKETCH if rank else None)
        notices = _of_servers(workload, [kind.server for kind, _ in best.deployment.kinds])
    if workload.rows is not None:
        notices.append(
            "requests are recorded: latency is that of the recording, and its intervals are for it "
            "gone on with"
        )
    return Plan(
        question.workload, aim, best, _frontier(search, best), search.results,
        (*space.refused, *search.discarded(), *left_out),
        () if best is None else best.margins(aim), bound, next_best,
        unreachable, len(space), space.priced,
        (*notices, *unsaid(workload.notices, notices), *_not_judged(search)), ends, tuple(ranking),
    )  # fmt: skip


def _of_servers(workload: Workload, servers: Sequence[Server]) -> list[str]:
    """Say what to know of the replicas of the answer."""
    notes = [
        *(doubt for server in servers for doubt in doubts_of(workload, server)),
        *(doubt for server in servers for doubt in beyond_rows((workload, server))),
        *(note for server in servers for note in cache_notes(workload, server)),
        *(note for server in servers for note in (server.kv_note, server.scope_warning) if note),
    ]
    return list(dict.fromkeys(notes))


def _of_the_middle(space: Space) -> list[str]:
    """Say that what nothing does was asked of the middle batch times, where they are not exact."""
    kinds = [kind for family in space.families for kind, _ in family.smallest.kinds]
    doubts = [doubt for kind in kinds if (doubt := known_of(kind.server)) is not None]
    return [
        f"batch times are not exact ({origin}): that nothing does is said of the middle ones"
        for origin in dict.fromkeys(doubt.origin for doubt in doubts)
    ]


def _not_judged(search: Search[Evaluation]) -> list[str]:
    """Say how many deployments fell away because the targets say nothing of them."""
    impossible = [prospect for prospect in search.hopeless if prospect.by == "impossible"]
    if not impossible:
        return []
    count = sum(len(prospect.family.counts) for prospect in impossible)
    name, why = impossible[0].family.name, impossible[0].why_not_fewer
    return [f"{count:,} deployments are left out, such as {name}: {why}"]


def _frontier_beyond(search: Search[Evaluation], best: Evaluation) -> None:
    """Simulate somewhat larger fleets of the winning family: what more money buys."""
    fleet = best.deployment
    family = search.family_of(fleet)
    for times in _BEYOND:
        index = bisect.bisect_left(family.counts, times * fleet.replicas)
        if index < len(family.counts):
            search.simulate(family, family.counts[index])


def _next_best(search: Search[Evaluation], best: Evaluation) -> Evaluation | None:
    """Return the cheapest other that does; one more family is searched if none is known."""

    def met() -> tuple[list[Evaluation], list[Evaluation]]:
        does = [other for other in search.results if other.answer == "met" and other is not best]
        return [other for other in does if other.deployment.family != best.deployment.family], does

    untried = [
        prospect for prospect in search.prospects
        if prospect.answer is None and prospect.most < len(prospect.family.counts) - 1
    ]  # fmt: skip
    if untried and not met()[0]:
        # those that failed at the cost of the answer come after those never asked
        prospect = min(untried, key=lambda of: (of.most >= of.least, of.order))
        start = prospect.guess
        if prospect.most >= prospect.least:
            start = max(start, prospect.most + 1)
        prospect.most = len(prospect.family.counts) - 1
        search.search(prospect, start)
    others, does = met()
    return min(others or does, key=search.rank, default=None)


def _frontier(search: Search[Evaluation], best: Evaluation | None) -> tuple[Evaluation, ...]:
    """Return those that miss no target but the first, and have no cheaper equal in its latency."""
    frontier: list[Evaluation] = []
    for result in sorted(search.results, key=search.rank):
        if not result.is_measured:
            continue
        quicker = not frontier or result.first_value < frontier[-1].first_value
        if result is best or (quicker and "missed" not in result.judgements[1:]):
            frontier.append(result)
    return tuple(frontier)
