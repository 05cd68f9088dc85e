"""An item of the paper: what it is measured from, what it says, and whether the two agree."""

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import polars as pl
from pydantic import AfterValidator, Field

from penstock import checks
from penstock.document import Section, Whole, parsed, short
from penstock.errors import InputError
from penstock.scenario.network import NetworkScenario, build_network
from penstock.scenario.scenario import Scenario, build
from penstock.show.page import Page, Shown, Table
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.traces import catalogue
from penstock.workload.pairs import Recorded
from penstock.workload.workload import Workload, read_trace

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


Settings = TypeVar("Settings", bound=Section)
Value = TypeVar("Value", bound=Hashable)
Step = TypeVar("Step")
Name = TypeVar("Name")

SECTIONS = ("workload", "server", "simulate", "network")
"""Those that an item can read besides ``reproduce``; `Setup.scenario` and `Setup.network` refuse
the wrong ones.
"""

LOOK_ALIKES = {"azure-llm-2023-code": "azure-code", "azure-llm-2023-conv": "azure-conv"}
"""Recorded traces, and the preset that stands for each where it is not on this machine."""


def _once(values: list[Value]) -> list[Value]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{checks.shown(twice)} stands twice, which measures it again under one name; drop one"
        )
    return values


Different = Annotated[list[Value], AfterValidator(_once)]
"""A list in which nothing stands twice."""

