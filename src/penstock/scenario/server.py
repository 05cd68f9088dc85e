"""What serves, in a scenario: batch times, limits under the names of several engines, KV memory."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from penstock import checks
from penstock.document import Section, Whole, short
from penstock.errors import InputError
from penstock.system.batch_time_file import BatchTimeFile, BatchTimeSection
from penstock.system.engine import explained
from penstock.system.engine_flags import (
    ENGINE_NAMES,
    EXPERT_PARALLEL,
    GPU_SHARE,
    TENSOR_PARALLEL,
    plain,
)
from penstock.system.engines import ENGINES, choosing, engine_defaults
from penstock.system.gpu_memory import Gpu
from penstock.system.memory import Memory
from penstock.system.policies import resolve
from penstock.system.presets import hardware
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

if TYPE_CHECKING:
    from penstock.system.models.served import ShapedHardware

_ROUNDED = (
    0.05  # by which the memory that a GPU is sold with may differ from what its driver reports
)


def called(limit: str, *here: str) -> AliasChoices:
    """Return the names under which a limit is taken, those that it has here first."""
    return AliasChoices(*here, *ENGINE_NAMES[limit])


class _ServerPart(Section):
    """A mapping in which flags of engines may stand, spelled as on a command line."""

    @model_validator(mode="before")
    @classmethod
    def _plainly(cls, given: Any) -> Any:
        """Read ``--max-num-seqs`` as max_num_seqs, unless that is there, too."""
        if not isinstance(given, Mapping):
            return given
        names = [plain(key) if isinstance(key, str) else key for key in given]
        alone = zip(names, given.items(), strict=True)
        return {key if names.count(name) > 1 else name: value for name, (key, value) in alone}

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say what a flag of an engine is here."""
        where, said = f"{section}.{short(key)}", explained(key)
        if plain(key) in cls.known_keys():
            return f"{where} says again what another key of {section} says; give one of them"
        if said is None:
            return super().unknown(section, key)
        return f"{where} is not a key of a scenario; {said}"


class MemorySection(_ServerPart):
    """KV memory: ``blocks`` of ``block_size`` tokens, or ``tokens``; see `Memory`."""

    blocks: Whole | None = Field(None, validation_alias=called("kv_blocks", "blocks"))
    tokens: Whole | None = Field(None, validation_alias=called("kv_tokens", "tokens"))
    block_size: Whole | None = Field(None, validation_alias=called("block_size"))
    watermark: float | None = None
    admission: Literal["input", "completion", "optimistic"] | None = None
    too_long: Literal["error", "drop"] = "error"
    prefix_caching: bool | None = None


class GpuSection(_ServerPart):
    """The GPU whose memory gives engines their limits and, with the model, the KV memory.

    A hardware preset says all but ``gpu_memory_utilization`` and ``offline`` itself.
    """

    memory_gib: float | None = None
    a100: bool | None = None
    offline: bool = False
    model: str | None = None
    tensor_parallel: Whole | None = Field(None, validation_alias=AliasChoices(*TENSOR_PARALLEL))
    gpu_memory_utilization: float | None = Field(None, validation_alias=AliasChoices(*GPU_SHARE))


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


