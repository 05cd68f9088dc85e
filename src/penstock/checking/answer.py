"""The answer to "is it stable, what can it carry, at what latency": theorem, test and run side by
side, of a workload on a server and of a network.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from penstock import checks
from penstock.checking.doubt import Doubt
from penstock.checking.enough_requests import MOST_TIMES_LONGER
from penstock.checking.latency import SteadyState
from penstock.checking.stability import RECORDED, Stability
from penstock.checking.targets import (
    Target,
    TargetAnswer,
    parsed_targets,
    refuse_gaps_of_one_token,
)
from penstock.checking.verdict import checked_of_network, checked_of_server, verdict
from penstock.errors import InputError
from penstock.show.answers import Shown
from penstock.show.page import Page
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.quick import MemoryEstimate
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import OfSystem, as_network, refuse, refuse_of_clients
from penstock.system.outages import Outage, listed
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.certificate import SPIRAL, VIRTUAL, Certificate
from penstock.theory.certify import certify
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.checking.closed_loop import ClosedAnswer
    from penstock.checking.outages import OutageWindow
    from penstock.checking.pools import PoolAnswer
    from penstock.checking.stages import PriorityAnswer, StageAnswer, WorkflowAnswer
    from penstock.scenario.scenario import Scenario
    from penstock.system.network import Network
    from penstock.theory.operating_point import OperatingPoint

ROWS_UP_TO = 1_000_000
"""Longer runs of a server keep a summary instead of a row per request, and latency has no
intervals.
"""

MOST_JOBS = 10_000_000
"""Of a run of a network: each keeps a row per request in memory."""

_FIRST_REQUESTS = 300
# Of the work, for the progress bar: the test of a server, and that of a network.
_TEST_SHARE, _FLOOD_SHARE = 0.2, 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Answer(OfSystem, Shown):
    """What is known about a system: theorem, test and run side by side.

    Attributes
    ----------
    system
        What was asked about: a workload and a server, or a network.
    certificate
        What a theorem says.
    stability
        What the test says; None where all jobs are recorded, and come to an end.
    run
        What was simulated from empty.
    latency
        Latency of the steady state, or None where it is refused, or the run kept no rows.
    targets
        The targets given, judged.
    front
        What to know before the verdict is read: what no row has seen, prefix caches, KV memory.
    warnings
        What the user should know besides.
    outages
        What replicas that die and come back do to latency.
    calibration
        What is not known of the batch times; None: they are taken as exact.
    full
        What a server carries once KV memory is full, by an estimate; None where something else
        is, or none is known.
    unsteady
        Why what was recorded has no steady state; None: nothing says so.
    kv_doubt
        Why the verdict hinges on KV memory that is estimated, as a clause; empty where it does not.
    """

    system: "Network | tuple[Workload, Server]"
    certificate: Certificate
    stability: Stability | None
    run: Run
    latency: SteadyState | None
    targets: tuple[TargetAnswer, ...] = ()
    front: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    outages: "tuple[OutageWindow, ...]" = ()
    calibration: Doubt | None = None
    full: MemoryEstimate | None = None
    unsteady: str | None = None
    kv_doubt: str = ""

    @property
    def verdict(self) -> str:
        """Both in one word: ``contradiction``, or what the theorem says, or where it says nothing
        the test; ``undecided`` where other batch times that may be true give another.
        """
        if self.disagreement:
            return "contradiction"
        return "undecided" if self.hinges_on_calibration else self._deciding.verdict

    @property
    def reason(self) -> str:
        """The sentence of the one that gave the verdict, or of both if they contradict."""
        if self.calibration is not None and self.hinges_on_calibration:
            return self.calibration.reason(self._deciding.verdict)
        return self.disagreement or self._deciding.reason

    @property
    def hinges_on_calibration(self) -> bool:
        """Whether batch times that may be the true ones give another verdict."""
        if self.calibration is None or self.disagreement:
            return False
        return not self.calibration.holds(self._deciding.verdict)

    @property
    def _deciding(self) -> Certificate | Stability:
        if self.certificate.verdict == "unknown" and self.stability is not None:
            return self.stability
        return self.certificate

    @property
    def latency_refused(self) -> str | None:
        """Why there is no latency of a steady state, or None."""
        return no_steady_state(self.certificate, self.stability) or self.unsteady

    @property
    def disagreement(self) -> str | None:
        """What to doubt where theorem and test contradict each other, or None: what nobody checked,
        or Penstock.
        """
        certificate = self.certificate
        test = self.stability
        if test is None or {certificate.verdict, test.verdict} != {"stable", "unstable"}:
            return None
        audited = "" if self.is_network else "; audit a run to find out"
        if certificate.trusted:
            cause = (
                f"in doubt is what was taken on trust: {', '.join(certificate.trusted)}{audited}"
            )
        else:
            cause = (
                f"every hypothesis was checked, so {test.error}, and if it stays, please report it"
            )
        both = f"{certificate.theorem} says {certificate.verdict}, but the test says {test.verdict}"
        return f"{both} ({test.reason}); {cause}"

    @property
    def unit(self) -> str:
        """What arrives is counted in."""
        return "jobs" if self.is_network else "requests"

    @property
    def tested(self) -> Stability:
        """What the test says, which is never skipped at a server."""
        if self.stability is None:
            raise InputError(f"there is no test: {RECORDED}")
        return self.stability

    @property
    def stability_skipped(self) -> str | None:
        """Why there is no test, or None."""
        return None if self.stability else RECORDED

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @functools.cached_property
    def pools(self) -> "tuple[PoolAnswer, ...]":
        """What is asked of each pool, and what it did."""
        from penstock.checking.pools import pool_answers

        return pool_answers(self.network, self.certificate, self.run)

    @functools.cached_property
    def workflows(self) -> "tuple[WorkflowAnswer, ...]":
        """What arrives of each workflow, and how long its jobs take."""
        from penstock.checking.stages import workflow_answers

        return workflow_answers(self.network, self.run, self.latency)

    @functools.cached_property
    def stages(self) -> "tuple[StageAnswer, ...]":
        """What each stage asks of its pool, and how long it takes there."""
        from penstock.checking.stages import stage_answers

        return stage_answers(self.network, self.latency)

    @functools.cached_property
    def priorities(self) -> "tuple[PriorityAnswer, ...]":
        """Latency by priority; none where requests have no priorities, or latency is refused."""
        from penstock.checking.stages import priority_answers

        return priority_answers(self.latency)

    @functools.cached_property
    def drawn(self) -> "Drawn":
        """What only figures of a server show."""
        return Drawn(self.workload, self.server)

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        from penstock.checking.view import answer_page

        return answer_page(self, scenario)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``check``."""
        from penstock.checking.json_documents import answer_as_dict

        return answer_as_dict(self)

    @property
    def bottleneck(self) -> "PoolAnswer":
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: round(pool.margin, 9))

    @property
    def loads(self) -> dict[str, float] | None:
        """Load of each pool as the run measured it; None where none depends on the run."""
        if self.network.reuse_is_certain:
            return None
        return {pool.name: pool.rho for pool in self.pools}

    @property
    def order_fails(self) -> bool:
        """Whether a priority order is what makes the network unstable, by theorem."""
        return self.certificate.theorem in (VIRTUAL, SPIRAL)

    def cycles_in_words(self) -> list[tuple[float, str]]:
        """Return of each cycle of pools the certified factor on all rates, and its meaning."""
        from penstock.theory.network.cyclic_pools import CERTIFIED
        from penstock.theory.network.hypotheses import CARRIED

        anyone = self.certificate.any_policy
        others = all(
            h.held for h in self.certificate.hypotheses if h.name not in (CERTIFIED, CARRIED)
        )
        certifies = "certifies" if others else "would, if the other hypotheses held, certify"
        rows = []
        for cycle in anyone.cycles if anyone else ():
            what = "nothing is known of every work-conserving order of the stages"
            if cycle.max_load > 0:
                what = (
                    f"the linear program {certifies} every work-conserving order of the stages up "
                    "to so many times this load"
                )
                if cycle.max_load >= cycle.overload * (1 - 1e-5):
                    what += ", where a pool is overloaded"
                elif cycle.exact and others:
                    what += "; above it some order fails"
            rows.append(
                (cycle.max_load, f"jobs go round between {' - '.join(cycle.pools)}: {what}")
            )
        return rows

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, or too much load, or None."""
        if self.latency_refused and self.is_network:
            return self._less_load_of_pools()
        if self.verdict == "unstable" and not self.targets:
            return self._less_load(file)
        if not self.missed:
            return None
        targets = " ".join(f"--target '{answer.target}'" for answer in self.targets)
        if all(answer.judgement != "missed" for answer in self.targets):
            longer = longer_run(self)
            if longer is None:
                return left_open(self)
            count = f"--{self.unit} {longer}"
            return f"a longer run may decide it: `penstock check {file} {count} {targets}`"
        if self.is_network:
            return "more replicas, other limits or less load may meet it"
        return (
            f"`penstock recommend {file} {targets}` looks for limits with which this server meets "
            "it; where none do, "
            "`penstock plan` finds how many replicas, and of which hardware, do"
        )

    def _less_load_of_pools(self) -> str | None:
        """Say what to do about a network that is unstable."""
        if self.order_fails:
            return "write `order: fcfs` at the pools, or turn this order around (--orders compares)"
        tightest = self.certificate.bottleneck
        if tightest.max_load >= 1:
            return None
        limits = " and ".join(tightest.binding) or "batch time"
        return (
            f"the {limits} of pool {tightest.name} would have to be {1 / tightest.max_load:.3g} "
            "times as much: more replicas there, other limits, or less load"
        )

    def _less_load(self, file: str) -> str:
        """Say what holds an overloaded server back, and what to do."""
        rate = self.certificate.load.arrival_rate
        bound = self.certificate.binding
        plan = (
            f"with a `plan` in the scenario, `penstock plan {file}` finds how many replicas carry "
            "it"
        )
        if rate >= bound.max_rate:
            cause = (
                f"the {bound.name} lets no policy carry more than {bound.max_rate:,.4g} requests/s"
            )
            return f"{cause}: `penstock recommend {file}` looks for other limits, and {plan}"
        cause = f"the policy, {self.server.policy.name}, does not carry it, though another may"
        if self.full is not None and self.full.rate < rate:
            cause = (
                f"KV memory holds it back, which carries about {self.full.rate:,.4g} requests/s "
                "once it is full"
            )
        return (
            f"{cause}: `penstock max-rate {file}` says how much it carries, `penstock recommend "
            f"{file}` with which "
            f"limits it carries more, and {plan}"
        )


def most_requests(workload: Workload) -> int:
    """Return of how many requests a run may keep a row of each: a recording has no more of them."""
    return min(ROWS_UP_TO, workload.rows or ROWS_UP_TO)


def longer_run(answer: Answer) -> int | None:
    """Return how many requests or jobs may decide what a run left open; None: no longer one is
    kept.
    """
    most = MOST_JOBS
    if not answer.is_network:
        most = most_requests(answer.workload)
    elif answer.network.ends:
        most = 0
    longer = min(MOST_TIMES_LONGER * answer.run.arrived, most)
    return longer if longer > answer.run.arrived else None


def left_open(answer: Answer) -> str:
    """Say that no run decides a target."""
    return f"{answer.run.arrived:,} {answer.unit} leave it open, and no longer run is kept"


@overload
def check(  # type: ignore[overload-overlap]
    workload: ClosedLoop,
    server: Server,
    *,
    requests: int | None = None,
    targets: Sequence[Target | str] = (),
    progress: Progress | None = None,
    certified: Callable[[None], object] | None = None,
) -> "ClosedAnswer": ...
@overload
def check(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    until: float | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    stability: Stability | None = None,
    certified: Callable[[Certificate], object] | None = None,
) -> Answer: ...
@overload
def check(
    network: "Network",
    /,
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    resolution: float | None = None,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Certificate], object] | None = None,
) -> Answer: ...
def check(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Any], object] | None = None,
) -> "Answer | ClosedAnswer":
    """Certify a system, test it, simulate it, and refuse the latency of a steady state that it has
    not.

    Clients who wait for their answers (`Workload.closed`) are stable by construction: of them it
    says at what throughput and latency they are served.

    Parameters
    ----------
    workload, server, requests, jobs, until, seed
        As in `penstock.simulate`. Runs of networks keep their requests, so they have up to ten
        million jobs.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``. See `Target.parse`. Of several stages
        or workflows the one furthest from its limit counts. While one is undecided the run becomes
        longer, up to 16 times.
    precision
        Simulate until mean latencies are known to it: 0.05 is 5%. It is the largest half-width of
        their intervals, over the value; until then the run becomes longer, up to 16 times.
    alpha, resolution
        As in `penstock.verdict`.
    estimate_memory
        Of a server: whether to note what is carried once KV memory is full, where there is an
        estimate, and at which KV memory the verdict on an engine would turn, where none was given
        (it may take seconds).
    progress
        Called now and then with the share that is done.
    outages
        Of a network: replicas that die and come back, in a further run of the same jobs, which says
        what they do to latency. Verdicts and the steady state are without them: what ends does not
        change whether a backlog grows for ever.
    stability
        What `penstock.verdict` says with this alpha, this resolution and the seed of the workload,
        where that is known: the test is not run again.
    certified
        Called with the certificate, before anything is simulated; None of a closed loop.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    limits = parsed_targets(targets)
    estimate_memory = checks.truth("estimate_memory", estimate_memory)
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(jobs=jobs, seed=seed, outages=listed(outages) or None)
        refuse_gaps_of_one_token(limits, workload)
        if isinstance(workload, ClosedLoop):
            refuse_of_clients(until=until, precision=precision, alpha=alpha, resolution=resolution)
            from penstock.checking.closed_loop import closed_answer

            return closed_answer(workload, server, requests, limits, progress, certified)
        # The length is refused before the test, not after it.
        from penstock.checking.check_server import RunAsked, answer_of_server

        asked = RunAsked(workload, requests, until, limits, precision)
        checked_of_server(alpha, resolution)
        server = as_serving(workload, server)
        certificate = certify(workload, server)
        if certified is not None:
            certified(certificate)
        if stability is None:
            tested = part_of(progress, 0.0, _TEST_SHARE)
            stability = verdict(workload, server, alpha, resolution, workload.seed, progress=tested)
        simulated = part_of(progress, _TEST_SHARE, 1.0)
        return answer_of_server(server, asked, stability, certificate, estimate_memory, simulated)
    network = as_network("check", workload, server)
    refuse(requests=requests, alpha=alpha, estimate_memory=None if estimate_memory else False)
    from penstock.checking.check_network import JobsAsked, answer_of_network, flooded

    # What cannot be done is refused before the test, not after.

    of_jobs = JobsAsked(network, jobs, until, seed, limits, precision, outages)
    checked_of_network(resolution)
    certificate = certify(network)
    if certified is not None:
        certified(certificate)
    if stability is None and not network.ends:
        tested = part_of(progress, 0.0, _FLOOD_SHARE)
        stability = flooded(network, seed, resolution, tested)
    simulated = part_of(progress, _FLOOD_SHARE, 1.0)
    return answer_of_network(of_jobs, stability, certificate, resolution, simulated)


