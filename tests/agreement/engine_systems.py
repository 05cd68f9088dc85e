"""Random small servers with KV memory and their requests, for the kernel and for the reference alike.

Systems are small: ties, cut prompts, memory for a request or two, preemptions in nearly every step.
"""

import dataclasses

import numpy as np

import penstock as ps
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.engines import ENGINES
from penstock.system.engines.sglang import QUEUE_ORDERS
from penstock.system.memory import Memory
from penstock.system.policies import resolve
from tests.reference import batch_time as plain_batch_time
from tests.reference import replicas, seam_policies
from tests.reference import simulation as plain

OF_THE_PAPER = tuple(seam_policies.POLICIES)
CACHING = ("vllm", "sglang", *OF_THE_PAPER)  # those that can cache prefixes
RANKED_ORDERS = [name for name, order in QUEUE_ORDERS.items() if order.ranks or name == "fcfs"]
"""Of SGLang's queue, which need no cache."""
OVERLAP = 0.5  # share of the systems of SGLang that compose batches ahead
UNITS = 2**20  # of a tick, in which the parts of a composed batch time are whole numbers


@dataclasses.dataclass(frozen=True)
class Ticks(BatchTime):
    """A batch of b tokens takes ticks[b - 1] seconds, which need not rise with b."""

    ticks: tuple[int, ...]

    def _seconds(self, tokens):
        return np.array(self.ticks, float)[tokens.astype(int) - 1]


@dataclasses.dataclass(frozen=True)
class System:
    """A small system: what arrives, the limits, and the settings of the scheduler."""

    policy: str
    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    priority: tuple[int, ...]
    ticks: tuple[int, ...]
    budget: int
    max_batch_size: int | None
    blocks: int | None
    block_size: int
    watermark: float | None
    admission: str | None = None
    order: str = "fcfs"
    scope: str = "running"
    convention: str = "engine"
    settings: tuple[tuple[str, object], ...] = ()
    until: int | None = None
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    names_outputs: bool = False
    declared: tuple[int, ...] | None = None

    @property
    def batch_time(self):
        """The batch-time model of the kernel."""
        return Ticks(self.ticks)

    @property
    def ticks_of(self):
        """The batch time of the reference, which knows no seconds."""
        return lambda load: self.ticks[load - 1]

    @property
    def server(self):
        """One server, for the kernel."""
        memory = None
        if self.blocks is not None:
            memory = Memory(
                self.blocks,
                self.block_size,
                self.watermark,
                self.admission,
                prefix_caching=self.hash_ids is not None,
            )
        return ps.Server(
            self.batch_time,
            self.budget,
            self.max_batch_size,
            policy=self.policy,
            scope=self.scope,
            convention=self.convention,
            policy_params=dict(self.settings) if self.policy in ENGINES else (),
            memory=memory,
            order=self.order,
        )

    @property
    def plain_settings(self):
        """The settings of a pool of the reference, which has adaptive policies as the kernel has them."""
        written_twice = self.policy in (*replicas.ENGINES, *OF_THE_PAPER)
        return {
            "batch_time": self.ticks_of,
            "engine": self.policy if written_twice else self.server.policy.function,
            "token_budget": self.budget,
            "max_batch_size": self.max_batch_size,
            "kv_blocks": self.blocks,
            "block_size": self.block_size if self.blocks else None,
            "watermark": self.watermark if self.blocks else None,
            "admission": self.admission,
            "order": self.order,
            "scope": self.scope,
            "convention": self.convention,
            "options": dict(self.settings) if written_twice else {"params": np.array(self.server.params, float)},
        }

    def kernel(self, record="requests", compress=True):
        workload = ps.Workload.from_arrays(
            self.arrival,
            self.prompt,
            self.output,
            self.priority,
            hash_ids=None if self.names_outputs else self.hash_ids,
            hash_ids_with_output=self.hash_ids if self.names_outputs else None,
            hash_block=None if self.hash_ids is None else self.block_size,
            declared=self.declared,
        )
        return simulate(workload, self.server, until=self.until, record=record, tick_s=1.0, compress=compress)

    def reference(self, instants=()):
        return plain.simulate_server(
            self.arrival,
            self.prompt,
            self.output,
            priority=self.priority,
            hash_ids=self.hash_ids,
            declared=self.declared,
            names_outputs=self.names_outputs,
            until=self.until,
            instants=instants,
            **self.plain_settings,
        )


