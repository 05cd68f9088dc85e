"""Which stage of a pool goes first, by the names that its priority order gives?"""

from collections.abc import Mapping, Sequence

from penstock import checks
from penstock.errors import InputError, nearest


def ranking(pool: str, order: Sequence[str], pool_of_stage: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of a pool's stages, most urgent first.

    ``pool_of_stage``: the pool of each stage, by full name, in order.
    """
    stages = list(pool_of_stage)
    here = [stage for stage, name in enumerate(pool_of_stage.values()) if name == pool]
    names = [stages[stage] for stage in here]
    if not order:
        raise InputError(
            f"the order of pool {pool!r} is priority without stages, so which goes first is "
            f"unclear; give `order: {{priority: [{', '.join(names)}]}}`, most urgent first"
        )
    where = f"the priority order of pool {pool!r}"
    ranked = tuple(here[place(stage, names, where, pool_of_stage)] for stage in order)
    for stage in ranked:
        if ranked.count(stage) > 1:
            raise InputError(
                f"{where} has {stages[stage]!r} twice, so its rank is unclear; drop one"
            )
    left_out = [stages[stage] for stage in here if stage not in ranked]
    if left_out:
        raise InputError(
            f"{where} leaves out {left_out[0]!r}, so its rank is unclear; add it, last if it may "
            "always wait"
        )
    return ranked


def place(stage: str, names: Sequence[str], where: str, pool_of_stage: Mapping[str, str]) -> int:
    """Return which of the full names, ``workflow.stage``, is meant (its index).

    A stage's own name will do where only one has it.
    """
    # ``where`` says what calls it so, for errors.
    if stage in names:
        return names.index(stage)
    short = [index for index, name in enumerate(names) if name.endswith(f".{stage}")]
    if len(short) == 1:
        return short[0]
    if short:
        raise InputError(
            f"{where} names {stage!r}, which several workflows have; say which, such as "
            f"{names[short[0]]!r}"
        )
    for name, pool in pool_of_stage.items():
        if name == stage or name.endswith(f".{stage}"):
            raise InputError(f"{where} names {stage!r}, which pool {pool!r} serves; leave it out")
    raise InputError(
        f"{where} names {checks.shown(stage)}, which is no stage{nearest(stage, names)}"
    )
