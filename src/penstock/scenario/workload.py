"""What arrives, in a scenario: a trace, a recording, a look-alike, or a process with lengths that
are numbers or distributions.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from penstock import checks
from penstock.document import Section, Whole
from penstock.errors import InputError, nearest
from penstock.workload.lengths import (
    Constant,
    Gamma,
    Geometric,
    Length,
    LogNormal,
    Mixture,
    Uniform,
)
from penstock.workload.watched import read_watched
from penstock.workload.workload import Workload, read_trace


class _Mean(Section):
    mean: float
    max: Whole | None = None


class _Spread(_Mean):
    cv: float


class _Part(Section):
    weight: float
    length: Any


def _one_key(value: Mapping[str, Any], known: Mapping[str, Any], what: str) -> str:
    """Return the single key of a mapping that chooses a kind."""
    chosen = [key for key in value if key in known]
    if len(value) != 1 or not chosen:
        odd = next((str(key) for key in value if key not in known), "")
        hint = nearest(odd, known) if odd else f"; choose one of {', '.join(known)}"
        raise InputError(
            f"{what}: unexpected {checks.shown(list(value)) if value else 'nothing'}{hint}"
        )
    return chosen[0]


def length(value: Any) -> Length:
    """Turn ``112``, ``{geometric: 112}``, ``{uniform: [100, 900]}`` and others into lengths."""
    if isinstance(value, Length):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(value)  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise InputError(
            f"a length is {checks.shown(value)}, but must be a number of tokens or a distribution "
            "such as "
            "{geometric: 112}"
        )
    kind = _one_key(
        value,
        dict.fromkeys(("constant", "geometric", "uniform", "lognormal", "gamma", "mixture")),
        "length",
    )
    given = value[kind]
    if kind == "constant":
        return Constant(given)
    if kind == "geometric":
        mean = _Mean.model_validate(given if isinstance(given, Mapping) else {"mean": given})
        return Geometric(mean.mean, mean.max)
    if kind == "uniform":
        if not (isinstance(given, list) and len(given) == 2):
            raise InputError(
                f"a uniform length is {checks.shown(given)}, but must be a list of two, [low, high]"
            )
        return Uniform(*given)
    if kind == "mixture":
        if not isinstance(given, list):
            raise InputError(
                f"a mixture is {checks.shown(given)}, but must be a list of parts {{weight: 1, "
                "length: 9}"
            )
        parts = [_Part.model_validate(part) for part in given]
        return Mixture([length(part.length) for part in parts], [part.weight for part in parts])
    spread = _Spread.model_validate(given)
    return (LogNormal if kind == "lognormal" else Gamma)(spread.mean, spread.cv, spread.max)


Lengthy = Annotated[Length, BeforeValidator(length)]


class _Drawn(Section):
    prompt: Lengthy
    output: Lengthy
    declared: Lengthy | None = None


class _Generated(_Drawn):
    rate: float
    cv: float | None = None


class _Burst(_Drawn):
    requests: Whole


_SENDERS = ("concurrency", "max_concurrency", "in_flight", "users", "num_clients", "num_users")
"""What other tools call the clients of a closed loop."""


class _Closed(Section):
    clients: Whole
    pause: float = 0.0
    prompt: Lengthy | None = None
    output: Lengthy | None = None
    declared: Lengthy | None = None

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say how clients are counted here."""
        if key in _SENDERS:
            return f"{section}.{key} is given as {section}: {{clients: ...}}"
        return super().unknown(section, key)


# What scenarios share whose rates and limits alone differ, is read once: it takes longest by far,
# and theory keeps what it knows of such lengths.
@functools.lru_cache(4)
def _preset(name: str, seed: int) -> Workload:
    return Workload.preset(name, seed=seed)


