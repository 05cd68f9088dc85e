"""Which policy and token budget to use on a server, why, and what that gains over those now."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, get_args

from penstock import checks
from penstock.capacity import advice
from penstock.capacity.candidates import FROM_SIMPLE_TO_SUBTLE, SAFE, Pruned, candidates
from penstock.capacity.choosing import ROOM, choose, slower
from penstock.capacity.max_rate import max_rate
from penstock.capacity.recommendation import (
    WORTH,
    Candidate,
    Objective,
    Recommendation,
    Step,
    bargain,
)
from penstock.checking.answer import ROWS_UP_TO, check, judged
from penstock.checking.doubt import doubt_of_server
from penstock.checking.targets import Target, parsed_targets
from penstock.checking.verdict import Outcome, verdict
from penstock.errors import InputError, nearest
from penstock.simulation.progress import Progress, in_parts, part_of
from penstock.simulation.quick import memory_estimate
from penstock.system.kinds import refuse_all_but_a_server
from penstock.system.policies import POLICIES
from penstock.system.prefix_cache import as_serving, unsaid
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.theory.ends import taken_as_exact
from penstock.theory.kv_blocks import served
from penstock.theory.operating_point import operating_point
from penstock.workload.workload import Workload

REQUESTS = 20_000
"""Arrivals simulated for latency, unless told otherwise."""

_SAME_SHARE = 0.001  # of the requests that are served
_AMPLE = 16  # times the memory
_SLOTS_FEWER = (0.75, 0.5, 0.35, 0.25, 0.18, 0.125)  # of those that may run
_SLOTS_STEP = 4  # one more slot for so many


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
    """Say which policy and which token budget to use on a server, all else as it is.

    What theory cannot rule out is simulated: its highest stable rate, and at the workload's own
    rate its verdict and latency, on the same requests. A candidate carries the load safely at up to
    `SAFE` of its stable rate. Of those that do, and meet the targets or come nearest, the one with
    the lowest mean E2E is best; where none does, the one with the highest stable rate, then the
    lowest mean E2E. Unless an ``objective`` is given, the current server is kept if it does and a
    change costs more than it gains (another mean latency or the stable rate would get worse by a
    larger factor); that trade is named. Differences within the noise (of latencies: of the
    differences between the same requests, batch means, 99%) or below `WORTH` are ties, which the
    current server wins, then what carries clearly more, then the current policy, then the simpler
    one.

    For the scheduler of an engine only what an engine can do is recommended: its own scheduler at
    other token budgets. Policies that vLLM runs through `penstock.vllm_plugin` are named beside it.

    Parameters
    ----------
    workload, server
        What arrives and what serves now.
    objective
        ``stable-rate``, or the mean latency to be lowest: ``ttft``, ``tbt`` or ``e2e``. Default: as
        said.
    policies
        To be tried beside the current one, from simple to subtle. Default: `FROM_SIMPLE_TO_SUBTLE`;
        beside ``vllm`` those of them that it does not do itself, beside other engines none.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``.
    requests
        Arrivals to simulate for latency. Default: `REQUESTS`, or the recording if it is shorter.
    precision, alpha
        Of the highest stable rates, as in `max_rate`.
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
    if policies is None:
        policies = _usual_policies(server)
    most_stable = objective == "stable-rate"
    gaps = objective == "tbt" or any(limit.metric in ("tbt_s", "tpot_s") for limit in limits)
    tried = candidates(workload, server, policies, most_stable=most_stable, short_gaps=gaps)

    # 1. What theory cannot rule out is simulated.
    # What is wrong with batch times is wrong for all of them, so they are compared as if exact.
    study = _Study(workload, requests, precision, alpha, most_stable, limits)
    measured, pruned = study.measure_all(tried.servers, server, progress)

    # 2. The best of those that the server can be set to; an engine has no policy of a few numbers
    # by itself.
    own = measured
    if not server.policy.by_phase:
        own = [candidate for candidate in measured if not candidate.server.policy.by_phase]
    decided, chosen = choose(own, workload.rate, objective)

    # 3. What holds it back, and what is worth knowing besides.
    binding = study.binding(chosen)
    warnings = _warnings(workload, measured, chosen)
    if "KV memory" in binding:
        warnings = (*_fewer_at_once(workload, chosen), *warnings)
    return Recommendation(
        rate=workload.rate,
        objective=decided,
        candidates=tuple(measured),
        recommended=chosen,
        pruned=(*tried.pruned, *pruned),
        bound=max(tried.bound, *(candidate.found.bound for candidate in measured)),
        binding=binding,
        step=_step(workload, chosen.server) if "max batch size" in binding else None,
        warnings=warnings,
        with_plugin=_with_plugin(measured, chosen, decided, workload.rate),
        overload=advice.overload(own, workload.rate),
        trade=_trade(own, chosen, decided),
        calibration=doubt_of_server(workload, chosen.server),
    )


