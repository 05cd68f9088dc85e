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
from penstock.document import Section, the_one, with_keys_of, within
from penstock.errors import InputError, nearest
from penstock.workload.lengths import BY_MEAN, Constant, Length, Mixture, Uniform
from penstock.workload.patience import Patience
from penstock.workload.watched import read_watched
from penstock.workload.workload import Workload, read_trace

_BY_MEAN = {name: with_keys_of(kind)(Section) for name, kind in BY_MEAN.items()}


class _Part(Section):
    weight: float
    length: Any


def length(value: Any) -> Any:
    """Turn ``112``, ``{geometric: 112}``, ``{uniform: [100, 900]}`` and others into lengths."""
    if isinstance(value, Length):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(value)  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise InputError(
            f"a length is {checks.shown(value)}, but must be a number of tokens or a distribution "
            "such as {geometric: 112}"
        )
    kind = _one_key(value)
    parameters = value[kind]
    if kind == "constant":
        return Constant(parameters)
    if kind == "uniform":
        if not (isinstance(parameters, list) and len(parameters) == 2):
            raise InputError(
                f"a uniform length is {checks.shown(parameters)}, but must be a list of two, "
                "[low, high]"
            )
        return Uniform(*parameters)
    if kind == "mixture":
        if not isinstance(parameters, list):
            raise InputError(
                f"a mixture is {checks.shown(parameters)}, but must be a list of parts "
                "{weight: 1, length: 9}"
            )
        parts = [_Part.model_validate(part) for part in parameters]
        return Mixture([length(part.length) for part in parts], [part.weight for part in parts])
    if kind == "geometric" and not isinstance(parameters, Mapping):
        parameters = {"mean": parameters}
    return _BY_MEAN[kind].model_validate(parameters).build()


def _one_key(value: Mapping[str, Any]) -> str:
    """Return the single key of a length, which chooses its kind."""
    kinds = ("constant", "uniform", *_BY_MEAN, "mixture")
    chosen = [key for key in value if key in kinds]
    if len(value) != 1 or not chosen:
        unknown = [str(key) for key in value if key not in kinds]
        hint = nearest(unknown[0], kinds) if unknown else f"; choose one of {', '.join(kinds)}"
        keys = checks.shown(list(value)) if value else "nothing"
        raise InputError(f"length: unexpected {keys}{hint}")
    return chosen[0]


Lengthy = Annotated[Length, BeforeValidator(length)]


class _Drawn(Section):
    prompt: Lengthy
    output: Lengthy
    declared: Lengthy | None = None

    def build(self, seed: int) -> Workload:
        """Return requests whose lengths are drawn."""
        workload: Workload = super().build(seed=seed)
        if self.declared is None:
            return workload
        return workload.with_declared(self.declared)


@with_keys_of(Workload.poisson, without=("seed",))
class _Poisson(_Drawn):
    pass


@with_keys_of(Workload.deterministic, without=("seed",))
class _Deterministic(_Drawn):
    pass


@with_keys_of(Workload.gamma, without=("seed",))
class _Gamma(_Drawn):
    pass


@with_keys_of(Workload.burst, without=("seed",))
class _Burst(_Drawn):
    pass


def _waits(value: Any) -> Any:
    """Turn ``{geometric: 9000}`` into a distribution of milliseconds; a number is one already."""
    return length(value) if isinstance(value, Mapping) else value


@with_keys_of(Patience)
class PatienceSection(Section):
    """How long clients wait, and how often they come again; see `Patience`."""

    ttft_ms: Annotated[Any, BeforeValidator(_waits)] = None
    e2e_ms: Annotated[Any, BeforeValidator(_waits)] = None


_SENDERS = ("concurrency", "max_concurrency", "in_flight", "users", "num_clients", "num_users")
"""What other tools call the clients of a closed loop."""


@with_keys_of(Workload.closed, without=("seed",))
class _Closed(_Drawn):
    prompt: Lengthy | None = None  # type: ignore[assignment]
    output: Lengthy | None = None  # type: ignore[assignment]

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
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


_FILES = ("trace", "recording", "preset")
_KINDS = (*_FILES, "poisson", "deterministic", "gamma", "burst", "closed")


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
    that a request says it may make, at least what it makes. ``patience``: clients who leave, and
    come again.
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
    poisson: _Poisson | None = None
    deterministic: _Deterministic | None = None
    gamma: _Gamma | None = None
    burst: _Burst | None = None
    closed: _Closed | None = None
    rate: float | None = None
    arrivals: Literal["scaled", "poisson", "deterministic", "gamma"] | None = None
    cv: float | None = None
    declared: Lengthy | None = None
    patience: PatienceSection | None = None

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say where lengths belong, and what sends requests in place of a rate."""
        if key in (*_SENDERS, "clients"):
            return (
                f"{section}.{key} is the clients of {section}: {{closed: {{clients: 25, prompt: "
                "512, output: 128}}"
            )
        if key not in _Poisson.model_fields:
            return super().unknown(section, key)
        return (
            f"{section}.{key} belongs to a process that draws requests, such as {section}: "
            "{poisson: {rate: 2, prompt: 512, output: 128}}"
        )

    def build(self, folder: Path, seed: int) -> Workload:
        """Return the workload; relative paths are looked for in ``folder``."""
        workload = self._requests(folder, seed)
        if self.patience is None:
            return workload
        with within("workload.patience"):
            return workload.with_patience(self.patience.build())

    def _requests(self, folder: Path, seed: int) -> Workload:
        """Return the requests, whose clients wait for ever."""
        chosen = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if chosen[-1:] == ["closed"] and chosen[0] in _FILES:
            chosen.remove("closed")  # its clients send those requests
        with within("workload"):
            kind = the_one(chosen, _KINDS)
        self._refuse_idle_keys(kind)
        if kind == "trace":
            return self._changed(self._recorded(folder, seed))
        if kind == "recording":
            path = folder / checks.path("workload.recording", self.recording)
            return self._changed(read_watched(path, self.engine, seed))
        if kind == "preset":
            return self._changed(_preset(str(self.preset), seed))
        if self.closed is not None and None in (self.closed.prompt, self.closed.output):
            raise InputError(
                "workload.closed: say how long requests are (`prompt`, `output`), or which "
                "`trace`, `recording` or `preset` beside it has them"
            )
        with within(f"workload.{kind}"):
            workload: Workload = getattr(self, kind).build(seed)
        return workload

    def _refuse_idle_keys(self, kind: str) -> None:
        """Refuse keys that a workload of this kind makes no use of."""
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
        if kind in _FILES:
            return
        if self.declared is not None:
            raise InputError(f"workload: put `declared` inside {kind!r}, beside prompt and output")
        if self.rate is not None or self.arrivals is not None or self.cv is not None:
            raise InputError(
                "workload: `rate`, `arrivals` and `cv` change a trace, a recording or a preset; "
                f"put them inside {kind!r}"
            )

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
            clients = self.closed.arguments()
            if any(key is not None for key in (self.rate, self.arrivals, self.cv)) or not (
                clients.keys() <= {"clients", "pause_s"} and self.closed.declared is None
            ):
                raise InputError(
                    "workload: clients of `closed` send the requests of the trace when they are "
                    "answered; leave out `rate`, `arrivals`, `cv`, and all of `closed` but "
                    "`clients` and `pause`"
                )
            return workload.with_clients(**clients)
        if self.rate is None and self.arrivals in (None, "scaled") and self.cv is None:
            return workload
        rate = self.rate
        if rate is None:
            rate = workload.rate
        return workload.with_rate(rate, self.arrivals or "scaled", cv=self.cv)
