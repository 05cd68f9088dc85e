"""Which policy and which token budget to use on a server, why, and what that gains over the current ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.capacity import advice
from penstock.capacity.candidates import (
    FROM_SIMPLE_TO_SUBTLE,
    OWN_BUDGET,
    SAFE,
    AnyPolicy,
    Pruned,
    candidates,
)
from penstock.capacity.max_rate import MaxRate, max_rate
from penstock.checking import intervals
from penstock.checking.answer import ROWS_UP_TO, Answer, TargetAnswer, check, judged
from penstock.checking.batches import BATCHES
from penstock.checking.targets import Target
from penstock.checking.verdict import Outcome, verdict
from penstock.errors import InputError, nearest
from penstock.simulation.progress import Progress, part_of
from penstock.system.engines import Engine
from penstock.system.kinds import refuse_all_but_a_server
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.theory.kv_blocks import served
from penstock.theory.memory import memory_estimate
from penstock.theory.operating_point import operating_point
from penstock.words import METRICS, digits
from penstock.workload.workload import Workload

Floats = npt.NDArray[np.float64]

Objective = Literal["stable-rate", "ttft", "tbt", "e2e"]

REQUESTS = 20_000
"""Arrivals simulated for latency, unless told otherwise."""

WORTH = 0.02
"""Share of a mean latency below which a difference is no reason to change anything."""

_ROOM = 0.05  # of the stable rate: candidates that are as fast and carry less are no ties
_SAME_SHARE = 0.001  # of the requests that are served
_AMPLE = 16  # times the memory
_SLOTS_FEWER = (0.75, 0.5, 0.35, 0.25, 0.18, 0.125)  # of those that may run
_CONFIDENCE = 0.99  # that one latency is lower than another; many are compared
_SLOTS_STEP = 4  # one more slot for so many
_WORDS = {"stable_rate": "a stable rate"} | {metric: f"a mean {metric[:-2].upper()}" for metric in METRICS}
_WORSE = {"stable_rate": "lower"} | dict.fromkeys(METRICS, "higher")
_BETTER = {"stable_rate": "higher"} | dict.fromkeys(METRICS, "lower")


class Step(NamedTuple):
    """A larger max batch size, the rate above which no policy is stable with it, and what share more that is."""

    max_batch_size: int
    bound: float
    gain: float


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A policy at a token budget, and what was found of it.

    Attributes
    ----------
    server
        The current server but for these two.
    found
        Its highest stable rate.
    answer
        Verdict and latency at the workload's own rate; the requests are the same for every candidate.
    shown
        The workload's rate if the test said stable there, else 0. A policy that keeps long queues on purpose may leave
        the test undecided at a lower one.
    targets
        The targets given, judged.
    """

    server: Server
    found: MaxRate
    answer: Answer
    shown: float = 0.0
    targets: tuple[TargetAnswer, ...] = ()

    @property
    def name(self) -> str:
        """Policy and token budget."""
        return f"{self.server.policy.name} at {self.server.token_budget:,}"

    @property
    def stable_rate(self) -> float:
        """Highest rate found stable, or certified by a theorem that the test does not contradict, requests/s."""
        certified = 0.0 if self.found.disagreement else self.found.certificate.certified_rate
        return max(self.found.rate, self.shown, certified or 0.0)

    @property
    def above(self) -> float:
        """Rate at which, or a little above which, it is no longer stable, requests/s."""
        return max(self.found.above, self.stable_rate)

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @property
    def overshoot(self) -> float:
        """Largest of the target's latencies over their limits; infinite where one is not known."""
        return max(map(_overshoot, self.targets), default=0.0)

    def mean(self, metric: str) -> float | None:
        """Return a mean latency (``ttft_s``, ``tbt_s`` or ``e2e_s``), or None where there is none."""
        return self.answer.latency.estimates[metric]["mean"].value if self.answer.latency else None

    def choice(self) -> dict[str, Any]:
        """Return what to set: policy, token budget, and the parameters given to the policy."""
        policy = self.server.policy
        params = dict(policy.options) if isinstance(policy, Engine) else list(self.server.policy_params)
        return {"policy": policy.name, "token_budget": self.server.token_budget, "policy_params": params}

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        steady = self.answer.latency.as_dict() if self.answer.latency else {"latency": None, "intervals": None}
        return self.choice() | {
            "stable_rate": self.stable_rate,
            "above": self.above,
            "bound": self.found.bound,
            "verdict": self.answer.verdict,
            "latency": steady["latency"],
            "latency_interval": steady["intervals"],
            "refused": self.answer.latency_refused,
            "targets": {str(target): judgement for target, _, judgement in self.targets},
        }


