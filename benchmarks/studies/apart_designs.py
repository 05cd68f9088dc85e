"""Eight replicas of vLLM, all for both phases or some for each, simulated for `apart.py`."""

from typing import NamedTuple

import numpy as np

import penstock as ps

REPLICAS = 8
PRESET = ps.hardware("llama-2-70b-h100-tp4")
DEFAULT = 2048
LINK_MS = 2 * 80 * 8 * 128 * 2 / 50e9 * 1e3  # a token's keys and values on a link
LATENCY_MS = 5.0
SECONDS = 300.0
FLOOD = 100.0  # requests/s, more than can be carried


class Design(NamedTuple):
    """Eight replicas: all for both, or so many of them for prompts."""

    prompts: int = 0
    budget: int = DEFAULT
    router: str = "jsq"  # where all serve both
    slots: int = 256
    transfers: float = 1.0  # as long as they take; 0: none
    asynchronous: bool = True  # vLLM composes a batch while the one before runs

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.prompts:
            return f"{self.prompts}:{REPLICAS - self.prompts}"
        return f"{self.budget:,} {self.router}"

    def network(self, workload: ps.Workload) -> ps.Network:
        """Return the replicas and what arrives."""
        params = {} if self.asynchronous else {"async_scheduling": False}
        server = ps.Server(
            PRESET.batch_time, self.budget, self.slots, policy="vllm", policy_params=params,
            gpu=PRESET.gpu,
        )  # fmt: skip
        if not self.prompts:
            return ps.Network.single(workload, server, REPLICAS, self.router)
        workflow = ps.Workflow.disaggregated(
            workload,
            prefill="prefill",
            decode="decode",
            transfer_ms=LATENCY_MS * self.transfers,
            transfer_ms_per_token=LINK_MS * self.transfers,
        )
        pools = {
            "prefill": ps.Pool(server, self.prompts, "tokens"),
            "decode": ps.Pool(server, REPLICAS - self.prompts, "jsq"),
        }
        return ps.Network(pools, [workflow])


def most(workload: ps.Workload) -> float:
    """Return the requests/s that all eight finish, serving both, while a queue waits."""
    network = Design().network(workload.with_rate(FLOOD))
    run = ps.simulate(network, until=SECONDS, seed=0)
    half = run.last_arrival / 2
    return float(((run.finish > half) & (run.finish <= run.last_arrival)).sum()) / (SECONDS / 2)


def p99s(design: Design, workload: ps.Workload, seed: int) -> dict[str, float]:
    """Return p99 of TTFT, of the pause between first and second token where that is a handover, s,
    and of the times between tokens, ms; inf where more than 1% never come.
    """
    jobs = int(workload.rate * SECONDS)
    run = ps.simulate(design.network(workload), jobs=jobs, seed=seed, record="batches")
    rows = run.rows
    assert rows is not None
    first, last = rows.jobs.first_request[:-1], rows.jobs.first_request[1:] - 1
    counted = run.arrival > run.last_arrival / 4
    token = np.where(rows.first_token < 0, np.inf, rows.first_token) * run.tick_s
    ttft = token[first] - run.arrival * run.tick_s
    moved = (last > first) & (rows.jobs.output[last] > 0) & (rows.finish[first] >= 0) & counted
    pause = (token[last] - rows.finish[first] * run.tick_s)[moved]
    gap = run.tbt_s["p99"]
    assert gap is not None
    return {"ttft": _p99(ttft[counted]), "pause": _p99(pause), "gap": gap * 1e3}


def _p99(seconds: np.ndarray) -> float:
    return float(np.quantile(seconds, 0.99, method="inverted_cdf")) if seconds.size else 0.0
