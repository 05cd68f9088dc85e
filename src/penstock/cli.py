"""The command line: ``penstock check``, ``compare``, ``network``, ``fit``, ``twin``, ``hardware`` and others."""

from penstock.show import interrupts

# isort: split
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.checking.command_network import network
from penstock.errors import DISK_FULL, InputError
from penstock.measuring.calibration.command import calibrate
from penstock.measuring.command import hardware
from penstock.measuring.fitting.command import fit
from penstock.measuring.twin.command import profile, twin
from penstock.planning.command import plan
from penstock.reproducing.command import reproduce
from penstock.show import progress, terminal
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    EXIT_BAD_INPUT,
    Figures,
    Json,
    Report,
    Resolution,
    ScenarioPath,
    Seed,
    Strict,
    check_outputs,
    files_of,
    print_json,
    save_figures,
    say_written,
)
from penstock.sweeping.command import sweep
from penstock.words import gathered

if TYPE_CHECKING:
    from penstock.capacity.max_rate import MaxRate
    from penstock.checking.answer import Answer
    from penstock.scenario.scenario import Scenario
    from penstock.simulation.run import Run
    from penstock.system.engines import Engine
    from penstock.system.policies import Policy
    from penstock.system.server import Server

app = typer.Typer(
    name="penstock",
    help="Is this LLM deployment stable, how much can it carry, and with which scheduler?",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
traces_app = typer.Typer(help="List the public request traces worth knowing, or fetch one.", rich_markup_mode=None)
app.add_typer(traces_app, name="traces")

_UsageError: Any = typer.BadParameter.__base__  # typer does not export it, and has it from click or from within

Requests = Annotated[int | None, typer.Option("--requests", help="Arrivals to simulate, instead of the scenario's.")]
Targets = Annotated[
    list[str] | None, typer.Option("--target", metavar="TARGET", help="A limit such as ttft_p99<2s; repeatable.")
]
Alpha = Annotated[float, typer.Option("--alpha", help="Probability of a wrong verdict of the test.")]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Policy, instead of the scenario's.")]


@app.callback(invoke_without_command=True)
def penstock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Is this LLM deployment stable, how much can it carry, and with which scheduler?"""
    if version:
        print(metadata.version("penstock-llm"))
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def check(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    targets: Targets = None,
    precision: Annotated[
        float | None, typer.Option("--precision", help="Simulate until mean latencies are known to it; 0.05 is 5%.")
    ] = None,
    alpha: Alpha = 0.01,
    resolution: Resolution = 0.01,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Say whether a deployment is stable, what it can carry, and at what latency.

    A scenario looks like this:

    \b
      workload: {trace: requests.csv, rate: 1.2, arrivals: poisson}
      server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
      simulate: {requests: 20000, seed: 0}
    """
    check_outputs(files_of(scenario), {"--report": report}, figures)
    chosen = _scenario(scenario, policy, requests, seed)
    from penstock.checking import answer
    from penstock.checking.targets import Target

    limits = [Target.parse(text) for text in targets or ()]
    name = chosen.server.policy.name
    with progress.bar(f"Simulating {name}") as show:
        found = answer.check(
            chosen.workload, chosen.server, requests=chosen.requests, until=chosen.until,
            targets=limits, precision=precision, alpha=alpha, resolution=resolution, progress=show,
        )  # fmt: skip
    _draw(figures, chosen, {name: found.run}, as_json, refused=[name] if found.latency_refused else [])
    _write_report(report, chosen, {name: found}, as_json)
    if as_json:
        print_json(found.as_dict() | {"measured": _measured(chosen), "next": found.next_step(chosen.file)})
    else:
        terminal.print_check(chosen, found)
    if strict and (found.verdict != "stable" or found.missed):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


@app.command()
def compare(
    scenario: ScenarioPath,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas; default: the scenario's own, the paper's and the adaptive ones.",
        ),
    ] = None,
    requests: Requests = None,
    seed: Seed = None,
    alpha: Alpha = 0.01,
    resolution: Resolution = 0.01,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Put policies side by side on the same requests."""
    check_outputs(files_of(scenario), {"--report": report}, figures)
    chosen = _scenario(scenario, None, requests, seed)
    from penstock.checking import answer
    from penstock.system.policies import POLICIES

    found: dict[str, Answer] = {}
    own = chosen.server.policy
    servers = _servers(chosen, policies, [*([] if own.name in POLICIES else [own]), *POLICIES])
    with progress.bar("Simulating") as show:
        for index, (name, server) in enumerate(servers.items()):
            found[name] = answer.check(
                chosen.workload, server, requests=chosen.requests, until=chosen.until, alpha=alpha,
                resolution=resolution, progress=_part(show, index, len(servers)),
            )  # fmt: skip
    refused = [name for name, a in found.items() if a.latency_refused]
    _draw(figures, chosen, {name: a.run for name, a in found.items()}, as_json, refused)
    _write_report(report, chosen, found, as_json)
    if as_json:
        print_json({"policies": {name: a.as_dict() for name, a in found.items()}, "measured": _measured(chosen)})
    else:
        terminal.print_compare(chosen, found)
    if strict and any(a.verdict != "stable" for a in found.values()):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


@app.command()
def region(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
) -> None:
    """Draw the token rates that a server can carry, where the load lies among them, and what holds it back."""
    check_outputs(files_of(scenario), {"--report": report}, figures)
    chosen = _scenario(scenario, policy, None, None)
    from penstock.theory.operating_point import operating_point

    found = operating_point(chosen.workload, chosen.server)
    if figures is not None:
        from penstock.show import charts

        chart = charts.region_chart(found.region, found.point, found.own, about=_about(chosen))
        save_figures({"region": chart}, figures, as_json)
    if report is not None:
        from penstock.checking import report as page

        page.report_region(report, chosen, found)
        say_written("Report", [report], as_json)
    if as_json:
        print_json(found.as_dict() | {"warnings": _kv_notes(chosen.server)})
    else:
        terminal.print_region(chosen, found)


@app.command("max-rate")
def max_rate(
    scenario: ScenarioPath,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Policies, separated by commas; default: the scenario's.")
    ] = None,
    precision: Annotated[float, typer.Option("--precision", help="Relative distance that may be left.")] = 0.01,
    alpha: Alpha = 0.01,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Find the highest rate at which each policy is stable, beside the rate above which none is."""
    chosen = _scenario(scenario, None, None, seed)
    from penstock.capacity import max_rate as search

    servers = _servers(chosen, policies, [chosen.server.policy])
    found: dict[str, MaxRate] = {}
    with progress.bar("Searching") as show:
        for index, (name, server) in enumerate(servers.items()):
            found[name] = search.max_rate(
                chosen.workload, server, precision=precision, alpha=alpha, seed=chosen.workload.seed,
                progress=_part(show, index, len(servers)),
            )  # fmt: skip
    notes = gathered({name: _kv_notes(server) for name, server in servers.items()})
    if as_json:
        print_json(
            {
                "policies": {name: each.as_dict() for name, each in found.items()},
                "warnings": [*notes, *chosen.workload.notices],
            }
        )
    else:
        terminal.print_max_rate(chosen, found, notes)


