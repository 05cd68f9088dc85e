"""The command ``reproduce``: one item, a changed scenario, the list; words fit the terminal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Said

from penstock.reproducing.catalogue import ITEMS, item, reproduce
from penstock.reproducing.write import write, write_index


def test_alone_it_lists_what_there_is(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("reproduce")
    assert status == 0
    assert all(each.name in out for each in ITEMS)
    listed = json.loads(penstock("reproduce", "--json")[1])["items"]
    assert [each["name"] for each in listed] == [each.name for each in ITEMS]


def test_an_item_is_printed_and_written(penstock: Callable[..., Said], tmp_path: Path) -> None:
    status, out, err = penstock("reproduce", "fig-hull", "--out", tmp_path / "made")
    assert status == 0
    assert "Published or known" in out
    assert "vertex C" in out
    assert max(map(len, out.splitlines())) <= 80
    assert str(tmp_path / "made") in err
    again = (tmp_path / "made" / "fig-hull.yaml").read_text().replace("max_batch_size: 100", "max_batch_size: 128")
    (tmp_path / "mine.yaml").write_text(again)
    status, out, _ = penstock("reproduce", tmp_path / "mine.yaml", "--out", tmp_path / "mine", "--json")
    claims = {claim["what"]: claim["verdict"] for claim in json.loads(out)["items"][0]["claims"]}
    assert set(claims.values()) == {"changed"}
    assert not (tmp_path / "mine" / "fig-hull.yaml").exists(), "its paths begin where it lies"


@pytest.mark.parametrize(
    ("what", "wrong"),
    [("fig-hulk", "did you mean"), ("none.yaml", "`penstock reproduce NAME` writes that of an item")],
)
def test_what_is_not_there_is_refused_before_anything_is_written(
    penstock: Callable[..., Said], tmp_path: Path, what: str, wrong: str
) -> None:
    status, out, err = penstock("reproduce", what, "--out", tmp_path / "made")
    assert (status, out) == (2, "")
    assert wrong in err
    assert not (tmp_path / "made").exists()


def test_the_index_of_an_earlier_run_is_said_to_be_old_only_if_it_is(
    penstock: Callable[..., Said], tmp_path: Path
) -> None:
    found = reproduce("fig-hull")
    write(found, tmp_path)
    index = write_index([found], tmp_path)
    assert "still shows" not in penstock("reproduce", "fig-hull", "--out", tmp_path)[2]
    (tmp_path / "mine.yaml").write_text(item("fig-hull").text.replace("max_batch_size: 100", "max_batch_size: 128"))
    before = index.read_text()
    status, _, err = penstock("reproduce", tmp_path / "mine.yaml", "--out", tmp_path)
    assert status == 0
    (said,) = [line for line in err.splitlines() if "still shows" in line]
    assert f"`penstock reproduce all --out {tmp_path}` writes it anew" in said
    assert index.read_text() == before
    assert "still shows" not in penstock("reproduce", tmp_path / "mine.yaml", "--out", tmp_path / "other")[2]


def test_a_scenario_that_was_left_as_it_is_is_said_not_to_be_that_of_the_page(
    penstock: Callable[..., Said], tmp_path: Path
) -> None:
    assert "left as" not in penstock("reproduce", "fig-hull", "--out", tmp_path)[2]
    mine = tmp_path / "fig-hull.yaml"
    mine.write_text(mine.read_text().replace("max_batch_size: 100", "max_batch_size: 128"))
    status, _, err = penstock("reproduce", "fig-hull", "--out", tmp_path)
    assert status == 0
    (said,) = [line for line in err.splitlines() if "left as it is" in line]
    assert f"`penstock reproduce {mine}` measures it" in said
    assert "left as" not in penstock("reproduce", mine, "--out", tmp_path)[2]


@pytest.mark.parametrize(
    ("what", "in_the_way"),
    [("all", "index.html"), ("all", "lemma-join.csv"), ("fig-hull", "fig-hull.html"), ("fig-hull", "fig-hull.yaml")],
)
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_every_name_is_checked_before_anything_is_measured(
    penstock: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    what: str,
    in_the_way: str,
    json_too: tuple[str, ...],
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("penstock.reproducing.catalogue.reproduce", measured)
    (tmp_path / in_the_way).mkdir()
    status, out, err = penstock("reproduce", what, "--out", tmp_path, *json_too)
    assert (status, out) == (2, "")
    assert str(tmp_path / in_the_way) in " ".join(err.split())
    assert "give another folder to --out" in " ".join(err.split())
