"""The tables of docs/routers.md (by the number of replicas), docs/apart.md (one pair of servers)
and docs/networks.md (sessions), printed as Markdown; some seconds each.

``python benchmarks/studies/networks_tables.py routers``; ``disaggregated FOLDER`` and ``sessions
FOLDER`` read the public traces azure_llm_2023_conv.csv and weka_claude_code_requests.parquet from
that folder.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import penstock as ps

A100 = ps.hardware("codellama-34b-a100-tp1").batch_time


def routers() -> None:
    """TTFT behind each router, at a load of .95 of conversations."""
    server = ps.Server(A100, token_budget=512)
    conversation = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
    capacity = ps.certify(conversation, server).max_rate
    print(_row(["router", *(f"{count} replicas" for count in (2, 8, 64))]))
    for router in ("random", "round-robin", "power-of-two", "jsq", "work", "tokens"):
        cells = []
        for replicas in (2, 8, 64):
            network = ps.Network.single(
                conversation.with_rate(0.95 * replicas * capacity), server, replicas, router
            )
            rows = ps.simulate(network, jobs=100_000 * min(replicas, 8)).rows
            assert rows is not None
            ttft = (rows.first_token - rows.arrival)[rows.arrival.size // 5 :] * 1e-9
            cells.append(f"{ttft.mean():.2f} / {np.quantile(ttft, 0.99):.1f}")
        print(_row([router, *cells]), flush=True)


def disaggregated(folder: Path) -> None:
    """Two co-located servers against one for prompts and one for decodes, on the trace at several
    rates.
    """
    trace = ps.read_trace(folder / "azure_llm_2023_conv.csv")
    print(
        _row(
            ["requests/s", "pair", "loads", "TTFT mean / p99", "TPOT mean / p99", "E2E mean / p99"]
        )
    )
    for rate in (1.0, 1.5, 2.0, 2.5):
        workload = trace.with_rate(rate)
        together = ps.Network.single(workload, ps.Server(A100, 512), 2)
        # 48 layers of 8 KV heads of 128 numbers, keys and values, in 16 bits: 197 kB a token, at 25
        # GB/s
        workflow = ps.Workflow.disaggregated(
            workload,
            prefill="prefill",
            decode="decode",
            transfer_ms=5,
            transfer_ms_per_token=0.0079,
        )
        pools = {"prefill": ps.Pool(ps.Server(A100, 2048)), "decode": ps.Pool(ps.Server(A100, 512))}
        apart = ps.Network(pools, [workflow])
        for name, network in (("together", together), ("apart", apart)):
            run = ps.simulate(network)
            rows = run.rows
            assert rows is not None
            first, last = rows.jobs.first_request[:-1], rows.jobs.first_request[1:] - 1
            outputs = rows.jobs.output[last] + (first < last)
            ttft = (rows.first_token[first] - run.arrival) * 1e-9
            several = outputs > 1
            tpot = (run.finish - rows.first_token[first])[several] * 1e-9 / (outputs[several] - 1)
            e2e = (run.finish - run.arrival) * 1e-9
            loads = ", ".join(f"{load:.2f}" for load in run.replicas()["load"])
            cells = [f"{x.mean():.3g} / {np.quantile(x, 0.99):.3g}" for x in (ttft, tpot, e2e)]
            print(_row([f"{rate}", name, loads, *cells]), flush=True)


def sessions(folder: Path) -> None:
    """Recorded coding sessions on eight replicas: with and without affinity, kept for five minutes
    and for ever.
    """
    server = ps.Server(ps.hardware("codellama-34b-a100-tp4").batch_time, 8192, 256)
    print(_row(["kept for", "router", "affinity", "tokens found", "TTFT mean / p99", "E2E mean"]))
    for keep, said in ((300.0, "5 min"), (None, "ever")):
        for router, affinity in (
            ("jsq", True),
            ("jsq", False),
            ("tokens", False),
            ("random", False),
        ):
            recorded = ps.read_sessions(
                folder / "weka_claude_code_requests.parquet", "agents", rate=0.04, seed=1
            )
            pool = ps.Pool(server, 8, router, affinity=affinity)
            run = ps.simulate(
                ps.Network({"agents": pool}, [recorded], retention_s=keep), jobs=2_000
            )
            requests = run.requests
            found = requests["cached_tokens"].sum() / requests["prompt_tokens"].sum()
            latency = {metric: row for _, _, metric, _, *row in run.stages().iter_rows()}
            ttft, e2e = latency["ttft_s"], latency["e2e_s"]
            named = "yes" if affinity else "no"
            print(
                _row(
                    [
                        said,
                        router,
                        named,
                        f"{found:.1%}",
                        f"{ttft[0]:.2f} / {ttft[4]:.1f}",
                        f"{e2e[0]:.1f}",
                    ]
                )
            )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    table, *given = sys.argv[1:]
    globals()[table](*(Path(each) for each in given))
