"""The rate at which targets still hold lies where exhaustive checks at a grid of rates say."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.capacity.target_rate import judge_of_network
from penstock.checking.targets import parsed_targets
from penstock.scenario.scenario import read_scenario
from penstock.simulation.progress import silent
from tests.conftest import Said

LENGTHS = ps.Geometric(129, max=2_000), ps.Geometric(112, max=1_000)
WORKLOAD = ps.Workload.poisson(8.0, *LENGTHS)
SARATHI = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
CHAT = ps.Workload.poisson(12.0, ps.Geometric(300, max=2_000), ps.Geometric(50, max=300))
SMALL = ps.Server(ps.Affine(c=0.01, a=1e-4), 256, 64)
ROUGH = {"precision": 0.05, "requests": 4_000}


def network(*, replicas: int = 2) -> ps.Network:
    return ps.Network({"pool": ps.Pool(SMALL, replicas, "jsq")}, [ps.Workflow.single(CHAT, "pool")])


@pytest.mark.parametrize(
    ("workload", "server", "targets"),
    [
        (WORKLOAD, SARATHI, ["ttft_p99<500ms", "tbt_p99<1s"]),
        (WORKLOAD, SARATHI.with_policy("orca"), ["ttft_mean<300ms"]),
        (CHAT, SMALL, ["e2e_mean<1s"]),
    ],
)
def test_it_is_met_at_all_rates_of_a_grid_below_and_at_none_above(
    workload: ps.Workload, server: ps.Server, targets: list[str]
) -> None:
    most = ps.max_rate(workload, server, targets=targets, **ROUGH)  # type: ignore[arg-type]
    found = most.targets
    assert found is not None
    assert 0 < found.rate < found.missed <= most.above
    for rate in np.linspace(0.1, 0.99, 12) * most.rate:
        answer = ps.check(workload.with_rate(rate), server, requests=4_000, targets=targets, estimate_memory=False)
        judgements = {target.judgement for target in answer.targets}
        if rate <= found.rate:
            assert judgements == {"met"}, rate
        elif rate >= found.missed:
            assert "missed" in judgements, rate
        elif found.rate * 1.05 < rate < found.missed / 1.05:
            assert "undecided" in judgements, rate


def test_of_a_network_it_lies_where_a_grid_of_loads_says() -> None:
    targets = parsed_targets(["ttft_p99<400ms", "e2e_mean<2s"])
    most = ps.max_rate(network(), targets=targets, jobs=4_000)
    found = most.targets
    assert found is not None
    judge = judge_of_network(network(), targets, most.rate, 4_000, 0)
    loads = np.linspace(0.1, 0.99, 10) * most.rate
    words = {load: judge(load, silent).judgement for load in loads}
    assert {words[load] for load in loads if load <= found.rate} == {"met"}
    assert {words[load] for load in loads if load >= found.missed} == {"missed"}
    assert found.binding == "ttft_p99<0.4s"
    # jobs of more than 2 s are not good, though their mean is below it
    assert found.goodput_rate == pytest.approx(12 * found.rate * (found.goodput.value or 0))
    assert 0.8 < (found.goodput.value or 0) < 0.95


def test_a_higher_limit_holds_up_to_no_lower_a_rate_and_the_highest_as_far_as_stability_is_told() -> None:
    most = [
        ps.max_rate(WORKLOAD, SARATHI, targets=[f"ttft_p99<{limit}s"], **ROUGH)  # type: ignore[arg-type]
        for limit in (0.25, 0.4, 0.6, 1, 1e6)
    ]
    found = [one.targets for one in most if one.targets]
    assert len(found) == len(most)
    rates = [one.rate for one in found]
    assert rates == sorted(rates)
    assert rates[0] < 0.9 * rates[3]
    assert [one.binding for one in found] == [*(f"ttft_p99<{limit}s" for limit in (0.25, 0.4, 0.6, 1)), "stability"]
    assert found[-1].missed == most[-1].above
    assert found[-1].goodput.value == 1.0


def test_goodput_counts_requests_within_all_limits_as_vllm_s_benchmark_does() -> None:
    targets = ["tpot_mean<70ms", "e2e_p50<8s"]
    found = ps.max_rate(WORKLOAD, SARATHI, targets=targets, **ROUGH).targets  # type: ignore[arg-type]
    assert found is not None
    (trial,) = (one for one in found.trials if one.rate == found.rate)
    run, steady = ps.estimate(WORKLOAD.with_rate(found.rate), SARATHI, requests=4_000, targets=parsed_targets(targets))
    assert run.rows is not None
    rows = run.rows.where(slice(steady.warmup_jobs, None))
    tpot = (rows.finish - rows.first_token) * run.tick_s / np.maximum(rows.output_tokens - 1, 1)
    good = (tpot <= 0.07) & ((rows.finish - rows.arrival) * run.tick_s <= 8)
    assert trial.goodput.value == pytest.approx(good.mean(), abs=0.01)
    assert found.goodput_rate == found.rate * (trial.goodput.value or 0)
    assert found.goodput_rate < 0.98 * found.rate


@pytest.mark.parametrize("system", [(WORKLOAD, SARATHI), (network(),)])
def test_what_not_even_a_request_alone_meets_is_refused_with_what_it_takes(system: tuple[object, ...]) -> None:
    with pytest.raises(ps.InputError, match=r"not known to be met at any rate.*requests are alone, it is \d+ ms"):
        ps.max_rate(*system, targets=["ttft_p99<5ms"])  # type: ignore[arg-type]


def test_what_several_calls_of_a_job_have_no_time_per_token_of_is_refused() -> None:
    stages = {
        "one": ps.Stage("pool", ps.Geometric(100), ps.Geometric(20), then="two"),
        "two": ps.Stage("pool", ps.Geometric(100), ps.Geometric(20)),
    }
    flow = ps.Workflow("job", ps.Workload.poisson(1.0, 1, 1), stages, first="one")
    with pytest.raises(ps.InputError, match="limit tbt"):
        ps.max_rate(ps.Network({"pool": ps.Pool(SMALL, 2)}, [flow]), targets=["tpot_mean<1s"])


def test_a_recording_is_scaled(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.1, 5_000))
    path = tmp_path / "trace.csv"
    lengths = {"prompt_tokens": rng.integers(50, 400, 5_000), "output_tokens": rng.integers(10, 90, 5_000)}
    pl.DataFrame({"arrival_s": times, **lengths}).write_csv(path)
    scenario = tmp_path / "scenario.yaml"
    server = "{batch_time: {c_ms: 10, a_ms: 0.1, b0: 1}, token_budget: 256, max_batch_size: 64}"
    scenario.write_text(f"workload: {{trace: trace.csv}}\nserver: {server}\n")
    workload = read_scenario(scenario).workload
    found = ps.max_rate(workload, SMALL, targets=["ttft_p99<100ms"], precision=0.05).targets
    assert found is not None
    assert 0 < found.rate < found.missed
    assert found.binding == "ttft_p99<0.1s"


def test_the_command_says_up_to_where_and_what_is_left_open(tmp_path: Path, penstock: Callable[..., Said]) -> None:
    path = tmp_path / "mine.yaml"
    lengths = "prompt: {geometric: {mean: 129, max: 2000}}, output: {geometric: {mean: 112, max: 1000}}"
    server = "{hardware: codellama-34b-a100-tp1, token_budget: 512}"
    path.write_text(f"workload: {{poisson: {{rate: 8, {lengths}}}}}\nserver: {server}\nsimulate: {{requests: 4000}}\n")
    options = ["max-rate", str(path), "--target", "ttft_p99<500ms", "--precision", "0.05"]
    found = json.loads(penstock(*options, "--json")[1])["policies"]["sarathi"]["targets"]
    text = " ".join(penstock(*options)[1].split())
    assert f"Meets ttft_p99<0.5s up to {found['rate']:.4g} requests/s (" in text
    assert f"at {found['missed']:.4g} it is missed" in text
    assert "there are none; give a --target" in penstock("max-rate", path, "--requests", "2000")[2]
    both = " ".join(penstock(*options, "--policies", "sarathi,orca")[1].split())
    assert f"sarathi {found['rate']:.4g} (not at {found['missed']:.4g})" in both
