"""What a server carries under a long flood: the truth for verdicts where no theorem knows it."""

import numpy as np

import penstock as ps
from penstock.theory.load import load

_FIRST, _LAST = 0.3, 0.8  # of the requests that finish: before them slots fill, after them they empty
_PARTS = 10


def saturated_rate(workload: ps.Workload, server: ps.Server, requests: int = 20_000) -> tuple[float, float]:
    """Return the requests/s that a server finishes while all of so many requests are there, and its standard error.

    Counted in forward tokens, over those of a mean request of the workload: which lengths happen to be drawn is no
    matter of speed.
    """
    rows = workload.requests(requests)
    flood = ps.Workload.from_arrays(np.zeros(requests), rows.prompt_tokens, rows.output_tokens, declared=rows.declared)
    run = ps.simulate(flood, server).rows
    done = np.flatnonzero(run.finish >= 0)
    order = done[np.argsort(run.finish[done], kind="stable")]
    tokens = run.prompt_tokens[order] + run.output_tokens[order] - float(server.convention == "engine")
    edges = np.linspace(_FIRST * order.size, _LAST * order.size, _PARTS + 1).astype(int)
    seconds = np.diff(run.finish[order][edges]) / 1e9
    lengths = load(workload, server).work.lengths
    mean = server.tokens_per_request(lengths.mean_prompt, lengths.mean_output)
    rates = np.add.reduceat(tokens, edges)[:-1] / seconds / mean
    whole = tokens[edges[0] : edges[-1]].sum() / seconds.sum() / mean
    return float(whole), float(rates.std(ddof=1) / np.sqrt(_PARTS))
