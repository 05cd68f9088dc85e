"""Gateways: their counters of requests that arrive, which engines do not have."""

from penstock.live.engines.metric import Place, Sum

ARRIVALS: tuple[Place, ...] = (
    "llm_d_epp_request_total",
    "inference_objective_request_total",  # what llm-d and the Gateway API's extension
    "inference_model_request_total",  # called it before
    "dynamo_frontend_requests_started_total",
    # Dynamo before it counted those begun: those that ended and those under way
    Sum(("dynamo_frontend_requests_total", "dynamo_frontend_inflight_requests")),
    "tgi_request_count_total",
    "tgi_request_count",
)
"""Where a gateway counts arrivals; the first that a page has."""
