"""The command ``penstock serve``."""

import os
import socket
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.planning import command as planning
from penstock.show import progress
from penstock.show.options import duration

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_MOST_CONNECTIONS = 128  # a page has six at most, and one for the live tab


def serve(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help="A YAML file; default: an example."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Of the page; 0: any free one.")] = 8765,
    address: Annotated[
        str, typer.Option("--address", help="Where to listen: loopback, or else others can read.")
    ] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    watch: Annotated[
        list[str] | None,
        typer.Option("--watch", metavar="URL", help="An engine for the live tab; repeatable."),
    ] = None,
    every: Annotated[str, typer.Option("--every", help="Time between scrapes, such as 5s.")] = "5s",
    model: planning.Model = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="Of --model, to begin with, such as h100-sxm.")
    ] = None,
    tp: Annotated[str | None, typer.Option("--tp", help="GPUs of a replica; default: 1.")] = None,
    rate: planning.Rate = None,
    prompt: planning.Prompt = None,
    output: planning.Output = None,
    trace: planning.Trace = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="vllm (default) or sglang.")
    ] = None,
    precision: planning.Precision = None,
    targets: planning.Targets = None,
) -> None:
    """Show a scenario in a browser, with sliders; and engines that run, with --watch.

    With --model no file is needed: the page begins with what the options say. Each engine that is
    watched is what the scenario's server says. Nothing is sent anywhere.
    """
    checks.installed("`penstock serve`", "serve", "starlette", "uvicorn")
    if watch:
        from penstock.live.command import WATCHING

        checks.installed("`penstock serve --watch`", "live", *WATCHING)
    from penstock.planning.without_file import one_described, refuse_beside
    from penstock.serving.app import application
    from penstock.serving.controls import Controls

    given = {
        "gpus": gpus, "tp": tp, "engine": engine, "precision": precision, "rate": rate,
        "prompt": prompt, "output": output, "trace": trace,
    }  # fmt: skip
    if model is None:
        refuse_beside(given, scenario)
        controls = Controls(scenario, targets=targets)
    elif scenario is not None:
        raise InputError(f"--model is given beside {scenario}, which says it; leave one out")
    else:
        described = one_described(model, given, targets)
        controls = Controls(described=described, name=Path(model).name.removesuffix(".json"))
    checks.whole("--port", port, 0, 65_535, "", "it is a port; give a free one, or 0 for any")
    every_s = duration("--every", every)
    listening = _listening(address, port)
    watched = None
    if watch:
        from penstock.serving.watched import Watched

        watched = Watched(watch, scenario, every_s)
    app = application(controls, watched, address)
    shown = f"[{address}]" if ":" in address else address
    url = f"http://{shown}:{listening.getsockname()[1]}/"
    print(f"{url} shows {controls.name}; Ctrl-C ends it", flush=True)
    progress.announce_compilation()
    if open_page:
        import webbrowser

        webbrowser.open(url)
    _run(app, listening)


def _listening(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {address} port {port} ({error.strerror}), so there would be no "
            "page; give --port a free one, or --address one of this machine"
        ) from None


def _run(app: "ASGIApp", listening: socket.socket) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    from penstock.serving.connections import Impatient

    class AtOnce(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            os._exit(0)  # there is nothing to be saved, so it waits for no page and no simulation

    config = uvicorn.Config(
        app, http=Impatient, limit_concurrency=_MOST_CONNECTIONS, log_level="critical",
        lifespan="off", server_header=False,
    )  # fmt: skip
    AtOnce(config).run(sockets=[listening])
