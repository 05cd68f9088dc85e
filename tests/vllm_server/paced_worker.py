"""A worker of vLLM that really computes each step, then sleeps until the step has taken a known time.

    PYTHONPATH=tests/vllm_server PACED_STEPS=steps.csv vllm serve MODEL --worker-cls paced_worker.PacedWorker ...

`pace.known_s` is the known time. The file PACED_STEPS gets a line per step, with the columns `pace.COLUMNS`.
"""

import os
import time
from typing import Any

import pace
from vllm.v1.worker.cpu_worker import CPUWorker


class PacedWorker(CPUWorker):
    """A CPU worker whose batch times are known."""

    def execute_model(self, scheduler_output: Any) -> Any:
        """Compute a step, and note what is in it."""
        self.started = time.monotonic()
        self.content = content(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, sleep until the step has taken its time, and write it down."""
        output = super().sample_tokens(grammar_output)
        requests, prefill, decodes, context = self.content
        known = pace.known_s(prefill + decodes, context)
        time.sleep(max(self.started + known - time.monotonic(), 0))
        row = (self.started, time.monotonic(), known, requests, prefill, decodes, context)
        with open(os.environ["PACED_STEPS"], "a") as steps:
            print(*row, sep=",", file=steps)
        return output


def content(step: Any) -> tuple[int, int, int, int]:
    """Return the requests of a step, its prefill tokens, its decodes, and the tokens before these."""
    cached, tokens = step.scheduled_cached_reqs, step.num_scheduled_tokens
    columns = (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens)
    before = [computed for name, computed, outputs in zip(*columns, strict=True) if outputs and tokens[name] == 1]
    return len(tokens), step.total_num_scheduled_tokens - len(before), len(before), sum(before)
