"""A scenario with a ``plan``: what arrives, what may serve it, and what it has to do."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from penstock import checks
from penstock.document import Section, Whole, parsed, read_document
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.scenario_day import Day, peak_of, read_day
from penstock.planning.scenario_job import JobSection, read_job
from penstock.planning.space import Space, search_space
from penstock.scenario.scenario import Scenario, build, describes_network
from penstock.system.engine_flags import ENGINE_NAMES
from penstock.workload.workload import Workload

DEFAULT_MOST_REPLICAS = 32


def _as_list(value: Any) -> Any:
    """Let one value stand for a list of it."""
    return value if isinstance(value, list) else [value]


def _listed(value: Any) -> Any:
    """Return what may be tried: one value, or a list of some."""
    if value == []:
        raise InputError(
            "the list is empty, so there is nothing to try; name a value, or leave it out"
        )
    return _as_list(value)


Names = Annotated[list[str], BeforeValidator(_listed)]
Numbers = Annotated[list[Whole], BeforeValidator(_listed)]


class _Replicas(Section):
    min: Whole = 1
    max: Whole


def _replicas(value: Any) -> Any:
    """Return the numbers that ``{min, max}``, a list, or one number, the most, allow."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"max": value}
    if not isinstance(value, Mapping):
        return value
    ends = _Replicas.model_validate(value)
    most = checks.whole(
        "search.replicas.max", ends.max, 1, 65_536, "", "it is a number of replicas"
    )
    least = checks.whole("search.replicas.min", ends.min, 1, most, "", "it is at most `max`")
    return list(range(least, most + 1))


class SearchSection(Section):
    """What may vary, the rest as ``server`` has it; one value stands for a list of it."""

    hardware: Names | None = None
    token_budget: Numbers | None = None
    max_batch_size: Annotated[list[Whole | None], BeforeValidator(_listed)] | None = None
    policy: Names | None = None
    router: Annotated[list[str | dict[str, Any]], BeforeValidator(_listed)] | None = None
    disaggregation: Annotated[list[str | None], BeforeValidator(_listed)] | None = None
    replicas: Annotated[list[Whole], BeforeValidator(_replicas)] | None = None
    kv_tokens: Any = None
    mix: bool = False
    at_hand: dict[str, Any] | None = None


class PlanSection(Section):
    """What is asked for, and where to look."""

    targets: Annotated[list[str], BeforeValidator(_as_list)] | None = None
    objective: Literal["cost", "goodput"] = "cost"
    goodput: float = 0.99
    confidence: float = 0.95
    most_requests: Whole | None = None
    search: SearchSection = SearchSection()
    price: Any = None
    max_cost: float | None = None
    accelerators: Whole = 1
    transfer_ms: float = 0.0
    transfer_ms_per_token: float = 0.0
    transfer_gb_per_s: float | None = None
    kv_bytes_per_token: float | None = None
    day: Any = None
    job: Any = None


class _Planned(Section):
    workload: Any
    server: Any = None
    simulate: Any = None
    plan: PlanSection
    sweep: Any = None


@dataclasses.dataclass(frozen=True)
class PlanScenario:
    """What a scenario with a ``plan`` describes, ready to use."""

    scenario: Scenario  # what arrives, and one server for what does not vary
    space: Space  # what may be deployed
    aim: Aim | None  # what it has to do; None without targets
    # What the fleet is planned for: the scenario's, or with a day its highest rate.
    workload: Workload
    day: Day | None = None
    job: JobSection | None = None


def read_plan(
    path: str | Path,
    *,
    targets: list[str] | None = None,
    objective: str | None = None,
    goodput: float | None = None,
    requests: int | None = None,
    confidence: float | None = None,
    seed: int | None = None,
) -> PlanScenario:
    """Read a scenario that has a ``plan``; what is given besides goes before what the file says."""
    path = checks.path("the name of a scenario", path)
    document = read_document(path)
    if describes_network(document):
        raise InputError(
            f"{path} describes a network, whose pools are given; a plan needs `workload` and "
            "`server`"
        )
    if isinstance(document, Mapping) and document.get("plan") is None:
        raise InputError(
            f"{path} has no `plan`, so there is nothing to search; add one such as plan: "
            "{targets: [ttft_p99<2s], "
            "search: {replicas: {max: 32}}}"
        )
    sections = parsed(document, _Planned, path.name, "`workload`, `server` and `plan`")
    wanted = sections.plan
    scenario = build(_with_base(document, wanted.search), path.parent, path.name)
    if scenario.until is not None:
        raise InputError(
            "simulate.until is given, but a plan counts requests of each replica; give "
            "simulate.requests"
        )
    if seed is not None:
        scenario = dataclasses.replace(scenario, workload=scenario.workload.with_seed(seed))
    # where to look, and what a deployment has to do there
    _refuse_idle_keys(wanted, wanted.objective if objective is None else objective, goodput)
    space = _space(sections, scenario)
    aim = None
    if targets or wanted.targets:
        simulate = sections.simulate if isinstance(sections.simulate, Mapping) else {}
        aim = Aim.of(
            targets or wanted.targets or (),
            objective=wanted.objective if objective is None else objective,
            goodput=wanted.goodput if goodput is None else goodput,
            confidence=wanted.confidence if confidence is None else confidence,
            requests=simulate.get("requests") if requests is None else requests,
            most_requests=wanted.most_requests,
        )
    if aim is None and wanted.job is None:
        raise InputError(
            f"{path.name} names no target, so any stable fleet would do; give --target "
            "'ttft_p99<2s', or plan.targets"
        )
    return _with_day_and_job(PlanScenario(scenario, space, aim, scenario.workload), wanted)


