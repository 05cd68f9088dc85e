"""What the pages on routers and on prefill and decode apart say holds in runs of a few seconds."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import penstock as ps

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "data" / "traces"


@pytest.fixture
def routers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "studies"))
    return importlib.import_module("routers_counting")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "studies"))
    return importlib.import_module("apart_designs")


def median_ttft(router: object, report_ms: float) -> float:
    known = ps.hardware("codellama-34b-a100-tp1")
    server = ps.Server(known.batch_time, 2048, 256, policy="vllm", gpu=known.gpu)
    workflow = ps.Workflow.single(ps.Workload.preset("azure-conv").with_rate(9.0, "poisson"), "pool")
    pool = ps.Pool(server, 8, router, report_ms=report_ms)  # type: ignore[arg-type]
    run = ps.simulate(ps.Network({"pool": pool}, [workflow]), jobs=6_000, seed=1)
    return float(run.stages().filter(metric="ttft_s")["p50"][0])


def test_late_reports_hurt_a_router_unless_it_counts_what_it_sent(routers: ModuleType) -> None:
    at_once = median_ttft("jsq", 0)
    assert median_ttft("jsq", 500) > 1.7 * at_once
    assert median_ttft(routers.jsq_counting, 0) == at_once
    assert median_ttft(routers.jsq_counting, 500) < 1.15 * at_once


def test_memory_in_use_does_not_show_what_waits(routers: ModuleType) -> None:
    assert median_ttft("memory", 0) > 1.2 * median_ttft(routers.memory_counting, 0)


def test_recorded_prompts_are_found_again_where_a_router_looks_for_them_and_only_in_a_replay() -> None:
    path = TRACES / "mooncake_fast25_conversation_trace.jsonl.gz"
    if not path.is_file():
        pytest.skip("no trace of Mooncake in shared/data beside the repository")
    known = ps.hardware("llama-2-70b-h100-tp4")
    server = ps.Server(known.batch_time, 2048, 256, policy="vllm", memory=ps.Memory(971, 512, prefix_caching=True))
    trace = ps.read_trace(path)

    def found(router: str, workload: ps.Workload) -> float:
        network = ps.Network({"pool": ps.Pool(server, 8, router)}, [ps.Workflow.single(workload, "pool")])
        rows = ps.simulate(network, jobs=4_000, seed=0).rows
        assert rows is not None
        return float(rows.cached.sum() / rows.jobs.prompt.sum())

    assert found("prefix", trace.with_rate(3.0)) > 1.5 * found("jsq", trace.with_rate(3.0)) > 0
    assert found("prefix", trace.with_rate(3.0, "poisson")) == 0


def test_a_small_token_budget_takes_away_what_prompts_on_replicas_of_their_own_gain(apart: ModuleType) -> None:
    workload = ps.Workload.preset("azure-conv").with_rate(15.0, "poisson")
    designs = {"large": apart.Design(), "small": apart.Design(budget=512), "apart": apart.Design(5)}
    gap = {name: apart.p99s(design, workload, 0)["gap"] for name, design in designs.items()}
    assert gap["large"] > 2.5 * gap["apart"]
    assert gap["small"] < 1.3 * gap["apart"]


def test_the_p99_between_tokens_does_not_show_a_full_pool_for_decodes(apart: ModuleType) -> None:
    long_outputs = ps.Workload.poisson(20.0, ps.Geometric(200, max=2_000), ps.Geometric(800, max=4_000))
    full = apart.p99s(apart.Design(4), long_outputs, 0)
    roomy = apart.p99s(apart.Design(4, slots=1024), long_outputs, 0)
    assert full["pause"] > 5
    assert np.isclose(full["gap"], roomy["gap"], rtol=0.2)
    assert roomy["pause"] < 0.5
