"""What recordings of real schedulers have in common: requests, batch times, random workloads and their two files."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "schedules"
COLUMNS = (
    "request", "arrival_ns", "prompt_tokens", "output_tokens", "priority", "first_token_ns", "finish_ns", "preemptions"
)  # fmt: skip
HASH_BLOCK = 16  # tokens of a prompt that one hash id names, for SGLang
NO_BLOCK = 10**9  # token ids from here on stand for text that no other request shares


@dataclasses.dataclass
class Call:
    """One request: what arrives, and what became of it."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    hash_ids: tuple[int, ...] = ()
    first_token_ns: int = -1
    finish_ns: int = -1
    preemptions: int = 0
    declared: int = 0  # most output tokens that it says it may make (SGLang)
    # How long its client waits for a first token, and for all (0: for ever), and how it failed: `refused`, `left`.
    ttft_limit_ns: int = 0
    e2e_limit_ns: int = 0
    failed: str = ""


BATCH_NS = "11280000 + 35470000*ceil(b/128)"


def batch_ns(tokens: int) -> int:
    """CodeLlama-34B on one A100, nanoseconds: `BATCH_NS`."""
    return 11_280_000 + 35_470_000 * -(-tokens // 128)


def lognormal(
    requests: int,
    rate: float,
    seed: int,
    *,
    prompt: tuple[int, int],
    output: tuple[int, int],
    spread: float = 0.9,
    priorities: int = 1,
) -> list[Call]:
    """Poisson arrivals per second, lognormal lengths given by (median, most), equally likely priorities."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1e9 / rate, requests)).astype(int)
    lengths = [
        np.clip(np.rint(median * np.exp(rng.normal(0, spread, requests))), 1, most).astype(int)
        for median, most in (prompt, output)
    ]
    priority = rng.integers(0, priorities, requests)
    return [Call(*(int(v) for v in row)) for row in zip(arrival, *lengths, priority, strict=True)]


def conversations(requests: int, rate: float, seed: int, *, people: int, block_size: int) -> list[Call]:
    """Poisson arrivals of people who each send their whole history again, behind one of three common openings."""
    rng = np.random.default_rng(seed)
    history = [[100 * opening + i for i in range(3 * opening)] for opening in rng.integers(1, 4, people)]
    calls, fresh, now = [], 400, 0.0
    for _ in range(requests):
        now += rng.exponential(1e9 / rate)
        blocks = history[rng.integers(people)]
        grown = int(rng.integers(0, 4))
        blocks += range(fresh, fresh + grown)
        fresh += grown
        tail = int(rng.integers(0, block_size))  # 0: the prompt ends with its last whole block
        calls.append(Call(int(now), len(blocks) * block_size + tail, int(rng.integers(1, 60)), 0, tuple(blocks)))
    return calls


def turns(requests: int, rate: float, seed: int, *, people: int, block_size: int) -> list[Call]:
    """Poisson arrivals of people whose next prompt holds the answer to the last one; ids go on with the answers."""
    rng = np.random.default_rng(seed)
    history: list[list[int]] = [list(range(100 * person, 100 * person + 3)) for person in range(1, people + 1)]
    calls, fresh, now = [], 1_000, 0.0
    for _ in range(requests):
        now += rng.exponential(1e9 / rate)
        person = int(rng.integers(people))
        blocks = history[person]
        prompt = (len(blocks) + int(rng.integers(0, 3))) * block_size + int(rng.integers(1, block_size))
        output = int(rng.integers(1, 90))
        whole = (prompt + output) // block_size
        blocks = [*blocks, *range(fresh, fresh + whole - len(blocks))]
        fresh += whole
        calls.append(Call(int(now), prompt, output, 0, tuple(blocks)))
        history[person] = blocks if len(blocks) < 40 else blocks[:3]
    return calls


def impatient(calls: list[Call], seed: int, *, ttft_s: float = 0, e2e_s: float = 0) -> list[Call]:
    """Return calls whose clients leave after times that are exponential, of these means (0: never)."""
    rng = np.random.default_rng(seed)
    for call in calls:
        first, whole = (int(rng.exponential(mean) * 1e9) + 1 if mean else 0 for mean in (ttft_s, e2e_s))
        call.ttft_limit_ns, call.e2e_limit_ns = first, whole
    return calls


def save(
    name: str,
    calls: list[Call],
    steps: list[dict[str, Any]],
    configuration: dict[str, Any],
    engine: str,
    recorded: str,
    shared: bool,
    clients: bool = False,
) -> None:
    """Write what became of the calls into two small files; ``shared``: with what their prompts have in common;
    ``clients``: with those who were refused or left.
    """
    block = configuration.get("block_size", HASH_BLOCK)
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        whole = any(len(call.hash_ids) * block > call.prompt_tokens for call in calls)
        ids = "hash_ids_with_output" if whole else "hash_ids"
        columns = [*COLUMNS, *(("ttft_limit_ns", "e2e_limit_ns", "failed") if clients else ())]
        writer.writerow([*columns, ids] if shared else columns)
        for index, call in enumerate(calls):
            row = [index, *(getattr(call, column) for column in columns[1:])]
            writer.writerow([*row, " ".join(map(str, call.hash_ids))] if shared else row)
    facts = {
        "engine": engine,
        "recorded": recorded,
        "batch_time_ns": BATCH_NS,
        "requests": len(calls),
        "steps": len(steps),
        "preemptions": sum(call.preemptions for call in calls),
        "most_preemptions_in_a_step": max(len(step["preempted"]) for step in steps),
        "most_requests_in_a_step": max(len(step["scheduled"]) for step in steps),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(facts | configuration, indent=1) + "\n")