def _overshoot(answer: TargetAnswer) -> float:
    """Return a target's latency over its limit; infinite where it is not known."""
    if answer.estimate is None or answer.estimate.value is None:
        return np.inf
    return answer.estimate.value / answer.target.limit_s


@dataclasses.dataclass(frozen=True, eq=False)
class Recommendation:
    """What to use, and what it was chosen from.

    Attributes
    ----------
    rate
        Requests/s that arrive.
    objective
        What decided: ``stable-rate``, or a mean latency.
    candidates
        What was simulated, the current server first, then from simple to subtle.
    recommended
        One of them.
    pruned
        What theory ruled out before.
    bound
        Requests/s that no policy exceeds at any of the token budgets looked at.
    binding
        The limits that hold the recommended server back: ``token budget``, ``max batch size``, ``batch time`` (only
        faster batches help), ``KV memory``.
    step
        What a larger max batch size would bring, where it binds.
    warnings
        What the user should know besides.
    with_plugin
        What a policy that is not vLLM's own would bring inside it, through `penstock.vllm_plugin`; a sentence, or None
        where none is better.
    overload
        That no setting that was tried carries the load; a sentence, or None where one does.
    trade
        What carries clearly more at no higher latency, where nothing is to change, and its price; a sentence, or None.
    """

    rate: float
    objective: Objective
    candidates: tuple[Candidate, ...]
    recommended: Candidate
    pruned: tuple[Pruned, ...]
    bound: float
    binding: tuple[str, ...]
    step: Step | None
    warnings: tuple[str, ...]
    with_plugin: str | None = None
    overload: str | None = None
    trade: str | None = None

    @property
    def current(self) -> Candidate:
        """What serves now."""
        return self.candidates[0]

    @property
    def change(self) -> bool:
        """Whether there is something to change."""
        return self.recommended is not self.current

    @property
    def only_with_plugin(self) -> tuple[str, ...]:
        """Policies that were tried or ruled out and that vLLM runs with the plugin only."""
        if self.current.server.policy.name != "vllm":
            return ()
        names = [c.server.policy.name for c in self.candidates] + [p.policy for p in self.pruned]
        return tuple(name for name in dict.fromkeys(names) if name != "vllm")

    @property
    def gains(self) -> dict[str, float | None]:
        """Share by which the stable rate rises, and by which each mean latency falls; None where one is refused."""
        return _gains(self.current, self.recommended)

    @property
    def reason(self) -> str:
        """One sentence: what decided, the price, and what holds the recommended server back."""
        new, old = self.recommended, self.current
        carries = f"{new.stable_rate:,.4g} requests/s, {new.stable_rate / self.bound:.0%} of the bound on any policy"
        targets = " and ".join(str(target) for target, _, _ in new.targets)
        if new.missed:
            why = f"{self._nearest(targets)}, and carries {carries}"
        elif targets and self.change:
            why = f"{new.name} meets {targets} and carries {carries}"
        elif not self.change:
            done = "carries more" if self.objective == "stable-rate" else f"has a lower mean {self.objective.upper()}"
            why = f"nothing that was tried {done} beyond the noise: {old.name} carries {carries}"
        elif old.answer.verdict != "stable" or self.rate > SAFE * old.stable_rate:
            share = self.rate / old.stable_rate
            why = f"{self.rate:,.4g} requests/s arrive, {share:.0%} of what {old.name} carries"
            why += f"; {new.name} carries {carries}"
        elif self.objective == "stable-rate":
            why = f"{old.name} carries {old.stable_rate:,.4g} requests/s, {new.name} {carries}"
        else:
            metric = f"{self.objective}_s"
            before, after = old.mean(metric) or 0.0, new.mean(metric) or 0.0
            change = f"{digits(after)} s instead of {digits(before)} s"
            why = f"the mean {self.objective.upper()} is {change}; {new.name} carries {carries}"
        losses = {name: -gain for name, gain in self.gains.items() if gain is not None and gain < -WORTH}
        price = [f"{_WORDS[name]} {loss:.0%} {_WORSE[name]}" for name, loss in losses.items()]
        if price:
            why += f"; the price is {' and '.join(price)}"
        if self.binding == ("batch time",):
            return f"{why}; what holds it back is the speed of its batches: no limit that you set, only faster hardware"
        return f"{why}; what holds it back is the {' and the '.join(self.binding)}"

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, for the scenario of that file; None where all are."""
        return advice.next_step(self.recommended.targets, self.recommended.answer.run.arrived, file)

    def _nearest(self, targets: str) -> str:
        """Say how near the recommended server comes to targets that nothing is known to meet."""
        new = self.recommended
        if all(target.estimate is None for candidate in self.candidates for target in candidate.targets):
            return f"no candidate has a steady state, so no target can be met; {new.name} is the best of them"
        nearest = ""
        if 1 < new.overshoot < np.inf:
            limit, found, _ = max(new.targets, key=lambda answer: _overshoot(answer))
            assert found is not None
            name = f"{limit.metric[:-2]}_{limit.statistic}"
            nearest = f"comes nearest, at a {name} of {digits(found.value or 0.0)} s (limit {limit.limit_s:g} s)"
        elif new.overshoot <= 1:
            nearest = "lies within the limit, but the run is too short to be sure"
        else:
            nearest = "is the best of them, but its latency cannot be estimated"
        return f"nothing that was tried is known to meet {targets}; {new.name} {nearest}"

    @property
    def _sentences(self) -> list[str]:
        """What is said beside the reason."""
        return [said for said in (self.overload, self.trade) if said]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``recommend``."""
        return {
            "current": self.current.as_dict(),
            "recommended": self.recommended.choice(),
            "change": self.change,
            "reason": self.reason,
            "objective": self.objective,
            "rate": self.rate,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "pruned": [pruned._asdict() for pruned in self.pruned],
            "bound": self.bound,
            "binding": list(self.binding),
            "gains": self.gains,
            "larger_max_batch_size": self.step._asdict() if self.step else None,
            "with_plugin": self.with_plugin,
            "warnings": [*self._sentences, *self.current.answer.front, *self.warnings],
        }


