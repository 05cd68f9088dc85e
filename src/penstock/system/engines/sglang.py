"""SGLang's scheduler: its settings, limits, KV memory and how it is started."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.fields import Range
from penstock.kernel.engines import sglang_records as kernel
from penstock.system.engine import SHARE, Engine, Setting, count
from penstock.system.scheduler import (
    Batching,
    GpuBytes,
    GpuRule,
    KVUse,
    LimitRule,
    Program,
    Waiting,
    words_where,
)

if TYPE_CHECKING:
    from penstock.system.server import Server

MB = 2**20

_BUDGET_BELOW_GIB = {20: 2048, 60: 4096, 160: 8192}
"""SGLang's token budget on a GPU with less than so much memory."""


def _limits(gib: float, a100: bool, offline: bool) -> tuple[int, None]:
    budgets = (budget for limit, budget in _BUDGET_BELOW_GIB.items() if gib < limit)
    return next(budgets, 16_384), None


def _left(gpu: GpuBytes, share: float | None) -> float:
    """Return what is left of a share of memory, else of all but what it keeps for all else."""
    if share is not None:
        return share * gpu.memory - gpu.weights
    large = gpu.memory > 60 * 2**30
    graphs = 32
    if large:
        graphs = 256 if gpu.tensor_parallel < 4 else 512
    reserved = 512 + 1.5 * max(gpu.token_budget, 2048) + 2 * graphs + 128 * gpu.tensor_parallel
    if large:
        reserved = max(reserved, 10 * 1024)
    return gpu.memory - MB * reserved - gpu.weights


_VARIABLES = {
    "new_token_ratio": "SGLANG_INIT_NEW_TOKEN_RATIO",
    "decay_steps": "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS",
    "clip_new_tokens": "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
    "retract_steps": "SGLANG_RETRACT_DECODE_STEPS",
}

FIRST_RATIO = 0.7
LEAST_SHARE_OF_IT = 0.14  # to which the new token ratio decays


class QueueOrder(NamedTuple):
    """An order of the queue."""

    # By what requests rank that come with so many prompt tokens and declare so many outputs, the
    # smaller first, equal ones as they came; shape (requests,), below 2^31 in size. None: by their
    # coming alone.
    ranks: Callable[[Any, Any], Any] | None = None
    # How the kernel sorts it beside a cache of prefixes, where it goes by what that has. Without
    # one it is as `ranks` says, as in SGLang.
    sorts: int = kernel.BY_ARRIVAL
    wants_cache: bool = False  # whether there is a cache also where no two prompts begin alike
    needs_cache: bool = False  # whether it is refused without
    takes_priorities: bool = False  # whether it may be one among those of equal priority
    in_sglang: bool = True  # whether SGLang has it, so that it can be started so


QUEUE_ORDERS = {
    "fcfs": QueueOrder(takes_priorities=True),
    "lof": QueueOrder(lambda prompt, declared: -declared, takes_priorities=True),
    "lpm": QueueOrder(sorts=kernel.LONGEST_MATCH),
    "dfs-weight": QueueOrder(sorts=kernel.DFS_WEIGHT),
    "hrrn": QueueOrder(sorts=kernel.RESPONSE_RATIO, wants_cache=True),
    "shortest-prefill-first": QueueOrder(
        sorts=kernel.SHORTEST_PREFILL, wants_cache=True, needs_cache=True
    ),
}
"""The orders of the queue, by what SGLang calls them (``schedule_policy``)."""

if TYPE_CHECKING:
    OrderName = str
else:
    OrderName = Literal[tuple(QUEUE_ORDERS)]

_OTHER_ORDERS = (
    ("random", "shuffles its queue, which no seed here repeats"),
    ("routing-key", "goes by keys of requests, which no workload here has"),
    ("priority", "is given as order: priority"),
)
"""Queue orders that SGLang has besides, and why they are refused."""


