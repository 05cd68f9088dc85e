"""A scenario with a ``plan``: what arrives, what may serve it, and what it has to do."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.document import Section, Whole, parsed, read_document, with_keys_of
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.day import DayPlan, plan_day
from penstock.planning.day_run import resampled
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import Job
from penstock.planning.rates import HOUR_S, RateProfile, profile
from penstock.planning.search import Report
from penstock.planning.space import Discarded, Space, search_space
from penstock.scenario.scenario import Scenario, build, describes_network
from penstock.scenario.server import HardwareSection
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.engine_flags import ENGINE_NAMES
from penstock.words import amount
from penstock.workload.arrivals import Replay
from penstock.workload.workload import Workload, read_trace


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


_Several = BeforeValidator(_listed)
Limits = Annotated[list[Whole | None], _Several]
Settings = Annotated[list[str | dict[str, Any]], _Several]


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
    reason = "it is a number of replicas"
    most = checks.whole("search.replicas.max", ends.max, 1, 65_536, "", reason)
    least = checks.whole("search.replicas.min", ends.min, 1, most, "", "it is at most `max`")
    return list(range(least, most + 1))


class SearchSection(Section):
    """What may vary, the rest as ``server`` has it; one value stands for a list of it.

    Hardware is named, or a model on GPUs as in ``server``: ``{model: Llama-3.1-70B, gpu: [h100-sxm,
    h200-sxm], tensor_parallel: [2, 4]}`` are four. There a limit of null is what the engine takes.
    """

    hardware: Settings | None = None
    token_budget: Limits | None = None
    max_batch_size: Limits | None = None
    policy: Annotated[list[str], _Several] | None = None
    router: Settings | None = None
    disaggregation: Annotated[list[str | None], _Several] | None = None
    replicas: Annotated[list[Whole], BeforeValidator(_replicas)] | None = None
    kv_tokens: Any = None
    mix: bool = False
    at_hand: dict[str, Any] | None = None


_OF_CODE = ("profile", "workload", "deployment", "targets", "replicas", "progress", "asked")


@with_keys_of(plan_day, without=_OF_CODE)
class DaySection(Section):
    """Rates of the day, and how its fleet may change.

    ``rates``: a list, a CSV file, or ``trace``, the workload's own; ``trace`` instead: the file of
    another; ``peak_rate`` stretches the rates.
    """

    rates: Any = None
    trace: str | None = None
    interval_minutes: float | None = None
    peak_rate: float | None = None


class JobSection(Section):
    """A job: how many requests, in how many hours, alone or beside the traffic (``online``)."""

    requests: Whole
    deadline_h: float
    token_budgets: list[Whole] = Field(default_factory=list)
    online: bool = False
    most_replicas: Whole | None = None
    runs: Whole = 5


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


_OF_AIM = {"targets", "objective", "goodput", "confidence", "most_requests"}
_ASKED = {*_OF_AIM, "search", "rank", "day", "job"}
"""Keys of a plan that do not say what a fleet costs."""


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
    job: Job | None = None
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
            "{targets: [ttft_p99<2s], search: {replicas: {max: 32}}}"
        )
    sections = parsed(document, _Planned, path.name, "`workload`, `server` and `plan`")
    instead = {key: value for key, value in given.items() if value not in (None, [])}
    wanted = sections.plan.model_copy(update=instead)
    kinds, refused, first = _hardware(wanted.search.hardware or (), path.parent)
    scenario = build(_with_base(document, wanted.search, first), path.parent, path.name)
    if scenario.until is not None:
        raise InputError(
            "simulate.until is given, but a plan counts requests of each replica; give "
            "simulate.requests"
        )
    if seed is not None:
        system = (scenario.workload.with_seed(seed), scenario.server)
        scenario = dataclasses.replace(scenario, system=system)
    # where to look, and what a deployment has to do there
    _refuse_idle_keys(wanted)
    space = _space(wanted, sections.server, scenario, kinds)
    space = dataclasses.replace(space, refused=(*refused, *space.refused))
    aim = None
    if wanted.targets:
        simulate = sections.simulate if isinstance(sections.simulate, Mapping) else {}
        asked = wanted.model_dump(include=_OF_AIM) | {"requests": simulate.get("requests")}
        if requests is not None:
            asked |= {"requests": requests, "most_requests": None}
        aim = Aim.of(**asked)
    if aim is None and wanted.job is None:
        raise InputError(
            "the plan names no target, so any stable fleet would do; give --target "
            "'ttft_p99<2s', or plan.targets"
        )
    # mistakes in a day and a job are refused before any search
    read = workload = scenario.workload
    day = job = None
    if wanted.day is not None:
        day = read_day(wanted.day, read, scenario.folder)
        workload = _peak_of(day.rates, read)
    if wanted.job is not None:
        budgets = sorted({of.smallest.server.token_budget for of in space.families})
        several = len(budgets) > 1 or None not in (wanted.search.token_budget or [None])
        job = read_job(wanted.job, read, aim, workload, budgets if several else [])
    shaped = sum(isinstance(kind, BatchTimeFile) for kind in kinds)
    rank = shaped > 1 if wanted.rank is None else wanted.rank
    return PlanScenario(scenario, space, aim, workload, day, job, rank)


def read_day(day: Any, workload: Workload, folder: Path) -> DaySection:
    """Return the day that a scenario describes, its rates read."""
    document = day if isinstance(day, Mapping) else {"rates": day}
    section = parsed(document, DaySection, "plan.day", "`rates`")
    rates, minutes = section.rates, section.interval_minutes
    if (rates is None) == (section.trace is None):
        raise InputError("plan.day: give one of rates and trace, for example rates: [2, 1, 1, 4]")
    if section.trace is not None:
        rates = "trace"
        workload = read_trace(folder / checks.path("plan.day.trace", section.trace))
    interval_s = None if minutes is None else 60 * minutes
    of_day = profile(rates, workload, folder, interval_s=interval_s)
    if section.peak_rate is not None:
        of_day = of_day.with_peak(section.peak_rate)
    return section.model_copy(update={"rates": of_day})


def day_of(
    day: DaySection, workload: Workload, static: Deployment, aim: Aim, counts: Sequence[int],
    progress: Report | None = None,
) -> DayPlan:  # fmt: skip
    """Plan a day with numbers of replicas that a search allows, beside the fleet that it found for
    the highest rate.
    """
    plan: DayPlan = day.build(day.rates, workload, static, aim, replicas=counts, progress=progress)
    return dataclasses.replace(plan, deployment=static)


def _peak_of(rates: RateProfile, workload: Workload) -> Workload:
    """Return the workload at the highest rate of a day."""
    peak = resampled(workload, rates.peak)
    at = rates.clock(int(rates.rates.argmax()))
    notices = [
        f"the plan is for the highest rate of the day, {amount(rates.peak)} requests/s from {at}"
    ]
    if isinstance(workload.arrivals, Replay):
        notices.append("recorded requests are drawn at random, as Poisson arrivals of that rate")
    return dataclasses.replace(peak, notices=(*peak.notices, *notices))


def read_job(
    job: Any, workload: Workload, aim: Aim | None, online: Workload, budgets: Sequence[int] = ()
) -> Job:
    """Return a scenario's job, with token budgets that the search fixes where it names none."""
    section = parsed(job, JobSection, "plan.job", "`requests` and `deadline_h`")
    if section.online and aim is None:
        raise InputError(
            "plan.job has online traffic but the plan has no targets for it; give plan.targets"
        )
    targets = aim.targets if section.online and aim else ()
    return Job(
        workload, section.requests, section.deadline_h * HOUR_S, online if section.online else None,
        targets, section.runs, token_budgets=section.token_budgets or budgets,
        most_replicas=section.most_replicas,
    )  # fmt: skip


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
            machine = dict(zip(keys, values, strict=True))
            section = parsed(machine, HardwareSection, "plan.search.hardware", "`model` and `gpu`")
            try:
                kinds.append(section.build(folder))
            except InputError as error:
                name = f"{section.model} on {section.tensor_parallel} x {section.gpu}"
                refused.append(Discarded(name, (1, 1), 1, "impossible", str(error)))
            else:
                first = first or machine
    if refused and not kinds:
        reasons = dict.fromkeys(part.why for part in refused)
        raise InputError(f"no hardware of the search can serve: {'; or: '.join(reasons)}")
    return kinds, refused, first


