"""A profile as a page: the machine, and the model that fits what was measured on it."""

from collections.abc import Mapping

from penstock.measuring.fitting.fit import Fit
from penstock.show.page import Page


def profile_page(description: str, machine: Mapping[str, str | int], fit: Fit) -> Page:
    """Show what was measured of an engine, and the model that fits it."""
    page = fit.page()
    return Page(description, f"{in_words(machine)}; {page.heading}", page.verdicts, page.sections)


def in_words(machine: Mapping[str, str | int]) -> str:
    """Return facts about a machine on a line."""
    return ", ".join(
        str(value) if name == "processor" else f"{name} {value}" for name, value in machine.items()
    )
