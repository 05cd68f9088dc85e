"""A worker of vLLM that really computes each step, then sleeps until the step has taken a known time.

    PYTHONPATH=tests/vllm_server PACED_STEPS=steps.csv vllm serve MODEL --worker-cls paced_worker.PacedWorker ...

`pace.step_seconds` is the known time. The file PACED_STEPS gets a line per step, with the columns `pace.COLUMNS`.
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
        self.batch = count(scheduler_output)
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, sleep until the step has taken its time, and write it down."""
        output = super().sample_tokens(grammar_output)
        _, prefill, decodes, context = self.batch
        seconds = pace.step_seconds(prefill + decodes, context)
        time.sleep(max(self.started + seconds - time.monotonic(), 0))
        row = (self.started, time.monotonic(), seconds, *self.batch)
        with open(os.environ["PACED_STEPS"], "a") as steps:
            print(*row, sep=",", file=steps)
        return output


def count(step: Any) -> tuple[int, int, int, int]:
    """Return the requests of a step, its prefill tokens, its decodes, and the tokens before these."""
    cached, tokens = step.scheduled_cached_reqs, step.num_scheduled_tokens
    columns = (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens)
    before = [computed for name, computed, outputs in zip(*columns, strict=True) if outputs and tokens[name] == 1]
    return len(tokens), step.total_num_scheduled_tokens - len(before), len(before), sum(before)
