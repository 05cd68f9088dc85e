"""The command ``penstock traces``."""

import dataclasses

import typer

from penstock.show import progress
from penstock.show.commands import command
from penstock.show.options import Form

traces_app = typer.Typer(
    help="List the public request traces worth knowing, or fetch one.", rich_markup_mode=None
)


@traces_app.callback(invoke_without_command=True)
@command()
def traces(context: typer.Context, *, as_json: bool = False, everything: bool = False) -> None:
    """List the public request traces worth knowing; with --all, where they are hosted, and under
    which licence.
    """
    if context.invoked_subcommand is not None:
        return
    from penstock.traces.catalogue import CATALOGUE, path_of
    from penstock.traces.view import traces_page

    document = []
    for entry in CATALOGUE:
        path = path_of(entry.name)
        document.append(dataclasses.asdict(entry) | {"path": path and str(path)})
    Form(as_json, everything=everything).show(traces_page(), {"traces": document})


@traces_app.command("get")
@command()
def traces_get(name: str, *, url: str | None = None) -> None:
    """Download a trace into the cache, check or record its checksum, and read it once.

    Parameters
    ----------
    name
        A name that `penstock traces` lists.
    url
        Fetch it from here instead of its official place.
    """
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
            "Penstock knows no checksum of this trace: what came is taken on trust, and recorded "
            "for later downloads"
        )
    else:
        trust = "as recorded at the first download"
    print(f"{path}\n{workload.rows:,} requests; sha256 {checksum} ({trust})")
