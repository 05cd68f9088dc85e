"""Measure mean E2E by order between stages on two servers that are crossed both ways (Rybko and Stolyar).

A batch of up to 768 tokens takes a second. Either kind of task is a call of 32 prompt and 32 output tokens at one
server and then one of 512 and 32 at the other, lengths constant, arrivals Poisson. Each order serves the same jobs; E2E
is the mean of the steady state over both kinds, with a 95% interval by batch means.

Run ``python docs/networks_orders.py`` (80 seconds of processor time); it prints the table of ``docs/networks.md``.
"""

import numpy as np
from scipy import stats

import penstock as ps

LOADS = (0.9, 0.95, 0.98, 0.99)
JOBS = 4_000_000
WARMUP = 0.2  # of the jobs, left out
BATCHES = 30
UNIT = ps.Server(ps.Affine(c=1.0, a=0.0), 768, convention="paper")
ORDERS: dict[str, tuple[str | ps.Order, str | ps.Order]] = {
    "turned around": (
        ps.Order.priority(["search.look_up", "complaint.look_into"]),
        ps.Order.priority(["complaint.understand", "search.reply"]),
    ),
    **{name: (name, name) for name in ("back-pressure", "back-pressure-phase", "hlpps", "fcfs", "global-age")},
}


def crossed(load: float, retrieval: str | ps.Order, communication: str | ps.Order) -> ps.Network:
    """Return the network of the page at a load of each server."""
    rate = load * 768 / (64 + 544)
    search = {
        "look_up": ps.Stage("retrieval", 32, 32, then="reply"),
        "reply": ps.Stage("communication", 512, 32),
    }
    complaint = {
        "understand": ps.Stage("communication", 32, 32, then="look_into"),
        "look_into": ps.Stage("retrieval", 512, 32),
    }
    pools = {"retrieval": ps.Pool(UNIT, order=retrieval), "communication": ps.Pool(UNIT, order=communication)}
    workflows = [
        ps.Workflow("search", ps.Workload.poisson(rate, 1, 1, seed=0), search),
        ps.Workflow("complaint", ps.Workload.poisson(rate, 1, 1, seed=1), complaint),
    ]
    return ps.Network(pools, workflows)


def mean_e2e(network: ps.Network) -> tuple[float, float]:
    """Return mean E2E in the steady state, s, and the half width of its interval."""
    run = ps.simulate_network(network, jobs=JOBS, record="jobs")
    e2e = (run.finish - run.arrival) * run.tick_s
    of_batches = np.array([batch.mean() for batch in np.array_split(e2e[int(WARMUP * e2e.size) :], BATCHES)])
    half = stats.t.ppf(0.975, BATCHES - 1)
    return float(of_batches.mean()), float(half * of_batches.std(ddof=1) / np.sqrt(BATCHES))


def _digits(half: float) -> str:
    return f"{half:.{0 if half >= 1 else 1}f}"


def main() -> None:
    """Simulate and print."""
    for name, (retrieval, communication) in ORDERS.items():
        found = [mean_e2e(crossed(load, retrieval, communication)) for load in LOADS]
        print(f"| {name} | " + " | ".join(f"{mean:.0f} +- {_digits(half)}" for mean, half in found) + " |", flush=True)


if __name__ == "__main__":
    main()
