"""Tries of requests: they begin, and where one has failed the request begins anew, or is lost with
all that would come after.
"""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.lists import push
from penstock.kernel.records import LOST, NONE_YET, World


@uncounted()
def ask_in(world: World, request: int) -> None:
    """Let a client ask, from now on for as long as its patience lasts."""
    clock, trial = world.clock[0], world.tries[request]
    if trial.came < 0:
        trial.came = clock.now
    trial.first_until = min(clock.now + trial.patience_first, NEVER)
    trial.whole_until = min(clock.now + trial.patience_whole, NEVER)
    until = min(trial.first_until, trial.whole_until)
    if until < NEVER and trial.is_listed == 0:
        await_end(world, request, until)
    elif until < NEVER:  # seldom: from a try that was refused to make way
        for place in range(clock.leaving):
            if world.leaves[place, 1] == request and world.leaves[place, 0] > until:
                push(world.leaves, place, until, request)


@uncounted(inline=True)
def await_end(world: World, request: int, tick: int) -> None:
    """Let a client be looked at again at a tick."""
    push(world.leaves, world.clock[0].leaving, tick, request)
    world.clock[0].leaving += 1
    world.tries[request].is_listed = 1


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
