"""What follows for several engines."""

import dataclasses

import numpy as np
import pytest

from penstock.live.conclusions import conclude
from penstock.live.fitted_server import FittedServer
from penstock.live.given_engine import described_engine
from penstock.live.horizon import Now, horizon
from penstock.live.reading import Z95, Estimate
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.state import Engine
from tests.live.engines_simulated import HOST_S, engine, scrapes


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
    for _ in range(80):
        old = counted("old", rng.poisson(100, 100).tolist(), 100.0)
        new = counted("new", rng.poisson(10, 10).tolist(), 1.0, 9_990.0)
        rate = conclude([old.state(), new.state()], Settings(), ahead=False).arrival_rate
        held += rate.low <= 11.0 <= rate.high
    assert held >= 71  # 76 are wanted; fewer than 71 have probability .01


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


def now(waiting: float, running: float) -> Now:
    """An engine with so many requests, at which four a second come."""
    rate, prompt, output = (Estimate(value, value * 0.9, value * 1.1) for value in (4.0, 100.0, 42.0))
    return Now(waiting, running, rate, prompt, output, 2.0, 0.8)


def test_a_limit_that_is_reached_is_reached_already():
    """Who comes to a queue of 80 waits longer than two seconds: not only in half a second."""
    ahead = horizon(engine(), now(80, 38))
    for when in (ahead.until_ttft(2.0), ahead.until_queue(50)):
        assert (when.low, when.value, when.high) == (0, 0, 0)
    assert horizon(engine(), now(0, 5)).until_ttft(2.0).low > 0
    full = horizon(engine(blocks=40), now(80, 60))
    assert full.until_kv_full().value == 0


def test_how_long_to_watch_is_never_longer_than_anybody_waits():
    """Where nothing comes it was 578,703 days and more."""
    idle = conclude([counted("idle", [0] * 9, 5.0).state()], Settings())
    assert idle.watch_s is None
    watched = Engine("a", FittedServer(engine(), {}))
    for scrape in scrapes(0.02, 100.0):
        watched.take(scrape)
    reading = conclude([watched.state()], Settings())
    assert reading.watch_s is None or reading.watch_s <= 30 * 86_400


@pytest.mark.parametrize(("load", "error"), [(1.2, 0.13), (0.7, 0.3), (2.0, 0.5)])
def test_a_load_far_from_1_is_not_said_to_be_near_it(load, error):
    """What is carried is not known well enough, and that is said."""
    watched = Engine("a", FittedServer(engine(), {}))
    for scrape in scrapes(load, 60.0):
        watched.take(scrape)
    state = watched.state()
    middle = state.pace.batch_s.value
    reach = Z95 * error * middle
    host = Estimate(HOST_S, HOST_S - reach, HOST_S + reach)
    state = dataclasses.replace(state, pace=dataclasses.replace(state.pace, host_s=host))
    reading = conclude([state], Settings())
    assert reading.verdict == "undecided"
    assert reading.watch_s is None
    assert "near to 1" not in reading.reason
    assert f"is known to {Z95 * error:.0%} only" in reading.reason


def test_a_load_at_1_is_said_to_be_near_it(monkeypatch):
    watched = Engine("a", FittedServer(engine(), {}))
    for scrape in scrapes(0.97, 120.0):
        watched.take(scrape)
    monkeypatch.setattr("penstock.live.conclusions.requests_to_decide", lambda *_: 1e12)
    assert "so near to 1 that 30 days would not tell" in conclude([watched.state()], Settings()).reason
