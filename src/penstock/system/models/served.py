"""A model on GPUs, known by its shape: batch times and KV memory where nobody measured."""

import contextlib
import dataclasses
import math
from pathlib import Path

from penstock import checks
from penstock.errors import InputError
from penstock.system.batch_time import MOST_TOKENS
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.engines import ENGINES, choosing, engine_defaults, without_version
from penstock.system.gpu_memory import GIB, Gpu, ModelMemory
from penstock.system.models.batch_times import MOST_WINDOW, LayerTimes
from penstock.system.models.catalogue import model_shape
from penstock.system.models.gpus import SHEET_ALONE, KnownGpu, known_gpu
from penstock.system.models.hosts import EngineFit, Host, engine_fit, engine_fits
from penstock.system.models.shape import ModelShape, Numbers
from penstock.system.server import Server
from penstock.system.uncertain import Within
from penstock.words import counted

_WEIGHTS_ALONE = ("mxfp4", "int4", "w8a16")  # widened before they are computed with, on any GPU
_USUAL_BUDGET = 8_192  # tokens, where an engine chooses none
_KEPT_GIB = 1.0  # of a GPU, that no engine fills with weights


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """A model on GPUs that share its layers, under an engine."""

    shape: ModelShape
    gpu: KnownGpu
    numbers: Numbers
    tensor_parallel: int  # GPUs that share each layer
    expert_parallel: int  # how many of them hold whole experts
    engine: str  # whose host adds to the kernels
    version: str | None = None  # of the engine; None: the newest
    named: str = ""  # the model, as it was asked for; empty: by the path of its config

    @property
    def times(self) -> LayerTimes:
        """Times of its layers."""
        split = (self.tensor_parallel, self.expert_parallel)
        return LayerTimes(self.shape, self.gpu, self.numbers, *split, self.host)

    @property
    def host(self) -> Host:
        """What its engine adds to the kernels."""
        return self.fit.host_of(self.version)

    @property
    def fit(self) -> EngineFit:
        """What is known of its engine."""
        return engine_fit(self.engine)

    @property
    def limits(self) -> tuple[int, int | None]:
        """Token budget and max batch size as the engine chooses them for such GPUs."""
        if self.engine not in choosing():
            return _USUAL_BUDGET, None
        gib = self.gpu.sheet.memory_gib
        chosen = engine_defaults(self.engine, gib, a100="a100" in self.gpu.name, offline=False)
        return chosen.token_budget, chosen.max_batch_size

    @property
    def on_gpus(self) -> Gpu:
        """The model on its GPUs, from which KV memory follows."""
        memory = ModelMemory(self.shape, self.numbers)
        return Gpu(self.shape.name, self.gpu.sheet.memory_gib, self.tensor_parallel, known=memory)

    @property
    def name(self) -> str:
        """The model on its GPUs, in words."""
        many = f"{self.tensor_parallel} x " if self.tensor_parallel > 1 else ""
        under = f" under {self.engine_name}" if self.version else ""
        return f"{self.shape.name} on {many}{self.gpu.name}{under}"

    @property
    def engine_name(self) -> str:
        """Its engine, with the version that was asked for."""
        return f"{self.engine}-{self.version}" if self.version else self.engine

    @property
    def taken(self) -> str:
        """The precisions in which it is served."""
        numbers = self.numbers
        weights = dict.fromkeys((numbers.dense, numbers.experts, numbers.attention))
        return f"in {' and '.join(weights)} with a KV cache in {numbers.kv}"

    @property
    def within(self) -> dict[str, float]:
        """Factors that nine of ten predictions are within, by measure; wider without kernels."""
        unmeasured = 0.0 if self.gpu.measured else math.log(SHEET_ALONE)
        return {
            name: float(f"{math.exp(math.hypot(math.log(factor), unmeasured)):.3g}")
            for name, factor in self.fit.within.items()
        }

    @property
    def known(self) -> Within:
        """How well its batch times are known: what throughputs under its engine showed."""
        fit = self.fit
        judged = (
            f"the model {self.taken}; of {fit.throughputs} throughputs of {fit.title} on "
            f"{' and '.join(fit.gpus)} that were predicted from shapes, half were within a factor "
            f"of {fit.within['half']:g} and nine of ten"
        )
        if not self.gpu.measured:
            judged += (
                f" within {fit.within['throughput']:g}; by the sheet of {self.gpu.name} alone they "
                "are taken to be"
            )
        return Within(self.within["throughput"], judged, fit.seen)

    @property
    def _timed(self) -> str:
        """Which version's kernels they are, where one was asked for."""
        if self.version is None or not self.gpu.measured:
            return ""
        nearest, words = next(iter(self.gpu.fits)), ""
        if nearest != self.version:
            words = f", GEMMs and experts as in vLLM {nearest}, the nearest to {self.version}"
        if self.host != self.fit.host:
            words += f", with the host of vLLM up to {self.fit.last_of(self.version)}"
        return words

    @property
    def caution(self) -> str:
        """How far off its batch times may be."""
        within, numbers = self.fit.within, self.numbers
        text = (
            f"follow from the shape of {self.shape.name}, {self.taken}, and the kernels of "
            f"{self.gpu.name}{self._timed}; nobody measured them. Of {self.fit.points} points of "
            f"{self.fit.title} that were predicted so, nine of ten were within a factor of "
            f"{within['tpot']:g} in time per output token and {within['ttft']:g} in TTFT"
        )
        if self.gpu.measured and self.gpu.error("gemm", numbers.dense) is None:
            text += f"; kernels in {numbers.dense} were not measured, others stand for them"
        if self.shape.window > MOST_WINDOW:
            text += "; layers with a sliding window are timed as if they looked at all tokens"
        if not self.gpu.measured:
            text += (
                "; but of this GPU only the sheet is known, not its kernels. So taken, nine of ten "
                f"batch times of measured GPUs are within a factor of {SHEET_ALONE:g} of theirs: "
                f"{self.within['tpot']:g} and {self.within['ttft']:g} together"
            )
        if self.engine not in engine_fits():
            text += f"; the host of {self.engine} is taken for {self.fit.title}'s"
        return text


