"""A Penstock policy inside vLLM: ``vllm serve MODEL --scheduler-cls
penstock.vllm_plugin.PenstockScheduler``.

The environment variable ``PENSTOCK_POLICY`` names the policy (default ``sarathi``; a name,
``module:function`` or ``file.py:function``), ``PENSTOCK_POLICY_PARAMS`` gives its parameters,
separated by commas. The policy decides how many prefill and how many decode tokens each step
carries. vLLM's own scheduler does everything else: it keeps the KV blocks, admits, preempts and
processes outputs; before each step it is told the tokens of the step and which requests sit out.

This module needs vLLM 0.32 or 0.33 (``pip install '.[vllm]'`` in a checkout), whose
scheduler interface is not public and moves.
"""

import logging
import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

try:
    from penstock import POLICIES, checks
    from penstock.errors import InputError, nearest
    from penstock.kernel.signatures import PREFILL_FIRST, Limits, Queue
    from penstock.system.adaptive import STARVES_DECODES
    from penstock.system.policies import resolve
    from penstock.system.scheduler import Scheduler
except (
    ImportError
) as error:  # PyPI's `penstock` has a folder of the same name: installed later, its files are there
    raise ImportError(
        f"penstock.vllm_plugin misses the rest of penstock-llm ({error}). The package `penstock` "
        "on PyPI is another "
        "project and may have replaced it; run: pip uninstall -y penstock penstock-llm && pip "
        "install penstock-llm"
    ) from error

try:
    import vllm
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
except ImportError as error:
    raise ImportError(
        "penstock.vllm_plugin runs inside vLLM 0.32 or 0.33, which cannot be imported here "
        f"({error}); "
        "install it, in Penstock's checkout, with: pip install '.[vllm]'"
    ) from error

POLICY = "PENSTOCK_POLICY"
PARAMS = "PENSTOCK_POLICY_PARAMS"
VERSIONS = ("0.32", "0.33")
"""Versions of vLLM on which the tests have run."""

_NEEDED = (
    "scheduler_config", "num_spec_tokens", "requests", "running", "waiting", "kv_holding_waiting",
    "kv_cache_manager",
    "max_num_scheduled_tokens", "max_num_active_reqs", "max_model_len",
    "num_waiting_for_streaming_input",
    "current_step", "pause_state", "_free_request", "_handle_blocked_waiting_request",
)  # fmt: skip


