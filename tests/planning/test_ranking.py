"""Fleets of all hardware side by side: the plan without a file, its prices, and what short runs are worth."""

import json
from pathlib import Path

import pytest
import yaml

import penstock as ps
from penstock.planning.aim import Aim
from penstock.planning.evaluate import evaluate
from penstock.planning.plan import plan
from penstock.planning.ranking import by_theory
from penstock.planning.scenario import build_plan, read_plan
from penstock.planning.space import search_space
from penstock.planning.targets_at_rate import USUAL_RHO, TargetsAtRate
from penstock.planning.without_file import as_text, described
from penstock.system.models.gpus import SHEETS
from penstock.system.models.served import served_model, shaped_hardware

TRAFFIC = {"rate": 12.0, "prompt": 800, "output": 100, "trace": None}
BASE = ps.Server(ps.Affine(c=0.01, a=1e-4), token_budget=256)


def document(gpus: str = "h100-sxm,l40s", tp: str | None = "1", prices: Path | None = None) -> dict[str, object]:
    found, _ = described("Llama-3.1-8B", TRAFFIC | {"gpus": gpus, "tp": tp}, targets=["ttft_p99<2s"], prices=prices)
    return found


def test_a_plan_without_a_file_is_the_scenario_that_it_writes(tmp_path: Path) -> None:
    """What --write writes is read again as the same search."""
    path = tmp_path / "written.yaml"
    path.write_text(as_text(document(), "somebody's"))
    read, built = read_plan(path), build_plan(document(), path)
    assert [one.name for one in read.space.families] == [one.name for one in built.space.families]
    assert read.rank
    assert read.aim == built.aim
    assert yaml.safe_load(path.read_text())["plan"]["price"] == {"h100-sxm": 6.16, "l40s": 2.25}