@dataclasses.dataclass(frozen=True, repr=False)
class Sglang(Engine):
    """SGLang 0.5.23: prompts in chunks, alone or beside decodes, as estimates of memory allow."""

    overlap_schedule: bool = True
    mixed_chunk: Annotated[bool, Setting("enable_mixed_chunk")] = False
    chunked_prefill: bool = True
    max_prefill_tokens: Annotated[int, count(low=1)] = 16384
    schedule_conservativeness: Annotated[float, Range(0, 1e6, "", SHARE.why)] = 1.0
    new_token_ratio: Annotated[float, SHARE, Setting("init_new_token_ratio")] | None = None
    min_new_token_ratio: Annotated[float, SHARE] | None = None
    decay_steps: Annotated[int, count(low=1), Setting("new_token_ratio_decay_steps")] = 600
    clip_new_tokens: Annotated[int, count(low=1), Setting("clip_max_new_tokens_estimation")] = 4096
    retract_steps: Annotated[int, count(low=1), Setting("retract_decode_steps")] = 20
    schedule_policy: Annotated[OrderName, Setting(refused=_OTHER_ORDERS)] = "fcfs"
    ignore_eos: bool = False
    priority_preemption: bool = True
    priority_scheduling_preemption_threshold: Annotated[int, count()] = 10
    schedule_low_priority_values_first: bool = True
    retraction_policy: Literal["length", "priority"] = "length"

    name = "sglang"
    place = 2
    rule = "sglang"
    program = Program(
        title="SGLang",
        image="lmsysorg/sglang:v0.5.23",
        port=30000,
        command=("python3", "-m", "sglang.launch_server", "--model-path"),
        tensor_parallel="--tp-size",
        token_budget="--chunked-prefill-size",
        max_batch_size="--max-running-requests",
        block_size="--page-size",
        expert_parallel=("--ep-size", "{}"),
        by_arrival=("--schedule-policy", "fcfs"),
        by_priority=("--enable-priority-scheduling", "--schedule-low-priority-values-first"),
        other="the plan runs {name!r}, which SGLang does not have: its own scheduler, with decodes "
        "in prefill batches, is another; plan again with the policy sglang",
        beside_other=("--enable-mixed-chunk",),
        no_cache=("--disable-radix-cache",),
    )

    def settle(self) -> None:
        """Refuse settings that contradict each other, and state what follows from them."""
        if self.new_token_ratio is not None and self.schedule_conservativeness != 1:
            raise InputError(
                f"{self.name}: schedule_conservativeness sets new_token_ratio, which is given too; "
                "give one of them"
            )
        high, low, _ = self.kernel_numbers
        if low > high:
            raise InputError(
                f"{self.name}: min_new_token_ratio is {low:g}, above new_token_ratio, {high:g}, "
                "which falls to it; lower it"
            )
        self.state(
            Batching(
                cuts_prompts=self.chunked_prefill,
                cut_by="chunked_prefill",
                decodes_beyond=True,
                ahead=self.overlap_schedule,
                foreseen=True,
                loses_in_flight=self.overlap_schedule,
                limit_rule=LimitRule(_limits),
            ),
            KVUse(
                block_size=1,  # it counts single tokens
                whole_blocks=self.chunked_prefill,
                caches_prefixes=True,
                caches_by_default=True,
                caches_in_tree=True,
                gpu_rule=GpuRule("mem_fraction_static", None, _left),
            ),
            Waiting(
                ("fcfs", "priority"),
                by_rank=self.order.ranks is not None,
                reads_declared=not self.ignore_eos,
                knows_outputs=self.ignore_eos,
                goes_by_cache=self.order.wants_cache,
                came_as="tokens" if self.schedule_policy == "hrrn" else "number",
                takes_places=self.priority_preemption,
                limits=("waiting",),
                rank_step=kernel.RANK,
                lets_leave=False,
            ),
        )

    @property
    def kernel_numbers(self) -> tuple[float, ...]:
        """The share of future outputs that admission counts at first, its least, its fall."""
        high, low = self.new_token_ratio, self.min_new_token_ratio
        if high is None:
            high = min(FIRST_RATIO * self.schedule_conservativeness, 1.0)
        if low is None:
            low = min(high * LEAST_SHARE_OF_IT, 1.0)
        return high, low, (high - low) / self.decay_steps

    @property
    def mixed(self) -> bool:
        """Whether decodes go into batches with prompts."""
        return self.chunked_prefill and self.mixed_chunk

    @property
    def retracts_by_rank(self) -> bool:
        """Whether those of the lowest priority make room."""
        return self.retraction_policy == "priority"

    @property
    def order(self) -> QueueOrder:
        """The order of its queue."""
        return QUEUE_ORDERS[self.schedule_policy]

    def told_to_rule(self, name: str, server: "Server") -> int:
        """Return a setting of its rule; without priorities nobody makes room for them."""
        by_priority = server.order == "priority"
        if name in ("priority_preemption", "retracts_by_rank") and not by_priority:
            return 0
        if name == "queue_order":
            if not server.caches_prefixes or server.usable_blocks is None:
                return kernel.BY_ARRIVAL
            return kernel.BY_RANK if by_priority or self.queue.by_rank else self.order.sorts
        return super().told_to_rule(name, server)

    def check(self, server: "Server") -> None:
        """Refuse what SGLang cannot be told, and orders that it refuses."""
        super().check(server)
        order = self.schedule_policy
        if server.order == "priority" and not self.order.takes_priorities:
            beside = [
                repr(name)
                for name, one in QUEUE_ORDERS.items()
                if one.takes_priorities and one.in_sglang
            ]
            raise InputError(
                f"order is 'priority' beside schedule_policy {order!r}, but SGLang has priorities "
                f"with {' and '.join(beside)} only; take one of them"
            )
        memory = server.memory
        told_off = memory is not None and memory.prefix_caching is False
        if self.order.needs_cache and told_off:
            raise InputError(
                f"schedule_policy is {order!r}, which SGLang itself refuses without its cache of "
                "prefixes; leave out prefix_caching: false, or take another"
            )
        if self.queue.goes_by_cache and not told_off and not server.caches_prefixes:
            raise InputError(
                f"schedule_policy is {order!r}, which goes by the prefix cache, but "
                f"{server.why_no_cache}"
            )
        if self.retracts_by_rank and server.order != "priority":
            raise InputError(
                "retraction_policy is 'priority', which SGLang itself refuses without priorities; "
                "give order: priority, or leave it out"
            )

    def most_prefill(self, token_budget: int) -> int:
        """Return the most tokens of a batch with prompts: where they are not cut, as many as they
        may have together, or the longest; beside others where ``ignore_eos`` admits it.
        """
        if self.chunked_prefill:
            return token_budget
        if self.ignore_eos:
            return token_budget + self.max_prefill_tokens - 1
        return max(token_budget, self.max_prefill_tokens)

    def most_outputs(self, prompt: Any, usable: int, block_size: int) -> Any:
        """Return to how many outputs memory cuts what requests may make."""
        # The pages of the prompt, one more and one token stay free.
        paged = -(-np.asarray(prompt, np.int64) // block_size) * block_size
        return (usable - 1) * block_size - paged - 1

    def ranks_of(self, priority: Any, prompt: Any, declared: Any, order: str) -> Any:
        """Return by what the queue goes before the coming to it: by priorities, then its order."""
        ranks = np.zeros(np.shape(declared), np.int64)
        if order == "priority":
            sign = 1 if self.schedule_low_priority_values_first else -1
            ranks += np.asarray(priority, np.int64) * sign * kernel.RANK
        if self.order.ranks is not None:
            # below the step of a priority, and down from it, as the kernel tells the two apart
            ranks -= kernel.RANK // 2
            ranks += self.order.ranks(np.asarray(prompt, np.int64), np.asarray(declared, np.int64))
        return ranks

    def environment(self) -> dict[str, str]:
        """Return the variables by which SGLang has these settings."""
        told = {
            variable: f"{value:g}" if isinstance(value, float) else str(value)
            for key, variable in _VARIABLES.items()
            if (value := getattr(self, key)) != getattr(Sglang, key)
        }
        start = self.kernel_numbers[0]
        if self.min_new_token_ratio is not None and start:
            told["SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR"] = f"{self.min_new_token_ratio / start:.6g}"
        return told

    def flags(self) -> list[str]:
        """Return the options by which SGLang has these settings."""
        conservative, policy = self.schedule_conservativeness, self.schedule_policy
        threshold = self.priority_scheduling_preemption_threshold
        usual = threshold == Sglang.priority_scheduling_preemption_threshold
        named = policy != "fcfs" and self.order.in_sglang
        return words_where(
            (True, "--max-prefill-tokens", str(self.max_prefill_tokens)),
            (self.mixed_chunk, "--enable-mixed-chunk"),
            (not self.overlap_schedule, "--disable-overlap-schedule"),
            (conservative != 1, "--schedule-conservativeness", f"{conservative:g}"),
            (not self.chunked_prefill, "--chunked-prefill-size", "-1"),  # what comes last counts
            (named, "--schedule-policy", policy),
            (not usual, "--priority-scheduling-preemption-threshold", str(threshold)),
        )

    def notes(self) -> list[str]:
        """Say what to know before SGLang is started."""
        return words_where(
            (
                not self.order.in_sglang,
                f"SGLang has no schedule_policy {self.schedule_policy!r}: as it is started here, "
                "it serves in order of arrival",
            ),
            (self.ignore_eos, "ignore_eos is not the server's: each request has to ask for it"),
            (
                not self.priority_preemption or self.retraction_policy != "length",
                "priority_preemption and retraction_policy have to be told the server by hand",
            ),
            (
                not self.schedule_low_priority_values_first,
                "larger priorities come first: leave out --schedule-low-priority-values-first",
            ),
        )
