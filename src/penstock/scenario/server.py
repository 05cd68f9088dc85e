"""What serves, in a scenario: batch times, limits under the names of several engines, KV memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from penstock.document import Section, Whole, short, stays_in, with_keys_of, within
from penstock.errors import InputError
from penstock.system.batch_time_file import BatchTimeFile, BatchTimeSection
from penstock.system.engine import explained
from penstock.system.engine_flags import EXPERT_PARALLEL, TENSOR_PARALLEL, key, plain
from penstock.system.engines import ENGINES, choosing, engine_defaults, without_version
from penstock.system.front_end import FrontEnd
from penstock.system.gpu_memory import Gpu
from penstock.system.memory import TOKENS, Memory
from penstock.system.policies import resolve
from penstock.system.presets import hardware
from penstock.system.queue_limit import QueueLimit
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

if TYPE_CHECKING:
    from penstock.system.models.served import ShapedHardware

_ROUNDED = (
    0.05  # by which the memory that a GPU is sold with may differ from what its driver reports
)


_TOKENS = key("kv_tokens", "tokens")


class _ServerPart(Section):
    """A mapping in which flags of engines may stand, spelled as on a command line."""

    @model_validator(mode="before")
    @classmethod
    def _plainly(cls, section: Any) -> Any:
        """Read ``--max-num-seqs`` as max_num_seqs, unless that is there, too."""
        if not isinstance(section, Mapping):
            return section
        names = [plain(key) if isinstance(key, str) else key for key in section]
        alone = zip(names, section.items(), strict=True)
        return {key if names.count(name) > 1 else name: value for name, (key, value) in alone}

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say what a flag of an engine is here."""
        where, hint = f"{section}.{short(key)}", explained(key)
        if plain(key) in cls.known_keys():
            return f"{where} says again what another key of {section} says; give one of them"
        if hint is None:
            return super().unknown(section, key)
        return f"{where} is not a key of a scenario; {hint}"


@with_keys_of(Memory, without=("names_known", "estimated"), optional=True)
class MemorySection(_ServerPart):
    """KV memory: ``blocks`` of ``block_size`` tokens, or ``tokens``; see `Memory`."""

    tokens: Annotated[Whole, stays_in(TOKENS, _TOKENS)] | None = Field(
        None, validation_alias=AliasChoices(_TOKENS.name, *_TOKENS.others)
    )


@with_keys_of(Gpu, without=("engine", "known"), optional=True)
class GpuSection(_ServerPart):
    """The GPU whose memory gives engines their limits and, with the model, the KV memory.

    A hardware preset says all but ``gpu_memory_utilization`` and ``offline`` itself.
    """

    a100: bool | None = None
    offline: bool = False


@with_keys_of(FrontEnd)
class FrontEndSection(Section):
    """What takes requests in before the engine; see `FrontEnd`."""


@with_keys_of(QueueLimit)
class QueueLimitSection(_ServerPart):
    """Whom a server, or a router, refuses on arrival; see `QueueLimit`."""


class HardwareSection(_ServerPart):
    """A model (path of a `config.json`, or a known name) on GPUs; see `served_model`."""

    model: str
    gpu: str
    tensor_parallel: Whole = Field(1, validation_alias=AliasChoices(*TENSOR_PARALLEL))
    expert_parallel: Whole = Field(1, validation_alias=AliasChoices(*EXPERT_PARALLEL))
    precision: str | None = None
    kv_precision: str | None = None
    engine: str = "vllm"

    def build(self, folder: Path) -> "ShapedHardware":
        """Return its batch times and its memory."""
        from penstock.system.models.served import served_model, shaped_hardware

        split = (self.tensor_parallel, self.expert_parallel)
        stored = (self.precision, self.kv_precision)
        served = served_model(self.model, self.gpu, *split, *stored, self.engine, folder)
        return shaped_hardware(served)


_PARTS = ("front_end", "queue_limit")


