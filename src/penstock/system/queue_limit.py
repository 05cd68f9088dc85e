"""Limits on who is let in: a queue without one grows until nobody is served who still waits."""

import dataclasses
from typing import Annotated

from penstock.errors import InputError
from penstock.fields import Checked, Key, Range
from penstock.system.engine_flags import QUEUE_LIMITS

_REQUESTS = Range(1, 2**40, "requests", "without one request nobody is served; raise it")
_TOKENS = Range(1, 2**50, "tokens", "without one token nobody is served; raise it")
_TTFT = Range(1e-3, 1e9, "ms", "it is the time to a first token; give ms")
_WORDS = {
    "requests": "{:,} requests",
    "waiting": "{:,} waiting",
    "prompt_tokens": "{:,} prompt tokens",
    "ttft_ms": "a TTFT of {:,.4g} ms",
}


def _key(limit: str) -> Key:
    """Return what files call a limit: its own name, or as an engine does."""
    return Key(limit, others=(QUEUE_LIMITS[limit],))


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

    requests: Annotated[int, _REQUESTS, _key("requests")] | None = None
    waiting: Annotated[int, _REQUESTS, _key("waiting")] | None = None
    prompt_tokens: Annotated[int, _TOKENS, _key("prompt_tokens")] | None = None
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
        limits = [_WORDS[name].format(value) for name, value in self.stated.items()]
        return f"refuses beyond {' or '.join(limits)}"
