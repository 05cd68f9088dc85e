"""What the rest of Penstock asks of whatever forms batches: a policy, or the scheduler of an
engine.

Nobody asks for its name, or of which of the two kinds it is. A fact that a decision depends on is a
field of one of four records: how batches are composed, how KV memory is used, who is served first,
how it is started. Where a field says nothing else, its default is what most engines do.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from penstock.kernel import records
from penstock.system.memory import Memory

if TYPE_CHECKING:
    from penstock.system.adaptive import Parameters
    from penstock.system.server import Server

Phases = Literal["decode-alone", "prefill-alone", "prefill-first", "decode-first"]
Holds = Literal["computed", "prefill", "completion"]


class GpuBytes(NamedTuple):
    """One GPU, in bytes: its memory, the weights on it, what else is needed; and its limits."""

    memory: float
    weights: float
    overhead: float
    token_budget: int
    tensor_parallel: int


class GpuRule(NamedTuple):
    """How an engine divides the memory of a GPU."""

    option: str  # what the engine calls the share of the memory that it uses
    share: float | None  # unless told otherwise; None: it follows from the GPU
    # (GPU, share) -> bytes that are left for keys and values.
    left: Callable[[GpuBytes, Any], float]


class LimitRule(NamedTuple):
    """How an engine chooses its limits."""

    # (GiB of a GPU, whether it is an A100, whether offline) -> (token budget, max batch size); the
    # latter is None where it sets none.
    limits: Callable[[float, bool, bool], tuple[int, int | None]]
    usual_slots: str = ""  # the max batch size, in words; empty where it sets none


@dataclasses.dataclass(frozen=True)
class Batching:
    """How batches are composed."""

    # whether they carry what waits up to the token budget and no more, with ample memory and slots;
    # None: not known
    work_conserving: bool | None = False
    # which phase is served alone while it has work, or first, by a rule of the paper's Table 1;
    # None: by another
    phases: Phases | None = None
    own_budget: bool = False  # whether it chooses the budget of each batch, up to the token budget
    # whether it weighs prefill against decode by what waits in each, as
    # `penstock.system.adaptive.maxweight` does
    back_pressure: bool = False
    # whether a prompt may be spread over batches, and the setting that says so; empty: none does
    cuts_prompts: bool = False
    cut_by: str = ""
    beside_prompt: int = 0  # tokens of the budget that a batch keeps beside each prompt
    decodes_beyond: bool = False  # whether all that run decode, even beyond the token budget
    decodes_at_once: bool = False  # whether all do, so that no more may run than the token budget
    # whether no more requests run than the token budget, without a max batch size too
    slots_by_budget: bool = True
    drafts: int = 0  # that a decode verifies
    outputs_per_decode: float = 1.0  # that a decode brings on average, with all its drafts
    ahead: bool = False  # whether a batch is composed when the one before it starts
    # whether the one after a run of decodes follows from it, while nobody waits
    foreseen: bool = False
    # whether a preempted request loses the token that the batch in progress brings
    loses_in_flight: bool = False
    # how token budget and max batch size are chosen; None: it wants to be told, or it is not known
    limit_rule: LimitRule | None = None


@dataclasses.dataclass(frozen=True)
class KVUse:
    """How KV memory is used."""

    # whether there is one that ends, so that a server without a limit is not what it is
    limited: bool = True
    block_size: int = 16  # tokens in a block, unless told otherwise
    own_blocks: int = 0  # blocks that no request ever gets
    whole_blocks: bool = False  # whether it cuts prompts to whole blocks
    holds: Holds = "computed"  # for which tokens a running request surely has memory
    # whether admissions can be told to leave a share of the blocks free, and do where nobody runs
    has_watermark: bool = False
    watermark_alone: bool = True
    # tokens that a request may come to, prompt and outputs, which are cut to it; 0: any
    longest_context: int = 0
    # tokens beyond its own that a request needs memory for: drafts, until they are verified
    drafted_tokens: int = 0
    # tokens behind a block of a prefix cache that its name stands for, too
    names_ahead: int = 0
    # whether memory reserved to completion has room for the last output, which is never computed
    reserves_last_token: bool = False
    # whether requests that were prefilled elsewhere may go on here with their KV memory
    receives: bool = False
    # whether prompts that begin alike may share blocks, and do unless told otherwise
    caches_prefixes: bool = False
    caches_by_default: bool = False
    # whether what is cached is a tree of prefixes (SGLang), in place of blocks by name
    caches_in_tree: bool = False
    # whether weights in 8 bits come in checkpoints that ask for a KV cache in 8 bits (NVIDIA's)
    cached_as_weights: bool = False
    gpu_rule: GpuRule | None = None  # how it divides the memory of a GPU; None: not known


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Who of those that wait is served first."""

    orders: tuple[str, ...] = ("fcfs",)  # that a server may ask for
    by_rank: bool = False  # whether ranks count in every order, also without priorities
    rank_step: int = 1  # by which ranks of two neighbouring priorities differ
    # whether admission goes by the outputs that requests declare; and takes them for those that
    # they make
    reads_declared: bool = False
    knows_outputs: bool = False
    # whether the queue goes by what the cache lacks, also where no two prompts begin alike
    goes_by_cache: bool = False
    # by what a rule that sorts its queue knows when a request came to it: its arrival; or, anew
    # after each preemption, how many had come before it, or how many tokens had been processed
    came_as: Literal["arrival", "number", "tokens"] = "arrival"
    # whether requests may wait among those that run, too, which have got no token yet
    waits_among_running: bool = False
    # whether, where there are priorities, who waits may take the places of those who run
    takes_places: bool = False
    # the limits of a `QueueLimit` that it has; and whether it is known how a request leaves whose
    # client does
    limits: tuple[str, ...] = ("requests", "waiting", "prompt_tokens", "ttft_ms")
    lets_leave: bool = True