def _trade(own: Sequence[Candidate], chosen: Candidate, decided: Objective) -> str | None:
    """Say what is faster at too high a price, and what carries clearly more, though no faster."""
    if chosen is not own[0] or decided == "stable-rate":
        return None
    metric = f"{decided}_s"
    stable = [c for c in own[1:] if c.answer.verdict == "stable" and c.mean(metric) is not None]
    safe = [c for c in stable if c.answer.workload.rate <= SAFE * c.stable_rate]
    faster = [c for c in safe if slower(chosen, c, metric) and (chosen.missed or not c.missed)]
    said = [bargain(chosen, min(faster, key=lambda c: c.mean(metric) or 0.0))] if faster else []
    more = advice.trade(chosen, [c for c in stable if not slower(c, chosen, metric)], metric)
    return "; ".join([*said, *([more] if more else [])]) or None


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
        self, servers: Sequence[Server], current: Server, progress: Progress | None
    ) -> tuple[list[Candidate], list[Pruned]]:
        """Return what was found of each server, from simple to subtle, and what was ruled out."""
        # Those with the current token budget come first: what they carry is what others must beat.
        measured: list[Candidate] = []
        pruned = []
        current_first = sorted(servers, key=lambda s: s.token_budget != current.token_budget)
        for server, part in in_parts(progress, current_first):
            try:
                candidate = self.measure(server, measured, part)
            except InputError as error:
                if not measured:
                    raise
                candidate = str(error)
            if isinstance(candidate, Candidate):
                measured.append(candidate)
            else:
                pruned.append(Pruned(server.policy.name, server.token_budget, candidate))
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
        rates = max_rate(
            self.workload, exact, precision=self.precision, alpha=self.alpha,
            seed=self.workload.seed,
            progress=part_of(progress, 0.5, 1.0),
        )  # fmt: skip
        shown = self.workload.rate if answer.stability.verdict == "stable" else 0.0
        targets = tuple(judged(target, answer.latency) for target in self.targets)
        return Candidate(server, rates, answer, shown, targets)

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

    def binding(self, chosen: Candidate) -> tuple[str, ...]:
        """Return the limits that hold a server back: KV memory if without it it carries more."""
        server = chosen.server
        if server.memory is not None:
            more = dataclasses.replace(server.memory, blocks=_AMPLE * server.memory.blocks)
            ample = dataclasses.replace(server, memory=more, gpu=None)
            if self._verdict(chosen.above * (1 + WORTH), ample) == "stable":
                return ("KV memory",)
        return operating_point(self.workload, server).without_estimate


def _step(workload: Workload, server: Server) -> Step | None:
    """Return what a quarter more slots would bring, by theory."""
    slots = server.max_batch_size
    if slots is None or slots >= server.token_budget:
        return None
    more = slots + max(slots // _SLOTS_STEP, 1)
    now, then = (
        certify(workload, dataclasses.replace(server, max_batch_size=k)).max_rate
        for k in (slots, more)
    )
    return Step(more, then, then / now - 1)


def _fewer_at_once(workload: Workload, chosen: Candidate) -> list[str]:
    """Say what a smaller max batch size would carry, by estimate, where preemption is waste."""
    server = chosen.server
    slots = min(server.max_batch_size or server.token_budget, 4096)
    rates = []
    for share in _SLOTS_FEWER:
        fewer = max(int(slots * share), 1)
        try:
            limited = dataclasses.replace(server, max_batch_size=fewer)
            rates.append((memory_estimate(workload, limited).rate, fewer))
        except InputError:
            return []
    rate, fewer = max(rates)
    if rate < (1 + ROOM) * chosen.stable_rate:
        return []
    return [
        f"with a max batch size of {fewer:,} in place of {slots:,} it would carry about "
        f"{rate:,.4g} requests/s (an "
        "estimate): fewer requests at once preempt each other less; try it with max-rate"
    ]


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
    if chosen is not current and chosen.server.policy.own_budget:
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
        if candidate.answer.latency and not candidate.answer.latency_refused:
            warnings += [
                f"{candidate.name}: {notice}" for notice in candidate.answer.latency.notices
            ]
    warnings += [
        f"{candidate.name}: CONTRADICTION: {said}"
        for candidate in found
        for said in (candidate.found.disagreement, candidate.answer.disagreement)
        if said
    ]
    return tuple(warnings)
