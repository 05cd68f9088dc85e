"""A scenario: one YAML file that says what arrives, what serves, and how long to look."""

import dataclasses
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.system.batch_time import Affine, BatchTime, Hinge, Measured, PiecewiseConstant
from penstock.system.engines import ENGINES, Engine, engine_defaults
from penstock.system.memory import Memory
from penstock.system.policies import Policy, resolve
from penstock.system.presets import hardware
from penstock.system.server import Server, usual_block_size
from penstock.workload import catalogue
from penstock.workload.lengths import Constant, Gamma, Geometric, Length, LogNormal, Mixture, Uniform
from penstock.workload.workload import Workload, read_trace

DEFAULT_REQUESTS = 20_000

_MOST_VALUES = 100_000
"""In a scenario, its aliases written out: nine lines of them can stand for billions."""

_LONGEST_MS = 1e9


def _whole(value: Any) -> Any:
    """Let 1e3 be a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class _Section(BaseModel):
    """A mapping that refuses keys it does not know, and text or true where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class _Mean(_Section):
    mean: float
    max: Whole | None = None


class _Spread(_Mean):
    cv: float


class _Part(_Section):
    weight: float
    length: Any


def _one_key(value: Mapping[str, Any], known: Mapping[str, Any], what: str) -> str:
    """Return the single key of a mapping that chooses a kind."""
    chosen = [key for key in value if key in known]
    if len(value) != 1 or not chosen:
        odd = next((str(key) for key in value if key not in known), "")
        hint = nearest(odd, known) if odd else f"; choose one of {', '.join(known)}"
        raise InputError(f"{what}: unexpected {checks.shown(list(value)) if value else 'nothing'}{hint}")
    return chosen[0]


def _length(value: Any) -> Length:
    """Turn ``112``, ``{geometric: 112}``, ``{lognormal: {mean: 200, cv: 1.5, max: 4096}}`` ... into a distribution."""
    if isinstance(value, Length):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(value)  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise InputError(
            f"a length is {checks.shown(value)}, but must be a number of tokens or a distribution such as "
            "{geometric: 112}"
        )
    kind = _one_key(
        value, dict.fromkeys(("constant", "geometric", "uniform", "lognormal", "gamma", "mixture")), "length"
    )
    given = value[kind]
    if kind == "constant":
        return Constant(given)
    if kind == "geometric":
        mean = _Mean.model_validate(given if isinstance(given, Mapping) else {"mean": given})
        return Geometric(mean.mean, mean.max)
    if kind == "uniform":
        if not (isinstance(given, list) and len(given) == 2):
            raise InputError(f"a uniform length is {checks.shown(given)}, but must be a list of two, [low, high]")
        return Uniform(*given)
    if kind == "mixture":
        if not isinstance(given, list):
            raise InputError(
                f"a mixture is {checks.shown(given)}, but must be a list of parts {{weight: 1, length: 9}}"
            )
        parts = [_Part.model_validate(part) for part in given]
        return Mixture([_length(part.length) for part in parts], [part.weight for part in parts])
    spread = _Spread.model_validate(given)
    return (LogNormal if kind == "lognormal" else Gamma)(spread.mean, spread.cv, spread.max)


Lengthy = Annotated[Length, BeforeValidator(_length)]


_CV = "gamma arrivals need `cv`, the standard deviation of a gap over its mean, and no others take it"


class _Generated(_Section):
    rate: float
    prompt: Lengthy
    output: Lengthy
    cv: float | None = None