def no_steady_state(
    certificate: Certificate,
    stability: Stability | None,
) -> str | None:
    """Return why the latency of a steady state is refused, or None."""
    if certificate.verdict in ("unstable", "critical"):
        is_none = "there is no" if certificate.verdict == "unstable" else "there may be no"
        return f"{certificate.reason}; {is_none} steady state whose latency could be told"
    if stability is not None and stability.verdict == "unstable":
        return f"{stability.reason}; there is no steady state whose latency could be told"
    return None


def latency_warnings(
    certificate: Certificate,
    stability: Stability | None,
    latency: SteadyState | None,
) -> list[str]:
    """Say what is in doubt of a latency."""
    warnings = []
    if (
        stability is not None
        and stability.verdict == "undecided"
        and not no_steady_state(certificate, stability)
    ):
        warnings.append(
            "whether it is stable is undecided, so there may be no steady state whose latency "
            "this is"
        )
    if latency is not None:
        warnings += latency.notices
    return warnings


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """What only figures show of a workload on a server, worked out when they are drawn."""

    workload: Workload
    server: Server

    @functools.cached_property
    def first(self) -> Run:
        """A short run that tells who was in each batch."""
        requests = min(_FIRST_REQUESTS, self.workload.rows or _FIRST_REQUESTS)
        return simulate(self.workload, self.server, requests=requests, record="allocations")

    @functools.cached_property
    def point(self) -> "OperatingPoint":
        """Where the workload lies in the region of the server."""
        from penstock.theory.operating_point import operating_point

        return operating_point(self.workload, self.server)