def _space(
    wanted: PlanSection, server: Any, scenario: Scenario, kinds: Sequence[str | BatchTimeFile]
) -> Space:
    """Return what may be deployed; without hardware to search, that of the server."""
    varied = wanted.search.model_dump(exclude_none=True)
    if kinds:
        varied["hardware"] = kinds
    elif scenario.measured is not None and scenario.measured.name:
        varied["hardware"] = [scenario.measured]
    given = _names_of(server)
    if any(isinstance(kind, BatchTimeFile) for kind in kinds):  # as its engine takes them
        for limit in ("token_budget", "max_batch_size"):
            if not given & set(ENGINE_NAMES[limit]):
                varied.setdefault(limit, [None])
        if "policy" not in given:
            varied.setdefault("policy", [None])
    costs = wanted.model_dump(exclude=_ASKED, exclude_none=True)
    return search_space(scenario.server, **varied, **costs)


def _names_of(server: Any) -> set[str]:
    """Return the keys of the server, with underscores."""
    return {str(key).replace("-", "_") for key in server} if isinstance(server, Mapping) else set()


def _with_base(document: Any, search: SearchSection, hardware: Any) -> Any:
    """Put the first values of the search where the server has none, so that it can be built."""
    scenario = {key: value for key, value in document.items() if key != "plan"}
    server = document.get("server") or {}
    if not isinstance(server, Mapping):
        return scenario  # refused where it is read
    names, server = _names_of(server), dict(server)
    if hardware is not None and not names & {"hardware", "batch_time"}:
        server["hardware"] = hardware
    for limit in ("token_budget", "max_batch_size"):
        values = getattr(search, limit)
        if values and None not in values and not names & set(ENGINE_NAMES[limit]):
            server[limit] = values[0]
    return {**scenario, "server": server}
