"""What theory and a short run say of a state of the page, in milliseconds."""

from collections.abc import Sequence
from typing import Any

from penstock.checking.enough_requests import estimate_latency
from penstock.checking.head import first_lines
from penstock.serving.controls import Case
from penstock.show.answers import plain
from penstock.show.page import Line, tone
from penstock.system.prefix_cache import as_serving
from penstock.theory.certify import certify
from penstock.theory.kv_blocks import least_on_average
from penstock.theory.latency_bounds import lower_bounds
from penstock.theory.load import load
from penstock.theory.region import region
from penstock.words import duration
from penstock.workload.workload import Workload

_HARDLY = 1e-9
"""Of the rate: bounds of latency at it hold for any number of replicas."""


def theory(case: Case) -> dict[str, Any]:
    """Return the first lines of the answer, certificate, load, and the region with what arrives."""
    # Of a network, region and load are those of all replicas together.
    server, workload, of = case.server, case.workload, case.scenario
    certificate = certify(of.network) if of.is_network else certify(workload, server)
    most = workload.rate * certificate.max_load
    return {
        **as_data(first_lines(of.name, of.system, certificate, of.hardware)),
        "certificate": plain(certificate),
        "load": {"rho": certificate.rho, "rate": workload.rate, "max_rate": most},
        "region": _region(case),
        "limits": {name: getattr(server, name) for name in ("token_budget", "max_batch_size")},
    }


def as_data(lines: Sequence[Line], *verdict: str) -> dict[str, Any]:
    """Return lines of an answer as plain data, and the words that judge with how they look."""
    words = dict.fromkeys([*verdict, *(line.label for line in lines if line.judges)])
    return {
        "lines": [[line.label, line.text, tone(line.label) * line.judges] for line in lines],
        "words": [[word, tone(word)] for word in words],
    }


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
    """Return latencies that no policy undercuts, and the targets that ask for less, in words."""
    workload = case.workload
    alone = lower_bounds(workload.with_rate(workload.rate * _HARDLY), case.server)
    of = alone if case.network is not None else lower_bounds(workload, case.server)
    least = [
        (target, alone.get(target.metric, {}).get(target.statistic, 0.0)) for target in case.targets
    ]
    said = [
        f"target {target} asks for less than a request alone takes, {duration(floor)} whatever the "
        "scheduler; give a higher limit, or faster hardware"
        for target, floor in least
        if floor > target.limit_s
    ]
    return {"bounds": {metric: dict(by) for metric, by in of.items()}, "unreachable": said}


def _share(case: Case) -> Workload:
    """Return what arrives at one of the replicas if a router draws it at random."""
    workload = case.workload
    return workload if case.replicas == 1 else workload.with_rate(workload.rate / case.replicas)
