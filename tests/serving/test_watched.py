"""The live tab shows what `penstock watch` says, and says why where there is nothing yet."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.serving.watched import Watched
from tests.live.conftest import Server, Told
from tests.live.vllm_page import page

SCENARIO = Path(__file__).parents[2] / "examples" / "azure_code.yaml"


@pytest.fixture
def engine() -> Iterator[Server]:
    counts = iter(range(100, 100_000, 10))
    server = Server(lambda _: Told(page(requests=next(counts))))
    yield server
    server.close()


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_tab_has_the_page_of_watch_and_the_figures_before(engine: Server) -> None:
    watched = Watched([engine.name], SCENARIO, 0.2)
    until(lambda: len(watched.last.get("before", ())) >= 3)
    last = watched.last
    assert [*last] == ["part", "asked_s", "answer", "page", "before"]
    assert last["page"]["title"] == engine.name
    assert last["answer"]["together"]["running"] == 6
    json.dumps(last, allow_nan=False)


def test_without_an_engine_it_says_so() -> None:
    watched = Watched(["127.0.0.1:9"], None, 0.2)
    until(lambda: watched.rounds > 0)
    assert watched.last["part"] == "waiting"
    assert watched.last["notes"][0].startswith("127.0.0.1:9: ")


def test_an_engine_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="given twice"):
        Watched(["a:1", "a:1"], None, 5.0)
