"""The named corners of the region for long prompts, as the paper has them: regions are held against them."""

from penstock import checks
from penstock.errors import InputError
from penstock.system.batch_time import MOST_TOKENS, BatchTime, PiecewiseConstant


def closed_form(batch_time: BatchTime, token_budget: int, max_batch_size: int) -> dict[str, tuple[float, float]]:
    """Return the named extreme points of the region for long prompts (Theorem convex_hull).

    The region is conv(O, A, B, C, D). C is a corner where (k_max - 1)(b_0 - k_max) > b_0 c / a and
    b_max > b_0; else it lies inside, or is B. B is one unless it falls on a line between others: at
    k_max = 1, for c = 0, or at b_max = b_0 = k_max. Batches of every budget between b_0 and b_max
    touch the edge BC, each at a point of its own.

    Parameters
    ----------
    batch_time
        Piecewise constant, with a > 0.
    token_budget
        b_max, a multiple of b_0.
    max_batch_size
        k_max, at most b_0.

    Returns
    -------
    dict
        (prefill tokens/s, decode tokens/s) of O, A, B, C, D, those that are extreme.

    Raises
    ------
    InputError
        If a hypothesis of the theorem fails; it names it.
    """
    b = checks.whole("the token budget", token_budget, 1, MOST_TOKENS, "tokens", "a batch carries at least one")
    k = checks.whole(
        "the max batch size",
        max_batch_size,
        1,
        MOST_TOKENS,
        "requests",
        "a batch holds at least one",
    )
    remedy = "use `region`, which needs no such hypothesis"
    if not isinstance(batch_time, PiecewiseConstant):
        shown = checks.shown(batch_time)
        raise InputError(f"the closed form needs piecewise constant batch times, but these are {shown}; {remedy}")
    c, a, b0 = batch_time.c, batch_time.a, batch_time.b0
    if a == 0:
        raise InputError(f"the closed form needs a > 0, but a is 0 s, so blocks cost nothing; {remedy}")
    if b % b0:
        raise InputError(f"the closed form needs b_0 | b_max, but {b0:,} does not divide {b:,} tokens; {remedy}")
    if k > b0:
        raise InputError(f"the closed form needs k_max <= b_0, but k_max is {k:,} and b_0 is {b0:,}; {remedy}")
    full, block = (float(batch_time(load)) for load in (b, b0))
    points = {"O": (0.0, 0.0), "A": (b / full, 0.0)}
    if k > 1 and (c > 0 if b > b0 else k < b0):
        points["B"] = ((b - k + 1) / full, (k - 1) / full)
    if b > b0 and (k - 1) * (b0 - k) > b0 * c / a:
        points["C"] = ((b0 - k + 1) / block, (k - 1) / block)
    points["D"] = (0.0, k / block)
    return points
