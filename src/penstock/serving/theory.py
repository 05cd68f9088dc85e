"""What theory and a short run say of a state of the page, in milliseconds."""

from typing import Any

from penstock.checking.doubt import reach_of_server
from penstock.checking.enough_requests import estimate_latency
from penstock.serving.controls import Case
from penstock.system.prefix_cache import as_serving
from penstock.theory.certificate import certify
from penstock.theory.kv_blocks import least_on_average
from penstock.theory.latency_bounds import lower_bounds
from penstock.theory.load import load
from penstock.theory.region import region
from penstock.workload.workload import Workload

_HARDLY = 1e-9
"""Of the rate: bounds of latency at it hold for any number of replicas."""


def theory(case: Case) -> dict[str, Any]:
    """Return certificate, loads by limit, and the region with what arrives."""
    # Of a network, region and load are those of all replicas together.
    server = case.server
    limits: list[tuple[str, float]]
    binding: list[str]
    if case.network is None:
        certificate = certify(case.workload, server)
        rate, most = certificate.load.arrival_rate, certificate.max_rate
        limits = [(bound.name, rate / bound.max_rate) for bound in certificate.bounds]
        said = certificate.as_dict()
        rho = certificate.rho
        binding = [certificate.binding.name]
    else:
        from penstock.checking.json_documents import certificate_as_dict

        of_network = certify(case.network)
        pool = of_network.bottleneck
        rate, rho = case.workload.rate, pool.rho
        binding = list(pool.binding)
        most = rate * pool.max_load
        limits = [(limit.name, limit.load) for limit in pool.limits]
        said = certificate_as_dict(of_network)
    return {
        "certificate": said,
        "load": {"rho": rho, "rate": rate, "max_rate": most, "binding": binding},
        "calibration": _reach(case),
        "limits": [{"limit": name, "load": value} for name, value in limits],
        "region": _region(case),
        "server": {
            "token_budget": server.token_budget,
            "max_batch_size": server.max_batch_size,
            "policy": server.policy.name,
            "replicas": case.replicas,
        },
    }


def _reach(case: Case) -> dict[str, Any] | None:
    """Return between which loads the case lies, where its batch times are not exact."""
    if case.network is None:
        reach = reach_of_server(case.workload, case.server)
    else:
        from penstock.checking.doubt_network import reach_of_network

        reach = reach_of_network(case.network)
    if reach is None:
        return None
    return {"load": list(reach.load), "undecided": reach.undecided, "said": reach.words}


def _region(case: Case) -> dict[str, Any]:
    server, replicas = as_serving(case.workload, case.server), case.replicas
    demand = load(_share(case), server)
    work = least_on_average(demand.work, case.workload, server)
    prompt = work.lengths.mean_prompt
    decode = max(server.tokens_per_request(prompt, work.lengths.mean_output) - prompt, 0.0)
    arriving = demand.arrival_rate * work.share * replicas
    vertices = region(server, prompt=work.lengths).vertices * replicas
    return {"vertices": vertices.tolist(), "point": [arriving * prompt, arriving * decode]}


def estimate(case: Case) -> dict[str, Any]:
    """Return mean latencies by a short run; of replicas, as if each got its own share."""
    found = estimate_latency(_share(case), case.server)
    means = {metric: of["mean"] for metric, of in found.estimates.items()}
    return {
        "means": {metric: mean.value for metric, mean in means.items()},
        "ranges": {
            metric: [mean.low, mean.high]
            for metric, mean in means.items()
            if None not in (mean.low, mean.high)
        },
        "warnings": list(found.notices),
    }


def bounds(case: Case) -> dict[str, Any]:
    """Return latencies that no policy undercuts."""
    workload = case.workload
    if case.network is not None:
        workload = workload.with_rate(workload.rate * _HARDLY)
    return {metric: dict(of) for metric, of in lower_bounds(workload, case.server).items()}


def _share(case: Case) -> Workload:
    """Return what arrives at one of the replicas if a router draws it at random."""
    workload = case.workload
    return workload if case.replicas == 1 else workload.with_rate(workload.rate / case.replicas)
