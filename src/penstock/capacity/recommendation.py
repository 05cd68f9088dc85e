"""What was found of each candidate, and which of them is recommended."""

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np

from penstock.capacity.candidates import SAFE, Pruned
from penstock.capacity.held_by import held_by
from penstock.capacity.max_rate import MaxRate
from penstock.checking.answer import Answer
from penstock.checking.batch_means import OfLatency
from penstock.checking.doubt import Doubt, beyond_rows
from penstock.checking.latency import SteadyState
from penstock.checking.targets import TargetAnswer
from penstock.show.answers import Meaning, Shown, computed
from penstock.system.server import Server
from penstock.theory.operating_point import OperatingPoint
from penstock.words import METRICS, NOUNS, duration

Objective = Literal["stable-rate", "ttft", "tbt", "e2e"]

WORTH = 0.02
"""Share of a mean latency below which a difference is no reason to change anything."""

CLEARLY = 0.05
"""Share from which a stable rate, a mean latency or a p99 is clearly another."""


def _by_target(targets: tuple[TargetAnswer, ...]) -> dict[str, str]:
    """Return what JSON has of targets."""
    return {str(one.target): one.judgement for one in targets}


@dataclasses.dataclass(frozen=True)
class Choice:
    """What to set."""

    policy: Annotated[str, Meaning("Its name.")]
    token_budget: Annotated[int, Meaning("Tokens of a batch.")]
    max_batch_size: Annotated[int | None, Meaning("Requests of a batch; null: any.")]
    policy_params: Annotated[dict[str, Any], Meaning("The parameters of the policy.")]


def _choice(of: "Candidate") -> Choice:
    """Return what JSON has of what is recommended."""
    server, policy = of.server, of.server.policy
    params = policy.settings(server.policy_params)
    return Choice(policy.name, server.token_budget, server.max_batch_size, params)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate(OfLatency):
    """A policy at a token budget and a max batch size, and what was found of it."""

    server: Server  # the current server but for these three
    found: MaxRate
    answer: Answer  # at the workload's own rate; the requests are the same for every candidate
    # The workload's rate if the test said stable there, else 0. A policy that keeps long queues on
    # purpose may leave the test undecided at a lower one.
    shown: float = 0.0
    targets: Annotated[
        tuple[TargetAnswer, ...],
        Meaning(
            "Each target, and whether it is met.",
            data=_by_target,
        ),
    ] = ()
    slots: int | None = None  # the max batch size, where it is not the current one
    longer: Answer | None = None  # of the longer run that judged the targets, if there is one

    @property
    def name(self) -> str:
        """Policy, token budget, and the max batch size if it is another."""
        slots = f", max batch size {self.slots:,}" if self.slots else ""
        return f"{self.server.policy.name} at {self.server.token_budget:,}{slots}"

    @property
    def what(self) -> str:
        """The same in more words."""
        return self.name.replace(" at ", ", token budget ")

    @computed()
    def stable_rate(self) -> float:
        """Highest rate known to be stable, requests/s."""
        return max(self.found.rate, self.shown)

    @computed()
    def above(self) -> float:
        """Rate at which, or a little above which, it is no longer stable, requests/s."""
        return max(self.found.above, self.stable_rate)

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @property
    def hopeful(self) -> bool:
        """Whether every target is met, or may be as far as one run tells."""
        return not self.missed or (
            self.longer is None
            and self.overshoot < 1
            and all(target.judgement != "missed" for target in self.targets)
        )

    @property
    def overshoot(self) -> float:
        """Largest of the target's latencies over their limits; infinite where one is not known."""
        of = [(target.target.limit_s, target.estimate) for target in self.targets]
        known = [np.inf if e is None or e.value is None else e.value / most for most, e in of]
        return max(known, default=0.0)

    def mean(self, metric: str) -> float | None:
        """Return a mean latency (``ttft_s``, ``tbt_s`` or ``e2e_s``), or None: there is none."""
        return self.answer.latency.estimates[metric]["mean"].value if self.answer.latency else None

    @computed(key="**")
    def choice(self) -> Choice:
        """What to set."""
        return _choice(self)

    @property
    def latency(self) -> SteadyState | None:
        """In the steady state; None: refused."""
        return self.answer.latency

    @computed()
    def bound(self) -> float:
        """Requests/s that no policy exceeds at its token budget."""
        return self.found.bound

    @computed()
    def verdict(self) -> str:
        """Whether it is stable at the workload's own rate."""
        return self.answer.verdict

    @computed()
    def refused(self) -> str | None:
        """Why there is no latency, or None."""
        return self.answer.latency_refused


