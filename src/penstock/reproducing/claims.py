"""What one item of the paper says, what is measured here, and whether they are the same."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import polars as pl

from penstock.errors import InputError
from penstock.page import Table

Sameness = Literal["same", "differs"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """One thing that is published, or proved, and what was measured.

    Attributes
    ----------
    what
        What it is about, in a few words.
    published, measured
        As they are printed, with units; what theory says where nothing is published.
    same
        Whether they agree.
    why
        Why they do not, or what has to be known to compare them; never empty where they differ.
    """

    what: str
    published: str
    measured: str
    same: bool
    why: str = ""

    def __post_init__(self) -> None:
        if not self.same and not self.why:
            raise InputError(f"the claim {self.what!r} differs without a reason; give one")

    @property
    def verdict(self) -> Sameness:
        """In one word."""
        return "same" if self.same else "differs"


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction:
    """An item of the paper, measured again.

    Attributes
    ----------
    name, title, source
        What it is called, what it shows, and where it stands in the paper.
    claims
        Published against measured.
    rows
        The figures that are drawn or compared, for a CSV file.
    charts
        Altair charts by what a reader who cannot see them should be told.
    caption
        How to read them.
    tables
        Shown besides the claims.
    assumed
        What the paper leaves open and was assumed here, a sentence each.
    """

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]
    rows: pl.DataFrame
    charts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    caption: str = ""
    tables: tuple[Table, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[Claim, ...]:
        """Claims that differ."""
        return tuple(claim for claim in self.claims if not claim.same)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "claims": [dataclasses.asdict(claim) | {"verdict": claim.verdict} for claim in self.claims],
            "assumed": list(self.assumed),
            "rows": self.rows.to_dicts(),
        }
