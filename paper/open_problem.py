"""The open question, answered: the exact region, what it is worth, and two states (beyond the paper).

Whether some policy carries the whole region under a max batch size (Section 6.2). Eight servers at which policies fail
near its boundary: how much smaller the exact region is (docs/theory/open-problem.md), and that the batch worth most at
its prices, all lengths known, carries that. Then what waiting costs near corner C, and what a full KV memory does.
"""

import altair as alt
import numpy as np
import polars as pl
from numba import njit

import penstock as ps
from paper.item import Item
from paper.staircase import STAIRS
from penstock.show.page import Table
from penstock.show.plot import COLOURS

EIGHT = (  # c and a in ms, b0, token budget, max batch size, mean prompt and output: geometric, cut at eight means
    (1.5, 4.2, 16, 16, 4, 29, 24), (7.6, 3.8, 32, 288, 10, 184, 11), (13.3, 1.1, 16, 96, 4, 79, 15),
    (2.8, 1.1, 16, 64, 4, 17, 11), (45.1, 1.2, 64, 640, 13, 178, 18), (8.5, 1.1, 32, 288, 17, 41, 25),
    (17.6, 24.4, 64, 640, 10, 148, 28), (6.6, 4.7, 64, 64, 21, 21, 12),
)  # fmt: skip
BATCHES = 8_000
WINDOW, MOST_PROMPTS, MOST_SIZES = 12, 6, 80  # oldest prompts looked at, of them in a batch, sizes of pieces
STOCK, TILT, STARVED = 8, 0.5, 0.3  # requests in decode to a place, and what prefill gains where there are fewer
ENOUGH = 0.99
CORNER = ps.Server(STAIRS, 1024, max_batch_size=100, scope="batch")
LOADS = {"C, 0.80": (290, 0.80), "C, 0.93": (290, 0.93), "C, 0.97": (290, 0.97), "middle of CB, 0.93": (1516, 0.93)}
POLICIES = ("priced", "pool-controlled", "maxweight-tokens")
SEEDS, REQUESTS = 5, 60_000
FULL = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 2048, 1024, policy="vllm", kv_blocks=1506)
RATES, BURST, ARRIVALS = (8.6, 9.0, 9.3, 9.6, 10.0, 10.4, 10.8), 400, 12_000

item = Item(__name__, __doc__)