class WorkloadSection(_Section):
    """What arrives: a ``trace``, a ``preset`` look-alike, or a generated process; one of them.

    ``rate`` and ``arrivals`` change a trace or a preset: ``scaled`` keeps its pattern, ``poisson``, ``deterministic``
    and ``gamma`` (with ``cv``) draw its requests at random under such a process.
    """

    trace: str | None = None
    format: str | None = None
    columns: dict[str, str] | None = None
    preset: str | None = None
    poisson: _Generated | None = None
    deterministic: _Generated | None = None
    gamma: _Generated | None = None
    rate: float | None = None
    arrivals: Literal["scaled", "poisson", "deterministic", "gamma"] | None = None
    cv: float | None = None

    def build(self, folder: Path, seed: int) -> Workload:
        """Return the workload; relative paths are looked for in ``folder``."""
        kinds = ("trace", "preset", "poisson", "deterministic", "gamma")
        chosen = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(chosen) != 1:
            raise InputError(f"workload: give one of {', '.join(kinds)}, not {' and '.join(chosen) or 'none'}")
        kind = chosen[0]
        if kind != "trace" and (self.format or self.columns):
            raise InputError(f"workload: `format` and `columns` describe a trace, not {kind!r}; leave them out")
        if kind in ("trace", "preset"):
            return self._with_rate(self._recorded(folder, seed) if kind == "trace" else self._look_alike(seed))
        if self.rate is not None or self.arrivals is not None or self.cv is not None:
            raise InputError(
                f"workload: `rate`, `arrivals` and `cv` change a trace or a preset; put them inside {kind!r}"
            )
        return self._generated(kind, seed)

    def _recorded(self, folder: Path, seed: int) -> Workload:
        assert self.trace is not None
        path = folder / checks.path("workload.trace", self.trace)
        if self.trace in {entry.name for entry in catalogue.CATALOGUE} and not path.exists():
            path = catalogue.path_of(self.trace) or path
            if not path.exists():
                raise InputError(
                    f"trace {self.trace!r} is not on this machine; run `penstock traces get {self.trace}` first"
                )
        return read_trace(path, format=self.format, columns=self.columns, seed=seed)

    def _look_alike(self, seed: int) -> Workload:
        assert self.preset is not None
        return Workload.preset(self.preset, seed=seed)

    def _with_rate(self, workload: Workload) -> Workload:
        if self.rate is None:
            if self.arrivals in (None, "scaled") and self.cv is None:
                return workload
            return workload.with_rate(workload.rate, self.arrivals or "scaled", cv=self.cv)
        return workload.with_rate(self.rate, self.arrivals or "scaled", cv=self.cv)

    def _generated(self, kind: str, seed: int) -> Workload:
        given: _Generated = getattr(self, kind)
        if (given.cv is not None) != (kind == "gamma"):
            raise InputError(f"workload.{kind}: {_CV}")
        if kind == "gamma":
            assert given.cv is not None
            return Workload.gamma(given.rate, given.cv, given.prompt, given.output, seed=seed)
        make = Workload.poisson if kind == "poisson" else Workload.deterministic
        return make(given.rate, given.prompt, given.output, seed=seed)


class _PerToken(_Section):
    c_ms: float
    a_ms_per_token: float


class _Bend(_PerToken):
    b0: float


class BatchTimeSection(_Section):
    """Seconds of a batch: ``{c_ms, a_ms, b0}`` steps, or one of ``affine``, ``hinge``, ``table``."""

    c_ms: float | None = None
    a_ms: float | None = None
    b0: Whole | None = None
    affine: _PerToken | None = None
    hinge: _Bend | None = None
    table: str | None = None

    def build(self, folder: Path) -> BatchTime:
        """Return the model; a table's path is relative to ``folder``."""
        steps = {"c_ms": self.c_ms, "a_ms": self.a_ms, "b0": self.b0}
        given = [name for name in ("affine", "hinge", "table") if getattr(self, name) is not None]
        if any(value is not None for value in steps.values()):
            given.append("c_ms, a_ms, b0")
        if len(given) != 1:
            raise InputError(
                "server.batch_time: give one of (c_ms, a_ms, b0), affine, hinge, table, "
                f"not {' and '.join(given) or 'none'}"
            )
        if self.affine:
            return Affine(_seconds("c_ms", self.affine.c_ms), _seconds("a_ms_per_token", self.affine.a_ms_per_token))
        if self.hinge:
            c, a = _seconds("c_ms", self.hinge.c_ms), _seconds("a_ms_per_token", self.hinge.a_ms_per_token)
            return Hinge(c, a, self.hinge.b0)
        if self.table is not None:
            return Measured.read(folder / checks.path("server.batch_time.table", self.table))
        if self.c_ms is None or self.a_ms is None or self.b0 is None:
            missing = ", ".join(name for name, value in steps.items() if value is None)
            raise InputError(
                f"server.batch_time: {missing} missing; the steps c + a ceil(b / b0) need c_ms, a_ms and b0"
            )
        return PiecewiseConstant(_seconds("c_ms", self.c_ms), _seconds("a_ms", self.a_ms), self.b0)