@app.command()
def recommend(
    scenario: ScenarioPath,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="stable-rate, ttft, tbt or e2e; default: e2e where the load is carried safely, else stable-rate.",
        ),
    ] = None,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Policies to try, separated by commas, from simple to subtle.")
    ] = None,
    requests: Requests = None,
    targets: Targets = None,
    precision: Annotated[float, typer.Option("--precision", help="Of the highest stable rates.")] = 0.02,
    alpha: Alpha = 0.01,
    seed: Seed = None,
    as_json: Json = False,
    strict: Strict = False,
) -> None:
    """Say which token budget to use, which policy unless the scenario names an engine, why, and what that gains."""
    chosen = _scenario(scenario, None, requests, seed)
    from penstock.capacity import recommend as study

    whole_trace = requests is None and chosen.workload.rows is not None  # more than a comparison needs
    with progress.bar("Comparing") as show:
        found = study.recommend(
            chosen.workload, chosen.server, objective=objective,  # type: ignore[arg-type]
            policies=None if policies is None else _policies(chosen, policies, ()), targets=targets or (),
            requests=None if whole_trace else chosen.requests, precision=precision, alpha=alpha, progress=show,
        )  # fmt: skip
    if as_json:
        print_json(found.as_dict())
    else:
        terminal.print_recommend(chosen, found)
    if strict and (found.recommended.answer.verdict != "stable" or found.recommended.missed):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


