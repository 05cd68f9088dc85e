"""Two lemmas of the paper: where they fail, and what holds instead."""

import random

import numpy as np
import pytest
import yaml
from tests.reference import markov_chain

import penstock as ps
from penstock.reproducing import join_buffers, lemmas
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Setup


def changed(tmp_path, name, *, workload=None, server=None, **settings):
    """Return the scenario of an item with other settings, as a file."""
    document = yaml.safe_load(item(name).text)
    document["reproduce"] |= settings
    if workload:
        document["workload"] = workload
    if server:
        document["server"] = document["server"] | server if isinstance(server, dict) else server
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def itself(name, path):
    """Return what an item makes of a file, before `reproduce` says that it was changed."""
    return measure(Setup(item(name), yaml.safe_load(path.read_text()), path.parent))


def test_prefill_overtakes_999_places_and_departures_stay_within_the_corrected_bound() -> None:
    found = reproduce("lemma-overtaking")
    prefill, *usual, places, corrected = found.claims
    assert (prefill.published, prefill.measured, prefill.same) == ("fewer than K' = 17 places", "999 places", False)
    assert all(claim.same for claim in (*usual, corrected))
    assert len(usual) == 3
    assert (places.published, places.measured) == ("fewer than K' = 105 places", "201 places")
    assert corrected.measured.endswith("closest: 201 of 201")
    assert found.rows["burst"].n_unique() == 2


def test_a_small_burst_stays_within_the_lemma(tmp_path) -> None:
    few = {"slack": 3, "systems": 5, "seed": 1}
    file = changed(tmp_path, "lemma-overtaking", prefill={"requests": 12}, departures=few, policies=["sarathi"])
    found = itself("lemma-overtaking", file)
    assert found.claims[0].same
    assert not found.differing  # a small K leaves room for 2K places


def test_places_and_overtakers_are_counted_as_they_are_said() -> None:
    assert lemmas.places(np.array([5, 3, 4, 4, 6])) == 3  # 3 is done ahead of 0
    assert lemmas.overtakers(np.array([5, 3, 4, 4, 6])) == 3
    assert lemmas.places(np.array([1, 1, 2])) == lemmas.overtakers(np.array([1, 1, 2])) == 0


def test_the_slack_of_k_fcfs_agrees_with_the_definition() -> None:
    draw = random.Random(3)
    for _ in range(30):
        n = draw.randint(2, 12)
        prompt, output = ([draw.randint(1, 3) for _ in range(n)] for _ in range(2))
        arrival = sorted(draw.choices(range(8), k=n))
        seen, order = [1], lemmas.any_order(draw)

        def watched(state, seen=seen, order=order):
            chosen = order(state)
            there = [request.index for request in state.requests]
            decoding = [j for j, (_, decode) in chosen.items() if decode]
            seen += [j - i + 1 for j in decoding for i in there if i < j and i not in chosen]
            return chosen

        history = markov_chain.simulate(
            arrival, prompt, output, batch_time=lambda load: 2, token_budget=draw.randint(1, 4), policy=watched,
            convention="paper",
        )  # fmt: skip
        assert lemmas.fcfs_slack(history) == max(seen)


@pytest.mark.parametrize("slack", [1, 3, 9, 31])
def test_the_bound_on_places_is_reached_by_a_work_conserving_order(slack: int) -> None:
    n = 2 * slack + 1
    history, found = lemmas._serve([0] * n, [1] * n, [1] * n, 2, lemmas.far_ahead(slack))
    assert found.k == slack
    assert found.places == found.most_places == 2 * slack - 1
    assert found.overtakers < found.lemma
    loads = [markov_chain.token_load(batch.allocation) for batch in history.batches]
    assert loads[:-1] == [2] * (len(loads) - 1)


def test_the_join_buffer_outgrows_the_lemma_and_keeps_the_corrected_bound() -> None:
    found = reproduce("lemma-join")
    largest, orders, corrected, theorem = found.claims
    assert (largest.published, largest.same) == ("at most 2K'(k - 1) = 20", False)
    assert 40 < int(largest.measured) < 150  # 67 in another run
    assert orders.same
    assert corrected.same
    assert theorem.same
    assert found.rows["join_buffer"].max() == int(largest.measured)
    assert (found.rows["join_buffer"] <= found.rows["corrected"]).all()