@with_keys_of(Server, without=("batch_time", "memory", "gpu", *_PARTS), optional=True)
class ServerSection(_ServerPart):
    """What serves; engine names are accepted for the limits."""

    hardware: HardwareSection | str | None = None
    batch_time: BatchTimeSection | None = None
    gpu: GpuSection | None = None
    policy: str = "sarathi"
    memory: MemorySection | Literal["unlimited"] | None = None
    front_end: FrontEndSection | None = None
    queue_limit: QueueLimitSection | None = None

    def build(self, folder: Path, **more: Any) -> Server:
        """Return the server; files are looked for in ``folder``, and ``more`` goes before."""
        if (self.hardware is None) == (self.batch_time is None):
            raise InputError(
                "server: give either `hardware` (a preset) or `batch_time`, and not both"
            )
        measured = self.measured(folder)
        if self.batch_time is not None:
            batch_time = self.batch_time.build(folder)
        else:
            assert measured is not None
            batch_time = measured.batch_time
        arguments = self.arguments()
        arguments |= self._limits(measured, arguments)
        policy = resolve(self.scheduler, folder=folder)
        self._refuse_for(policy, arguments)
        gpu = self._gpu(measured, arguments)
        memory = self._memory(policy, gpu, arguments)
        if memory is not None:
            arguments.pop("block_size", None)  # it is in there
        made = {"batch_time": batch_time, "policy": policy, "memory": memory, "gpu": gpu}
        for part in _PARTS:
            if getattr(self, part) is not None:
                with within(f"server.{part}"):
                    made[part] = getattr(self, part).build()
        return Server(**arguments | made | more)

    def _refuse_for(self, policy: Scheduler, arguments: Mapping[str, Any]) -> None:
        """Refuse what a scheduler does not start with, or makes no use of."""
        budget, slots = arguments["token_budget"], arguments["max_batch_size"]
        capped = policy.program is not None and policy.program.capped
        if capped and slots is not None and slots > budget:
            raise InputError(
                f"server: max_batch_size is {slots:,} (max_num_seqs), but token_budget is "
                f"{budget:,} (max_num_batched_tokens), and {policy.name} does not start with "
                "fewer tokens than requests in a batch; lower the one or raise the other"
            )
        if self.gpu is not None and policy.memory.gpu_rule is None:
            engines = [
                name for name, engine in ENGINES.items() if engine.memory.gpu_rule is not None
            ]
            raise InputError(
                f"server.gpu is for the schedulers of engines ({', '.join(engines)}), not for "
                f"{policy.name}; leave it out, and give token_budget and kv_tokens"
            )

    @property
    def scheduler(self) -> str:
        """The policy: that of the hardware's engine, where none is given beside a shape."""
        if isinstance(self.hardware, HardwareSection) and "policy" not in self.model_fields_set:
            return without_version(self.hardware.engine)[0]
        return self.policy

    def notes(self, folder: Path, server: Server) -> tuple[str, ...]:
        """Return what is known of the batch times, and should be told."""
        known = self.measured(folder)
        notes = self._slots_note(known, server)
        if known is None:
            return tuple(notes)
        return (*known.notes(server), *notes)

    def _slots_note(self, measured: BatchTimeFile | None, server: Server) -> list[str]:
        """Say that vLLM always has a max batch size, where none is given."""
        rule = server.policy.batching.limit_rule
        if server.max_batch_size is not None or rule is None or not rule.usual_slots:
            return []
        memory_gib = measured.memory_gib if measured else None
        usual = rule.usual_slots
        if memory_gib is not None:
            a100 = "a100" in self.hardware_name.lower()
            usual = f"{rule.limits(memory_gib, a100, False)[1]:,} on this GPU"
        return [
            "no max batch size is given, so none limits this server; vLLM always has one, by "
            f"default {usual}: give yours as max_num_seqs"
        ]

    def measured(self, folder: Path) -> BatchTimeFile | None:
        """Return the preset or file with these batch times; None: they stand in the scenario."""
        if isinstance(self.hardware, HardwareSection):
            return self.hardware.build(folder)
        if self.batch_time is None:
            return hardware(str(self.hardware))
        if self.batch_time.file is None:
            return None
        return self.batch_time.read_file(folder)

    def _limits(
        self, measured: BatchTimeFile | None, arguments: Mapping[str, Any]
    ) -> dict[str, int | None]:
        """Return token budget and max batch size: those given, else the engine's for the GPU."""
        budget, slots = arguments.get("token_budget"), arguments.get("max_batch_size")
        engine = self.scheduler.lower()
        shaped = isinstance(self.hardware, HardwareSection)
        if (self.gpu is not None or shaped) and engine in choosing():
            asked = self.gpu or GpuSection.model_validate({})
            a100 = asked.a100
            if a100 is None:
                a100 = "a100" in self.hardware_name.lower()
            gib = self._memory_gib(measured, asked)
            chosen = engine_defaults(engine, gib, a100=a100, offline=asked.offline)
            budget = chosen.token_budget if budget is None else budget
            if slots is None and chosen.max_batch_size is not None:
                slots = min(chosen.max_batch_size, budget)
        if budget is None:
            engines = " and ".join(choosing())
            raise InputError(
                "server.token_budget is missing; add it (vLLM's max_num_batched_tokens), or for "
                f"{engines} `gpu: {{memory_gib: 80}}`, from which they choose it"
            )
        return {"token_budget": budget, "max_batch_size": slots}

    def _gpu(self, measured: BatchTimeFile | None, arguments: Mapping[str, Any]) -> Gpu | None:
        """Return model and GPUs; None: one is unknown, or KV memory has a size or no limit."""
        sized = "kv_blocks" in arguments or "kv_tokens" in arguments
        if isinstance(self.memory, MemorySection):
            sized = sized or self.memory.tokens is not None or "blocks" in self.memory.arguments()
        if sized or self.memory == "unlimited":
            return None
        known = measured.gpu if measured else None
        if self.gpu is None:
            return known
        asked = self.gpu.arguments()
        asked["memory_gib"] = self._memory_gib(measured, self.gpu)
        if "model" not in asked and known is not None:
            asked["model"] = known.model
        if "model" not in asked:
            idle = self.gpu.model_fields_set & {"tensor_parallel", "gpu_memory_utilization"}
            if idle:
                raise InputError(
                    f"server.gpu: {min(idle)} says how much KV memory is left only with the "
                    "model; add `model`, or give kv_tokens"
                )
            return None
        if known is None:
            return Gpu(**asked)
        parallel = asked.setdefault("tensor_parallel", known.tensor_parallel)
        if parallel != known.tensor_parallel:
            raise InputError(
                f"server.gpu.tensor_parallel is {parallel}, but the batch times of "
                f"{self.hardware_name} are those of a tensor parallelism of "
                f"{known.tensor_parallel}; leave it out, or take hardware that was measured with "
                f"{parallel}"
            )
        return Gpu(**asked, known=known.known if asked["model"] == known.model else None)

    @property
    def hardware_name(self) -> str:
        """How answers call the hardware whose batch times these are; empty where it has none."""
        if isinstance(self.hardware, HardwareSection):
            return f"{self.hardware.model} on {self.hardware.gpu}"
        if self.hardware is not None:
            return self.hardware
        if self.batch_time is None:
            return ""
        return self.batch_time.file or ""

    def _memory_gib(self, measured: BatchTimeFile | None, asked: GpuSection) -> float:
        """Return the GPU's memory, GiB: 80 GB are 79.2 to the driver of a GPU that is known."""
        stated: float | None = asked.arguments().get("memory_gib")
        known = measured.memory_gib if measured else None
        if known is None:
            if stated is None:
                raise InputError(
                    "server.gpu.memory_gib is missing; add it, such as gpu: {memory_gib: 80}"
                )
            return stated
        if stated is not None and abs(stated - known) > _ROUNDED * known:
            raise InputError(
                f"server.gpu.memory_gib is {stated:g}, but the batch times of "
                f"{self.hardware_name} are those of a GPU with {known:g} GiB; leave it out, or "
                "give batch times of your own"
            )
        return known

    def _memory(
        self, policy: Scheduler, gpu: Gpu | None, arguments: Mapping[str, Any]
    ) -> Memory | None:
        """Return the KV memory that ``memory`` describes, or of which the GPU says the size."""
        follows = gpu is not None and policy.memory.gpu_rule is not None
        sizes = arguments.keys() & {"kv_blocks", "kv_tokens"}
        stated = sizes or "block_size" in arguments
        if self.memory is None:
            if not stated or sizes:
                return None
            if follows:
                return Memory(1, arguments["block_size"], estimated=True)
            raise InputError(
                f"server: block_size is {arguments['block_size']}, but KV memory has no limit; "
                "give kv_blocks or kv_tokens"
            )
        if self.memory == "unlimited":
            if stated:
                raise InputError(
                    "server: memory is unlimited, but kv_blocks, kv_tokens or block_size "
                    "(num_gpu_blocks, max_total_tokens, page_size) say how large it is; give one "
                    "of them"
                )
            return None
        if stated:
            raise InputError(
                "server: beside `memory`, kv_blocks, kv_tokens and block_size (num_gpu_blocks, "
                "max_total_tokens, page_size) are its keys `blocks`, `tokens` and `block_size`; "
                "give them there"
            )
        rules = {"block_size": policy.memory.block_size, **self.memory.arguments()}
        tokens = self.memory.tokens
        if tokens is None and "blocks" not in rules and follows:
            rules |= {"blocks": 1, "estimated": True}
        elif (tokens is None) == ("blocks" not in rules):
            raise InputError("server.memory: give either `blocks` or `tokens`, and not both")
        elif tokens is not None:
            rules["blocks"] = Memory.of_tokens(tokens, rules["block_size"]).blocks
        return Memory(**rules)
