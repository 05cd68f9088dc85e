"""What a recommendation says beside its choice: overload, and what is next."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checking.answer import Answer, longer_run, too_near
from penstock.words import counted

if TYPE_CHECKING:
    from penstock.capacity.recommendation import Candidate
    from penstock.checking.answer import TargetAnswer


def overload(best: "Candidate", now: "Candidate", rate: float) -> str | None:
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
