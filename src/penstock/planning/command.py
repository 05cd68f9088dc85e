"""The command ``penstock plan``: the cheapest deployment that meets the targets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.document import read_document
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.files import write_whole
from penstock.show.options import Form, Seed, answers, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.planning.deployment import Deployment

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
    from penstock.planning.answers import answered
    from penstock.planning.scenario import build_plan
    from penstock.planning.without_file import as_text, described, refuse_beside

    given = {
        "gpus": gpus, "tp": tp, "engine": engine, "precision": precision, "rate": rate,
        "prompt": prompt, "output": output, "trace": trace,
    }  # fmt: skip
    if (scenario is None) == (model is None):
        raise InputError(
            "plan takes a scenario, or --model with --rate, --prompt, --output and --target; give "
            "one of the two"
        )
    if scenario is not None:
        refuse_beside(given | {"apart": apart or None, "prices": prices, "write": write}, scenario)
        document, path, said = read_document(scenario), scenario, ""
    else:
        document, said = described(str(model), given, apart, targets, prices)
        path = Path(f"{Path(str(model)).name.removesuffix('.json')}.yaml")
        if write is not None:
            write_whole(write, as_text(document, said).encode())
            form.written("Scenario", [write])
    chosen = build_plan(
        document, path, targets=targets, objective=objective, goodput=goodput, requests=requests,
        confidence=confidence, seed=seed,
    )  # fmt: skip
    progress.announce_compilation()
    answer = answered(chosen, None if form.as_json else _first_ranking, "" if prices else said)
    if form.figures is not None:
        from penstock.planning.charts import figures as drawings

        form.draw(drawings(answer.plan, answer.day))
    form.show(answer.page(), answer.as_dict())
    if manifest is not None:
        write_whole(manifest, answer.manifest(manifest).encode())
        form.written("Manifest", [manifest])
    no_plan = answer.plan is not None and answer.plan.answer != "met"
    no_job = answer.job is not None and answer.job.best is None
    form.leave(no_plan or no_job)


def _first_ranking(fleets: "Sequence[Deployment]") -> None:
    """Say on standard error what theory has to say of each hardware, before anything is run."""
    from penstock.planning.targets_at_rate import USUAL_RHO

    progress.log(f"By theory alone, at {USUAL_RHO:.0%} of what any scheduler carries:")
    for fleet in fleets[:_MOST_FIRST]:
        progress.log(f"  {fleet.brief:<32} {fleet.cost:>10,.2f} per hour")
    progress.log("Short runs tell what latency takes.")