class ServerSection(_ServerPart):
    """What serves; engine names are accepted for the limits."""

    hardware: HardwareSection | str | None = None
    batch_time: BatchTimeSection | None = None
    token_budget: Whole | None = Field(None, validation_alias=called("token_budget"))
    max_batch_size: Whole | None = Field(None, validation_alias=called("max_batch_size"))
    gpu: GpuSection | None = None
    policy: str = "sarathi"
    policy_params: Any = ()
    scope: Literal["batch", "running"] = "running"
    convention: Literal["paper", "engine"] = "engine"
    order: Literal["fcfs", "priority"] = Field("fcfs", validation_alias=called("order"))
    kv_blocks: Whole | None = Field(None, validation_alias=called("kv_blocks"))
    kv_tokens: Whole | None = Field(None, validation_alias=called("kv_tokens"))
    block_size: Whole | None = Field(None, validation_alias=called("block_size"))
    memory: MemorySection | Literal["unlimited"] | None = None

    def build(self, folder: Path) -> Server:
        """Return the server; files are looked for in ``folder``."""
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
        token_budget, max_batch_size = self._limits(measured)
        policy = resolve(self.scheduler, folder=folder)
        capped = policy.program is not None and policy.program.capped
        if capped and max_batch_size is not None and max_batch_size > token_budget:
            raise InputError(
                f"server: max_batch_size is {max_batch_size:,} (max_num_seqs), but token_budget is "
                f"{token_budget:,} (max_num_batched_tokens), and {policy.name} does not start with "
                "fewer tokens than requests in a batch; lower the one or raise the other"
            )
        if self.gpu is not None and policy.memory.gpu_rule is None:
            engines = ", ".join(
                name for name, engine in ENGINES.items() if engine.memory.gpu_rule is not None
            )
            raise InputError(
                f"server.gpu is for the schedulers of engines ({engines}), not for {policy.name}; "
                "leave it out, and "
                "give token_budget and kv_tokens"
            )
        gpu = self._gpu(measured)
        memory = self._memory(policy, gpu)
        if (
            memory is None
            and self.block_size is not None
            and self.kv_blocks is None
            and self.kv_tokens is None
        ):
            raise InputError(
                f"server: block_size is {self.block_size}, but KV memory has no limit; give "
                "kv_blocks or kv_tokens"
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
            gpu=gpu,
            kv_blocks=self.kv_blocks,
            kv_tokens=self.kv_tokens,
            block_size=self.block_size if memory is None else None,
        )

    @property
    def scheduler(self) -> str:
        """The policy: that of the hardware's engine, where none is given beside a shape."""
        if isinstance(self.hardware, HardwareSection) and "policy" not in self.model_fields_set:
            return self.hardware.engine
        return self.policy

    def notes(self, folder: Path, server: Server) -> tuple[str, ...]:
        """Return what is known of the batch times, and should be told."""
        known = self.measured(folder)
        said = (
            ()
            if known is None
            else known.notes(server.token_budget, memory=server.memory is not None)
        )
        return (*said, *self._slots_note(known, server))

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
            f"default {usual}: give "
            "yours as max_num_seqs"
        ]

    def measured(self, folder: Path) -> BatchTimeFile | None:
        """Return the preset or file with these batch times; None: they stand in the scenario."""
        if isinstance(self.hardware, HardwareSection):
            return self.hardware.build(folder)
        if self.batch_time is None:
            return hardware(str(self.hardware))
        return None if self.batch_time.file is None else self.batch_time.read_file(folder)

    def _limits(self, measured: BatchTimeFile | None) -> tuple[int, int | None]:
        """Return token budget and max batch size: those given, else the engine's for the GPU."""
        budget, slots = self.token_budget, self.max_batch_size
        engine = self.scheduler.lower()
        shaped = isinstance(self.hardware, HardwareSection)
        if (self.gpu is not None or shaped) and engine in choosing():
            asked = self.gpu or GpuSection.model_validate({})
            a100 = "a100" in self.hardware_name.lower() if asked.a100 is None else asked.a100
            gib = self._memory_gib(measured, asked.memory_gib)
            chosen = engine_defaults(engine, gib, a100=a100, offline=asked.offline)
            budget = chosen.token_budget if budget is None else budget
            if slots is None and chosen.max_batch_size is not None:
                slots = min(chosen.max_batch_size, budget)
        if budget is None:
            engines = " and ".join(choosing())
            raise InputError(
                "server.token_budget is missing; add it (vLLM's max_num_batched_tokens), or for "
                f"{engines} "
                "`gpu: {memory_gib: 80}`, from which they choose it"
            )
        return budget, slots

    def _gpu(self, measured: BatchTimeFile | None) -> Gpu | None:
        """Return model and GPUs; None: one is unknown, or KV memory has a size or no limit."""
        given, asked = self.memory, self.gpu
        sized = self.kv_blocks is not None or self.kv_tokens is not None
        if isinstance(given, MemorySection):
            sized = sized or given.blocks is not None or given.tokens is not None
        if sized or given == "unlimited":
            return None
        known = measured.gpu if measured else None
        if asked is None:
            return known
        memory_gib = self._memory_gib(measured, asked.memory_gib)
        model = asked.model
        if model is None and known is not None:
            model = known.model
        if model is None:
            idle = asked.model_fields_set & {"tensor_parallel", "gpu_memory_utilization"}
            if idle:
                raise InputError(
                    f"server.gpu: {min(idle)} says how much KV memory is left only with the "
                    "model; add `model`, or "
                    "give kv_tokens"
                )
            return None
        parallel = known.tensor_parallel if known else 1
        if asked.tensor_parallel is not None:
            parallel = asked.tensor_parallel
        if known is not None and parallel != known.tensor_parallel:
            raise InputError(
                f"server.gpu.tensor_parallel is {parallel}, but the batch times of "
                f"{self.hardware_name} are "
                "those of a tensor "
                f"parallelism of {known.tensor_parallel}; leave it out, or take hardware that was "
                "measured with "
                f"{parallel}"
            )
        of_shape = known.known if known is not None and model == known.model else None
        return Gpu(model, memory_gib, parallel, asked.gpu_memory_utilization, known=of_shape)

    @property
    def hardware_name(self) -> str:
        """How answers call the hardware whose batch times these are; empty where it has none."""
        if isinstance(self.hardware, HardwareSection):
            return f"{self.hardware.model} on {self.hardware.gpu}"
        if self.hardware is not None:
            return self.hardware
        return "" if self.batch_time is None else self.batch_time.file or ""

    def _memory_gib(self, measured: BatchTimeFile | None, given: float | None) -> float:
        """Return the GPU's memory, GiB: 80 GB are 79.2 to the driver of a GPU that is known."""
        if given is not None:
            what = "it is the memory of one GPU"
            checks.number("server.gpu.memory_gib", given, 1, 4096, "GiB", what)
        known = measured.memory_gib if measured else None
        if known is None:
            if given is None:
                raise InputError(
                    "server.gpu.memory_gib is missing; add it, such as gpu: {memory_gib: 80}"
                )
            return given
        if given is not None and abs(given - known) > _ROUNDED * known:
            raise InputError(
                f"server.gpu.memory_gib is {given:g}, but the batch times of "
                f"{self.hardware_name} are those of a GPU with "
                f"{known:g} GiB; leave it out, or give batch times of your own"
            )
        return known

    def _memory(self, policy: Scheduler, gpu: Gpu | None) -> Memory | None:
        """Return the KV memory that ``memory`` describes."""
        given = self.memory
        follows = gpu is not None and policy.memory.gpu_rule is not None
        if given is None:
            return (
                Memory(1, self.block_size, estimated=True)
                if follows and self.block_size is not None
                else None
            )
        beside = (
            self.kv_blocks is not None or self.kv_tokens is not None or self.block_size is not None
        )
        if given == "unlimited":
            if beside:
                raise InputError(
                    "server: memory is unlimited, but kv_blocks, kv_tokens or block_size "
                    "(num_gpu_blocks, "
                    "max_total_tokens, page_size) say how large it is; give one of them"
                )
            return None
        if beside:
            raise InputError(
                "server: beside `memory`, kv_blocks, kv_tokens and block_size (num_gpu_blocks, "
                "max_total_tokens, "
                "page_size) are its keys `blocks`, `tokens` and `block_size`; give them there"
            )
        block_size = policy.memory.block_size if given.block_size is None else given.block_size
        if given.blocks is None and given.tokens is None and follows:
            whole = Memory(1, block_size, estimated=True)
        elif (given.blocks is None) == (given.tokens is None):
            raise InputError("server.memory: give either `blocks` or `tokens`, and not both")
        elif given.tokens is not None:
            whole = Memory.of_tokens(given.tokens, block_size)
        else:
            whole = Memory(given.blocks, block_size)  # type: ignore[arg-type]
        return dataclasses.replace(
            whole,
            watermark=given.watermark,
            admission=given.admission,
            too_long=given.too_long,
            prefix_caching=given.prefix_caching,
        )