def _seconds(name: str, ms: float) -> float:
    why = "nothing takes negative time, or days; give milliseconds"
    return checks.number(f"server: {name}", ms, 0, _LONGEST_MS, "ms", why) / 1e3


ENGINE_NAMES = {
    "token_budget": ("token_budget", "max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens"),
    "max_batch_size": ("max_batch_size", "max_num_seqs", "max_running_requests"),
    "order": ("order", "scheduling_policy"),
    "kv_blocks": ("kv_blocks", "num_gpu_blocks", "num_gpu_blocks_override"),
    "kv_tokens": ("kv_tokens", "max_total_tokens"),
    "block_size": ("block_size", "page_size"),
}
"""What vLLM, SGLang and TensorRT-LLM call the limits."""


def _alias(*names: str) -> AliasChoices:
    """Accept an engine's own name for a limit, with dashes or underscores."""
    return AliasChoices(*names, *(name.replace("_", "-") for name in names))


class MemorySection(_Section):
    """KV memory: ``blocks`` of ``block_size`` tokens, or ``tokens``, and the rules of its use; see `Memory`."""

    blocks: Whole | None = None
    tokens: Whole | None = None
    block_size: Whole | None = None
    watermark: float | None = None
    admission: Literal["input", "completion", "optimistic"] | None = None
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_ms_per_block: float = 0.0
    too_long: Literal["error", "drop"] = "error"
    prefix_caching: bool = False


class GpuSection(_Section):
    """A GPU, from whose memory engines choose their limits; whether it is an A100 the hardware preset says too."""

    memory_gib: float
    a100: bool | None = None
    offline: bool = False


class ServerSection(_Section):
    """What serves; engine names are accepted for the limits."""

    hardware: str | None = None
    batch_time: BatchTimeSection | None = None
    token_budget: Whole | None = Field(None, validation_alias=_alias(*ENGINE_NAMES["token_budget"]))
    max_batch_size: Whole | None = Field(None, validation_alias=_alias(*ENGINE_NAMES["max_batch_size"]))
    gpu: GpuSection | None = None
    policy: str = "sarathi"
    policy_params: Any = ()
    scope: Literal["batch", "running"] = "running"
    convention: Literal["paper", "engine"] = "engine"
    order: Literal["fcfs", "priority"] = Field("fcfs", validation_alias=_alias(*ENGINE_NAMES["order"]))
    kv_blocks: Whole | None = Field(None, validation_alias=_alias(*ENGINE_NAMES["kv_blocks"]))
    kv_tokens: Whole | None = Field(None, validation_alias=_alias(*ENGINE_NAMES["kv_tokens"]))
    block_size: Whole | None = Field(None, validation_alias=_alias(*ENGINE_NAMES["block_size"]))
    memory: MemorySection | None = None

    def build(self, folder: Path) -> Server:
        """Return the server; files are looked for in ``folder``."""
        if (self.hardware is None) == (self.batch_time is None):
            raise InputError("server: give either `hardware` (a preset) or `batch_time`, and not both")
        batch_time = self.batch_time.build(folder) if self.batch_time else hardware(str(self.hardware)).batch_time
        token_budget, max_batch_size = self._limits()
        policy = resolve(self.policy, folder=folder)
        memory = self._memory(policy)
        if memory is None and self.block_size is not None and self.kv_blocks is None and self.kv_tokens is None:
            raise InputError(
                f"server: block_size is {self.block_size}, but KV memory has no limit; give kv_blocks or kv_tokens"
            )
        return Server(
            batch_time,
            token_budget,
            max_batch_size,
            policy,
            self.scope,
            self.convention,
            self.policy_params,
            memory,
            self.order,
            kv_blocks=self.kv_blocks,
            kv_tokens=self.kv_tokens,
            block_size=self.block_size,
        )

    def _limits(self) -> tuple[int, int | None]:
        """Return token budget and max batch size: those given, else what the engine chooses for the GPU."""
        budget, slots = self.token_budget, self.max_batch_size
        if self.gpu is not None:
            a100 = "a100" in (self.hardware or "") if self.gpu.a100 is None else self.gpu.a100
            chosen = engine_defaults(self.policy, self.gpu.memory_gib, a100=a100, offline=self.gpu.offline)
            budget = chosen.token_budget if budget is None else budget
            slots = chosen.max_batch_size if slots is None else slots
        if budget is None:
            raise InputError(
                "server.token_budget is missing; add it (vLLM's max_num_batched_tokens), or for vllm and sglang "
                "`gpu: {memory_gib: 80}`, from which they choose it"
            )
        return budget, slots

    def _memory(self, policy: Policy | Engine) -> Memory | None:
        """Return the KV memory that ``memory`` describes."""
        given = self.memory
        if given is None:
            return None
        if self.kv_blocks is not None or self.kv_tokens is not None or self.block_size is not None:
            raise InputError(
                "server: beside `memory`, kv_blocks, kv_tokens and block_size (num_gpu_blocks, max_total_tokens, "
                "page_size) are its keys `blocks`, `tokens` and `block_size`; give them there"
            )
        if (given.blocks is None) == (given.tokens is None):
            raise InputError("server.memory: give either `blocks` or `tokens`, and not both")
        block_size = usual_block_size(policy) if given.block_size is None else given.block_size
        by_tokens = given.tokens is not None
        whole = Memory.of_tokens(given.tokens, block_size) if by_tokens else Memory(given.blocks, block_size)  # type: ignore[arg-type]
        return dataclasses.replace(
            whole,
            watermark=given.watermark,
            admission=given.admission,
            preemption=given.preemption,
            swap_s=_seconds("swap_ms_per_block", given.swap_ms_per_block),
            too_long=given.too_long,
            prefix_caching=given.prefix_caching,
        )


