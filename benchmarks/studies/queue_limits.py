"""Print for ten systems the limit on the queue that `penstock recommend --queue` gives beside the
best of all limits, found one by one, and beside the rule of thumb.

Limits are tried from 1 on, each 4% above the one before it, of every kind that the engine has, at
twice the load, on the requests that the recommendation saw; the share of the best goodput that
keeps the targets is printed, and that on requests of another seed.

Run ``python benchmarks/studies/queue_limits.py [FILE]``; with a file the rows go there as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.capacity.queue_limit import LOADS, _Study, recommend_queue

A100 = ps.hardware("codellama-34b-a100-tp1").batch_time
FAST = ps.Affine(0.006, 3.2e-5)


def systems() -> dict[str, tuple[ps.Workload, ps.Server, tuple[str, ...]]]:
    """Return ten systems at about their limit, with their targets."""
    chat = ps.Workload.poisson(4.6, 500, ps.Geometric(100))
    long = ps.Workload.poisson(3.2, ps.LogNormal(900, 0.8), ps.LogNormal(60, 0.6))
    conv = ps.Workload.preset("azure-conv").with_rate(2.2, "poisson")
    code = ps.Workload.preset("azure-code").with_rate(1.3, "poisson")
    quick = ps.Workload.poisson(22.0, 600, ps.Geometric(150))
    hasty = chat.with_patience(ps.Patience(ttft_ms=ps.Geometric(6_000)))
    again = chat.with_patience(ps.Patience(ttft_ms=8_000, retries=2, jitter=0.5))
    sglang = ps.Server(A100, 2048, 64, "sglang", kv_tokens=120_000)
    sync = {"async_scheduling": False}

    def vllm(slots: int = 128, kv: int = 100_000, **more: Any) -> ps.Server:
        return ps.Server(A100, 512, slots, "vllm", kv_tokens=kv, **more)

    return {
        "vllm chat": (chat, vllm(), ("ttft_p99<5s",)),
        "vllm sync": (chat, vllm(policy_params=sync), ("ttft_p95<2s",)),
        "vllm short memory": (chat, vllm(kv=24_000), ("ttft_p99<6s",)),
        "vllm few slots": (chat, vllm(24), ("ttft_p99<5s",)),
        "vllm long prompts": (long, vllm(), ("ttft_p99<8s",)),
        "vllm conversations": (conv, vllm(kv=120_000), ("ttft_p95<4s",)),
        "sglang code": (code, sglang, ("ttft_p95<6s",)),
        "sarathi quick": (quick, ps.Server(FAST, 2048, 256), ("ttft_p99<1s", "tbt_p99<100ms")),
        "vllm hasty": (hasty, vllm(), ("ttft_p99<4s",)),
        "vllm retries": (again, vllm(), ("e2e_p95<60s",)),
    }  # fmt: skip


def best_of_all(study: _Study) -> float:
    """Return the most goodput of all limits that keep the targets."""
    best = 0.0
    for kind in (kind for kind in study.server.policy.queue.limits if kind != "ttft_ms"):
        limit, unlike = 1.0, True
        while unlike and limit < 2**20:
            at = study.at(kind, round(limit), LOADS[-1])
            best = max(best, at.goodput if at.met else 0.0)
            unlike = at.refused > 0
            if limit > 64 and not at.met and at.goodput < 0.2 * best:
                break
            limit = max(limit + 1, limit * 1.04)
    return best


def main() -> None:
    """Print a row for each system."""
    rows = []
    for name, (workload, server, targets) in systems().items():
        answer = recommend_queue(workload, server, targets=targets, requests=6_000)
        study = _Study(workload, answer.server, answer.targets, 6_000)
        other = _Study(workload.with_seed(7), answer.server, answer.targets, 6_000)
        ((kind, limit),) = answer.limit.stated.items()
        elsewhere = other.at(kind, int(limit), LOADS[-1])
        best, best_there = best_of_all(study), best_of_all(other)
        row = {
            "system": name,
            "limit": answer.flags,
            "of_best": answer.best.goodput / best,
            "of_best_on_other_requests": elsewhere.goodput / best_there,
            "kept_on_other_requests": elsewhere.met,
            "rule_of_thumb": answer.thumb[-1].goodput / best if answer.thumb else None,
            "without": answer.without[-1].goodput / best,
        }
        rows.append(row)
        print(row, flush=True)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