def recommend(
    workload: Workload,
    server: Server,
    *,
    objective: Objective | None = None,
    policies: Sequence[str | AnyPolicy] | None = None,
    targets: Sequence[Target | str] = (),
    requests: int | None = None,
    precision: float = 0.02,
    alpha: float = 0.01,
    progress: Progress | None = None,
) -> Recommendation:
    """Say which policy and which token budget to use on a server, all else as it is.

    What theory cannot rule out is simulated: its highest stable rate, and at the workload's own rate its verdict and
    latency, on the same requests. A candidate carries the load safely at up to `SAFE` of its stable rate. Of those that
    do, and meet the targets or come nearest, the one with the lowest mean E2E is best; where none does, the one with
    the highest stable rate, then the lowest mean E2E. Differences within the noise (of latencies: of the differences
    between the same requests, batch means, 99%) or below `WORTH` are ties, which the current server wins, then what
    carries clearly more, then the current policy, then the simpler one.

    For the scheduler of an engine only what an engine can do is recommended: its own scheduler at other token budgets.
    Policies that vLLM runs through `penstock.vllm_plugin` are named beside it.

    Parameters
    ----------
    workload, server
        What arrives and what serves now.
    objective
        ``stable-rate``, or the mean latency to be lowest: ``ttft``, ``tbt`` or ``e2e``. Default: as said.
    policies
        To be tried beside the current one, from simple to subtle. Default: `FROM_SIMPLE_TO_SUBTLE`; beside ``vllm``
        those of them that it does not do itself, beside other engines none.
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
    if objective is not None and objective not in get_args(Objective):
        raise InputError(f"objective is {checks.shown(objective)}{nearest(str(objective), get_args(Objective))}")
    if requests is None:
        requests = min(REQUESTS, workload.rows or REQUESTS)
    requests = checks.whole("requests", requests, 1, ROWS_UP_TO, "", "each keeps a row in memory")
    limits = tuple(target if isinstance(target, Target) else Target.parse(target) for target in targets)
    if policies is None:
        policies = _usual_policies(server)
    gaps = objective == "tbt" or any(limit.metric == "tbt_s" for limit in limits)
    tried = candidates(workload, server, policies, most_stable=objective == "stable-rate", short_gaps=gaps)
    study = _Study(workload, requests, precision, alpha, objective == "stable-rate", limits)
    found: list[Candidate] = []
    pruned = list(tried.pruned)
    for done, each in enumerate(sorted(tried.servers, key=lambda s: s.token_budget != server.token_budget)):
        part = part_of(progress, done / len(tried.servers), (done + 1) / len(tried.servers))
        try:
            measured = study.measure(each, found, part)
        except InputError as error:
            if not found:
                raise
            measured = str(error)
        if isinstance(measured, Candidate):
            found.append(measured)
        else:
            pruned.append(Pruned(each.policy.name, each.token_budget, measured))
    found.sort(key=lambda candidate: tried.servers.index(candidate.server))  # from simple to subtle again
    of_engine = isinstance(server.policy, Engine)
    own = [c for c in found if isinstance(c.server.policy, Engine)] if of_engine else found
    decided, chosen = _choose(own, workload.rate, objective)
    binding = study.binding(chosen)
    step = _step(workload, chosen.server) if "max batch size" in binding else None
    bound = max(tried.bound, chosen.found.bound)
    warnings = _warnings(workload, found, chosen)
    if "KV memory" in binding:
        warnings = (*_fewer_at_once(workload, chosen), *warnings)
    return Recommendation(
        workload.rate, decided, tuple(found), chosen, tuple(pruned), bound, binding, step, warnings,
        _with_plugin(found, chosen, decided, workload.rate), advice.overload(own, workload.rate),
        _trade(own, chosen, decided),
    )  # fmt: skip


def _trade(own: Sequence[Candidate], chosen: Candidate, decided: Objective) -> str | None:
    """Say what carries clearly more than what is kept, though no faster."""
    if chosen is not own[0] or decided == "stable-rate":
        return None
    metric = f"{decided}_s"
    stable = [c for c in own[1:] if c.answer.verdict == "stable" and c.mean(metric) is not None]
    return advice.trade(chosen, [c for c in stable if not _slower(c, chosen, metric)], metric)


def _usual_policies(server: Server) -> Sequence[str]:
    """Return the policies to try beside a server's own: vLLM runs others through the plugin, other engines none."""
    if not isinstance(server.policy, Engine):
        return FROM_SIMPLE_TO_SUBTLE
    if server.policy.name != "vllm":
        return ()
    own = ("sarathi",) if server.policy.work_conserving else ()  # what vLLM does itself
    return [name for name in FROM_SIMPLE_TO_SUBTLE if name not in own]


