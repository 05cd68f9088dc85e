"""Record what the real scheduler of SGLang does, step by step, without a GPU or a model.

Run by hand where SGLang 0.5.23 is installed; with names, only those recordings are made:

    python tests/agreement/record_sglang.py [NAME ...]

writes ``schedules/sglang_NAME.csv`` and ``.json`` as `record_vllm.py` does for vLLM. The scheduler is the real class
with its real allocator, radix cache, queue and processing of results. Packages of CUDA are stood in for, and so is
the forward pass: a step takes `batch_ns` and yields a token for each request whose prompt is done.
"""

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.metadata
import logging
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from recorded import HASH_BLOCK, NO_BLOCK, Call, batch_ns, conversations, lognormal, save


class NoCuda(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that fail without a GPU or have nothing to do with scheduling."""

    PACKAGES = (
        "IPython", "cutlass", "decord", "deep_gemm", "flash_attn", "flashinfer", "gguf", "kernels", "quack",
        "sgl_kernel", "torchaudio", "torchvision",
    )  # fmt: skip

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find what is named above."""
        if name.split(".")[0] not in self.PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a module whose every name is a mock."""
        module = ModuleType(spec.name)
        mocks: dict[str, MagicMock] = {}

        def get(name: str) -> Any:
            if name == "__version__":
                return "99.0.0"
            if name.startswith("__"):
                raise AttributeError(name)
            return mocks.setdefault(name, MagicMock(name=f"{spec.name}.{name}"))

        module.__getattr__ = get  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


sys.meta_path.insert(0, NoCuda())

import sglang.srt.managers.scheduler as scheduling  # noqa: E402
import torch  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.managers.scheduler_components.batch_result_processor import (  # noqa: E402
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.utils import GenerationBatchResult  # noqa: E402
from sglang.srt.mem_cache import allocation  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, default_radix_cache_factory  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

logging.disable(logging.WARNING)
allocation.support_triton = lambda backend: False
STOP = 2  # the token that ends an output before what was declared
# Fields of the scheduler for what is not simulated.
FALSE_FIELDS = (
    "_engine_paused", "enable_hicache_storage", "enable_hierarchical_cache", "enable_hisparse", "enable_lmcache",
    "enable_lora", "enable_session_radix_cache", "enable_unified_cache_external_linker", "enable_unified_memory",
    "is_hybrid_ssm", "is_hybrid_swa", "require_mlp_sync",
)  # fmt: skip
NONE_FIELDS = (
    "decode_offload_manager", "dllm_config", "dynamic_chunk_sizer", "hisparse_coordinator", "lora_drainer",
    "max_new_tokens_limit", "max_queued_requests", "metrics_collector", "min_free_slots_delayer",
    "_pending_chunked_abort_req", "scheduler_stage_metrics", "server_args", "sliding_window_size",
    "truncation_align_size",
)  # fmt: skip


class Scheduler(scheduling.Scheduler):  # type: ignore[misc]
    """SGLang's scheduler with what a model, a GPU and a network would bring set by hand."""

    def __init__(self, configuration: dict[str, Any], longest_context: int) -> None:
        resolved = scheduling.get_schedule()
        page_size = configuration.get("page_size", 1)
        tokens = configuration["kv_tokens"] // page_size * page_size
        for name in FALSE_FIELDS:
            setattr(self, name, False)
        for name in NONE_FIELDS:
            setattr(self, name, None)
        self.device = "cpu"
        self.spec_algorithm = SpeculativeAlgorithm.NONE
        self.disaggregation_mode = DisaggregationMode.NULL
        self.page_size = page_size
        self.enable_overlap = configuration.get("overlap", False)
        self.enable_async_d2h_copy = False
        self.kv_shard_widening = 1
        self.max_total_num_tokens = tokens
        self.max_running_requests = configuration["max_running"]
        self.max_prefill_tokens = configuration.get("max_prefill_tokens", 16384)
        self.max_req_len = tokens - 1
        self.processed_tokens_counter = 0
        self.schedule_policy = resolved.schedule_policy
        self.enable_priority_scheduling = resolved.enable_priority_scheduling
        self.abort_on_priority_when_disabled = False
        self.schedule_low_priority_values_first = resolved.schedule_low_priority_values_first
        self.priority_scheduling_preemption_threshold = resolved.priority_scheduling_preemption_threshold
        self.model_config = SimpleNamespace(
            vocab_size=1 << 62, is_encoder_decoder=False, is_multimodal=False, hf_eos_token_id={STOP},
            self_opened_think_start_ids=None, think_end_ids=None, think_end_id=None,
        )  # fmt: skip
        self._make_memory(tokens, longest_context, not configuration.get("radix", False), resolved.chunked_prefill_size)
        self._stand_in()
        self.init_running_status()
        with patch.object(scheduling, "get_resolved_model_impl", lambda config: None):
            self.init_chunked_prefill()
        self.init_schedule_policy()
        self.enable_skip_finishing_decode = self.enable_overlap
        self.batch_result_processor = SchedulerBatchResultProcessor(
            is_generation=True, disaggregation_mode=self.disaggregation_mode, enable_overlap=self.enable_overlap,
            enable_overlap_mlx=False, model_config=self.model_config,
            token_to_kv_pool_allocator=self.token_to_kv_pool_allocator, tree_cache=self.tree_cache,
            hisparse_coordinator=None, req_to_token_pool=self.req_to_token_pool, decode_offload_manager=None,
            metrics_collector=None, metrics_reporter=self.metrics_reporter, draft_worker=None, model_worker=object(),
            logprob_result_processor=MagicMock(), output_streamer=MagicMock(), beam_coordinator=self.beam_coordinator,
            abort_request=self.send_abort_output,
        )  # fmt: skip

    def _make_memory(self, tokens: int, longest_context: int, disable_radix_cache: bool, chunk: int) -> None:
        """Make the real allocator and prefix cache; the KV memory itself is not there."""
        self.disable_radix_cache = disable_radix_cache
        self.req_to_token_pool = ReqToTokenPool(self.max_running_requests, longest_context, "cpu", False)
        if self.page_size == 1:
            allocator = TokenToKVPoolAllocator(tokens, torch.float16, "cpu", MagicMock(), False)
        else:
            allocator = PagedTokenToKVPoolAllocator(tokens, self.page_size, torch.float16, "cpu", MagicMock(), False)
            allocator.use_triton_kernels = False
        self.token_to_kv_pool_allocator = allocator
        cache = CacheInitParams(
            disable=disable_radix_cache, req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=allocator, page_size=self.page_size, chunked_prefill_size=chunk,
        )  # fmt: skip
        self.tree_cache = default_radix_cache_factory(
            TreeCacheBuildContext(
                server_args=None, params=cache, is_hybrid_swa=False, is_hybrid_ssm=False,
                enable_hierarchical_cache=False, disable_radix_cache=disable_radix_cache, tp_worker=MagicMock(),
                model_config=self.model_config, tp_size=1, tp_rank=0, tp_group=None,
            )
        )  # fmt: skip

    def _stand_in(self) -> None:
        """Set the parts that have nothing to do here: they report, wait for nobody, and change no batch."""
        self.tp_worker = MagicMock()
        self.tp_worker.model_runner.prefill_aware_swa = False
        self.tp_worker.model_runner.attn_backend = object()
        self.dllm_manager = MagicMock()
        self.dllm_manager.any_staging_reqs.return_value = False
        self.grammar_manager = MagicMock(grammar_queue=[])
        self.grammar_manager.has_waiting_grammars.return_value = False
        self.dp_attn_adapter = SimpleNamespace(
            maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
            maybe_convert_decode_to_extend=lambda batch: batch,
        )
        self.ngram_embedding_manager = SimpleNamespace(prepare_for_forward=lambda batch, chunked_req=None: batch)
        self.load_inquirer = MagicMock()
        self.metrics_reporter = MagicMock(enable_metrics=False, forward_ct_decode=0, num_generated_tokens=0)
        self.beam_coordinator = MagicMock()
        self.beam_coordinator.pending_member_rows.return_value = 0
        self.beam_coordinator.commit_decode.return_value = set()

    def send_abort_output(self, *request: Any) -> None:
        """Refuse a recording in which SGLang gives a request up."""
        raise RuntimeError(f"SGLang gave up {request}: it can never fit")

    def process(self, batch: Any, calls: Sequence[Call]) -> None:
        """Give each request its next token: a stop token where its output ends before the declared length."""
        sampled = []
        for request in batch.reqs:
            call = calls[int(request.rid)]
            last = len(request.output_ids) + 1 == call.output_tokens
            stops = last and not request.sampling_params.ignore_eos and call.declared != call.output_tokens
            sampled.append(STOP if stops else NO_BLOCK)
        tokens = torch.tensor(sampled, dtype=torch.int64)
        result = GenerationBatchResult(logits_output=None, next_token_ids=tokens, can_run_cuda_graph=False)
        if batch.forward_mode.is_decode():
            self.batch_result_processor.process_batch_result_decode(batch, result)
        else:
            self.batch_result_processor.process_batch_result_prefill(batch, result)
        self.tree_cache.flush_pending_backups()

    def compose(self) -> Any:
        """Return the next batch, None where there is none, as both event loops of SGLang do."""
        plan = self.get_next_batch_to_run(running_batch=self.running_batch, last_batch=self.last_batch)
        self.running_batch = plan.running_batch
        batch = plan.batch_to_run
        if batch is not None:
            self.processed_tokens_counter += batch.extend_num_tokens or 0
            self.forward_ct += 1
            batch.forward_iter = self.forward_ct
        return batch


def as_request(index: int, call: Call, ignore_eos: bool) -> Any:
    """Return SGLang's request; its prompt starts with whole blocks named by hash ids, the rest is its own."""
    shared = [block * HASH_BLOCK + i + STOP + 1 for block in call.hash_ids for i in range(HASH_BLOCK)]
    own = [NO_BLOCK + index + 1] * (call.prompt_tokens - len(shared))
    parameters = SamplingParams(max_new_tokens=call.declared, ignore_eos=ignore_eos, temperature=0)
    parameters.normalize(None)
    return Req(
        f"{index:06d}", "", array("q", shared + own), parameters, eos_token_ids={STOP}, vocab_size=None,
        priority=call.priority, disagg_mode=DisaggregationMode.NULL,
    )  # fmt: skip


def server_args(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return what SGLang would be started with."""
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "page_size": configuration.get("page_size", 1),
        "chunked_prefill_size": configuration["chunked_prefill_size"],
        "enable_mixed_chunk": configuration.get("mixed", False),
        "schedule_policy": configuration.get("policy", "fcfs"),
        "schedule_conservativeness": configuration.get("conservativeness", 1.0),
        "disable_overlap_schedule": not configuration.get("overlap", False),
        "disable_radix_cache": not configuration.get("radix", False),
        "max_prefill_tokens": configuration.get("max_prefill_tokens", 16384),
        "max_running_requests": configuration["max_running"],
        "pp_max_micro_batch_size": configuration["max_running"],
    } | configuration.get("settings", {})


def serve(configuration: dict[str, Any], calls: list[Call]) -> list[dict[str, Any]]:
    """Serve all calls, fill in what became of them, and return the steps."""
    declared = configuration["declared_max_new_tokens"]
    for call in calls:
        call.declared = call.output_tokens
        if isinstance(declared, int):
            call.declared = max(declared, call.output_tokens)
    ahead = 200  # tokens: room for what a batch holds ahead
    longest_context = max(call.prompt_tokens + call.declared for call in calls) + ahead
    with get_context().override_server_args(**server_args(configuration)):
        scheduler = Scheduler(configuration, longest_context)
        requests = [as_request(i, call, declared == "ignore_eos") for i, call in enumerate(calls)]
        steps = run(scheduler, calls, requests)
    for call, request in zip(calls, requests, strict=True):
        assert len(request.output_ids) == call.output_tokens
        call.preemptions = request.retraction_count
    return steps


def run(scheduler: Scheduler, calls: list[Call], requests: list[Any]) -> list[dict[str, Any]]:
    """Run SGLang's event loop, with or without overlap, on a clock of our own."""
    steps: list[dict[str, Any]] = []
    flight = scheduler.result_queue = deque()
    now = free_at = arrived = 0
    while True:
        while arrived < len(calls) and calls[arrived].arrival_ns <= now:
            scheduler.init_req_max_new_tokens(requests[arrived])
            scheduler._add_request_to_queue(requests[arrived])
            arrived += 1
        retracted = [request.retraction_count for request in requests]
        batch = scheduler.compose()
        if batch is not None:
            lengths = [1] * len(batch.reqs) if batch.forward_mode.is_decode() else batch.extend_lens
            start = max(now, free_at)
            free_at = start + batch_ns(sum(lengths))
            flight.append((batch.copy(), free_at))
            scheduled = {int(request.rid): length for request, length in zip(batch.reqs, lengths, strict=True)}
            preempted = [i for i, request in enumerate(requests) if request.retraction_count > retracted[i]]
            steps.append({"start_ns": start, "scheduled": scheduled, "preempted": preempted})
        # with overlap a batch runs while the one before it is processed
        ahead = 1 if scheduler.enable_overlap and batch is not None else 0
        if len(flight) > ahead:
            done, now = flight.popleft()
            scheduler.process(done, calls)
            for request in done.reqs:
                call = calls[int(request.rid)]
                if call.first_token_ns < 0 and request.output_ids:
                    call.first_token_ns = now
                if call.finish_ns < 0 and request.finished():
                    call.finish_ns = now
        elif batch is None:
            if arrived == len(calls):
                return steps
            if scheduler.is_fully_idle():
                scheduler.new_token_ratio_tracker.reset()
            now = max(now, calls[arrived].arrival_ns)
        scheduler.last_batch = batch


TIGHT = {
    "declared_max_new_tokens": None, "chunked_prefill_size": 512, "max_running": 64, "kv_tokens": 2600,
    "conservativeness": 0.05,
}  # fmt: skip
"""Memory for a few requests, an admission that hopes for short outputs, and the output length as declared."""
PRIORITIES = {
    "enable_priority_scheduling": True,
    "priority_scheduling_preemption_threshold": 1,
    "schedule_low_priority_values_first": True,
    "retraction_policy": "priority",
}
# name: (workload, configuration)
RECORDINGS: dict[str, tuple[list[Call], dict[str, Any]]] = {
    "overlap_tight": (
        lognormal(120, 8.0, 1, prompt=(50, 900), output=(120, 600)),
        TIGHT | {"overlap": True},
    ),
    "mixed_paged_tight": (
        lognormal(120, 12.0, 2, prompt=(50, 900), output=(120, 600)),
        TIGHT | {"overlap": True, "mixed": True, "page_size": 16},
    ),
    "declared_tight": (
        lognormal(120, 8.0, 3, prompt=(50, 900), output=(120, 600)),
        TIGHT | {"declared_max_new_tokens": 1000, "mixed": True},
    ),
    "ratio_below_its_least": (  # after a retraction; the next batch of decodes raises it
        lognormal(200, 5.0, 4, prompt=(40, 200), output=(900, 2000), spread=0.2),
        TIGHT | {"declared_max_new_tokens": 39_000, "kv_tokens": 40_000, "max_running": 200, "conservativeness": 0.3},
    ),
    "priorities_tight": (
        lognormal(120, 12.0, 5, prompt=(50, 900), output=(120, 600), priorities=4),
        TIGHT | {"overlap": True, "settings": PRIORITIES},
    ),
    "radix_lpm_tight": (
        conversations(120, 16.0, 6, people=9, block_size=HASH_BLOCK),
        TIGHT | {"overlap": True, "radix": True, "policy": "lpm", "kv_tokens": 1100},
    ),
    "radix_chunks_tight": (
        conversations(120, 16.0, 7, people=9, block_size=HASH_BLOCK),
        TIGHT | {"radix": True, "chunked_prefill_size": 64, "kv_tokens": 1000},
    ),
    "radix_hrrn_tight": (
        conversations(120, 16.0, 8, people=9, block_size=HASH_BLOCK),
        TIGHT | {"overlap": True, "radix": True, "policy": "hrrn", "kv_tokens": 1100},
    ),
    "radix_dfs_weight_tight": (
        conversations(120, 16.0, 9, people=9, block_size=HASH_BLOCK),
        TIGHT | {"overlap": True, "radix": True, "policy": "dfs-weight", "kv_tokens": 1100},
    ),
    "radix_shortest_prefill_first_tight": (
        conversations(120, 16.0, 10, people=9, block_size=HASH_BLOCK),
        TIGHT | {"radix": True, "policy": "shortest-prefill-first", "kv_tokens": 1100, "mixed": True,
                 "chunked_prefill_size": 96},
    ),
    "radix_priorities_tight": (
        [dataclasses.replace(call, priority=i % 4)
         for i, call in enumerate(conversations(120, 16.0, 11, people=9, block_size=HASH_BLOCK))],
        TIGHT | {"overlap": True, "radix": True, "policy": "lof", "kv_tokens": 1100, "settings": PRIORITIES},
    ),
    "whole_prompts_ignore_eos": (
        lognormal(120, 8.0, 12, prompt=(150, 900), output=(120, 600)),
        TIGHT | {"declared_max_new_tokens": "ignore_eos", "chunked_prefill_size": -1, "max_prefill_tokens": 600,
                 "kv_tokens": 6000},
    ),
}  # fmt: skip


def write(name: str, calls: list[Call], configuration: dict[str, Any]) -> None:
    """Record one schedule into two small files."""
    steps = serve(configuration, calls)
    loop = "event_loop_overlap" if configuration.get("overlap") else "event_loop_normal"
    engine = f"SGLang {importlib.metadata.version('sglang')} Scheduler, {loop}"
    configuration = configuration | configuration.get("settings", {})
    configuration.pop("settings", None)
    radix = configuration.get("radix", False)
    save(f"sglang_{name}", calls, steps, configuration, engine, "tests/agreement/record_sglang.py", radix)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or RECORDINGS:
        write(chosen, *RECORDINGS[chosen])
        print(chosen, "recorded")
