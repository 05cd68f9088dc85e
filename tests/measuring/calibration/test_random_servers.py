"""Servers drawn at random are benchmarked by simulation, calibrated on some rows, and judged by the rest."""

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.calibrate import calibrate
from penstock.measuring.calibration.judge import JUDGED, MISSED
from penstock.measuring.calibration.predict import Overhead, Requests, predict, sustained_rate

SERVERS = 24
OPEN_LOADS = (0.05, 0.3, 0.6, 0.85)
CLIENTS = (1, 8, 32, 128, 300)
Rng = np.random.Generator
Shapes = list[tuple[int, int]]


def between(rng: Rng, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def drawn(rng: Rng) -> tuple[ps.Server, Overhead, Shapes]:
    """Draw a server, what its clients see beside it, and the mean lengths of one to three shapes."""
    step = between(rng, 0.004, 0.04)
    per_token = step / between(rng, 80, 500)
    batch_time = ps.Composition(
        ps.Affine(step, per_token),
        self_attention=per_token * between(rng, 3e-6, 5e-5),
        decode_attention=step * between(rng, 2e-6, 4e-5),
        per_request=step * between(rng, 5e-4, 1e-2),
    )
    batch_time = dataclasses.replace(batch_time, cross_attention=2 * batch_time.self_attention)
    shapes = [(int(between(rng, 50, 3000)), int(between(rng, 20, 300))) for _ in range(rng.integers(1, 4))]
    longest = 1.5 * max(prompt + output for prompt, output in shapes)
    kv_tokens = int(between(rng, 3 * longest + 2000, 400_000)) if rng.random() < 0.5 else None
    policy = str(rng.choice(["vllm", "sglang", "sarathi"]))
    limits = int(rng.choice([512, 2048, 8192])), int(rng.choice([64, 256, 1024]))
    overhead = Overhead(rng.uniform(0.001, 0.02), rng.uniform(0, 1e-4), float(rng.choice([0, 0.002, 0.01])))
    return ps.Server(batch_time, *limits, policy, kv_tokens=kv_tokens), overhead, shapes


def benchmarked(
    server: ps.Server, overhead: Overhead, shapes: Shapes, rng: Rng
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Benchmark a server by open loads, closed loops or both; also return what it carries of each shape."""
    rows: list[dict[str, Any]] = []
    carries = {}
    for prompt, output in shapes:
        limits = {"prompt_low": prompt // 2, "prompt_high": 3 * prompt // 2}
        limits |= {"output_low": output // 2, "output_high": 3 * output // 2}

        def requests(count: int, rate: float | None, clients: int | None, limits: dict[str, int] = limits) -> Requests:
            lengths = [rng.integers(limits[f"{n}_low"], limits[f"{n}_high"] + 1, count) for n in ("prompt", "output")]
            arrivals = np.zeros(count) if rate is None else np.cumsum(rng.exponential(1 / rate, count))
            return Requests(arrivals - arrivals[0], *lengths, clients, None)

        name = f"{prompt}+{output}"
        carries[name] = sustained_rate(requests(400, None, None), server)
        kind = rng.choice(["open", "closed", "both"])
        loads: list[tuple[float | None, int | None]] = []
        loads += [(share * carries[name], None) for share in OPEN_LOADS if kind != "closed"]
        loads += [(None, clients) for clients in CLIENTS if kind != "open"]
        for rate, clients in loads:
            load = requests(250 if clients is None else min(max(60, 4 * clients), 900), rate, clients)
            seen = predict(load, server, overhead)
            rows.append(
                {"row": len(rows), "run": "a", "shape": name, "load": str(rate or clients), "incomplete": 0}
                | {"pattern": "poisson" if clients is None else "closed", "rate": rate, "in_flight": clients}
                | {"completed": load.prompt_tokens.size, "duration_s": load.prompt_tokens.size / seen["requests_per_s"]}
                | {"prompt_tokens": load.prompt_tokens.mean(), "output_tokens": load.output_tokens.mean()}
                | {limit: float(tokens) for limit, tokens in limits.items()}
                | {column: seen[column] for column in ("ttft_p50_s", "itl_mean_s", "e2e_mean_s", "requests_per_s")}
            )
    return pl.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], schema=COLUMNS), carries


@pytest.mark.slow
def test_servers_drawn_at_random_are_predicted_without_false_limits_or_silent_misses() -> None:
    ttft: list[float] = []
    itl: list[float] = []
    carried: list[float] = []
    for seed in range(SERVERS):
        rng = np.random.default_rng([7, seed])
        server, overhead, shapes = drawn(rng)
        table, carries = benchmarked(server, overhead, shapes, rng)
        limits = {"token_budget": server.token_budget, "max_batch_size": server.max_batch_size}
        found = calibrate(table, policy=server.policy.name, **limits)  # type: ignore[arg-type]

        # no limit that is none, and no time before a request came
        if "kv_tokens" in found.values:
            assert server.memory is not None
            assert found.values["kv_tokens"] == pytest.approx(server.memory.tokens, rel=0.25)
        assert float(found.rows["ttft_predicted"].min()) > 0  # type: ignore[arg-type]

        # every row that is off is named
        named = " ".join(found.missed)
        for row in found.rows.iter_rows(named=True):
            if any(abs(row[f"{metric}_error"] or 0) > MISSED for metric in JUDGED):
                assert f"row {row['row']} (" in named

        # what it carries is not overstated without a word
        for row in found.rows.unique("shape").iter_rows(named=True):
            error = row["limit_per_s"] / carries[row["shape"]] - 1
            carried.append(abs(error))
            if error > MISSED:
                assert found.warnings
        judged = found.rows.filter(~pl.col("fitted"))
        ttft += judged["ttft_error"].abs().to_list()
        itl += judged["itl_error"].abs().to_list()
    assert np.median(ttft) < 0.05
    assert np.median(itl) < 0.03
    assert np.median(carried) < 0.05
