"""Heads say the answer first, with the figures of the JSON, in six lines at most."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.capacity.heads import head_of_rates, head_of_recommendation, head_of_region
from penstock.capacity.held_by import held_by, point_with_memory
from penstock.capacity.max_rate import Trial
from penstock.capacity.region import load_in_region
from penstock.capacity.side_by_side import MaxRates, max_rates
from penstock.scenario.scenario import Scenario, read_scenario
from penstock.show.page import MOST_LINES, Line
from penstock.theory.operating_point import operating_point

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512)
WORKLOAD = ps.Workload.poisson(1.2, 1_964, 28)
ROUGH = {"requests": 2_000, "precision": 0.05}


def scenario(server: ps.Server = SERVER, workload: ps.Workload = WORKLOAD) -> Scenario:
    return Scenario("mine.yaml", (workload, server), 500, None, Path())


def of_server(**rates: ps.MaxRate) -> MaxRates:
    return MaxRates(rates, dict.fromkeys(rates, (WORKLOAD, SERVER)), operating_point(WORKLOAD, SERVER))


def texts(lines: list[Line]) -> dict[str, str]:
    assert len(lines) <= MOST_LINES
    return {line.label: line.text for line in lines}


def test_what_is_proved_is_the_headline_with_its_theorem_and_what_binds() -> None:
    found = ps.max_rate(WORKLOAD, SERVER)
    said = texts(head_of_rates(of_server(sarathi=found), scenario()))
    assert list(said) == ["mine.yaml", "Max rate", "Held by"]
    share = 1.2 / found.rate
    assert said["Max rate"] == f"{found.rate:,.4g} requests/s (1.2 arrive, {share:.0%} of that); by Theorem 1(b)."
    assert said["Held by"] == "the token budget; no scheduler carries more."


def test_what_is_simulated_says_where_it_is_no_longer_known() -> None:
    server = SERVER.with_policy("fastertransformer")
    found = ps.max_rate(ps.Workload.poisson(1.2, ps.Geometric(1_964, max=8_000), 28), server, precision=0.02)
    said = texts(head_of_rates(of_server(fastertransformer=found), scenario(server)))
    proved = found.certificate.certified_rate
    assert f"by simulation (proved up to {proved:,.4g}): at {found.above:,.4g} it is unstable" in said["Max rate"]
    own = f"this one {found.share:.0%} of that"
    assert said["Held by"] == f"the token budget; no scheduler carries more than {found.bound:,.4g} requests/s, {own}."


def test_of_many_policies_the_highest_rates_stand_in_one_line_and_a_contradiction_before_it() -> None:
    found = ps.max_rate(WORKLOAD, SERVER)
    rates = {f"policy {n}": dataclasses.replace(found, rate=found.rate * (1 - n / 10)) for n in range(6)}
    said = texts(head_of_rates(of_server(**rates), scenario()))
    assert said["Max rate"].startswith(f"in requests/s, by Theorem 1(b): policy 0 {found.rate:,.4g}; policy 1 ")
    assert "policy 4" not in said["Max rate"]
    assert said["Max rate"].endswith("; 2 more behind --why.")
    stability = dataclasses.replace(ps.verdict(WORKLOAD, SERVER), verdict="unstable")
    doubtful = dataclasses.replace(found, trials=(Trial(1.0, stability),))
    (_, first, *_) = head_of_rates(of_server(sarathi=doubtful), scenario())
    assert (first.label, first.judges) == ("contradiction", True)


def test_a_network_whose_order_fails_below_its_load_says_so(example: Scenario) -> None:
    found = ps.max_rate(example.network, precision=0.3)
    said = texts(head_of_rates(MaxRates({"as it is": found}, {"as it is": example.system}, None), example))
    assert said["Max load"].startswith(f"{found.rate:,.4g} times this load, so this load is unstable, which is proved;")
    assert said["Held by"].startswith("the order between stages, which fails above 0.6209, and by no pool;")


@pytest.fixture(scope="module")
def example() -> Scenario:
    return read_scenario(Path(__file__).parents[2] / "examples" / "rybko_stolyar.yaml")


def test_keep_stands_first_with_the_trade_that_it_leaves() -> None:
    found = ps.recommend(WORKLOAD, SERVER, policies=(), **ROUGH)  # type: ignore[arg-type]
    lines = head_of_recommendation(found, scenario())
    said = texts(lines)
    assert lines[1].label == "keep"
    assert found.trade is not None
    assert said["Trade"] == f"{found.trade}."
    assert "Price" not in said
    overloaded = head_of_recommendation(dataclasses.replace(found, overload="no"), scenario())
    assert [line.label for line in overloaded] == ["mine.yaml", "overloaded", "Trade"]
    assert f"{found.recommended.stable_rate:,.4g} requests/s" in said["Carries"]


def test_where_nothing_meets_a_target_no_change_is_told_but_what_is_nearest_at_which_price_and_what_is_next() -> None:
    asked = {"policies": (), "objective": "e2e", "targets": ["e2e_mean<1ms", "e2e_mean<1000s"]}
    found = ps.recommend(WORKLOAD, SERVER, **asked, **ROUGH)  # type: ignore[arg-type]
    said = texts(head_of_recommendation(found, scenario()))
    assert found.change
    assert list(said) == ["mine.yaml", "missed", "Price", "Carries", "Next"]
    nothing = "e2e_mean<0.001s and e2e_mean<1000s: nothing that was tried meets all on one server"
    assert said["missed"].startswith(f"{nothing}; nearest is sarathi, token budget 256: e2e_mean ")
    assert said["Price"] == f"{found.price}."
    assert said["Next"].startswith("`plan: {targets: [e2e_mean<0.001s, e2e_mean<1000s]}` in the scenario")
    full = dataclasses.replace(found, trade="slower", with_plugin="orca is faster").page(scenario())
    assert (full.sections[0].title, full.sections[0].paragraphs) == ("With plugin", ["orca is faster."])


@pytest.mark.parametrize(("rate", "word"), [(1.2, "inside"), (2.0, "outside")])
def test_a_region_says_which_side_and_how_far(rate: float, word: str) -> None:
    given = dataclasses.replace(scenario(), system=(WORKLOAD.with_rate(rate), SERVER))
    answer = load_in_region(given.workload, given.server)
    point, lines = answer.point, head_of_region(answer, given)
    assert lines[1] == Line(word, lines[1].text, judges=True)
    assert f"{rate / point.max_rate:.0%} of {point.max_rate:,.4g} requests/s, above" in lines[1].text
    assert ("Next" in texts(lines)) == point.inside


def test_what_is_doubted_of_a_recording_stands_behind_what_was_asked() -> None:
    times = np.repeat(10.0 * np.arange(40), 12)
    ones = np.full(times.size, 100)
    stamped = ps.Workload.from_arrays(times, ones, ones)
    _, mind, *_ = head_of_region(load_in_region(stamped, SERVER), scenario(workload=stamped))
    assert mind.label == "Mind"
    assert mind.text.startswith("Arrival times are stamped every 10 s")


@pytest.mark.parametrize(("scope", "said"), [("batch", "; the best carries "), ("running", " of that limit.")])
def test_the_exact_region_says_what_the_best_carries_where_prompts_end(scope: Any, said: str) -> None:
    server = ps.Server(ps.PiecewiseConstant(1.5e-3, 4.2e-3, 16), 16, 4, scope=scope, convention="paper")
    given = scenario(server, ps.Workload.poisson(10.0, 29, 24))
    answer = load_in_region(*given.system, exact=True)
    text = texts(answer.page(given).head)["Exact"]
    assert text.startswith("Counting that prompts end, no scheduler carries more than ")
    assert said in text
    assert answer.as_dict()["exact"]["rate"] < answer.point.max_rate
    assert [section.title for section in answer.page(given).sections][3] == "Pieces of prompts"


def test_a_load_between_the_exact_region_and_the_other_is_outside() -> None:
    server = ps.Server(ps.PiecewiseConstant(1.5e-3, 4.2e-3, 16), 16, 4, scope="batch", convention="paper")
    workload = ps.Workload.poisson(1.0, 29, 24)
    between = 0.995 * load_in_region(workload, server).point.max_rate
    given = scenario(server, workload.with_rate(between))
    exact = load_in_region(*given.system, exact=True)
    assert exact.exact is not None
    assert exact.exact.upper < between
    assert [exact.page(given).head[1].label, load_in_region(*given.system).page(given).head[1].label] == [
        "outside",
        "inside",
    ]


def test_what_the_exact_region_does_not_know_is_refused_in_one_line() -> None:
    drafts = {"drafts": 3, "acceptance": 0.9}
    workload = ps.Workload.poisson(1.0, ps.Uniform(1, 40), 24)
    with pytest.raises(ps.InputError, match="drafts tokens"):
        load_in_region(
            workload, ps.Server(ps.Affine(0.01, 1e-4), 64, 8, "vllm", policy_params=drafts, kv_tokens=9_000), exact=True
        )


@pytest.fixture(scope="module")
def short_of_memory() -> tuple[ps.Workload, ps.Server]:
    return ps.Workload.poisson(2.0, 129, 112), ps.Server(TP1, 512, 512, memory=ps.Memory(451, admission="completion"))


def test_region_rates_and_recommendation_say_alike_what_holds_a_server_back(
    short_of_memory: tuple[ps.Workload, ps.Server],
) -> None:
    workload, server = short_of_memory
    given = scenario(server, workload)
    held = held_by(point_with_memory(workload, server))
    assert held.startswith("the KV memory: the server carries about ")
    region = load_in_region(workload, server).page(given).head
    rates = max_rates({server.policy.name: given.system}, precision=0.05).page(given).head
    asked = {"policies": (), "objective": "stable-rate"}
    found = ps.recommend(workload, server, **asked, **ROUGH)  # type: ignore[arg-type]
    assert texts(region)["Held by"] == f"{held}."
    assert texts(rates)["Held by"].startswith(f"{held}; no scheduler carries more than ")
    if not found.change:
        assert found.held_by == f"held by {held}"
    assert found.binding == ("KV memory",)


def test_what_a_search_for_targets_leaves_open_is_said_with_what_narrows_it() -> None:
    found = ps.max_rate(WORKLOAD, SERVER, targets=["ttft_p99<5s"], requests=500, precision=0.01)
    assert found.targets is not None
    wide = dataclasses.replace(found.targets, missed=2 * found.targets.rate)
    undecided = next(iter(found.targets.trials[-1].answers.items()))
    name, judged = undecided
    between = dataclasses.replace(
        found.targets.trials[-1],
        rate=1.5 * found.targets.rate,
        answers={name: dataclasses.replace(judged, judgement="undecided")},
    )
    wide = dataclasses.replace(wide, trials=(*wide.trials, between))
    said = texts(head_of_rates(of_server(sarathi=dataclasses.replace(found, targets=wide)), scenario()))
    assert said["Meets"].endswith(
        " Between the two runs are too short to tell: 100% apart, where 1% was asked; more --requests narrow it."
    )
