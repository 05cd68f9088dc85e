"""Requests that are refused, clients that leave and come again: the kernel does what the reference does."""

from random import Random

import pytest
from engine_systems import OF_THE_PAPER
from network_systems import draw_system, with_clients, with_front_ends
from test_network import assert_agree

from penstock.system.engines import ENGINES

FAMILY = (*ENGINES, *OF_THE_PAPER)


def drawn(seed, engines):
    """Return a network of engines whose requests may be refused and whose clients may leave."""
    random = Random(f"clients {seed}")
    system = draw_system(random, engines=engines, engines_alone=True, dying=True)
    if random.random() < 0.2:
        system = with_front_ends(random, system)
    return with_clients(random, system)


@pytest.mark.parametrize("systems", [40, pytest.param(1_500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", FAMILY)
def test_kernel_and_reference_agree_on_who_is_served_refused_and_left(engine, systems):
    """Limits by requests, tokens and time, patience, retries, a step ahead, tight memory, prefix caches, priorities."""
    for seed in range(systems):
        assert_agree(drawn(f"{engine} {seed}", (engine,)))
