"""On an engine whose batch times are known exactly, measured and simulated runs are one; what differs is seen."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.measuring.profiling.driving import drive
from penstock.measuring.profiling.view import profile_page
from penstock.measuring.twin.charts import charts
from penstock.measuring.twin.drift import drift_of
from penstock.measuring.twin.experiment import predict, requests_of, run_trial, twin
from penstock.measuring.twin.observed import observed_run
from penstock.measuring.twin.records import Settings, Twin, as_dict
from penstock.show import html
from penstock.show.markdown import markdown
from penstock.show.terminal import print_page
from penstock.workload.pairs import Independent

MODEL = ps.Composition(ps.Affine(c=2**-8, a=2**-12), decode_attention=2**-22)
LENGTHS = Independent(ps.Geometric(60, max=200), ps.Geometric(20, max=80))
SETTINGS = Settings(LENGTHS, loads=(0.5, 0.9, 1.1), seeds=1, seconds=5.0, backlog_s=2.0, calibrate_s=3.0)
SLOWER = dataclasses.replace(MODEL, linear=ps.Affine(c=2**-7, a=2**-11))


@pytest.fixture(scope="module")
def found(model_engine: Callable[..., Any]) -> Twin:
    return twin(model_engine(MODEL, 64), SETTINGS)


@pytest.mark.parametrize(("policy", "slots"), [("sarathi", None), ("orca", 6), ("vllm-vanilla", None)])
def test_an_engine_of_known_batch_times_does_what_the_simulation_does(
    model_engine: Callable[..., Any], policy: str, slots: int | None
) -> None:
    engine = model_engine(MODEL, 64, policy, slots)
    server = ps.Server(MODEL, 64, slots, policy=policy)
    drawn = ps.Workload.poisson(40.0, LENGTHS, seed=3).requests(150)
    seen = drive(engine, *drawn[:3])
    run = observed_run(server, drawn.prompt_tokens, drawn.output_tokens, seen)
    simulated = ps.simulate(ps.Workload.from_arrays(*drawn[:3]), server, record="batches")
    for column in ("first_token_ns", "finish_ns"):
        assert np.abs((run.requests[column] - simulated.requests[column]).to_numpy()).max() <= 200
    assert run.batches.drop("start_ns", "duration_ns").equals(simulated.batches.drop("start_ns", "duration_ns"))
    assert run.gaps.size == simulated.gaps.size
    assert run.gaps.mean == pytest.approx(simulated.gaps.mean, rel=1e-6)
    assert run.tokens == simulated.tokens
    assert run.utilisation == pytest.approx(simulated.utilisation, rel=1e-4)
    assert (
        run.compositions.drop("seconds", "share")
        .sort("prefill_tokens", "decode_tokens")
        .equals(simulated.compositions.drop("seconds", "share").sort("prefill_tokens", "decode_tokens"))
    )


def test_tokens_in_the_system_are_those_that_came_and_did_not_leave(model_engine: Callable[..., Any]) -> None:
    server = ps.Server(MODEL, 64)
    drawn = ps.Workload.poisson(20.0, LENGTHS, seed=4).requests(60)
    run = observed_run(server, drawn.prompt_tokens, drawn.output_tokens, drive(model_engine(MODEL, 64), *drawn[:3]))
    simulated = ps.simulate(ps.Workload.from_arrays(*drawn[:3]), server).series
    for column in ("requests", "unprocessed_tokens", "uncompleted_tokens"):
        theirs = dict(zip(simulated["time_s"].to_list(), simulated[column].to_list(), strict=True))
        ours = np.interp(list(theirs), run.series["time_s"].to_numpy(), run.series[column].to_numpy())
        assert np.abs(ours - list(theirs.values())).mean() < 0.05 * max(theirs.values()), column
    assert run.series["requests"][-1] == 0
    assert run.series["uncompleted_tokens"][-1] == 0


def test_a_known_engine_is_predicted_without_error(found: Twin) -> None:
    for trial in found.trials:
        assert trial.batch_error == pytest.approx(0, abs=0.01)
        for metric in ("tbt_s", "e2e_s"):
            assert trial.error(metric) == pytest.approx(0, abs=0.03), (trial.prediction, metric)
    assert found.speed == pytest.approx(1)


def test_a_backlog_drains_below_1_and_grows_above_as_predicted(found: Twin) -> None:
    assert [t.prediction.direction for t in found.trials] == ["drains", "drains", "grows"]
    assert [t.drift and t.drift.direction for t in found.trials] == [None, "drains", "grows"]
    for trial in found.trials[1:]:
        assert trial.drift is not None
        assert trial.drift.load == pytest.approx(trial.prediction.rho, rel=0.05)


def test_an_engine_slower_than_calibrated_is_seen_to_grow_where_it_was_to_drain(
    model_engine: Callable[..., Any],
) -> None:
    server = ps.Server(MODEL, 64)
    (prediction,) = predict(server, LENGTHS, [0.9])
    trial = run_trial(model_engine(SLOWER, 64), server, prediction, SETTINGS, 0)
    assert trial.drift is not None
    assert trial.simulated_drift is not None
    assert (trial.drift.direction, trial.simulated_drift.direction) == ("grows", "drains")
    assert trial.batch_error == pytest.approx(-0.5, abs=0.05)
    assert trial.error("e2e_s") < -0.2


def test_what_a_server_carries_is_what_its_batches_carry_in_overload() -> None:
    by_load = ps.Composition(ps.Affine(c=0.01, a=1e-4))
    server = ps.Server(by_load, 64)
    (half,) = predict(server, LENGTHS, [0.5])
    tokens = server.tokens_per_request(LENGTHS.mean_prompt, LENGTHS.mean_output)
    assert half.carried == pytest.approx(by_load.capacity(64) / tokens, rel=0.01)
    assert half.rate == half.carried / 2


def test_requests_of_a_run_are_poisson_after_a_backlog_that_waits_at_the_start() -> None:
    (prediction,) = predict(ps.Server(MODEL, 64), LENGTHS, [0.9])
    backlog, arrival, prompt, output = requests_of(prediction, SETTINGS, 5)
    assert backlog == round(prediction.carried * SETTINGS.backlog_s)
    assert not arrival[:backlog].any()
    assert arrival[-1] <= SETTINGS.seconds
    came = arrival.size - backlog
    assert came == pytest.approx(
        prediction.rate * SETTINGS.seconds, abs=4 * np.sqrt(prediction.rate * SETTINGS.seconds)
    )
    assert prompt.size == output.size == arrival.size
    again = requests_of(prediction, SETTINGS, 5)
    assert all(np.array_equal(a, b) for a, b in zip((arrival, prompt, output), again[1:], strict=True))


def test_a_run_whose_backlog_goes_at_once_has_no_drift() -> None:
    run = ps.simulate(ps.Workload.poisson(1.0, 10, 10, seed=0), ps.Server(MODEL, 64), requests=20, record="batches")
    assert drift_of(run, 100.0) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"loads": ()}, "no load"), ({"loads": (0.0,)}, "a load"), ({"seeds": 0}, "seeds"), ({"seconds": -1}, "seconds")],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ps.InputError, match=said):
        dataclasses.replace(SETTINGS, **wrong)


def test_a_request_that_the_engine_does_not_take_is_refused_before_the_run(model_engine: Callable[..., Any]) -> None:
    server = ps.Server(MODEL, 64)
    (prediction,) = predict(server, LENGTHS, [0.5])
    long = dataclasses.replace(SETTINGS, lengths=Independent(ps.Constant(5_000), ps.Constant(5)))
    with pytest.raises(ps.InputError, match="give lengths a max"):
        run_trial(model_engine(MODEL, 64), server, prediction, long, 0)


def test_json_has_both_sides_and_what_was_said_before(found: Twin) -> None:
    said = as_dict(found)
    assert [run["predicted"] for run in said["runs"]] == ["drains", "drains", "grows"]
    for run in said["runs"]:
        assert set(run["measured"]["latency"]) == set(run["simulated"]["latency"]) == {"ttft_s", "tbt_s", "e2e_s"}
    assert said["runs"][2]["measured"]["drift"]["direction"] == "grows"


def test_tables_fit_80_columns_and_are_the_same_in_markdown(
    found: Twin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_page(found.page())
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    written = markdown(found.page())
    tables = [table for section in found.page().sections for table in section.tables]
    assert len(tables) == 3
    for table in tables:
        for row in (table.columns, *table.rows):
            assert f"| {' | '.join(row)} |" in written
            assert all(cell in printed for cell in row)


def test_a_verdict_says_for_each_load_what_was_predicted_and_what_was_seen(found: Twin) -> None:
    drained, grown = (f"predicted before the runs: a backlog {word}; seen: {word};" for word in ("drains", "grows"))
    calm, near, beyond = found.page().verdicts
    assert (calm.word, calm.about) == ("compared", "rho 0.5")
    assert (near.word, near.reason.startswith(drained)) == ("met", True)
    assert (beyond.word, beyond.reason.startswith(grown)) == ("met", True)


def test_a_profile_is_shown_as_a_fit_under_the_name_of_its_engine(found: Twin) -> None:
    fit = found.fits[0]
    assert fit is not None
    page = profile_page(found.description, {"processor": "P", "cores": 2}, fit)
    assert (page.title, page.heading.startswith("P, cores 2; ")) == (found.description, True)
    assert [section.title for section in page.sections][:2] == ["Parameters", "How well it fits"]


def test_figures_and_page_show_every_load(found: Twin, tmp_path: Any) -> None:
    assert set(charts(found)) == {"twin_tokens", "twin_latency_50", "twin_latency_90", "twin_latency_110"}
    html.write(tmp_path / "twin.html", found.page())
    page = (tmp_path / "twin.html").read_text()
    for rho in ("rho 0.5", "rho 0.9", "rho 1.1"):
        assert rho in page
