"""Hardware that follows from a model's shape, as a page and as JSON."""

import dataclasses
from typing import Annotated, Any

from penstock.measuring.hardware.view import IN_SCENARIOS, batch_times
from penstock.show.answers import Meaning
from penstock.show.page import Fact, Page, Section
from penstock.system.engines import ENGINES
from penstock.system.gpu_memory import ModelMemory
from penstock.system.models.served import ServedModel

_CONTEXT = 8_192
_SHOWN_TOKENS = 16_384  # up to which batch times are written out


@dataclasses.dataclass(frozen=True)
class ModelOnGpus:
    """What follows from the shape of a model."""

    model: Annotated[str, Meaning("What was asked for.")]
    gpu: Annotated[str, Meaning("What was asked for.")]
    tensor_parallel: Annotated[int, Meaning("What was asked for.")]
    engine: Annotated[str, Meaning("What was asked for.")]
    parameters: Annotated[int, Meaning("Of the model.")]
    active_parameters: Annotated[int, Meaning("That a token goes through.")]
    precision: Annotated[
        dict[str, str], Meaning("Of the ``weights``, the ``experts`` and the ``kv`` memory.")
    ]
    weights_bytes_per_gpu: Annotated[int, Meaning("What the weights take.")]
    kv_bytes_per_token_per_gpu: Annotated[int, Meaning("What a token takes, where it is kept.")]
    window_bytes_per_request_per_gpu: Annotated[
        int, Meaning("What a request takes besides, however long it is.")
    ]
    flops_per_token: Annotated[int, Meaning("Of the linear layers.")]
    token_budget: Annotated[int, Meaning("The engine's own.")]
    max_batch_size: Annotated[int | None, Meaning("The engine's own.")]
    kv_tokens: Annotated[
        dict[str, int],
        Meaning("Tokens that KV memory has room for: ``estimate``, ``low`` and ``high``."),
    ]
    batch_time: Annotated[dict[str, Any], IN_SCENARIOS]
    within_a_factor_of: Annotated[dict[str, float], Meaning("How far off the batch times may be.")]
    kernels_measured: Annotated[bool, Meaning("Whether kernels of this GPU were measured.")]
    source: Annotated[str, Meaning("Where the batch times come from.")]


def facts_of(served: ServedModel) -> ModelOnGpus:
    """Return what follows from a shape."""
    shape, numbers, tp = served.shape, served.numbers, served.tensor_parallel
    budget, slots = served.limits
    kv = served.on_gpus.kv_tokens(ENGINES[served.engine], budget)
    return ModelOnGpus(
        model=shape.name,
        gpu=served.gpu.name,
        tensor_parallel=tp,
        engine=served.engine_name,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        precision={"weights": numbers.dense, "experts": numbers.experts, "kv": numbers.kv},
        weights_bytes_per_gpu=round(shape.weights_bytes(numbers, tp)),
        kv_bytes_per_token_per_gpu=round(shape.kv_bytes_per_token(numbers, tp)),
        window_bytes_per_request_per_gpu=round(shape.window_bytes(numbers, tp)),
        flops_per_token=round(shape.flops_per_token()),
        token_budget=budget,
        max_batch_size=slots,
        kv_tokens={"estimate": kv.tokens, "low": kv.low, "high": kv.high},
        batch_time=served.times.composition(_SHOWN_TOKENS).as_section(),
        within_a_factor_of=served.within,
        kernels_measured=served.gpu.measured,
        source=served.fit.source,
    )


def shaped_page(served: ServedModel) -> Page:
    """Show a model on GPUs: its shape, its memory, some batch times, how far off they may be."""
    facts = facts_of(served)
    numbers, kv = served.numbers, facts.kv_tokens
    active = f"{facts.active_parameters / 1e9:,.2f} of them for each token"
    experts = "" if served.shape.experts is None else f", experts in {numbers.experts}"
    if numbers.attention != numbers.dense:
        experts += f", attention in {numbers.attention}"
    kept = ModelMemory(served.shape, numbers)
    each, windows = kept.kv_bytes(served.tensor_parallel), kept.windows(served.tensor_parallel)
    logged = "another" if windows and served.shape.looking else "the true"
    flops = served.shape.flops_per_token(_CONTEXT) / 1e9
    slots = facts.max_batch_size
    shape = [
        Fact("Parameters", f"{facts.parameters / 1e9:,.2f}", f"thousand million, {active}"),
        Fact("FLOPs", f"{facts.flops_per_token / 1e9:,.1f}", f"10^9 a token; {flops:,.1f} "
             f"after {_CONTEXT:,} others"),
        Fact("Weights", f"{facts.weights_bytes_per_gpu / 1e9:,.1f}",
             f"GB on each GPU, in {numbers.dense}{experts}"),
        Fact("KV cache", f"{each / 1e3:,.1f}", f"kB a token on each GPU, in {numbers.kv}"),
    ]  # fmt: skip
    memory = [
        Fact("KV memory", f"{kv['estimate']:,}", f"tokens ({kv['low']:,} to {kv['high']:,}), an "
             f"estimate; the engine logs {logged} number"),
        Fact("Token budget", f"{facts.token_budget:,}", f"as {served.engine} chooses"),
        Fact("Max batch size", f"{slots:,}" if slots else "none", f"as {served.engine} chooses"),
    ]  # fmt: skip
    composition = served.times.composition(_SHOWN_TOKENS)
    caution = f"Batch times {served.caution}."
    return Page(
        title=served.name,
        heading=f"worked out for {served.fit.title}",
        sections=[
            Section("Shape", facts=shape),
            Section("Memory", [f"{windows}."] if windows else [], facts=memory),
            Section("Batch times", [caution], tables=[batch_times(composition)]),
        ],
    )