@dataclasses.dataclass(frozen=True, eq=False)
class Recommendation(Shown):
    """What to use, and what it was chosen from."""

    rate: Annotated[float, Meaning("Requests/s that arrive.")]
    objective: Annotated[Objective, Meaning("What decided: ``stable-rate``, or a mean latency.")]
    candidates: Annotated[
        tuple[Candidate, ...],
        Meaning("What was simulated, the current server first, then from simple to subtle."),
    ]
    recommended: Annotated[Candidate, Meaning("One of them; in JSON what to set.", data=_choice)]
    pruned: Annotated[tuple[Pruned, ...], Meaning("What theory ruled out before.")]
    bound: Annotated[
        float,
        Meaning("Requests/s that no policy exceeds at any of the token budgets looked at."),
    ]
    point: Annotated[
        OperatingPoint,
        Meaning("Where the load lies in the region of the recommended server.", key=None),
    ]
    warnings: Annotated[tuple[str, ...], Meaning("What the user should know besides.", key=None)]
    with_plugin: Annotated[
        str | None,
        Meaning(
            "What a policy that is not vLLM's own would bring inside it, through "
            "`penstock.vllm_plugin`; a sentence, or None where none is better."
        ),
    ] = None
    overload: Annotated[
        str | None,
        Meaning(
            "That no setting that was tried carries the load; a sentence, or None where one does.",
            key=None,
        ),
    ] = None
    trade: Annotated[
        str | None,
        Meaning(
            "What is faster or carries clearly more where nothing is to change, and its price; a "
            "sentence, or None.",
            key=None,
        ),
    ] = None
    calibration: Annotated[
        Doubt | None,
        Meaning(
            "What is not known of the batch times of the recommended server; None: they are taken "
            "as exact."
        ),
    ] = None

    @computed()
    def current(self) -> Candidate:
        """What serves now."""
        return self.candidates[0]

    @computed()
    def change(self) -> bool:
        """Whether there is something to change."""
        return self.recommended is not self.current

    @property
    def only_with_plugin(self) -> tuple[str, ...]:
        """Policies that were tried or ruled out and that vLLM runs with the plugin only."""
        if not self.current.server.policy.hosts_policies:
            return ()
        names = dict.fromkeys(
            [c.server.policy.name for c in self.candidates] + [p.policy for p in self.pruned]
        )
        del names[self.current.server.policy.name]
        return tuple(names)

    @property
    def verdict(self) -> str:
        """Of the recommended server, if it is the same with all batch times that may be true."""
        verdict = self.recommended.answer.verdict
        if self.calibration is None or self.calibration.holds(verdict):
            return verdict
        return "undecided"

    @property
    def doubts(self) -> list[str]:
        """What is not known of the batch times of the recommended server, in a sentence or none."""
        if self.calibration is None:
            return []
        said = self.calibration.reason(self.recommended.answer.verdict)
        return [
            *beyond_rows((self.recommended.answer.workload, self.recommended.server)),
            f"With {self.recommended.name}, {said}. Candidates are compared with the middle batch "
            "times.",
        ]

    @computed()
    def gains(self) -> dict[str, float | None]:
        """Share by which the stable rate rises, and by which each mean latency falls; None where
        one is refused.
        """
        return gains_of(self.current, self.recommended)

    @computed()
    def reason(self) -> str:
        """One sentence: what decided, the price, and what holds the recommended server back."""
        price = f"; the price is {self.price}" if self.price else ""
        return f"{self.why}; {self.recommended.name} carries {self.carries}{price}; {self.held_by}"

    @property
    def why(self) -> str:
        """What decided."""
        new, old = self.recommended, self.current
        targets = " and ".join(str(one.target) for one in new.targets)
        if new.missed:
            return self._nearest(targets)
        if targets and self.change and not old.hopeful:
            return f"{new.name} meets {targets}"
        if not self.change:
            if self.objective == "stable-rate":
                return "no setting tried carries more beyond the noise"
            return (
                f"no setting tried shortens the mean {NOUNS[f'{self.objective}_s']} by over "
                f"{WORTH:.0%} or carries over {CLEARLY:.0%} more without making something else "
                f"over {CLEARLY:.0%} worse"
            )
        if old.answer.verdict != "stable" or self.rate > SAFE * old.stable_rate:
            share = self.rate / old.stable_rate
            return f"{self.rate:,.4g} requests/s arrive, {share:.0%} of what {old.name} carries"
        if (self.gains.get(f"{self.objective}_s") or 0.0) < WORTH:
            return f"it carries {self.gains['stable_rate']:.0%} more than {old.name}"
        before, after = (one.mean(f"{self.objective}_s") or 0.0 for one in (old, new))
        change = f"{duration(after)} instead of {duration(before)}"
        return f"the mean {NOUNS[f'{self.objective}_s']} is {change}"

    @property
    def carries(self) -> str:
        """What the recommended server carries."""
        rate = self.recommended.stable_rate
        share = f"{rate / self.recommended.found.bound:.0%} of the most"
        return f"{rate:,.4g} requests/s, {share} that any scheduler can carry at that token budget"

    @property
    def price(self) -> str:
        """What gets worse with the recommended server."""
        return " and ".join(prices(self.current, self.recommended))

    @computed()
    def binding(self) -> tuple[str, ...]:
        """The limits that hold the recommended server back: ``token budget``, ``max batch size``,
        ``batch time`` (only faster batches help), ``KV memory``.
        """
        return self.point.binding

    @property
    def held_by(self) -> str:
        """What holds the recommended server back."""
        return f"held by {held_by(self.point)}"

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, for a scenario file, or None."""
        new = self.recommended
        if not new.missed:
            return None
        if all(target.judgement != "missed" for target in new.targets):
            asked = " ".join(f"--target '{one.target}'" for one in new.targets)
            last = new.longer or new.answer
            call = f"penstock recommend {file} --requests {last.longer_run} {asked}"
            return f"longer runs may decide it: `{call}`" if last.longer_run else last.left_open
        named = ", ".join(str(one.target) for one in new.targets)
        return (
            f"`plan: {{targets: [{named}]}}` in the scenario lets `penstock plan {file}` find how "
            "many replicas do, if any"
        )

    def _nearest(self, targets: str) -> str:
        """Say how near the recommended server comes to targets that nothing is known to meet."""
        new, one = self.recommended, len(self.recommended.targets) == 1
        sure = all(any(t.judgement == "missed" for t in c.targets) for c in self.candidates)
        meets = f"{'meets' if sure else 'is known to meet'} {'it' if one else 'all'}"
        said = f"{targets}: nothing that was tried {meets} on one server"
        if all(t.estimate is None for c in self.candidates for t in c.targets):
            return f"{said}, as nothing has a steady state"
        values = []
        for then, now in zip(new.targets, self.current.targets, strict=True):
            before = duration(now.estimate.value) if now.estimate else now.value
            than_now = f" ({before} now)" if self.change else ""
            values.append(f"{'' if one else then.target.name + ' '}{then.value}{than_now}")
        as_now = "" if self.change else ", as now"
        return f"{said}; nearest is {new.what}{as_now}: {', '.join(values)}"

    @computed(key="warnings")
    def _all_warnings(self) -> list[str]:
        """What to know."""
        said = filter(None, (self.overload, self.trade))
        return [*self.doubts, *said, *self.current.answer.front, *self.warnings]


def gains_of(old: Candidate, new: Candidate) -> dict[str, float | None]:
    """Return the share by which the stable rate rises, and by which each mean latency falls."""
    gains: dict[str, float | None] = {"stable_rate": new.stable_rate / old.stable_rate - 1}
    for metric in METRICS:
        before, after = old.mean(metric), new.mean(metric)
        gains[metric] = None if not before or after is None else 1 - after / before
    return gains


def bargain(old: Candidate, new: Candidate) -> str:
    """Say what is better with another candidate, and at which price."""
    better = [
        f"a {name} {gain:.0%} {'higher' if metric == 'stable_rate' else 'shorter'}"
        for metric, gain in gains_of(old, new).items()
        if gain is not None and gain > WORTH
        for name in (f"mean {NOUNS[metric]}" if metric in NOUNS else "stable rate",)
    ]
    price = " and ".join(prices(old, new))
    said = f"{new.name} has {' and '.join(better) or 'no gain'} than {old.name}"
    return f"{said}, at the price of {price}" if price else said


def prices(old: Candidate, new: Candidate) -> list[str]:
    """Say what gets clearly worse that no target limits: a change that has none is worth it."""
    lower = 1 - new.stable_rate / old.stable_rate
    worse = [f"a stable rate {lower:.0%} lower"] if lower > CLEARLY else []
    asked = {target.target.metric for target in old.targets}
    before, after = old.answer.latency, new.answer.latency
    if before is None or after is None:
        return worse
    for metric in (each for each in METRICS if each not in asked):
        longer = {
            statistic: (after.estimates[metric][statistic].value or 0.0) / now - 1
            for statistic in ("mean", "p99")
            if (now := before.estimates[metric][statistic].value)
        }
        most = max(longer, key=longer.__getitem__, default="")
        if most and longer[most] > CLEARLY:
            worse.append(f"a {most} {NOUNS[metric]} {longer[most]:.0%} longer")
    return worse
