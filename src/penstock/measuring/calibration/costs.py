"""A calibration without a shape: the costs of a batch, and what holds requests back."""

from collections.abc import Callable, Mapping, Sequence

from penstock.errors import InputError
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.equations import solution_of
from penstock.measuring.calibration.limits import LIMITS, limited, no_limit_seen
from penstock.measuring.calibration.loads import Row, measured, saturated
from penstock.measuring.calibration.posterior import FITTED, Fit, as_sent, fit_of, widened
from penstock.measuring.calibration.priors import Prior, cost_priors
from penstock.measuring.calibration.quantities import COSTS
from penstock.simulation.progress import Progress, counting

_LIKELY = 1.0  # logarithm of odds from which on a further cost is believed
_MORE = {"knee", "per_token_below", "with_prefill"}  # only where rows fit better with them
_FITS, _ROUNDS = 3, 6  # that are usual, for the progress bar


def cost_fit(
    rows: Sequence[Row],
    to_fit: Sequence[Row],
    build: Build,
    names: Sequence[str],
    seed: int,
    progress: Progress | None,
) -> Fit:
    """Fit costs to all runs together, and what else holds requests back."""
    if not all(any(measured(row, metric) for row in to_fit) for metric in FITTED):
        raise InputError(
            f"{len(to_fit)} rows to fit have no inter-token latency (outputs of one token have "
            "none) or no time to first token, so steps cannot be told from prompts; choose rows "
            "with both, benchmark with streaming, or give the model and its GPU (--model, --gpu)"
        )
    priors = cost_priors(min(itl for row in to_fit if (itl := measured(row, "itl"))))
    asked = priors.only(names).of
    simple = priors.only(asked.keys() - _MORE)
    sent = as_sent(to_fit, build, simple, seed)
    server, _ = build(simple.values(simple.normal.mean))
    budget, ahead = build.limit("token_budget"), bool(server.policy.batching.ahead)
    step = counting(progress, _FITS * _ROUNDS * (len(asked) + 2))
    start = solution_of(to_fit, list(simple.of), simple.normal, ahead=ahead, token_budget=budget)
    fit = fit_of(sent, build, simple, step, start)
    held = dict.fromkeys((name for name in COSTS if name not in names), "not asked for")
    places = build.limit("max_batch_size")
    possible = [name for name in LIMITS if name in names]
    if build.kv_tokens is not None:
        held["kv_tokens"] = f"given: {build.kv_tokens:,}"
        possible = [name for name in possible if name != "kv_tokens"]
    fit = limited(fit, places, possible, step)
    for name in possible:
        if name not in fit.values:
            held |= no_limit_seen(name, rows)
    more = {name: prior for name, prior in asked.items() if name in _MORE}
    # Two loads say nothing of a bend, nor does one that was not carried.
    carried = sum(not saturated(row) for row in to_fit)
    if more and carried > 2 and fit.posterior.unexplained > _LIKELY:
        fit = _likelier(fit, more, step)
    reason = "rows fit no better with it" if carried > 2 else "fewer than three rows were carried"
    held |= {name: reason for name in more if name not in fit.values}
    if len(fit.values) > len(simple.of):
        # Far rows count fully once more, which may lead out of where a wider search got stuck.
        fit = _likelier(fit, {}, step)
    if "max_batch_size" not in fit.values:
        held["max_batch_size"] = f"stated: {places:,}"
        if "max_batch_size" in build.assumed:
            held["max_batch_size"] = f"{places:,} assumed, give --max-batch-size"
    return fit._replace(held=held)


def _likelier(fit: Fit, more: Mapping[str, Prior], step: Callable[[], None]) -> Fit:
    """Return a fit with further parameters, or as it is where rows are no likelier with them."""
    wider = widened(fit, more, step)
    return wider if fit.posterior.cost - wider.posterior.cost > _LIKELY else fit
