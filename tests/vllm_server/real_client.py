"""Send completions to a server over HTTP, streamed, and note when each token comes.

    python tests/vllm_server/real_client.py http://127.0.0.1:8000 2.5 100

sends 100 requests at 2.5 per second (Poisson arrivals) and prints the mean latencies.
"""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from aiohttp import ClientSession

WORDS = (8, 1024)
"""The tokens of the tiny Llama that prompts are made of: all but those with a meaning."""


@dataclasses.dataclass
class Call:
    """A request: when it is to be sent, and what came back, by `time.monotonic`."""

    at_s: float
    prompt: list[int]
    output_tokens: int
    sent_s: float = 0.0
    tokens: list[int] = dataclasses.field(default_factory=list)
    token_s: list[float] = dataclasses.field(default_factory=list)


def make_calls(at_s: Iterable[float], prompts: Iterable[int], outputs: Iterable[int]) -> list[Call]:
    """Return requests of these lengths, their prompts of random words."""
    rng = np.random.default_rng(0)
    return [
        Call(float(at), rng.integers(*WORDS, int(prompt)).tolist(), int(output))
        for at, prompt, output in zip(at_s, prompts, outputs, strict=True)
    ]


def send(url: str, calls: list[Call]) -> list[Call]:
    """Send each request at its time, whether or not others are answered, and wait for all answers."""
    asyncio.run(_send_all(url, calls))
    return sorted(calls, key=lambda call: call.sent_s)


def mean_latencies(calls: list[Call]) -> dict[str, float]:
    """Return the mean seconds to the first token, between tokens, and to the last token."""
    between = np.concatenate([np.diff(call.token_s) for call in calls])
    return {
        "ttft_s": float(np.mean([call.token_s[0] - call.sent_s for call in calls])),
        "tbt_s": float(np.mean(between)) if len(between) else 0.0,
        "e2e_s": float(np.mean([call.token_s[-1] - call.sent_s for call in calls])),
    }


async def _send_all(url: str, calls: list[Call]) -> None:
    import aiohttp  # which comes with vLLM

    many = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # vLLM closes connections after 5 idle seconds
    async with aiohttp.ClientSession(connector=many, timeout=aiohttp.ClientTimeout(600)) as session:
        zero = time.monotonic() + 0.2
        await asyncio.gather(*(_send_one(session, url, call, zero) for call in calls))


async def _send_one(session: "ClientSession", url: str, call: Call, zero: float) -> None:
    """Stream one greedy completion of exactly as many tokens as asked for."""
    asked = {
        "model": "tiny", "prompt": call.prompt, "max_tokens": call.output_tokens, "ignore_eos": True,
        "temperature": 0, "stream": True, "return_token_ids": True,
    }  # fmt: skip
    await asyncio.sleep(max(zero + call.at_s - time.monotonic(), 0))
    call.sent_s = time.monotonic()
    async with session.post(f"{url}/v1/completions", json=asked) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                _note(call, json.loads(line.removeprefix(b"data: ")))


def _note(call: Call, event: dict[str, Any]) -> None:
    """Keep the tokens of an event, and that they came now."""
    if "choices" not in event:
        raise RuntimeError(f"the server answers {event}")
    for choice in event["choices"]:
        tokens = choice["token_ids"] or []
        call.tokens += tokens
        call.token_s += [time.monotonic()] * len(tokens)


if __name__ == "__main__":
    rate, number = float(sys.argv[2]), int(sys.argv[3])
    rng = np.random.default_rng(0)
    at = np.cumsum(rng.exponential(1 / rate, number))
    calls = make_calls(at, rng.geometric(1 / 150, number), rng.geometric(1 / 16, number))
    print(mean_latencies(send(sys.argv[1], calls)))
