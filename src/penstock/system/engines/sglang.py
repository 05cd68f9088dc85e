"""SGLang's scheduler: its settings, limits, KV memory and how it is started."""

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import InputError
from penstock.kernel import records
from penstock.system.engine import Engine, Option
from penstock.system.scheduler import GpuBytes, GpuRule, LimitRule, Options, Program, words_where

if TYPE_CHECKING:
    from penstock.system.server import Server

MB = 2**20

_BUDGET_BELOW_GIB = {20: 2048, 60: 4096, 160: 8192}
"""SGLang's token budget on a GPU with less than so much memory."""


def _limits_of_sglang(gib: float, a100: bool, offline: bool) -> tuple[int, None]:
    return next(
        (budget for limit, budget in _BUDGET_BELOW_GIB.items() if gib < limit), 16_384
    ), None


def _left_by_sglang(gpu: GpuBytes, share: float | None) -> float:
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


_SGLANG_VARIABLES = {
    "new_token_ratio": "SGLANG_INIT_NEW_TOKEN_RATIO",
    "decay_steps": "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS",
    "clip_new_tokens": "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
    "retract_steps": "SGLANG_RETRACT_DECODE_STEPS",
}

FIRST_RATIO = 0.7
LEAST_SHARE_OF_IT = 0.14  # to which the new token ratio decays

_QUEUE_ORDERS = {
    "fcfs": records.BY_ARRIVAL,
    "lof": records.BY_ARRIVAL,
    "lpm": records.LONGEST_MATCH,
    "dfs-weight": records.DFS_WEIGHT,
    "hrrn": records.RESPONSE_RATIO,
    "shortest-prefill-first": records.SHORTEST_PREFILL,
}
"""Those after the second look at a cache of prefixes. Without one the last is refused, and the
others are the first, as in SGLang.
"""

_OTHER_ORDERS = {
    "random": "shuffles its queue, which no seed here repeats",
    "routing-key": "goes by keys of requests, which no workload here has",
    "priority": "is given as order: priority",
}
"""Queue orders that SGLang has besides, and why they are refused."""


def _environment_of_sglang(options: Options) -> dict[str, str]:
    usual = {key: option.default for key, option in Sglang.known.items()}
    environment = {
        variable: f"{options[key]:g}" if isinstance(options[key], float) else str(options[key])
        for key, variable in _SGLANG_VARIABLES.items()
        if options[key] != usual[key]
    }
    least = options["min_new_token_ratio"]
    start = _first_ratio(options)
    if least is not None and start:
        environment["SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR"] = f"{least / start:.6g}"
    return environment


def _first_ratio(options: Options) -> float:
    """Return the share of future outputs that SGLang's admission counts at first."""
    if options["new_token_ratio"] is not None:
        return float(options["new_token_ratio"])
    return float(min(FIRST_RATIO * options["schedule_conservativeness"], 1.0))


def _flags_of_sglang(options: Options) -> list[str]:
    conservative, policy = options["schedule_conservativeness"], options["schedule_policy"]
    threshold = options["priority_scheduling_preemption_threshold"]
    usual = Sglang.known["priority_scheduling_preemption_threshold"].default
    return words_where(
        (True, "--max-prefill-tokens", str(options["max_prefill_tokens"])),
        (options["mixed_chunk"], "--enable-mixed-chunk"),
        (not options["overlap_schedule"], "--disable-overlap-schedule"),
        (conservative != 1, "--schedule-conservativeness", f"{conservative:g}"),
        (not options["chunked_prefill"], "--chunked-prefill-size", "-1"),  # what comes last counts
        (policy != "fcfs", "--schedule-policy", policy),
        (threshold != usual, "--priority-scheduling-preemption-threshold", str(threshold)),
    )


def _notes_of_sglang(options: Options) -> list[str]:
    return words_where(
        (options["ignore_eos"], "ignore_eos is not the server's: each request has to ask for it"),
        (
            not options["priority_preemption"] or options["retraction_policy"] != "length",
            "priority_preemption and retraction_policy have to be told the server by hand",
        ),
        (
            not options["schedule_low_priority_values_first"],
            "larger priorities come first: leave out --schedule-low-priority-values-first",
        ),
    )


