"""Certificates: what a theorem says about a workload on a server, and whether its hypotheses
hold.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from penstock.system.kinds import as_network
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory import hypotheses as conditions
from penstock.theory.attention import WITH_ATTENTION, prefill_at_least
from penstock.theory.bounds import Bound, bounds
from penstock.theory.drift import drift
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis
from penstock.theory.kv_blocks import drawn, reuses
from penstock.theory.load import Load, load
from penstock.theory.mean_backlog import MeanBacklog, mean_backlog
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.theory.network.certificate import NetworkCertificate

__all__ = ["CRITICAL_BAND", "Bound", "Certificate", "Hypothesis", "Verdict", "certify"]

Verdict = Literal["stable", "unstable", "critical", "unknown"]

WORK_CONSERVING = "Theorem 1(b)"
DRIFT = "Foster's theorem (every batch shrinks a backlog)"


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What a theorem says.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable``, ``critical`` (at a limit, where the theorems are silent) or
        ``unknown``.
    theorem
        The theorem used, or None.
    reason
        One sentence.
    hypotheses
        Every hypothesis of the conditions that were tried.
    load
        Load and capacity.
    bounds
        Necessary conditions: what each limit can carry, the token budget first.
    certified_rate
        Requests/s below which a theorem says stable for this workload at that rate; None where none
        does at any.
    mean_backlog
        Bounds of the long-run mean of the work left, tokens (Appendix C, corrected).
    caches
        Whether prompts may be found in a prefix cache.
    measured
        Beside a prefix cache, the load with what a run found there; None: not measured.
    """

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]
    load: Load
    bounds: tuple[Bound, ...]
    certified_rate: float | None
    mean_backlog: MeanBacklog
    caches: bool = False
    measured: float | None = None

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity.

        Beside a prefix cache it counts the tokens that are computed: with what a run found there
        (`measured`), else `rho_at_least`. No verdict here goes by what was measured.
        """
        if self.measured is not None:
            return self.measured
        return self.load.rho if self.rho_at_least is None else self.rho_at_least

    @property
    def rho_at_least(self) -> float | None:
        """Beside a prefix cache, the load if it kept everything; else None."""
        return self.load.arrival_rate / self.bounds[0].max_rate if self.caches else None

    @property
    def rho_without_cache(self) -> float | None:
        """Beside a prefix cache, the load if it found nothing; else None."""
        return self.load.rho if self.caches else None

    @property
    def trusted(self) -> list[str]:
        """Hypotheses that nobody checked."""
        return [hypothesis.name for hypothesis in self.hypotheses if not hypothesis.checked]

    @property
    def binding(self) -> Bound:
        """The tightest necessary condition; of equal ones the first."""
        return _tightest(self.bounds)

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable, by the tightest necessary condition."""
        return self.binding.max_rate

    @property
    def margin(self) -> float:
        """1 - arrival rate / max rate: 1 - rho where the token budget binds, negative when
        overloaded. Where the load is `measured`, no more than that leaves.
        """
        used = self.load.arrival_rate / self.max_rate
        return 1 - (used if self.measured is None else max(used, self.measured))

    def with_found(self, share: float, server: Server) -> "Certificate":
        """Return the certificate beside a run in which a prefix cache had a share of the prompt
        tokens: with the load that this leaves.
        """
        if not self.caches:
            return self
        prompt, _ = drawn(self.load.work.lengths)
        spared = (
            float(prefill_at_least(share * prompt.astype(np.float64), server).mean())
            * self.load.work.share
        )
        measured = self.load.rho - self.load.arrival_rate * spared
        return dataclasses.replace(self, measured=max(measured, self.rho_at_least or 0.0))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "verdict": self.verdict,
            "theorem": self.theorem,
            "reason": self.reason,
            "margin": self.margin,
            "hypotheses": [
                {"name": h.name, "held": h.held, "checked": h.checked, "why": h.why}
                for h in self.hypotheses
            ],
            "bounds": [dataclasses.asdict(bound) for bound in self.bounds],
            "certified_rate": self.certified_rate,
            "mean_backlog": self.mean_backlog.as_dict(),
        }


