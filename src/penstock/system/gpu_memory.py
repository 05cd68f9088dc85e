"""KV memory that a model leaves on its GPUs: an estimate from weights, GPU memory, and what an
engine keeps for itself.

    KV tokens = (what the engine may use of a GPU - weights / TP - overhead) / (KV bytes per token
    of a GPU)

Weights, and what a token leaves, follow from the shape of the model (`penstock.system.models`). The
engines' rules:

* vllm (0.33): a share of 0.92 of the memory, in which CUDA graphs count since 0.21; they take about
  2%.
* sglang (0.5): all but 512 MB, 1.5 MB per token of the token budget, 2 MB per CUDA graph and 128 MB
  per GPU, and of GPUs above 60 GB all but at least 10 GB.
* tensorrt-llm: 0.9 of what weights and overhead leave.

The overhead (activations, the CUDA context, communication) is the one figure that no engine
publishes: 1 GiB and 100 KiB per token of the token budget. Of eleven start-up logs of vLLM 0.4 to
0.19, with models of 7 to 20 billion parameters on one to four GPUs of 24 to 80 GB, nine lie within
`UNCERTAIN_GIB` of that; two of vLLM 0.6.5 took 1.3 and 3.1 GiB more. Large mixtures of experts may
take more too. So this is an estimate, and the engine's log decides.
"""

import dataclasses
import functools
from typing import Annotated

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Checked, Key, Range
from penstock.system.engine_flags import GPU_SHARE, TENSOR_PARALLEL
from penstock.system.models.shape import ModelShape, Numbers
from penstock.system.scheduler import GpuBytes, Scheduler

GIB = 2**30

UNCERTAIN_GIB = 1.25
"""By how much the overhead of one GPU is taken to be off, either way."""

_OVERHEAD_GIB = 1.0
_MEMORY = Range(1, 4096, "GiB", "it is the memory of one GPU", "gpu.memory_gib")
_GPUS = Range(1, 1024, "", "it is a number of GPUs", "gpu.tensor_parallel")
_IN_USE = "it is the share of the memory that the engine uses"
_SHARE = Range(0.01, 1, "", _IN_USE, "gpu.gpu_memory_utilization")
_OVERHEAD_BYTES_PER_TOKEN = 100 * 2**10


@dataclasses.dataclass(frozen=True)
class ModelMemory:
    """The memory that a model takes: the weights, and what each token leaves."""

    shape: ModelShape
    asked: Numbers | None = None  # how its numbers are to be stored; None: as it is published

    @property
    def numbers(self) -> Numbers:
        """How its numbers are stored."""
        if self.asked is None:
            return self.shape.stored
        return self.asked

    @property
    def weights_gb(self) -> float:
        """10^9 bytes of all weights."""
        return self.weights_bytes(1) / 1e9

    def windows(self, tensor_parallel: int) -> str:
        """Return what to know of its layers with a sliding window; empty: it has none."""
        shape = self.shape
        if not shape.windowed_layers:
            return ""
        if not shape.looking:
            return (
                f"All layers have a sliding window of {shape.window:,} tokens, so a request holds "
                "no more than these in the engine, but all of its tokens here"
            )
        megabytes = shape.window_bytes(self.numbers, tensor_parallel) / 1e6
        return (
            f"{shape.windowed_layers} of {shape.layers} layers have a sliding window of "
            f"{shape.window:,} tokens. That takes up to {megabytes:,.1f} MB more of each GPU for "
            "each request, left out here. The engine logs another number, which counts a token "
            "once for each kind of layer"
        )

    def weights_bytes(self, tensor_parallel: int) -> float:
        """Return the bytes of weights on one of so many GPUs."""
        if self.asked is None and self.shape.published_gb is not None:
            return self.shape.published_gb * 1e9 / tensor_parallel
        return self.shape.weights_bytes(self.numbers, tensor_parallel)

    def kv_bytes(self, tensor_parallel: int) -> float:
        """Return the bytes that a token takes on one of so many GPUs, while it is in a window."""
        if self.shape.looking:
            return self.shape.kv_bytes_per_token(self.numbers, tensor_parallel)
        return self.shape.window_bytes(self.numbers, tensor_parallel) / self.shape.window


