"""What engines add to the kernels of a model, and how far off their predictions were."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Host:
    """What an engine adds to the kernels of a model's layers.

    Attributes
    ----------
    batch_s
        Seconds between two batches in which the GPU waits.
    request_s
        Seconds for each request in a batch: sampling, detokenising.
    layer_s
        Seconds of small kernels in each layer: norms, positions, activations, copies.
    reduce_s
        Seconds that GPUs wait for each other before each all-reduce.
    launch_s, launch_experts_s
        Seconds in which the host starts the kernels of a layer, without and with experts, where no
        CUDA graph does: a batch with more than ``graph_tokens`` takes no less.
    graph_tokens
        Largest batch that runs from a CUDA graph.
    front_s
        Seconds of a request before and after the engine: HTTP, tokenizer, first answer.
    """

    batch_s: float = 0.0
    request_s: float = 0.0
    layer_s: float = 8e-6
    reduce_s: float = 0.0
    launch_s: float = 0.0
    launch_experts_s: float = 0.0
    graph_tokens: int = 512
    front_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class EngineFit:
    """An engine: what it adds, from which runs that is known, and how far off predictions are.

    Attributes
    ----------
    title
        How it spells its name.
    host
        Fitted on the runs below.
    source
        Which runs.
    off
        By measure (``tpot``, ``ttft``): a factor that nine of ten predictions were within.
    points
        How many these were (`docs/how_far_off.py`): the rows of these runs, and those of a model
        that was left out, Qwen3-32B.
    """

    title: str
    host: Host
    source: str
    off: Mapping[str, float]
    points: int


ENGINE_FITS = {
    "vllm": EngineFit(
        "vLLM",
        Host(batch_s=5e-5, layer_s=10e-6, reduce_s=4e-6, launch_experts_s=1e-3, front_s=4e-3),
        "InferenceX, vLLM 0.16 to 0.18: Llama-3.1-70B on H100 and H200, gpt-oss-120b on H100, "
        "MiniMax-M2.5 on H200",
        {"tpot": 1.25, "ttft": 1.75},
        299,
    ),
    "sglang": EngineFit(
        "SGLang",
        Host(layer_s=1e-6, reduce_s=1e-6, front_s=0.15),
        "InferenceX, SGLang 0.5.6 to 0.5.9: DeepSeek-R1, Qwen3-235B-A22B and Llama-3.1-8B on H200",
        {"tpot": 1.6, "ttft": 6.0},
        169,
    ),
    "tensorrt-llm": EngineFit(
        "TensorRT-LLM",
        Host(layer_s=1e-6, front_s=0.1),
        "InferenceX, TensorRT-LLM 1.0 to 1.1: Llama-3.1-70B and DeepSeek-R1 on H200, "
        "Qwen3-235B-A22B on H100, whose TTFT contradict each other",
        {"tpot": 1.4, "ttft": 3.1},
        621,
    ),
}
"""Known engines; others are taken for vLLM, and said to be."""


def engine_fit(engine: str) -> EngineFit:
    """Return what is known of an engine, or of vLLM in its place."""
    return ENGINE_FITS.get(engine, ENGINE_FITS["vllm"])