class SimulateSection(_Section):
    """How much to simulate: so many ``requests``, or ``until`` so many simulated seconds."""

    requests: Whole | None = None
    until: float | None = None
    seed: Whole = 0


class _Document(_Section):
    workload: WorkloadSection
    server: ServerSection
    simulate: SimulateSection = SimulateSection()


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What a scenario file describes, ready to use.

    Attributes
    ----------
    name
        The file's name.
    workload, server
        What arrives and what serves.
    requests, until
        How much to simulate: arrivals, or seconds since the first; one of them is None.
    folder
        Where the file's own paths are looked for.
    """

    name: str
    workload: Workload
    server: Server
    requests: int | None
    until: float | None
    folder: Path


def read_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises
    ------
    InputError
        In one line, if the file is missing, no YAML, of the wrong shape, or names something unknown.
    """
    path = checks.path("the name of a scenario", path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"there is no scenario file {path}; `penstock check --help` shows what one looks like"
        ) from None
    except (OSError, ValueError) as error:  # a name that is too long or holds a zero; no UTF-8
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot read {checks.shown(str(path))} as text: {reason}; a scenario is a YAML file"
        ) from None
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"{path} is no YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}") from None
    except RecursionError:
        raise InputError(f"{path} nests values too deeply to be read; a scenario needs four levels") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # 2020-99-99, !!int ''
        reason = str(error).split("; ")[0]
        raise InputError(f"{path} holds a value that cannot be read ({reason}); mend it, or quote text") from None
    return build(document, path.parent, path.name)


