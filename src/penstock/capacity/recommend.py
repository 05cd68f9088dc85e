"""Which policy and token budget to use on a server, why, and what that gains over those now."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

from penstock import checks
from penstock.capacity.candidates import FROM_SIMPLE_TO_SUBTLE, SAFE, Pruned, candidates
from penstock.capacity.choosing import choose, slower
from penstock.capacity.held_by import AMPLE, point_with_memory
from penstock.capacity.max_rate import max_rate
from penstock.capacity.recommendation import (
    CLEARLY,
    WORTH,
    Candidate,
    Objective,
    Recommendation,
    bargain,
)
from penstock.checking.answer import ROWS_UP_TO
from penstock.checking.check import check
from penstock.checking.doubt import doubt_of
from penstock.checking.enough_requests import estimate
from penstock.checking.latency import judged
from penstock.checking.stability import Outcome
from penstock.checking.targets import Target, parsed_targets, refuse_gaps_of_one_token
from penstock.checking.verdict import verdict
from penstock.errors import InputError, nearest
from penstock.simulation.progress import Progress, in_parts, part_of
from penstock.system.kinds import refuse_all_but_a_server
from penstock.system.policies import POLICIES
from penstock.system.prefix_cache import as_serving, unsaid
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server
from penstock.theory.ends import taken_as_exact
from penstock.theory.kv_blocks import served
from penstock.theory.operating_point import OperatingPoint
from penstock.words import counted
from penstock.workload.workload import Workload

REQUESTS = 20_000
"""Arrivals simulated for latency, unless told otherwise."""

_SAME_SHARE = 0.001  # of the requests that are served
_FEWER, _MORE = (2, 4, 8), (2, 4)  # times as many at once as now


def recommend(
    workload: Workload,
    server: Server,
    *,
    objective: Objective | None = None,
    policies: Sequence[str | Scheduler] | None = None,
    targets: Sequence[Target | str] = (),
    requests: int | None = None,
    precision: float = 0.02,
    alpha: float = 0.01,
    progress: Progress | None = None,
) -> Recommendation:
    """Say which policy, token budget and max batch size to use on a server, all else as it is.

    What theory cannot rule out is simulated: its highest stable rate, and at the workload's own
    rate its verdict and latency, on the same requests. A candidate carries the load safely at up to
    `SAFE` of its stable rate. Of those that do, and meet the targets or come nearest, the one with
    the lowest mean E2E is best; where none does, the one with the highest stable rate, then the
    lowest mean E2E. Where the current server does, a change has no price: no stable rate, mean or
    p99 that neither a target nor ``objective`` asks about gets worse by more than `CLEARLY`; what
    is better at a price is named. Differences within the noise (of latencies: of the differences
    between the same requests, batch means, 99%) or below `WORTH` are ties, which what carries
    clearly more wins, then the current server, then the current policy, then the simpler one. At
    the token budget that is best other max batch sizes are tried, too: smaller ones where KV memory
    binds or a target limits the time between tokens, larger ones where the size binds. Where a
    target of the best is undecided, a longer run judges it.

    For the scheduler of an engine only what an engine can do is recommended: its own scheduler at
    other token budgets. Policies that vLLM runs through `penstock.vllm_plugin` are named beside it.

    Parameters
    ----------
    workload, server
        What arrives and what serves now.
    objective
        ``stable-rate``, or the mean latency to be lowest: ``ttft``, ``tbt`` or ``e2e``. Default:
        ``e2e`` where the load is carried safely, else ``stable-rate``.
    policies
        To be tried beside the current one, from simple to subtle. Default: `FROM_SIMPLE_TO_SUBTLE`;
        beside ``vllm`` those of them that it does not do itself, beside other engines none.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``.
    requests
        Arrivals to simulate for latency. Default: `REQUESTS`, or the recording if it is shorter.
    precision
        Of the highest stable rates: relative distance that may be left.
    alpha
        Error rate of each test, which you choose.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, or the current server cannot serve the workload.
    """
    refuse_all_but_a_server("recommend", workload, server)
    server = as_serving(workload, server)
    if objective is not None and objective not in get_args(Objective):
        raise InputError(
            f"objective is {checks.shown(objective)}{nearest(str(objective), get_args(Objective))}"
        )
    if requests is None:
        requests = min(REQUESTS, workload.rows or REQUESTS)
    requests = checks.whole("requests", requests, 1, ROWS_UP_TO, "", "each keeps a row in memory")
    limits = tuple(parsed_targets(targets))
    refuse_gaps_of_one_token(limits, workload)
    if policies is None:
        policies = _usual_policies(server)
    most_stable = objective == "stable-rate"
    gaps = objective == "tbt" or any(limit.metric in ("tbt_s", "tpot_s") for limit in limits)
    tried = candidates(workload, server, policies, most_stable=most_stable, short_gaps=gaps)

    # 1. What theory cannot rule out is simulated.
    # What is wrong with batch times is wrong for all of them, so they are compared as if exact.
    study = _Study(workload, requests, precision, alpha, most_stable, limits)
    measured, pruned = study.measure_all(tried.servers, server, part_of(progress, 0.0, 0.7))

    # 2. The best of those that the server can be set to; an engine has no policy of a few numbers
    # by itself. First at its own max batch size, then at others.
    def usable() -> list[Candidate]:
        by_phase = server.policy.by_phase
        return [c for c in measured if by_phase or not c.server.policy.by_phase]

    _, chosen = choose(usable(), workload.rate, objective)
    sizes = _sizes(chosen.server, study.point(chosen).binding, gaps)
    more, unfit = study.measure_all(sizes, server, part_of(progress, 0.7, 1.0), measured)
    measured += more
    decided, chosen = choose(usable(), workload.rate, objective)
    while chosen.missed and chosen.hopeful and (longer := study.longer(chosen)):
        measured[measured.index(chosen)] = longer
        decided, chosen = choose(usable(), workload.rate, objective)

    # 3. What holds it back, and what is worth knowing besides.
    return Recommendation(
        rate=workload.rate,
        objective=decided,
        candidates=tuple(measured),
        recommended=chosen,
        pruned=(*tried.pruned, *pruned, *unfit),
        bound=max(tried.bound, *(candidate.found.bound for candidate in measured)),
        point=study.point(chosen),
        warnings=_warnings(workload, measured, chosen),
        with_plugin=_with_plugin(measured, chosen, decided, workload.rate),
        overload=_overload(chosen, measured[0], workload.rate),
        trade=_trade(usable(), chosen, decided),
        calibration=doubt_of((workload, chosen.server)),
    )


def _sizes(server: Server, binding: Sequence[str], gaps: bool) -> list[Server]:
    """Return a server with other max batch sizes that may carry more, or have shorter gaps."""
    program = server.policy.program
    slots = server.max_batch_size or server.token_budget
    most = server.token_budget if program and program.capped else AMPLE * slots
    sizes = [slots // n for n in _FEWER] if gaps or "KV memory" in binding else []
    sizes += [min(slots * n, most) for n in _MORE] if "max batch size" in binding else []
    return [
        dataclasses.replace(server, max_batch_size=size)
        for size in dict.fromkeys(sizes)
        if size not in (0, slots)
    ]


def _overload(best: Candidate, now: Candidate, rate: float) -> str | None:
    """Say that the best candidate does not carry the load, and how many replicas would at least."""
    if rate < best.stable_rate or best.answer.verdict == "stable":
        return None
    replicas = max(math.ceil(rate / best.stable_rate), 2)
    than_now = ", as now" if best is now else f" ({now.stable_rate:,.4g} now)"
    return (
        f"nothing that was tried is known to carry {rate:,.4g} requests/s on one server; nearest "
        f"is {best.what}: {best.stable_rate:,.4g}{than_now}, so it takes at least "
        f"{counted(replicas, 'replica')}; see `penstock plan`"
    )


def _trade(own: Sequence[Candidate], chosen: Candidate, decided: Objective) -> str | None:
    """Say what is faster, and what carries clearly more, at a price."""
    if chosen is not own[0] or decided == "stable-rate":
        return None
    metric = f"{decided}_s"
    stable = [c for c in own[1:] if c.answer.verdict == "stable" and c.mean(metric) is not None]
    stable = [c for c in stable if chosen.missed or not c.missed]
    safe = [c for c in stable if c.answer.workload.rate <= SAFE * c.stable_rate]
    faster = [c for c in safe if slower(chosen, c, metric)]
    more = [c for c in stable if c.stable_rate > (1 + CLEARLY) * chosen.stable_rate]
    best = [min(faster, key=lambda c: c.mean(metric) or 0.0)] if faster else []
    best += [max(more, key=lambda c: c.stable_rate)] if more else []
    return "; ".join(bargain(chosen, c) for c in dict.fromkeys(best)) or None


def _usual_policies(server: Server) -> Sequence[str]:
    """Return policies to try beside a server's own: vLLM runs others by plugin, others none."""
    policy = server.policy
    if policy.by_phase:
        return FROM_SIMPLE_TO_SUBTLE
    if not policy.hosts_policies:
        return ()
    return [
        name
        for name in FROM_SIMPLE_TO_SUBTLE
        if not (policy.decode_first and POLICIES[name].decode_first)
    ]


