"""Gateways: their counters of requests that arrive, which engines do not have."""

from penstock.live.engines.metric import Metric, Sum, Total
from penstock.live.exposition import Samples

_EVER_BEGUN = Sum(
    (Total("dynamo_frontend_requests_total"), Total("dynamo_frontend_inflight_requests"))
)

ARRIVALS: tuple[Metric, ...] = (
    Total("llm_d_epp_request_total"),
    Total("inference_objective_request_total"),  # what llm-d and the Gateway API's extension
    Total("inference_model_request_total"),  # called it before
    Total("dynamo_frontend_requests_started_total"),
    _EVER_BEGUN,  # Dynamo before it counted those begun: those that ended and those under way
    Total("tgi_request_count_total"),
    Total("tgi_request_count"),
)
"""Where a gateway counts arrivals; the first that a page has."""


def counters(name: str | None) -> tuple[Metric, ...]:
    """Return where arrivals are counted: in a metric of that name, or in one that is known."""
    return ARRIVALS if name is None else (Total(name),)


def arrivals(samples: Samples, name: str | None) -> float | None:
    """Return how many requests came; None: the page does not say, NaN: what it says is wrong."""
    values = (metric.value(samples) for metric in counters(name))
    return next((value for value in values if value is not None), None)