def served_model(
    model: str,  # a name in the catalogue, or the path of a `config.json`
    gpu: str,  # a name in `SHEETS`, such as `h100-sxm`
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    precision: str | None = None,  # of the weights: bf16, fp8, fp4, int4; None: as published
    kv_precision: str | None = None,  # bf16 or fp8; None: as published
    engine: str = "vllm",  # whose host adds to the kernels; a version may follow: vllm-0.16
    folder: Path = Path(),  # where a path is looked for
) -> ServedModel:
    """Return a model on GPUs."""
    named_engine = engine
    engine, version = without_version(named_engine)
    _check_version(named_engine, engine, version)
    shape, known = model_shape(model, folder), known_gpu(gpu, version)
    shape.check_split(tensor_parallel, expert_parallel)
    as_weights = ENGINES[engine].memory.cached_as_weights and shape.stored.dense == "bf16"
    if kv_precision is None and precision == "fp8" and as_weights:
        kv_precision = "fp8"
    numbers = shape.numbers(precision, kv_precision)
    _check_precision(known, numbers, shape)
    weights = shape.weights_bytes(numbers, tensor_parallel) / GIB
    room = known.sheet.memory_gib - _KEPT_GIB
    if weights > room:
        raise InputError(
            f"the weights of {shape.name} take {weights:,.1f} GiB a GPU on "
            f"{counted(tensor_parallel, 'GPU')}, but {known.name} has "
            f"{known.sheet.memory_gib:g} GiB, so it would not start; take more GPUs "
            f"(tensor_parallel{_enough(shape, numbers, expert_parallel, room)}), or a precision of "
            "fewer bits"
        )
    named = "" if model.endswith(".json") else model
    split = (tensor_parallel, expert_parallel)
    return ServedModel(shape, known, numbers, *split, engine, version, named)


def _check_version(name: str, engine: str, version: str | None) -> None:
    """Refuse an engine that there is not, and a version of one whose times are not known by it."""
    checks.word("engine", engine, tuple(ENGINES))
    timed = [known for known, fit in engine_fits().items() if fit.older]
    if version is not None and engine not in timed:
        raise InputError(
            f"engine is {name}, but times are known by version of "
            f"{' and '.join(timed)} alone; give {engine} without one"
        )


def _enough(shape: ModelShape, numbers: Numbers, expert_parallel: int, room_gib: float) -> str:
    """Say which tensor parallelism is the least whose GPUs have room for the weights."""
    for many in (2, 4, 8, 16, 32):
        if shape.weights_bytes(numbers, many) / GIB <= room_gib:
            with contextlib.suppress(InputError):
                shape.check_split(many, expert_parallel)
                return f": {many} has room for them"
    return ""


def _check_precision(gpu: KnownGpu, numbers: Numbers, shape: ModelShape) -> None:
    """Refuse numbers that a GPU does not compute with."""
    for number in (numbers.dense, numbers.experts, numbers.attention):
        plain = number.partition("-")[0]
        if plain not in _WEIGHTS_ALONE and plain not in gpu.sheet.flops:
            raise InputError(
                f"{shape.name} is to be served in {plain}, but {gpu.name} computes in "
                f"{', '.join(gpu.sheet.flops)}; take another precision, or another GPU"
            )


@dataclasses.dataclass(frozen=True)
class ShapedHardware(BatchTimeFile):
    """Batch times that follow from a shape, in the place of a preset or a file."""

    served: ServedModel = dataclasses.field(kw_only=True)

    @property
    def gpu(self) -> Gpu:
        """The model on its GPUs."""
        return self.served.on_gpus

    @property
    def weights(self) -> str | None:
        """What engines are told to load: the name that was asked for, if it was one."""
        return self.served.named or None

    @property
    def memory_gib(self) -> float:
        """Memory of one GPU, GiB."""
        return self.served.gpu.sheet.memory_gib

    @property
    def origin(self) -> str:
        """Where the times come from."""
        return f"{self.description}; batch times {self.served.caution}"

    def notes(self, server: Server) -> tuple[str, ...]:
        """Return what one should know who uses it; see `BatchTimeFile.notes`."""
        return (f"batch times {self.served.caution}", *super().notes(server))


def shaped_hardware(served: ServedModel) -> ShapedHardware:
    """Return the batch times of a model on GPUs, as those of measured hardware."""
    return ShapedHardware(
        description=served.name,
        batch_time=dataclasses.replace(
            served.times.composition(MOST_TOKENS), uncertainty=served.known
        ),
        source=f"shape; kernel times of ai-dynamo/aiconfigurator; host: {served.fit.source}",
        licence="parameters fitted to measurements under Apache-2.0",
        model=served.shape.name,
        accelerator=served.gpu.name,
        tensor_parallel=served.tensor_parallel,
        name=served.name,
        served=served,
    )
