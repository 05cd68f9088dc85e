"""The command ``penstock serve``."""

import os
import socket
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock import checks
from penstock.errors import InputError
from penstock.show.commands import command
from penstock.show.options import duration

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_MOST_CONNECTIONS = 128  # a page has six at most, and one for the live tab


@command("planning.without_file:hardware_and_load")
def serve(
    scenario: Path | None = None,
    *,
    port: int = 8765,
    address: str = "127.0.0.1",
    open_page: bool = False,
    watch: list[str] | None = None,
    every: str = "5s",
    model: str | None = None,
    targets: list[str] | None = None,
    **options: Any,
) -> None:
    """Show a scenario in a browser, with sliders.

    With --watch, show engines that run beside it.

    With --model no file is needed: the page begins with what the options say. Each engine that is
    watched is what the scenario's server says. Nothing is sent anywhere.

    Parameters
    ----------
    scenario : [SCENARIO]
        A YAML file; default: an example.
    port
        Of the page; 0: any free one.
    address
        Where to listen: loopback, or else others can read.
    open_page : --open
        Open a browser.
    watch : URL
        An engine for the live tab.
    every
        Time between scrapes, such as 5s.
    model
        A known name, or a config.json: no file is needed.
    targets
        A limit such as ttft_p99<2s, instead of the scenario's.
    gpus
        Of --model, to begin with, such as h100-sxm.
    tp
        GPUs of a replica; default: 1.
    engine
        vllm (default) or sglang.
    """
    checks.installed("`penstock serve`", "serve", "starlette", "uvicorn")
    if watch:
        from penstock.live.command import WATCHING

        checks.installed("`penstock serve --watch`", "live", *WATCHING)
    from penstock.planning.without_file import one_described, refuse_beside
    from penstock.serving.app import application
    from penstock.serving.controls import Controls
    from penstock.show.compiling import announce_compilation

    if model is None:
        refuse_beside(options, scenario)
        controls = Controls(scenario, targets=targets)
    elif scenario is not None:
        raise InputError(f"--model is given beside {scenario}, which says it; leave one out")
    else:
        described = one_described(model, options, targets)
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
    announce_compilation()
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