def test_at_half_the_load_the_join_buffer_stays_within_the_lemma(tmp_path) -> None:
    half = {"poisson": {"rate": 0.5, "prompt": 1, "output": 1}}
    assert not itself("lemma-join", changed(tmp_path, "lemma-join", workload=half)).differing


def test_three_branches_have_the_bounds_of_three(tmp_path) -> None:
    found = itself("lemma-join", changed(tmp_path, "lemma-join", batch_ms=[100, 100, 200, 1000]))
    assert found.claims[0].published == "at most 2K'(k - 1) = 30"
    assert found.claims[2].same


def test_the_buffers_of_a_join_by_hand() -> None:
    """Two jobs at once: a batch prefills both, the next decodes both, after 1 s at the fast server, 2 s at the slow."""
    workload = ps.Workload.from_arrays([0.0, 0.0], [1, 1], [1, 1])

    def run(place: int, arriving: ps.Workload) -> ps.Run:
        server = ps.Server(ps.Affine(c=(0.001, 0.5, 1.0)[place], a=0.0), 2, convention="paper")
        return ps.simulate(arriving, server, requests=2, record="allocations")

    found = join_buffers.fork_join(workload, run, 2)
    assert found.buffers.tolist() == [2, 0]
    assert found.queue.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_ms": [100, 1000]}, "three servers"),
        ({"batch_ms": [100, 100, 1100]}, "load 1.06"),
        ({"workload": {"poisson": {"rate": 0.5, "prompt": 2, "output": 1}}}, "set prompt and output to 1"),
        ({"batch_ms": [100, float("nan"), 1000]}, "batch_ms"),
        ({"shown_s": float("inf")}, "shown_s"),
        ({"server": 1e308}, "server must be a mapping"),
        ({"server": {"batch_time": {"affine": {"c_ms": 7, "a_ms_per_token": 9}}}}, "server.batch_time would change"),
        ({"server": {"policy": "vllm-vanilla"}}, "server.policy is vllm-vanilla, which is not known"),
        ({"server": {"convention": "engine"}}, "give convention: paper"),
        ({"server": {"max_batch_size": 1}}, "leave both out"),
    ],
)
def test_what_the_join_cannot_be_made_from_is_refused(settings, said, tmp_path) -> None:
    with pytest.raises(ps.InputError, match=said):
        reproduce(changed(tmp_path, "lemma-join", **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"departures": {"slack": 4}}, "departures.slack: 4 is even.*give 3 or 5"),
        ({"departures": {"slack": 10**9 + 1}}, "slack"),
        ({"prefill": {"requests": 10**9}}, "prefill.requests"),
        ({"policies": ["orca", "orca"]}, "orca. stands twice"),
        ({"server": 1e308}, "server must be a mapping"),
    ],
)
def test_what_overtaking_cannot_be_shown_with_is_refused(settings, said, tmp_path) -> None:
    with pytest.raises(ps.InputError, match=said):
        reproduce(changed(tmp_path, "lemma-overtaking", **settings))


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("lemma-overtaking", ["the lemma is false for prefill:", "the lemma holds for departures, with another"]),
        ("lemma-join", ["the lemma is false:"]),
    ],
)
def test_a_claim_that_differs_says_what_of_the_lemma_fails(name: str, reasons: list[str]) -> None:
    differing = reproduce(name).differing
    assert len(differing) == len(reasons)
    assert all(claim.why.startswith(reason) for claim, reason in zip(differing, reasons, strict=True))


def test_the_two_requests_that_are_the_whole_example_are_large_and_named() -> None:
    (chart,) = reproduce("lemma-overtaking").charts.values()
    drawn = chart.to_dict()
    left, right = drawn["hconcat"]
    assert len(left["layer"]) == 1
    large = [layer for layer in right["layer"] if layer["mark"].get("size", 0) > 50]
    assert [row["request"] for row in drawn["datasets"][large[0]["data"]["name"]]] == [0, 201]
    named = [drawn["datasets"][layer["data"]["name"]] for layer in right["layer"] if layer["mark"]["type"] == "text"]
    assert [row["label"] for rows in named for row in rows] == ["request 0", "request 201"]