@dataclasses.dataclass(frozen=True)
class Program:
    """How an engine is started: its image, its port, and what it calls the limits of a server."""

    title: str  # how it spells its name
    image: str
    port: int
    command: tuple[str, ...]  # what stands before the weights
    # Its options.
    tensor_parallel: str
    token_budget: str
    max_batch_size: str
    block_size: str
    expert_parallel: tuple[str, ...]
    other: str  # what is said of a scheduler that it does not have
    # Options for an order of the queue.
    by_arrival: tuple[str, ...] = ()
    by_priority: tuple[str, ...] = ()
    beside_other: tuple[str, ...] = ()  # options that bring it nearer to such a one
    capped: bool = False  # it always has a max batch size, which the token budget bounds
    at_once: tuple[str, ...] = ()  # the options by which it composes each batch when it starts
    no_cache: tuple[str, ...] = ()  # the options by which it caches no prefixes
    front_ends: str = ""  # the option for processes of its front end; empty: it has one
    plugin: str = ""  # the option by which it runs policies of Penstock; empty: it runs none


def words_where(*cases: tuple[Any, *tuple[str, ...]]) -> list[str]:
    """Return the words of those cases that hold: each is whether it does, then its words."""
    return [word for holds, *words in cases if holds for word in words]


class Scheduler(abc.ABC):
    """What forms batches."""

    name: str  # how tables and messages call it
    batching: Batching
    memory: KVUse
    queue: Waiting
    program: Program | None = None  # None: not known
    # whether it says how many tokens each phase gets, and the requests of a phase are served in
    # order
    by_phase: bool = False
    parameters: "Parameters | None" = None
    rule: str = records.BY_POLICY  # the function of the kernel that forms its batches

    @property
    def options(self) -> Mapping[str, Any]:
        """Its settings that have names."""
        return {}

    @property
    def kernel_numbers(self) -> tuple[float, ...]:
        """Numbers that its rule is told, of which the first is one that this changes."""
        return (0.0,)

    def told_to_rule(self, name: str, server: "Server") -> int:
        """Return the setting that its rule reads under a name, at a server; 0: it has none."""
        return int(getattr(self, name, 0))

    @property
    @abc.abstractmethod
    def reads(self) -> frozenset[str]:
        """The fields of `Queue` that it may look at."""

    @property
    @abc.abstractmethod
    def sees(self) -> int:
        """What it looks at, as the kernel's option: decides how many equal batches may be one
        step.
        """

    @property
    @abc.abstractmethod
    def compiled(self) -> Any:
        """The function of the seam that the kernel is given."""

    @property
    @abc.abstractmethod
    def is_proved(self) -> bool:
        """Whether what it says of work conservation is so by definition, and not its author's
        claim.
        """

    @property
    @abc.abstractmethod
    def decode_first(self) -> bool:
        """Whether each batch takes all decodes that fit, then prompts, cut to fill it."""

    @property
    def admits_what_fits(self) -> bool:
        """Whether nobody waits for memory while enough of it is free."""
        return True

    @property
    def hosts_policies(self) -> bool:
        """Whether policies of Penstock can run inside it (`penstock.vllm_plugin`)."""
        return self.program is not None and bool(self.program.plugin)

    @property
    def keeps_queues(self) -> bool:
        """Whether long queues may be normal under it: it looks at them."""
        return False

    @abc.abstractmethod
    def configured(self, params: Any) -> tuple[Self, list[float]]:
        """Return it with the ``policy_params`` of a server, and the numbers that the kernel's seam
        is given of them.
        """

    @abc.abstractmethod
    def settings(self, numbers: tuple[float, ...]) -> Any:
        """Return what a server's ``policy_params`` are, given the numbers among them."""

    def check(self, server: "Server") -> None:  # noqa: B027 - a policy takes any server
        """Refuse what it cannot be told."""

    def flags(self) -> list[str]:
        """Return the options by which its program has these settings."""
        return []

    def environment(self) -> dict[str, str]:
        """Return the variables by which its program has these settings."""
        return {}

    def notes(self) -> list[str]:
        """Say what to know of these settings before its program is started."""
        return []

    def why_no_cache(self, server: "Server") -> str | None:
        """Return why it cannot cache prefixes at a server, and what to do; None where it can."""
        return None

    def holds(self, memory: Memory | None) -> Holds:
        """Return for which tokens a running request surely has memory: ``computed``, its
        ``prefill``, to its end.
        """
        return self.memory.holds

    def outputs_of(self, prompt: Any, output: Any) -> Any:
        """Return the output tokens that requests get, shape (requests,): no more than the longest
        context leaves room for.
        """
        longest = self.memory.longest_context
        return np.minimum(output, np.maximum(longest - prompt, 1)) if longest else output

    def most_outputs(self, prompt: Any, usable: int, block_size: int) -> Any:
        """Return to how many output tokens KV memory of so many blocks cuts what requests may make,
        shape (requests,); None: it does not.
        """
        return None

    def ranks_of(self, priority: Any, prompt: Any, declared: Any, order: str) -> Any:
        """Return by what the queue goes before arrival, the smaller first, shape (requests,)."""
        return priority

    def most_prefill(self, token_budget: int) -> int:
        """Return the most tokens that a batch with prompts may come to, where there is a budget."""
        return token_budget

    def most_tokens(self, token_budget: int, most_requests: int | None) -> int:
        """Return the most tokens that a batch may come to."""
        most = self.most_prefill(token_budget)
        if most_requests is None or not self.batching.decodes_beyond:
            return most
        return max(most, most_requests)