def draw_drafts(rng):
    """Draw the speculation of an engine, none for most."""
    drafts = int(rng.choice([0, 0, 1, 2, 4]))
    if drafts == 0:
        return {}
    chances = rng.choice([0.0, 0.3, 0.8, 1.0], drafts).tolist()
    method = str(rng.choice(["", "ngram", "draft_model", "eagle", "mtp", "mtp"]))
    settings = {"drafts": drafts, "acceptance": chances, "method": method}
    if method == "":
        settings["draft_lookahead"] = int(rng.choice([0, 0, 2]))
    elif method == "ngram":
        settings["async_scheduling"] = False
    elif method == "mtp":
        settings["mtp_modules"] = int(rng.choice([1, 2, 4]))
    elif rng.random() < 0.3:
        settings["parallel_drafting"] = True
    return settings


def draw_ratios(rng):
    """Draw new token ratios, for most those that follow; after a retraction they may be below the least."""
    if rng.random() < 0.7:
        return {}
    least = float(rng.choice([0.5, 1.0]))
    return {"schedule_conservativeness": 1.0, "new_token_ratio": 1.0, "min_new_token_ratio": least}


def draw_settings(rng, policy, longest, longest_prompt, circles):
    match policy:
        case "vllm":
            chunked, threshold = bool(rng.random() < 0.7), int(rng.choice([0, 0, 1, 4]))
            longest_context = longest + int(rng.integers(-3, 2))
            reserves = bool(rng.random() < 0.7)
            settings = {
                "chunked_prefill": chunked,
                "long_prefill_threshold": threshold,
                "async_scheduling": bool(rng.random() < 0.6),
                "long_prefill_adaptive": threshold > 0 and bool(rng.random() < 0.5),
                "prefill_interval": int(rng.choice([1, 1, 1, 2, 4])),
                "reserve_prompt": reserves,
                "max_model_len": longest_context if longest_context > longest_prompt else 0,
            }
            settings |= draw_drafts(rng) if reserves or circles else {}
            if settings.get("mtp_modules", 1) > 1:  # else the end of a prompt is never served
                settings["long_prefill_threshold"] = threshold and max(threshold, settings["drafts"])
            return settings
        case "sglang":
            return {
                "overlap_schedule": bool(rng.random() < OVERLAP),
                "mixed_chunk": bool(rng.random() < 0.5),
                "chunked_prefill": bool(rng.random() < 0.8),
                "max_prefill_tokens": int(rng.choice([5, 20, 1000])),
                "schedule_conservativeness": float(rng.choice([0.0, 0.3, 1.0, 3.0])),
                "decay_steps": int(rng.choice([1, 5, 600])),
                "retract_steps": int(rng.choice([1, 3, 20])),
                "clip_new_tokens": int(rng.choice([3, 4096])),
                "schedule_policy": str(rng.choice(["fcfs", *RANKED_ORDERS])),
                "ignore_eos": bool(rng.random() < 0.25),
                "priority_preemption": bool(rng.random() < 0.7),
                "priority_scheduling_preemption_threshold": int(rng.choice([0, 0, 1])),
                "schedule_low_priority_values_first": bool(rng.random() < 0.7),
                "retraction_policy": str(rng.choice(["length", "priority"])),
            } | draw_ratios(rng)
        case "tensorrt-llm":
            return {
                "capacity": str(rng.choice(["guaranteed_no_evict", "max_utilization", "static_batch"])),
                "chunked_context": bool(rng.random() < 0.5),
            }
    return {}


