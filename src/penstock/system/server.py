"""A server: one engine, how long its batches take, and how it forms them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from penstock.errors import InputError, nearest
from penstock.system.batch_time import MOST_TOKENS, BatchTime
from penstock.system.policies import Policy, PolicyFunction, resolve

Scope = Literal["batch", "running"]
Convention = Literal["paper", "engine"]


@dataclasses.dataclass(frozen=True, init=False)
class Server:
    """One engine with its limits and its policy.

    Parameters
    ----------
    batch_time
        Seconds of a batch given its tokens.
    token_budget
        Most tokens in a batch (the paper's b_max, vLLM's max_num_batched_tokens).
    max_batch_size
        Most requests (the paper's k_max, vLLM's max_num_seqs); None: no limit.
    policy
        A name (``sarathi``, ``orca``, ``vllm-vanilla``, ``fastertransformer``), ``module:function``, or a function.
    scope
        What the max batch size counts: requests in one ``batch`` (the paper), or ``running`` ones, admitted and
        unfinished, a partial prefill included (engines).
    convention
        ``engine``: the end of prefill yields the first output token, output - 1 decode iterations follow.
        ``paper``: output decode iterations, the first of which yields the first token.
    policy_params
        Numbers handed to the policy.
    """

    batch_time: BatchTime
    token_budget: int
    max_batch_size: int | None
    policy: Policy
    scope: Scope
    convention: Convention
    policy_params: tuple[float, ...]

    def __init__(
        self,
        batch_time: BatchTime,
        token_budget: int,
        max_batch_size: int | None = None,
        policy: str | Policy | PolicyFunction = "sarathi",
        scope: Scope = "running",
        convention: Convention = "engine",
        policy_params: Sequence[float] = (),
    ) -> None:
        if not isinstance(batch_time, BatchTime):
            raise InputError(
                f"batch_time is {batch_time!r}; give a batch-time model such as PiecewiseConstant(c, a, b0)"
            )
        if isinstance(token_budget, bool) or token_budget != int(token_budget) or not 1 <= token_budget <= MOST_TOKENS:
            raise InputError(
                f"token_budget is {token_budget}, but must be a whole number from 1 to {MOST_TOKENS:,}: "
                "a batch carries at least one token"
            )
        if max_batch_size is not None and (max_batch_size != int(max_batch_size) or max_batch_size < 1):
            raise InputError(
                f"max_batch_size is {max_batch_size}, but must be a whole number of at least 1, or None for no limit"
            )
        for name, value, known in (
            ("scope", scope, ("batch", "running")),
            ("convention", convention, ("paper", "engine")),
        ):
            if value not in known:
                raise InputError(f"{name} is {value!r}{nearest(str(value), known)}")
        batch_time.table(int(token_budget))  # a measured table may not reach so far: say so now
        put = object.__setattr__
        put(self, "batch_time", batch_time)
        put(self, "token_budget", int(token_budget))
        put(self, "max_batch_size", None if max_batch_size is None else int(max_batch_size))
        put(self, "policy", resolve(policy))
        put(self, "scope", scope)
        put(self, "convention", convention)
        put(self, "policy_params", tuple(float(p) for p in policy_params))

    def with_policy(self, policy: str | Policy | PolicyFunction) -> "Server":
        """Return the same server under another policy."""
        return dataclasses.replace(self, policy=policy)  # type: ignore[arg-type]

    def tokens_per_request(self, mean_prompt: float, mean_output: float) -> float:
        """Return the forward tokens that a request costs on average: prompt + output, less one for engines."""
        return mean_prompt + mean_output - (1 if self.convention == "engine" else 0)
