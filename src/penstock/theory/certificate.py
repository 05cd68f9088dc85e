"""Certificates: what a theorem says about a workload on a server, and whether its hypotheses hold."""

import dataclasses
from typing import Literal

from penstock.errors import InputError
from penstock.system.server import Server
from penstock.theory.load import Load, load
from penstock.workload.workload import Workload

Verdict = Literal["stable", "unstable", "critical", "unknown"]

CRITICAL_BAND = 1e-9
"""Loads this close to 1 are called critical: the theorem says nothing there."""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A condition of a theorem.

    Attributes
    ----------
    name
        What must hold.
    held
        Whether it does.
    why
        What was looked at, and what to change where it fails.
    """

    name: str
    held: bool
    why: str


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What a theorem says.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable``, ``critical`` (load 1, where the theorem is silent) or ``unknown``.
    theorem
        The theorem used, or None.
    reason
        One sentence.
    hypotheses
        Every hypothesis of the half that was tried.
    load
        Load and capacity.
    """

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]
    load: Load

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity."""
        return self.load.rho

    @property
    def margin(self) -> float:
        """1 - rho: negative when overloaded."""
        return 1 - self.load.rho

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.load.max_rate


def certify(workload: Workload, server: Server) -> Certificate:
    """Apply Theorem 1 to a workload on a server.

    The two halves have hypotheses of their own. Above max b / t_b the backlog diverges under any policy and any limit
    (a), since work arrives faster than any batch carries it. Below b_max / t_bmax a work-conserving policy is stable
    (b), for independent, identically distributed arrivals and lengths, bounded lengths, and a max batch size that is
    absent or at least the token budget. On one server with bounded lengths the total of unprocessed tokens is itself
    a Foster function (Appendix C, corrected), so the K-FCFS condition is not needed.

    Parameters
    ----------
    workload, server
        What arrives and what serves.

    Returns
    -------
    Certificate
        ``unknown`` where a hypothesis fails, naming it.
    """
    if not isinstance(workload, Workload) or not isinstance(server, Server):
        raise InputError(
            f"certify takes a Workload and a Server, not {type(workload).__name__}, {type(server).__name__}"
        )
    asked = load(workload, server)
    if asked.rho > 1 + CRITICAL_BAND:
        return _unstable(workload, asked)
    if asked.rho >= 1 - CRITICAL_BAND:
        reason = (
            "the load is exactly 1, where Theorem 1 says nothing: any randomness lets the queues wander without bound"
        )
        return Certificate("critical", None, reason, (), asked)
    return _stable(workload, server, asked)


def _unstable(workload: Workload, asked: Load) -> Certificate:
    overload = Hypothesis(
        "load above 1",
        True,
        f"{asked.offered_tokens_per_s:,.0f} tokens/s arrive, the best batch ({asked.best_token_load:,} tokens) carries "
        f"{asked.capacity_tokens_per_s:,.0f}",
    )
    average = Hypothesis(
        "long-run averages exist",
        True,
        "the recording, gone on with at this pattern"
        if workload.rows is not None
        else "the arrival process has a rate",
    )
    reason = (
        f"tokens arrive {asked.rho:.3f} times as fast as any policy can process them, so the backlog grows for ever"
    )
    return Certificate("unstable", "Theorem 1(a)", reason, (overload, average), asked)


def _stable(workload: Workload, server: Server, asked: Load) -> Certificate:
    hypotheses = (
        _independent_arrivals(workload),
        _independent_lengths(workload),
        _bounded_lengths(workload),
        _work_conserving(server),
        _batch_size(server),
        _full_batches_carry_it(server, asked),
    )
    failed = [h for h in hypotheses if not h.held]
    if not failed:
        reason = (
            f"the load is {asked.rho:.3f} and {server.policy.name} is work-conserving, so the queues stay finite and "
            "have a steady state"
        )
        return Certificate("stable", "Theorem 1(b)", reason, hypotheses, asked)
    names = ", ".join(f"{h.name} ({h.why})" for h in failed)
    return Certificate(
        "unknown", None, f"the load is below 1, but Theorem 1(b) does not apply: {names}", hypotheses, asked
    )


def _independent_arrivals(workload: Workload) -> Hypothesis:
    process = workload.arrivals
    held = process is not None and process.iid
    name = workload.describe().split(": ")[-1]
    why = f"{name} are renewals" if held else f"{name} are not i.i.d.; try arrivals 'poisson'"
    return Hypothesis("i.i.d. arrivals", held, why)


def _independent_lengths(workload: Workload) -> Hypothesis:
    held = workload.lengths.iid
    why = "drawn anew for each request" if held else "recorded in order; resample them with arrivals 'poisson'"
    return Hypothesis("i.i.d. lengths", held, why)


def _bounded_lengths(workload: Workload) -> Hypothesis:
    lengths = workload.lengths
    if workload.bounded:
        why = f"prompts up to {lengths.max_prompt:,} tokens, outputs up to {lengths.max_output:,}"
    else:
        what = "prompts" if lengths.max_prompt is None else "outputs"
        why = f"{what} have no upper limit; give their distribution a `max`"
    return Hypothesis("bounded lengths", workload.bounded, why)


def _work_conserving(server: Server) -> Hypothesis:
    policy = server.policy
    if policy.work_conserving:
        why = f"{policy.name} fills the token budget whenever what waits allows it"
    elif policy.work_conserving is None:
        why = f"nothing is known of {policy.name}; if it is, say so with @policy(work_conserving=True)"
    else:
        why = f"{policy.name} leaves room in batches while requests wait"
    return Hypothesis("work-conserving policy", bool(policy.work_conserving), why)


def _batch_size(server: Server) -> Hypothesis:
    limit = server.max_batch_size
    held = limit is None or limit >= server.token_budget
    if limit is None:
        why = "there is none"
    elif held:
        why = f"{limit:,} is at least the token budget of {server.token_budget:,}"
    else:
        why = f"{limit:,} is below the token budget of {server.token_budget:,}, so it can keep batches from filling"
    return Hypothesis("max batch size never binds", held, why)


def _full_batches_carry_it(server: Server, asked: Load) -> Hypothesis:
    held = asked.offered_tokens_per_s < asked.full_batch_tokens_per_s * (1 - CRITICAL_BAND)
    why = (
        f"{asked.offered_tokens_per_s:,.0f} tokens/s arrive, batches of {server.token_budget:,} tokens carry "
        f"{asked.full_batch_tokens_per_s:,.0f}"
    )
    if not held:
        why += f" but batches of {asked.best_token_load:,} would carry {asked.capacity_tokens_per_s:,.0f}: lower it"
    return Hypothesis("full batches carry the load", held, why)
