"""TensorRT-LLM's scheduler: its settings and KV memory."""

import dataclasses
from typing import Annotated, Literal

from penstock.kernel import records
from penstock.system.engine import Engine, Setting
from penstock.system.scheduler import Batching, GpuRule, KVUse, Waiting

_ADMISSIONS = {
    "guaranteed_no_evict": records.COMPLETION,
    "max_utilization": records.INPUT,
    "static_batch": records.STATIC,
}
_GPU_RULE = GpuRule(
    "free_gpu_memory_fraction",
    0.9,
    lambda gpu, share: share * (gpu.memory - gpu.weights - gpu.overhead),
)


@dataclasses.dataclass(frozen=True, repr=False)
class TensorRtLlm(Engine):
    """TensorRT-LLM: all decodes, then prompts, by one of three rules for what must be free.

    As its sources read: no recorded run of it was at hand.
    """

    capacity: Annotated[
        Literal["guaranteed_no_evict", "max_utilization", "static_batch"],
        Setting("capacity_scheduler_policy"),
    ] = "guaranteed_no_evict"
    chunked_context: Annotated[bool, Setting("enable_chunked_context")] = False

    name = "tensorrt-llm"
    place = 3
    rule = "tensorrt"

    def settle(self) -> None:
        """State what follows from the settings."""
        evicts = self.capacity == "max_utilization"
        self.state(
            Batching(
                work_conserving=self.chunked_context and self.capacity != "static_batch",
                cuts_prompts=self.chunked_context,
                cut_by="chunked_context",
                decodes_at_once=True,
            ),
            KVUse(
                block_size=32,
                whole_blocks=self.chunked_context,
                holds="prefill" if evicts else "completion",
                reserves_last_token=not evicts,
                cached_as_weights=True,
                gpu_rule=_GPU_RULE,
            ),
            Waiting(waits_among_running=True, limits=()),
        )

    @property
    def capacity_rule(self) -> int:
        """What must be free before a request is admitted."""
        return _ADMISSIONS[self.capacity]
