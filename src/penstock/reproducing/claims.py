"""An item of the paper: what it says, what is measured here, and whether they are the same."""

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import polars as pl

from penstock.errors import InputError
from penstock.show.page import Page, Shown, Table

Sameness = Literal["same", "differs", "changed"]
"""``changed``: the scenario is not that of the item, so nothing is judged: what is published is of
other inputs.
"""


@dataclasses.dataclass(frozen=True)
class Item:
    """An item of the paper, or an experiment beyond it.

    Attributes
    ----------
    name
        As the command line has it; also of its scenario file.
    title
        What it shows.
    source
        Where it stands in the paper.
    function
        What measures it, a function from Setup to Reproduction: ``module.function`` of this
        package.
    samples
        Settings of its file of which more make the answer surer, and no other one.
    """

    name: str
    title: str
    source: str
    function: str
    samples: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Its scenario file."""
        return (
            resources.files("penstock.reproducing") / "scenarios" / f"{self.name}.yaml"
        ).read_text(encoding="utf-8")


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
        Whether they agree; None where the scenario was changed, so that they need not.
    why
        Why they do not, or what has to be known to compare them; never empty where they differ.
    """

    what: str
    published: str
    measured: str
    same: bool | None
    why: str = ""

    def __post_init__(self) -> None:
        if self.same is False and not self.why:
            raise InputError(f"the claim {self.what!r} differs without a reason; give one")

    @classmethod
    def judged(cls, what: str, published: str, measured: str, same: bool, why: str) -> "Claim":
        """Return a claim that gives its reason only where it differs."""
        return cls(what, published, measured, same, "" if same else why)

    @property
    def verdict(self) -> Sameness:
        """In one word."""
        if self.same is None:
            return "changed"
        return "same" if self.same else "differs"


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction(Shown):
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
    changed
        Keys of the scenario that are not as the item's own has them; claims are then not judged.
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
    changed: tuple[str, ...] = ()

    def of_changed(self, keys: Sequence[str]) -> "Reproduction":
        """Return the same of a scenario that was changed, of which nothing is judged."""
        note = (
            f"the scenario was changed ({', '.join(keys)}): nothing is judged; what was published "
            "belongs to the item's own scenario, what a theorem gives is computed for yours"
        )
        claims = tuple(dataclasses.replace(claim, same=None, why="") for claim in self.claims)
        return dataclasses.replace(
            self, claims=claims, assumed=(note, *self.assumed), changed=tuple(keys)
        )

    @property
    def differing(self) -> tuple[Claim, ...]:
        """Claims that differ."""
        return tuple(claim for claim in self.claims if claim.same is False)

    @property
    def verdict(self) -> Sameness:
        """In one word, of all claims."""
        if self.changed:
            return "changed"
        return "differs" if self.differing else "same"

    def page(self) -> Page:
        """Return the item as a page."""
        from penstock.reproducing.view import reproduction_page

        return reproduction_page(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "claims": [
                dataclasses.asdict(claim) | {"verdict": claim.verdict} for claim in self.claims
            ],
            "assumed": list(self.assumed),
            "changed": list(self.changed),
            "rows": self.rows.to_dicts(),
        }
