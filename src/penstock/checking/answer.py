"""The answer to "is it stable, what can it carry, at what latency": theorem, sequential test and run side by side."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import checks
from penstock.checking.drift_test import Stability, verdict
from penstock.checking.kv_limit import kv_notes
from penstock.checking.latency import SteadyState, estimate
from penstock.checking.targets import Estimate, Judgement, Target
from penstock.errors import InputError
from penstock.show.page import Page, Shown
from penstock.simulation.run import TICK_S, Progress, Record, Run
from penstock.simulation.simulate import length_of_run, simulate
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.theory.kv_blocks import reuses, served
from penstock.theory.load import Load
from penstock.theory.memory import MemoryEstimate, memory_is_full
from penstock.words import STATISTICS
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario
    from penstock.theory.operating_point import OperatingPoint

ROWS_UP_TO = 1_000_000
"""Longer runs keep a summary instead of a row per request, and latency has no intervals."""

_LOSS_WORTH_A_WARNING = 0.01
_SOME = 0.01  # preemptions of a request
_FIRST_REQUESTS = 300
_TEST_SHARE = 0.2  # of the work, for the progress bar


class TargetAnswer(NamedTuple):
    """A latency target, the estimate it was judged by (None: there is no steady state), and the judgement."""

    target: Target
    estimate: Estimate | None
    judgement: Judgement


@dataclasses.dataclass(frozen=True, eq=False)
class Answer(Shown):
    """What is known about a workload on a server.

    Attributes
    ----------
    workload, server
        What was asked about.
    certificate
        What a theorem says.
    stability
        What the sequential test says.
    run
        What was simulated from empty.
    latency
        Latency of the steady state, or None where it is refused or the run kept no rows.
    latency_refused
        Why there is no latency of a steady state, or None.
    targets
        The targets given, judged.
    disagreement
        What to doubt where theorem and test contradict each other, or None.
    warnings
        What the user should know besides.
    front
        What to know of the KV memory before the verdict is read.
    full
        What the server carries once KV memory is full, by an estimate; None where something else is, or none is known.
    """

    workload: Workload
    server: Server
    certificate: Certificate
    stability: Stability
    run: Run
    latency: SteadyState | None
    latency_refused: str | None
    targets: tuple[TargetAnswer, ...]
    disagreement: str | None
    warnings: tuple[str, ...]
    front: tuple[str, ...] = ()
    full: MemoryEstimate | None = None

    @property
    def verdict(self) -> str:
        """Both in one word: ``contradiction``, or what the theorem says, or where it says nothing the test."""
        if self.disagreement:
            return "contradiction"
        said = self.certificate.verdict
        return self.stability.verdict if said == "unknown" else said

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @property
    def reason(self) -> str:
        """Why the verdict is what it is."""
        if self.disagreement:
            return self.disagreement
        return self.stability.reason if self.certificate.verdict == "unknown" else self.certificate.reason

    @functools.cached_property
    def first(self) -> Run:
        """The first batches, with who was in them."""
        return first_batches(self.workload, self.server)

    @functools.cached_property
    def point(self) -> "OperatingPoint":
        """Where the workload lies in the region of the server."""
        from penstock.theory.operating_point import operating_point

        return operating_point(self.workload, self.server, estimate_memory=False)

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        from penstock.checking.view import answer_page

        return answer_page(self, scenario)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``check``."""
        steady = self.latency.as_dict() if self.latency else {"latency": None, "intervals": None}
        return {
            "verdict": self.verdict,
            "load": load_as_dict(self.certificate),
            "certificate": self.certificate.as_dict(),
            "stability": self.stability.as_dict(),
            "simulation": run_as_dict(self.run) | {"verdict": self.stability.verdict},
            "latency": None if self.latency_refused else steady["latency"] or latency_as_dict(self.run),
            "latency_interval": steady["intervals"],
            "latency_refused": self.latency_refused,
            "targets": [
                {
                    "target": str(given),
                    "answer": judgement,
                    "value": found.value if found else None,
                    "interval": [found.low, found.high] if found else None,
                }
                for given, found, judgement in self.targets
            ],
            "disagreement": self.disagreement,
            "warnings": [*self.front, *self.warnings],
        }

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, or too much load, for the scenario of that file."""
        if self.verdict == "unstable" and not self.targets:
            return self._less_load(file)
        if not self.missed:
            return None
        asked = " ".join(f"--target '{given}'" for given, _, _ in self.targets)
        if all(judgement != "missed" for _, _, judgement in self.targets):
            longer = min(16 * self.run.arrived, ROWS_UP_TO)
            if longer <= self.run.arrived:
                return f"no longer run is kept: with {longer:,} requests the target is too near the latency to tell"
            return f"a longer run may decide it: `penstock check {file} --requests {longer} {asked}`"
        return (
            f"`penstock recommend {file} {asked}` looks for limits with which this server meets it; where none do, "
            "`penstock plan` finds how many replicas, and of which hardware, do"
        )

    def _less_load(self, file: str) -> str:
        """Say what holds an overloaded server back, and what to do."""
        rate, bound = self.certificate.load.arrival_rate, self.certificate.binding
        plan = f"with a `plan` in the scenario, `penstock plan {file}` finds how many replicas carry it"
        if rate >= bound.max_rate:
            cause = f"the {bound.name} lets no policy carry more than {bound.max_rate:,.4g} requests/s"
            return f"{cause}: `penstock recommend {file}` looks for other limits, and {plan}"
        cause = f"the policy, {self.server.policy.name}, does not carry it, though another may"
        if self.full is not None and self.full.rate < rate:
            cause = f"KV memory holds it back, which carries about {self.full.rate:,.4g} requests/s once it is full"
        return (
            f"{cause}: `penstock max-rate {file}` says how much it carries, `penstock recommend {file}` with which "
            f"limits it carries more, and {plan}"
        )


def check(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    until: float | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float = 0.01,
    resolution: float = 0.01,
    estimate_memory: bool = True,
    progress: Progress | None = None,
) -> Answer:
    """Certify a workload on a server, test it, simulate it, and refuse the latency of a steady state it has not.

    Parameters
    ----------
    workload, server, requests, until
        As in `penstock.simulation.simulate`. A target that is undecided makes the run longer, up to 16 times.
    targets
        Upper limits of latencies, to be judged; as text such as ``ttft_p99<2s``, see `Target.parse`.
    precision
        Largest half-width of the interval of any mean latency, over its value: 0.05 is 5%. Until then the run becomes
        longer, up to 16 times. Default: as it comes.
    alpha, resolution
        As in `penstock.verdict`.
    estimate_memory
        Whether to note what is carried once KV memory is full, where there is an estimate, and at which KV memory the
        verdict on an engine would turn, where none was given (it may take seconds).
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    if isinstance(targets, str) or not all(isinstance(target, Target | str) for target in targets):
        raise InputError(f"targets are {checks.shown(targets)}, but must be a list such as ['ttft_p99<2s']")
    limits = [Target.parse(target) if isinstance(target, str) else target for target in targets]
    length_of_run(workload, requests, until, TICK_S)  # refuse it before the test, not after
    short = until is None and (requests or workload.rows or 0) <= ROWS_UP_TO
    if (limits or precision is not None) and not short:
        raise InputError(
            f"targets and precision need a run with a row per request, up to {ROWS_UP_TO:,}; give `requests` up to "
            "that, and no `until`"
        )
    report = progress or (lambda share: None)
    certificate = certify(workload, server)
    stability = verdict(
        workload, server, alpha, resolution, workload.seed, progress=lambda share: report(_TEST_SHARE * share)
    )

    def report_run(share: float) -> None:
        report(_TEST_SHARE + (1 - _TEST_SHARE) * share)

    refused = _refused(certificate, stability)
    latency = None
    if refused or not short:
        record = record_for(requests, until)
        run = simulate(workload, server, requests=requests, until=until, record=record, progress=report_run)
    else:
        rho = 1 / (1 - min(stability.drift, 0.0))  # under a backlog it carries so many times what arrives
        run, latency = estimate(
            workload, server, requests=requests, precision=precision, targets=limits, rho=rho, progress=report_run
        )
    warnings = list(workload.notices)
    if workload.rows is not None:
        warnings.append(
            "the test repeats the recording without end; for requests that are independent, draw them from it with "
            "arrivals 'poisson'"
        )
    warnings += load_warnings(certificate.load, server)
    full = memory_is_full(workload, server) if estimate_memory else None
    warnings += memory_warnings(workload, server, full)
    if stability.verdict == "undecided" and not refused:
        warnings.append("whether it is stable is undecided, so there may be no steady state whose latency this is")
    if latency:
        warnings += latency.notices
    return Answer(
        workload=workload,
        server=server,
        certificate=certificate,
        stability=stability,
        run=run,
        latency=latency,
        latency_refused=refused,
        targets=tuple(judged(target, latency) for target in limits),
        disagreement=_disagreement(certificate, stability),
        warnings=tuple(warnings),
        front=kv_notes(workload, server, stability.verdict, search=estimate_memory),
        full=full,
    )


