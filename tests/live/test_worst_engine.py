"""A sum hides no engine that fares worse than the others, and equal engines are one verdict."""

import dataclasses
import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.live.reading import Answer
from penstock.live.settings import Settings
from penstock.live.view import watch_page
from penstock.live.watching import Watch
from tests.live.engines_simulated import engine, scrapes

SHARED = Path(__file__).parents[3] / "shared" / "data"
CASES = SHARED / "user_cases"
Penstock = Callable[..., tuple[int, str, str]]


def watched(*loads: float, seconds: float = 600.0) -> Answer:
    """What is said of engines at these loads."""
    watching = Watch(engine(), Settings())
    for number, load in enumerate(loads):
        for scrape in scrapes(load, seconds, seed=number):
            watching.take(dataclasses.replace(scrape, engine=f"e{number}:1"))
    return watching.answer()


@pytest.mark.parametrize("loads", [(1.4, 0.02, 0.02, 0.02), (0.3, 1.4), (1.2, 0.6)])
def test_one_overloaded_engine_is_the_verdict_on_all(loads: tuple[float, ...]) -> None:
    answer = watched(*loads)
    worst = answer.engines[loads.index(max(loads))]
    together = answer.together
    assert together.verdict == worst.verdict == "unstable"
    assert together.worst == worst.engine
    for name in ("load", "margin", "drift", "until", "drain_s", "binding"):
        assert getattr(together, name) == getattr(worst, name), name
    assert together.margin is not None
    assert together.margin.value < 0
    assert together.replicas is not None
    assert together.replicas > len(loads)
    assert together.notes[0].startswith("requests are not shared evenly")
    assert f"the worst of {len(loads)} engines" in watch_page(answer).verdicts[0].reason


def test_a_stable_engine_that_gets_most_is_the_margin_of_all() -> None:
    answer = watched(0.7, 0.1, 0.1)
    assert answer.together.worst == "e0:1"
    assert answer.together.load == answer.engines[0].load


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_engines_that_share_evenly_are_one(load: float) -> None:
    answer = watched(*[load] * 4)
    assert answer.together.worst is None
    assert answer.together.load is not None
    assert answer.together.load.value == pytest.approx(load, rel=0.1)


def test_among_even_shares_none_is_the_worst_by_chance() -> None:
    """At four standard deviations and many looks: at few requests, where chance is large."""
    for seconds in (20.0, 40.0, 80.0, 160.0, 320.0):
        assert watched(0.8, 0.8, 0.8, seconds=seconds).together.worst is None


def test_four_engines_of_one_page_of_which_one_is_overloaded(penstock: Penstock, tmp_path: Path) -> None:
    pages = SHARED / "real_vllm_cpu" / "metrics"
    if not CASES.exists() or not pages.exists():
        pytest.skip("the recorded pages are not beside this checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "argv", ["c18_dp_pages.py", str(pages)])
        runpy.run_path(str(CASES / "c18_dp_pages.py"))
    for number in (1, 2):
        shutil.copy(pages / f"metrics_overload_{number}.time", tmp_path / f"dq{number}.time")
    saved = [tmp_path / "dq1.txt", tmp_path / "dq2.txt"]
    arguments = ("--server", CASES / "c18_server.yaml", "--ttft", "2s", "--json")
    status, out, _ = penstock("watch", *saved, *arguments)
    together = json.loads(out)["together"]
    assert status == 0
    assert together["worst"].endswith("/0")
    assert together["margin"]["value"] < 0
    assert together["drain_s"]["value"] is None  # never
    (ttft,) = [until for until in together["until"] if until["limit"].startswith("TTFT")]
    assert ttft["seconds"] == {"value": 0.0, "low": 0.0, "high": 0.0}  # it is 9.4 s already
    assert "so near to 1" not in together["reason"]
    assert "is known to" in together["reason"]
    month = 30 * 86_400
    for reading in json.loads(out)["engines"]:
        assert reading["watch_s"] is None or reading["watch_s"] <= month
    _, page, _ = penstock("watch", *saved, *arguments[:-1])
    assert "already" in page
    assert "the worst of 4 engines" in " ".join(page.split("Load")[0].split())