def _with_plugin(found: Sequence[Candidate], chosen: Candidate, decided: Objective, rate: float) -> str | None:
    """Say what the best policy that vLLM has only through the plugin would bring, where it is better."""
    if found[0].server.policy.name != "vllm":
        return None
    others = [c for c in found if c is chosen or not isinstance(c.server.policy, Engine)]
    _, best = _choose([chosen, *(c for c in others if c is not chosen)], rate, decided)
    if best is chosen:
        return None
    gains = {name: gain for name, gain in _gains(chosen, best).items() if gain is not None and abs(gain) > WORTH}
    better = [f"{_WORDS[name]} {gain:.0%} {_BETTER[name]}" for name, gain in gains.items() if gain > 0]
    worse = [f"{_WORDS[name]} {-gain:.0%} {_WORSE[name]}" for name, gain in gains.items() if gain < 0]
    price = f", at the price of {' and '.join(worse)}" if worse else ""
    return f"{best.name} has {' and '.join(better) or 'no gain'} than {chosen.name}{price}"


def _gains(old: Candidate, new: Candidate) -> dict[str, float | None]:
    """Return the share by which the stable rate rises, and by which each mean latency falls."""
    gains: dict[str, float | None] = {"stable_rate": new.stable_rate / old.stable_rate - 1}
    for metric in METRICS:
        before, after = old.mean(metric), new.mean(metric)
        gains[metric] = None if not before or after is None else 1 - after / before
    return gains


