"""An engine whose time is what a model says: what is measured on it is known beforehand."""

from collections.abc import Callable

import pytest

from penstock.measuring.profiling.batching import Batch, Batching
from penstock.measuring.profiling.clock import Clock
from penstock.system.batch_time import Composition
from penstock.system.policies import Policy


class ModelClock(Clock):
    """Time that passes only in batches and in waiting."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += max(seconds, 1e-9)  # a smaller wait would be lost in rounding


class ModelEngine:
    """Batches of a policy, each as long as a model says."""

    description = "an engine of known batch times"
    longest = 4096

    def __init__(self, model: Composition, token_budget: int, policy: str = "sarathi", max_running: int | None = None):
        self.model, self.token_budget, self.max_running = model, token_budget, max_running
        self.batching = Batching(policy, token_budget, max_running)
        self.clock = ModelClock()
        self.facts: dict[str, str | int] = {"processor": "none", "threads": 1}

    @property
    def policy(self) -> Policy:
        return self.batching.policy

    @property
    def busy(self) -> bool:
        return self.batching.busy

    def submit(self, request: int, prompt: int, output: int) -> None:
        self.batching.add(request, prompt, output)

    def step(self) -> Batch:
        batch = self.batching.next_batch()
        self.clock.now += float(self.model.of_batches(*batch.sums))
        return batch


@pytest.fixture(scope="session")
def model_engine() -> Callable[..., ModelEngine]:
    return ModelEngine