class PenstockScheduler(AsyncScheduler):
    """vLLM's scheduler, with each step composed by a Penstock policy.

    The policy sees as prompts those that vLLM would admit now, by `max_num_seqs` and by KV blocks,
    and the prompts begun. Among the running requests the order is vLLM's, that of admission.
    Running requests whose decode the policy does not want pause for the step: they keep their
    blocks, unless vLLM preempts them.
    """

    running: list[Any]
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _check_vllm(vllm.__version__, [])  # another version may fail by itself in what follows
        super().__init__(*args, **kwargs)
        _check_vllm(vllm.__version__, [name for name in _NEEDED if not hasattr(self, name)])
        config = self.scheduler_config
        for setting, refused, why in (
            (
                "speculative_config",
                self.num_spec_tokens > 0,
                "a policy counts one token per decode; drop it",
            ),
            (
                "enable_chunked_prefill",
                not config.enable_chunked_prefill,
                "a policy cuts prompts anywhere; enable it",
            ),
            (
                "long_prefill_token_threshold",
                config.long_prefill_token_threshold > 0,
                "the policy decides; set 0",
            ),
            (
                "prefill_schedule_interval",
                config.prefill_schedule_interval > 1,
                "the policy decides; set 1",
            ),
        ):
            if refused:
                raise InputError(
                    f"vLLM's {setting} cannot be used together with a Penstock policy: {why}"
                )
        self.penstock_policy = _policy(os.environ.get(POLICY, "sarathi"))
        self.penstock_params = _params(os.environ.get(PARAMS, ""))
        if self.penstock_policy.parameters is not None and not self.penstock_params.size:
            raise InputError(
                f"policy {self.penstock_policy.name!r} follows the batch times, which vLLM does "
                f"not know; set {PARAMS} "
                "to the numbers of penstock.Server(batch_time, ...).params, separated by commas"
            )
        if self.penstock_policy.batching.back_pressure:
            logging.getLogger(__name__).warning("%s %s", self.penstock_policy.name, STARVES_DECODES)
        self._compose = self.penstock_policy.compiled
        self._arrived = self._arrived_tokens = self._finished = self._finished_decodes = 0
        self._refused = False

    def add_request(self, request: Any) -> None:
        """Count the request, and let vLLM queue it."""
        if request.request_id not in self.requests:  # else: more input of one that is here
            self._arrived += 1
            self._arrived_tokens += request.num_prompt_tokens
        super().add_request(request)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self._finished += 1
        self._finished_decodes += max(request.num_output_tokens - 1, 0)
        return super()._free_request(request, *args, **kwargs)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Compose the next step by the policy, and let vLLM schedule it."""
        if throttle_prefills or self.pause_state.name != "UNPAUSED":
            # VLLM allows less than everything: its word is the last.
            return super().schedule(throttle_prefills)
        begun = [r for r in self.running if r.is_prefill_chunk]
        decoding = [r for r in self.running if self._decodes(r)]
        prefill = [_left(r) for r in begun]
        if not self._refused:
            prefill += self._admissible(
                self.max_num_scheduled_tokens - len(decoding) - sum(prefill)
            )
        self._refused = False
        if not prefill and not decoding:
            # What loads, waits for a grammar, or has its last token on the way.
            return super().schedule()
        x, y = self._composition(prefill, decoding)

        for request in decoding[
            y:
        ]:  # vLLM checks this for its pipelines: they sit out the step that follows
            request.next_decode_eligible_step = self.current_step + 2
        budget = self.max_num_scheduled_tokens
        # The decodes stand before the prompt begun: they take their y first.
        self.max_num_scheduled_tokens = x + y
        try:
            output = super().schedule()
            # For reasons not seen here: decode first.
            self._refused = output.total_num_scheduled_tokens == 0
            return output
        finally:
            self.max_num_scheduled_tokens = budget

    def _decodes(self, request: Any) -> bool:
        """Tell whether the next step can yield a token of a running request's output."""
        # Is its last token on the way already?.
        last = request.num_prompt_tokens + request.max_tokens
        ends = request.num_computed_tokens + 2 - request.num_output_placeholders >= last
        return not (
            request.is_prefill_chunk
            or (request.num_output_placeholders > 0 and ends)
            or request.next_decode_eligible_step > self.current_step + 1
        )

    def _admissible(self, budget: int) -> Iterator[int]:
        """Yield the tokens of each prompt that has blocks and a slot now, in vLLM's order."""
        # Blocks that prompts find in the prefix cache are looked up until the budget is full.
        manager = self.kv_cache_manager
        free = manager.block_pool.get_num_free_blocks() - (
            manager.watermark_blocks if self.running else 0
        )
        slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        for request in chain(self.kv_holding_waiting, self.waiting):
            if slots <= 0:
                return
            if not self._handle_blocked_waiting_request(request):
                continue
            cached, computed = manager.empty_kv_cache_blocks, request.num_computed_tokens
            if computed == 0 and budget > 0:
                cached, computed, _ = manager.get_computed_blocks(request)
            free -= self._blocks(request, cached, computed)
            if free < 0:
                return
            yield request.num_tokens - computed
            budget -= request.num_tokens - computed
            slots -= 1

    def _blocks(self, request: Any, cached: Any, computed: int) -> int:
        """Return the KV blocks that a request lacks for all its tokens so far."""
        blocks: int = self.kv_cache_manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(request.num_tokens, self.max_model_len),
            new_computed_blocks=cached.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=computed,
            num_local_computed_tokens=computed,
            num_tokens_main_model=min(request.num_tokens, self.max_model_len),
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return blocks

    def _composition(self, prefill: list[int], decoding: list[Any]) -> tuple[int, int]:
        """Return prefill and decode tokens of the next step, cut to what there is and what fits."""
        queue = self._queue(prefill, decoding)
        limits = Limits(self.max_num_scheduled_tokens, self.max_num_active_reqs)
        name = self.penstock_policy.name
        try:
            x, y, first = self._compose(queue, limits, self.penstock_params)
        except Exception as error:
            raise InputError(
                f"policy {name!r} failed ({error!r}) at {queue}, {limits}; mend it"
            ) from error
        if x < 0 or y < 0:
            raise InputError(
                f"policy {name!r} asks for {x} prefill and {y} decode tokens at {queue}, {limits}"
            )
        budget = limits.token_budget
        if first == PREFILL_FIRST:
            x = min(x, queue.prompt_tokens, budget)
            y = min(y, queue.decoding, budget - x)
        else:
            y = min(y, queue.decoding, budget)
            x = min(x, queue.prompt_tokens, budget - y)
        if x + y == 0:
            raise InputError(
                f"policy {name!r} wants an empty step although there is work: {queue}, {limits}; "
                "mend it"
            )
        return x, y

    def _queue(self, prefill: list[int], decoding: list[Any]) -> Queue:
        """Return what the policy sees; the whole queue is walked through only if it looks there."""
        reads = self.penstock_policy.reads
        begun = [r for r in self.running if r.is_prefill_chunk]
        waiting = chain(begun, self.kv_holding_waiting, self.waiting)
        oldest = next(waiting, None)
        head = 0
        if oldest is not None:
            head = prefill[0] if prefill else _left(oldest)
        decode_tokens = 0
        if (
            "decode_tokens" in reads
        ):  # an estimate: of those that finished the mean, but no more than was asked for
            mean = (
                self._finished_decodes // self._finished + 1
                if self._finished
                else self.max_model_len
            )
            decode_tokens = sum(min(r.max_tokens - r.num_output_tokens, mean) for r in decoding)
        return Queue(
            prompts=len(prefill),
            prompt_tokens=sum(prefill),
            decoding=len(decoding),
            waiting=len(begun) + len(self.kv_holding_waiting) + len(self.waiting),
            waiting_tokens=head + sum(map(_left, waiting)) if "waiting_tokens" in reads else 0,
            head_tokens=head,
            decode_tokens=decode_tokens,
            arrived=self._arrived,
            arrived_tokens=self._arrived_tokens,
            finished=self._finished,
            finished_decodes=self._finished_decodes,
        )


