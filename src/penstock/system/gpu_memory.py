"""KV memory that a model leaves on its GPUs: an estimate from weights, GPU memory, and what an
engine keeps for itself.

    KV tokens = (what the engine may use of a GPU - weights / TP - overhead) / (KV bytes per token
    of a GPU)

A token's keys and values take 2 x layers x KV heads x head dimension x 2 bytes; tensor parallelism
shares out the KV heads, and copies them where there are fewer heads than GPUs. The engines' rules:

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

Models are left out whose KV memory is not of that form: latent attention (DeepSeek), sliding
windows (gpt-oss), linear attention (Qwen3.5). A shape (`penstock.system.models`) knows the first
two.
"""

import dataclasses
from typing import Annotated, Protocol

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Checked, Range
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
_VARIANTS = ("-hf", "-chat", "-instruct")  # of a model, whose weights are as many
_KV_BYTES = 2  # of a number, in 16 bits


class ModelMemory(Protocol):
    """The memory that a model takes: the weights, and what each token leaves."""

    @property
    def weights_gb(self) -> float:
        """10^9 bytes of all its weights."""

    def windows(self, tensor_parallel: int) -> str:
        """Return what to know of its layers with a sliding window; empty: it has none."""

    def weights_bytes(self, tensor_parallel: int) -> float:
        """Return the bytes of weights on one of so many GPUs."""

    def kv_bytes(self, tensor_parallel: int) -> float:
        """Return the bytes that a token takes on one of so many GPUs."""


@dataclasses.dataclass(frozen=True)
class Model:
    """What decides the memory of a language model."""

    weights_gb: float  # 10^9 bytes of all its weights
    # Of its attention: the keys and values that a token leaves.
    layers: int
    kv_heads: int
    head_dim: int

    def weights_bytes(self, tensor_parallel: int) -> float:
        """Return the bytes of weights on one of so many GPUs."""
        return self.weights_gb * 1e9 / tensor_parallel

    def kv_bytes(self, tensor_parallel: int) -> int:
        """Return the bytes that a token takes on one of so many GPUs."""
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * _KV_BYTES


MODELS = {
    "BLOOM-176B": Model(352.49, 70, 112, 128),
    "CodeLlama-34B": Model(67.49, 48, 8, 128),
    "Llama-2-7B": Model(13.48, 32, 32, 128),
    "Llama-2-70B": Model(137.95, 80, 8, 128),
    "Llama-3-8B": Model(16.06, 32, 8, 128),
    "Llama-3.1-8B": Model(16.06, 32, 8, 128),
    "Llama-3.1-70B": Model(141.11, 80, 8, 128),
    "Llama-3.1-70B-FP8": Model(72.66, 80, 8, 128),
    "Llama-3.1-405B": Model(811.71, 126, 8, 128),
    "Mixtral-8x7B": Model(93.41, 32, 8, 128),
    "Mixtral-8x22B": Model(281.24, 56, 8, 128),
    "Qwen3-8B": Model(16.38, 36, 8, 128),
    "Qwen3-30B-A3B": Model(61.06, 48, 4, 128),
    "Qwen3-32B": Model(65.52, 64, 8, 128),
    "Qwen3-32B-FP8": Model(34.32, 64, 8, 128),
    "Qwen3-235B-A22B": Model(470.19, 94, 4, 128),
    "Qwen3-235B-A22B-FP8": Model(236.34, 94, 4, 128),
}
"""Known models, from the config.json that their makers publish; weights in 16 bits, FP8 with
embeddings in 16.
"""

GPU_MEMORY_GIB = {"A100 80 GB": 79.2, "H100 80 GB": 79.2, "RTX 4090": 23.5, "RTX PRO 6000": 95.0}
"""Memory of known GPUs, as their driver reports it."""


def _plain(model: str) -> str:
    """Return the name of a model in small letters, without its organisation and variant."""
    name = model.lower().rpartition("/")[2]
    for variant in _VARIANTS:
        name = name.removesuffix(variant)
    return name


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
        A name in `MODELS`.
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
        The memory of a model that is not in `MODELS`, such as one known by its shape.
    """

    model: str
    memory_gib: Annotated[float, _MEMORY]
    tensor_parallel: Annotated[int, _GPUS] = 1
    utilization: Annotated[float, _SHARE] | None = None
    engine: Scheduler | None = dataclasses.field(default=None, compare=False, repr=False)
    known: ModelMemory | None = dataclasses.field(default=None, repr=False)

    def settle(self) -> None:
        """Find the model by its name, however spelled."""
        names = {name.lower(): name for name in MODELS}
        name = names.get(_plain(self.model)) if isinstance(self.model, str) else None
        if self.known is not None:
            name = self.model
        if name is None:
            raise InputError(
                f"the memory of the model {checks.shown(self.model)} is not "
                f"known{nearest(str(self.model), MODELS)}; "
                "or give kv_tokens, which the engine logs at its start"
            )
        object.__setattr__(self, "model", name)

    def kv_tokens(self, engine: Scheduler, token_budget: int) -> KVTokens:
        """Return how many tokens' keys and values an engine has room for.

        Raises
        ------
        InputError
            If the weights leave no room.
        """
        left = self._left_bytes(engine, token_budget)
        model = self._memory
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
    def _memory(self) -> Model | ModelMemory:
        """The memory that the model takes."""
        return MODELS[self.model] if self.known is None else self.known

    @property
    def windows(self) -> str:
        """What to know of its layers with a sliding window; empty: it has none."""
        return "" if self.known is None else self.known.windows(self.tensor_parallel)

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
        return "" if rule is None or share is None else f" at {rule.option} {share:g}"

    def _share(self, engine: Scheduler) -> float | None:
        """Return the share of memory an engine is told to use, or takes; None: by another rule."""
        if self.utilization is not None or engine.memory.gpu_rule is None:
            return self.utilization
        return engine.memory.gpu_rule.share

    def _left_bytes(self, engine: Scheduler, token_budget: int) -> float:
        """Return the bytes that an engine has for keys and values on each GPU."""
        assert engine.memory.gpu_rule is not None
        weights = self._memory.weights_bytes(self.tensor_parallel)
        overhead = _OVERHEAD_GIB * GIB + _OVERHEAD_BYTES_PER_TOKEN * token_budget
        gpu = GpuBytes(self.memory_gib * GIB, weights, overhead, token_budget, self.tensor_parallel)
        return engine.memory.gpu_rule.left(gpu, self._share(engine))
