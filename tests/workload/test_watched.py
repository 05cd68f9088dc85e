"""A recording of watched engines is a workload: as many requests in each interval as came, as long as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.scenario.scenario import build
from penstock.workload.watched import read_watched

RATES = (2.0, 6.0, 2.0)
EVERY_S = 50.0


def scrape(engine: str, time_s: float, came: float, inside: float = 4.0) -> dict[str, Any]:
    finished = came - inside
    return {
        "engine": engine, "time_s": time_s, "running": inside - 1, "waiting": 1.0, "finished": finished,
        "first_tokens": came - 1, "prompt_tokens": 300.0 * (came - 1), "finished_output_tokens": 80.0 * finished,
        "prompt_spread": 0.5, "output_spread": 0.0,
    }  # fmt: skip


def write(path: Path, *engines: list[dict[str, Any]]) -> Path:
    rows = [{"time_s": of[-1]["time_s"], "scrapes": of, "notes": []} for of in zip(*engines, strict=True)]
    path.write_text("\n".join(json.dumps(row) for row in ({"penstock_recording": 1}, *rows)) + "\n")
    return path


def watched(engine: str = "a:1") -> list[dict[str, Any]]:
    """Return scrapes of an engine whose rate changes between them."""
    came = 100.0
    scrapes = [scrape(engine, 0.0, came)]
    for index, rate in enumerate(RATES):
        came += rate * EVERY_S
        scrapes.append(scrape(engine, EVERY_S * (index + 1), came))
    return scrapes


def test_each_interval_has_the_requests_that_came_in_it(tmp_path: Path) -> None:
    workload = read_watched(write(tmp_path / "w.jsonl", watched()))
    requests = workload.requests(workload.rows or 0)
    assert workload.rows == 500
    counts, _ = np.histogram(requests.arrival_s, [-1, EVERY_S, 2 * EVERY_S, 3 * EVERY_S])
    assert counts == pytest.approx([100, 300, 100], abs=8)  # the first arrival is at 0, and not the first scrape
    assert requests.prompt_tokens.mean() == pytest.approx(300, rel=5 * 0.5 / 500**0.5)
    assert requests.prompt_tokens.std() == pytest.approx(150, rel=0.3)
    assert set(requests.output_tokens.tolist()) == {80}


@pytest.mark.parametrize("count", [2.0**53, 1e30, 1.7e308])
def test_a_counter_that_cannot_be_right_is_refused_before_arrivals_are_drawn(tmp_path: Path, count: float) -> None:
    """For 2^53 requests 64 PiB were asked for."""
    scrapes = watched()
    scrapes[-1]["finished"] = count
    with pytest.raises(InputError, match=r"requests came to a:1 in 50 s, and more than 20,000,000 in all"):
        read_watched(write(tmp_path / "w.jsonl", scrapes))


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "w.jsonl", watched())
    one, two, other = (read_watched(path, seed=seed).requests(500) for seed in (1, 1, 2))
    assert np.array_equal(one.arrival_s, two.arrival_s)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_engines_come_together_or_one_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "w.jsonl", watched("a:1"), watched("b:1"))
    both = read_watched(path)
    assert both.rows == 1000
    assert "2 engines together" in " ".join(both.notices)
    assert read_watched(path, "b:1").rows == 500
    with pytest.raises(InputError, match="no engine 'c:1'"):
        read_watched(path, "c:1")


def test_where_arrivals_were_counted_that_count_is_taken(tmp_path: Path) -> None:
    scrapes = [{**scrape, "arrived": 1000.0 + 120 * index} for index, scrape in enumerate(watched())]
    assert read_watched(write(tmp_path / "w.jsonl", scrapes)).rows == 360


def test_nothing_is_made_of_the_time_in_which_an_engine_began_anew(tmp_path: Path) -> None:
    scrapes = watched()
    scrapes[2:] = [scrape("a:1", 100.0, 10.0), scrape("a:1", 150.0, 110.0)]
    assert read_watched(write(tmp_path / "w.jsonl", scrapes)).rows == 200


def test_gauges_that_were_read_too_early_or_late_lose_no_request(tmp_path: Path) -> None:
    scrapes = watched()
    scrapes[1]["running"] += 30  # seen twice: here and where they finish
    scrapes[2]["running"] -= 2
    assert read_watched(write(tmp_path / "w.jsonl", scrapes)).rows == 500


def test_requests_that_still_run_are_said(tmp_path: Path) -> None:
    scrapes = watched()
    scrapes[-1]["running"] += 200
    assert "had not finished" in " ".join(read_watched(write(tmp_path / "w.jsonl", scrapes)).notices)
    assert "had not finished" not in " ".join(read_watched(write(tmp_path / "x.jsonl", watched())).notices)


def test_a_recording_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds 0 arrivals"):
        read_watched(write(tmp_path / "w.jsonl", watched()[:1]))
    idle = [{"engine": "a:1", "time_s": float(n), "arrived": 9.0 * n} for n in range(3)]
    with pytest.raises(InputError, match="does not say how long prompts are"):
        read_watched(write(tmp_path / "w.jsonl", idle))


def test_a_scenario_names_a_recording(tmp_path: Path) -> None:
    write(tmp_path / "w.jsonl", watched())
    server = {"batch_time": {"c_ms": 5, "a_ms": 5, "b0": 512}, "token_budget": 512}

    def rate(**workload: Any) -> float:
        return build({"workload": workload, "server": server}, tmp_path).workload.rate

    assert rate(recording="w.jsonl") == pytest.approx(500 / 150, rel=0.02)
    assert rate(recording="w.jsonl", engine="a:1", rate=7.0, arrivals="poisson") == 7.0
    for odd, words in (({"preset": "azure-code", "engine": "a"}, "names an engine of a recording"),
                       ({"recording": "w.jsonl", "preset": "azure-code"}, "give one of trace, recording"),
                       ({"recording": "w.jsonl", "columns": {"a": "b"}}, "describe a trace")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            build({"workload": odd, "server": server}, tmp_path)