def _with_day_and_job(scenario: PlanScenario, wanted: PlanSection) -> PlanScenario:
    """Read what the plan says of a day and a job: mistakes are refused before any search."""
    read, folder = scenario.scenario.workload, scenario.scenario.folder
    if wanted.day is not None:
        day = read_day(wanted.day, read, folder)
        scenario = dataclasses.replace(scenario, day=day, workload=peak_of(day, read))
    if wanted.job is not None:
        job = wanted.job
        if wanted.search.token_budget and isinstance(job, Mapping):
            job = {"token_budgets": wanted.search.token_budget, **job}
        scenario = dataclasses.replace(
            scenario, job=read_job(job, read, scenario.aim, scenario.workload)
        )
    return scenario


def _refuse_idle_keys(wanted: PlanSection, objective: str, goodput: float | None) -> None:
    """Refuse keys of a plan that would change nothing."""
    apart = wanted.search.disaggregation or []
    transfer = ("transfer_ms", "transfer_ms_per_token", "transfer_gb_per_s")
    sent = [key for key in transfer if getattr(wanted, key)]
    if sent and not any(apart):
        raise InputError(
            f"plan.{sent[0]} is {getattr(wanted, sent[0]):g}, but no replicas for prompts alone "
            "are searched, so nothing is sent; give search.disaggregation, such as "
            '[null, "1:1"], or leave it out'
        )
    if objective == "cost" and (goodput is not None or "goodput" in wanted.model_fields_set):
        share = wanted.goodput if goodput is None else goodput
        raise InputError(
            f"the goodput is {share:g}, but the objective is cost, by which only targets "
            "count; give `objective: goodput`, or leave it out"
        )


def _space(sections: _Planned, scenario: Scenario) -> Space:
    """Return what may be deployed; without hardware to search, that of the server."""
    wanted, search = sections.plan, sections.plan.search
    axes = ("hardware", "token_budget", "max_batch_size", "policy", "router", "disaggregation")
    varied: dict[str, Any] = {
        name: getattr(search, name) for name in axes if getattr(search, name) is not None
    }
    if scenario.measured is not None and scenario.measured.name:
        varied.setdefault("hardware", [scenario.measured])
    return search_space(
        scenario.server, **varied, kv_tokens=search.kv_tokens, mix=search.mix,
        at_hand=search.at_hand,
        replicas=DEFAULT_MOST_REPLICAS if search.replicas is None else search.replicas,
        price=wanted.price, accelerators=wanted.accelerators, max_cost=wanted.max_cost,
        transfer_ms=wanted.transfer_ms, transfer_ms_per_token=wanted.transfer_ms_per_token,
        transfer_gb_per_s=wanted.transfer_gb_per_s, kv_bytes_per_token=wanted.kv_bytes_per_token,
    )  # fmt: skip


def _with_base(document: Any, search: SearchSection) -> Any:
    """Put the first values of the search where the server has none, so that it can be built."""
    scenario = {key: value for key, value in document.items() if key != "plan"}
    server = document.get("server") or {}
    if not isinstance(server, Mapping):
        return scenario  # refused where it is read
    server = dict(server)
    if search.hardware and "hardware" not in server and "batch_time" not in server:
        server["hardware"] = search.hardware[0]
    names = {str(key).replace("-", "_") for key in server}
    if search.token_budget and not names & set(ENGINE_NAMES["token_budget"]):
        server["token_budget"] = search.token_budget[0]
    slots = search.max_batch_size
    if slots and None not in slots and not names & set(ENGINE_NAMES["max_batch_size"]):
        server["max_batch_size"] = slots[0]
    return {**scenario, "server": server}
