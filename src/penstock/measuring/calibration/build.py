"""From fitted values to a server and what its clients see beside it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.calibration.predict import Overhead, Requests
from penstock.measuring.calibration.quantities import COSTS
from penstock.system.batch_time import MOST_TOKENS, Affine, BatchTime, Composition
from penstock.system.front_end import FrontEnd
from penstock.system.measured_times import Measured
from penstock.system.memory import Memory
from penstock.system.policies import resolve
from penstock.system.server import Server
from penstock.system.uncertain import Known

USUAL = {"token_budget": 8_192, "max_batch_size": 1_024}
"""Taken where none are given: vLLM's defaults on a large GPU."""


@dataclasses.dataclass(frozen=True)
class Build:
    """Makes a server and an overhead of fitted values."""

    # As they were stated; None: `USUAL`.
    token_budget: int | None
    max_batch_size: int | None
    policy: str
    kv_tokens: int | None  # None: no limit, unless the values have one
    policy_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    prefix_caching: bool = False  # the rows had some of it; else it is the engine's default

    def __post_init__(self) -> None:
        if self.prefix_caching and self.kv_tokens is None:
            raise InputError(
                "prefix hits are given, but no KV memory that could hold prefixes, so what is "
                "found there cannot be simulated; give kv_tokens, which the engine logs"
            )
        if self.kv_tokens is not None:
            block = resolve(self.policy).memory.block_size
            one = f"one block of {self.policy} has {block}; give what the engine logs"
            checks.whole("kv_tokens", self.kv_tokens, block, 2**40, "tokens", one)
        if self.max_batch_size is not None:
            reason = "a batch serves at least one request; leave it out where it is not known"
            checks.whole("max_batch_size", self.max_batch_size, 1, MOST_TOKENS, "requests", reason)

    def limit(self, name: str) -> int:
        """Return one of `USUAL` as it was stated, or else as there."""
        stated: int | None = getattr(self, name)
        return USUAL[name] if stated is None else stated

    @property
    def assumed(self) -> tuple[str, ...]:
        """Which of `USUAL` were taken."""
        return tuple(name for name in USUAL if getattr(self, name) is None)

    def __call__(self, values: Mapping[str, float]) -> tuple[Server, Overhead]:
        """Return the server with the costs and limits among the values; others cost nothing."""
        costs = {**dict.fromkeys(COSTS, 0.0), **values}
        tokens = values.get("kv_tokens", self.kv_tokens)
        overhead = Overhead(costs["overhead"], costs["overhead_per_stream"], costs["idle"])
        return self.server(batch_time(costs), tokens, values), overhead

    def server(
        self, batch_time: BatchTime, tokens: float | None, values: Mapping[str, float]
    ) -> Server:
        """Return the server of the limits among the values, and so many tokens of KV memory."""
        memory = None
        if tokens is not None:  # those that are tried may be too few for a block, or a request
            size = resolve(self.policy).memory.block_size
            memory = dataclasses.replace(
                Memory.of_tokens(max(round(tokens), size), size),
                prefix_caching=self.prefix_caching or None,
                too_long="drop",
            )
        places = values.get("max_batch_size", self.limit("max_batch_size"))
        return Server(
            batch_time,
            self.limit("token_budget"),
            max(round(places), 1),
            self.policy,
            policy_params=self.policy_params or (),
            memory=memory,
            front_end=front_end(values),
        )


def front_end(values: Mapping[str, float]) -> FrontEnd | None:
    """Return the front end with the times among the values; None: nothing waits for it."""
    if "front_end" not in values:
        return None
    return FrontEnd(values["front_end"], values["front_end_per_token"])


def batch_time(values: Mapping[str, float]) -> Composition:
    """Return the batch times of a server with these costs."""
    step = values["step"]
    knee = values["knee"]
    linear: BatchTime = Affine(step, values["per_token"])
    if knee > 1:
        at_knee = step + knee * values["per_token_below"]
        beyond = (MOST_TOKENS - knee) * values["per_token"]
        seconds = (step + values["per_token_below"], at_knee, at_knee + beyond)
        linear = Measured((1, knee, MOST_TOKENS), seconds)
    return Composition(
        linear,
        self_attention=values["self_attention"],
        cross_attention=2 * values["self_attention"],  # of the whole prompt, however it is cut
        decode_attention=values["decode_attention"],
        per_request=values["per_request"],
        with_prefill=values["with_prefill"],
    )


def with_known(server: Server, known: Known) -> Server:
    """Return a server whose batch times say how well they are known."""
    assert isinstance(server.batch_time, Composition)
    batch_time = dataclasses.replace(server.batch_time, uncertainty=known)
    return dataclasses.replace(server, batch_time=batch_time)


def with_tokens(server: Server, load: Requests, tokens: float) -> Server:
    """Return a server whose KV memory holds so many tokens, or the longest of the requests."""
    longest = int((load.prompt_tokens + load.output_tokens).max())
    size = server.policy.memory.block_size
    memory = Memory.of_tokens(max(round(tokens), longest + 2 * size), size)
    return dataclasses.replace(server, memory=memory)
