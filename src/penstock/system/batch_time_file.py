"""Batch times as YAML: the section of a scenario, and files that say where they come from."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from penstock import checks
from penstock.document import Section, parsed, read_document, the_one, with_keys_of, within
from penstock.errors import InputError
from penstock.fields import keys_of
from penstock.show.files import write_whole
from penstock.system.batch_time import Affine, BatchTime, Composition, Hinge, PiecewiseConstant
from penstock.system.gpu_memory import Gpu
from penstock.system.measured_times import Measured
from penstock.system.server import Server
from penstock.system.uncertain import Allowed, Known, Seen, Uncertainty, Within
from penstock.words import digits

_FORMS = ("affine", "hinge", "table", "measured", "composition", "file")
_STEPS = tuple(key.name for key in keys_of(PiecewiseConstant).values())


@with_keys_of(Affine)
class _Affine(Section):
    pass


@with_keys_of(Hinge)
class _Hinge(Section):
    pass


class _Table(Section):
    tokens: list[float]
    ms: list[float]

    def build(self) -> Measured:
        """Return batch times by straight lines between the rows."""
        times = [checks.seconds("server: measured.ms", ms) for ms in self.ms]
        measured = Measured(self.tokens, times)
        measured.refuse_falling("server: measured")
        return measured


@with_keys_of(PiecewiseConstant, optional=True)
class BatchTimeSection(Section):
    """Seconds of a batch: ``{c_ms, a_ms, b0}`` steps, or one of the other keys.

    ``table``: a path of measurements; ``file``: of what `write_batch_time` writes, or the like.
    """

    affine: _Affine | None = None
    hinge: _Hinge | None = None
    table: str | None = None
    measured: _Table | None = None
    composition: "_Composition | None" = None
    file: str | None = None

    def build(self, folder: Path) -> BatchTime:
        """Return the model; paths are relative to ``folder``."""
        steps = [name for name in _STEPS if getattr(self, name) is not None]
        forms = [name for name in _FORMS if getattr(self, name) is not None]
        with within("server.batch_time"):
            form = the_one(
                [*forms, *([", ".join(_STEPS)] if steps else [])], ("(c_ms, a_ms, b0)", *_FORMS)
            )
        if self.table is not None:
            return Measured.read(folder / checks.path("server.batch_time.table", self.table))
        if self.measured is not None:
            return self.measured.build()
        if self.file is not None:
            return self.read_file(folder).batch_time
        if self.composition is not None:
            return self.composition.build(folder)
        if form in _FORMS:
            formula: BatchTime = getattr(self, form).build()
            return formula
        missing = ", ".join(name for name in _STEPS if name not in steps)
        if missing:
            raise InputError(
                f"server.batch_time: {missing} missing; the steps c + a ceil(b / b0) need c_ms, "
                "a_ms and b0"
            )
        model: BatchTime = super().build()
        return model

    def read_file(self, folder: Path) -> "BatchTimeFile":
        """Return the batch-time file that it names."""
        return read_batch_time(folder / checks.path("server.batch_time.file", self.file))


@with_keys_of(Composition, without=("linear", "uncertainty"))
class _Composition(Section):
    """A `Composition`: ``linear`` by token load, attention in ns per pair or token of context."""

    linear: BatchTimeSection

    def build(self, folder: Path) -> Composition:
        """Return the model."""
        model: Composition = super().build(self.linear.build(folder))
        return model


BatchTimeSection.model_rebuild()


@with_keys_of(Seen)
class _Seen(Section):
    """What the rows of a calibration have seen: see `Seen`."""

    server_limits: dict[str, Any] = Field(default_factory=dict)


class _Uncertainty(Section):
    """How well batch times are known: see `penstock.system.uncertain`."""

    values: dict[str, float] | None = None
    covariance: list[list[float]] = Field(default_factory=list)
    noise: float = 0.0
    extremes: list[BatchTimeSection] = Field(default_factory=list)
    within: float | None = None
    judged: str = ""
    seen: _Seen | None = None

    def build(self, folder: Path) -> Known:
        """Return it."""
        seen = None if self.seen is None else self.seen.build()
        if self.within is not None:
            reason = "it is a factor that batch times are within"
            factor = checks.number("uncertainty: within", self.within, 1, 100, "", reason)
            return Within(factor, self.judged, seen)
        if self.values is not None:
            return Uncertainty(self.values, self.covariance, self.noise, seen)
        extremes = [section.build(folder) for section in self.extremes]
        compositions = [time for time in extremes if isinstance(time, Composition)]
        if not compositions or len(compositions) < len(extremes):
            raise InputError(
                "the uncertainty of batch times has neither values nor extremes that are "
                "compositions, so it says nothing; write the file again with `penstock calibrate`"
            )
        return Allowed(tuple(compositions), seen)


@dataclasses.dataclass(frozen=True)
class BatchTimeFile:
    """A batch-time model, and where it comes from.

    Attributes
    ----------
    description
        What was measured, in a line.
    batch_time
        The batch-time model.
    source
        Which measurements it was fitted to, or who published it.
    licence
        Licence of those measurements.
    model, accelerator, tensor_parallel
        Which language model on what, over how many of them.
    year
        When the measurements were made, or published.
    fit
        How well it fits them: whatever the fit reports, by name.
    name
        As ``hardware`` in a scenario, if it has one.
    """

    description: str
    batch_time: BatchTime
    source: str
    licence: str | None = None
    model: str | None = None
    accelerator: str | None = None
    tensor_parallel: int | None = None
    year: int | None = None
    fit: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""

    @property
    def weights(self) -> str | None:
        """What engines are told to load."""
        return self.model

    @property
    def gpu(self) -> Gpu | None:
        """The model on its GPUs, where the memory of both is known."""
        from penstock.system.models.catalogue import catalogue  # which reads a file

        if self.model is None or self.model not in catalogue() or self.memory_gib is None:
            return None
        return Gpu(self.model, self.memory_gib, self.tensor_parallel or 1)

    @property
    def memory_gib(self) -> float | None:
        """Memory of the GPU, GiB; None where it is not known."""
        from penstock.system.models.gpus import sheet_of

        sheet = sheet_of(self.accelerator)
        if sheet is None:
            return None
        return sheet.memory_gib

    @property
    def uncertainty(self) -> dict[str, Any] | None:
        """How well the batch times are known, as the file holds it."""
        known: Known | None = getattr(self.batch_time, "uncertainty", None)
        if known is None:
            return None
        return known.as_dict()

    @property
    def origin(self) -> str:
        """What was measured, by whom, and a warning of its age."""
        return f"{self.description}; {self.source}; newer engines may be faster"

    def notes(self, server: Server) -> tuple[str, ...]:
        """Return what one should know who uses it for a server: what was not measured, what no
        latency includes.
        """
        warnings, tokens = self.fit.get("warnings"), self.fit.get("tokens")
        notes = [
            f"batch times: {warning}"
            for warning in (warnings if isinstance(warnings, list) else ())
        ]
        most = (
            tokens[-1]
            if isinstance(tokens, list) and tokens and isinstance(tokens[-1], int | float)
            else None
        )
        if most is not None and most < server.token_budget:
            notes.append(
                f"batch times were measured for up to {most:,.0f} tokens; those of batches of up "
                f"to {server.token_budget:,} are extrapolated"
            )
        overhead = self.fit.get("overhead_ms")
        if isinstance(overhead, int | float) and overhead > 0:
            notes.append(
                f"clients wait {digits(overhead)} ms more (overhead), which no latency here "
                "includes"
            )
        return tuple(notes)


@with_keys_of(BatchTimeFile, without=("batch_time", "name"))
class _File(Section):
    batch_time: BatchTimeSection
    fit: dict[str, Any] = Field(default_factory=dict)
    uncertainty: _Uncertainty | None = None


def read_batch_time(path: str | Path) -> BatchTimeFile:
    """Read the batch-time file at ``path``.

    Raises
    ------
    InputError
        If it cannot be used; one line that says where and why.
    """
    path = Path(path)
    needs = "description, batch_time and source"
    section = parsed(read_document(path, "batch-time file"), _File, str(path), needs)
    if section.batch_time.file is not None:
        raise InputError(
            f"{path} names another file, {checks.shown(section.batch_time.file)}; use that one"
        )
    batch_time = section.batch_time.build(path.parent)
    if section.uncertainty is not None:
        if not isinstance(batch_time, Composition):
            raise InputError(
                f"{path} has an uncertainty, which is of a composition alone; give batch_time as "
                "one: {composition: {linear: ...}}"
            )
        known = section.uncertainty.build(path.parent)
        batch_time = dataclasses.replace(batch_time, uncertainty=known)
    file: BatchTimeFile = section.build(batch_time=batch_time)
    return file


def write_batch_time(path: str | Path, file: BatchTimeFile) -> None:
    """Write ``file`` to ``path``, where `read_batch_time` and a scenario's
    ``batch_time: {file: ...}`` read it.

    Raises
    ------
    InputError
        If the model is one of the user's own, which YAML cannot hold, or the file cannot be
        written.
    """
    fields = {name: getattr(file, name) for name in _File.model_fields} | {
        "batch_time": file.batch_time.as_section()
    }
    content = {name: value for name, value in fields.items() if value}
    try:
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        write_whole(Path(path), text.encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from None