def first_batches(workload: Workload, server: Server) -> Run:
    """Return a short run that tells who was in each batch."""
    requests = min(_FIRST_REQUESTS, workload.rows or _FIRST_REQUESTS)
    return simulate(workload, server, requests=requests, record="allocations")


def _refused(certificate: Certificate, stability: Stability) -> str | None:
    if certificate.verdict == "unstable":
        return f"{certificate.reason}; there is no steady state whose latency could be told"
    if certificate.verdict == "critical":
        return f"{certificate.reason}; there may be no steady state whose latency could be told"
    if stability.verdict == "unstable":
        return f"{stability.reason}; there is no steady state whose latency could be told"
    return None


def judged(target: Target, latency: SteadyState | None) -> TargetAnswer:
    """Judge a target by the latency of a steady state; without one it is missed."""
    if latency is None:
        return TargetAnswer(target, None, "missed")
    return TargetAnswer(target, latency.estimates[target.metric][target.statistic], latency.judge(target))


def _disagreement(certificate: Certificate, stability: Stability) -> str | None:
    """Say what is in doubt where the two contradict each other: what nobody checked, or Penstock itself."""
    if {certificate.verdict, stability.verdict} != {"stable", "unstable"}:
        return None
    unchecked = [hypothesis.name for hypothesis in certificate.hypotheses if not hypothesis.checked]
    if unchecked:
        cause = f"in doubt is what was taken on trust: {', '.join(unchecked)}; audit a run to find out"
    else:
        cause = (
            f"every hypothesis was checked, so this is the wrong verdict that alpha {stability.alpha:g} allows for, or "
            "a bug: try another seed, and if it stays, please report it"
        )
    return (
        f"{certificate.theorem} says {certificate.verdict}, but the test says {stability.verdict} "
        f"({stability.reason}); {cause}"
    )