@app.command()
def simulate(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
) -> None:
    """Say what happened in one finite run, whatever the theory says."""
    check_outputs(files_of(scenario), {"--report": report}, figures)
    chosen = _scenario(scenario, policy, requests, seed)
    from penstock.checking import answer
    from penstock.simulation.simulate import simulate as run_once
    from penstock.theory.certificate import certify

    certificate = certify(chosen.workload, chosen.server)
    asked = certificate.load
    with progress.bar(f"Simulating {chosen.server.policy.name}") as show:
        run = run_once(
            chosen.workload,
            chosen.server,
            requests=chosen.requests,
            until=chosen.until,
            record=answer.record_for(chosen.requests, chosen.until),
            progress=show,
        )
    warnings = [*chosen.workload.notices, *answer.load_warnings(asked, chosen.server)]
    front = _kv_notes(chosen.server)
    _draw(figures, chosen, {chosen.server.policy.name: run}, as_json)
    if report is not None:
        from penstock.checking import report as page

        page.report_run(report, chosen, certificate, run, warnings)
        say_written("Report", [report], as_json)
    if as_json:
        print_json(
            {
                "load": answer.load_as_dict(certificate),
                "simulation": answer.run_as_dict(run),
                "latency": answer.latency_as_dict(run),
                "latency_refused": None,
                "warnings": [*front, *warnings],
            }
        )
        return
    terminal.print_run(chosen, certificate, run, warnings)


for command in (network, sweep, fit, calibrate, profile, twin, hardware, plan, reproduce):
    app.command()(command)


@traces_app.callback(invoke_without_command=True)
def traces(context: typer.Context, as_json: Json = False) -> None:
    """List the public request traces worth knowing: where they are hosted, and under which licence."""
    if context.invoked_subcommand is not None:
        return
    from penstock.traces.catalogue import CATALOGUE, path_of

    if as_json:
        print_json(
            {"traces": [dataclasses.asdict(entry) | {"path": _text(path_of(entry.name))} for entry in CATALOGUE]}
        )
        return
    console = terminal.make_console()
    console.print("[bold]Public request traces[/bold]\n")
    for entry in CATALOGUE:
        rows = f"{entry.rows:,} requests" if entry.rows else "number of requests not stated"
        here = ", on this machine" if path_of(entry.name) else ""
        console.print(f"[bold]{entry.name}[/bold]  {rows}, {entry.licence}{here}", highlight=False)
        console.print(f"  {entry.description}", highlight=False)
        console.print(f"  {entry.home}", highlight=False, soft_wrap=True)
    console.print(
        "\nFetch one with `penstock traces get NAME`, then write `trace: NAME` in a scenario.", highlight=False
    )


@traces_app.command("get")
def traces_get(
    name: Annotated[str, typer.Argument(help="A name that `penstock traces` lists.")],
    url: Annotated[str | None, typer.Option("--url", help="Fetch it from here instead of its official place.")] = None,
) -> None:
    """Download a trace into the cache, check or record its checksum, and read it once."""
    from penstock.traces import catalogue
    from penstock.workload.workload import read_trace

    with progress.bar(f"Downloading {name}") as show:
        path, checksum, first_time = catalogue.download(
            name, url=url, progress=lambda done, total: show(done / total if total else 0.0)
        )
    workload = read_trace(path)
    if catalogue.is_pinned(name):
        trust = "as published"
    elif first_time:
        trust = (
            "Penstock knows no checksum of this trace: what came is taken on trust, and recorded for later downloads"
        )
    else:
        trust = "as recorded at the first download"
    print(f"{path}\n{workload.rows:,} requests; sha256 {checksum} ({trust})")


def _measured(scenario: "Scenario") -> dict[str, Any] | None:
    """Return where the batch times come from, None where they stand in the scenario."""
    known = scenario.measured
    if known is None:
        return None
    return {"description": known.description, "source": known.source, "year": known.year}


def _kv_notes(server: "Server") -> list[str]:
    return [f"{server.kv_note}."] if server.kv_note else []


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _scenario(path: Path, policy: str | None, requests: int | None, seed: int | None) -> "Scenario":
    """Read a scenario, put the command line's choices over it, and say so if something has to be compiled."""
    from penstock.document import read_document
    from penstock.scenario.network import describes_network
    from penstock.scenario.scenario import build
    from penstock.system.policies import resolve

    document = read_document(path)
    if describes_network(document):
        raise InputError(f"{path} describes a network, not a server; ask `penstock network {path}`")
    scenario = build(document, path.parent, path.name)
    if policy is not None:
        chosen = resolve(policy, folder=scenario.folder)
        scenario = dataclasses.replace(scenario, server=scenario.server.with_policy(chosen))
    if requests is not None:
        scenario = dataclasses.replace(scenario, requests=requests, until=None)
    if seed is not None:
        scenario = dataclasses.replace(scenario, workload=scenario.workload.with_seed(seed))
    progress.announce_compilation()
    return scenario