@njit
def earned(seconds, places, prompts, outputs, worth, decode, sizes):
    """Serve a backlog by the batches worth most per second; return what is earned per second after a fifth of them."""
    budget, per_token = seconds.size - 1, worth[-1] / (worth.size - 1)
    most = min(MOST_PROMPTS, places)
    left, who, following = prompts[:WINDOW].copy(), np.arange(WINDOW), WINDOW
    queue, first, last = np.empty(outputs.size, np.int64), 0, 0  # decodes of those that have not begun
    begun, decoding = np.empty(places + 1, np.int64), 0
    value, taken = np.empty((most + 1, budget + 1)), np.empty((WINDOW, most + 1, budget + 1), np.int64)
    now = gain = now_before = gain_before = 0.0
    for batch in range(BATCHES):
        ready = decoding + last - first
        lean = TILT * max(min(1 - ready / (STOCK * places), 1.0), -1.0)
        token = (2e-3 + STARVED * max(lean, 0.0) / TILT) * per_token
        # What pieces of the oldest prompts are worth, by their number and their tokens.
        value[:] = -1e300
        value[0, 0] = 0.0
        taken[:] = 0
        for i in range(WINDOW if ready < 2 * STOCK * places else 0):
            for count in range(min(most, i + 1), 0, -1):
                for option in range(sizes.size + 1):
                    size = sizes[option - 1] if option else min(left[i], budget)
                    if size > min(left[i], budget) or (option and size == min(left[i], budget)):
                        continue
                    adds = (1 + lean) * (worth[left[i]] - worth[left[i] - size]) + token * size
                    for tokens in range(budget, size - 1, -1):
                        total = value[count - 1, tokens - size] + adds
                        if total > value[count, tokens] * (1 + 1e-12):
                            value[count, tokens] = total
                            taken[i, count, tokens] = size
        best, count, tokens, beside = -1.0, 0, 0, 0
        for n in range(most + 1):
            for x in range(budget + 1):
                y = min(places - n, budget - x, ready)
                for _ in range(3):  # all decodes, or as many as end with an earlier step
                    if value[n, x] > -1e200 and y >= 0 and x + y > 0:
                        rate = (value[n, x] + (1 - lean) * decode * y) / seconds[x + y]
                        if rate > best * (1 + 1e-12):
                            best, count, tokens, beside = rate, n, x, y
                    load = x + y
                    while load > x and seconds[load] >= seconds[x + y]:
                        load -= 1
                    y = load - x
        pieces, n, x = np.zeros(WINDOW, np.int64), count, tokens
        for i in range(WINDOW - 1, -1, -1):
            if n > 0 and taken[i, n, x] > 0:
                pieces[i] = taken[i, n, x]
                x -= pieces[i]
                n -= 1
        load, free = tokens + beside, places - beside - count
        for i in range(WINDOW if ready < 2 * STOCK * places else 0):  # tokens that take no longer
            while (pieces[i] > 0 or free > 0) and pieces[i] < left[i] and load < budget:
                if seconds[load + 1] > seconds[load]:
                    break
                free -= pieces[i] == 0
                pieces[i] += 1
                load += 1
        # The batch is served.
        while decoding < beside:
            begun[decoding] = queue[first]
            first, decoding = first + 1, decoding + 1
        now += seconds[load]
        gain += decode * beside
        kept = 0
        for i in range(decoding):
            begun[i] -= i < beside
            if begun[i] > 0:
                begun[kept] = begun[i]
                kept += 1
        decoding = kept
        kept = 0
        for i in range(WINDOW):
            gain += worth[left[i]] - worth[left[i] - pieces[i]]
            if left[i] == pieces[i]:
                queue[last] = outputs[who[i]]
                last += 1
            else:
                left[kept], who[kept] = left[i] - pieces[i], who[i]
                kept += 1
        for i in range(kept, WINDOW):
            left[i], who[i] = prompts[following], following
            following += 1
        if batch == BATCHES // 5:
            now_before, gain_before = now, gain
    return (gain - gain_before) / (now - now_before)


# 1. Eight servers: the exact region, and what its prices carry against a backlog.
cells = []
for c, a, b0, budget, places, prompt, output in EIGHT:
    server = ps.Server(ps.PiecewiseConstant(c / 1e3, a / 1e3, b0), budget, places, scope="batch", convention="paper")
    lengths = {"prompt": ps.Geometric(prompt, max=8 * prompt), "output": ps.Geometric(output, max=8 * output)}
    hull = ps.region(server, **lengths).max_rate
    exact = ps.exact_region(server, **lengths)
    sizes = np.flatnonzero(np.diff(np.append(exact.piece_prices, np.inf)) > 1e-9 * exact.piece_prices.max())
    sizes = sizes[np.unique(np.linspace(0, sizes.size - 1, min(sizes.size, MOST_SIZES)).astype(int))]
    _, prompts, outputs, *_ = ps.Workload.poisson(1.0, **lengths, seed=budget).requests(BATCHES * places)
    share = earned(
        np.append(0.0, server.batch_time(np.arange(1, budget + 1))), places, prompts.astype(np.int64),
        outputs.astype(np.int64), exact.prompt_prices, exact.decode_price, sizes[sizes > 0],
    )  # fmt: skip
    name = f"c {c}, a {a} ms, b0 {b0}, b_max {budget}, k {places}, {prompt}/{output}"
    cells.append((name, exact.rate / hull, share))
    item.claim(
        name, "open: is the region reached?", f"exact {exact.rate / hull:.3f} of it, carried {share:.3f} of exact",
        exact.upper < hull and ENOUGH < share < 1.005,
    )  # fmt: skip

