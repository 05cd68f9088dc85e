"""What follows for several engines."""

import dataclasses

import numpy as np
import pytest
from tests.live.engines_simulated import engine, scrapes

from penstock.live.conclusions import conclude
from penstock.live.fitted_server import FittedServer
from penstock.live.given_engine import described_engine
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.state import Engine


def counted(name: str, arrivals: list[int], every: float, begin: float = 0.0) -> Engine:
    """An engine at which so many requests came and left between scrapes."""
    watched, total = Engine(name, FittedServer(None, {})), 0
    for count, came in enumerate([0, *arrivals]):
        total += came
        watched.take(Scrape(name, begin + every * count, running=0, waiting=0, finished=total, first_tokens=total))
    return watched


def test_engines_of_unequal_stretches_have_an_interval_that_holds():
    """One has come a moment ago: what it tells of its rate is little."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        old = counted("old", rng.poisson(100, 100).tolist(), 100.0)
        new = counted("new", rng.poisson(10, 10).tolist(), 1.0, 9_990.0)
        rate = conclude([old.state(), new.state()], Settings(), ahead=False).arrival_rate
        held += rate.low <= 11.0 <= rate.high
    assert held >= 182  # 190 are wanted; fewer than 182 have probability .01


@pytest.mark.parametrize(("given", "tokens"), [({}, 64_000), ({"kv_tokens": 32_000}, 32_000)])
def test_the_kv_memory_that_an_engine_states_wins_over_what_its_gpu_has_room_for(given, tokens):
    server = described_engine(None, None, "codellama-34b-a100-tp1", {"token_budget": 512, **given})
    watched = Engine("a", FittedServer(server, {}))
    for scrape in scrapes(0.5, 100.0):
        watched.take(dataclasses.replace(scrape, kv_tokens=64_000))
    assert watched.state().server.memory.tokens == tokens


def test_the_blocks_of_the_kv_memory_are_those_that_the_engine_states():
    server = described_engine(None, None, "codellama-34b-a100-tp1", {"token_budget": 512})
    watched = Engine("a", FittedServer(server, {}))
    for scrape in scrapes(0.5, 100.0):
        watched.take(dataclasses.replace(scrape, kv_tokens=64_000, kv_block=128))
    memory = watched.state().server.memory
    assert (memory.blocks, memory.block_size) == (500, 128)


@pytest.mark.parametrize("odd", [{"kv_block": 0.5}, {"kv_block": 2.0**40}, {"kv_tokens": 2.0**52}, {"kv_tokens": 3}])
def test_kv_memory_that_cannot_be_is_told_of_and_ends_nothing(odd):
    server = described_engine(None, None, "codellama-34b-a100-tp1", {"token_budget": 512})
    watched = Engine("a", FittedServer(server, {}))
    for scrape in scrapes(0.5, 100.0):
        watched.take(dataclasses.replace(scrape, **{"kv_tokens": 64_000, "kv_block": 16} | odd))
    assert watched.state().server.memory.estimated
    assert "cannot be used" in " ".join(conclude([watched.state()], Settings()).notes)


@pytest.mark.parametrize("other", [{"kv_tokens": 16_000}, {"kv_block": 16}])
def test_kv_memory_that_is_not_what_was_given_is_told_of(other):
    watched = Engine("a", FittedServer(engine(), {}))
    for scrape in scrapes(0.5, 100.0):
        watched.take(dataclasses.replace(scrape, **{"kv_tokens": 32_000, "kv_block": 128} | other))
    (note,) = [text for text in conclude([watched.state()], Settings()).notes if "KV memory" in text]
    assert note.endswith("the load is against those given")


def test_an_engine_that_counts_no_first_tokens_is_told_of():
    watched = Engine("a", FittedServer(None, {}))
    for scrape in scrapes(0.5, 100.0):
        watched.take(dataclasses.replace(scrape, first_tokens=None))
    assert "does not count first tokens" in conclude([watched.state()], Settings()).reason
