"""The command ``penstock plan``: the cheapest deployment that meets the targets."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.document import read_document
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.files import write_whole
from penstock.show.options import Form, Seed, answers, files_of
from penstock.words import amount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.planning.day import DayPlan
    from penstock.planning.deployment import Deployment
    from penstock.planning.job import JobPlan
    from penstock.planning.launch import Launch
    from penstock.planning.plan import Plan
    from penstock.planning.scenario import PlanScenario

_MOST_FIRST = 6
"""Kinds of hardware in the first ranking."""

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="A limit such as ttft_p99<2s, instead of the scenario's.",
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective", help="cost: meet every target; goodput: for a share of the requests."
    ),
]
Goodput = Annotated[
    float | None,
    typer.Option("--goodput", help="Share of requests within all limits; 0.99 is 99%."),
]
Requests = Annotated[
    int | None,
    typer.Option(
        "--requests", help="Simulated of a replica to begin with, instead of the scenario's."
    ),
]
ScenarioOrNone = Annotated[
    Path | None,
    typer.Argument(metavar="[SCENARIO]", help="A YAML file: workload, server, plan."),
]
Model = Annotated[
    str | None, typer.Option("--model", help="A known name, or a config.json: no file is needed.")
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", help="Of --model, such as h100-sxm,l40s; default: all with a price."),
]
Tp = Annotated[str | None, typer.Option("--tp", help="GPUs of a replica; default: 1,2,4,8.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Requests per second.")]
Prompt = Annotated[int | None, typer.Option("--prompt", help="Tokens of a prompt.")]
Output = Annotated[int | None, typer.Option("--output", help="Tokens of an output.")]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Requests, in place of lengths.")
]
Engines = Annotated[
    str | None,
    typer.Option("--engine", help="vllm (default), sglang, or both with a comma."),
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="Of the weights: bf16, fp8, fp4 or int4.")
]
Apart = Annotated[
    bool, typer.Option("--apart", help="Search replicas for prompts and for outputs apart, too.")
]
Prices = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Money for a GPU and an hour, by its name."),
]
Write = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="Write the scenario of --model.")
]
Confidence = Annotated[float | None, typer.Option("--confidence", help="Of the intervals.")]
Manifest = Annotated[
    Path | None,
    typer.Option("--manifest", metavar="FILE", help="Write a Kubernetes manifest of the answer."),
]


@answers("figures", "report", "strict")
def plan(
    scenario: ScenarioOrNone = None,
    model: Model = None,
    gpus: Gpus = None,
    tp: Tp = None,
    rate: Rate = None,
    prompt: Prompt = None,
    output: Output = None,
    trace: Trace = None,
    engine: Engines = None,
    precision: Precision = None,
    apart: Apart = False,
    prices: Prices = None,
    write: Write = None,
    targets: Targets = None,
    objective: Objective = None,
    goodput: Goodput = None,
    requests: Requests = None,
    confidence: Confidence = None,
    seed: Seed = None,
    manifest: Manifest = None,
    *,
    form: Form,
) -> None:
    """Find the cheapest deployment that meets the targets, and say what binds it and what comes
    next.

    With --model no file is needed: models on GPUs are put side by side.

    \b
      penstock plan --model Llama-3.1-70B --gpus h100-sxm,h200-sxm --tp 2,4,8 --rate 60
        --prompt 1500 --output 300 --target 'ttft_p99<2s' --target 'tpot_p99<60ms'

    Beside `workload` and `server` the scenario has a `plan` that says where to look, such as
    `plan: {targets: [ttft_p99<2s], search: {token_budget: [256, 512, 1024], replicas: {max: 32}}}`.
    """  # noqa: D301 - the escape itself keeps the lines of the example apart
    files = [] if scenario is None else files_of(scenario)
    form.check(files, {"--manifest": manifest, "--write": write})
    from penstock.planning.scenario import build_plan
    from penstock.planning.view import plan_page

    traffic = {"rate": rate, "prompt": prompt, "output": output, "trace": trace}
    beside: dict[str, Any] = {"gpus": gpus, "tp": tp, "engine": engine, "precision": precision}
    beside |= {"apart": apart or None, "prices": prices, "write": write} | traffic
    if (scenario is None) == (model is None):
        raise InputError(
            "plan takes a scenario, or --model with --rate, --prompt, --output and --target; give "
            "one of the two"
        )
    if model is None:
        from penstock.planning.without_file import refuse_beside

        refuse_beside(beside, scenario)
        assert scenario is not None
        document, path, said = read_document(scenario), scenario, ""
    else:
        from penstock.planning.without_file import as_text, described

        document, said = described(
            model, gpus, tp, engine or "vllm", precision, traffic, apart, targets, prices
        )
        path = Path(f"{Path(model).name.removesuffix('.json')}.yaml")
        if write is not None:
            write_whole(write, as_text(document, said).encode())
            form.written("Scenario", [write])
    chosen = build_plan(
        document, path, targets=targets, objective=objective, goodput=goodput, requests=requests,
        confidence=confidence,
        seed=seed,
    )  # fmt: skip
    progress.announce_compilation()
    found = _answers(chosen, None if form.as_json else _first_ranking)
    if form.figures is not None:
        from penstock.planning.charts import figures as drawings

        form.draw(drawings(found.plan, found.day))
    page = plan_page(
        chosen.scenario.name, found.plan, day=found.day, no_day=found.no_day,
        job=found.job,
        launches=found.launches,
        prices="" if prices else said,
    )  # fmt: skip
    form.show(page, found.as_dict())
    if manifest is not None:
        _write_manifest(manifest, found.launches, form)
    no_plan = found.plan is not None and found.plan.answer != "met"
    no_job = found.job is not None and found.job.best is None
    form.leave(no_plan or no_job)


@dataclasses.dataclass(frozen=True)
class _Answers:
    """All that a scenario asks for; ``no_day`` says why a day that was asked for is not planned."""

    plan: "Plan | None"
    day: "DayPlan | None"
    no_day: str
    job: "JobPlan | None"
    launches: "list[Launch]"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        parts = {"plan": self.plan, "day": self.day, "job": self.job}
        document: dict[str, Any] = {
            name: part.as_dict() for name, part in parts.items() if part is not None
        }
        if self.no_day:
            document |= {"day": None, "notices": [self.no_day]}
        return document | {"launch": [launch.as_dict() for launch in self.launches]}


def _first_ranking(fleets: "Sequence[Deployment]") -> None:
    """Say on standard error what theory has to say of each hardware, before anything is run."""
    from penstock.planning.targets_at_rate import USUAL_RHO

    progress.log(f"By theory alone, at {USUAL_RHO:.0%} of what any scheduler carries:")
    for fleet in fleets[:_MOST_FIRST]:
        progress.log(f"  {fleet.brief:<32} {fleet.cost:>10,.2f} per hour")
    progress.log("Short runs tell what latency takes.")


def _answers(
    chosen: "PlanScenario", first: "Callable[[Sequence[Deployment]], None] | None"
) -> _Answers:
    """Search, then plan the day and the job that are asked for."""
    from penstock.planning.plan import plan as search

    plan = None
    if chosen.aim is not None:
        with progress.bar("Planning") as show:
            plan = search(
                chosen.workload, chosen.space, aim=chosen.aim, rank=chosen.rank, first=first,
                progress=show,
            )  # fmt: skip
    day = _day(chosen, plan)
    job = _job(chosen)
    best = None if plan is None or plan.best is None else plan.best.deployment
    launches = [] if best is None else _launches(best)
    if job is not None and job.best is not None:
        note = "this is the fleet for the offline work"
        if job.online_rate is not None:
            note = (
                f"this fleet serves both: {amount(job.online_rate)} online requests/s, and the "
                "offline work"
            )
            note += "; start it instead of the first" if launches else ""
        launches += _launches(job.best.deployment, note)
    return _Answers(plan, day, "" if day is not None else _why_no_day(chosen, plan), job, launches)


def _day(chosen: "PlanScenario", plan: "Plan | None") -> "DayPlan | None":
    """Plan the day of the deployment that the plan found, if one is asked for."""
    if chosen.day is None or plan is None or plan.best is None:
        return None
    if plan.best.deployment.other is not None:
        return None
    from penstock.planning.scenario_day import day_of

    best = plan.best.deployment
    counts = next(family.counts for family in chosen.space.families if family.name == best.family)
    with progress.bar("Planning the day") as show:
        return day_of(chosen.day, chosen.scenario.workload, best, plan.aim, counts, show)


def _why_no_day(chosen: "PlanScenario", plan: "Plan | None") -> str:
    """Say why the day that was asked for is not planned; nothing where none was."""
    if chosen.day is None:
        return ""
    if plan is None:
        return "no day is planned: it takes targets; give plan.targets, or --target"
    if plan.best is not None:
        return (
            "no day is planned: the answer has two kinds of replica, and which of them to stop at "
            "night is not searched; leave plan.search.mix out"
        )
    rate = amount(chosen.workload.rate)
    return (
        "no day is planned: no deployment is known to meet the targets at its highest rate, "
        f"{rate} requests/s; "
        "allow more replicas or other hardware (plan.search), or ask for less"
    )


def _job(chosen: "PlanScenario") -> "JobPlan | None":
    """Plan the finite job, if one is asked for, with the families of the search."""
    if chosen.job is None:
        return None
    from penstock.planning.scenario_job import job_of

    families = [
        family
        for family in chosen.space.families
        if not family.smallest.prefill_replicas and family.smallest.other is None
    ]
    with progress.bar("Planning the job") as show:
        return job_of(
            chosen.job, chosen.scenario.workload, families or chosen.space.families, chosen.aim,
            chosen.workload, show,
        )  # fmt: skip


def _launches(deployment: "Deployment", *notes: str) -> "list[Launch]":
    """Return how to start each kind of replica, with more notes; nothing if no engine runs it."""
    from penstock.planning.launch import launches

    try:
        starts = launches(deployment)
    except InputError:
        return []
    return [dataclasses.replace(start, notes=(*notes, *start.notes)) for start in starts]


def _write_manifest(path: Path, launches: "list[Launch]", form: Form) -> None:
    if not launches:
        raise InputError(
            f"--manifest {path}: there is no deployment that an engine can run; leave it out"
        )
    # of a fleet of two kinds both
    manifests = [each.manifest for each in launches[: 2 if launches[0].kind else 1]]
    write_whole(path, "---\n".join(manifests).encode())
    form.written("Manifest", [path])