# 2. Near corner C: what waiting costs.
rows = []
for load, (prompt, part) in LOADS.items():
    lengths = ps.Geometric(prompt), ps.Geometric(990)
    rate = part * ps.region(CORNER, prompt=lengths[0], output=lengths[1]).max_rate
    for policy in POLICIES:
        means = []
        for seed in range(1, SEEDS + 1):
            workload = ps.Workload.poisson(rate, *lengths, seed=seed)
            run = ps.simulate(workload, CORNER.with_policy(policy), requests=REQUESTS).requests
            run = run[REQUESTS // 6 : 5 * REQUESTS // 6]
            means.append([(run[end] - run["arrival_ns"]).mean() / 1e9 for end in ("first_token_ns", "finish_ns")])
        means = np.array(means)
        spread = means.std(axis=0, ddof=1) / np.sqrt(SEEDS)
        rows.append((load, policy, *(f"{m:.1f} ± {s:.1f}" for m, s in zip(means.mean(axis=0), spread, strict=True))))
item.tables.append(
    Table(
        ("Load", "Policy", "TTFT (s)", "E2E (s)"), rows,
        f"Means with their standard errors: shares of the boundary, {SEEDS} seeds of {REQUESTS:,} requests",
    )
)  # fmt: skip

# 3. A full KV memory: the same rates from empty and from a backlog.
paths = []
for rate in RATES:
    for start, burst in (("from empty", 0), (f"{BURST} waiting", BURST)):
        rng = np.random.default_rng(1)
        arrival = np.append(np.zeros(burst), np.cumsum(rng.exponential(1 / rate, ARRIVALS)))
        workload = ps.Workload.from_arrays(arrival, np.full(arrival.size, 129), np.full(arrival.size, 112))
        run = ps.simulate(workload, FULL, until=float(arrival[-1]), record="summary")
        paths.append((rate, start, run.unfinished))
left = pl.DataFrame(paths, ["rate", "start", "unfinished"], orient="row")
both = ps.check(ps.Workload.poisson(9.6, 129, 112), FULL, requests=2_000)
item.claim(
    "a full KV memory", "stable or unstable",
    f"at 9.6/s {both.verdict}: {both.metastable.reason if both.metastable else 'one state'}",
    both.verdict == "metastable",
)  # fmt: skip
item.note(
    "No policy carries more than the exact region (Theorem 1); that the batch worth most at its prices does, with a "
    "stock of decodes, is measured. Where requests preempt each other, a rate alone decides nothing"
)
item.note("Sweeps of 200 servers in both scopes: `benchmarks/studies/adaptive_sweep.py`, `adaptive_limits.py running`")
item.note(
    f"Exact prices: the {WINDOW} oldest prompts, at most {MOST_PROMPTS} in a batch, {BATCHES:,} batches against a "
    "backlog, measured in prices (Theorem 3)"
)

base = alt.Chart(pl.DataFrame(cells, ["server", "exact", "carried"], orient="row"))
dots = base.mark_point(size=70, filled=True, color=COLOURS[0], opacity=1).encode(
    y=alt.Y("server:N", title=None, sort=None, axis=alt.Axis(labelLimit=400, grid=True)),
    x=alt.X("exact:Q", title="Exact region over the region", scale=alt.Scale(domain=[0.96, 1])),
)
lines = (
    alt.Chart(left)
    .mark_line(point=True)
    .encode(
        x=alt.X("rate:Q", title="Arrivals (requests/s)", scale=alt.Scale(zero=False)),
        y=alt.Y("unfinished:Q", title=f"Left after {ARRIVALS:,}"),
        color=alt.Color("start:N", title=None, scale=alt.Scale(range=COLOURS[:2])),
        strokeDash=alt.StrokeDash("start:N", title=None),
    )
)
item.show(
    left,
    {
        "Points of the exact region over the region, by server.": dots.properties(width=330, height=220),
        "Lines of the requests left, by rate, from empty and from a backlog.": lines.properties(width=330, height=220),
    },
    "Left, how much of the region the exact one is. Right, requests left when arrivals end, by their rate: between the "
    "two lines' rises the server has two states.",
)
