"""Random small networks and jobs, for the kernel and for the reference alike.

Times are whole seconds at ``tick_s=1``, means are quarters and weights whole numbers, so the two must agree exactly.
What draws is a `random.Random`: a seeded one, or one of hypothesis, which shrinks what it draws.
"""

import dataclasses
import functools
import math
from itertools import pairwise
from types import SimpleNamespace

import engine_systems
import numpy as np
from engine_systems import Ticks

from penstock.kernel.signatures import DECODE_FIRST
from penstock.system.engines import ENGINES
from penstock.system.front_end import FrontEnd
from penstock.system.network import Network, with_queue
from penstock.system.orders import Order
from penstock.system.outages import Outage
from penstock.system.pool import Pool
from penstock.system.queue_limit import QueueLimit
from penstock.system.routing import ROUTERS as ROUTERS_BY_NAME
from penstock.system.routing import Router
from penstock.system.server import Server
from penstock.workload.jobs import Jobs
from penstock.workload.prefixes import Prefixes
from tests.own_policies import own_policy
from tests.reference import network as reference
from tests.reference import orders as reference_orders
from tests.reference import running, seam_policies, simulation

SCOPES, CONVENTIONS = ("running", "batch"), ("engine", "paper")
ROUTERS = reference.ROUTERS
ORDER_NAMES = ("fcfs", *reference_orders.ORDERS)
POLICIES = tuple(seam_policies.POLICIES)
WEIGHT = 1024  # the router "work" weighs mean tokens times this

# ---------------------------------------------------------------- odd policies and orders of a user's own


