"""Every item has its scenario and its function; what is asked for and is not there is refused in one line."""

import importlib

import polars as pl
import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.catalogue import ITEMS, _changed, item, reproduce
from penstock.reproducing.item import Claim, Item
from penstock.reproducing.view import total
from penstock.reproducing.write import write, write_index

HULL = item("fig-hull").text


@pytest.mark.parametrize("each", ITEMS, ids=lambda each: each.name)
def test_an_item_has_a_scenario_that_names_it_and_a_function(each) -> None:
    document = yaml.safe_load(each.text)
    assert document["reproduce"]["item"] == each.name
    assert each.text.startswith("# "), "the first line says what it is and what may be changed"
    module, function = each.function.split(".")
    assert callable(getattr(importlib.import_module(f"penstock.reproducing.{module}"), function))


def test_a_claim_that_differs_has_a_reason() -> None:
    with pytest.raises(InputError, match="differs without a reason"):
        Claim("rho", "1", "2", same=False)


def test_the_vertices_of_the_paper_are_those_of_the_region_where_its_hypotheses_hold() -> None:
    found = reproduce("fig-hull")
    by_what = {claim.what: claim for claim in found.claims}
    assert by_what["vertex C"].same
    assert by_what["vertex D"].same
    assert "2,432" in by_what["D at k_max 200, above b0"].published
    assert "2,738" in by_what["D at k_max 200, above b0"].measured
    assert not by_what["D at k_max 200, above b0"].same
    assert found.differing
    assert all(claim.why.startswith("no error of the paper") for claim in found.differing)


def test_a_changed_scenario_changes_the_answer(tmp_path) -> None:
    file = tmp_path / "hull.yaml"
    file.write_text(HULL.replace("max_batch_size: 100", "max_batch_size: 128"))
    found = reproduce(file)
    claims = {claim.what: claim for claim in found.claims}
    assert claims["C is a vertex of the hull"].measured == "no"
    assert found.changed == ("server.max_batch_size",)
    assert found.verdict == "changed"
    assert {claim.verdict for claim in found.claims} == {"changed"}, "what is published belongs to other inputs"
    assert "server.max_batch_size" in found.assumed[0]
    assert "nothing is judged" in found.assumed[0]
    assert "what a theorem gives is computed for yours" in found.assumed[0]
    write(found, tmp_path)
    page = (tmp_path / "fig-hull.html").read_text()
    assert "a scenario of your own: nothing is judged" in page
    assert "compared with nothing" not in page


@pytest.mark.parametrize("each", ITEMS, ids=lambda each: each.name)
def test_more_of_a_sample_changes_no_question_and_less_does(each: Item) -> None:
    own = yaml.safe_load(each.text)
    for path in each.samples:
        section, key = path.split(".")
        for count, changed in ((10 * own[section][key], []), (own[section][key] - 1, [path])):
            given = own | {section: own[section] | {key: count}}
            assert _changed(own, given, each.samples) == changed


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("table-latency", "reproduce.requests"),  # FasterTransformer waits longer in a longer run
        ("table-latency", "reproduce.seeds"),  # a published number among those of the runs is the same: more runs, more
        ("fig-instable-right", "reproduce.requests"),
        ("fig-ablation", "simulate.requests"),  # 128 tokens are at their limit
        ("verdict-errors", "simulate.requests"),  # slopes are wrong more often or less by the length of a run
    ],
)
def test_more_of_what_moves_the_answer_is_a_changed_scenario(name: str, path: str) -> None:
    own, (section, key) = yaml.safe_load(item(name).text), path.split(".")
    given = own | {section: own[section] | {key: 2 * own[section][key]}}
    assert _changed(own, given, item(name).samples) == [path]


def test_a_scenario_that_its_reader_changed_is_not_written_over(tmp_path) -> None:
    found = reproduce("fig-hull")
    write(found, tmp_path)
    (tmp_path / "fig-hull.yaml").write_text("mine")
    write(found, tmp_path)
    assert (tmp_path / "fig-hull.yaml").read_text() == "mine"


