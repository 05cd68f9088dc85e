"""Outages that cannot be are refused in one line."""

import pytest

import penstock as ps
from penstock.system.outages import Outage, checked_outages

POOLS = {"chat": ps.Pool(ps.Server(ps.Affine(0.01, 1e-4), 512), 3)}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("chat", 0, 5.0, 5.0), "an outage ends at 5 s, but begins at 5 s; let it end later"),
        (("chat", -1, 1.0, 2.0), "replica is -1"),
        (("chat", 0, -1.0, 2.0), "the start of an outage is -1"),
        (("chat", 0, 1.0, float("inf")), "the end of an outage is inf"),
        ((None, 0, 1.0, 2.0), "the pool of an outage is None; give the name of one"),
        ((["chat"], 0, 1.0, 2.0), "the pool of an outage is"),
        (
            ("chat", 0, 1.0, 2.0, "forgotten"),
            r"what becomes of requests \(`requests`\) is 'forgotten'; known: sent",
        ),
    ],
)
def test_an_outage_ends_after_it_began_and_says_what_becomes_of_requests(values, said):
    with pytest.raises(ps.InputError, match=said):
        Outage(*values)


@pytest.mark.parametrize(
    ("outages", "said"),
    [
        ([Outage("chart", 0, 1, 2)], "an outage is of pool 'chart'.*chat"),
        ([Outage("chat", 3, 1, 2)], "replica 3 of pool 'chat', which has 3, counted from 0; give at most 2"),
        ([Outage("chat", 1, 4, 8), Outage("chat", 1, 1, 4)], "chat/1 dies at 4 s, but is away until 4 s"),
        (["chat/0"], "'chat/0' is no outage"),
    ],
)
def test_an_outage_is_of_a_replica_that_there_is_and_that_is_not_away(outages, said):
    with pytest.raises(ps.InputError, match=said):
        checked_outages(outages, POOLS)


@pytest.mark.parametrize("outages", [None, 3, "chat/0", Outage("chat", 0, 1, 2)])
def test_outages_are_a_list(outages):
    with pytest.raises(ps.InputError, match=r"outages are .*; give a list of penstock\.Outage"):
        checked_outages(outages, POOLS)
    network = ps.Network.single(ps.Workload.poisson(1, 10, 10), POOLS["chat"].server, 3)
    for answer in (ps.simulate, ps.check):
        with pytest.raises(ps.InputError, match="outages are"):
            answer(network, jobs=10, outages=outages)


def test_outages_come_in_order_of_their_starts():
    later, earlier = Outage("chat", 0, 4, 5), Outage("chat", 1, 2, 9)
    assert checked_outages([later, earlier], POOLS) == (earlier, later)
