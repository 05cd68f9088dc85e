"""`penstock watch` asks who it is told to, shows what follows, and says why where nothing does."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.live import rounds
from penstock.live.given_engine import described_engine
from penstock.live.recording import Recorder
from penstock.live.scrape import Scrape
from tests.live.conftest import Server, Told
from tests.live.engines_simulated import HOST_S, engine, scrapes
from tests.live.vllm_page import page

Serve = Callable[..., Server]
Penstock = Callable[..., tuple[int, str, str]]
FAST = ("--every", "150ms")


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """Return two saved pages of one engine, ten seconds apart."""
    paths = [tmp_path / f"page{n}.txt" for n in (1, 2)]
    for index, path in enumerate(paths):
        path.write_bytes(page(requests=100 + 10 * index))
        path.with_suffix(".time").write_text(f"{1.7e9 + 10 * index}\n")
    return paths


@pytest.fixture
def growing(serve: Serve) -> Server:
    counts = iter(range(100, 10_000, 10))
    return serve(lambda _: Told(page(requests=next(counts))))


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Press Ctrl-C after so many rounds."""
    whole = rounds.asked

    def some(*arguments: Any) -> Any:
        for index, taken in enumerate(whole(*arguments)):
            if index == count:
                raise KeyboardInterrupt
            yield taken

    monkeypatch.setattr(rounds, "asked", some)


def test_once_scrapes_twice_and_answers(penstock: Penstock, growing: Server) -> None:
    status, out, err = penstock("watch", growing.name, "--once", *FAST)
    assert (status, err, len(growing.asked)) == (0, "", 2)
    assert out.startswith(f"{growing.name}  watched for 0.")
    assert "UNKNOWN: No batch time was given" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_is_a_line_for_each_round_until_ctrl_c(
    penstock: Penstock, growing: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 3)
    status, out, err = penstock("watch", growing.name, "--json", *FAST)
    assert (status, err) == (0, "")
    assert [line["together"]["scrapes"] for line in lines(out)] == [1, 2, 3]


def test_two_saved_pages_give_one_answer(penstock: Penstock, pages: list[Path]) -> None:
    status, out, _ = penstock("watch", *reversed(pages), "--json")
    assert status == 0
    [answer] = lines(out)
    assert answer["together"]["watched_s"] == 10
    assert answer["engines"][0]["engine"] == "saved pages"


def test_saved_pages_need_times_that_differ(penstock: Penstock, pages: list[Path]) -> None:
    """Copies are written together: their own times would make arrivals of hours those of milliseconds."""
    for time_s, apart in ((1.7e9, "0"), (1.7e9 + 0.25, "0.25")):
        pages[1].with_suffix(".time").write_text(f"{time_s}")
        assert f"two saved pages are {apart} s apart" in penstock("watch", *pages)[2]
    for text in ("noon", "nan", "-5", "1e300", "1.7e12"):
        pages[1].with_suffix(".time").write_text(text)
        assert f"{pages[1].with_suffix('.time')} holds no time" in penstock("watch", *pages)[2]


def test_saved_pages_are_not_exported(penstock: Penstock, pages: list[Path]) -> None:
    assert "before anything is scraped from --export" in penstock("watch", *pages, "--export", "9400")[2]


@pytest.fixture
def engine_file(tmp_path: Path) -> tuple[object, ...]:
    """Return the options that describe the simulated engine."""
    path = tmp_path / "engine.yaml"
    times = engine(HOST_S).batch_time.as_section()
    path.write_text(yaml.dump({"description": "simulated", "source": "simulated", "batch_time": times}))
    return ("--batch-time", path, "--token-budget", 128, "--max-batch-size", 64, "--kv-tokens", 32_000)


def recorded(path: Path, taken: list[Scrape]) -> Path:
    with Recorder(path, 5.0) as recorder:
        for scrape in taken:
            recorder.write(rounds.Round(scrape.time_s, (scrape,)))
    return path