@pytest.mark.parametrize("kind", ["csv", "html", "yaml", "svg"])
def test_nothing_is_written_where_one_file_cannot_be(tmp_path, kind: str) -> None:
    (tmp_path / f"fig-hull.{kind}").mkdir()
    with pytest.raises(InputError, match="--out"):
        write(reproduce("fig-hull"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_item_is_written_as_page_figures_table_and_scenario(tmp_path) -> None:
    found = reproduce("fig-hull")
    names = {path.name for path in write(found, tmp_path / "out")}
    assert names == {f"fig-hull.{kind}" for kind in ("html", "svg", "png", "csv", "yaml")}
    assert pl.read_csv(tmp_path / "out" / "fig-hull.csv").height == found.rows.height
    page = (tmp_path / "out" / "fig-hull.html").read_text()
    assert all(claim.verdict in page for claim in found.claims)
    assert (tmp_path / "out" / "fig-hull.yaml").read_text() == HULL


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("reproduce: {item: fig-hul}", "did you mean 'fig-hull'"),
        ("reproduce: {items: fig-hull}", "no section `reproduce` with an `item`"),
        ("reproduce: fig-hull", "no section `reproduce` with an `item`"),
        ("[1, 2]", "no section `reproduce` with an `item`"),
        ("reproduce: {item: [1]}", "there is no item"),
        (HULL.replace("beyond_b0", "beyond"), "is not a key"),
        (HULL.replace("max_batch_size: 100", "max_batch_size: 200"), "max_batch_size"),
        (HULL.replace("token_budget: 1024", "token_budget: 1000"), "multiple"),
        (HULL.replace("beyond_b0: 200", "beyond_b0: 50"), "beyond_b0"),
        (HULL.replace("a_ms: 35.47", "a_ms: 0"), "a_ms"),
        (HULL + "simulat: {requests: 5}\n", "simulat"),
        (HULL.replace("b0: 128}", "b1: 128}"), "is not a key"),
        ("reproduce: {item: fig-rs, load: 1.2}", r"reproduce\.load must be below 1, not 1\.2"),
        ("reproduce: {item: fig-rs, load: 0}", r"reproduce\.load must be above 0, not 0"),
        (
            item("fig-instable-right").text.replace("seeds: [0, 1, 2, 3, 4]", "seeds: [1.0e+40]"),
            r"reproduce\.seeds\.0 must be at most 1e\+09, not 1e\+40",
        ),
        (item("fig-ablation").text.replace("seeds: [0, 1, 2, 3, 4]", "seeds: [1, 1]"), "1 stands twice"),
        (
            item("lemma-overtaking").text.replace("systems: 300, seed: 0", "systems: 300, seed: 1.0e+40"),
            r"departures\.seed must be at most",
        ),
    ],
)
def test_what_cannot_be_reproduced_is_one_line(tmp_path, text: str, wrong: str) -> None:
    file = tmp_path / "changed.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=wrong) as error:
        reproduce(file)
    assert "\n" not in str(error.value)


def test_a_folder_of_data_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="is no folder"):
        reproduce("fig-hull", data="nowhere")


def test_the_index_links_the_page_of_every_item_and_the_total_counts_each(tmp_path) -> None:
    found = reproduce("fig-hull")
    write(found, tmp_path)
    text = write_index([found], tmp_path).read_text()
    assert 'href="fig-hull.html"' in text
    assert found.title in text
    assert total([found]) in text
    assert total([found]).startswith("1 item: 0 same, 1 differ. 6 claims: 4 same, 2 differ, each with its reason")


def test_a_page_has_a_drawing_for_a_phone_and_does_not_repeat_its_title(tmp_path) -> None:
    found = reproduce("fig-hull")
    write(found, tmp_path)
    page = (tmp_path / "fig-hull.html").read_text()
    assert page.count('class="charts desktop"') == page.count('class="charts phone"') == 1
    assert page.count(f">{found.title}</h") == 1
