"""OpenVINO GenAI's continuous batching on a CPU, with a random Llama made here.

The engine forms its own batches (``dynamic_split_fuse``: decodes first, then the oldest prompts,
cut to fit), which is the policy ``sarathi``. It says how many requests were in a batch but not how
many tokens; a mirror of its scheduler knows, and each batch is held against it: requests in the
batch, and a token of each request that must put one out.
"""

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.profiling.batching import Batch, Batching
from penstock.measuring.profiling.driving import Episode, run_episode
from penstock.measuring.profiling.engine import RealEngine, imported
from penstock.measuring.profiling.llama import LONGEST_CONTEXT, LlamaShape

_EXTRA = "openvino"
_PACKAGES = ("openvino", "openvino-genai")
_TASK = "text-generation-with-past"
_BLOCK = 32  # tokens in a block of the KV cache on a CPU
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


class OpenVinoEngine(RealEngine):
    """OpenVINO GenAI's `ContinuousBatchingPipeline`, driven step by step.

    Parameters
    ----------
    shape
        The Llama. It is made and exported once, into a cache folder.
    token_budget
        Most tokens in a batch (``max_num_batched_tokens``).
    threads
        Threads of a forward pass.
    cache_tokens
        KV cache, tokens. All of it is used once at the start: memory costs time when it is first
        touched.
    folder
        Where models are kept; None: the user's cache folder.

    Raises
    ------
    InputError
        If OpenVINO GenAI is missing.
    """

    longest = LONGEST_CONTEXT  # and no max_running: max_num_seqs has no effect here

    def __init__(
        self,
        shape: LlamaShape,
        token_budget: int,
        threads: int = 1,
        cache_tokens: int = 32_768,
        folder: Path | None = None,
    ) -> None:
        modules = ("openvino", "openvino_genai")
        openvino, genai = imported("the engine openvino needs OpenVINO GenAI", _EXTRA, *modules)
        super().__init__(Batching("sarathi", token_budget))
        threads = checks.whole("threads", threads, 1, 4096, "", "a forward pass needs at least one")
        reason = "requests lie in the KV cache"
        cache_tokens = checks.whole("cache_tokens", cache_tokens, 1_024, 2**30, "tokens", reason)
        model = exported(shape, folder)
        config = genai.SchedulerConfig()
        config.max_num_batched_tokens = token_budget
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = False
        config.num_kv_blocks = -(-cache_tokens // _BLOCK)
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(model), config, "CPU", {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        )
        self._tensor, self._generation = openvino.Tensor, genai.GenerationConfig
        self._ids = np.random.default_rng(0).integers(
            len(_SPECIAL), shape.vocab, (1, LONGEST_CONTEXT), np.int64
        )
        self._handles: dict[int, Any] = {}  # without its handle a request never runs
        self._describe(shape, "OpenVINO GenAI", _PACKAGES, threads)
        prompts = ((0, _BLOCK * 8, 1),) * (cache_tokens // (_BLOCK * 8) + 1)
        run_episode(self, Episode(prompts))  # blocks are taken in turn

    def submit(self, request: int, prompt: int, output: int) -> None:
        """Put a request of random tokens at the end of the queue."""
        wanted = self._generation()
        wanted.max_new_tokens = wanted.min_new_tokens = output
        wanted.ignore_eos = True
        tokens = self._tensor(np.ascontiguousarray(self._ids[:, :prompt]))
        self._handles[request] = self._pipeline.add_request(request, tokens, wanted)
        self._batching.add(request, prompt, output)

    def step(self) -> Batch:
        """Run one batch to its end, read its tokens, and hold it against the mirror.

        Raises
        ------
        RuntimeError
            If the engine did otherwise: its scheduler is not the one that is known here.
        """
        self._pipeline.step()
        batch = self._batching.next_batch()
        scheduled = self._pipeline.get_metrics().scheduled_requests
        silent = [request for request in batch.puts_out if not self._read(request)]
        for request in self._batching.left:
            del self._handles[request]
        if scheduled != batch.requests or silent:
            raise RuntimeError(
                f"OpenVINO GenAI had {scheduled} requests in a batch, and {len(silent)} of them "
                f"put out no token, but {batch.requests} and none were expected; its scheduler has "
                "changed, or the KV cache is too small"
            )
        return batch

    def _read(self, request: int) -> bool:
        """Take the one token that a request has put out; return whether there was one."""
        handle = self._handles[request]
        if not handle.can_read():
            return False
        (output,) = handle.read().values()
        return len(output.generated_ids) == 1


def exported(shape: LlamaShape, folder: Path | None = None) -> Path:
    """Return the folder of a random Llama for OpenVINO, made first if it is not there."""
    folder = Path(platformdirs.user_cache_dir("penstock")) / "models" if folder is None else folder
    target = folder / f"openvino-{shape.key}"
    if (target / "openvino_model.xml").exists():
        return target
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is made here
    needs = "making a model for OpenVINO needs optimum-intel"
    (exporters,) = imported(needs, _EXTRA, "optimum.exporters.openvino")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "llama"
            out = Path(scratch) / "openvino"
            _make(shape, made)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exporters.main_export(str(made), str(out), task=_TASK, library_name="transformers")
            shutil.move(out, target)
    except OSError as error:
        raise InputError(
            f"cannot keep the model in {folder}: {error}; give another folder"
        ) from None
    return target


def _make(shape: LlamaShape, folder: Path) -> None:
    """Write a Llama with random weights, and a tokenizer that knows no words."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape.config())).save_pretrained(folder)
    words = {word: index for index, word in enumerate(_SPECIAL)}
    words |= {f"t{index}": index for index in range(len(_SPECIAL), shape.vocab)}
    pad, begin, end, unknown = _SPECIAL
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token=unknown)),
        bos_token=begin, eos_token=end, pad_token=pad, unk_token=unknown,
    ).save_pretrained(folder)  # fmt: skip
