"""Branch and bound over deployments: theory discards, simulation decides, costs bound.

More replicas never harm: so of each family (all else equal) the fewest that do what they have to
are found by steps and bisection. Families are searched in order of what they may cost; once one is
found to do, another is asked first with as many replicas as cost no more, and discarded if it does
not do even then.

In a pool of two kinds that is taken for granted of the better kind alone, beside so many of the
other: more machines that are slow may get requests that fast ones would have served in time. Where
neither kind is better in all respects, every number is tried.
"""

import bisect
import functools
from collections.abc import Callable, Mapping

from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import (
    Evaluation,
    evaluate,
    network_of,
    not_simulated,
    refuse_idle_router,
)
from penstock.planning.job_run import statistic_s
from penstock.planning.mixed_fleets import MixedLoad, best_of, no_worse
from penstock.planning.prospects import Hopeless, Prospect, order_of, rank
from penstock.planning.share import share_of
from penstock.planning.space import Family, Space
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import recorded
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.theory.bounds import bounds
from penstock.theory.kv_blocks import drawn
from penstock.theory.latency_bounds import lower_bounds
from penstock.theory.load import load
from penstock.words import counted, digits
from penstock.workload.workload import Workload

USUAL_RHO = 0.8
"""Load at which the search of the first family begins, where no short run says better."""

_GUESSED_BY = 2_000  # requests
_NO_LOAD = 1e-6  # of the rate
_BEYOND_DOUBT = 1.01  # times the limit: some bounds are what simulations show, but for their noise
_PATIENCE = 6  # undecided deployments