class _Study(NamedTuple):
    """How candidates are measured; ``most_stable``: only the highest stable rate matters."""

    workload: Workload
    requests: int
    precision: float
    alpha: float
    most_stable: bool
    targets: tuple[Target, ...]

    def measure(self, server: Server, found: Sequence[Candidate], progress: Progress) -> Candidate | str:
        """Return what was found of a server, or why it is behind the others, as one test shows."""
        tested = self._wanted(server, found)
        if tested and self._verdict(tested, server) == "unstable":
            return f"unstable at {tested:,.4g} requests/s, by simulation; others carry that"
        kept = served(self.workload, server).share
        if found and kept < found[0].answer.certificate.load.work.share * (1 - _SAME_SHARE):
            return f"it drops {1 - kept:.1%} of the requests, which never fit; more than now"
        answer = check(
            self.workload, server, requests=self.requests, alpha=self.alpha, estimate_memory=False,
            progress=part_of(progress, 0.0, 0.5),
        )  # fmt: skip
        rates = max_rate(
            self.workload, server, precision=self.precision, alpha=self.alpha, seed=self.workload.seed,
            progress=part_of(progress, 0.5, 1.0),
        )  # fmt: skip
        shown = self.workload.rate if answer.stability.verdict == "stable" else 0.0
        targets = tuple(judged(target, answer.latency) for target in self.targets)
        return Candidate(server, rates, answer, shown, targets)

    def _wanted(self, server: Server, found: Sequence[Candidate]) -> float:
        """Return the rate that a candidate must carry to have a chance; 0 for the first, to which others compare."""
        if not found:
            return 0.0
        rate, most = self.workload.rate, max(c.stable_rate for c in found)
        wanted = most if self.most_stable else min(rate / SAFE, most)
        if server.token_budget == found[0].server.token_budget:  # what another policy alone brings is worth knowing
            wanted = min(wanted, rate)
        return wanted * (1 - WORTH)

    def _verdict(self, rate: float, server: Server) -> Outcome:
        workload = self.workload.with_rate(rate)
        return verdict(workload, server, self.alpha, self.precision / 2, self.workload.seed).verdict

    def binding(self, chosen: Candidate) -> tuple[str, ...]:
        """Return the limits that hold a server back: KV memory, where without that limit it carries more."""
        server = chosen.server
        if server.memory is not None:
            more = dataclasses.replace(server.memory, blocks=_AMPLE * server.memory.blocks)
            ample = dataclasses.replace(server, memory=more, gpu=None)
            if self._verdict(chosen.above * (1 + WORTH), ample) == "stable":
                return ("KV memory",)
        return operating_point(self.workload, server).without_estimate


def _choose(found: Sequence[Candidate], rate: float, objective: Objective | None) -> tuple[Objective, Candidate]:
    """Return what decides, and the best candidate: the first of those that are as good."""
    stable = [c for c in found if c.answer.verdict == "stable"] or list(found)
    safe = [c for c in stable if rate <= SAFE * c.stable_rate and c.answer.latency]
    if found[0].targets:
        stable = _meeting(safe, stable)
        safe = [c for c in safe if c in stable]
    decided: Objective = objective or ("e2e" if safe else "stable-rate")
    if decided == "stable-rate":
        most = max(c.stable_rate for c in stable)
        stable = [c for c in stable if c.above >= most]
    metric = "e2e_s" if decided == "stable-rate" else f"{decided}_s"
    likely = stable if decided == "stable-rate" or not safe else safe
    known = [c for c in likely if c.mean(metric) is not None]
    if not known:
        return decided, likely[0]
    best = min(known, key=lambda c: c.mean(metric) or 0.0)
    current = found[0]
    alike = [c for c in known if not _slower(c, best, metric)]
    if current in alike:
        return decided, current
    if current in known:
        alike = [c for c in alike if _slower(current, c, metric)] or [best]
    most = max(c.stable_rate for c in alike)
    return decided, next(c for c in alike if c.stable_rate >= (1 - _ROOM) * most)


def _meeting(safe: Sequence[Candidate], stable: Sequence[Candidate]) -> list[Candidate]:
    """Return those that meet the targets, of the safe ones if there are any, else the one that comes nearest."""
    met = [c for c in safe if not c.missed] or [c for c in stable if not c.missed]
    return met or [min(stable, key=lambda c: c.overshoot)]


