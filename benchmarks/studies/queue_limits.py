"""Print for ten systems the limit on the queue that `penstock recommend --queue` gives beside the
best of all limits, found one by one, and beside the rule of thumb.

Limits are tried from 1 on, each 4% above the one before it, of every kind that the engine has, on
the requests that the recommendation saw. What one is worth is its goodput at all loads together, if
it keeps the targets at the largest. The share of the best is printed, that on requests of another
seed, and that of the largest load alone.

Run ``python benchmarks/studies/queue_limits.py [FILE]``; with a file the rows go there as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.capacity.queue_limit import LOADS, _Study, recommend_queue, total

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


def best_of_all(study: _Study) -> tuple[float, float]:
    """Return the most goodput of all limits that keep the targets: at all loads, at the largest."""
    best = most = 0.0
    for kind in (kind for kind in study.server.policy.queue.limits if kind != "ttft_ms"):
        limit, unlike = 1.0, True
        while unlike and limit < 2**20:
            at = study.at(kind, round(limit), LOADS[-1])
            if at.met and at.goodput_rate > 0.7 * most:
                best = max(best, total(study.at_loads(kind, round(limit))))
            most = max(most, at.goodput_rate if at.met else 0.0)
            unlike = at.refused > 0
            if limit > 64 and not at.met and at.goodput_rate < 0.2 * most:
                break
            limit = max(limit + 1, limit * 1.04)
    return best, most


def main() -> None:
    """Print a row for each system."""
    rows = []
    for name, (workload, server, targets) in systems().items():
        answer = recommend_queue(workload, server, targets=targets, requests=6_000)
        workload = (
            workload
            if workload.patience is None
            else workload.with_patience(workload.patience.once)
        )
        study = _Study(workload, answer.server, answer.targets, 6_000)
        other = _Study(workload.with_seed(7), answer.server, answer.targets, 6_000)
        ((kind, limit),) = answer.limit.stated.items()
        elsewhere = other.at_loads(kind, int(limit))
        (best, most), (best_there, _) = best_of_all(study), best_of_all(other)
        row = {
            "system": name,
            "limit": answer.flags,
            "of_best": total(answer.rows) / best,
            "of_best_on_other_requests": total(elsewhere) / best_there,
            "kept_on_other_requests": elsewhere[-1].met,
            "of_best_at_the_largest_load": answer.best.goodput_rate / most,
            "rule_of_thumb": answer.thumb[-1].goodput_rate / most if answer.thumb else None,
            "without": answer.as_it_is[-1].goodput_rate / most,
        }
        rows.append(row)
        print(row, flush=True)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