def draw(rng, policy, of_network=False, circles=False, told=(), requests=(1, 13)):
    """Draw a system in which every request fits: by as little as may be, often.

    ``of_network``: whether a draft is accepted does not hang on the row of its request. ``circles``: requests may
    preempt each other for ever. ``told``: settings that are not drawn. ``requests``: the fewest and the most.
    """
    engine = policy in ENGINES
    n = int(rng.integers(requests[0], requests[1] + 1))
    gaps = rng.integers(0, rng.choice([0, 1, 3, 10, 60]) + 1, n)
    gaps[0] = 0
    arrival = np.cumsum(gaps)
    prompt = rng.integers(1, rng.choice([1, 3, 9, 30]) + 1, n)
    if policy == "sglang" and rng.random() < 0.2:  # some share the 32 tokens that let one wait for another
        prompt += 30
    output = rng.integers(1, rng.choice([1, 2, 5, 40]) + 1, n)
    longest = int((prompt + output).max())
    settings = draw_settings(rng, policy, longest, int(prompt.max()), circles) | dict(told)
    if of_network and "acceptance" in settings:
        settings["acceptance"] = np.rint(settings["acceptance"]).tolist()
    scheduler, _ = resolve(policy).configured(settings if engine else [])
    budget = int(rng.choice([rng.integers(1, 9), rng.integers(8, 40)]))
    if not scheduler.batching.cuts_prompts:
        budget += longest + scheduler.batching.beside_prompt
    if settings.get("drafts"):
        budget = max(budget, settings["drafts"] + scheduler.draft_slots + 1)
    within = budget if scheduler.batching.decodes_at_once else 6  # the others may have more slots than budget
    slots = None if rng.random() < 0.2 and policy not in ENGINES else int(rng.integers(1, min(6, within) + 1))
    block_size = int(rng.choice([1, 2, 4, 16]))
    if scheduler.memory.whole_blocks:
        budget = max(budget, block_size)
    watermark = float(rng.choice([0.0, 0.0, 0.1])) if scheduler.memory.has_watermark else None
    blocks = None
    if rng.random() < 0.85:
        least = -(-(longest + scheduler.memory.drafted_tokens) // block_size) + scheduler.memory.own_blocks
        if policy == "sglang":  # of the prompt, one more and a token, and with ignore_eos another
            free = 1 + 1 + settings["ignore_eos"]
            least = max(-(-(-(-p // block_size) * block_size + o + 1) // block_size) + free for p, o in zip(
                prompt.tolist(), output.tolist(), strict=True)) - 1  # fmt: skip
        blocks = int(least * rng.choice([1.0, 1.3, 2.0, 4.0]))
        while blocks - int((watermark or 0) * blocks) < least:
            blocks += 1
    most = max(scheduler.most_prefill(budget), slots or budget)
    # Equal ones, admitted by their first chunk, may preempt each other for ever, as they do in vLLM.
    ranks = "priority" in scheduler.queue.orders and (circles or settings.get("reserve_prompt", True))
    declared = None
    if policy in ("vllm", "sglang") and not settings.get("ignore_eos") and rng.random() < 0.5:
        declared = tuple((output + rng.integers(0, rng.choice([1, 3, 30]), n)).tolist())
    system = System(
        policy,
        tuple(arrival.tolist()),
        tuple(prompt.tolist()),
        tuple(output.tolist()),
        tuple(rng.integers(0, 3, n).tolist()),
        tuple(rng.integers(1, rng.choice([1, 3, 10, 50]) + 1, most).tolist()),
        budget,
        slots,
        blocks,
        block_size,
        watermark,
        admission=None if engine or blocks is None else str(rng.choice(["input", "completion", "optimistic"])),
        order="priority" if rng.random() < 0.4 and ranks else "fcfs",
        scope="running" if engine or rng.random() < 0.5 else "batch",
        convention="engine" if engine or rng.random() < 0.5 else "paper",
        settings=tuple(settings.items()),
        until=None if rng.random() < 0.7 else int(rng.integers(1, arrival[-1] + 150)),
        declared=declared,
    )
    if "retraction_policy" in settings and system.order == "fcfs":  # refused without priorities
        return dataclasses.replace(system, settings=tuple((settings | {"retraction_policy": "length"}).items()))
    return system


def with_shared_prefixes(rng, system):
    """Cache the prefixes of prompts that go on from each other, as turns of few conversations; some have no ids."""
    told = [tuple(100 * c + i for i in range(40)) for c in range(int(rng.integers(1, 4)))]
    ids = []
    names_outputs = bool(rng.random() < 0.5)
    for index, prompt in enumerate(system.prompt):
        shared = int(rng.integers(0, 41))
        whole = (*told[int(rng.integers(len(told)))][:shared], *range(10_000 * (index + 1), 10_000 * (index + 1) + 40))
        blocks = prompt // system.block_size + int(rng.integers(0, 2))
        if names_outputs:
            blocks = (prompt + system.output[index]) // system.block_size
        ids.append(whole[: 0 if rng.random() < 0.1 else blocks])
    settings = dict(system.settings)
    if settings.get("drafts", 0) > system.block_size and "mtp_modules" in settings:
        settings["mtp_modules"] = 1  # vLLM has no smaller blocks beside several
    if system.policy == "sglang":
        by_priority = system.order == "priority"
        orders = [name for name, order in QUEUE_ORDERS.items() if order.takes_priorities or not by_priority]
        settings["schedule_policy"] = str(rng.choice(orders))
    plain = {"admission": None, "settings": tuple(settings.items())}
    return dataclasses.replace(system, **plain, hash_ids=tuple(ids), names_outputs=names_outputs)


@dataclasses.dataclass(frozen=True)
class Composed(System):
    """A small system whose batches cost ``ticks`` by token load, and these units of 2^-20 ticks besides."""

    self_attention: int = 0
    cross_attention: int = 0
    decode_attention: int = 0
    mixed_attention: int = 0
    request: int = 0
    with_prefill: int = 0
    odd: int = 0  # units that each token load costs besides its ticks

    @property
    def attention(self):
        return self.self_attention, self.cross_attention, self.decode_attention, self.mixed_attention

    @property
    def batch_time(self):
        linear = Ticks(tuple(ticks + self.odd / UNITS for ticks in self.ticks))
        return Composition(linear, *(units / UNITS for units in (*self.attention, self.request, self.with_prefill)))

    @property
    def ticks_of(self):
        def linear(load):
            return self.ticks[load - 1] * UNITS + self.odd

        return plain_batch_time.Composition(linear, *self.attention, self.request, self.with_prefill, UNITS)


def composed(rng, system):
    """Draw costs for a system: none, fractions of a tick, and many ticks for each token before a decode."""
    parts = {field.name: getattr(system, field.name) for field in dataclasses.fields(System)}
    per_pair = rng.choice([1, 1_000, 30_000, UNITS, 7 * UNITS])
    costs = np.where(rng.random(4) < 0.2, 0, rng.integers(0, per_pair + 1, 4))
    request, odd, beside = rng.integers(0, UNITS, 3) * (rng.random(3) < 0.5)
    until = None if system.until is None else int(system.until * rng.choice([1, 5]))
    return Composed(**parts | {"until": until}, request=int(request), with_prefill=int(beside), odd=int(odd), **dict(
        zip(("self_attention", "cross_attention", "decode_attention", "mixed_attention"), costs.tolist(), strict=True)
    ))  # fmt: skip


def assert_a_pool_does_the_same(workload, server, run, record, compress):
    """A network of one replica serves every request at the same nanosecond as the server alone."""
    pool = ps.simulate(ps.Network.single(workload, server), record=record, compress=compress)
    for mine, of_pool in (("first_token", "first_token"), ("finish", "finish")):
        assert getattr(run.rows, mine).tolist() == getattr(pool.rows, of_pool).tolist(), mine
    assert run.rows.preemptions.tolist() == pool.rows.preemptions.tolist()
    assert pool.n_batches == run.n_batches