class _Loader(yaml.SafeLoader):
    """YAML in which no key of a mapping stands twice, and 1e3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    problem="merge keys (<<) are not read; write the keys out", problem_mark=key.start_mark
                )
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {checks.shown(name)} stands twice, so which value counts is unclear; drop one",
                    problem_mark=key.start_mark,
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(  # as in YAML 1.2; 1.1 wants 1.0e+3
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _refuse_endless(document: Any, name: str) -> None:
    """Refuse a document that contains itself, or a value so often that it could not be gone through."""
    left, count = [document], 0
    while left:
        value = left.pop()
        count += 1
        if count + len(left) > _MOST_VALUES:
            raise InputError(
                f"{name} holds more than {_MOST_VALUES:,} values with its aliases (*) written out, or one within "
                "itself, so reading would not end; write the values themselves"
            )
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)


def build(document: Any, folder: Path, name: str = "scenario") -> Scenario:
    """Return the scenario that a parsed YAML document describes."""
    _refuse_endless(document, name)
    if not isinstance(document, Mapping):
        raise InputError(
            f"{name} holds {'nothing' if document is None else f'no keys but {checks.shown(document)}'}, "
            "but a scenario is a mapping with `workload` and `server`"
        )
    try:
        parsed = _Document.model_validate(document)
        simulate = parsed.simulate
        workload = parsed.workload.build(folder, simulate.seed)
        server = parsed.server.build(folder)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None
    except RecursionError:
        raise InputError(f"{name} nests values too deeply to be read; a scenario needs four levels") from None
    if server.order == "priority" and workload.priority is None:
        said = "no request has a priority (a trace has them with `columns: {priority: NAME}`): first come, first served"
        workload = dataclasses.replace(workload, notices=(*workload.notices, said))
    requests = simulate.requests
    if requests is None and simulate.until is None:
        requests = workload.rows or DEFAULT_REQUESTS
    return Scenario(Path(name).stem, workload, server, requests, simulate.until, folder)


def _belongs(key: str) -> str | None:
    """Say where a setting of an engine, or of its memory, is given."""
    settings = {n for e in ENGINES.values() for word, o in e.known.items() for n in (word, o.alias) if n}
    if key in settings:
        return f"settings of an engine are given in `policy_params: {{{key}: ...}}`"
    key = {"enable_prefix_caching": "prefix_caching"}.get(key, key)
    return f"it is given in `memory: {{{key}: ...}}`" if key in MemorySection.model_fields else None


def _one_line(error: ValidationError) -> str:
    """Say the first thing that is wrong, and where."""
    problems = error.errors()
    # An unknown key is the cause where the key it was meant to be is missing too.
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    where = ".".join(_short(part) for part in problem["loc"]) or "the scenario"
    value = problem.get("input")
    shown = f", not {checks.shown(value)}"
    quoted = isinstance(value, str) and re.fullmatch(r"\s*[-+.0-9][-+.0-9_eE]*\s*", value[:100])
    bare = "; write it without quotes" if quoted else "; give one"
    match problem["type"]:
        case "extra_forbidden":
            section, key = problem["loc"][:-1], str(problem["loc"][-1])
            if section == ("server",) and any(key.replace("-", "_") in names for names in ENGINE_NAMES.values()):
                return f"{where} says again what another key of {section[-1]} says; give one of them"
            if section == ("server",) and (hint := _belongs(key.replace("-", "_"))):
                return f"{where} is not a key of a server; {hint}"
            known = _keys(section)
            if section == ("server",):
                known = [*known, *(name for names in ENGINE_NAMES.values() for name in names)]
            return f"{where} is not a key of a scenario{nearest(key, known) if known else '; leave it out'}"
        case "missing":
            return f"{where} is missing; add it"
        case "value_error" | "assertion_error":
            return f"{where}: {problem['ctx']['error']}" if "ctx" in problem else f"{where}: {problem['msg']}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"{where} must be a mapping of keys{shown}"
        case "int_type" | "int_from_float":
            return f"{where} must be a whole number{shown}{bare}"
        case "float_type":
            return f"{where} must be a number{shown}{bare}"
        case "string_type":
            return f"{where} must be text{shown}; if it is meant as text, put it in quotes"
        case "list_type":
            return f"{where} must be a list such as [1, 2]{shown}"
        case "literal_error":
            return f"{where} must be {problem['ctx']['expected']}{shown}"
        case _:
            return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}"


def _short(part: object) -> str:
    """Put a key on one line; a known one as it is."""
    text = str(part)
    return text if text.isidentifier() and len(text) <= 40 else checks.shown(part)


def _keys(section: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a section of a scenario may have."""
    model: Any = _Document
    for part in section:
        field = model.model_fields.get(part)
        models = (
            [a for a in _arguments(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
            if field
            else []
        )
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _arguments(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", None) or (annotation,)