@overload
def certify(workload: Workload, server: Server) -> Certificate: ...
@overload
def certify(network: "Network", /) -> "NetworkCertificate": ...
def certify(
    workload: "Workload | Network", server: Server | None = None
) -> "Certificate | NetworkCertificate":
    """Say by theorem whether a workload on a server, or a network, is stable, where a theorem can.

    Of a network by the theorems that head `penstock.theory.network.certificate`. Of a server:

    *Unstable*: the arrival rate exceeds a necessary condition, one for each limit (see
    `penstock.theory.bounds`). Then the backlog diverges under any policy; long-run averages
    suffice.

    *Stable*: for independent, identically distributed arrivals and lengths, and bounded lengths, by
    one of

    * Theorem 1(b): a work-conserving policy, a max batch size that is absent or at least the token
      budget, and less load than b_max / t_bmax. On one server with bounded lengths the total of
      unprocessed tokens is itself a Foster function (Appendix C, corrected), so the K-FCFS
      condition is not needed.
    * the drift certificate: every batch that a backlog leads to drains it (see
      `penstock.theory.drift`), for any policy and any limits. It is tried where the policy is not
      known to be work-conserving or the max batch size can bind; else all those batches are full,
      and it says what Theorem 1(b) says.

    Neither knows KV memory, so on a server with one, both need that all requests that may run at
    once fit into it.

    Where batches take longer for what is in them (`Composition`), a request brings seconds of
    attention besides. All three take them into account: the necessary conditions at their least,
    the sufficient ones at their most (see `penstock.theory.attention`), with ``unknown`` in the
    band between.

    Parameters
    ----------
    workload, server
        What arrives and what serves; or a network alone.

    Returns
    -------
    Certificate or NetworkCertificate
        ``unknown`` where hypotheses fail, naming them, with the margin of the necessary condition.

    Raises
    ------
    InputError
        If the workload has no arrival rate, or a request can never be served.
    """
    if isinstance(workload, Workload) and isinstance(server, Server):
        return _certify_server(workload, server)
    network = as_network("certify", workload, server)
    from penstock.theory.network.certificate import of_network

    return of_network(network)


def _certify_server(workload: Workload, server: Server) -> Certificate:
    """Certify a workload on a server: see `certify`."""
    server = as_serving(workload, server)
    demand = load(workload, server)
    limits = bounds(workload, server, demand)
    sufficient, tried, certified_rate = _sufficient(workload, server, demand)
    tightest = _tightest(limits)
    backlog = mean_backlog(workload, server, demand)

    def certificate(
        verdict: Verdict, theorem: str | None, reason: str, hypotheses: tuple[Hypothesis, ...]
    ) -> Certificate:
        return Certificate(
            verdict,
            theorem,
            reason,
            hypotheses,
            demand,
            limits,
            certified_rate,
            backlog,
            caches=reuses(workload, server),
        )

    # Necessary conditions first: above one, or at one, no other hypothesis matters.
    if demand.arrival_rate > tightest.max_rate * (1 + CRITICAL_BAND):
        exceeded = [
            bound for bound in limits if demand.arrival_rate > bound.max_rate * (1 + CRITICAL_BAND)
        ]
        overload = _overload(workload, server, demand, exceeded[0])
        return certificate(
            "unstable", exceeded[0].theorem, _why_unstable(demand, exceeded), overload
        )
    if demand.arrival_rate >= tightest.max_rate * (1 - CRITICAL_BAND):
        return certificate("critical", None, _why_critical(tightest), ())
    if all(h.held for h in tried):
        return certificate(
            "stable",
            sufficient,
            _why_stable(server, demand, sufficient, certified_rate, tried),
            tried,
        )
    return certificate("unknown", None, _why_unknown(demand, tightest, tried), tried)


def _tightest(limits: tuple[Bound, ...]) -> Bound:
    least = min(bound.max_rate for bound in limits)
    return next(bound for bound in limits if bound.max_rate <= least * (1 + CRITICAL_BAND))


