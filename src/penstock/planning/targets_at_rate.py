"""A question to a fleet: does it meet latency targets at a rate? Theory discards, simulation
decides.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import (
    Evaluation,
    evaluate,
    network_of,
    not_simulated,
    refuse_idle_router,
    sketched,
)
from penstock.planning.mixed_fleets import MixedLoad, no_worse
from penstock.planning.search import Prospect, Question, Search
from penstock.planning.space import Family
from penstock.planning.why import with_replicas
from penstock.system.server import Server
from penstock.theory.ends import Ends, server_ends
from penstock.theory.kv_blocks import drawn
from penstock.theory.latency_bounds import lower_bounds
from penstock.theory.limits import bounds
from penstock.theory.load import load
from penstock.words import counted, digits
from penstock.workload.arrivals import Deterministic, Poisson
from penstock.workload.workload import Workload

USUAL_RHO = 0.8
"""Load at which the search of the first family begins, where no short run says better."""

_GUESSED_BY = 2_000  # requests
_NO_LOAD = 1e-6  # of the rate
_BEYOND_DOUBT = 1.01  # times the limit: some bounds are what simulations show, but for their noise


class Stability(NamedTuple):
    """What theory says of the load of a family, by the number of its replicas."""

    # Indices, in `Family.counts`: of the fewest that may be stable, and of those with a usual load.
    least: int
    usual: int
    why_not_fewer: str


class TargetsAtRate(Question[Evaluation]):
    """Meet targets at the rate of a workload."""

    def __init__(self, workload: Workload, aim: Aim, sketch: int | None = None) -> None:
        self.workload, self.aim, self.sketch = workload, aim, sketch
        self.likely: dict[str, int] = {}  # replicas by family, where something told them
        self._ordered: dict[tuple[Server, Server], bool] = {}
        self._stability: dict[str, Stability] = {}

    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> Evaluation:
        """Simulate so many replicas with their share of the requests."""
        deployment = family.at(count)
        try:
            if self.sketch is not None:
                return self._sketched(deployment)
            return evaluate(self.workload, deployment, self.aim, progress=report)
        except InputError as error:  # such as a recording that leaves one of them nothing
            return not_simulated(self.workload, deployment, self.aim, str(error))

    def worth(self, result: Evaluation) -> float:
        """Return the latency that the first target limits."""
        return result.first_value

    def lacks(self, result: Evaluation) -> str:
        """Say what so many replicas do not do."""
        return with_replicas(result, self.aim)

    def prospect(self, family: Family) -> Prospect:
        """Say how many replicas may be stable and quick enough under some policy."""
        deployment, counts = family.smallest, family.counts
        # The smallest may have one replica, before which no router is asked.
        refuse_idle_router(self.workload, family.at(counts[-1]))
        least, usual, reason = self.stability(family)
        if least == len(counts):
            return Prospect(family, least, least, reason)
        if self.aim.objective == "cost" and not deployment.prefill_replicas:
            fewest = bisect.bisect_left(
                range(least, len(counts)), True, key=lambda index: not self._too_slow(family, index)
            )
            if least + fewest == len(counts):
                excess, reason = max(self._too_slow(family, len(counts) - 1))
                return Prospect(family, len(counts), len(counts), reason, excess)
            if fewest:
                least += fewest
                reason = max(self._too_slow(family, least - 1))[1]
        guess = self._guess(family, least, usual)
        return Prospect(family, least, min(max(guess, least), len(counts) - 1), reason)

    def stability(self, family: Family) -> Stability:
        """Say how many replicas may be stable, and how many have a usual load."""
        if family.name not in self._stability:
            self._stability[family.name] = self._least_stable(family)
        return self._stability[family.name]

    def _least_stable(self, family: Family) -> Stability:
        """Say so by the load of each kind of replica."""
        deployment, counts = family.smallest, family.counts
        if deployment.others:
            network = network_of(self.workload, deployment)
            mixed = MixedLoad(network, family, self.more_helps(deployment))
            least = mixed.first_below(1.0)
            usual = mixed.first_below(USUAL_RHO)
            return Stability(least, usual, mixed.why_not(least - 1))
        if deployment.prefill_replicas:
            network = network_of(self.workload, deployment)
            load_of_one = float(network.model().rho.max()) * deployment.replicas
            limit = "Theorem 1(a)", "token budget"
        else:
            limits = bounds(load(self.workload, deployment.server))
            tightest = min(limits, key=lambda bound: bound.max_rate)
            load_of_one = self.workload.rate / tightest.max_rate
            limit = tightest.theorem, tightest.name
        reason = (
            f"{limit[0]}: {digits(load_of_one)} replicas' worth of work arrives, so no policy "
            f"keeps fewer stable ({limit[1]})"
        )
        usual = bisect.bisect_left(counts, load_of_one / USUAL_RHO)
        return Stability(bisect.bisect_right(counts, load_of_one), usual, reason)

    def _too_slow(self, family: Family, index: int) -> list[tuple[float, str]]:
        """Return targets that no policy can meet: least latency over the limit, and why."""
        fleet = family.at(family.counts[index])
        of_one, condition = self._of_one(fleet), f"with {counted(fleet.replicas, 'replica')}"
        if fleet.others:
            if not self.more_helps(fleet):
                return []  # either kind may be the faster for some requests
            of_one = self.workload.with_rate(_NO_LOAD * self.workload.rate)
            condition = "without load"  # for all requests may go to the better kind
        bounds_of = lower_bounds(of_one, fleet.server)
        slow = []
        for target in self.aim.targets:
            bound = bounds_of.get(target.metric, {}).get(target.statistic, 0.0)
            if bound > _BEYOND_DOUBT * target.limit_s:
                scale, unit = target.unit(bound)
                reason = (
                    f"{target.name} is at least {digits(bound * scale)} {unit} {condition}, "
                    "whatever the policy"
                )
                slow.append((bound / target.limit_s, reason))
        return slow

    def _guess(self, family: Family, least: int, usual: int) -> int:
        """Return the index of the fewest replicas that may do: as told, else by shorter runs."""
        if family.name in self.likely:
            return bisect.bisect_left(family.counts, self.likely[family.name])
        if self.sketch is not None:
            return usual

        def promising(count: int) -> bool:
            return self._sketched(family.at(count)).answer == "met"

        try:
            return bisect.bisect_left(family.counts, True, lo=least, key=promising)
        except InputError:  # what cannot be simulated is said where it is judged
            return usual

    def _sketched(self, deployment: Deployment) -> Evaluation:
        """Take what a short run shows for true."""
        short = sketched(self._beginning, deployment, self.aim, self.sketch or _GUESSED_BY)
        return dataclasses.replace(short, rate=self.workload.rate)

    @functools.cached_property
    def _beginning(self) -> Workload:
        """The requests of short runs as a recording, which is drawn once for all deployments."""
        if self.workload.rows is not None:
            return self.workload
        return Workload.from_arrays(*self.workload.requests(self.sketch or _GUESSED_BY))

    def _of_one(self, fleet: Deployment) -> Workload:
        """Return what one replica gets on average: of a pool no more is known than the rate."""
        share = self.workload.with_rate(self.workload.rate / fleet.replicas)
        known = fleet.replicas == 1 or fleet.router.sends == "at random"
        if known or not isinstance(share.arrivals, Poisson):
            return share
        # what bounds say of evenly spaced requests they say of any
        return dataclasses.replace(share, arrivals=Deterministic(share.arrivals.rate))

    def more_helps(self, deployment: Deployment) -> bool:
        """Return whether more replicas of the first kind do no harm, as far as is known."""
        # They may beside another kind that is better in one respect and worse in another.
        if not deployment.others or deployment.other is None:
            return True
        two = deployment.server, deployment.other.server
        if two not in self._ordered:
            self._ordered[two] = no_worse(*two, self._longest)
        return self._ordered[two]

    @functools.cached_property
    def _longest(self) -> int:
        """The tokens of the longest request, as far as a sample tells."""
        prompt, output = drawn(self.workload.lengths)
        return int((prompt + output).max())


def at_both_ends(
    question: TargetsAtRate, family: Family, sketch: int | None
) -> Ends[Evaluation | None] | None:
    """Search the family that won again, with the slow and with the fast end of its batch times."""
    smallest = family.smallest
    of_kinds = [server_ends(question.workload, kind.server) for kind, _ in smallest.kinds]
    doubts = [ends for ends in of_kinds if ends is not None]
    if not doubts:
        return None

    def fewest(server_of: Callable[[Ends[Server]], Server]) -> Evaluation | None:
        servers = [
            kind.server if ends is None
            else dataclasses.replace(kind.server, batch_time=server_of(ends).batch_time)
            for (kind, _), ends in zip(smallest.kinds, of_kinds, strict=True)
        ]  # fmt: skip
        changed = dataclasses.replace(
            smallest,
            kind=dataclasses.replace(smallest.kind, server=servers[0]),
            other=smallest.other and dataclasses.replace(smallest.other, server=servers[-1]),
        )
        of_these = TargetsAtRate(question.workload, question.aim, sketch)
        again = Search(of_these, [dataclasses.replace(family, smallest=changed)])
        again.run()
        return again.best

    origins = "; ".join(dict.fromkeys(ends.origin for ends in doubts))
    calibrated = all(ends.calibrated for ends in doubts)
    slow, fast = fewest(lambda ends: ends.slow), fewest(lambda ends: ends.fast)
    return Ends(slow, fast, origins, calibrated)
