"""Record what the real scheduler of vLLM does, step by step, without a GPU or a model.

Run by hand where vLLM 0.33 is installed; with names, only those recordings are made:

    HF_HUB_OFFLINE=1 python tests/agreement/record_vllm.py [NAME ...]

writes ``schedules/vllm_NAME.csv`` (a row per request) and ``.json`` (configuration, steps, preemptions) beside this
file. The scheduler is the real class with its real KV-cache manager and a real configuration; only the forward pass
is missing: a step takes `batch_ns` and yields one token for every request whose known tokens are all computed.
"""

import importlib.metadata
import json
import math
import sys
import tempfile
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from recorded import FOLDER, NO_BLOCK, Call, batch_ns, conversations, impatient, lognormal, save, turns
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_attention_heads": 1, "num_hidden_layers": 1, "vocab_size": 128, "max_position_embeddings": 2**20,
}  # fmt: skip


def make_config(
    budget: int,
    max_seqs: int,
    num_blocks: int,
    *,
    block_size: int = 16,
    policy: str = "fcfs",
    chunked_prefill: bool = True,
    long_prefill_token_threshold: int = 0,
    prefix_caching: bool = False,
    settings: dict[str, Any] | None = None,
    drafts: int = 0,
    method: str = "ngram",
    parallel_drafting: bool = False,
    mtp_modules: int = 1,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    async_scheduling: bool = False,
    scheduler_cls: str | None = None,
) -> VllmConfig:
    """Return vLLM's configuration. With ``max_num_batched_tokens`` the budget is vLLM's max_num_scheduled_tokens.

    ``settings`` are further ones of its scheduler, by vLLM's names; ``drafts``: so many tokens, by any ``method``.
    """
    if max_model_len is None:  # vLLM refuses one beyond the budget where prompts are not chunked
        max_model_len = LLAMA["max_position_embeddings"] if chunked_prefill else budget
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA))
        model = ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len, enforce_eager=True
        )
    scheduler = SchedulerConfig(
        max_model_len=max_model_len,
        is_encoder_decoder=False,
        max_num_batched_tokens=max_num_batched_tokens or budget,
        max_num_scheduled_tokens=budget if max_num_batched_tokens else None,
        max_num_seqs=max_seqs,
        enable_chunked_prefill=chunked_prefill,
        long_prefill_token_threshold=long_prefill_token_threshold,
        policy=policy,
        async_scheduling=async_scheduling,
        scheduler_cls=scheduler_cls,
        **(settings or {}),
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=prefix_caching, num_gpu_blocks_override=num_blocks)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache, device_config=DeviceConfig("cpu")
    )
    if drafts:  # what a server checks beside it has nothing to do with the scheduler
        drafting = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts,
            prompt_lookup_max=2,
            target_model_config=model,
            target_parallel_config=config.parallel_config,
        )
        drafting.method, drafting.parallel_drafting = method, parallel_drafting  # the drafter's model is never asked
        drafting.draft_model_config = SimpleNamespace(
            hf_config=SimpleNamespace(num_nextn_predict_layers=mtp_modules), model="none"
        )
        config.speculative_config = drafting
    return config


