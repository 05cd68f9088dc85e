"""The public traces as a page: what is in each, under which licence, and where it is hosted."""

from penstock.show.page import Page, Section, Table
from penstock.traces.catalogue import CATALOGUE, path_of


def traces_page() -> Page:
    """List the traces of the catalogue, a row each; their addresses are a detail."""
    rows = [
        (entry.name, f"{entry.rows:,}" if entry.rows else "-", entry.description, entry.licence)
        for entry in CATALOGUE
    ]
    caption = (
        "-: not stated. Fetch one with `penstock traces get NAME`, then write `trace: NAME` in a "
        "scenario; `penstock traces --all` says where each is hosted, and under which licence."
    )
    here = [entry.name for entry in CATALOGUE if path_of(entry.name)]
    if here:
        caption += f" On this machine: {', '.join(here)}."
    columns = ("Trace", "Requests", "What it is", "Licence")
    table = Table(columns, rows, caption, spare=("Licence",))
    addresses = [(entry.name, entry.licence, entry.home) for entry in CATALOGUE]
    homes = Table(("Trace", "Licence", "Address"), addresses, detail=True)
    return Page("Public request traces", sections=[Section("", tables=[table, homes])])
