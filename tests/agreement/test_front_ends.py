"""Front ends, which take requests in before a pool's router: the kernel does what the reference does."""

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_systems import draw_system, with_front_ends, with_outages
from test_network import assert_agree, kernel

from penstock.system.engines import ENGINES


def drawn(seed):
    """Draw a network, of engines every other time, some with outages, with front ends."""
    random = Random(seed)
    engines = {"engines": random.sample(sorted(ENGINES), 1)} if seed % 2 else {}
    system = draw_system(random, **engines)
    if seed % 5 == 0 and not any(system.columns["sender"]):
        system = with_outages(random, system)
    return with_front_ends(random, system)


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_kernel_and_reference_agree_on_every_event_behind_front_ends(seed):
    assert_agree(drawn(seed))


def test_kernel_and_reference_agree_on_seeded_networks_behind_front_ends():
    systems = [drawn(seed) for seed in range(25)]
    later = 0
    for system in systems:
        assert_agree(system)
        plain = dataclasses.replace(system, fronts=(), until=None)
        ends = [
            kernel(each, compress=True).rows.first_token for each in (plain, dataclasses.replace(system, until=None))
        ]
        later += (ends[1] > ends[0]).sum()
    assert later > 100  # requests come later where there is a front end


@pytest.mark.slow
def test_kernel_and_reference_agree_on_five_thousand_networks_behind_front_ends():
    for seed in range(100, 5100):
        assert_agree(drawn(seed))