def _slower(one: Candidate, other: Candidate, metric: str) -> bool:
    """Return whether a mean latency of one is above that of the other, beyond the noise and worth a change."""
    if one is other:
        return False
    mean = other.mean(metric)
    sums, counts = _differences(one, other, metric)
    if mean is None or sums.size < BATCHES or not counts.sum():
        return False
    low, _ = intervals.ratio_interval(sums, counts, _CONFIDENCE)
    difference = float(sums.sum() / counts.sum()) * one.answer.run.tick_s
    return low > 0 and difference > WORTH * mean


def _differences(one: Candidate, other: Candidate, metric: str) -> tuple[Floats, Floats]:
    """Return by how many ticks one took longer than the other for the same samples, and the samples, in batches."""
    a, b = one.answer.run.rows, other.answer.run.rows
    assert a is not None
    assert b is not None
    warm = max(c.answer.latency.warmup_requests for c in (one, other) if c.answer.latency)
    both = np.flatnonzero((a.finish >= 0) & (b.finish >= 0))
    both = both[both >= warm]
    both = both[both.size % BATCHES :]
    if metric == "ttft_s":
        longer = a.first_token[both] - b.first_token[both]
    elif metric == "e2e_s":
        longer = a.finish[both] - b.finish[both]
    else:  # gaps between the tokens of a request add up to the time from its first token to its finish
        longer = (a.finish - a.first_token)[both] - (b.finish - b.first_token)[both]
    counts = a.output_tokens[both] - 1 if metric == "tbt_s" else np.ones(both.size)
    shape = (BATCHES, -1)
    return longer.reshape(shape).sum(axis=1).astype(float), counts.reshape(shape).sum(axis=1).astype(float)


def _step(workload: Workload, server: Server) -> Step | None:
    """Return what a quarter more slots would bring, by theory."""
    slots = server.max_batch_size
    if slots is None or slots >= server.token_budget:
        return None
    more = slots + max(slots // _SLOTS_STEP, 1)
    now, then = (certify(workload, dataclasses.replace(server, max_batch_size=k)).max_rate for k in (slots, more))
    return Step(more, then, then / now - 1)


def _fewer_at_once(workload: Workload, chosen: Candidate) -> list[str]:
    """Say what a smaller max batch size would carry, by the estimate, where preemption wastes work."""
    server = chosen.server
    slots = min(server.max_batch_size or server.token_budget, 4096)
    best = 0.0, 0
    for share in _SLOTS_FEWER:
        fewer = max(int(slots * share), 1)
        try:
            best = max(best, (memory_estimate(workload, dataclasses.replace(server, max_batch_size=fewer)).rate, fewer))
        except InputError:
            return []
    rate, fewer = best
    if rate < (1 + _ROOM) * chosen.stable_rate:
        return []
    return [
        f"with a max batch size of {fewer:,} in place of {slots:,} it would carry about {rate:,.4g} requests/s (an "
        "estimate): fewer requests at once preempt each other less; try it with max-rate"
    ]


def _warnings(workload: Workload, found: Sequence[Candidate], chosen: Candidate) -> tuple[str, ...]:
    current, rate = found[0], workload.rate
    warnings = list(workload.notices)
    known = any(c.answer.verdict == "stable" for c in found)
    if known and rate > SAFE * chosen.stable_rate:
        warnings.append(
            f"{rate:,.4g} requests/s are {rate / chosen.stable_rate:.1%} of what {chosen.name} carries: delays are "
            f"long, and a little more is too much; up to {SAFE * chosen.stable_rate:,.4g} would be safe"
        )
    if chosen is not current and chosen.server.policy.name in OWN_BUDGET:
        warnings.append(
            f"no engine has {chosen.server.policy.name} by itself; vLLM runs it through penstock.vllm_plugin"
        )
    if chosen.server.scope_warning:
        warnings.append(chosen.server.scope_warning)
    if chosen.server.token_budget > current.server.token_budget and chosen.server.kv_estimate is None:
        warnings.append(
            "a larger token budget takes more memory for activations, which is not modelled; see that the engine starts"
        )
    for candidate in dict.fromkeys((current, chosen)):
        if candidate.answer.latency and not candidate.answer.latency_refused:
            warnings += [f"{candidate.name}: {notice}" for notice in candidate.answer.latency.notices]
    for candidate in found:
        for said in (candidate.found.disagreement, candidate.answer.disagreement):
            if said:
                warnings.append(f"{candidate.name}: CONTRADICTION: {said}")
    return tuple(warnings)