@functools.lru_cache(1)
def _trace(path: Path, stamp: tuple[int, int] | None, seed: int, options: str) -> Workload:
    return read_trace(path, seed=seed, **json.loads(options))


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return when a file was changed last, and its size; None where there is none to read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class WorkloadSection(Section):
    """What arrives: one of a ``trace``, a ``recording``, a look-alike ``preset``, a process, a
    ``burst`` of ``requests`` at once, or ``closed``: ``clients`` that each wait for their answer,
    and ``pause`` seconds, before they ask again.

    Clients ask for what is drawn from ``prompt`` and ``output``, or beside a trace, a recording or
    a preset for its requests, in order.
    A trace, recording or preset keeps its pattern where ``arrivals`` is ``scaled``; the others draw
    its requests at random. ``max_gib`` is unpacked; ``where`` chooses rows by the value of a column
    (``{http_code: 200}``); ``hash_block``: tokens of a prompt per id of a plain table
    (``hash_ids``, ``hash_ids_with_output``). ``declared`` is the most output tokens
    that a request says it may make, at least what it makes.
    """

    trace: str | None = None
    format: str | None = None
    columns: dict[str, str] | None = None
    hash_block: int | None = None
    max_gib: float | None = None
    where: dict[str, str | bool | int | float | None] | None = None
    recording: str | None = None
    engine: str | None = None
    preset: str | None = None
    poisson: _Generated | None = None
    deterministic: _Generated | None = None
    gamma: _Generated | None = None
    burst: _Burst | None = None
    closed: _Closed | None = None
    rate: float | None = None
    arrivals: Literal["scaled", "poisson", "deterministic", "gamma"] | None = None
    cv: float | None = None
    declared: Lengthy | None = None

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say where lengths belong, and what sends requests in place of a rate."""
        if key in (*_SENDERS, "clients"):
            return (
                f"{section}.{key} is the clients of {section}: {{closed: {{clients: 25, prompt: "
                "512, output: 128}}"
            )
        if key not in _Generated.model_fields:
            return super().unknown(section, key)
        return (
            f"{section}.{key} belongs to a process that draws requests, such as {section}: "
            "{poisson: {rate: 2, prompt: 512, output: 128}}"
        )

    def build(self, folder: Path, seed: int) -> Workload:
        """Return the workload; relative paths are looked for in ``folder``."""
        files = ("trace", "recording", "preset")
        kinds = (*files, "poisson", "deterministic", "gamma", "burst", "closed")
        chosen = [kind for kind in kinds if getattr(self, kind) is not None]
        if chosen[-1:] == ["closed"] and chosen[0] in files:
            chosen.remove("closed")  # its clients send those requests
        if len(chosen) != 1:
            raise InputError(
                f"workload: give one of {', '.join(kinds)}, not {' and '.join(chosen) or 'none'}"
            )
        kind = chosen[0]
        if kind != "trace" and self._of_trace:
            raise InputError(
                "workload: `format`, `columns`, `hash_block`, `max_gib` and `where` describe a "
                f"trace, not {kind!r}; leave them out"
            )
        if kind != "recording" and self.engine is not None:
            raise InputError(
                f"workload: `engine` names an engine of a recording, and not of {kind!r}; leave it "
                "out"
            )
        if kind == "trace":
            return self._changed(self._recorded(folder, seed))
        if self.recording is not None:
            path = folder / checks.path("workload.recording", self.recording)
            return self._changed(read_watched(path, self.engine, seed))
        if self.preset is not None:
            return self._changed(_preset(self.preset, seed))
        if self.declared is not None:
            raise InputError(f"workload: put `declared` inside {kind!r}, beside prompt and output")
        if self.rate is not None or self.arrivals is not None or self.cv is not None:
            raise InputError(
                "workload: `rate`, `arrivals` and `cv` change a trace, a recording or a preset; "
                f"put them inside {kind!r}"
            )
        workload, declared = self._drawn(kind, seed), getattr(self, kind).declared
        return workload if declared is None else workload.with_declared(declared)

    def _recorded(self, folder: Path, seed: int) -> Workload:
        assert self.trace is not None
        if self.trace == "-":
            raise InputError(
                "workload.trace is '-', standard input, which a scenario cannot name; save it as "
                "a file"
            )
        path = folder / checks.path("workload.trace", self.trace)
        from penstock.traces import catalogue

        if self.trace in {entry.name for entry in catalogue.CATALOGUE} and not path.exists():
            path = catalogue.path_of(self.trace) or path
            if not path.exists():
                raise InputError(
                    f"trace {self.trace!r} is not on this machine; run `penstock traces get "
                    f"{self.trace}` first"
                )
        return _trace(path, _stamp(path), seed, json.dumps(self._of_trace))

    @property
    def _of_trace(self) -> dict[str, Any]:
        """What is given to `read_trace`."""
        names = ("format", "columns", "hash_block", "max_gib", "where")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _changed(self, workload: Workload) -> Workload:
        if self.declared is not None:
            workload = workload.with_declared(self.declared)
        if self.closed is not None:
            of = self.closed
            idle = (self.rate, self.arrivals, self.cv, of.prompt, of.output, of.declared)
            if any(given is not None for given in idle):
                raise InputError(
                    "workload: clients of `closed` send the requests of the trace when they are "
                    "answered; leave out `rate`, `arrivals`, `cv`, and all of `closed` but "
                    "`clients` and `pause`"
                )
            return workload.with_clients(of.clients, of.pause)
        if self.rate is None and self.arrivals in (None, "scaled") and self.cv is None:
            return workload
        rate = workload.rate if self.rate is None else self.rate
        return workload.with_rate(rate, self.arrivals or "scaled", cv=self.cv)

    def _drawn(self, kind: str, seed: int) -> Workload:
        if self.burst is not None:
            of = self.burst
            return Workload.burst(of.requests, of.prompt, of.output, seed=seed)
        if self.closed is not None:
            clients, prompt, output = self.closed.clients, self.closed.prompt, self.closed.output
            if prompt is None or output is None:
                raise InputError(
                    "workload.closed: say how long requests are (`prompt`, `output`), or which "
                    "`trace`, `recording` or `preset` beside it has them"
                )
            return Workload.closed(clients, prompt, output, pause_s=self.closed.pause, seed=seed)
        process: _Generated = getattr(self, kind)
        if (process.cv is not None) != (kind == "gamma"):
            raise InputError(
                f"workload.{kind}: gamma arrivals need `cv`, the standard deviation of a gap over "
                "its mean, and no "
                "others take it"
            )
        if process.cv is not None:
            return Workload.gamma(
                process.rate, process.cv, process.prompt, process.output, seed=seed
            )
        make = Workload.poisson if kind == "poisson" else Workload.deterministic
        return make(process.rate, process.prompt, process.output, seed=seed)