def attention(block_size: int) -> FullAttentionSpec:
    """Return one attention layer, as small as can be: blocks are counted, not filled."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)


def make_scheduler(
    budget: int, max_seqs: int, num_blocks: int, *, cls: type[Scheduler] = Scheduler, **more: Any
) -> Scheduler:
    """Build the real scheduler, configured as `make_config` says."""
    more["async_scheduling"] = issubclass(cls, AsyncScheduler)
    config = make_config(budget, max_seqs, num_blocks, **more)
    block_size = config.cache_config.block_size
    kv = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], attention(block_size))],
    )
    return cls(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )


def tokens_of(index: int, call: Call, block_size: int) -> list[int]:
    """Return all tokens of a request: whole blocks named by hash ids, of prompt and output, the rest is its own."""
    shared = [block for block in call.hash_ids for _ in range(block_size)]
    return shared + [NO_BLOCK + index] * (call.prompt_tokens + call.output_tokens - len(shared))


def as_request(index: int, call: Call, scheduler: Scheduler, prefix_caching: bool) -> Request:
    """Return vLLM's request."""
    size, ahead = scheduler.block_size, scheduler.num_hash_lookahead_tokens
    return Request(
        request_id=f"{index:06d}",  # of equal priority and arrival vLLM takes the first by name
        prompt_token_ids=tokens_of(index, call, size)[: call.prompt_tokens],
        sampling_params=SamplingParams(max_tokens=call.output_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=call.arrival_ns / 1e9,
        priority=call.priority,
        block_hasher=get_request_block_hasher(size, sha256, ahead) if prefix_caching else None,
    )


class Clients:
    """The front end: vLLM's own check lets requests in, and clients leave when their patience ends."""

    def __init__(self, calls: list[Call], scheduler: Scheduler) -> None:
        self.calls = calls
        self.engine = SimpleNamespace(
            scheduler_config=scheduler.scheduler_config,
            admission_stats=None,
            get_num_unfinished_requests=lambda: len(self.there),
            get_num_queued_tokens=lambda: sum(calls[i].prompt_tokens for i in self.there if not self.has_token(i)),
            _record_admission_rejection=lambda reason: None,
        )
        self.there: dict[int, None] = {}  # those let in that have neither finished nor left
        self.arrived = 0

    def has_token(self, index: int) -> bool:
        """Whether a first token is out."""
        return self.calls[index].first_token_ns >= 0

    def leaves_ns(self, index: int) -> float:
        """When the client of a request leaves."""
        call = self.calls[index]
        whole = call.arrival_ns + call.e2e_limit_ns if call.e2e_limit_ns else math.inf
        first = call.arrival_ns + call.ttft_limit_ns if call.ttft_limit_ns else math.inf
        return whole if self.has_token(index) else min(first, whole)

    def next_ns(self) -> float:
        """When somebody comes or leaves next."""
        comes = self.calls[self.arrived].arrival_ns if self.arrived < len(self.calls) else math.inf
        return min([comes, *map(self.leaves_ns, self.there)])

    def pass_time(self, until_ns: int) -> tuple[list[int], list[int]]:
        """Let all leave and come up to a time; return who was let in, and who left."""
        came: list[int] = []
        left: list[int] = []
        while (now := self.next_ns()) <= until_ns:
            for index in [i for i in self.there if self.leaves_ns(i) == now]:
                del self.there[index]
                self.calls[index].failed = "left"
                left.append(index)
            while self.arrived < len(self.calls) and self.calls[self.arrived].arrival_ns == now:
                try:
                    AsyncLLM.check_admission(self.engine, 1)
                except (QueueOverflowError, MaxQueuedTokensError):
                    self.calls[self.arrived].failed = "refused"
                else:
                    self.there[self.arrived] = None
                    came.append(self.arrived)
                self.arrived += 1
        return came, left


def serve(scheduler: Scheduler, calls: list[Call], *, depth: int = 1, accepts: int = 0) -> list[dict[str, Any]]:
    """Serve all calls, fill in what became of them, and return the steps.

    ``depth`` 2 is async scheduling: a step is composed while the one before it still runs. ``accepts``: drafts of
    each decode that are right, if it has so many.
    """
    drafted = [NO_BLOCK] * scheduler.num_spec_tokens
    caching = scheduler.cache_config.enable_prefix_caching
    if caching:
        init_none_hash(sha256)
    requests = [as_request(i, call, scheduler, caching) for i, call in enumerate(calls)]
    told = [tokens_of(i, call, scheduler.block_size) for i, call in enumerate(calls)]
    steps: list[dict[str, Any]] = []
    flight: deque[tuple[int, Any, list[int]]] = deque()
    now = free_at = 0
    tried_again = False
    clients = Clients(calls, scheduler)
    waiting: list[int] = []  # for the loop of the engine to take them in

    def pass_time(until_ns: int) -> None:
        came, left = clients.pass_time(until_ns)
        waiting.extend(came)
        for index in left:  # the engine looks for aborts before it takes a batch's tokens
            request, call = requests[index], calls[index]
            call.preemptions, call.first_token_ns = request.num_preemptions, -1
            scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
            waiting[:] = [other for other in waiting if other != index]

    while clients.arrived < len(calls) or flight or scheduler.has_unfinished_requests():
        pass_time(now)
        for index in waiting:
            scheduler.add_request(requests[index])
        waiting.clear()
        output = scheduler.schedule()
        tokens = output.total_num_scheduled_tokens
        if tokens:
            start = max(now, free_at)
            free_at = start + batch_ns(tokens)
            right = []
            for name in output.num_scheduled_tokens:
                kept = min(accepts, len(output.scheduled_spec_decode_tokens.get(name, ())))
                right.append(0 if requests[int(name)].is_prefill_chunk else 1 + kept)
            flight.append((free_at, output, right))
            preempted = sorted(map(int, output.preempted_req_ids or ()))
            scheduled = dict(output.num_scheduled_tokens)
            steps.append({"start_ns": start, "tokens": tokens, "scheduled": scheduled, "preempted": preempted})
            if len(flight) < depth:
                continue
        if not flight:
            if not tried_again:  # an engine asks again at once
                tried_again = True
                continue
            if clients.next_ns() == math.inf:
                raise RuntimeError("nothing can be scheduled and nothing will arrive: a request can never fit")
            now = clients.next_ns()
            continue
        tried_again = False
        now, output, right = flight.popleft()
        pass_time(now - 1)
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name, count in zip(names, right, strict=True):
            known = requests[int(name)].num_tokens
            sampled.append((told[int(name)] + [NO_BLOCK] * count)[known : known + count])
        runner = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        scheduler.update_from_output(output, runner)
        if drafted and depth == 1:
            scheduler.update_draft_token_ids(DraftTokenIds(names, [drafted.copy() for _ in names]))
        for name in names:
            call, request = calls[int(name)], requests[int(name)]
            if call.failed:
                continue
            if call.first_token_ns < 0 and request.num_output_tokens:
                call.first_token_ns = now
            if call.finish_ns < 0 and request.is_finished():
                call.finish_ns, call.preemptions = now, request.num_preemptions
                del clients.there[int(name)]
    return steps


# name: (workload, configuration)
RECORDINGS: dict[str, tuple[list[Call], dict[str, Any]]] = {
    "whole_prompts": (
        lognormal(150, 7.0, 1, prompt=(300, 1400), output=(60, 400)),
        {"budget": 2048, "max_seqs": 64, "num_blocks": 100_000, "chunked_prefill": False},
    ),
    "whole_prompts_tight": (
        lognormal(150, 7.0, 2, prompt=(300, 1400), output=(60, 400)),
        {"budget": 2048, "max_seqs": 64, "num_blocks": 240, "chunked_prefill": False},
    ),
    "threshold": (
        lognormal(150, 6.0, 3, prompt=(300, 3000), output=(60, 400)),
        {"budget": 512, "max_seqs": 32, "num_blocks": 100_000, "long_prefill_token_threshold": 128},
    ),
    "threshold_tight": (
        lognormal(150, 6.0, 4, prompt=(300, 3000), output=(60, 400)),
        {"budget": 512, "max_seqs": 64, "num_blocks": 300, "long_prefill_token_threshold": 128},
    ),
    "priority_tight": (
        lognormal(150, 8.0, 5, prompt=(40, 2500), output=(60, 400), spread=1.6, priorities=4),
        {"budget": 512, "max_seqs": 64, "num_blocks": 200, "policy": "priority"},
    ),
    "more_running_than_budget": (
        lognormal(120, 12.0, 6, prompt=(8, 60), output=(60, 300)),
        {"budget": 24, "max_seqs": 64, "num_blocks": 100_000, "max_num_batched_tokens": 64},
    ),
    "large_blocks_very_tight": (
        lognormal(120, 5.0, 7, prompt=(150, 900), output=(80, 500)),
        {"budget": 512, "max_seqs": 32, "num_blocks": 46, "block_size": 32},
    ),
    "priority_threshold_whole_prompts": (
        lognormal(150, 7.0, 8, prompt=(300, 1400), output=(60, 400), priorities=3),
        {
            "budget": 2048,
            "max_seqs": 64,
            "num_blocks": 240,
            "policy": "priority",
            "chunked_prefill": False,
            "long_prefill_token_threshold": 256,
        },
    ),
    "prefix_caching": (
        conversations(120, 12.0, 9, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 4_000, "prefix_caching": True},
    ),
    "prefix_caching_tight": (
        conversations(120, 12.0, 10, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 90, "prefix_caching": True},
    ),
    "async_few_slots": (
        lognormal(120, 6.0, 11, prompt=(100, 900), output=(60, 400)),
        {"budget": 512, "max_seqs": 8, "num_blocks": 100_000, "async_scheduling": True},
    ),
    "async_tight": (
        lognormal(120, 6.0, 12, prompt=(300, 3000), output=(60, 400)),
        {"budget": 512, "max_seqs": 64, "num_blocks": 240, "async_scheduling": True},
    ),
    "async_very_tight": (
        lognormal(120, 6.0, 13, prompt=(80, 400), output=(60, 300)),
        {"budget": 200, "max_seqs": 64, "num_blocks": 48, "async_scheduling": True},
    ),
    "async_priority_tight": (
        lognormal(120, 8.0, 14, prompt=(40, 2500), output=(60, 400), spread=1.6, priorities=4),
        {"budget": 512, "max_seqs": 64, "num_blocks": 200, "policy": "priority", "async_scheduling": True},
    ),
    "async_prefix_caching_tight": (
        conversations(120, 12.0, 15, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 90, "prefix_caching": True, "async_scheduling": True},
    ),
    "async_short": (
        lognormal(150, 12.0, 16, prompt=(4, 40), output=(2, 12)),
        {"budget": 24, "max_seqs": 6, "num_blocks": 20, "block_size": 4, "async_scheduling": True},
    ),
    "async_settings_tight": (
        lognormal(120, 7.0, 17, prompt=(300, 3000), output=(60, 400)),
        {
            "budget": 512,
            "max_seqs": 48,
            "num_blocks": 240,
            "long_prefill_token_threshold": 64,
            "async_scheduling": True,
            "settings": {
                "long_prefill_token_threshold_adaptive": True,
                "prefill_schedule_interval": 3,
                "scheduler_reserve_full_isl": False,
            },
        },
    ),
    "drafts_tight": (
        lognormal(120, 6.0, 19, prompt=(100, 600), output=(60, 300)),
        {"budget": 100, "max_seqs": 40, "num_blocks": 130, "drafts": 4, "accepts": 2},
    ),
    "async_drafts": (
        lognormal(120, 6.0, 20, prompt=(100, 600), output=(60, 300)),
        {"budget": 256, "max_seqs": 12, "num_blocks": 100_000, "drafts": 3, "accepts": 2, "async_scheduling": True},
    ),
    "async_drafts_tight": (
        lognormal(120, 6.0, 21, prompt=(100, 600), output=(60, 300)),
        {"budget": 100, "max_seqs": 40, "num_blocks": 130, "drafts": 4, "accepts": 2, "async_scheduling": True},
    ),
    "drafts_prefix_caching_tight": (
        conversations(120, 12.0, 22, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 90, "prefix_caching": True, "drafts": 3, "accepts": 2},
    ),
    "async_drafts_prefix_caching_tight": (
        conversations(120, 12.0, 23, people=9, block_size=16),
        {
            "budget": 128,
            "max_seqs": 16,
            "num_blocks": 90,
            "prefix_caching": True,
            "drafts": 3,
            "accepts": 2,
            "async_scheduling": True,
        },
    ),
    "turns_tight": (
        turns(120, 3.0, 24, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 120, "prefix_caching": True},
    ),
    "async_turns_tight": (
        turns(120, 3.0, 25, people=9, block_size=16),
        {"budget": 128, "max_seqs": 16, "num_blocks": 120, "prefix_caching": True, "async_scheduling": True},
    ),
    "mtp_modules_turns": (
        turns(120, 5.0, 26, people=9, block_size=16),
        {
            "budget": 128,
            "max_seqs": 16,
            "num_blocks": 200,
            "prefix_caching": True,
            "drafts": 3,
            "accepts": 2,
            "method": "mtp",
            "mtp_modules": 3,
            "async_scheduling": True,
        },
    ),
    "pard_tight": (
        lognormal(120, 6.0, 27, prompt=(100, 600), output=(60, 300)),
        {
            "budget": 256,
            "max_seqs": 40,
            "num_blocks": 130,
            "drafts": 4,
            "accepts": 2,
            "method": "draft_model",
            "parallel_drafting": True,
            "async_scheduling": True,
        },
    ),
    "settings_tight": (
        lognormal(120, 7.0, 18, prompt=(300, 3000), output=(60, 400)),
        {
            "budget": 512,
            "max_seqs": 48,
            "num_blocks": 240,
            "long_prefill_token_threshold": 64,
            "settings": {
                "long_prefill_token_threshold_adaptive": True,
                "prefill_schedule_interval": 4,
                "watermark": 0.05,
            },
        },
    ),
    "aborts": (
        impatient(lognormal(200, 7.0, 28, prompt=(300, 1400), output=(60, 300)), 28, ttft_s=3, e2e_s=20),
        {"budget": 512, "max_seqs": 24, "num_blocks": 100_000},
    ),
    "async_aborts": (
        impatient(lognormal(200, 7.0, 29, prompt=(300, 1400), output=(60, 300)), 29, ttft_s=3, e2e_s=20),
        {"budget": 512, "max_seqs": 24, "num_blocks": 100_000, "async_scheduling": True},
    ),
    "aborts_tight": (
        impatient(lognormal(200, 5.0, 30, prompt=(100, 900), output=(60, 400)), 30, ttft_s=8, e2e_s=20),
        {"budget": 512, "max_seqs": 64, "num_blocks": 200},
    ),
    "async_aborts_tight": (
        impatient(lognormal(200, 5.0, 31, prompt=(100, 900), output=(60, 400)), 31, ttft_s=8, e2e_s=20),
        {"budget": 512, "max_seqs": 64, "num_blocks": 200, "async_scheduling": True},
    ),
    "async_aborts_prefix_caching_tight": (
        impatient(conversations(200, 12.0, 32, people=9, block_size=16), 32, ttft_s=6, e2e_s=12),
        {"budget": 128, "max_seqs": 16, "num_blocks": 90, "prefix_caching": True, "async_scheduling": True},
    ),
    "aborts_turns_tight": (
        impatient(turns(200, 4.0, 33, people=9, block_size=16), 33, ttft_s=5, e2e_s=12),
        {"budget": 128, "max_seqs": 16, "num_blocks": 120, "prefix_caching": True},
    ),
    "queued_requests": (
        lognormal(200, 8.0, 34, prompt=(300, 1400), output=(60, 300)),
        {"budget": 512, "max_seqs": 24, "num_blocks": 100_000, "settings": {"max_num_queued_reqs": 30}},
    ),
    "async_queued_tokens": (
        lognormal(200, 8.0, 35, prompt=(300, 1400), output=(60, 300)),
        {
            "budget": 512,
            "max_seqs": 24,
            "num_blocks": 300,
            "async_scheduling": True,
            "settings": {"max_num_queued_tokens": 4_000},
        },
    ),
    "async_queued_aborts_priority_tight": (
        impatient(
            lognormal(200, 8.0, 36, prompt=(40, 2500), output=(60, 400), spread=1.6, priorities=4),
            36,
            ttft_s=6,
            e2e_s=30,
        ),
        {
            "budget": 512,
            "max_seqs": 64,
            "num_blocks": 200,
            "policy": "priority",
            "async_scheduling": True,
            "settings": {"max_num_queued_reqs": 40, "max_num_queued_tokens": 9_000},
        },
    ),
}


def write(name: str, calls: list[Call], configuration: dict[str, Any]) -> list[dict[str, Any]]:
    """Record one schedule into two small files."""
    ahead = configuration.get("async_scheduling", False)
    told = {name: value for name, value in configuration.items() if name != "accepts"}
    scheduler = make_scheduler(**told, cls=AsyncScheduler if ahead else Scheduler)
    steps = serve(scheduler, calls, depth=2 if ahead else 1, accepts=configuration.get("accepts", 0))
    kind = "AsyncScheduler" if ahead else "Scheduler, synchronous"
    configuration = configuration | configuration.get("settings", {})
    configuration.pop("settings", None)
    engine = f"vLLM {importlib.metadata.version('vllm')} V1 {kind}"
    said = "random lengths; one token per request whose tokens are computed"
    shared = configuration.get("prefix_caching", False)
    limited = any(key.startswith("max_num_queued") for key in configuration)
    clients = limited or any(call.ttft_limit_ns or call.e2e_limit_ns for call in calls)
    origin = f"tests/agreement/record_vllm.py; {said}"
    save(f"vllm_{name}", calls, steps, configuration, engine, origin, shared, clients)
    return steps


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for chosen in sys.argv[1:] or RECORDINGS:
        write(chosen, *RECORDINGS[chosen])
        print(chosen, (FOLDER / f"vllm_{chosen}.json").read_text())