@dataclasses.dataclass(frozen=True)
class KVTokens:
    """Tokens that KV memory holds: the estimate, and between what it may lie."""

    tokens: int
    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class Gpu(Checked):
    """A model on its GPUs.

    Attributes
    ----------
    model
        A name in the catalogue of shapes (`penstock.system.models`).
    memory_gib
        Memory of one GPU, GiB.
    tensor_parallel
        How many GPUs share each layer.
    utilization
        Share of the memory that the engine may use (vLLM's gpu_memory_utilization, SGLang's
        mem_fraction_static, TensorRT-LLM's free_gpu_memory_fraction). None: what the engine takes
        by itself.
    engine
        Whose KV memory a policy has that stands in the place of an engine; a server keeps it here.
    known
        The memory of a model that is not in the catalogue, or whose precision is chosen.
    """

    model: str
    memory_gib: Annotated[float, _MEMORY]
    tensor_parallel: Annotated[int, _GPUS, Key("tensor_parallel", others=TENSOR_PARALLEL)] = 1
    utilization: Annotated[float, _SHARE, Key(GPU_SHARE[0], others=GPU_SHARE)] | None = None
    engine: Scheduler | None = dataclasses.field(default=None, compare=False, repr=False)
    known: ModelMemory | None = dataclasses.field(default=None, repr=False)

    def settle(self) -> None:
        """Find the model by its name, however spelled."""
        if self.known is not None:
            return
        from penstock.system.models.catalogue import by_name, catalogue  # which reads a file

        shape = by_name(self.model) if isinstance(self.model, str) else None
        if shape is None:
            raise InputError(
                f"the memory of the model {checks.shown(self.model)} is not "
                f"known{nearest(str(self.model), catalogue())}; "
                "or give kv_tokens, which the engine logs at its start"
            )
        vars(self).update(model=shape.name)

    @functools.cached_property
    def memory(self) -> ModelMemory:
        """The memory that the model takes."""
        from penstock.system.models.catalogue import catalogue

        return self.known or ModelMemory(catalogue()[self.model])

    def kv_tokens(self, engine: Scheduler, token_budget: int) -> KVTokens:
        """Return how many tokens' keys and values an engine has room for.

        Raises
        ------
        InputError
            If the weights leave no room.
        """
        left = self._left_bytes(engine, token_budget)
        model = self.memory
        bytes_per_token = model.kv_bytes(self.tensor_parallel)
        uncertain = UNCERTAIN_GIB * GIB
        tokens = int(left / bytes_per_token)
        if tokens < 1:
            raise InputError(
                f"the weights of {self.model} ({model.weights_gb:,.1f} GB) and what {engine.name} "
                f"needs besides leave no KV memory on {self.words}, so it would not start; take "
                "more GPUs, or say `memory: unlimited` to go on without a limit"
            )
        return KVTokens(
            tokens,
            max(int((left - uncertain) / bytes_per_token), 0),
            int((left + uncertain) / bytes_per_token),
        )

    @property
    def windows(self) -> str:
        """What to know of its layers with a sliding window; empty: it has none."""
        return self.memory.windows(self.tensor_parallel)

    @property
    def words(self) -> str:
        """The GPUs in words."""
        many = f"{self.tensor_parallel} GPUs" if self.tensor_parallel > 1 else "one GPU"
        return f"{many} of {self.memory_gib:g} GiB"

    def share_words(self, engine: Scheduler) -> str:
        """The share of the memory that an engine is taken to use, by its own name for it; or
        nothing.
        """
        rule = engine.memory.gpu_rule
        share = self._share(engine)
        if rule is None or share is None:
            return ""
        return f" at {rule.option} {share:g}"

    def _share(self, engine: Scheduler) -> float | None:
        """Return the share of memory an engine is told to use, or takes; None: by another rule."""
        if self.utilization is not None or engine.memory.gpu_rule is None:
            return self.utilization
        return engine.memory.gpu_rule.share

    def _left_bytes(self, engine: Scheduler, token_budget: int) -> float:
        """Return the bytes that an engine has for keys and values on each GPU."""
        assert engine.memory.gpu_rule is not None
        weights = self.memory.weights_bytes(self.tensor_parallel)
        overhead = _OVERHEAD_GIB * GIB + _OVERHEAD_BYTES_PER_TOKEN * token_budget
        gpu = GpuBytes(self.memory_gib * GIB, weights, overhead, token_budget, self.tensor_parallel)
        return engine.memory.gpu_rule.left(gpu, self._share(engine))
