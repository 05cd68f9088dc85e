"""Kernel and reference agree under each member of each family, forced onto systems that are drawn.

What is only drawn by chance may be wrong unnoticed. Who is in its family joins by itself.
"""

import contextlib
import dataclasses
import typing
from collections import Counter
from random import Random

import numpy as np
import pytest
from engine_systems import CACHING, System, draw, with_shared_prefixes
from network_systems import EngineSpec, draw_system
from test_engine_schedulers import assert_same
from test_network import assert_agree

from penstock.errors import InputError
from penstock.fields import parts_of
from penstock.kernel import signatures
from penstock.system.engine import Setting
from penstock.system.engines import ENGINES
from penstock.system.memory import Admission
from penstock.system.orders import ORDERS
from penstock.system.policies import POLICIES
from penstock.system.routing import ROUTERS, Router
from tests.reference import network as reference
from tests.reference import routers as reference_routers

RECORDS = ("requests", "batches", "allocations")


def so_many(usual, slow):
    """Systems for each member."""
    return pytest.mark.parametrize("systems", [usual, pytest.param(slow, marks=pytest.mark.slow)])


# ---------------------------------------------------------------- routers

OF_ENGINES = [(engine,) for engine in ENGINES]
SERVERS = [*OF_ENGINES, tuple(POLICIES), *OF_ENGINES, ()]
"""What the pools of a network are: of one engine, of policies with KV memory, or servers of the paper without."""
BUSY = {"jobs": (10, 25), "gaps": (3, 10, 30)}
"""So many that requests wait nearly everywhere, and come while batches are in progress."""


def routed(router, seed):
    """Draw a network of which each pool has two replicas at least, and the router chooses among them each time."""
    random, engines = Random(f"{router} {seed}"), SERVERS[seed % len(SERVERS)]
    dying = random.randrange(4) == 0
    system = draw_system(random, **BUSY, engines=engines, engines_alone=True, dying=dying)
    chosen = {"router": router, "affinity": False}
    pools = [dataclasses.replace(spec, **chosen, replicas=spec.replicas + 1) for spec in system.pools]
    return dataclasses.replace(system, pools=tuple(pools))


def is_ahead(spec):
    """Whether replicas compose batches while the one before is computed."""
    return isinstance(spec, EngineSpec) and spec.server.policy.batching.ahead


@pytest.mark.parametrize("router", [*ROUTERS, "measure"])
@so_many(20, 500)
def test_kernel_and_reference_agree_under_every_router(router, systems):
    """Before engines and policies, with memory and without, a step ahead, several kinds, reports that come late, and
    outages.
    """
    drawn = [routed(router, seed) for seed in range(systems)]
    specs = [spec for system in drawn for spec in system.pools]
    shares = Counter(
        {
            "a step ahead": sum(map(is_ahead, specs)),
            "late reports": sum(spec.report > 0 for spec in specs),
            "several kinds": sum(len(spec.others) > 0 for spec in specs),
            "outages": sum(len(system.outages) > 0 for system in drawn),
        }
    )
    assert min(shares.values()) >= systems // 20, f"these systems are too tame: {shares}"
    for system in drawn:
        assert_agree(system)


def figures(prefix):
    """Return the columns of what a router is told, by the names that the reference has for them."""
    named = {
        name.removeprefix(prefix).lower(): column
        for name, column in vars(signatures).items()
        if name.startswith(prefix)
    }
    assert named.pop("fields") == len(named)
    return named


SEEN, ASKED = figures("SEEN_"), figures("ASKED_")


def least_of(column):
    """Return a router by one figure of the replicas alone, of equal ones the first."""

    def least(replicas, request, params):
        best = 0
        for place in range(1, replicas.shape[0]):
            if replicas[place, column] < replicas[best, column]:
                best = place
        return best

    return least


def scattered_by(column):
    """Return a router by one figure of the request alone."""

    def scattered(replicas, request, params):
        return int(1021 * request[column]) % replicas.shape[0]

    return scattered


def asked_as(name, asked):
    """Return a figure of a request as routers are told it."""
    value = getattr(asked, name)
    if name == "coin":
        return value / 2**32
    return -1 if value is None else value  # at home nowhere yet


def witness_of(name):
    """Return what the reference does in the place of such a router."""
    if name in SEEN:
        return lambda replicas, asked, params: min(range(len(replicas)), key=lambda p: getattr(replicas[p], name))
    return lambda replicas, asked, params: int(1021 * asked_as(name, asked)) % len(replicas)


@pytest.mark.parametrize("figure", [*SEEN, *ASKED])
@so_many(16, 400)
def test_kernel_and_reference_agree_on_every_figure_that_a_router_is_told(figure, systems, monkeypatch):
    """By routers that look at nothing else, so that whatever differs changes where requests go."""
    function = least_of(SEEN[figure]) if figure in SEEN else scattered_by(ASKED[figure])
    name = f"by-{figure}"
    monkeypatch.setitem(ROUTERS, name, Router.of(function, name))
    monkeypatch.setitem(reference_routers.ROUTERS, name, witness_of(figure))
    monkeypatch.setattr(reference, "ROUTERS", (*reference.ROUTERS, name))
    for seed in range(systems):
        assert_agree(routed(name, seed))


# ---------------------------------------------------------------- orders between stages


def mixed(order, seed):
    """Draw a network in which some replicas serve requests of several stages."""
    random = Random(f"{order} {seed}")
    while True:
        system = draw_system(random, orders=(order,), **BUSY)
        if max(Counter(system.stage_pool).values()) > 1:
            return system