def _sufficient(
    workload: Workload, server: Server, demand: Load
) -> tuple[str, tuple[Hypothesis, ...], float | None]:
    """Return the theorem that applies, hypotheses to name, and the rate it certifies up to."""
    shared = conditions.shared(workload, server, demand)
    extended = WITH_ATTENTION if any(demand.attention_s) else ""
    fills = (conditions.work_conserving(server), conditions.batch_size(server))
    full = conditions.full_batches_carry_it(server, demand)
    sound = all(h.held for h in shared)
    if all(h.held for h in fills) or not sound:
        rate = demand.full_batch_rate if sound else None
        return WORK_CONSERVING + extended, (*shared, *fills, full), rate or None
    # Memory holds all that may run, so batches are as without a limit.
    backlog = drift(demand.work.lengths, dataclasses.replace(server, memory=None, gpu=None))
    drains = conditions.every_batch_drains(demand, backlog)
    others = () if drains.held else (*fills, full)
    return DRIFT + extended, (*shared, *others, drains), backlog.certified_rate


def _overload(
    workload: Workload, server: Server, demand: Load, bound: Bound
) -> tuple[Hypothesis, ...]:
    recorded = workload.rows is not None
    if bound.name == "token budget" and math.isclose(bound.max_rate, demand.max_rate):
        name = "load above 1"
        reason = (
            f"{demand.offered_tokens_per_s:,.0f} tokens/s arrive, the best batch "
            f"({demand.best_token_load:,} tokens) "
            f"carries {demand.capacity_tokens_per_s:,.0f}"
        )
        if demand.attention_s[0]:
            reason += (
                f" of such requests, each with {demand.attention_s[0]:.4g} s of attention at least"
            )
    else:
        name = f"arrival rate above the {bound.name}'s"
        reason = (
            f"{demand.arrival_rate:,.4g} requests/s arrive, at most {bound.max_rate:,.4g} are "
            f"carried: {bound.why}"
        )
    average = (
        "the recording, gone on with at this pattern"
        if recorded
        else "the arrival process has a rate"
    )
    return (
        Hypothesis(name, True, reason),
        Hypothesis("long-run averages exist", True, average, checked=not recorded),
        *conditions.dropped(demand.work),
        *conditions.cut(demand.work),
        *conditions.sampled_attention(demand),
        *conditions.sampled_bound(bound),
    )


def _why_unstable(demand: Load, exceeded: list[Bound]) -> str:
    first, *others = exceeded
    if first.name == "token budget":
        times = demand.arrival_rate / first.max_rate
        reason = f"tokens arrive {times:.3f} times as fast as any policy can process them"
    else:
        reason = (
            f"{demand.arrival_rate:,.4g} requests/s arrive, but the {first.name} lets no policy "
            "carry more than "
            f"{first.max_rate:,.4g}"
        )
    reason += "".join(
        f" (the {bound.name} allows {bound.max_rate:,.4g} requests/s at most)" for bound in others
    )
    return f"{reason}, so the backlog grows for ever"


def _why_critical(tightest: Bound) -> str:
    what = (
        f"the arrival rate is exactly what the {tightest.name} can carry, where no theorem applies"
    )
    if tightest.name == "token budget":
        what = "the load is exactly 1, where Theorem 1 says nothing"
    return f"{what}: any randomness lets the queues wander without bound"


def _why_stable(
    server: Server,
    demand: Load,
    theorem: str,
    certified_rate: float | None,
    tried: tuple[Hypothesis, ...],
) -> str:
    if theorem.startswith(WORK_CONSERVING):
        reason = f"the load is {demand.rho:.3f} and {server.policy.name} is work-conserving"
    else:
        reason = (
            f"every batch that {server.policy.name} forms under a backlog drains it, at up to "
            f"{certified_rate:,.4g} "
            "requests/s"
        )
    return (
        f"{reason}, so the queues stay finite and have a steady state{conditions.if_trusted(tried)}"
    )


def _why_unknown(demand: Load, tightest: Bound, tried: tuple[Hypothesis, ...]) -> str:
    failed = ", ".join(f"'{h.name}' ({h.why})" for h in tried if not h.held)
    share = 1 - demand.arrival_rate / tightest.max_rate
    return (
        f"the arrival rate is {share:.1%} below what the {tightest.name} can carry, "
        f"{tightest.max_rate:,.4g} "
        f"requests/s, but no theorem says stable, because these hypotheses fail: {failed}"
    )