def _with_plugin(
    found: Sequence[Candidate], chosen: Candidate, decided: Objective, rate: float
) -> str | None:
    """Say what the best policy that vLLM has only through the plugin would bring, if better."""
    if not found[0].server.policy.hosts_policies:
        return None
    others = [c for c in found if c is chosen or c.server.policy.by_phase]
    _, best = choose([chosen, *(c for c in others if c is not chosen)], rate, decided)
    if best is chosen:
        return None
    return bargain(chosen, best)


class _Study(NamedTuple):
    """How candidates are measured; ``most_stable``: only the highest stable rate matters."""

    workload: Workload
    requests: int
    precision: float
    alpha: float
    most_stable: bool
    targets: tuple[Target, ...]

    def measure_all(
        self,
        servers: Sequence[Server],
        current: Server,
        progress: Progress | None,
        before: Sequence[Candidate] = (),
    ) -> tuple[list[Candidate], list[Pruned]]:
        """Return what was found of each server, from simple to subtle, and what was ruled out."""
        # Those with the current token budget come first: what they carry is what others must beat,
        # and what those ``before`` carry.
        measured: list[Candidate] = []
        pruned = []
        current_first = sorted(servers, key=lambda s: s.token_budget != current.token_budget)
        for server, part in in_parts(progress, current_first):
            try:
                candidate = self.measure(server, [*before, *measured], part)
            except InputError as error:
                if not before and not measured:
                    raise
                candidate = str(error)
            if isinstance(candidate, Candidate):
                if server.max_batch_size != current.max_batch_size:
                    candidate = dataclasses.replace(candidate, slots=server.max_batch_size)
                measured.append(candidate)
            else:
                slots = server.max_batch_size
                same = slots == current.max_batch_size
                why = candidate if same else f"max batch size {slots:,}: {candidate}"
                pruned.append(Pruned(server.policy.name, server.token_budget, why))
        measured.sort(key=lambda candidate: servers.index(candidate.server))
        return measured, pruned

    def measure(
        self, server: Server, found: Sequence[Candidate], progress: Progress
    ) -> Candidate | str:
        """Return what was found of a server, or why it is behind the others, as one test shows."""
        tested = self._wanted(server, found)
        if tested and self._verdict(tested, server) == "unstable":
            return f"unstable at {tested:,.4g} requests/s, by simulation; others carry that"
        kept = served(self.workload, server).share
        if found and kept < found[0].answer.certificate.load.work.share * (1 - _SAME_SHARE):
            return f"it drops {1 - kept:.1%} of the requests, which never fit; more than now"
        exact = taken_as_exact(server)
        answer = check(
            self.workload, exact, requests=self.requests, alpha=self.alpha, estimate_memory=False,
            progress=part_of(progress, 0.0, 0.5),
        )  # fmt: skip
        if self.targets and answer.latency:  # by runs of one length, or they cannot be compared
            rho = 1 / (1 - min(answer.tested.drift, 0.0))
            _, latency = estimate(
                self.workload, exact, requests=self.requests, targets=self.targets, rho=rho,
                most_requests=self.requests,
            )  # fmt: skip
            answer = dataclasses.replace(answer, latency=latency)
        rates = max_rate(
            self.workload, exact, precision=self.precision, alpha=self.alpha,
            seed=self.workload.seed,
            progress=part_of(progress, 0.5, 1.0),
        )  # fmt: skip
        shown = self.workload.rate if answer.tested.verdict == "stable" else 0.0
        targets = tuple(judged(target, answer.latency) for target in self.targets)
        return Candidate(server, rates, answer, shown, targets)

    def longer(self, candidate: Candidate) -> Candidate | None:
        """Return a candidate with targets judged by a run as long as it takes, up to 16 times; None
        where no longer one is kept.
        """
        if candidate.answer.longer_run is None:
            return None
        answer = check(
            self.workload, candidate.answer.run.server, requests=self.requests,
            targets=self.targets, alpha=self.alpha, estimate_memory=False,
            stability=candidate.answer.stability,
        )  # fmt: skip
        return dataclasses.replace(candidate, targets=answer.targets, longer=answer)

    def _wanted(self, server: Server, found: Sequence[Candidate]) -> float:
        """Return the rate that a candidate must carry to have a chance; 0 for the first of them."""
        if not found:
            return 0.0
        rate = self.workload.rate
        wanted = max(c.stable_rate for c in found)
        if not self.most_stable:
            wanted = min(rate / SAFE, wanted)
        if server.token_budget == found[0].server.token_budget:
            wanted = min(wanted, rate)  # what another policy alone brings is worth knowing
        return wanted * (1 - WORTH)

    def _verdict(self, rate: float, server: Server) -> Outcome:
        workload = self.workload.with_rate(rate)
        return verdict(workload, server, self.alpha, self.precision / 2, self.workload.seed).verdict

    def point(self, chosen: Candidate) -> OperatingPoint:
        """Return where the load lies in the region of a server, and what holds that back."""
        return point_with_memory(self.workload, chosen.server, chosen.above)