class Sglang(Engine):
    """SGLang 0.5.23: prompts in chunks, alone or beside decodes, as estimates of memory allow."""

    name = "sglang"
    rule = records.SGLANG
    known = {  # noqa: RUF012
        "overlap_schedule": Option(True),
        "mixed_chunk": Option(False, alias="enable_mixed_chunk"),
        "chunked_prefill": Option(True),
        "max_prefill_tokens": Option(16384, low=1),
        "schedule_conservativeness": Option(1.0, high=1e6),
        "new_token_ratio": Option(None, high=1.0, alias="init_new_token_ratio"),
        "min_new_token_ratio": Option(None, high=1.0),
        "decay_steps": Option(600, low=1, alias="new_token_ratio_decay_steps"),
        "clip_new_tokens": Option(4096, low=1, alias="clip_max_new_tokens_estimation"),
        "retract_steps": Option(20, low=1, alias="retract_decode_steps"),
        "schedule_policy": Option("fcfs", tuple(_QUEUE_ORDERS), refused=_OTHER_ORDERS),
        "ignore_eos": Option(False),
        "priority_preemption": Option(True),
        "priority_scheduling_preemption_threshold": Option(10),
        "schedule_low_priority_values_first": Option(True),
        "retraction_policy": Option("length", ("length", "priority")),
    }
    cut_by = "chunked_prefill"
    caches_prefixes = caches_by_default = True
    orders = ("fcfs", "priority")
    caches_in_tree = True
    decodes_beyond = True
    block_size = 1  # it counts single tokens
    limit_rule = LimitRule(_limits_of_sglang)
    gpu_rule = GpuRule("mem_fraction_static", None, _left_by_sglang)
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
        flags=_flags_of_sglang,
        notes=_notes_of_sglang,
        environment=_environment_of_sglang,
        other="the plan runs {name!r}, which SGLang does not have: its own scheduler, with "
        "decodes in prefill "
        "batches, is another; plan again with the policy sglang",
        beside_other=("--enable-mixed-chunk",),
        no_cache=("--disable-radix-cache",),
    )

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        options = self.options
        if options["new_token_ratio"] is not None and options["schedule_conservativeness"] != 1:
            raise InputError(
                f"{self.name}: schedule_conservativeness sets new_token_ratio, which is given too; "
                "give one of them"
            )
        high, low = _first_ratio(options), options["min_new_token_ratio"]
        if low is None:
            low = min(high * LEAST_SHARE_OF_IT, 1.0)
        if low > high:
            raise InputError(
                f"{self.name}: min_new_token_ratio is {low:g}, above new_token_ratio, {high:g}, "
                "which falls to it; lower it"
            )
        self.ahead = self.loses_in_flight = options["overlap_schedule"]
        self.whole_blocks = self.cuts_prompts
        self.sorts_queue = options["schedule_policy"] == "lof"
        self.goes_by_cache = options["schedule_policy"] in ("hrrn", "shortest-prefill-first")
        self.knows_outputs = options["ignore_eos"]
        self.reads_declared = not self.knows_outputs
        self.kernel_options = {
            "ahead": self.ahead,
            "mixed": self.cuts_prompts and options["mixed_chunk"],
            "most_prefill": options["max_prefill_tokens"],
            "clip_new_tokens": options["clip_new_tokens"],
            "retract_steps": options["retract_steps"],
            "ignores_eos": options["ignore_eos"],
            "takes_places": options["priority_preemption"],
            "threshold": options["priority_scheduling_preemption_threshold"],
            "retracts_by_rank": options["retraction_policy"] == "priority",
            "queue_order": _QUEUE_ORDERS[options["schedule_policy"]],
        }
        self.kernel_numbers = (high, low, (high - low) / options["decay_steps"])

    def check(self, server: "Server") -> None:
        """Refuse what SGLang cannot be told, and orders that it refuses."""
        super().check(server)
        order = self.options["schedule_policy"]
        if server.order == "priority" and order not in ("fcfs", "lof"):
            raise InputError(
                f"order is 'priority' beside schedule_policy {order!r}, but SGLang has priorities "
                "with 'fcfs' and 'lof' only; take one of them"
            )
        memory = server.memory
        told_off = memory is not None and memory.prefix_caching is False
        if order == "shortest-prefill-first" and told_off:
            raise InputError(
                f"schedule_policy is {order!r}, which SGLang itself refuses without its cache of "
                "prefixes; leave out prefix_caching: false, or take another"
            )
        if self.goes_by_cache and not told_off and not server.caches_prefixes:
            raise InputError(
                f"schedule_policy is {order!r}, which goes by the prefix cache, but "
                f"{server.why_no_cache}"
            )
        if self.options["retraction_policy"] == "priority" and server.order != "priority":
            raise InputError(
                "retraction_policy is 'priority', which SGLang itself refuses without priorities; "
                "give order: priority, or leave it out"
            )

    def most_prefill(self, token_budget: int) -> int:
        """Return the most tokens of a batch with prompts: where they are not cut, as many as they
        may have together, or the longest; beside others where ``ignore_eos`` admits it.
        """
        if self.cuts_prompts:
            return token_budget
        together = self.options["max_prefill_tokens"]
        if self.knows_outputs:
            return token_budget + int(together) - 1
        return max(token_budget, int(together))

    def most_outputs(self, prompt: Any, usable: int, block_size: int) -> Any:
        """Return to how many outputs memory cuts what requests may make."""
        # The pages of the prompt, one more and one token stay free.
        paged = -(-np.asarray(prompt, np.int64) // block_size) * block_size
        return (usable - 1) * block_size - paged - 1

    def ranks_of(self, priority: Any, declared: Any, order: str) -> Any:
        """Return by what the queue goes before the coming to it: the longest declared first."""
        sign = 1 if self.options["schedule_low_priority_values_first"] else -1
        ranks = np.asarray(priority, np.int64) * sign * records.RANK if order == "priority" else 0
        return ranks - np.asarray(declared, np.int64) * self.sorts_queue