@pytest.mark.parametrize(
    ("load", "seconds", "verdict", "status"),
    [(0.5, 200, "stable", 0), (1.6, 200, "unstable", 1), (0.6, 20, "undecided", 3)],
)
def test_strict_says_by_its_status_what_is_known(
    penstock: Penstock, tmp_path: Path, engine_file: tuple[object, ...], load: float, seconds: float, verdict: str,
    status: int,
) -> None:  # fmt: skip
    asked = (
        "watch",
        "--replay",
        recorded(tmp_path / "w.jsonl", scrapes(load, seconds)),
        "--once",
        "--json",
        *engine_file,
    )
    left, out, _ = penstock(*asked, "--strict", "--queue-limit", 500)
    assert (left, lines(out)[0]["together"]["verdict"]) == (status, verdict)
    if verdict == "stable":
        assert lines(out)[0]["together"]["until"][0]["seconds"]["high"] is None  # infinite
    assert penstock(*asked)[0] == 0


def test_strict_says_where_nothing_is_known(penstock: Penstock, pages: list[Path]) -> None:
    assert penstock("watch", *pages, "--strict")[0] == 3
    assert penstock("watch", *pages)[0] == 0


def test_an_engine_that_hangs_delays_no_other_and_is_named(penstock: Penstock, growing: Server, serve: Serve) -> None:
    never = threading.Event()
    hanging = serve(Told(b"", wait=never))
    began = time.monotonic()
    status, out, _ = penstock("watch", growing.name, hanging.name, "--once", "--json", "--every", "300ms")
    never.set()
    assert status == 0
    assert time.monotonic() - began < 5
    answer = lines(out)[0]
    assert answer["together"]["scrapes"] == 2
    assert [engine["engine"] for engine in answer["engines"]] == [growing.name]  # the figures are of those read
    assert answer["together"]["notes"][1:] == [f"{hanging.name}: has not answered within 0.3 s (2 times)"]


def test_an_engine_that_starts_again_goes_on(penstock: Penstock, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((page(requests=100), None, page(requests=5)))

    def answer(_: str) -> Told:
        body = next(answers)
        return Told(b"starting", 503) if body is None else Told(body)

    stop_after(monkeypatch, 3)
    server = serve(answer)
    _, out, _ = penstock("watch", server.name, "--json", *FAST)
    assert [line["together"]["scrapes"] for line in lines(out)] == [1, 1, 2]
    assert lines(out)[-1]["engines"][0]["notes"] == [
        "answers with status 503",
        "the engine started anew (finished fell): requests in flight then are not counted",
    ]


def test_a_gateway_counts_the_arrivals_of_the_engine_behind_it(
    penstock: Penstock, growing: Server, serve: Serve, tmp_path: Path
) -> None:
    gateway = serve(b"tgi_request_count 77\n")
    record = tmp_path / "w.jsonl"
    penstock("watch", growing.name, "--arrivals", gateway.name, "--once", "--record", record, *FAST)
    rows = lines(record.read_text())[1:]
    assert [[scrape["arrived"] for scrape in row["scrapes"]] for row in rows] == [[77], [77]]
    assert rows[0]["kinds"] == {growing.name: "vLLM"}


def test_several_engines_behind_a_gateway_have_its_arrivals_together() -> None:
    share = rounds._Arrivals().given
    first = share([Scrape("a", 1.0, finished=10), Scrape("b", 1.0, finished=20), Scrape("arrivals", 1.0, arrived=100)])
    second = share([Scrape("a", 2.0, finished=13), Scrape("b", 2.0, finished=21), Scrape("arrivals", 2.0, arrived=108)])
    assert [scrape.engine for scrape in second] == ["a", "b"]
    assert [(after.arrived or 0) - (before.arrived or 0) for before, after in zip(first, second, strict=True)] == [6, 2]
    assert [scrape.arrived for scrape in share([Scrape("a", 3.0), Scrape("b", 3.0)])] == [None, None]


def test_a_recording_replays_to_the_same_answer_and_is_a_workload(
    penstock: Penstock, growing: Server, tmp_path: Path
) -> None:
    record = tmp_path / "w.jsonl"
    _, out, _ = penstock("watch", growing.name, "--once", "--json", "--record", record, *FAST)
    _, again, _ = penstock("watch", "--replay", record, "--once", "--json")
    assert again == out
    _, each, _ = penstock("watch", "--replay", record, "--json")
    assert [line["together"]["scrapes"] for line in lines(each)] == [1, 2]
    server = {"batch_time": {"c_ms": 5, "a_ms": 5, "b0": 512}, "token_budget": 512}
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        yaml.dump({"workload": {"recording": "w.jsonl", "rate": 2.0, "arrivals": "poisson"}, "server": server})
    )
    status, out, _ = penstock("region", scenario, "--json")
    assert status == 0


