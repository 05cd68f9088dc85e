"""vLLM's engine core runs with the plugin, chosen by its name, over an executor that has no model."""

from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def make_executor(vllm: ModuleType) -> Any:
    """Return a class of executors that keep a worker's books: which tokens it has of which request."""
    from vllm.v1.executor import Executor

    class Bookkeeper(Executor):
        uses_ray = False
        supports_pp = True

        def _init_executor(self) -> None:
            self.known: dict[str, int] = {}
            self.output: Any = None

        def compile_or_warm_up_model(self) -> None:
            pass

        def check_health(self) -> None:
            pass

        def collective_rpc(self, method: Any, *args: Any, non_block: bool = False, **kwargs: Any) -> list[Any]:
            answers = {
                "get_kv_cache_spec": {"layer": vllm.attention(self.vllm_config.cache_config.block_size)},
                "determine_available_memory": 2**30,
                "get_supported_kv_cache_layouts": ["NHD"],
            }
            return [answers.get(method)]

        def execute_model(self, output: Any, non_block: bool = False) -> Any:
            """Check that every token of a step follows those computed before; keep which requests yield one."""
            new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
            computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for request in new:
                self.known[request.req_id] = len(request.prefill_token_ids or request.prompt_token_ids)
                computed[request.req_id] = request.num_computed_tokens
            names = list(output.num_scheduled_tokens)
            sampled = []
            for name in names:
                end = computed[name] + output.num_scheduled_tokens[name]
                assert end <= self.known[name], "a token is to be computed that is not known"
                sampled.append([vllm.NO_BLOCK] if end == self.known[name] else [])
                self.known[name] += end == self.known[name]
            self.output = vllm.ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
            return self._answer(None if names else self.output, non_block)

        def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
            return self._answer(self.output, non_block)

        def _answer(self, value: Any, non_block: bool) -> Any:
            if not non_block:
                return value
            future: Future[Any] = Future()
            future.set_result(value)
            return future

    return Bookkeeper


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer"])
def test_the_engine_core_serves_every_request_in_full_preempted_or_not(
    vllm: ModuleType, monkeypatch: pytest.MonkeyPatch, policy: str, async_scheduling: bool
) -> None:
    from vllm.v1.engine.core import EngineCore

    monkeypatch.setenv("PENSTOCK_POLICY", policy)
    config = vllm.make_config(
        256,
        24,
        110,
        max_model_len=1600,
        async_scheduling=async_scheduling,
        scheduler_cls="penstock.vllm_plugin.PenstockScheduler",
    )
    core = EngineCore(config, make_executor(vllm), log_stats=False)
    assert type(core.scheduler).__name__ == "PenstockScheduler"
    if async_scheduling and core.batch_queue is None:
        pytest.skip("vLLM has no asynchronous scheduling on this platform")
    assert (core.batch_queue is not None) == async_scheduling
    calls = vllm.lognormal(60, 1.0, 1, prompt=(120, 1400), output=(30, 150))
    tokens = dict.fromkeys(range(len(calls)), 0)
    requests = [vllm.as_request(index, call, 16, False) for index, call in enumerate(calls)]
    for request in requests:
        core.add_request(request)
    while core.scheduler.has_requests() or core.batch_queue:
        outputs, _ = core.step_fn()
        for batch in (outputs or {}).values():
            for output in batch.outputs:
                tokens[int(output.request_id)] += len(output.new_token_ids)
    assert tokens == {index: call.output_tokens for index, call in enumerate(calls)}
    assert sum(r.num_preemptions for r in requests) > 0 or policy == "fastertransformer"
    assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 109
