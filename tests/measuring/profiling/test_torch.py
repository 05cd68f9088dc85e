"""The forward pass over batches is that of Hugging Face, token by token; what is missing is said in one line."""

import importlib.util

import numpy as np
import pytest

import penstock as ps
from penstock.measuring.profiling.batching import Batch
from penstock.measuring.profiling.driving import drive
from penstock.measuring.profiling.llama import llama
from penstock.measuring.profiling.open_engine import open_engine
from penstock.measuring.profiling.torch_engine import TorchEngine

MISSING = any(importlib.util.find_spec(name) is None for name in ("torch", "transformers"))
needs_torch = pytest.mark.skipif(MISSING, reason="PyTorch is not installed: pip install '.[test,torch]'")
TINY = llama("tiny")


@pytest.mark.skipif(not MISSING, reason="PyTorch is installed here")
def test_without_pytorch_one_line_says_how_to_install_it() -> None:
    with pytest.raises(ps.InputError, match=r"pip install '\.\[torch\]'$"):
        open_engine("torch", TINY, 64)


class Listening(TorchEngine):
    """Keeps the tokens that requests put out."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.said: dict[int, list[int]] = {}

    def _run(self, batch: Batch) -> list[int]:
        tokens = super()._run(batch)
        requests = [request for request, *_ in (*batch.prefill, *batch.decode)]
        for request, token in zip(requests, tokens, strict=True):
            if request in batch.puts_out:
                self.said.setdefault(request, []).append(token)
        return tokens


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer"])
def test_every_token_is_the_one_that_hugging_face_generates(policy: str) -> None:
    import torch

    engine = Listening(TINY, 64, policy=policy, max_running=6, longest=512, device="cpu")
    lengths = [(50, 6), (130, 9), (3, 4), (70, 1), (64, 12), (10, 3), (10, 3), (200, 5)]
    for number, (prompt, output) in enumerate(lengths):
        engine.submit(number, prompt, output)
        engine.step()
    while engine.busy:
        engine.step()
    for number, (prompt, output) in enumerate(lengths):
        ids = torch.tensor(engine._ids[:prompt])[None]
        generated = engine._llama.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=output, min_new_tokens=output, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert engine.said[number] == generated[0, prompt:].tolist()


@pytest.mark.torch
@needs_torch
def test_a_policy_forms_its_batches_in_real_time() -> None:
    engine = open_engine("torch", TINY, 64, policy="orca", max_running=4, longest=256, device="cpu")
    drawn = ps.Workload.poisson(50.0, ps.Geometric(40, max=100), ps.Geometric(8, max=30), seed=1).requests(30)
    seen = drive(engine, *drawn[:3])
    assert seen.batches.sums[:, :2].sum() == (drawn.prompt_tokens + drawn.output_tokens - 1).sum()
    assert seen.batches.sums[:, 2].max() <= 4
    assert (np.diff(seen.finish_s) != 0).any()


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_running": 60_000, "longest": 2**20}, "do not fit"),
        ({"device": "tpu"}, "auto, cuda or cpu"),
        ({"policy": "vllm"}, "take sarathi"),
        ({"max_running": 0}, "max_running"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_before_it_is_allocated(options: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError, match=said):
        TorchEngine(TINY, 64, **options)  # type: ignore[arg-type]


@pytest.mark.torch
@needs_torch
def test_a_request_longer_than_a_row_of_the_cache_is_refused() -> None:
    engine = TorchEngine(TINY, 64, max_running=2, longest=256, device="cpu")
    with pytest.raises(ps.InputError, match="raise longest"):
        engine.submit(0, 250, 10)