def test_where_nothing_can_be_read_the_reason_is_the_answer(penstock: Penstock, serve: Serve) -> None:
    server = serve(Told(b"", 404))
    status, out, err = penstock("watch", server.name, "--once", *FAST)
    assert (status, out) == (2, "")
    assert err == (
        f"penstock: no engine could be read, so there is nothing to say ({server.name}: answers with status 404 "
        "(2 times)); check the addresses, and that the engine shows its metrics\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to watch"),
        (["a:1", "a:1"], "a:1 is given twice"),
        (["a:1", "page.txt"], "cannot be watched beside addresses"),
        (["missing.txt"], "there is no file missing.txt"),
        (["a:1", "--every", "soon"], "must be a time from 100ms to 24h"),
        (["a:1", "--ttft", "-1s"], "must be a time"),
        (["a:1", "--alpha", "2"], "--alpha is 2.0"),
        (["a:1", "--target-load", "1"], "queues grow without end"),
        (["a:1", "--queue-limit", "0"], "--queue-limit is 0.0"),
        (["a:1", "--match", "x"], "add --prometheus"),
        (["a:1", "--replay", "w.jsonl"], "URL would not be used"),
        (["--replay", "w.jsonl", "--export", "1"], "--export would not be used"),
        (["a:1", "--once", "--export", "1"], "--once ends before"),
        (["a:1", "--export", "http"], "must be a port such as 9400"),
        (["a:1", "--export", "203.0.113.1:9400"], "cannot listen on 203.0.113.1:9400"),
        (["a:1", "--token-budget", "512"], "but no batch times"),
        (["a:1", "--hardware", "nothing", "--token-budget", "1"], "unknown hardware 'nothing'"),
        (["a:1", "--hardware", "codellama-34b-a100-tp1"], "without --token-budget"),
        (["a:1", "--hardware", "x", "--batch-time", "y"], "give one of them"),
        (["a:1", "--server", "missing.yaml"], "there is no scenario file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(penstock: Penstock, arguments: list[str], words: str) -> None:
    status, out, err = penstock("watch", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_an_engine_is_described_by_a_scenario_a_file_or_a_name(tmp_path: Path) -> None:
    section = {"batch_time": {"c_ms": 5, "a_ms": 5, "b0": 512}, "max_num_batched_tokens": 2048, "policy": "vllm"}
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.dump({"server": section}))
    times = tmp_path / "times.yaml"
    times.write_text(yaml.dump({"description": "d", "source": "s", "batch_time": section["batch_time"]}))
    none: dict[str, int | None] = {"token_budget": None, "max_batch_size": None, "kv_tokens": None}
    limits = {"token_budget": 1024, "max_batch_size": 64, "kv_tokens": 32_000}

    described = described_engine(scenario, None, None, none)
    assert described is not None
    assert described.token_budget == 2048
    for choice in ((scenario, None, None), (times, None, None), (None, times, None),
                   (None, None, "codellama-34b-a100-tp1")):  # fmt: skip
        described = described_engine(*choice, limits)
        assert described is not None
        assert (described.token_budget, described.max_batch_size) == (1024, 64)
        assert described.memory is not None
        assert described.memory.tokens == 32_000
    assert described_engine(None, None, None, none) is None


def test_the_page_names_every_engine_and_what_happened_to_it(
    penstock: Penstock, growing: Server, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = serve(Told(b"", 500))
    _, out, _ = penstock("watch", growing.name, gone.name, "--once", *FAST)
    assert f"Note  {gone.name}: answers with status 500 (2 times)" in out
    monkeypatch.setenv("COLUMNS", "120")
    _, wide, _ = penstock("watch", growing.name, serve(page()).name, "--once", *FAST)
    assert wide.startswith("2 engines")
    assert "Backlog" in wide.split("Engines")[-1]


def test_what_happens_to_an_address_is_kept_of_each_of_its_engines(
    penstock: Penstock, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((Told(page(("0", "1"))), Told(b"", 503)))
    stop_after(monkeypatch, 2)
    _, out, _ = penstock("watch", serve(lambda _: next(answers)).name, "--json", *FAST)
    assert [engine["notes"] for engine in lines(out)[-1]["engines"]] == [["answers with status 503"]] * 2
