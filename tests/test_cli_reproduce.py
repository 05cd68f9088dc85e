"""The command ``reproduce``: one item, a changed scenario, the list; words fit the terminal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Said

from penstock.reproducing.catalogue import ITEMS


def test_alone_it_lists_what_there_is(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("reproduce")
    assert status == 0
    assert all(each.name in out for each in ITEMS)
    listed = json.loads(penstock("reproduce", "--json")[1])["items"]
    assert [each["name"] for each in listed] == [each.name for each in ITEMS]


def test_an_item_is_printed_and_written(penstock: Callable[..., Said], tmp_path: Path) -> None:
    status, out, err = penstock("reproduce", "fig-hull", "--out", tmp_path / "made")
    assert status == 0
    assert "published or known" in out
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