def _left(request: Any) -> int:
    """Return the tokens of a request in prefill that are not computed yet."""
    left: int = request.num_tokens - request.num_computed_tokens
    return left


def _check_vllm(version: str, missing: list[str]) -> None:
    """Refuse a vLLM that the tests have not run on: it may fail later, or schedule otherwise."""
    if missing or ".".join(version.split(".")[:2]) not in VERSIONS:
        lacks = f" and lacks {', '.join(missing)} of its scheduler" if missing else ""
        raise InputError(
            f"vLLM is {version}{lacks}, but Penstock's scheduler was tested with "
            f"{' and '.join(VERSIONS)} only; "
            "install one of them, in Penstock's checkout, with: pip install '.[vllm]'"
        )


def _policy(choice: str) -> Scheduler:
    """Return the policy of that name."""
    found = resolve(choice)
    if not found.by_phase:
        raise InputError(
            f"{POLICY} is {choice!r}, the scheduler of an engine and no "
            f"policy{nearest('', POLICIES)}"
        )
    return found


def _params(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the policy's parameters from numbers separated by commas."""
    try:
        params = np.array([float(part) for part in text.split(",") if part.strip()], np.float64)
    except ValueError:
        raise InputError(
            f"{PARAMS} is {checks.shown(text)}; give numbers separated by commas"
        ) from None
    params.flags.writeable = False
    return params
