"""Draw simulated backlogs over the fluid path that they approach:
``docs/figures/fluid_limits_*.svg``.

Requests that wait for prefill at the start, scaled by their number, at load .8, under the two
orders that f1-f7 do not tell apart: decode first (Sarathi-Serve) and prefill first (Orca). Run
``python docs/fluid_limits.py``.
"""

from pathlib import Path

import numpy as np

import penstock as ps
from penstock.checking.charts_fluid import fluid_trajectories
from penstock.show import charts

LOAD, PROMPT, OUTPUT = 0.8, 129, 112
SIZES = (100, 400, 3_200)


def main() -> None:
    """Simulate from three initial states each, and draw."""
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    for policy in ("sarathi", "orca"):
        server = ps.Server(batch_time, 1024, policy=policy)
        rate = LOAD * ps.certify(ps.Workload.poisson(1.0, PROMPT, OUTPUT), server).max_rate
        path = ps.fluid(server, arrival_rate=rate, prompt=PROMPT, output=OUTPUT, prefill=1.0)
        runs = {}
        for size in SIZES:
            rng = np.random.default_rng(size)
            after = np.cumsum(rng.exponential(1 / rate, 6 * size))
            arrivals = np.concatenate([np.zeros(size), after])
            lengths = [rng.geometric(1 / mean, arrivals.size) for mean in (PROMPT, OUTPUT)]
            runs[size] = ps.simulate(ps.Workload.from_arrays(arrivals, *lengths), server)
        about = (
            f"{policy}, load {LOAD}, geometric lengths of {PROMPT} and {OUTPUT} tokens, token "
            "budget 1,024"
        )
        chart = fluid_trajectories(path, runs, about)
        charts.save({f"fluid_limits_{policy}": chart}, Path(__file__).parent / "figures")


if __name__ == "__main__":
    main()
