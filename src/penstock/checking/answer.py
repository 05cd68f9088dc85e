"""The answer to "is it stable, what can it carry, at what latency": theorem, test and run side by
side, of a workload on a server and of a network.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Annotated

from penstock.checking.batch_means import OfLatency
from penstock.checking.doubt import Doubt
from penstock.checking.enough_requests import MOST_TIMES_LONGER
from penstock.checking.latency import SteadyState
from penstock.checking.metastable import Metastable
from penstock.checking.stability import RECORDED, Stability
from penstock.checking.targets import TargetAnswer
from penstock.errors import InputError
from penstock.show.answers import Meaning, Shown, computed
from penstock.show.page import Page
from penstock.simulation.quick import MemoryEstimate
from penstock.simulation.run import Run
from penstock.simulation.run_data import RunData
from penstock.simulation.simulate import simulate
from penstock.system.kinds import OfSystem
from penstock.system.server import Server
from penstock.theory.certificate import SPIRAL, VIRTUAL, Certificate, Rho, ServerLoad
from penstock.workload.workload import Workload

if TYPE_CHECKING:
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


class Simulation(RunData):
    """What was simulated from empty."""

    verdict: Annotated[str | None, Meaning("That of the test; null where there is none.")]


class NetworkLoad(Rho):
    """Load and limit of the pool of a network with the least margin."""

    bottleneck: Annotated[str, Meaning("Its name.")]
    margin: Annotated[float, Meaning("Left before no policy is stable, as a share.")]
    max_load: Annotated[float, Meaning("Factor on all rates beyond which no policy is stable.")]


@dataclasses.dataclass(frozen=True)
class RestsOn:
    """What latency of the steady state rests on."""

    jobs: Annotated[int, Meaning("That it was told from.")]
    warmup_jobs: Annotated[int, Meaning("Those before them.")]
    confidence: Annotated[float, Meaning("Of its intervals.")]


@dataclasses.dataclass(frozen=True, eq=False)
class Answer(OfSystem, OfLatency, Shown):
    """What is known about a system: theorem, test and run side by side."""

    system: Annotated[
        "Network | tuple[Workload, Server]",
        Meaning("What was asked about: a workload and a server, or a network.", key=None),
    ]
    certificate: Annotated[Certificate, Meaning("What a theorem says.")]
    stability: Annotated[
        Stability | None,
        Meaning("What the test says; None where all jobs are recorded, and come to an end."),
    ]
    run: Annotated[Run, Meaning("What was simulated from empty.", key=None)]
    latency: Annotated[
        SteadyState | None,
        Meaning(
            "Latency of the steady state, or None where it is refused, or the run kept no rows.",
            key=None,
        ),
    ]
    targets: Annotated[tuple[TargetAnswer, ...], Meaning("The targets given, judged.")] = ()
    front: Annotated[
        tuple[str, ...],
        Meaning(
            "What to know before the verdict is read: what no row has seen, prefix caches, KV "
            "memory.",
            key=None,
        ),
    ] = ()
    warnings: Annotated[
        tuple[str, ...], Meaning("What the user should know besides.", key=None)
    ] = ()
    outages: Annotated[
        "tuple[OutageWindow, ...]", Meaning("What replicas that die and come back do to latency.")
    ] = ()
    calibration: Annotated[
        Doubt | None,
        Meaning("What is not known of the batch times; None: they are taken as exact."),
    ] = None
    full: Annotated[
        MemoryEstimate | None,
        Meaning(
            "What a server carries once KV memory is full, by an estimate; None where something "
            "else is, or none is known.",
            key=None,
        ),
    ] = None
    metastable: Annotated[
        Metastable | None,
        Meaning(
            "Of a server that does not work off a backlog, and yet holds from empty: both rates, "
            "and the burst that tips it."
        ),
    ] = None
    unsteady: Annotated[
        str | None,
        Meaning("Why what was recorded has no steady state; None: nothing says so.", key=None),
    ] = None
    kv_doubt: Annotated[
        str,
        Meaning(
            "Why the verdict hinges on KV memory that is estimated, as a clause; empty where it "
            "does not.",
            key=None,
        ),
    ] = ""

    @computed()
    def verdict(self) -> str:
        """Both in one word: ``contradiction``, or what the theorem says, or where it says nothing
        the test; ``metastable`` where a backlog grows that from empty never comes to be;
        ``undecided`` where other batch times that may be true give another.
        """
        if self.disagreement:
            return "contradiction"
        if self.hinges_on_calibration:
            return "undecided"
        return self._deciding.verdict if self.metastable is None else "metastable"

    @property
    def reason(self) -> str:
        """The sentence of the one that gave the verdict, or of both if they contradict."""
        if self.calibration is not None and self.hinges_on_calibration:
            return self.calibration.reason(self._deciding.verdict)
        if self.disagreement or self.metastable is None:
            return self.disagreement or self._deciding.reason
        return self.metastable.reason

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

    @computed()
    def latency_refused(self) -> str | None:
        """Why there is no latency of a steady state, or None."""
        return no_steady_state(self.certificate, self.stability) or self.unsteady

    @computed()
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
    def most_arrivals(self) -> int:
        """How many requests or jobs a run may have: of a recording no more than there are."""
        if self.is_network:
            return self.run.arrived if self.network.ends else MOST_JOBS
        return min(ROWS_UP_TO, self.workload.rows or ROWS_UP_TO)

    @property
    def longer_run(self) -> int | None:
        """How many may decide what this run left open; None: no longer one is kept."""
        longer = min(MOST_TIMES_LONGER * self.run.arrived, self.most_arrivals)
        return longer if longer > self.run.arrived else None

    @property
    def left_open(self) -> str:
        """That no run decides a target."""
        return f"{self.run.arrived:,} {self.unit} leave it open, and no longer run is kept"

    @property
    def tested(self) -> Stability:
        """What the test says, which is never skipped at a server."""
        if self.stability is None:
            raise InputError(f"there is no test: {RECORDED}")
        return self.stability

    @computed()
    def stability_skipped(self) -> str | None:
        """Why there is no test, or None."""
        return None if self.stability else RECORDED

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @computed(kept=True, when="is_network")
    def pools(self) -> "tuple[PoolAnswer, ...]":
        """Of a network: what is asked of each pool, and what it did."""
        from penstock.checking.pools import pool_answers

        return pool_answers(self.network, self.certificate, self.run)

    @computed(kept=True, when="is_network")
    def workflows(self) -> "tuple[WorkflowAnswer, ...]":
        """Of a network: what arrives of each, and how long its jobs take."""
        from penstock.checking.stages import workflow_answers

        return workflow_answers(self.network, self.run, self.latency)

    @computed(kept=True, when="is_network")
    def stages(self) -> "tuple[StageAnswer, ...]":
        """Of a network: what each asks of its pool, and how long it takes there."""
        from penstock.checking.stages import stage_answers

        return stage_answers(self.network, self.latency)

    @computed(kept=True, when="is_network")
    def priorities(self) -> "tuple[PriorityAnswer, ...]":
        """Of a network: latency by priority; none where requests have none, or it is refused."""
        from penstock.checking.stages import priority_answers

        return priority_answers(self.latency)

    @functools.cached_property
    def drawn(self) -> "Drawn":
        """What only figures of a server show."""
        return Drawn(self.workload, self.server, self.run.arrived)

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        return super().page(scenario)

    @computed(key="load")
    def _load(self) -> ServerLoad | NetworkLoad:
        """Load and limit of a server, or of the pool of a network with the least margin."""
        if not self.is_network:
            return self.certificate.load_as_dict()
        bottleneck = self.bottleneck
        return {
            "bottleneck": bottleneck.name,
            "rho": bottleneck.rho,
            "margin": bottleneck.margin,
            "max_load": self.certificate.max_load,
            "rho_at_least": bottleneck.rho_at_least,
            "rho_without_cache": bottleneck.rho_without_cache,
        }

    @computed(key="simulation")
    def _simulation(self) -> Simulation:
        """What the run did, beside the verdict of the test."""
        return {"verdict": getattr(self.stability, "verdict", None), **self.run.as_dict()}

    @computed(key="latency")
    def _latency(self) -> dict[str, dict[str, float | None]] | None:
        """By metric and statistic: of the steady state, else of the run if it kept no rows."""
        if self.latency_refused:
            return None
        return super()._latency if self.latency else self.run.latency_as_dict()

    @computed(key="steady_state")
    def _rests_on(self) -> RestsOn | None:
        """What the latency of the steady state rests on."""
        of = self.latency
        return None if of is None else RestsOn(of.jobs, of.warmup_jobs, of.confidence)

    @computed(key="warnings")
    def _all_warnings(self) -> list[str]:
        """What to know."""
        return [*self.front, *self.warnings]

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
        if self.verdict in ("unstable", "metastable") and not self.targets:
            return self._less_load(file)
        if not self.missed:
            return None
        targets = " ".join(f"--target '{answer.target}'" for answer in self.targets)
        if all(answer.judgement != "missed" for answer in self.targets):
            if self.longer_run is None:
                return self.left_open
            count = f"--{self.unit} {self.longer_run}"
            return f"a longer run may decide it: `penstock check {file} {count} {targets}`"
        if self.is_network:
            return "more replicas, other limits or less load may meet it"
        return (
            f"`penstock recommend {file} {targets}` looks for limits with which this server meets "
            "it; where none do, `penstock plan` finds how many replicas, and of which hardware, do"
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
            if bound.name == "front end":
                return f"{cause}: give it more processes, or replicas: {plan}"
            return f"{cause}: `penstock recommend {file}` looks for other limits, and {plan}"
        cause = f"the policy, {self.server.policy.name}, does not carry it, though another may"
        if self.full is not None and self.full.rate < rate:
            cause = (
                f"KV memory holds it back, which carries about {self.full.rate:,.4g} requests/s "
                "once it is full"
            )
        if self.metastable is not None:
            cause += "; with fewer requests at once (max batch size) it may never fill"
        return (
            f"{cause}: `penstock max-rate {file}` says how much it carries, `penstock recommend "
            f"{file}` with which limits it carries more, and {plan}"
        )


def no_steady_state(certificate: Certificate, stability: Stability | None) -> str | None:
    """Return why the latency of a steady state is refused, or None."""
    if certificate.verdict in ("unstable", "critical"):
        is_none = "there is no" if certificate.verdict == "unstable" else "there may be no"
        return f"{certificate.reason}; {is_none} steady state whose latency could be told"
    if stability is not None and stability.verdict == "unstable":
        return f"{stability.reason}; there is no steady state whose latency could be told"
    return None


def latency_warnings(
    certificate: Certificate, stability: Stability | None, latency: SteadyState | None
) -> list[str]:
    """Say what is in doubt of a latency."""
    warnings = [] if latency is None else list(latency.notices)
    undecided = stability is not None and stability.verdict == "undecided"
    if undecided and not no_steady_state(certificate, stability):
        said = "whether it is stable is undecided, so there may be no steady state whose latency"
        warnings.insert(0, f"{said} this is")
    return warnings


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """What only figures show of a workload on a server, worked out when they are drawn."""

    workload: Workload
    server: Server
    arrived: int  # requests of the run

    @functools.cached_property
    def first(self) -> Run:
        """A run of the first requests, the same ones, that tells who was in each batch."""
        requests = min(_FIRST_REQUESTS, self.arrived)
        return simulate(self.workload, self.server, requests=requests, record="allocations")

    @functools.cached_property
    def point(self) -> "OperatingPoint":
        """Where the workload lies in the region of the server."""
        from penstock.theory.operating_point import operating_point

        return operating_point(self.workload, self.server)