def test_prices_of_ones_own_take_the_place_of_the_table(tmp_path: Path) -> None:
    """By the longest part of a name; what has no price is refused with the remedy."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("{h100: 2, l4: 0.5}")
    space = build_plan(document("h100-sxm,l4", prices=prices), tmp_path / "p.yaml").space
    assert {one.smallest.kind.price for one in space.families} == {2.0, 0.5}
    for text, said in (("{h100: 2}", "no price of l4"), ("[1]", "has no prices"), ("{l4: free}", "l4 is 'free'")):
        prices.write_text(text)
        with pytest.raises(ps.InputError, match=said):
            described("Llama-3.1-8B", TRAFFIC | {"gpus": "l4", "tp": "1"}, prices=prices)


def test_a_gpu_has_its_price_by_any_of_its_names() -> None:
    assert document("h100,A100") == document("h100-sxm,a100-sxm")
    with pytest.raises(ps.InputError, match="kernels of AMD are other ones"):
        document("mi300x")


def test_lists_in_a_mapping_are_all_of_their_combinations_and_what_cannot_be_is_accounted_for() -> None:
    """A model that does not fit says so, beside those that do."""
    given = {"model": "Llama-3.1-70B", "gpu": ["h100-sxm", "h200-sxm"], "tensor_parallel": [1, 4]}
    plan_of = {"targets": ["ttft_p99<2s"], "search": {"hardware": given, "replicas": 2}}
    found = build_plan(
        {"workload": {"poisson": {"rate": 1, "prompt": 10, "output": 5}}, "plan": plan_of}, Path("x.yaml")
    )
    names = {one.smallest.kind.hardware for one in found.space.families}
    assert names == {f"Llama-3.1-70B on {gpu}" for gpu in ("4 x h100-sxm", "4 x h200-sxm")}
    alone = ["Llama-3.1-70B on 1 x h100-sxm", "Llama-3.1-70B on h200-sxm"]  # one GPU is too small
    assert [one.family for one in found.space.refused] == alone
    assert "would not start" in found.space.refused[0].why
    (own,) = {one.smallest.server.token_budget for one in found.space.families}
    assert own == 8192, "as vLLM takes it on such GPUs"


def test_every_sheet_says_how_many_watts() -> None:
    assert all(sheet.watts and 50 < sheet.watts < 2000 for sheet in SHEETS.values())


@pytest.mark.parametrize("rate", [6.0, 25.0])
def test_the_ranking_is_that_of_simulating_every_deployment(rate: float) -> None:
    """The same winner, and the same order of hardware, with the same seeds: a small space."""
    workload = ps.Workload.poisson(rate, ps.Geometric(600, max=2400), ps.Geometric(80, max=400), seed=2)
    kinds = [shaped_hardware(served_model("Llama-3.1-8B", gpu)) for gpu in ("h100-sxm", "l40s", "a100-sxm")]
    space = search_space(
        BASE, hardware=kinds, token_budget=[None], max_batch_size=[None], policy=[None], replicas=8,
        price={"h100": 3.0, "l40s": 1.1, "a100": 1.4},
    )  # fmt: skip
    aim = Aim.of(["ttft_p99<500ms", "tpot_p99<40ms"], requests=1000, most_requests=4000)
    found = plan(workload, space, aim=aim, rank=True)
    every = [evaluate(workload, one, aim) for one in space]
    does = sorted((one for one in every if one.answer == "met"), key=lambda one: one.deployment.cost)
    assert found.best is not None
    assert found.best.deployment.name == does[0].deployment.name
    cheapest: dict[str | None, float] = {}
    for one in does:
        cheapest.setdefault(one.deployment.kind.hardware, one.deployment.cost)
    shown = [row for row in found.ranking if row.evaluation is not None]
    assert [row.cost for row in shown] == sorted(row.cost for row in shown)
    for row in shown:
        if row.exact:
            assert row.cost == cheapest[row.hardware]
    assert {row.hardware for row in found.ranking} == {kind.name for kind in kinds}
    assert all(row.why for row in found.ranking if row.evaluation is None)
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert '"ranking"' in text


def test_a_fleet_that_short_runs_take_for_the_best_and_is_unstable_hides_no_cheaper_one() -> None:
    """Small batches have the quickest tokens in a run that ends before their queue has grown."""
    given = {"rate": 13.0, "prompt": 800, "output": 200, "gpus": "l40s", "tp": "1"}
    asked, _ = described("Llama-3.1-8B", given, targets=["tpot_p99<100ms"])
    built = build_plan(asked, Path("x.yaml"))
    found = plan(built.workload, built.space, aim=built.aim, rank=True)
    assert found.best is not None
    assert found.best.deployment.replicas == 2
    assert sum(one.verdict == "unstable" for one in found.evaluated) == 2


def test_the_cost_of_a_million_tokens_is_that_of_the_hours_that_they_take() -> None:
    workload = ps.Workload.poisson(4.0, 900, 100)
    kinds = [shaped_hardware(served_model("Llama-3.1-8B", gpu)) for gpu in ("h100-sxm", "h200-sxm")]
    space = search_space(BASE, hardware=kinds, token_budget=[None], max_batch_size=[None], policy=[None], price=3.6)
    found = plan(workload, space, ["ttft_mean<5s"], requests=400, most_requests=400, rank=True)
    for row in found.ranking:
        if row.evaluation is not None:
            assert row.million_tokens == pytest.approx(1e6 / (4 * 1000) * row.cost / 3600)
            assert row.million_outputs == pytest.approx(10 * row.million_tokens)
            assert 0 < row.used < 1
            assert row.slow_replicas is not None
            assert row.slow_replicas >= row.evaluation.deployment.replicas


def test_theory_says_before_any_run_which_fleets_have_a_usual_load() -> None:
    """One of each hardware, the cheapest first; a replica less would have more of its capacity."""
    workload = ps.Workload.poisson(200.0, 900, 100)
    kinds = [shaped_hardware(served_model("Llama-3.1-8B", gpu)) for gpu in ("l40s", "h100-sxm", "h200-sxm")]
    price = {"l40s": 2.0, "h100": 2.1, "h200": 9.0}
    space = search_space(BASE, hardware=kinds, token_budget=[None, 512], max_batch_size=[None], price=price)
    aim = Aim.of(["ttft_mean<5s"], requests=400)
    fleets = by_theory(TargetsAtRate(workload, aim), space.families)
    assert [fleet.kind.hardware for fleet in fleets] == [
        f"Llama-3.1-8B on {name}" for name in ("h100-sxm", "l40s", "h200-sxm")
    ]
    assert [fleet.cost for fleet in fleets] == sorted(fleet.cost for fleet in fleets)
    for fleet in fleets:
        share = workload.rate / ps.certify(workload, fleet.server).max_rate
        assert (fleet.replicas - 1) * USUAL_RHO < share <= fleet.replicas * USUAL_RHO
