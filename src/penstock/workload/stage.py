"""A stage: one kind of call in a workflow, and what must be true of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Range, checked
from penstock.workload.lengths import LONGEST, Length
from penstock.workload.routes import END

LONGEST_DELAY_MS = 1e12

_TRANSFER = Range(0, 1e6, "ms", "0 for no transfer")
_VISITS = Range(1, 2**30, "visits", "leave it out for no limit")


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """One kind of call in a workflow.

    Parameters
    ----------
    pool
        Name of the pool that serves it.
    prompt, output
        Tokens, or a distribution. ``job``: the lengths that come with the job's arrival. ``rest``
        (output): those less one, as when the prompt and the first token were made elsewhere. 0: no
        such phase here.
    then
        What its end releases. None or ``end``: nothing; a name: that stage; a list of names: all of
        them (a fork), one that stands there twice two times; a mapping from names, or ``end``, to
        probabilities: one of them.
    join
        Whether it waits for all branches of the innermost fork that is open.
    delay_ms
        Between its release and its arrival at the pool, as for a tool call: milliseconds, or a
        distribution that counts them.
    transfer_ms_per_token
        Times the prompt tokens of the request that released it: added to the delay, as for a
        transfer of KV memory.
    most_visits
        A job that has visited the stage so often goes there no more: its other ways are taken, in
        proportion to their probabilities, and if there are none that branch ends.
    """

    pool: str
    prompt: int | Length | str
    output: int | Length | str
    then: str | Sequence[str] | Mapping[str, float] | None = dataclasses.field(
        default=None, kw_only=True
    )
    join: bool = dataclasses.field(default=False, kw_only=True)
    delay_ms: float | Length = dataclasses.field(default=0, kw_only=True)
    transfer_ms_per_token: Annotated[float, _TRANSFER] = dataclasses.field(
        default=0.0, kw_only=True
    )
    most_visits: Annotated[int, _VISITS] | None = dataclasses.field(default=None, kw_only=True)


def is_fork(stage: Stage) -> bool:
    """Whether its end releases several stages."""
    return stage.then is not None and not isinstance(stage.then, str | Mapping)


def released(stage: Stage) -> list[tuple[str, float]]:
    """Return the stages that the end of one may release, with probabilities; ones at a fork."""
    if stage.then is None:
        return []
    ways = {stage.then: 1.0} if isinstance(stage.then, str) else stage.then
    pairs = list(ways.items()) if isinstance(ways, Mapping) else [(target, 1.0) for target in ways]
    return [(target, chance) for target, chance in pairs if target != END]


def check_name(what: str, name: object) -> None:
    """Refuse a name that is no text, or that would make names of stages unclear."""
    if not isinstance(name, str) or not name or "." in name:
        raise InputError(
            f"the name of {what} is {checks.shown(name)}, but must be a text without full stops, "
            "as tables and orders say workflow.stage; give another"
        )


def check_delay(name: str, delay: float | Length) -> None:
    """Raise an `InputError` for a delay that is no distribution and no number of milliseconds."""
    if not isinstance(delay, Length):
        remedy = "give a bare number, which counts ms, or for a random delay a distribution"
        checks.number(name, delay, 0, LONGEST_DELAY_MS, "ms", remedy)


def check_stage(workflow: str, name: str, stage: Stage, stages: Mapping[str, Stage]) -> None:
    """Raise an `InputError` that names the stage and what is wrong with it."""
    check_name(f"a stage of {workflow}", name)
    what = f"stage {name!r} of {workflow}"
    if name == END:
        raise InputError(f"{what} has the name that ends a branch in `then`; give it another")
    if not isinstance(stage, Stage):
        raise InputError(
            f"{what} is {checks.shown(stage)}, but must be a Stage with pool, prompt and output"
        )
    if not isinstance(stage.pool, str) or not stage.pool:
        raise InputError(f"the pool of {what} is {checks.shown(stage.pool)}; give the name of one")
    checked(stage, lambda field: f"{field} of {what}")
    _check_tokens(f"the prompt of {what}", stage.prompt, ("job",))
    _check_tokens(f"the output of {what}", stage.output, ("job", "rest"))
    check_delay(f"delay_ms of {what}", stage.delay_ms)
    per_token = stage.transfer_ms_per_token
    if per_token and stage.join:
        raise InputError(
            f"{what} is a join with transfer_ms_per_token {per_token:g}, but which branch comes "
            "last, and so what is transferred, is not known before it is served; give it a delay_ms"
        )
    _check_then(what, stage, stages)


def _check_tokens(what: str, tokens: object, words: tuple[str, ...]) -> None:
    if isinstance(tokens, Length) or (isinstance(tokens, str) and tokens in words):
        return
    remedy = (
        f"give tokens, 0 for none, a distribution, or {' or '.join(repr(word) for word in words)}"
    )
    checks.whole(what, tokens, 0, LONGEST, "tokens", remedy)


def _check_then(what: str, stage: Stage, stages: Mapping[str, Stage]) -> None:
    then = stage.then
    if then is None:
        return
    if not isinstance(then, str | Mapping | Sequence) or not then:
        raise InputError(
            f"`then` of {what} is {checks.shown(then)}; give a stage, 'end', a list of stages (all "
            "of them), or probabilities by stage (one of them)"
        )
    names = [then] if isinstance(then, str) else list(then)
    for target in names:
        if not isinstance(target, str) or (target not in stages and target != END):
            raise InputError(
                f"{what} goes on to the unknown stage "
                f"{checks.shown(target)}{nearest(str(target), [*stages, END])}"
            )
    if is_fork(stage) and END in names:
        raise InputError(f"{what} forks to 'end', which is no branch; leave it out")
    if isinstance(then, Mapping):
        for target, chance in then.items():
            checks.number(
                f"the probability of {target!r} after {what}",
                chance,
                0,
                1,
                "",
                "it is a probability",
            )
        total = sum(then.values())
        if abs(total - 1) > 1e-9:
            raise InputError(
                f"the probabilities after {what} add up to {total:.10g}, but one of its ways is "
                "always taken, so they "
                "must add up to 1; give what is missing to 'end', or scale them"
            )
