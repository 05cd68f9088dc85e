"""Is the ranking of hardware that of simulating every deployment?

    python benchmarks/ranking.py [SPACES] [OUT.json]

Small spaces at random: a model on two or three kinds of GPU, two pairs of limits, at most six
replicas, targets of TTFT and TPOT. Each is planned with ``rank`` and then simulated whole, every
deployment as a plan judges it, with the same seeds. Printed: whether the winner is the same, and
whether the hardware has the same order, where costs differ.
"""

import itertools
import json
import sys
import time
from typing import Any

import numpy as np

import penstock as ps
from penstock.planning.aim import Aim
from penstock.planning.evaluate import evaluate
from penstock.planning.plan import plan
from penstock.planning.space import search_space
from penstock.system.models.served import served_model, shaped_hardware

MODELS = (("Llama-3.1-8B", 1), ("Qwen2.5-14B", 1), ("Qwen3-32B", 2), ("Llama-3.1-70B", 4))
PRICES = {"a100-sxm": 2.70, "h100-sxm": 6.16, "h200-sxm": 6.31, "b200-sxm": 8.60, "l40s": 2.25}
REPLICAS = 6


def space_of(seed: int) -> tuple[ps.Workload, Any, Aim]:
    """Return a load, what may be deployed, and targets."""
    rng = np.random.default_rng(seed)
    model, parallel = MODELS[rng.integers(len(MODELS))]
    kinds = []
    for gpu in rng.permutation(list(PRICES)):
        try:
            kinds.append(shaped_hardware(served_model(model, str(gpu), parallel)))
        except ps.InputError:  # it does not fit
            continue
        if len(kinds) == rng.integers(2, 4):
            break
    prompt, output = (
        ps.Geometric(int(rng.integers(200, 1500)), max=6000),
        ps.Geometric(int(rng.integers(40, 250)), max=1000),
    )
    one = ps.Server(kinds[0].batch_time, 2048, 256, "vllm")
    carried = ps.certify(ps.Workload.poisson(1.0, prompt, output), one).max_rate
    workload = ps.Workload.poisson(
        float(carried * rng.uniform(0.6, 3.0)), prompt, output, seed=seed
    )
    space = search_space(
        one, hardware=kinds, token_budget=[None, 1024], max_batch_size=[None], policy=[None],
        replicas=REPLICAS, price=PRICES,
    )  # fmt: skip
    targets = [f"ttft_p99<{rng.choice([0.5, 1, 3])}s", f"tpot_p99<{rng.choice([30, 60, 120])}ms"]
    return workload, space, Aim.of(targets, requests=1_000, most_requests=8_000)


def main() -> None:
    """Compare, and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows = []
    for seed in range(count):
        workload, space, aim = space_of(seed)
        begun = time.process_time()
        found = plan(workload, space, aim=aim, rank=True)
        quick = time.process_time() - begun
        begun = time.process_time()
        does = [
            one for one in (evaluate(workload, each, aim) for each in space) if one.answer == "met"
        ]
        whole = time.process_time() - begun
        cheapest: dict[str | None, float] = {}
        for one in sorted(does, key=lambda one: one.deployment.cost):
            cheapest.setdefault(one.deployment.kind.hardware, one.deployment.cost)
        best = min(cheapest.values(), default=None)
        shown = {row.hardware: row.cost for row in found.ranking if row.evaluation is not None}
        mine = None if found.best is None else found.best.deployment.cost
        order = [name for name in shown if name in cheapest]
        pairs = itertools.pairwise(order)
        same_order = all(cheapest[one] <= cheapest[other] for one, other in pairs)
        row = {
            "seed": seed, "best": mine, "best_of_all": best, "same_winner": mine == best,
            "same_order": same_order, "shown": shown,
            "cheapest": {str(name): cost for name, cost in cheapest.items()},
            "cpu_s": quick, "cpu_of_all_s": whole, "deployments": len(space),
        }  # fmt: skip
        rows.append(row)
        winner, way = ("same" if same else "OTHER" for same in (mine == best, same_order))
        print(
            f"{seed:3} {len(space):4} deployments: winner {winner} ({mine} of {best}), "
            f"order {way}; "
            f"{quick:.1f} s of CPU for {whole:.1f} s of all",
            flush=True,
        )
    winners, orders = (sum(row[name] for row in rows) for name in ("same_winner", "same_order"))
    print(f"{winners} of {count} winners and {orders} of {count} orders are those of all")
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