def _servers(
    scenario: "Scenario", policies: str | None, default: "Sequence[str | Policy | Engine]"
) -> "dict[str, Server]":
    """Return the scenario's server under each of the policies named, by their names.

    Policies that have no KV memory of their own are compared in that of the first engine named, else of the scenario's.
    """
    from penstock.system.engines import Engine

    own = scenario.server
    chosen = _policies(scenario, policies, default)
    servers = {policy.name: own if policy.name == own.policy.name else own.with_policy(policy) for policy in chosen}
    engine = next((server for server in servers.values() if isinstance(server.policy, Engine)), own)
    for name, server in servers.items():
        if not isinstance(server.policy, Engine) and server.gpu is not None:
            servers[name] = dataclasses.replace(server, gpu=engine.gpu, memory=engine.memory)
    return servers


def _policies(
    scenario: "Scenario", policies: str | None, default: "Sequence[str | Policy | Engine]"
) -> "list[Policy | Engine]":
    """Return the policies named."""
    from penstock.system.policies import POLICIES, resolve

    names = [name.strip() for name in policies.split(",") if name.strip()] if policies is not None else default
    if not names:
        raise InputError(f"--policies names none; give some of {', '.join(POLICIES)}")
    chosen = [resolve(name, folder=scenario.folder) for name in names]
    if len({policy.name for policy in chosen}) < len(chosen):
        called = ", ".join(policy.name for policy in chosen)
        raise InputError(f"--policies: two of {called} have one name; leave one out, or give it another name")
    return chosen


def _part(show: Callable[[float], None], index: int, count: int) -> Callable[[float], None]:
    """Show the progress of one of several equal parts."""
    return lambda share: show((index + share) / count)


def _about(scenario: "Scenario") -> str:
    workload, server = scenario.workload, scenario.server
    return f"{workload.describe()}, {workload.rate:,.4g} requests/s; token budget {server.token_budget:,}"


def _draw(
    folder: Path | None, scenario: "Scenario", runs: dict[str, "Run"], as_json: bool, refused: Iterable[str] = ()
) -> None:
    """Write the figures, without the latency that was refused."""
    if folder is None:
        return
    from penstock.show import charts

    about = _about(scenario)
    drawings = {"tokens_over_time": charts.tokens_over_time(runs, about)}
    steady = {name: run for name, run in runs.items() if name not in refused}
    if steady:
        drawings["latency_cdfs"] = charts.latency_cdfs(steady, about, policies=runs)
    save_figures(drawings, folder, as_json)


def _write_report(path: Path | None, scenario: "Scenario", found: "dict[str, Answer]", as_json: bool) -> None:
    if path is None:
        return
    from penstock.checking import report

    report.report_answers(path, scenario, found)
    say_written("Report", [path], as_json)


def main() -> None:
    """Run the command line: bad input is one line on standard error and status 2."""
    if sys.stderr is None:  # closed; what is printed to None goes to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _complain("standard output is closed, so there is no place for an answer; to have none, send it to /dev/null")
        sys.exit(EXIT_BAD_INPUT)
    try:
        status = app(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _complain(str(error))
        status = EXIT_BAD_INPUT
    except _UsageError as error:
        said = error.format_message()
        if "'SCENARIO'" in said:
            said = f"{said.rstrip('.')}; `penstock check --help` shows what one looks like"
        _complain(said)
        status = EXIT_BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = interrupts.EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # whoever reads the answer has enough of it, as `head` has; typer and rich make status 1 of it
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _drop_output()
        status = 0
    except OSError as error:
        _drop_output()
        if error.filename is None or error.errno in DISK_FULL:
            _complain(f"cannot write {error.filename or 'the answer'}: {error.strerror}")
        else:
            _complain(f"cannot use {error.filename}: {error.strerror}")
        status = EXIT_BAD_INPUT
    if status == interrupts.EXIT_INTERRUPTED:  # typer turns Ctrl-C into this status without a word
        interrupts.complain()
    sys.exit(status if isinstance(status, int) else 0)


def _drop_output() -> None:
    """Send nowhere what is not written yet, so that Python does not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    try:
        print(f"penstock: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:  # no room there: the status alone says it, and Python need not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