class Search:
    """A search on its way.

    ``prospects``: one for each family that theory leaves; ``hopeless``: families ruled out at any
    number of replicas; ``best`` so far, with its prospect.
    """

    def __init__(
        self,
        workload: Workload,
        space: Space,
        aim: Aim,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        self.workload, self.space, self.aim = workload, space, aim
        self.prospects: list[Prospect] = []
        self.hopeless: list[Hopeless] = []
        self.best: tuple[Evaluation, Prospect] | None = None
        self._evaluated: dict[tuple[str, int], Evaluation] = {}
        self._ordered: dict[tuple[Server, Server], bool] = {}
        self._unloaded: dict[Server, Mapping[str, Mapping[str, float]]] = {}
        self._report = report or (lambda share, what: None)
        self._done = 0
        for family in space.families:
            try:
                self._judge_by_theory(family)
            except InputError as error:  # such as a request that no replica has the memory for
                self.hopeless.append(Hopeless(family, "impossible", str(error)))
        self.prospects.sort(key=order_of)

    @property
    def evaluated(self) -> tuple[Evaluation, ...]:
        """What was simulated, in that order."""
        return tuple(self._evaluated.values())

    def run(self) -> None:
        """Search every family."""
        for done, prospect in enumerate(self.prospects):
            self._done = done
            start = prospect.guess
            prospect.most = len(prospect.family.counts) - 1
            if self.best is not None:
                start = prospect.most = prospect.last_within(self.best[0].deployment.cost)
            if prospect.most < prospect.least:
                continue
            self.search(prospect, start)
            if prospect.answer is None:
                continue
            answer = self.at(prospect, prospect.answer)
            if self.best is None or rank(answer) < rank(self.best[0]):
                self.best = answer, prospect
        self._done = len(self.prospects)

    def search(self, prospect: Prospect, start: int) -> None:
        """Find the fewest replicas that do, from an index to begin with."""
        # A missed target is missed with fewer replicas, too. An undecided one says nothing of
        # others, so the fewest that do not miss are found first, and from there each is tried.
        # Where more replicas may harm, all are tried, fewest first.
        if not self._more_helps(prospect.family.smallest):
            every = range(prospect.least, prospect.most + 1)
            prospect.answer = next((i for i in every if self.at(prospect, i).answer == "met"), None)
            return

        def missed(index: int) -> bool:
            return self.at(prospect, index).answer == "missed"

        # the answer lies above the most that is known to miss, up to the least that is known not to
        failed = prospect.least - 1
        top = start
        upward = missed(start)
        if upward:
            failed = start
            top = prospect.most
            if start == top or missed(top):
                return
        step = 1
        while top - failed > 1:
            # from where the search began, in steps that double, then by halves
            if not step:
                probe = (top + failed) // 2
            elif upward:
                probe = failed + step
            else:
                probe = top - step
            probe = min(max(probe, failed + 1), top - 1)
            if missed(probe):
                failed = probe
            else:
                top = probe
            step = 2 * step if missed(probe) == upward else 0
        prospect.answer = self._first_that_does(prospect, top)

    def _first_that_does(self, prospect: Prospect, first: int) -> int | None:
        """Return the first index known to do; after many undecided, in steps that double."""
        last = first - 1
        index = first
        step = 1
        while index <= prospect.most:
            if self.at(prospect, index).answer == "met":
                between = range(last + 1, index)
                return next((p for p in between if self.at(prospect, p).answer == "met"), index)
            if index - first >= _PATIENCE:
                step *= 2
            last = index
            index = max(min(index + step, prospect.most), index + 1)
        return None

    def at(self, prospect: Prospect, index: int) -> Evaluation:
        """Return the deployment at an index, simulated."""
        return self.simulate(prospect.family, prospect.family.counts[index])

    def simulate(self, family: Family, count: int) -> Evaluation:
        """Return the deployment with so many replicas, simulated once."""
        key = family.name, count
        if key not in self._evaluated:
            deployment = family.at(count)

            def report(share: float) -> None:
                self._report(
                    (self._done + share / 2) / max(len(self.prospects), 1), deployment.name
                )

            report(0.0)
            try:
                self._evaluated[key] = evaluate(
                    self.workload, deployment, self.aim, progress=report
                )
            except (
                InputError
            ) as error:  # such as a recording that leaves one of so many replicas nothing
                self._evaluated[key] = not_simulated(
                    self.workload, deployment, self.aim, str(error)
                )
        return self._evaluated[key]

    def simulated(self, family: Family, count: int) -> bool:
        """Return whether that deployment was simulated."""
        return (family.name, count) in self._evaluated

    def peek(self, prospect: Prospect, index: int) -> Evaluation | None:
        """Return what was found out about the deployment at an index, if it was simulated."""
        return (
            self._evaluated.get((prospect.family.name, prospect.family.counts[index]))
            if index >= 0
            else None
        )

    def _judge_by_theory(self, family: Family) -> None:
        """Put a family among the prospects, or among the hopeless."""
        deployment, counts = family.smallest, family.counts
        # The smallest may have one replica, before which no router is asked.
        refuse_idle_router(self.workload, family.at(counts[-1]))
        least, usual, reason = self._least_stable(family)
        if least == len(counts):
            self.hopeless.append(Hopeless(family, "theory", reason))
            return
        if self.aim.objective == "cost" and not deployment.prefill_replicas:
            fewest = bisect.bisect_left(
                range(least, len(counts)), True, key=lambda index: not self._too_slow(family, index)
            )
            if least + fewest == len(counts):
                excess, reason = max(self._too_slow(family, len(counts) - 1))
                self.hopeless.append(Hopeless(family, "theory", reason, excess))
                return
            if fewest:
                least += fewest
                reason = max(self._too_slow(family, least - 1))[1]
        guess = self._guess(family, least, min(max(usual, least), len(counts) - 1))
        self.prospects.append(Prospect(family, least, guess, reason))

    def _least_stable(self, family: Family) -> tuple[int, int, str]:
        """Return the index of the fewest that may be stable, that of a usual load, and a reason."""
        # It says why there are no fewer of the first.
        deployment, counts = family.smallest, family.counts
        network = None if deployment.splits else network_of(self.workload, deployment)
        if network is not None and deployment.others:
            mixed = MixedLoad(network, family, self._more_helps(deployment))
            least = mixed.first_below(1.0)
            return least, mixed.first_below(USUAL_RHO), mixed.why_not(least - 1)
        if network is not None and deployment.prefill_replicas:
            load_of_one = float(network.model().rho.max()) * deployment.replicas
            limit = "Theorem 1(a)", "token budget"
        else:
            limits = bounds(
                self.workload, deployment.server, load(self.workload, deployment.server)
            )
            tightest = min(limits, key=lambda bound: bound.max_rate)
            load_of_one = self.workload.rate / tightest.max_rate
            limit = tightest.theorem, tightest.name
        reason = (
            f"{limit[0]}: {digits(load_of_one)} replicas' worth of work arrives, so no policy "
            "keeps fewer stable "
            f"({limit[1]})"
        )
        usual = bisect.bisect_left(counts, load_of_one / USUAL_RHO)
        return bisect.bisect_right(counts, load_of_one), usual, reason

    def _too_slow(self, family: Family, index: int) -> list[tuple[float, str]]:
        """Return targets that no policy can meet: least latency over the limit, and why."""
        # These bounds rise with the rate of one server. What one gets of a router that looks at
        # queues is not known, so there they are asked without load.
        count, deployment = family.counts[index], family.smallest
        condition = "without load"
        if deployment.splits:
            bounds_of = lower_bounds(self._share(deployment.router, count), deployment.server)
            condition = f"with {counted(count, 'replica')}"
        else:
            # all requests may go to the kind of replica that is faster for them
            bounds_of = self._without_load(best_of([kind.server for kind, _ in deployment.kinds]))
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

    def _more_helps(self, deployment: Deployment) -> bool:
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

    def _without_load(self, server: Server) -> Mapping[str, Mapping[str, float]]:
        """Return the latencies that no policy of a server undercuts, whatever the rate."""
        if server not in self._unloaded:
            rare = self.workload.with_rate(_NO_LOAD * self.workload.rate)
            self._unloaded[server] = lower_bounds(rare, server)
        return self._unloaded[server]

    def _guess(self, family: Family, least: int, usual: int) -> int:
        """Return the index of the fewest replicas that would do if short runs were right."""
        # ``usual`` where one gets no share of its own, or cannot be simulated.
        counts, deployment = family.counts, family.smallest
        if not deployment.splits:
            return usual
        low, high = least, len(counts)  # the first that is promising, or none
        while low < high:
            middle = (low + high) // 2
            promising = self._promising(
                self._share(deployment.router, counts[middle]), deployment.server
            )
            if promising is None:
                return usual
            low, high = (low, middle) if promising else (middle + 1, high)
        return min(low, len(counts) - 1)

    def _share(self, router: str, count: int) -> Workload:
        """Return what one of so many replicas gets in theory: of a recording all, at its rate."""
        if self.workload.rows is not None:
            return self.workload.with_rate(self.workload.rate / count)
        return share_of(self.workload, router, count)

    def _promising(self, workload: Workload, server: Server) -> bool | None:
        """Return whether a short run meets the targets; None: it cannot be simulated."""
        requests = min(_GUESSED_BY, workload.rows or _GUESSED_BY)
        try:
            run = simulate(workload, server, requests=requests)
        except InputError:
            return None
        tpot = Distribution.of(recorded(run.rows, "requests").tpot)
        samples = {"ttft_s": run.ttft, "tbt_s": run.gaps, "tpot_s": tpot, "e2e_s": run.e2e}
        return not any(
            samples[target.metric].size
            and statistic_s(samples[target.metric], target.statistic, run.tick_s) >= target.limit_s
            for target in self.aim.targets
        )
