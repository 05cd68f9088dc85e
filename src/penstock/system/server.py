"""A server: one engine, how long its batches take, and how it forms them."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from penstock import checks
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
        carries = "a batch carries at least one token"
        token_budget = checks.whole("token_budget", token_budget, 1, MOST_TOKENS, "tokens", carries)
        if max_batch_size is not None:
            serves = "a batch serves at least one request; None means no limit"
            max_batch_size = checks.whole("max_batch_size", max_batch_size, 1, MOST_TOKENS, "requests", serves)
        params = [checks.number("a policy parameter", p, -1e300, 1e300, "", "policies compute") for p in policy_params]
        for name, value, known in (
            ("scope", scope, ("batch", "running")),
            ("convention", convention, ("paper", "engine")),
        ):
            if value not in known:
                raise InputError(f"{name} is {value!r}{nearest(str(value), known)}")
        batch_time.table(token_budget)  # a measured table may not reach so far: say so now
        put = object.__setattr__
        put(self, "batch_time", batch_time)
        put(self, "token_budget", token_budget)
        put(self, "max_batch_size", max_batch_size)
        put(self, "policy", resolve(policy))
        put(self, "scope", scope)
        put(self, "convention", convention)
        put(self, "policy_params", tuple(params))

    def with_policy(self, policy: str | Policy | PolicyFunction) -> "Server":
        """Return the same server under another policy."""
        return dataclasses.replace(self, policy=policy)  # type: ignore[arg-type]

    def tokens_per_request(self, mean_prompt: float, mean_output: float) -> float:
        """Return the forward tokens that a request costs on average: prompt + output, less one for engines."""
        return mean_prompt + mean_output - (1 if self.convention == "engine" else 0)