@own_policy
def scattered(queue, limits, params):
    """Batches that jump about with the queue: few decodes, then many, prefill first, then last."""
    mark = (queue.prompts * 7919 + queue.prompt_tokens * 104729 + queue.decoding * 1299709) % 1009
    prefill, decode = (mark // 7) % (queue.prompt_tokens + 1), mark % (queue.decoding + 1)
    if prefill + decode == 0:
        prefill, decode = queue.prompt_tokens, queue.decoding
    return prefill, decode, mark % 2


@own_policy
def greedy(queue, limits, params):
    """Ask for far more than there is."""
    return 10 * limits.token_budget, 10 * limits.token_budget, queue.decoding % 2


@own_policy
def limited(queue, limits, params):
    """Decodes that jump about with what is left of the batch."""
    return queue.prompt_tokens, max(1, (limits.token_budget + limits.batch_size) % (queue.decoding + 1)), DECODE_FIRST


def weigh_whirled(lines, params, weights):
    """Weights and modes that jump about with all that an order can see, ties included."""
    total = 0
    for place in range(lines.shape[0]):
        seen = lines[place]
        mark = int(seen[0] * 7919 + seen[1] * 10007 + seen[2] * 1299709 + seen[5] * 124 + seen[6] * 92 + seen[7] * 17)
        weights[place, 0] = mark % 5
        weights[place, 1] = (mark // 5) % 4
        total += mark
    return total % 3


whirled = Order("whirled", weigh_whirled)  # compiled when it is first used
OWN_POLICIES = {each.name: each for each in (scattered, greedy, limited)}


def whirled_lines(lines, params):
    """Return the mode and the weights of `whirled`, as the reference asks for them."""
    mode, weights = whirled([tuple(line) for line in lines])
    return mode, [tuple(row) for row in weights.tolist()]


# ---------------------------------------------------------------- systems


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """A pool; ``ticks`` has a batch time for every load up to the token budget."""

    ticks: tuple[int, ...]
    max_batch_size: int | None = None
    policy: str = "sarathi"
    scope: str = "running"
    convention: str = "engine"
    replicas: int = 1
    router: str = "jsq"
    measure: tuple[int, int] = (1, 1)
    affinity: bool = False
    order: str = "fcfs"
    priority: tuple[int, ...] = ()  # its stages
    report: int = 0
    others: tuple["PoolSpec", ...] = ()  # further kinds of servers

    @property
    def server(self):
        """One replica, for the kernel."""
        return Server(
            Ticks(self.ticks), len(self.ticks), self.max_batch_size, scope=self.scope, convention=self.convention,
            policy=OWN_POLICIES.get(self.policy, self.policy),
        )  # fmt: skip

    def pool(self, names):
        """Return the kernel's pool."""
        order = whirled if self.order == "whirled" else self.order
        if order == "priority":
            order = Order.priority([names[stage] for stage in self.priority])
        return Pool(kinds(self), 1, kernel_router(self), order, self.affinity, 1e3 * self.report)

    def reference_pool(self, weights):
        """Return the reference's; it has the policies of the paper itself."""
        own = seam_policies.POLICIES.get(self.policy)
        params = () if own else self.server.params
        return reference.PaperPool(
            lambda tokens: self.ticks[tokens - 1],
            len(self.ticks),
            self.max_batch_size,
            self.scope,
            self.convention,
            self.replicas,
            self.router,
            weights,
            self.affinity,
            policy=own or self.server.policy.function,
            policy_params=np.array(params, float),
            order=whirled_lines if self.order == "whirled" else self.order,
            priority=self.priority,
            **of_router(self, weights),
        )


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """A pool of engines, or of a policy with KV memory, as tight as its requests allow."""

    system: engine_systems.System  # the limits and settings of a replica, and requests that fit
    replicas: int = 1
    router: str = "jsq"
    measure: tuple[int, int] = (1, 1)
    affinity: bool = False
    report: int = 0
    others: tuple["EngineSpec", ...] = ()  # further kinds of servers

    @property
    def server(self):
        """One replica, for the kernel."""
        return self.system.server

    def pool(self, names):
        """Return the kernel's pool."""
        return Pool(kinds(self), 1, kernel_router(self), "fcfs", self.affinity, 1e3 * self.report)

    def reference_pool(self, weights):
        """Return the reference's."""
        return reference.EnginePool(
            **self.system.plain_settings,
            prefix_caching=self.system.hash_ids is not None,
            replicas=self.replicas,
            router=self.router,
            weights=weights,
            affinity=self.affinity,
            **of_router(self, weights),
        )

    def lengths(self, random):
        """Draw prompt and output tokens of a request: some that fit, a prompt alone, or none."""
        prompt, output = random.choice(list(zip(self.system.prompt, self.system.output, strict=True)))
        return random.choice([(prompt, output)] * 6 + [(prompt, 0), (0, 0)])


def kernel_limit(told):
    """Return a limit for the kernel, whose ticks are seconds."""
    if not told:
        return None
    return QueueLimit(**{name: value for name, value in told.items() if name != "ttft"},
                      ttft_ms=1e3 * told["ttft"] if "ttft" in told else None)  # fmt: skip


def with_limit(server, limit):
    """Return a server with a limit, also one that its engine does not have."""
    server = dataclasses.replace(server)
    vars(server)["queue_limit"] = limit
    return server


def kinds(spec):
    """Return the kinds of servers of a pool, and how many there are of each."""
    return [(each.server, each.replicas) for each in (spec, *spec.others)]


def of_router(spec, weights):
    """Return what the reference's pool says beside the servers themselves."""
    server = spec.server
    chosen = ROUTERS_BY_NAME.get(spec.router)
    return {
        "router_params": () if chosen is None else chosen.params.tolist(),
        "report": spec.report,
        "speed": server.token_budget / float(server.batch_time(server.token_budget)),
        "others": [other.reference_pool(weights) for other in spec.others],
    }


def kernel_router(spec):
    """Return the router of a pool, for the kernel."""
    if spec.router == "measure":
        return Router.measure(prefill=spec.measure[0], decode=spec.measure[1])
    return spec.router


@dataclasses.dataclass(frozen=True)
class Request:
    """One request of a job, and its parents by their places in the job."""

    stage: int
    prompt: int
    output: int
    parents: tuple[int, ...] = ()
    reuse: int = 0
    context: int = 0  # offset
    delay: int = 0
    coin: int = 0
    priority: int = 0
    hash_ids: tuple[int, ...] = ()
    sender: int = 0  # offset
    link: int = 0


@dataclasses.dataclass(frozen=True)
class System:
    """Pools, stages, jobs, and how long to run (until a tick, or None: until everything has left)."""

    pools: tuple[PoolSpec | EngineSpec, ...]
    stage_pool: tuple[int, ...]
    prefill: tuple[float, ...]
    decode: tuple[float, ...]
    onward: tuple[tuple[float, ...], ...]
    retention: int | None
    jobs: tuple[tuple[int, tuple[Request, ...]], ...]  # (arrival, requests)
    until: int | None
    hash_block: int | None = None  # tokens that each of the hash ids names
    outages: tuple[running.Outage, ...] = ()
    fronts: tuple[tuple[int, int, int] | None, ...] = ()  # of pools: ticks, ticks a token, processes of a replica
    # Of pools: what a server lets in, and the router; by stage: when clients come again, and the share that chance
    # takes off; of requests: how long the client waits for a first token, and for all, and 32 random bits.
    limits: tuple[tuple[dict, dict], ...] = ()
    backoffs: tuple[tuple[int, ...], ...] = ()
    jitter: tuple[float, ...] = ()
    patience: tuple[tuple[float, float, int], ...] = ()

    @property
    def names(self):
        """Names of the stages."""
        return tuple(f"w.s{stage}" for stage in range(len(self.stage_pool)))

    @property
    def columns(self):
        """The columns of the jobs' table, with times in ticks."""
        rows, first_request = [], [0]
        for _, requests in self.jobs:
            children = [[i for i, other in enumerate(requests) if place in other.parents] for place in
                        range(len(requests))]  # fmt: skip
            sibling = {one: other - one for those in children for one, other in pairwise(those)}
            for place, request in enumerate(requests):
                child = children[place][0] - place if children[place] else 0
                rows.append((*dataclasses.astuple(request), len(request.parents), child, sibling.get(place, 0)))
            first_request.append(len(rows))
        columns = zip(*rows, strict=True)
        stage, prompt, output, _, reuse, context, delay, coin, priority, ids, sender, link, *rest = columns
        pending, child, sibling = rest
        return {
            "arrival": [arrival for arrival, _ in self.jobs], "first_request": first_request, "stage": stage,
            "prompt": prompt, "output": output, "reuse": reuse, "context": context, "delay": delay,
            "pending": pending, "child": child, "sibling": sibling, "coin": coin, "priority": priority,
            "hash_ids": ids, "sender": sender, "link": link,
        }  # fmt: skip

    def kernel_jobs(self):
        """Return the kernel's jobs."""
        columns = self.columns
        arrival, delay = columns.pop("arrival"), columns.pop("delay")
        ids, link = columns.pop("hash_ids"), columns.pop("link")
        if not any(columns["priority"]):
            del columns["priority"]
        if self.hash_block:
            columns["prefix"] = [row if some else -1 for row, some in enumerate(ids)]
        types = {"first_request": np.int64, "coin": np.uint32}
        arrays = {name: np.array(column, types.get(name, np.int32)) for name, column in columns.items()}
        workflow = np.zeros(len(arrival), np.int32)
        if self.patience:
            first, whole, luck = zip(*self.patience, strict=True)
            arrays |= {"ttft_limit_s": np.array(first, float), "e2e_limit_s": np.array(whole, float),
                       "luck": np.array(luck, np.uint32)}  # fmt: skip
        return Jobs(np.array(arrival, float), workflow, delay_s=np.array(delay, float),
                    transfer_s=np.array(link, float), **arrays)  # fmt: skip

    def network(self):
        """Return the kernel's network: what jobs do is given, so its workflow is no more than the names of stages."""
        network = object.__new__(Network)
        stages = {f"s{stage}": SimpleNamespace(pool=f"p{pool}") for stage, pool in enumerate(self.stage_pool)}
        given = {
            "pools": {f"p{place}": self.kernel_pool(place) for place in range(len(self.pools))},
            "workflows": (SimpleNamespace(name="w", stages=stages, reuses=True),),
            "retention_s": None if self.retention is None else float(self.retention),
            "prefill_means": np.array(self.prefill, float),
            "decode_means": np.array(self.decode, float),
            "onward": np.array(self.onward, float),
            "prefixes": self.prefixes(),
            "senders": ((0,),) if any(self.columns["sender"]) else (),
        }
        given |= {"guarded": bool(self.limits), "served_by_queues": network, "patience_of_stages": self.clients()}
        network.__dict__.update(given)
        return network

    def clients(self):
        """Return what the kernel knows of the clients at each stage, beside those of each request."""
        ends = any(first < math.inf or whole < math.inf for first, whole, _ in self.patience)
        return tuple(
            SimpleNamespace(ends=ends, backoffs_s=waits, jitter=jitter)
            for waits, jitter in zip(self.backoffs, self.jitter, strict=True)
        )

    def kernel_pool(self, place):
        """Return a pool for the kernel, with its front end."""
        pool, front = self.pools[place].pool(self.names), self.front(place)
        end = None if front is None else FrontEnd(*front)
        servers = [(dataclasses.replace(server, front_end=end), count) for server, count in pool.servers]
        if not self.limits:
            return dataclasses.replace(pool, servers=servers, replicas=1)
        limit, of_router = (kernel_limit(told) for told in self.limits[place])
        servers = [(with_limit(with_queue(server), limit), count) for server, count in servers]
        return dataclasses.replace(pool, servers=servers, replicas=1, router_limit=of_router)

    def reference_pool(self, place):
        """Return a pool for the reference, with its front end."""
        spec, front = self.pools[place], self.front(place)
        pool = spec.reference_pool(self.weights(place))
        if self.limits:
            pool = self.with_limits(pool, spec, place)
        if front is None:
            return pool
        replicas = sum(each.replicas for each in (spec, *spec.others))
        return dataclasses.replace(pool, front=(front[0], front[1], front[2] * replicas))

    def with_limits(self, pool, spec, place):
        """Return a pool of the reference that refuses some."""
        limit, of_router = self.limits[place]
        others = [self.with_limits(*each, place) for each in zip(pool.others, spec.others, strict=True)]
        server = with_queue(spec.server)
        full = round(server.token_budget / server.full_batch_rate)
        return dataclasses.replace(pool, limit=limit, router_limit=of_router, full_batch=full, others=others)

    def front(self, place):
        """Return what is said of the front end of a pool; None: it has none."""
        return self.fronts[place] if self.fronts else None

    def prefixes(self):
        """Return what the kernel knows of prompts that begin alike."""
        if self.hash_block is None:
            return None
        columns = self.columns
        ids, counts = sum(columns["hash_ids"], ()), [len(some) for some in columns["hash_ids"]]
        return Prefixes.of(np.array(ids, np.int64), np.array(counts), np.array(columns["prompt"]), self.hash_block)

    def reference(self, instants=()):
        """Run the reference."""
        pools = [self.reference_pool(place) for place in range(len(self.pools))]
        network = reference.Network(
            pools, self.stage_pool, self.prefill, self.decode, self.onward, self.retention, self.backoffs, self.jitter
        )
        first, whole, luck = zip(*self.patience, strict=True) if self.patience else ((), (), ())
        jobs = reference.Jobs(**self.columns, patience_first=first, patience_whole=whole, luck=luck)
        return simulation.simulate(jobs, network, until=self.until, instants=instants, outages=self.outages)

    def kernel_outages(self):
        """Return the kernel's outages, whose replicas are counted pool by pool."""
        counts = [sum(each.replicas for each in (spec, *spec.others)) for spec in self.pools]
        places = [(f"p{pool}", replica) for pool, count in enumerate(counts) for replica in range(count)]
        fates = {True: "lost", False: "sent-again"}
        return [Outage(*places[each.replica], each.start, each.end, fates[each.loses]) for each in self.outages]

    def weights(self, place):
        """Return what requests count for a router that weighs them."""
        if self.pools[place].router == "measure":
            expected = [self.pools[place].measure] * len(self.stage_pool)
        else:
            expected = [(m_p + m_d, m_d) for m_p, m_d in zip(self.prefill, self.decode, strict=True)]
        return {stage: (round(WEIGHT * w0), round(WEIGHT * w1)) for stage, (w0, w1) in enumerate(expected)}


# ---------------------------------------------------------------- drawing


def draw_system(
    random, *, policies=POLICIES, orders=ORDER_NAMES, jobs=(1, 12), gaps=(0, 1, 3, 10, 60),
    engines=(), engines_alone=False, dying=False,
):  # fmt: skip
    """Draw a system: ties, idle times, cut prompts, tight limits, empty phases and early stops are all likely.

    With names of engines or of policies of the paper as ``engines``, most pools are of one of them, with KV memory;
    with ``engines_alone`` all are. ``jobs``: the fewest and the most; between two pass so many ticks at most as one of
    ``gaps`` says. ``dying``: replicas die and come back; no KV memory is then sent from pool to pool.
    """
    n_pools = random.randint(1, 2 if engines else 4)
    stage_pool = tuple(range(n_pools)) + tuple(random.randrange(n_pools) for _ in range(random.randint(0, 4)))
    n_stages = len(stage_pool)
    pools = tuple(
        draw_kinds(random, draw_engine_pool(random, random.choice(engines)))
        if engines and (engines_alone or random.randrange(3))
        else draw_pool(random, [stage for stage, pool in enumerate(stage_pool) if pool == place], policies, orders)
        for place in range(n_pools)
    )
    stages = [draw_stage(random, pools[pool]) for pool in stage_pool]
    at, arrival, longest = 0, [], random.choice(gaps)
    for _ in range(random.randint(*jobs)):
        arrival.append(at)
        at += random.randint(0, longest)
    serving = [pools[pool] for pool in stage_pool]
    made = tuple((tick, draw_job(random, stages)) for tick in arrival)
    if not dying:
        made = tuple((tick, with_transfers(random, requests, serving)) for tick, requests in made)
    if engines:
        made = tuple((tick, with_priorities(random, requests)) for tick, requests in made)
    hash_block = draw_hash_block(random, pools)
    if hash_block:
        told = random.randint(1, 3)
        made = tuple((tick, with_hash_ids(random, requests, hash_block, told)) for tick, requests in made)
    system = System(
        pools,
        stage_pool,
        hash_block=hash_block,
        prefill=tuple(random.randint(0, 12) / 4 for _ in stages),
        decode=tuple(random.randint(0, 12) / 4 for _ in stages),
        onward=tuple(tuple(random.choice([0, 0, 0.25, 0.5, 1, 2]) for _ in range(n_stages)) for _ in stages),
        retention=random.choice([None, None, 0, 3, 20]),
        jobs=made,
        until=random.choice([None, None, None, random.randint(1, arrival[-1] + 150)]),
    )
    return with_outages(random, system) if dying else system


def with_clients(random, system):
    """Let pools refuse some, and clients leave, most of them too early, and come again."""

    def limit():
        most = {"requests": (1, 6), "waiting": (1, 4), "prompt_tokens": (1, 40), "ttft": (1, 80)}
        names = random.sample(list(most), random.choice([0, 0, 1, 1, 2]))
        return {name: random.randint(*most[name]) for name in names}

    longest = random.choice([4, 20, 80, 200])

    def waits():
        return random.choice([math.inf, random.randint(1, longest), random.randint(1, longest)])

    def backoffs():
        return tuple(random.randint(1, 30) for _ in range(random.choice([0, 1, 3])))

    leaves = all(may_leave(each) for spec in system.pools for each in (spec, *spec.others))
    rows = sum(len(requests) for _, requests in system.jobs)
    patience = tuple(
        (waits(), random.choice([math.inf, waits()]), random.getrandbits(32)) if leaves else (math.inf, math.inf, 0)
        for _ in range(rows)
    )
    return dataclasses.replace(
        system,
        outages=(),
        limits=tuple((limit(), limit()) for _ in system.pools),
        backoffs=tuple(
            tuple(random.randint(1, 30) for _ in range(random.choice([0, 1, 3]))) for _ in system.stage_pool
        ),
        jitter=tuple(random.choice([0.0, 0.5, 1.0]) for _ in system.stage_pool),
        patience=patience,
    )


def may_leave(spec):
    """Whether it is known what an engine does when a client leaves."""
    return spec.server.policy.queue.lets_leave


def with_front_ends(random, system):
    """Let some pools have a front end; most of what comes waits there for a while."""

    def drawn():
        front = random.choice([0, 1, 3, 10]), random.choice([0, 0, 1, 2]), random.choice([1, 1, 2])
        return front if any(front[:2]) and random.random() < 0.8 else None

    return dataclasses.replace(system, fronts=tuple(drawn() for _ in system.pools))


def with_outages(random, system):
    """Let some replicas die, some of them twice, and come back."""
    replicas = sum(each.replicas for spec in system.pools for each in (spec, *spec.others))
    last = system.jobs[-1][0] + random.choice([5, 60])
    outages = []
    for replica in range(replicas):
        at = random.randint(0, last)
        for _ in range(random.choice([0, 1, 1, 2])):
            end = at + random.choice([1, random.randint(1, 10), random.randint(1, 100)])
            outages.append(running.Outage(replica, at, end, random.choice([False, False, True])))
            at = end + random.randint(1, 30)
    return dataclasses.replace(system, outages=tuple(outages))


def draw_pool(random, stages, policies, orders):
    """Draw a pool that serves these stages."""
    budget = random.choice([random.randint(1, 8), random.randint(1, 40)])
    slowest = random.choice([1, 3, 10, 50])
    order = random.choice(orders)
    return PoolSpec(
        ticks=tuple(random.randint(1, slowest) for _ in range(budget)),
        max_batch_size=random.choice([None, random.randint(1, 5)]),
        policy=random.choice(policies),
        scope=random.choice(SCOPES),
        convention=random.choice(CONVENTIONS),
        replicas=random.choice([1, 1, 2, 3, 5]),
        router=random.choice(ROUTERS),
        measure=(random.randint(1, 4), random.randint(1, 4)),
        affinity=random.choice([False, True]),
        report=random.choice([0, 0, 1, 3, 20]),
        order=order,
        priority=tuple(random.sample(stages, len(stages))) if order == "priority" else (),
    )


def draw_engine_pool(random, name):
    """Draw a pool of an engine, or of a policy of the paper with KV memory."""
    rng = np.random.default_rng(random.randrange(2**32))
    system = draw_tight(rng, name)
    if system.blocks and name in engine_systems.CACHING and random.randrange(2):
        system = engine_systems.with_shared_prefixes(rng, system)
    if random.randrange(3) == 0:
        system = engine_systems.composed(rng, system)
    return EngineSpec(
        system,
        replicas=random.choice([1, 1, 2, 3]),
        router=random.choice(ROUTERS),
        measure=(random.randint(1, 4), random.randint(1, 4)),
        affinity=random.choice([False, True]),
    )


def draw_kinds(random, spec):
    """Draw how late the router of a pool of engines learns what, and further kinds of servers that differ in speed."""
    others = []
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        ticks = tuple(random.randint(1, 9) for _ in spec.system.ticks)
        system = dataclasses.replace(spec.system, ticks=ticks)
        others.append(dataclasses.replace(spec, system=system, replicas=random.choice([1, 2])))
    return dataclasses.replace(spec, others=tuple(others), report=random.choice([0, 0, 1, 3, 20]))


def draw_tight(rng, name):
    """Draw a server that preempts under its own requests, if one of a few does; a policy's has KV memory."""
    for _ in range(8):
        system = engine_systems.draw(rng, name, of_network=True)
        if system.blocks and any(batch.preempted for batch in system.reference().batches):
            return system
    while system.blocks is None and name not in ENGINES:  # without memory it is a server of the paper
        system = engine_systems.draw(rng, name, of_network=True)
    return system


def draw_hash_block(random, pools):
    """Draw tokens of a recorded block that suit all pools that cache prefixes, or None."""
    sizes = {spec.system.block_size for spec in pools if isinstance(spec, EngineSpec) and spec.system.hash_ids}
    return sizes.pop() if len(sizes) == 1 and random.randrange(3) else None


def with_hash_ids(random, requests, size, told):
    """Return the requests with names of their blocks, but for those that go on with a context: some go on from each
    other, as turns of a few conversations do.
    """
    named = []
    for request in requests:
        shared, own = random.randint(0, 12), random.randrange(10_000, 10**9)
        conversation = 1000 * random.randrange(told)
        ids = range(conversation, conversation + shared)
        ids = (*ids, *range(own, own + 40))[: request.prompt // size + random.randint(0, 1)]
        given = request.context == 0 and request.prompt and random.randrange(4) > 0
        named.append(dataclasses.replace(request, hash_ids=ids if given else ()))
    return tuple(named)


def with_priorities(random, requests):
    """Return the requests with a priority each, for engines that go by it."""
    return tuple(dataclasses.replace(request, priority=random.randrange(3)) for request in requests)


def draw_stage(random, spec):
    """Return what draws prompt and output tokens of a stage's requests, one of them often for none."""
    if isinstance(spec, EngineSpec):
        return spec.lengths
    prompt = random.choice([1, 3, 9, 3 * len(spec.ticks)])
    output = random.choice([1, 2, 5, 40, 100])
    return functools.partial(lengths, random.choice([(prompt, output)] * 4 + [(0, output), (prompt, 0), (0, 0)]))


def lengths(most, random):
    """Draw prompt and output tokens from 1 up to so many; none where that is 0."""
    return tuple(random.randint(1, tokens) if tokens else 0 for tokens in most)


def draw_job(random, stages):
    """Draw requests of one job: chains, forks and joins of them, inside one another."""
    parents = draw_graph(random, random.choice([1, 2, 4, 8]))
    requests = []
    for place, those in enumerate(parents):
        stage = random.randrange(len(stages))
        prompt, output = stages[stage](random)
        context, reuse = 0, 0
        if those and random.choice([False, True]):
            ancestor = random.choice(those)
            if parents[ancestor] and random.choice([False, False, True]):
                ancestor = random.choice(parents[ancestor])
            context, reuse = ancestor - place, random.randint(0, prompt)
        delay = random.choice([0, 0, 0, random.randint(0, 5), random.randint(0, 40)])
        coin = random.choice([0, 2**32 - 1, random.randrange(2**32), random.randrange(2**32)])
        requests.append(Request(stage, prompt, output, those, reuse, context, delay, coin))
    return tuple(requests)


def with_transfers(random, requests, serving):
    """Return the requests of a job, of which some only decode: with the KV memory of the one before them."""
    tokens, drawn = [], []
    for place, request in enumerate(requests):
        spec, parents = serving[request.stage], request.parents
        if receives(serving, requests, place) and random.randrange(4):
            most = max(p + o for p, o in zip(spec.system.prompt, spec.system.output, strict=True))
            most = min(most, dict(spec.system.settings).get("max_model_len") or most)
            output, received = random.randint(1, 30), tokens[parents[0]]
            if received and received + output < most:
                link = random.choice([0, 0, 2, 15])
                changed = {"prompt": 0, "output": output, "context": 0, "reuse": 0, "hash_ids": ()}
                request = dataclasses.replace(request, **changed, sender=parents[0] - place, link=link)
        begun = spec.server.convention == "engine" and request.prompt and request.output
        received = tokens[place + request.sender] if request.sender else 0
        tokens.append(received + request.prompt + request.output - bool(begun))
        drawn.append(request)
    # Nobody goes on with the context of one that has none of its own.
    kept = [r if not r.context or drawn[place + r.context].prompt else dataclasses.replace(r, context=0, reuse=0)
            for place, r in enumerate(drawn)]  # fmt: skip
    return tuple(kept)


def receives(serving, requests, place):
    """Whether a request may go on with the KV memory of the one before it.

    KV memory goes one way only, from the first pool: else each side may wait for room at the other for ever.
    """
    spec, parents = serving[requests[place].stage], requests[place].parents
    if not isinstance(spec, EngineSpec) or not spec.server.policy.memory.receives or len(parents) != 1:
        return False
    return spec is not serving[0] and serving[requests[parents[0]].stage] is serving[0]


def draw_graph(random, most):
    """Return the parents of each of up to about so many requests, the root first."""
    parents, tips = [()], [0]
    while len(parents) < most and tips:
        kind = random.choice(["go on", "go on", "fork", "join", "end"])
        tip = random.choice(tips)
        if kind == "join" and len(tips) > 1:
            joined = tuple(sorted(random.sample(tips, random.randint(2, len(tips)))))
            tips = [other for other in tips if other not in joined] + [len(parents)]
            parents.append(joined)
        elif kind == "end" and len(tips) > 1:
            tips.remove(tip)
        else:
            tips.remove(tip)
            for _ in range(random.randint(2, 3) if kind == "fork" else 1):
                tips.append(len(parents))
                parents.append((tip,))
    return parents


# ---------------------------------------------------------------- networks as users make them, for the reference


def reference_of(network, tick_s):
    """Return the reference's network for a kernel's."""
    pools = []
    for place, pool in enumerate(network.pools.values()):
        server = pool.server
        durations = ticks(server.batch_time.table(server.token_budget), tick_s)
        pools.append(
            reference.PaperPool(
                durations.__getitem__,
                server.token_budget,
                server.max_batch_size,
                policy=seam_policies.POLICIES[server.policy.name],
                scope=server.scope,
                convention=server.convention,
                replicas=pool.replicas,
                router=pool.router.name,
                weights=dict(enumerate(map(tuple, network.router_weights.tolist()))),
                affinity=pool.affinity,
                order=pool.order.name,
                priority=network.priorities[place] or (),
            )
        )
    means = network.prefill_means.tolist(), network.decode_means.tolist()
    retention = None if network.retention_s is None else round(network.retention_s / tick_s)
    return reference.Network(pools, network.stage_pool.tolist(), *means, network.onward.tolist(), retention)


def reference_jobs(jobs, tick_s):
    """Return the reference's jobs for a kernel's."""
    names = [field.name for field in dataclasses.fields(reference.Jobs) if field.default is dataclasses.MISSING]
    names = [name for name in names if name not in ("arrival", "delay")]
    columns = {name: getattr(jobs, name).tolist() for name in names}
    return reference.Jobs(arrival=ticks(jobs.arrival_s, tick_s), delay=ticks(jobs.wait_s, tick_s), **columns)


def ticks(seconds, tick_s):
    """Round to ticks."""
    return np.rint(np.asarray(seconds) / tick_s).astype(np.int64).tolist()
