"""Limits on who is let in: a queue without one grows until nobody is served who still waits."""

import dataclasses
from typing import Annotated

from penstock.errors import InputError
from penstock.fields import Checked, Key, Range
from penstock.words import digits

_REQUESTS = Range(1, 2**40, "requests", "without one request nobody is served; raise it")
_TOKENS = Range(1, 2**50, "tokens", "without one token nobody is served; raise it")
_TTFT = Range(1e-3, 1e9, "ms", "it is the time to a first token; give ms")


@dataclasses.dataclass(frozen=True)
class QueueLimit(Checked):
    """Whom a server, or the router of a pool, refuses on arrival.

    Parameters
    ----------
    requests
        Most requests, those that run included (vLLM's ``max_num_queued_reqs``).
    waiting
        Most requests that wait (SGLang's ``max_queued_requests``). Where a server goes by
        priorities, one that is more urgent takes the place of the one that would be served last.
    prompt_tokens
        Nobody is let in while the prompts of those without a first token have so many tokens
        (vLLM's ``max_num_queued_tokens``).
    ttft_ms
        Nobody is let in whose first token would take longer, as far as can be told: all prompts
        before it in full batches, beside those who decode now.
    """

    requests: Annotated[int, _REQUESTS, Key("requests", others=("max_num_queued_reqs",))] | None = (
        None
    )
    waiting: Annotated[int, _REQUESTS, Key("waiting", others=("max_queued_requests",))] | None = (
        None
    )
    prompt_tokens: (
        Annotated[int, _TOKENS, Key("prompt_tokens", others=("max_num_queued_tokens",))] | None
    ) = None
    ttft_ms: Annotated[float, _TTFT] | None = None

    def settle(self) -> None:
        """Refuse one that refuses nobody."""
        if not self.stated:
            raise InputError(
                "a queue limit without requests, waiting, prompt_tokens or ttft_ms refuses nobody; "
                "give one of them, or leave it out"
            )

    @property
    def stated(self) -> dict[str, float]:
        """The limits that there are, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def words(self) -> str:
        """What it lets in, in words."""
        words = {
            "requests": "{:,} requests",
            "waiting": "{:,} waiting",
            "prompt_tokens": "{:,} prompt tokens",
        }
        limits = [words[name].format(value) for name, value in self.stated.items() if name in words]
        if self.ttft_ms is not None:
            limits.append(f"a TTFT of {digits(self.ttft_ms / 1e3)} s")
        return f"refuses beyond {' or '.join(limits)}"
