"""The command line: ``penstock check | compare | simulate | traces``."""

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from penstock import terminal
from penstock.errors import InputError

if TYPE_CHECKING:
    from penstock.analysis.answer import Answer
    from penstock.run import Run
    from penstock.scenario import Scenario

app = typer.Typer(
    name="penstock",
    help="Is this LLM deployment stable, how much can it carry, and with which scheduler?",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
traces_app = typer.Typer(help="List the public request traces worth knowing, or fetch one.", rich_markup_mode=None)
app.add_typer(traces_app, name="traces")

_UsageError: Any = typer.BadParameter.__base__  # typer does not export it, and has it from click or from within

EXIT_ANSWER_IS_NO = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
PATIENCE_S = 1.0  # nothing is said about work that takes less

ScenarioPath = Annotated[Path, typer.Argument(metavar="SCENARIO", help="A YAML file: workload, server, simulate.")]
Requests = Annotated[int | None, typer.Option("--requests", help="Arrivals to simulate, instead of the scenario's.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed, instead of the scenario's.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Figures = Annotated[Path | None, typer.Option("--figures", metavar="DIR", help="Write figures as SVG and PNG.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 if the answer is 'unstable'.")]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Policy, instead of the scenario's.")]


@app.callback(invoke_without_command=True)
def penstock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Is this LLM deployment stable, how much can it carry, and with which scheduler?"""
    if version:
        print(metadata.version("penstock"))
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def check(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    as_json: Json = False,
    figures: Figures = None,
    strict: Strict = False,
) -> None:
    """Say whether a deployment is stable, what it can carry, and at what latency.

    A scenario looks like this:

    \b
      workload: {trace: requests.csv, rate: 1.2, arrivals: poisson}
      server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
      simulate: {requests: 20000, seed: 0}
    """
    chosen = _scenario(scenario, policy, requests, seed)
    from penstock.analysis import answer

    with _progress(f"Simulating {chosen.server.policy.name}") as report:
        found = answer.check(
            chosen.workload, chosen.server, requests=chosen.requests, until=chosen.until, progress=report
        )
    name = chosen.server.policy.name
    _draw(figures, chosen, {name: found.run}, as_json, refused=[name] if found.latency_refused else [])
    if as_json:
        _print_json(found.as_dict())
    else:
        terminal.print_check(chosen, found)
    if strict and found.certificate.verdict == "unstable":
        raise typer.Exit(EXIT_ANSWER_IS_NO)


@app.command()
def compare(
    scenario: ScenarioPath,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Policies, separated by commas; default: all four of the paper.")
    ] = None,
    requests: Requests = None,
    seed: Seed = None,
    as_json: Json = False,
    figures: Figures = None,
    strict: Strict = False,
) -> None:
    """Put policies side by side on the same requests."""
    chosen = _scenario(scenario, None, requests, seed)
    from penstock.analysis import answer
    from penstock.system.policies import POLICIES, resolve

    names = [name.strip() for name in policies.split(",") if name.strip()] if policies is not None else list(POLICIES)
    if not names:
        raise InputError(f"--policies names none; give some of {', '.join(POLICIES)}")
    found: dict[str, Answer] = {}
    chosen_policies = [resolve(name, folder=chosen.folder) for name in names]
    servers = {policy.name: chosen.server.with_policy(policy) for policy in chosen_policies}
    if len(servers) < len(names):
        called = ", ".join(policy.name for policy in chosen_policies)
        raise InputError(f"--policies: two of {called} have one name; leave one out, or give it another name")
    with _progress("Simulating") as report:
        for index, (name, server) in enumerate(servers.items()):
            found[name] = answer.check(
                chosen.workload,
                server,
                requests=chosen.requests,
                until=chosen.until,
                progress=lambda share, index=index: report((index + share) / len(servers)),  # type: ignore[misc]
            )
    refused = [name for name, a in found.items() if a.latency_refused]
    _draw(figures, chosen, {name: a.run for name, a in found.items()}, as_json, refused)
    if as_json:
        _print_json({"policies": {name: a.as_dict() for name, a in found.items()}})
    else:
        terminal.print_compare(chosen, found)
    if strict and any(a.certificate.verdict == "unstable" for a in found.values()):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


@app.command()
def simulate(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    requests: Requests = None,
    seed: Seed = None,
    as_json: Json = False,
    figures: Figures = None,
) -> None:
    """Say what happened in one finite run, whatever the theory says."""
    chosen = _scenario(scenario, policy, requests, seed)
    from penstock import simulate as run_once
    from penstock.analysis import answer
    from penstock.theory.load import load

    asked = load(chosen.workload, chosen.server)
    with _progress(f"Simulating {chosen.server.policy.name}") as report:
        run = run_once(
            chosen.workload,
            chosen.server,
            requests=chosen.requests,
            until=chosen.until,
            record=answer.record_for(chosen.requests, chosen.until),
            progress=report,
        )
    warnings = [*chosen.workload.notices, *answer.load_warnings(asked, chosen.server)]
    _draw(figures, chosen, {chosen.server.policy.name: run}, as_json)
    if as_json:
        _print_json(
            {
                "load": answer.load_as_dict(asked),
                "simulation": answer.run_as_dict(run),
                "latency": answer.latency_as_dict(run),
                "latency_refused": None,
                "warnings": warnings,
            }
        )
        return
    terminal.print_run(chosen, asked, run, warnings)


@traces_app.callback(invoke_without_command=True)
def traces(context: typer.Context, as_json: Json = False) -> None:
    """List the public request traces worth knowing: where they are hosted, and under which licence."""
    if context.invoked_subcommand is not None:
        return
    from penstock.workload.catalogue import CATALOGUE, path_of

    if as_json:
        _print_json(
            {"traces": [dataclasses.asdict(entry) | {"path": _text(path_of(entry.name))} for entry in CATALOGUE]}
        )
        return
    console = Console()
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
    from penstock.workload import catalogue
    from penstock.workload.workload import read_trace

    with _progress(f"Downloading {name}") as report:
        path, checksum, first_time = catalogue.download(
            name, url=url, progress=lambda done, total: report(done / total if total else 0.0)
        )
    workload = read_trace(path)
    console = Console()
    said = "recorded: nothing to compare it with yet" if first_time else "as recorded before"
    console.print(f"{path}\n{workload.rows:,} requests; sha256 {checksum} ({said})", highlight=False, soft_wrap=True)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _scenario(path: Path, policy: str | None, requests: int | None, seed: int | None) -> "Scenario":
    """Read a scenario, put the command line's choices over it, and say so if something has to be compiled."""
    from penstock.scenario import read_scenario
    from penstock.system.policies import resolve

    scenario = read_scenario(path)
    if policy is not None:
        chosen = resolve(policy, folder=scenario.folder)
        scenario = dataclasses.replace(scenario, server=scenario.server.with_policy(chosen))
    if requests is not None:
        scenario = dataclasses.replace(scenario, requests=requests, until=None)
    if seed is not None:
        scenario = dataclasses.replace(scenario, workload=scenario.workload.with_seed(seed))
    _announce_compilation()
    return scenario


def _announce_compilation() -> None:
    """Say once, when it begins, that the kernel is being compiled: it takes seconds the first time on a machine."""
    from numba.core import event

    class Announcement(event.Listener):
        said = False

        def on_start(self, _: Any) -> None:
            if not self.said:
                self.said = True
                print("Compiling, once for the simulator and once for each policy ...", file=sys.stderr, flush=True)

        def on_end(self, _: Any) -> None:
            pass

    event.register("numba:compile", Announcement())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on standard error for work that takes longer than a moment."""
    begun = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=1.0)
    shown = False

    def report(share: float) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > PATIENCE_S:
            shown = True
            bar.start()
        if shown:
            bar.update(task, completed=share)

    try:
        yield report
    finally:
        if shown:
            bar.stop()


def _draw(
    folder: Path | None, scenario: "Scenario", runs: dict[str, "Run"], as_json: bool, refused: Iterable[str] = ()
) -> None:
    """Write the figures, without the latency that was refused."""
    if folder is None:
        return
    from penstock import plotting

    workload, server = scenario.workload, scenario.server
    about = f"{workload.describe()}, {workload.rate:,.4g} requests/s; token budget {server.token_budget:,}"
    charts = {"tokens_over_time": plotting.tokens_over_time(runs, about)}
    steady = {name: run for name, run in runs.items() if name not in refused}
    if steady:
        charts["latency_cdfs"] = plotting.latency_cdfs(steady, about)
    written = plotting.save(charts, folder)
    if not as_json:
        Console(stderr=True).print(f"Figures: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def main() -> None:
    """Run the command line: bad input is one line on standard error and status 2."""
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _complain(str(error))
        status = EXIT_BAD_INPUT
    except _UsageError as error:
        _complain(error.format_message())
        status = EXIT_BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = EXIT_INTERRUPTED
    except OSError as error:  # standard output is closed, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _complain(f"cannot write the answer: {error.strerror}")
        status = 0 if isinstance(error, BrokenPipeError) else EXIT_BAD_INPUT
    if status == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this status without a word
        _complain("interrupted")
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> None:
    print(f"penstock: {' '.join(message.split())}", file=sys.stderr)
