"""Requests whose try has failed: they begin anew, or are lost with all that would come after."""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import LOST, NONE_YET, World


@uncounted()
def begin_anew(world: World, request: int, pool: Any) -> None:
    """Let a request be as it was before it came."""
    row, trial = world.rows[request], world.tries[request]
    row.left, row.decodes = trial.left, trial.decodes
    row.pending = 0
    world.cached[request] = 0
    world.first_token[request] = -1
    if world.again.size > 0:
        again = world.again[request]
        again.last = NONE_YET
        again.target = row.left
        again.outputs = row.decodes + pool.convention
        again.filled = again.matched = again.times = again.passed = 0


@uncounted()
def come_again(world: World, request: int) -> None:
    """Let a request come once more, from nowhere."""
    world.rows[request].server = -1
    world.ready[request] = -1
    world.tries[request].times += 1


@uncounted()
def lose(world: World, request: int, reason: int) -> None:
    """Lose a request, and all that would come after it in its job, whose rows stand behind it."""
    clock = world.clock[0]
    world.finish[request] = reason
    job = np.searchsorted(world.job_root[:], request, side="right")
    end = world.rows.size if job == world.job_root.size else world.job_root[job]
    for earlier in range(request, end):
        offset = world.rows[earlier].child
        following = earlier
        while world.finish[earlier] < -1 and offset != 0:
            following += offset
            row = world.rows[following]
            if world.finish[following] == -1:
                world.finish[following] = LOST
                clock.future -= row.left + row.decodes
            offset = row.sibling
