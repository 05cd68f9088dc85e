"""Latency by token budget on conversations (Section 7).

Sarathi-Serve with token budgets of 128, 512 and 1,024: end to end, and to the first token. The paper gives no rate, and
the two rates here order the budgets differently.
"""

import dataclasses

import polars as pl

import penstock as ps
from paper.item import Item
from paper.staircase import STAIRS
from penstock.checking.figures import cdf
from penstock.show.charts import whole

TRACE = "azure-llm-2023-conv"
SERVER = ps.Server(STAIRS, 512, policy="sarathi")
BUDGETS = SMALL, MODERATE, LARGE = 128, 512, 1024
RATES = (2.0, 1.2)  # requests/s
SEEDS = range(5)
REQUESTS = 5000
TIE = 0.01  # medians that lie no further apart than this share of the larger have no order

item = Item(__name__, __doc__)


def lowest(medians):
    """Return the budget whose median is the lowest, None for a tie."""
    best, second = sorted(medians, key=medians.get)[:2]
    return best if medians[best] < (1 - TIE) * medians[second] else None


def means(medians):
    """Return the mean over seeds of each budget, the lowest first, as it is printed."""
    over_seeds = {budget: sum(seconds) / len(seconds) for budget, seconds in medians.items()}
    return ", ".join(f"{b:,}: {over_seeds[b]:#.3g} s" for b in sorted(over_seeds, key=over_seeds.get))


# 1. The same requests at each budget, overloaded or not: all that came first are served to the last.
trace, origin = item.trace(TRACE)
servers = {budget: dataclasses.replace(SERVER, token_budget=budget) for budget in BUDGETS}
rows, charts = [], {}
for rate in RATES:
    poisson = trace.with_rate(rate, "poisson")
    e2e, ttft = ({budget: [] for budget in BUDGETS} for _ in range(2))
    for seed in SEEDS:
        first = poisson.with_seed(seed).requests(REQUESTS)
        finite = ps.Workload.from_arrays(first.arrival_s, first.prompt_tokens, first.output_tokens)
        runs = {budget: ps.simulate(finite, server, requests=REQUESTS) for budget, server in servers.items()}
        for budget, run in runs.items():
            latency = run.latency().filter(pl.col("metric") != "tbt_s").drop("p95").to_dicts()
            rows += [{"rate": rate, "token_budget": budget, "seed": seed, **row} for row in latency]
            ttft[budget].append(latency[0]["p50"])
            e2e[budget].append(latency[1]["p50"])
        if seed == SEEDS[0]:
            text = f"Shares of requests with at most so much E2E and TTFT at {rate:g} requests/s, by budget."
            charts[text] = whole(
                cdf(
                    f"{title}, {rate:g} requests/s",
                    {f"{b:,}": (getattr(run, of), run.tick_s) for b, run in runs.items()},
                    [f"{b:,}" for b in runs],
                    "Token budget",
                )
                for of, title in (("e2e", "End to end"), ("ttft", "Time to first token"))
            )

    # 2. An order of medians is that of the paper if it is with every seed.
    at = f"{rate:g} requests/s"
    best = [lowest({budget: medians[i] for budget, medians in e2e.items()}) for i in range(len(SEEDS))]
    usual = max(best, key=best.count)
    why = "the lowest medians tie, or seeds disagree: more requests would decide"
    if usual not in (MODERATE, None):
        theory = ps.certify(poisson, servers[usual])
        ms = {budget: 1e3 * float(SERVER.batch_time.by_tokens(budget)) for budget in (usual, MODERATE)}
        why = (
            f"the order depends on the rate, which the paper does not give: a budget of {usual:,} is at rho "
            f"{theory.rho:.2f} here, and its batches of {ms[usual]:.0f} ms, against {ms[MODERATE]:.0f} ms, are faster "
            f"for whoever decodes; the paper's order appears near its limit of {theory.max_rate:.2f} requests/s"
        )
    item.claim(f"median E2E, {at}", f"{MODERATE} lowest", means(e2e), set(best) == {MODERATE}, why)
    disorder = "seeds disagree, or the load is so low that prompts hardly wait for one another"
    item.claim(
        f"median TTFT, {at}", f"{LARGE:,} below {MODERATE}", means(ttft),
        all(large < moderate for large, moderate in zip(ttft[LARGE], ttft[MODERATE], strict=True)), disorder,
    )  # fmt: skip
    item.claim(
        f"cost of chunking, {at}",
        f"{SMALL} incurs significant overhead from repeated chunked prefill iterations",
        f"median TTFT {sum(ttft[SMALL]) / sum(ttft[MODERATE]):,.1f} times that of {MODERATE}",
        all(small > max(others) for small, *others in zip(*(ttft[b] for b in BUDGETS), strict=True)), disorder,
    )  # fmt: skip

item.note(origin)
item.note(
    f"The paper gives neither the rate, nor the GPUs, nor how many requests: one A100, {REQUESTS:,} requests and the "
    f"rates {', '.join(f'{rate:g}' for rate in RATES)} are assumed; its order holds from about 1.9 to 2.3 requests/s, "
    "where 128 tokens come to their limit"
)
item.note(
    f"Measured medians are means over {len(SEEDS)} seeds. Verdict `same`: the order holds with every seed; the lowest "
    f"E2E is more than {TIE:.0%} below the next"
)
item.show(
    pl.DataFrame(rows), charts,
    "Share of requests with at most so much latency, with the first seed; all budgets see the same requests.",
)  # fmt: skip
