"""The command ``penstock plan``: the cheapest deployment that meets the targets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.document import read_document
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.commands import command
from penstock.show.files import write_whole
from penstock.show.options import Form, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.planning.deployment import Deployment

_MOST_FIRST = 6
"""Kinds of hardware in the first ranking."""


@command("planning.without_file:hardware_and_load", form="figures report strict")
def plan(
    scenario: Path | None = None,
    *,
    model: str | None = None,
    form: Form,
    apart: bool = False,
    prices: Path | None = None,
    write: Path | None = None,
    targets: list[str] | None = None,
    objective: str | None = None,
    goodput: float | None = None,
    requests: int | None = None,
    confidence: float | None = None,
    seed: int | None = None,
    manifest: Path | None = None,
    **options: Any,
) -> None:
    """Find the cheapest deployment that meets the targets.

    Say what binds it and what comes next. With --model no file is needed: models on GPUs are
    put side by side.

      penstock plan --model Llama-3.1-70B --gpus h100-sxm,h200-sxm --tp 2,4,8 --rate 60
        --prompt 1500 --output 300 --target 'ttft_p99<2s' --target 'tpot_p99<60ms'

    Beside `workload` and `server` the scenario has a `plan` that says where to look, such as
    `plan: {targets: [ttft_p99<2s], search: {token_budget: [256, 512, 1024], replicas: {max: 32}}}`.

    Parameters
    ----------
    scenario : [SCENARIO]
        A YAML file: workload, server, plan.
    model
        A known name, or a config.json: no file is needed.
    apart
        Search replicas for prompts and for outputs apart, too.
    prices
        Money for a GPU and an hour, by its name.
    write
        Write the scenario of --model.
    targets
        A limit such as ttft_p99<2s, instead of the scenario's.
    objective
        cost: meet every target; goodput: for a share of the requests.
    goodput
        Share of requests within all limits; 0.99 is 99%.
    requests
        Simulated of a replica to begin with.
    confidence
        Of the intervals.
    manifest
        Write a Kubernetes manifest of the answer.
    """
    files = [] if scenario is None else files_of(scenario)
    form.check(files, {"--manifest": manifest, "--write": write})
    from penstock.planning.answers import answered
    from penstock.planning.scenario import build_plan
    from penstock.planning.without_file import as_text, described, refuse_beside
    from penstock.show.compiling import announce_compilation

    if (scenario is None) == (model is None):
        raise InputError(
            "plan takes a scenario, or --model with --rate, --prompt, --output and --target; give "
            "one of the two"
        )
    if scenario is not None:
        others = {"apart": apart or None, "prices": prices, "write": write}
        refuse_beside(options | others, scenario)
        document, path, said = read_document(scenario), scenario, ""
    else:
        document, said = described(str(model), options, apart, targets, prices)
        path = Path(f"{Path(str(model)).name.removesuffix('.json')}.yaml")
        if write is not None:
            write_whole(write, as_text(document, said).encode())
            form.written("Scenario", [write])
    chosen = build_plan(
        document, path, targets=targets, objective=objective, goodput=goodput, requests=requests,
        confidence=confidence, seed=seed,
    )  # fmt: skip
    announce_compilation()
    answer = answered(chosen, None if form.as_json else _first_ranking, "" if prices else said)
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
