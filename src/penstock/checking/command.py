"""The commands ``penstock check``, ``compare`` and ``simulate``."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.checking.command_choices import (
    AlphaOfServer,
    PolicyName,
    Requests,
    Targets,
    about,
    chosen_scenario,
    chosen_servers,
    measured,
    read_either,
)
from penstock.checking.command_network import (
    Jobs,
    Orders,
    OrdersBeside,
    Routers,
    compare_orders,
    compare_variants,
    draw_network,
    refuse_beside_orders,
)
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import Form, ScenarioPath, Seed, answers, files_of
from penstock.simulation.progress import in_parts

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario
    from penstock.simulation.run import Run
    from penstock.theory.certificate import Certificate


Precision = Annotated[
    float | None,
    typer.Option("--precision", help="Simulate until mean latencies are known to it; 0.05 is 5%."),
]
ResolutionOfEither = Annotated[
    float | None,
    typer.Option(
        "--resolution",
        help="Share of the load that the test must tell from none: 0.01, networks 0.02.",
    ),
]


@answers("figures", "report", "strict")
def check(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    targets: Targets = None,
    precision: Precision = None,
    jobs: Jobs = None,
    orders: OrdersBeside = None,
    alpha: AlphaOfServer = None,
    resolution: ResolutionOfEither = None,
    *,
    form: Form,
) -> None:
    """Say whether a deployment is stable, what it can carry, and at what latency.

    A scenario looks like this:

    \b
      workload: {trace: requests.csv, rate: 1.2, arrivals: poisson}
      server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
      simulate: {requests: 20000, seed: 0}

    or, for a network, `network` with pools and workflows in place of the first two.
    """  # noqa: D301 - the escape itself keeps the lines of the example apart
    form.check(files_of(scenario))
    of_server = {"--policy": policy, "--requests": requests, "--alpha": alpha}
    document, is_network = read_either(scenario, of_server, {"--jobs": jobs, "--orders": orders})
    arrivals = requests if jobs is None else jobs
    chosen = chosen_scenario(scenario, policy, arrivals, seed, document)
    if orders is not None:
        refuse_beside_orders({"--target": targets, "--precision": precision})
        compare_orders(chosen, orders, {"seed": seed, "resolution": resolution}, form)
        return
    from penstock.checking import answer
    from penstock.checking.targets import Target

    progress.announce_compilation()
    limits = [Target.parse(text) for text in targets or ()]
    name = chosen.name if is_network else chosen.server.policy.name
    with progress.bar(f"Simulating {name}") as show:
        asked: dict[str, Any] = {
            "until": chosen.until, "targets": limits, "precision": precision,
            "resolution": resolution, "progress": show, "certified": partial(_begin, form, chosen),
        }  # fmt: skip
        if is_network:
            result = answer.check(
                chosen.network, jobs=chosen.arrivals, seed=seed, outages=chosen.outages, **asked
            )
        else:
            result = answer.check(
                chosen.workload, chosen.server, requests=chosen.arrivals, alpha=alpha, **asked
            )
    if is_network:
        draw_network(form, result)
    else:
        _draw(form, chosen, {name: result.run}, [name] if result.latency_refused else [])
    document = result.as_dict()
    document |= {"measured": measured(chosen), "next": result.next_step(chosen.file)}
    form.show(result.page(chosen), document)
    form.leave(result.verdict != "stable" or result.missed)


def _begin(form: Form, scenario: "Scenario", certificate: "Certificate | None") -> None:
    """Say what theory says, before anything is compiled, unless JSON is asked for."""
    from penstock.checking.head import first_lines

    if not form.as_json:
        form.begin(first_lines(scenario.name, scenario.system, certificate, scenario.hardware))


Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        help="Policies, separated by commas; default, of a server: the scenario's own, "
        "engines, and pool-controlled, which adapts its token budget.",
    ),
]
GoodputLimits = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Of a network: a limit of goodput such as ttft_p99<2s; repeatable.",
    ),
]


@answers("figures", "report", "strict")
def compare(
    scenario: ScenarioPath,
    policies: Policies = None,
    routers: Routers = None,
    orders: Orders = None,
    requests: Requests = None,
    jobs: Jobs = None,
    seed: Seed = None,
    targets: GoodputLimits = None,
    alpha: AlphaOfServer = None,
    resolution: ResolutionOfEither = None,
    *,
    form: Form,
) -> None:
    """Put policies side by side on the same requests; of a network routers, policies and orders,
    with how sure each difference to the first one is.
    """
    form.check(files_of(scenario))
    of_server = {"--requests": requests, "--alpha": alpha}
    of_network = {"--routers": routers, "--orders": orders, "--jobs": jobs, "--target": targets}
    document, is_network = read_either(scenario, of_server, of_network)
    if is_network:
        axes = {"policies": policies, "routers": routers, "orders": orders}
        asked = {"seed": seed, "resolution": resolution, "targets": targets or ()}
        compare_variants(
            chosen_scenario(scenario, arrivals=jobs, document=document), axes, asked, form
        )
        return
    chosen = chosen_scenario(scenario, None, requests, seed, document)
    progress.announce_compilation()
    from penstock.checking import answer
    from penstock.checking.view import compare_page
    from penstock.system.policies import beside
    from penstock.theory.load import refuse_no_rate

    refuse_no_rate(chosen.workload)

    # The scenario's own policy comes first, so that the others are compared with it.
    own = chosen.server.policy
    servers = chosen_servers(chosen, policies, beside(own))
    results, left_out = {}, {}
    with progress.bar("Simulating") as show:
        for (name, server), part in in_parts(show, servers.items()):
            try:
                results[name] = answer.check(
                    chosen.workload, server, requests=chosen.arrivals, until=chosen.until,
                    alpha=alpha, resolution=resolution, progress=part,
                )  # fmt: skip
            except InputError as error:
                if policies is not None or name == own.name:
                    raise
                left_out[name] = str(error)  # nobody asked for it
    refused = [name for name, a in results.items() if a.latency_refused]
    _draw(form, chosen, {name: a.run for name, a in results.items()}, refused)
    answers = {name: a.as_dict() for name, a in results.items()}
    document = {"policies": answers, "measured": measured(chosen)}
    form.show(compare_page(chosen, results, left_out), document)
    form.leave(any(a.verdict != "stable" for a in results.values()))


@answers("figures", "report")
def simulate(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    *,
    form: Form,
) -> None:
    """Say what happened in one finite run, whatever the theory says."""
    form.check(files_of(scenario))
    chosen = chosen_scenario(scenario, policy, requests, seed)
    from penstock.checking import answer, check_server, json_documents
    from penstock.checking.doubt import known_within
    from penstock.checking.notes import load_warnings
    from penstock.checking.recordings import recording_notes
    from penstock.checking.view import run_page
    from penstock.simulation.simulate import simulate as run_once
    from penstock.system.prefix_cache import front_notes, unsaid
    from penstock.theory.certify import certify
    from penstock.theory.kv_blocks import served

    asked = check_server.RunAsked(chosen.workload, chosen.arrivals, chosen.until)  # or refused
    # The load is said beside the run, where there is one, though no verdict is drawn from it.
    rated = chosen.workload.has_rate
    certificate = certify(chosen.workload, chosen.server) if rated else None
    if not rated:
        served(chosen.workload, chosen.server)  # or refused
    _begin(form, chosen, certificate)
    progress.announce_compilation()
    with progress.bar(f"Simulating {chosen.server.policy.name}") as show:
        run = run_once(
            chosen.workload,
            chosen.server,
            requests=chosen.arrivals,
            until=chosen.until,
            record=asked.record,
            progress=show,
        )
    front, warnings, load = front_notes(chosen.workload, run.server), [], None
    if certificate is not None:
        certificate = certificate.with_found(run.found_share, run.server)
        recorded, _ = recording_notes(chosen.workload, certificate)
        front = [*known_within((chosen.workload, run.server)), *recorded, *front]
        warnings = load_warnings(certificate.load, chosen.server)
        load = json_documents.load_as_dict(certificate)
    warnings = [*unsaid(chosen.workload.notices, front), *warnings]
    _draw(form, chosen, {chosen.server.policy.name: run})
    document_of_run = {
        "load": load,
        "simulation": json_documents.run_as_dict(run),
        "latency": json_documents.latency_as_dict(run),
        "latency_refused": None,
        "warnings": [*front, *warnings],
    }
    drawn = answer.Drawn(chosen.workload, chosen.server)
    form.show(run_page(chosen, certificate, run, drawn, front, warnings), document_of_run)


def _draw(
    form: Form, scenario: "Scenario", runs: dict[str, "Run"], refused: Iterable[str] = ()
) -> None:
    """Write the figures, without the latency that was refused."""
    if form.figures is None:
        return

    from penstock.checking import charts

    line = about(scenario)
    drawings = {"tokens_over_time": charts.tokens_over_time(runs, line)}
    steady = {name: run for name, run in runs.items() if name not in refused}
    if steady:
        drawings["latency_cdfs"] = charts.latency_cdfs(steady, line, policies=runs)
    form.draw(drawings)
