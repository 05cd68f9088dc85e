"""Seconds to ticks, and what a batch takes in them; back again in `penstock.simulation.run`."""

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.kernel import composition
from penstock.kernel.due_epochs import NEVER
from penstock.system.batch_time import Composition
from penstock.system.server import Server

_ROUNDING = 1e-3
"""Of the batch time: what the rounding of its terms to units of the kernel may change."""

MOST_BATCHES = 1_000
"""Batches that a run can surely count in ticks, however long one takes."""


def in_ticks(what: str, seconds: Floats, tick_s: float) -> Ints:
    """Return times rounded to the nearest tick, once; ``what`` each of them is."""
    longest = float(seconds.max(initial=0.0))
    if longest == 0:  # as delays usually are
        return np.zeros(seconds.size, np.int64)
    if longest / tick_s >= NEVER / 4:
        raise InputError(
            f"{what} of {longest:g} s is more ticks of {tick_s:g} s than can be counted; give a "
            "larger tick_s, or ask for less"
        )
    return np.rint(seconds / tick_s).astype(np.int64)


def ticks_of_batches(server: Server, tick_s: float) -> Ints:
    """Return the ticks of a batch by its tokens, each rounded once."""
    seconds = server.batch_time.table(server.most_tokens)
    if seconds.max() >= NEVER / 4 * tick_s / MOST_BATCHES:
        load = int(np.argmax(seconds))
        raise InputError(
            f"a batch of {load} tokens takes {seconds[load]:g} s, more ticks of {tick_s:g} s than "
            "can be counted; "
            "raise tick_s"
        )
    duration: Ints = np.rint(seconds / tick_s).astype(np.int64)
    if duration[1:].min() < 1:
        load = int(np.argmin(duration[1:])) + 1
        raise InputError(
            f"a batch of {load} tokens takes {seconds[load]:g} s, less than half a tick of "
            f"{tick_s:g} s; lower tick_s"
        )
    return duration


def terms_of(server: Server, tick_s: float) -> composition.Terms | None:
    """Return what batches cost, each term rounded once; None: their token load alone decides."""
    model = server.batch_time
    if not isinstance(model, Composition):
        return None
    seconds = term_seconds(model)
    linear = model.linear.table(server.most_tokens)
    unit = tick_s / 2.0**composition.BITS
    dearest = max(*seconds, float(linear.max()))
    if dearest / unit >= composition.MOST_COST:
        raise InputError(
            f"the batch time has a term of {dearest:g} s, more ticks of {tick_s:g} s than can be "
            "counted; raise tick_s"
        )
    linear_costs, per = (
        np.rint(np.array(values) / unit).astype(np.int64) for values in (linear, seconds)
    )
    return composition.Terms(linear_costs, per)


def term_seconds(model: Composition) -> tuple[float, ...]:
    """Return the seconds of each term, in the order in which the kernel has their costs."""
    return (
        model.per_request,
        model.self_attention,
        model.cross_attention,
        *model.of_decodes,
        model.with_prefill,
    )


def check_costs(
    server: Server, terms: composition.Terms | None, tick_s: float, longest: int
) -> None:
    """Refuse requests too long for a batch's cost to be counted, and ticks too long for terms."""
    # ``longest``: tokens of a request.
    model = server.batch_time
    if terms is None or not isinstance(model, Composition):
        return
    per = terms.per.tolist()
    unit = tick_s / 2**composition.BITS
    budget = server.most_tokens
    requests = min(budget, server.max_batch_size or budget)

    # Of each term in a batch, at most.
    counts = (requests, budget**2, *[budget * longest] * 3, 1)
    costs = [cost * count for cost, count in zip(per, counts, strict=True)]
    linear = terms.linear
    most = int(linear.max()) + sum(costs)
    if most >= composition.MOST_COST:
        raise InputError(
            f"a batch of {budget:,} tokens, each after {longest:,} of its request, could take "
            f"{most * unit:,.0f} s, more ticks of {tick_s:g} s than are counted "
            "for a batch; raise tick_s, or drop the longest requests"
        )
    for seconds, cost, count in zip(term_seconds(model), per, counts, strict=True):
        lost = abs(seconds / unit - cost) * count / (int(linear[1:].min()) + cost * count)
        if lost > _ROUNDING:
            raise InputError(
                f"rounded to 2^-{composition.BITS} ticks of {tick_s:g} s, a term of {seconds:g} s "
                f"changes the time of batches by up to {lost:.1%}; lower tick_s"
            )