def _warnings(workload: Workload, found: Sequence[Candidate], chosen: Candidate) -> tuple[str, ...]:
    current, rate = found[0], workload.rate
    warnings = unsaid(workload.notices, current.answer.front)
    if any(c.answer.verdict == "stable" for c in found) and rate > SAFE * chosen.stable_rate:
        warnings.append(
            f"{rate:,.4g} requests/s are {rate / chosen.stable_rate:.1%} of what {chosen.name} "
            "carries: delays are "
            f"long, and a little more is too much; up to {SAFE * chosen.stable_rate:,.4g} would "
            "be safe"
        )
    if chosen is not current and chosen.server.policy.batching.own_budget:
        warnings.append(
            f"no engine has {chosen.server.policy.name} by itself; vLLM runs it through "
            "penstock.vllm_plugin"
        )
    if chosen.server.scope_warning:
        warnings.append(chosen.server.scope_warning)
    if (
        chosen.server.token_budget > current.server.token_budget
        and chosen.server.kv_estimate is None
    ):
        warnings.append(
            "a larger token budget takes more memory for activations, which is not modelled; see "
            "that the engine starts"
        )
    for candidate in dict.fromkeys((current, chosen)):
        answer = candidate.longer or candidate.answer
        if answer.latency and not answer.latency_refused:
            warnings += [f"{candidate.name}: {notice}" for notice in answer.latency.notices]
    warnings += [
        f"{candidate.name}: CONTRADICTION: {said}"
        for candidate in found
        for said in (candidate.found.disagreement, candidate.answer.disagreement)
        if said
    ]
    return tuple(warnings)