Seed = Annotated[Whole, Field(ge=0, le=10**9)]
Seeds = Annotated[Different[Seed], Field(max_length=1_000)]
Some = Annotated[Whole, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


@dataclasses.dataclass(frozen=True)
class Setup:
    """An item, and what it is measured from.

    Attributes
    ----------
    item
        What is measured.
    document
        The file: ``reproduce`` with ``item`` and its settings, and what a scenario has where the
        item needs it.
    folder
        Where its paths begin.
    data
        A folder with recorded traces and profiles, or None.
    progress
        Called with the share that is done.
    """

    item: Item
    document: Mapping[str, Any]
    folder: Path
    data: Path | None = None
    progress: Callable[[float], object] = lambda share: None

    def settings(self, model: type[Settings], sections: Collection[str] = SECTIONS) -> Settings:
        """Return the section ``reproduce`` as an item declares it.

        Parameters
        ----------
        model
            Its keys.
        sections
            Others that the item reads; an item that builds no scenario has to name them.

        Raises
        ------
        InputError
            If a key or a section is unknown, or a value cannot be used.
        """
        for name in self.document:
            if name != "reproduce" and name not in sections:
                raise InputError(
                    f"{short(name)} is no section that {self.item.name} reads, so it would change "
                    f"nothing; leave it out ({', '.join(('reproduce', *sections))} may stand there)"
                )
        keys = {key: value for key, value in self.document["reproduce"].items() if key != "item"}
        try:
            return parsed(keys, model, "reproduce", f"{', '.join(model.known_keys()) or 'no keys'}")
        except InputError as error:
            reason = str(error)
            raise InputError(
                reason if reason.startswith("reproduce") else f"reproduce.{reason}"
            ) from None

    def each(self, steps: Sequence[Step], part: int = 0, parts: int = 1) -> Iterator[Step]:
        """Yield steps of one of so many equal parts of the work, and report after each what is
        done.
        """
        for count, step in enumerate(steps, 1):
            yield step
            self.progress((part + count / len(steps)) / parts)

    def scenario(self, **sections: Any) -> Scenario:
        """Return the file as a scenario, with keys of its sections changed: ``server={"policy":
        ...}``.
        """
        document = self._sections
        for name, changed in sections.items():
            section = document.get(name, {})
            if not isinstance(section, Mapping):
                raise InputError(
                    f"{name} must be a mapping of keys, not {checks.shown(section)}; give its "
                    "keys below it"
                )
            document[name] = {**section, **changed}
        return build(document, self.folder, self.item.name)

    @property
    def _sections(self) -> dict[str, Any]:
        return {key: value for key, value in self.document.items() if key != "reproduce"}

    def network(self) -> NetworkScenario:
        """Return the file as a scenario of a network."""
        return build_network(self._sections, self.folder, self.item.name)

    def recorded(self, name: str) -> tuple[Workload, str]:
        """Return a recorded trace, or its look-alike, and what has to be said of it.

        A trace is looked for in the folder of the data, by its name in the catalogue or as
        ``azure_llm_2023_code.csv``, then among those that ``penstock traces get`` has fetched.
        """
        candidates = [catalogue.path_of(name)]
        if self.data is not None:
            file = f"{name.replace('-', '_')}.csv"
            candidates[:0] = [self.data / name, self.data / file, self.data / "traces" / file]
        for path in candidates:
            if path is not None and path.is_file():
                trace = read_trace(path)
                assert isinstance(trace.lengths, Recorded)
                return (
                    trace,
                    f"{name}: the public trace, {trace.lengths.prompt_tokens.size:,} requests",
                )
        alike = LOOK_ALIKES.get(name)
        if alike is None:
            raise InputError(
                f"the trace {name} is not on this machine; run `penstock traces get {name}`, or "
                "give --data"
            )
        return Workload.preset(alike), (
            f"{name} is not here (`penstock traces get {name}`, or --data), so its look-alike "
            f"{alike} was drawn"
        )

    def traced(self, trace: str) -> tuple[Workload, str, Scenario]:
        """Return the workload of the file, else a recorded trace or its look-alike; what has to be
        said of it; and the file as a scenario, for its server and how much to simulate.
        """
        if "workload" in self.document:
            scenario = self.scenario()
            workload = scenario.workload
            return workload, f"the requests are those of the scenario: {workload.name}", scenario
        workload, origin = self.recorded(trace)
        # A scenario has one; its seed is the file's.
        scenario = self.scenario(workload={"preset": "azure-code"})
        return workload.with_seed(scenario.workload.seed), origin, scenario

    def profile(self, name: str) -> Path | None:
        """Return the folder with measured layer times of a source, such as ``vidur``, if it is in
        the data.
        """
        folder = None if self.data is None else self.data / "profiling" / name
        return folder if folder is not None and folder.is_dir() else None

    def answer(
        self,
        claims: Iterable[Claim],
        rows: pl.DataFrame,
        charts: Mapping[str, Any],
        caption: str,
        tables: Iterable[Table] = (),
        assumed: Iterable[str] = (),
    ) -> Reproduction:
        """Return the item measured again; parameters as in `Reproduction`."""
        item = (self.item.name, self.item.title, self.item.source)
        return Reproduction(
            *item, tuple(claims), rows, charts, caption, tuple(tables), tuple(assumed)
        )


def refuse(wrong: object, reason: str) -> None:
    """Raise an `InputError` with the reason where something is wrong."""
    if wrong:
        raise InputError(reason)


def served_to_the_last(
    workload: Workload, count: int, servers: Mapping[Name, Server]
) -> dict[Name, Run]:
    """Return a run of each server with the same first requests, all of which are served, overloaded
    or not.
    """
    first = workload.requests(count)
    finite = Workload.from_arrays(first.arrival_s, first.prompt_tokens, first.output_tokens)
    return {name: simulate(finite, server, requests=count) for name, server in servers.items()}


def profile_in(folder: Path | None, file: str, key: str, *, of_files: bool = False) -> Path | None:
    """Return the file of a folder, or folder ``of_files``, that a key of the scenario names; None
    if it is not here.

    Raises
    ------
    InputError
        If the name is none of a file.
    """
    if folder is None:
        return None
    path = folder / file
    try:
        if path.is_dir() and not of_files:
            raise InputError(
                f"{key} is {checks.shown(file)}, which is a folder; give the path of a file in "
                f"{folder}"
            )
        return path if path.exists() else None
    except OSError as error:  # a name that is too long
        raise InputError(
            f"{key} is {checks.shown(file)}, which names no file ({error.strerror}); give the "
            f"path of one in {folder}"
        ) from None
