"""The public traces as a page: what is in each, under which licence, and where it is hosted."""

from penstock.show.page import Page, Section
from penstock.traces.catalogue import CATALOGUE, Entry, path_of


def traces_page() -> Page:
    """Show every trace of the catalogue."""
    hint = "Fetch one with `penstock traces get NAME`, then write `trace: NAME` in a scenario."
    sections = [
        Section(entry.name, [_facts(entry), entry.description, entry.home]) for entry in CATALOGUE
    ]
    return Page("Public request traces", "worth knowing", sections=[*sections, Section("", [hint])])


def _facts(entry: Entry) -> str:
    rows = f"{entry.rows:,} requests" if entry.rows else "number of requests not stated"
    here = ", on this machine" if path_of(entry.name) else ""
    return f"{rows}, {entry.licence}{here}"
