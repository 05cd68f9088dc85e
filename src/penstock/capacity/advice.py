"""What a recommendation says beside its choice: overload, a trade that it leaves, what is next."""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checking.answer import Answer, longer_run, too_near
from penstock.words import METRICS, NOUNS, counted, duration

if TYPE_CHECKING:
    from penstock.capacity.recommendation import Candidate
    from penstock.checking.answer import TargetAnswer

_WORTH_A_WORD = 0.05  # share of a rate or latency from which a trade is worth a sentence


def overload(candidates: Sequence["Candidate"], rate: float) -> str | None:
    """Say that no candidate carries the load, and how many replicas would at least; else None."""
    best, now = max(candidates, key=lambda c: c.stable_rate), candidates[0]
    if rate < best.stable_rate or any(c.answer.verdict == "stable" for c in candidates):
        return None
    replicas = max(math.ceil(rate / best.stable_rate), 2)
    than_now = ", as now" if best is now else f" ({now.stable_rate:,.4g} now)"
    return (
        f"nothing that was tried is known to carry {rate:,.4g} requests/s on one server; nearest "
        f"is {best.what}: {best.stable_rate:,.4g}{than_now}, so it takes at least "
        f"{counted(replicas, 'replica')}; see `penstock plan`"
    )


def trade(chosen: "Candidate", others: Sequence["Candidate"], metric: str) -> str | None:
    """Say which other candidate carries clearly more than the chosen one, and what that costs."""
    # The others are not slower than it beyond the noise, from simple to subtle.
    enough = (1 + _WORTH_A_WORD) * chosen.stable_rate
    more = [c for c in others if c.stable_rate >= enough and (chosen.missed or not c.missed)]
    if not more:
        return None
    most = max(c.stable_rate for c in more)
    best = next(c for c in more if c.stable_rate >= (1 - _WORTH_A_WORD) * most)
    gain = best.stable_rate / chosen.stable_rate - 1
    said = (
        f"{best.name} carries {gain:.0%} more ({best.stable_rate:,.4g} requests/s), its mean "
        f"{NOUNS[metric]} is no longer"
    )
    prices = _prices(chosen, best)
    return f"{said}; its price is {' and '.join(prices)}" if prices else said


def _prices(chosen: "Candidate", other: "Candidate") -> list[str]:
    """Return the latencies that are clearly higher with the other candidate."""
    if chosen.answer.latency is None or other.answer.latency is None:
        return []
    prices = []
    for metric, statistic in itertools.product(METRICS, ("mean", "p99")):
        now = chosen.answer.latency.estimates[metric][statistic].value
        then = other.answer.latency.estimates[metric][statistic].value
        if now and then and then > (1 + _WORTH_A_WORD) * now:
            name = f"{statistic} {NOUNS[metric]}"
            prices.append(f"a {name} of {duration(then)} instead of {duration(now)}")
    return prices


def next_step(targets: Sequence["TargetAnswer"], answer: Answer, file: str) -> str | None:
    """Return what to do about targets that the recommended server may miss; None: it meets all."""
    if all(judgement == "met" for _, _, judgement in targets):
        return None
    asked = " ".join(f"--target '{target}'" for target, _, _ in targets)
    if all(judgement != "missed" for _, _, judgement in targets):
        longer = longer_run(answer)
        if longer is None:
            return too_near(answer)
        return f"longer runs may decide it: `penstock recommend {file} --requests {longer} {asked}`"
    named = ", ".join(str(target) for target, _, _ in targets)
    return (
        f"`plan: {{targets: [{named}]}}` in the scenario lets `penstock plan {file}` find how many "
        "replicas do, if any"
    )
