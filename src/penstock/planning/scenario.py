"""A scenario with a ``plan``: what arrives, what may serve it, and what it has to do."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from penstock import checks
from penstock.document import Section, Whole, parsed, read_document
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.scenario_day import DaySection, peak_of, read_day
from penstock.planning.scenario_job import JobSection, read_job
from penstock.planning.space import Discarded, Space, search_space
from penstock.scenario.scenario import Scenario, build, describes_network
from penstock.scenario.server import HardwareSection
from penstock.system.batch_time_file import BatchTimeFile
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
Limits = Annotated[list[Whole | None], BeforeValidator(_listed)]


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
    """What may vary, the rest as ``server`` has it; one value stands for a list of it.

    Hardware is named, or a model on GPUs as in ``server``: ``{model: Llama-3.1-70B, gpu: [h100-sxm,
    h200-sxm], tensor_parallel: [2, 4]}`` are four. There a limit of null is what the engine takes.
    """

    hardware: Annotated[list[str | dict[str, Any]], BeforeValidator(_listed)] | None = None
    token_budget: Limits | None = None
    max_batch_size: Limits | None = None
    policy: Names | None = None
    router: Annotated[list[str | dict[str, Any]], BeforeValidator(_listed)] | None = None
    disaggregation: Annotated[list[str | None], BeforeValidator(_listed)] | None = None
    replicas: Annotated[list[Whole], BeforeValidator(_replicas)] | None = None
    kv_tokens: Any = None
    mix: bool = False
    at_hand: dict[str, Any] | None = None


class PlanSection(Section):
    """What is asked for, and where to look; ``rank``: whether hardware is put side by side, by
    default where the search has several models on GPUs.
    """

    targets: Annotated[list[str], BeforeValidator(_as_list)] | None = None
    objective: Literal["cost", "goodput"] = "cost"
    goodput: float = 0.99
    confidence: float = 0.95
    most_requests: Whole | None = None
    search: SearchSection = SearchSection()
    rank: bool | None = None
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
    day: DaySection | None = None
    job: JobSection | None = None
    rank: bool = False


def read_plan(path: Path) -> PlanScenario:
    """Read a scenario that has a ``plan``; see `build_plan`."""
    return build_plan(read_document(path), path)


def build_plan(
    document: Any, path: Path, *, requests: int | None = None, seed: int | None = None, **given: Any
) -> PlanScenario:
    """Return what a parsed document describes; what is ``given`` besides (``targets``,
    ``objective``, ``goodput``, ``confidence``) goes before what its plan says.
    """
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
    told = {key: value for key, value in given.items() if value not in (None, [])}
    wanted = sections.plan.model_copy(update=told)
    kinds, refused, first = _hardware(wanted.search.hardware or (), path.parent)
    scenario = build(_with_base(document, wanted.search, first), path.parent, path.name)
    if scenario.until is not None:
        raise InputError(
            "simulate.until is given, but a plan counts requests of each replica; give "
            "simulate.requests"
        )
    if seed is not None:
        scenario = dataclasses.replace(scenario, workload=scenario.workload.with_seed(seed))
    # where to look, and what a deployment has to do there
    _refuse_idle_keys(wanted)
    space = _space(sections, scenario, kinds)
    space = dataclasses.replace(space, refused=(*refused, *space.refused))
    aim = None
    if wanted.targets:
        simulate = sections.simulate if isinstance(sections.simulate, Mapping) else {}
        aim = Aim.of(
            wanted.targets,
            objective=wanted.objective,
            goodput=wanted.goodput,
            confidence=wanted.confidence,
            requests=simulate.get("requests") if requests is None else requests,
            most_requests=wanted.most_requests,
        )
    if aim is None and wanted.job is None:
        raise InputError(
            f"{path.name} names no target, so any stable fleet would do; give --target "
            "'ttft_p99<2s', or plan.targets"
        )
    shaped = sum(isinstance(kind, BatchTimeFile) for kind in kinds)
    rank = shaped > 1 if wanted.rank is None else wanted.rank
    plan = PlanScenario(scenario, space, aim, scenario.workload, rank=rank)
    return _with_day_and_job(plan, wanted)


def _with_day_and_job(scenario: PlanScenario, wanted: PlanSection) -> PlanScenario:
    """Read what the plan says of a day and a job: mistakes are refused before any search."""
    read, folder = scenario.scenario.workload, scenario.scenario.folder
    if wanted.day is not None:
        day = read_day(wanted.day, read, folder)
        scenario = dataclasses.replace(scenario, day=day, workload=peak_of(day, read))
    if wanted.job is not None:
        job, budgets = wanted.job, wanted.search.token_budget
        if budgets and None not in budgets and isinstance(job, Mapping):
            job = {"token_budgets": budgets, **job}
        scenario = dataclasses.replace(
            scenario, job=read_job(job, read, scenario.aim, scenario.workload)
        )
    return scenario


def _refuse_idle_keys(wanted: PlanSection) -> None:
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
    if wanted.objective == "cost" and "goodput" in wanted.model_fields_set:
        raise InputError(
            f"the goodput is {wanted.goodput:g}, but the objective is cost, by which only targets "
            "count; give `objective: goodput`, or leave it out"
        )


def _hardware(
    listed: Sequence[str | dict[str, Any]], folder: Path
) -> tuple[list[str | BatchTimeFile], list[Discarded], Any]:
    """Return the hardware to search, models on GPUs that cannot be, and how the first is given."""
    kinds: list[str | BatchTimeFile] = []
    refused: list[Discarded] = []
    first: Any = None
    for item in listed:
        if isinstance(item, str):
            kinds.append(item)
            first = first or item
            continue
        keys = list(item)
        for values in itertools.product(*(_as_list(item[key]) for key in keys)):
            one = dict(zip(keys, values, strict=True))
            section = parsed(one, HardwareSection, "plan.search.hardware", "`model` and `gpu`")
            try:
                kinds.append(section.build(folder))
            except InputError as error:
                name = f"{section.model} on {section.tensor_parallel} x {section.gpu}"
                refused.append(Discarded(name, (1, 1), 1, "impossible", str(error)))
            else:
                first = first or one
    if refused and not kinds:
        reasons = dict.fromkeys(one.why for one in refused)
        raise InputError(f"no hardware of the search can serve: {'; or: '.join(reasons)}")
    return kinds, refused, first


def _space(sections: _Planned, scenario: Scenario, kinds: Sequence[str | BatchTimeFile]) -> Space:
    """Return what may be deployed; without hardware to search, that of the server."""
    wanted, search = sections.plan, sections.plan.search
    axes = ("hardware", "token_budget", "max_batch_size", "policy", "router", "disaggregation")
    varied: dict[str, Any] = {
        name: getattr(search, name) for name in axes if getattr(search, name) is not None
    }
    if kinds:
        varied["hardware"] = kinds
    elif scenario.measured is not None and scenario.measured.name:
        varied["hardware"] = [scenario.measured]
    server = sections.server if isinstance(sections.server, Mapping) else {}
    given = {str(key).replace("-", "_") for key in server}
    if any(isinstance(kind, BatchTimeFile) for kind in kinds):  # as its engine takes them
        for limit in ("token_budget", "max_batch_size"):
            if not given & set(ENGINE_NAMES[limit]):
                varied.setdefault(limit, [None])
        if "policy" not in given:
            varied.setdefault("policy", [None])
    return search_space(
        scenario.server, **varied, kv_tokens=search.kv_tokens, mix=search.mix,
        at_hand=search.at_hand,
        replicas=DEFAULT_MOST_REPLICAS if search.replicas is None else search.replicas,
        price=wanted.price, accelerators=wanted.accelerators, max_cost=wanted.max_cost,
        transfer_ms=wanted.transfer_ms, transfer_ms_per_token=wanted.transfer_ms_per_token,
        transfer_gb_per_s=wanted.transfer_gb_per_s, kv_bytes_per_token=wanted.kv_bytes_per_token,
    )  # fmt: skip


def _with_base(document: Any, search: SearchSection, hardware: Any) -> Any:
    """Put the first values of the search where the server has none, so that it can be built."""
    scenario = {key: value for key, value in document.items() if key != "plan"}
    server = document.get("server") or {}
    if not isinstance(server, Mapping):
        return scenario  # refused where it is read
    server = dict(server)
    if hardware is not None and "hardware" not in server and "batch_time" not in server:
        server["hardware"] = hardware
    names = {str(key).replace("-", "_") for key in server}
    budgets = search.token_budget
    if budgets and None not in budgets and not names & set(ENGINE_NAMES["token_budget"]):
        server["token_budget"] = budgets[0]
    slots = search.max_batch_size
    if slots and None not in slots and not names & set(ENGINE_NAMES["max_batch_size"]):
        server["max_batch_size"] = slots[0]
    return {**scenario, "server": server}