def record_for(requests: int | None, until: float | None) -> Record:
    """Return what a run of that length keeps: a row per request where that is no burden."""
    return "requests" if until is None and (requests or 0) <= ROWS_UP_TO else "summary"


def memory_warnings(workload: Workload, server: Server, full: MemoryEstimate | None) -> list[str]:
    """Return what KV memory does to a workload that neither load nor bounds say; ``full`` by the estimate."""
    if server.memory is None:
        return []
    warnings = []
    kept = served(workload, server).share
    if kept < 1:
        warnings.append(f"{1 - kept:.2%} of the requests never fit and are dropped; nothing here counts them")
    if reuses(workload, server):
        warnings.append(
            "prompts may be found in the prefix cache: the load counts all of their tokens, bounds only one of each; "
            "the test repeats the recording, and finds in the cache what it holds of the repetition before"
        )
    if full is not None:
        again = f", each preempted {full.preemptions:.2g} times" if full.preemptions > _SOME else ""
        remedy = "; fewer running requests or a watermark may carry more" if again else ""
        warnings.append(
            f"once its KV memory is full the server carries about {full.rate:,.4g} requests/s (an estimate), with "
            f"{full.running:,.0f} running{again}{remedy}"
        )
    return warnings


def load_warnings(load: Load, server: Server) -> list[str]:
    """Say whether the policy is out of place under the limits, and what these waste where token load alone decides."""
    warnings = [server.scope_warning] if server.scope_warning else []
    if any(load.attention_s):
        return warnings
    full, best = load.filled_batch_tokens_per_s, load.best_batch_tokens_per_s
    if full >= best * (1 - _LOSS_WORTH_A_WARNING):
        return warnings
    return [
        *warnings,
        f"batches filled to the token budget of {server.token_budget:,} carry {full:,.0f} tokens/s, but batches of "
        f"{load.best_token_load:,} carry {best:,.0f}: set the budget to {load.best_token_load:,}",
    ]


def load_as_dict(certificate: Certificate) -> dict[str, float]:
    """Return the JSON form of a load."""
    load = certificate.load
    return {
        "rho": load.rho,
        "arrival_rate": load.arrival_rate,
        "tokens_per_request": load.tokens_per_request,
        "offered_tokens_per_s": load.offered_tokens_per_s,
        "capacity_tokens_per_s": load.capacity_tokens_per_s,
        "max_rate": certificate.max_rate,
    }


def run_as_dict(run: Run) -> dict[str, Any]:
    """Return the JSON form of what was simulated; no verdict is drawn from one run."""
    growth = run.growth_tokens_per_s
    return {
        "verdict": None,
        "requests": run.arrived,
        "unfinished": run.unfinished,
        "batches": run.n_batches,
        "seconds": run.seconds,
        "tokens_per_s": run.tokens_per_s,
        "utilisation": run.utilisation,
        "growth_tokens_per_s": None if math.isnan(growth) else growth,
        "preemptions": run.preemptions,
        "recomputed_tokens": run.recomputed_tokens,
        "reused_tokens": run.reused_tokens,
        "dropped": run.dropped,
    }


def latency_as_dict(run: Run) -> dict[str, dict[str, float | None]]:
    """Return the JSON form of the latency of a run."""
    return {row["metric"]: {name: row[name] for name in STATISTICS} for row in run.latency().iter_rows(named=True)}
