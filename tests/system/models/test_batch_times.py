"""Batch times from shapes: layers add up, never beyond what memory and units of the GPU allow."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.system.batch_time_file import BatchTimeSection
from penstock.system.models.batch_times import Host, LayerTimes
from penstock.system.models.catalogue import catalogue, model_shape
from penstock.system.models.gpus import SHEETS, known_gpu
from penstock.system.models.hosts import engine_fit
from penstock.system.models.shape import BYTES

NOTHING = Host(layer_s=0.0)
CACHED = 1.3  # small matrices come from the L2 cache


def times_of(
    model: str, gpu: str = "h100", tp: int = 8, precision: str | None = None, host: Host = NOTHING
) -> LayerTimes:
    shape = model_shape(model)
    return LayerTimes(shape, known_gpu(gpu), shape.numbers(precision), tp, 1, host)


SERVED = st.builds(times_of, st.sampled_from(sorted(catalogue())), st.sampled_from(sorted(SHEETS)))


@given(SERVED, st.integers(1, 8192))
def test_a_batch_takes_longer_than_reading_what_all_its_tokens_share(times: LayerTimes, tokens: int) -> None:
    shape = times.shape
    experts = shape.experts.count * shape.expert_parameters * shape.expert_layers if shape.experts else 0
    dense = shape.parameters - experts - shape.vocabulary * shape.hidden
    least = dense * 0.5 / 8 / (times.gpu.sheet.bandwidth * CACHED)  # in 4 bits
    assert float(times.by_tokens(np.array([float(tokens)]))[0]) > least


@given(SERVED)
def test_more_tokens_never_take_less(times: LayerTimes) -> None:
    seconds = times.by_tokens(np.array([1.0, 2, 8, 32, 128, 512, 513, 1024, 4096, 8192]))
    assert (np.diff(seconds) >= 0).all()


@given(SERVED, st.integers(1, 64), st.integers(1, 30_000))
def test_decodes_cost_at_least_what_their_context_takes_to_read(times: LayerTimes, decodes: int, context: int) -> None:
    composition = times.composition(1024)
    kept = times.shape.kv_bytes_per_token(times.numbers, times.tensor_parallel)
    alone, read = composition.of_batch(decode=[0] * decodes), composition.of_batch(decode=[context] * decodes)
    assert read - alone >= decodes * context * kept / (times.gpu.sheet.bandwidth * CACHED)


@pytest.mark.parametrize("model", ["Llama-3.1-70B", "DeepSeek-V3", "gpt-oss-120b"])
def test_the_composition_is_the_sum_of_the_layers_at_a_usual_batch(model: str) -> None:
    """Costs per token of context are taken at 32 decodes of 1,000 to 8,000 tokens."""
    times = times_of(model)
    composition, full = times.composition(8192), times.looking[0]
    added = composition.of_batch(decode=[4096] * 32) - composition.of_batch(decode=[1024] * 32)
    more = float(times._decode(4096.0, full) - times._decode(1024.0, full))
    assert added == pytest.approx(full.layers * more, rel=0.1)


def test_prefill_attention_grows_with_the_square_of_the_prompt_at_four_flops_a_pair_and_dimension() -> None:
    times = times_of("Llama-3.1-8B", tp=1)
    per_pair = times.seconds_per_pair()
    flops = 4 * 32 * 128 * 32  # heads, dimensions, layers
    assert flops / per_pair / times.gpu.sheet.flops["bf16"] == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_eight_bits_and_more_gpus_make_decodes_faster_but_not_by_more_than_the_bytes(gpu: str) -> None:
    one = np.array([1.0])
    wide, narrow = (float(times_of("Llama-3.1-70B", gpu, 4, p).by_tokens(one)[0]) for p in ("bf16", "fp8"))
    eight = float(times_of("Llama-3.1-70B", gpu, 8, "bf16").by_tokens(one)[0])
    assert wide / 2 < narrow < wide
    assert wide / 2 < eight < wide


def test_a_second_token_costs_a_mixture_more_than_a_dense_model() -> None:
    """Two tokens visit nearly twice the experts of one."""
    few = np.array([1.0, 8.0])
    mixed, dense = (times_of(model, tp=2).by_tokens(few) for model in ("Mixtral-8x7B", "Llama-3.1-8B"))
    assert mixed[1] / mixed[0] > 2
    assert dense[1] / dense[0] < 1.1


def test_layers_with_a_window_do_not_count_beyond_it() -> None:
    times = times_of("gpt-oss-120b")
    every = dataclasses.replace(times, shape=dataclasses.replace(times.shape, windowed_layers=0))
    assert times.seconds_per_context() == pytest.approx(every.seconds_per_context() / 2)
    assert times.per_request() > every.per_request()


def test_latent_attention_reads_far_less_for_each_token_than_its_heads_would() -> None:
    """576 numbers against two times 128 heads of 128."""
    latent, grouped = times_of("DeepSeek-V3"), times_of("Llama-3.1-405B")
    read = [times.shape.kv_bytes_per_token(times.numbers, 1) / times.shape.layers for times in (latent, grouped)]
    assert read == [576 * BYTES["bf16"], 2 * 8 * 128 * BYTES["bf16"]]
    assert latent.seconds_per_context() < grouped.seconds_per_context() * 8


def test_what_the_host_adds_is_added_once_a_batch_and_starts_only_large_ones_late() -> None:
    tokens = np.array([1.0, 512.0, 513.0])
    plain = times_of("Llama-3.1-8B").by_tokens(tokens)
    waiting = times_of("Llama-3.1-8B", host=Host(layer_s=0.0, batch_s=1e-3)).by_tokens(tokens)
    assert waiting - plain == pytest.approx(1e-3)
    slow = times_of("Llama-3.1-8B", host=Host(layer_s=0.0, launch_s=1e-2)).by_tokens(tokens)
    assert slow[:2] == pytest.approx(plain[:2])
    assert slow[2] == pytest.approx(32 * 1e-2, rel=0.01)


@pytest.mark.parametrize(("model", "tp"), [("gpt-oss-120b", 1), ("DeepSeek-R1", 8)])
def test_the_table_is_within_a_thousandth_of_the_layers_at_every_load(model: str, tp: int) -> None:
    """Also beside 512 tokens, where batches leave the CUDA graph; the worst is .06% at 14 tokens."""
    times = times_of(model, gpu="h200", tp=tp, host=engine_fit("vllm").host)
    loads = np.arange(1.0, 2049.0)
    assert times.composition(8192).linear(loads) == pytest.approx(times.by_tokens(loads), rel=1e-3)


def test_a_file_can_hold_it(tmp_path: object) -> None:
    composition = times_of("gpt-oss-20b").composition(2048)
    again = BatchTimeSection.model_validate(composition.as_section()).build(None)  # type: ignore[arg-type]
    batch = {"prefill": [(700, 300)], "decode": [10, 5_000]}
    assert again.of_batch(**batch) == pytest.approx(composition.of_batch(**batch))  # type: ignore[arg-type]
