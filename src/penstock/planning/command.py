"""The command ``penstock plan``: the cheapest deployment that meets the targets."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    Figures,
    Json,
    Report,
    ScenarioPath,
    Seed,
    Strict,
    check_outputs,
    files_of,
    print_json,
    save_figures,
    say_written,
)
from penstock.words import amount

if TYPE_CHECKING:
    from penstock.planning.day import DayPlan
    from penstock.planning.job import JobPlan
    from penstock.planning.launch import Launch
    from penstock.planning.plan import Plan
    from penstock.planning.scenario import PlanScenario
    from penstock.planning.space import Deployment


def plan(
    scenario: ScenarioPath,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="A limit such as ttft_p99<2s, instead of the scenario's."),
    ] = None,
    objective: Annotated[
        str | None, typer.Option("--objective", help="cost: meet every target; goodput: for a share of the requests.")
    ] = None,
    goodput: Annotated[
        float | None, typer.Option("--goodput", help="Share of requests within all limits; 0.99 is 99%.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", help="Simulated of a replica to begin with, instead of the scenario's."),
    ] = None,
    confidence: Annotated[float | None, typer.Option("--confidence", help="Of the intervals.")] = None,
    seed: Seed = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", metavar="FILE", help="Write a Kubernetes manifest of the answer.")
    ] = None,
    strict: Strict = False,
) -> None:
    """Find the cheapest deployment that meets the targets, and say what binds it and what comes next.

    Beside `workload` and `server` the scenario has a `plan` that says where to look, such as
    `plan: {targets: [ttft_p99<2s], search: {token_budget: [256, 512, 1024], replicas: {max: 32}}}`.
    """
    check_outputs(files_of(scenario), {"--report": report, "--manifest": manifest}, figures)
    from penstock.planning.scenario import read_plan

    asked = read_plan(
        scenario, targets=targets, objective=objective, goodput=goodput, requests=requests, confidence=confidence,
        seed=seed,
    )  # fmt: skip
    progress.announce_compilation()
    found = None if asked.aim is None else _plan(asked)
    day, job = _day(asked, found), _job(asked)
    no_day = _why_no_day(asked, found) if day is None else ""
    launches = [] if found is None or found.best is None else _launches(found.best.deployment)
    if job is not None and job.best is not None:
        said = "this is the fleet for the offline work"
        if job.online_rate is not None:
            said = f"this fleet serves both: {amount(job.online_rate)} online requests/s, and the offline work"
            said += "; start it instead of the first" if launches else ""
        launches += _launches(job.best.deployment, said)
    if manifest is not None:
        _write_manifest(manifest, launches, as_json)
    if figures is not None or report is not None:
        _draw(asked, found, day, job, launches, figures, report, as_json)
    if as_json:
        known = {"plan": found, "day": day, "job": job}
        answers: dict[str, Any] = {name: answer.as_dict() for name, answer in known.items() if answer is not None}
        answers |= {"day": None, "notices": [no_day]} if no_day else {}
        print_json(answers | {"launch": [each.as_dict() for each in launches]})
    else:
        _print(asked, found, day or no_day, job, launches)
    if strict and ((found is not None and found.best is None) or (job is not None and job.best is None)):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


def _plan(asked: "PlanScenario") -> "Plan":
    from penstock.planning.plan import plan as search

    with progress.bar("Planning") as show:
        return search(asked.workload, asked.space, aim=asked.aim, progress=show)


def _day(asked: "PlanScenario", found: "Plan | None") -> "DayPlan | None":
    """Plan the day of the deployment that the plan found, if one is asked for."""
    if asked.day is None or found is None or found.best is None:
        return None
    from penstock.planning.sections import day_of

    family = found.best.deployment.family
    counts = next(each.counts for each in asked.space.families if each.name == family)
    with progress.bar("Planning the day") as show:
        return day_of(
            asked.day, asked.scenario.workload, found.best.deployment, found.aim, counts=counts,
            folder=asked.scenario.folder, progress=lambda what, share: show(share, what),
        )  # fmt: skip


def _why_no_day(asked: "PlanScenario", found: "Plan | None") -> str:
    """Say why the day that was asked for is not planned; nothing where none was."""
    if asked.day is None:
        return ""
    if found is None:
        return "no day is planned: it takes targets; give plan.targets, or --target"
    rate = amount(asked.workload.rate)
    return (
        f"no day is planned: no deployment is known to meet the targets at its highest rate, {rate} requests/s; "
        "allow more replicas or other hardware (plan.search), or ask for less"
    )


def _job(asked: "PlanScenario") -> "JobPlan | None":
    """Plan the finite job, if one is asked for, with the families of the search."""
    if asked.job is None:
        return None
    from penstock.planning.sections import job_of

    families = [family for family in asked.space.families if not family.smallest.prefill_replicas]
    with progress.bar("Planning the job") as show:
        return job_of(
            asked.job, asked.scenario.workload, families or asked.space.families, asked.aim, online=asked.workload,
            progress=lambda what, share: show(share, what),
        )  # fmt: skip


def _launches(deployment: "Deployment", *notes: str) -> "list[Launch]":
    """Return how to start it, with more notes; nothing where no engine can run it."""
    from penstock.planning.launch import launch

    try:
        found = launch(deployment)
    except InputError:
        return []
    return [dataclasses.replace(found, notes=(*notes, *found.notes))]


def _write_manifest(path: Path, launches: "list[Launch]", as_json: bool) -> None:
    if not launches:
        raise InputError(f"--manifest {path}: there is no deployment that an engine can run; leave it out")
    path.write_text(launches[0].manifest, encoding="utf-8")
    say_written("Manifest", [path], as_json)


def _draw(
    asked: "PlanScenario", found: "Plan | None", day: "DayPlan | None", job: "JobPlan | None",
    launches: "list[Launch]", figures: Path | None, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write figures and page."""
    from penstock.planning import figures as plotting_plan
    from penstock.planning import report as report_plan
    from penstock.planning.limits import stable_rates

    rates = None
    shown = None if found is None else found.best or next(iter(found.evaluated), None)
    if shown is not None:
        with progress.bar("Finding the stable rates") as show:
            rates = stable_rates(asked.workload, asked.space, shown.deployment, progress=show)
    if figures is not None:
        save_figures(plotting_plan.figures(found, rates, day), figures, as_json)
    if report is not None:
        report_plan.report_plan(report, asked.scenario.name, found, rates=rates, day=day, job=job, launches=launches)
        say_written("Report", [report], as_json)


def _print(
    asked: "PlanScenario", found: "Plan | None", day: "DayPlan | str", job: "JobPlan | None",
    launches: "list[Launch]",
) -> None:  # fmt: skip
    """Print all answers; ``day`` may be why there is none."""
    from penstock.planning import terminal as terminal_plan
    from penstock.planning import terminal_day as terminal_plan_day

    parts: list[Callable[[], None]] = []
    if found is not None:
        parts.append(lambda: terminal_plan.print_plan(asked, found))
    if isinstance(day, str):
        parts += [functools.partial(terminal_plan_day.print_no_day, day)] if day else []
    else:
        parts.append(functools.partial(terminal_plan_day.print_day, day))
    if job is not None:
        parts.append(lambda: terminal_plan_day.print_job(job))
    parts += [functools.partial(terminal_plan_day.print_launch, each) for each in launches]
    for place, show in enumerate(parts):
        if place:
            print()
        show()