@pytest.mark.parametrize("order", ORDERS)
@so_many(20, 500)
def test_kernel_and_reference_agree_under_every_order_between_stages(order, systems):
    for seed in range(systems):
        assert_agree(mixed(order, seed))


# ---------------------------------------------------------------- policies


@pytest.mark.parametrize("policy", POLICIES)
@so_many(10, 250)
def test_kernel_and_reference_agree_on_networks_under_every_policy(policy, systems):
    """With KV memory and without."""
    for seed in range(systems):
        assert_agree(draw_system(Random(f"{policy} {seed}"), policies=(policy,), **BUSY))
        assert_agree(draw_system(Random(f"{policy} {seed}"), **BUSY, engines=(policy,), engines_alone=True))


def with_memory(rng, policy, admission):
    """Draw a server of a policy with KV memory, and so a rule of what must be free for an admission."""
    while True:
        system = draw(rng, policy)
        if system.blocks is not None:
            return dataclasses.replace(system, admission=admission)


@pytest.mark.parametrize("admission", typing.get_args(Admission))
@pytest.mark.parametrize("policy", POLICIES)
@so_many(8, 400)
def test_kernel_and_reference_agree_under_every_policy_and_rule_of_admission(policy, admission, systems):
    rng = np.random.default_rng([*policy.encode(), *admission.encode()])
    for i in range(systems):
        assert_same(with_memory(rng, policy, admission), RECORDS[i % 3], compress=bool(i % 4))


# ---------------------------------------------------------------- engines


def words_of(kind):
    """Return the values of a setting that has a few: words, or yes and no."""
    plain = parts_of(kind)[0]
    if typing.get_origin(plain) is typing.Literal:
        return typing.get_args(plain)
    return (False, True) if plain is bool else ()


CHOICES = [
    (name, field, word)
    for name, engine in ENGINES.items()
    for field in dataclasses.fields(engine)
    for word in words_of(field.type)
]


def needed_by(field):
    """Return the setting without which another one says nothing, or ''."""
    return next((part.needs for part in parts_of(field.type) if isinstance(part, Setting)), "")


def with_word(rng, engine, field, word, caches):
    """Draw a server of an engine with that value of a setting, and if so with a cache of prefixes where it may have
    one.
    """
    for _ in range(10_000):
        caches |= rng.random() < 0.01  # what is refused without
        with contextlib.suppress(InputError):  # of what contradicts the other settings
            system = draw(rng, engine, told={field.name: word}, requests=(8, 30))  # many wait
            if system.blocks and engine in CACHING and caches:
                system = with_shared_prefixes(rng, system)
            settings = dict(system.settings) | {field.name: word}
            system = dataclasses.replace(system, settings=tuple(settings.items()))
            needed = needed_by(field)
            if system.server and (not needed or settings.get(needed)):
                return system
    return pytest.fail(f"no server has {field.name}: {word}; the settings that are drawn contradict it")


@pytest.mark.parametrize(
    ("engine", "field", "word"), CHOICES, ids=[f"{name}-{field.name}-{word}" for name, field, word in CHOICES]
)
@so_many(20, 300)
def test_kernel_and_reference_agree_under_every_word_of_a_setting(engine, field, word, systems):
    """Orders of SGLang's queue, rules of memory, who makes room, who drafts; with a cache of prefixes and without."""
    rng = np.random.default_rng([*engine.encode(), *field.name.encode(), *str(word).encode()])
    for i in range(systems):
        assert_same(with_word(rng, engine, field, word, caches=i % 3 > 0), RECORDS[i % 3], compress=bool(i % 4))


def test_a_request_admitted_by_preemption_finds_what_the_cache_has():
    """Of SGLang by priority, at tick 19: the first four tokens of request 12 are those of request 2, which has left.

    Pages of those admitted before it in the same batch are free until the batch is formed, so the cache gives up fewer.
    """
    settings = {
        "overlap_schedule": False, "mixed_chunk": True, "schedule_policy": "lof", "schedule_conservativeness": 3.0,
        "priority_scheduling_preemption_threshold": 0,
    }  # fmt: skip
    ids = [
        (200, 201), (0, 1, 2), (200, 201, 202, 203), (100, 101, 102, 103), (100, 101, 102, 103), (), (0,),
        (0, 1, 2, 3, 80000), (100, 101, 102), (0, 1), (), (), (200, 201, 202), (200,), (),
    ]  # fmt: skip
    system = System(
        policy="sglang",
        arrival=(0, 3, 5, 6, 6, 6, 7, 8, 11, 11, 13, 16, 18, 20, 22),
        prompt=(3, 5, 8, 9, 6, 4, 3, 8, 7, 2, 9, 7, 5, 1, 4),
        output=(2, 1, 2, 1, 1, 2, 2, 1, 2, 2, 1, 2, 1, 2, 1),
        priority=(2, 1, 0, 1, 2, 1, 1, 2, 0, 2, 1, 0, 1, 0, 0),
        ticks=(4, 8, 4, 3, 1, 5, 8, 9, 6, 3, 6, 3, 10, 8, 4, 6, 2, 3, 9, 1, 1, 9, 6, 10, 4, 4),
        budget=26,
        max_batch_size=4,
        blocks=28,
        block_size=2,
        watermark=None,
        order="priority",
        settings=tuple(settings.items()),
        until=105,
        hash_ids=tuple(ids),
    )
    assert_same(system)
