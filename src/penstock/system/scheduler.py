"""What the rest of Penstock asks of whatever forms batches: a policy, or the scheduler of an
engine.

Nobody asks for its name, or of which of the two kinds it is. A fact that a decision depends on
stands here, with the value that it has for a policy; an engine's entry in `penstock.system.engines`
says where it differs.
"""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from penstock.kernel import records
from penstock.system.memory import Memory

if TYPE_CHECKING:
    from penstock.system.adaptive import Parameters
    from penstock.system.server import Server

Options = Mapping[str, Any]
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


class Program(NamedTuple):
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
    flags: Callable[[Options], list[str]]
    other: str  # what is said of a scheduler that it does not have
    # Options for an order of the queue.
    by_arrival: tuple[str, ...] = ()
    by_priority: tuple[str, ...] = ()
    environment: Callable[[Options], dict[str, str]] = lambda _: {}
    notes: Callable[[Options], list[str]] = lambda _: []
    beside_other: tuple[str, ...] = ()  # options that bring it nearer to such a one
    capped: bool = False  # it always has a max batch size, which the token budget bounds
    at_once: tuple[str, ...] = ()  # the options by which it composes each batch when it starts
    no_cache: tuple[str, ...] = ()  # the options by which it caches no prefixes
    plugin: str = ""  # the option by which it runs policies of Penstock; empty: it runs none


def words_where(*cases: tuple[Any, *tuple[str, ...]]) -> list[str]:
    """Return the words of those cases that hold: each is whether it does, then its words."""
    return [word for holds, *words in cases if holds for word in words]


class Scheduler(abc.ABC):
    """What forms batches."""

    name: str  # how tables and messages call it
    options: Mapping[str, Any] = {}  # its settings that have names
    rule: int = records.SEAM  # the kernel's number for it
    # what the kernel's rule is told of the settings: fields of `penstock.kernel.records.POOL`, and
    # numbers of which the first is one that it changes
    kernel_options: Mapping[str, int] = {}
    kernel_numbers: tuple[float, ...] = (0.0,)

    # whether batches carry what waits up to the token budget and no more, with ample memory and
    # slots; None: not known
    work_conserving: bool | None = None
    # whether it says how many tokens each phase gets, and the requests of a phase are served in
    # order
    by_phase: bool = True
    # which phase is served alone while it has work, or first, by a rule of the paper's Table 1;
    # None: by another
    phases: Phases | None = None
    own_budget: bool = False  # whether it chooses the budget of each batch, up to the token budget
    # whether it weighs prefill against decode by what waits in each, as
    # `penstock.system.adaptive.maxweight` does
    back_pressure: bool = False

    # whether a prompt may be spread over batches, and the setting that says so; empty: none does
    cuts_prompts: bool = True
    cut_by: str = ""
    # whether all that run decode in one batch, even beyond the token budget
    decodes_beyond: bool = False
    # whether all that run decode in one batch, so that no more may run than the token budget
    decodes_at_once: bool = False
    # whether no more requests run than the token budget, without a max batch size too
    slots_by_budget: bool = False
    orders: tuple[str, ...] = ("fcfs", "priority")  # orders of the queue that it knows

    # whether it comes with KV memory that ends, so that a server without a limit is not what it is
    has_kv_memory: bool = False
    block_size: int = 16  # tokens in a block of KV memory, unless told otherwise
    own_blocks: int = 0  # blocks that no request ever gets
    whole_blocks: bool = False  # whether it cuts prompts to whole blocks
    # whether its admissions can be told to leave a share of the blocks free
    has_watermark: bool = True
    watermark_alone: bool = True  # whether they do where nobody runs, too
    admits_what_fits: bool = True  # whether nobody waits for memory while enough of it is free
    # tokens that a request may come to, prompt and outputs, which are cut to it; 0: any
    longest_context: int = 0
    # tokens beyond its own that a request needs memory for: drafts, until they are verified
    drafted_tokens: int = 0
    outputs_per_decode: float = 1.0  # outputs that a decode brings on average, with all its drafts
    # whether memory reserved to completion has room for the last output, which is never computed
    reserves_last_token: bool = False
    ahead: bool = False  # whether a batch is composed when the one before it starts
    # whether its queue goes by rank in every order, longest declared outputs first
    sorts_queue: bool = False
    # whether its admission goes by the outputs that requests declare; and takes them for those that
    # they make
    reads_declared: bool = False
    knows_outputs: bool = False
    beside_prompt: int = 0  # tokens of the budget that a batch keeps beside each prompt
    # whether a preempted request loses the token that the batch in progress brings
    loses_in_flight: bool = False
    # whether requests that were prefilled elsewhere may go on here with their KV memory
    receives: bool = False
    caches_prefixes: bool = True  # whether prompts that begin alike may share blocks
    caches_by_default: bool = False  # whether it shares them unless told otherwise
    # whether its queue goes by what the cache lacks, also where no two prompts begin alike
    goes_by_cache: bool = False
    # whether what it caches is a tree of prefixes (SGLang), in place of blocks by name
    caches_in_tree: bool = False

    # how it chooses token budget and max batch size by itself; None: it wants to be told, or it is
    # not known
    limit_rule: LimitRule | None = None
    gpu_rule: GpuRule | None = None  # how it divides the memory of a GPU; None: not known
    program: Program | None = None  # how it is started; None: not known

    parameters: "Parameters | None" = None

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
    def decode_first(self) -> bool:
        """Whether each batch takes all decodes that fit, then prompts, cut to fill it."""
        return self.phases == "decode-first"

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

    def why_no_cache(self, server: "Server") -> str | None:
        """Return why it cannot cache prefixes at a server, and what to do; None where it can."""
        return None

    def holds(self, memory: Memory | None) -> Holds:
        """Return for which tokens a running request surely has memory: ``computed``, its
        ``prefill``, to its end.
        """
        if memory is None or memory.admission == "optimistic":
            return "computed"
        return "completion" if memory.admission == "completion" else "prefill"

    def outputs_of(self, prompt: Any, output: Any) -> Any:
        """Return the output tokens that requests get, shape (requests,): no more than the longest
        context leaves room for.
        """
        if self.longest_context == 0:
            return output
        return np.minimum(output, np.maximum(self.longest_context - prompt, 1))

    def most_outputs(self, prompt: Any, usable: int, block_size: int) -> Any:
        """Return to how many output tokens KV memory of so many blocks cuts what requests may make,
        shape (requests,); None: it does not.
        """
        return None

    def ranks_of(self, priority: Any, declared: Any, order: str) -> Any:
        """Return by what the queue goes before arrival, the smaller first, shape (requests,)."""
        return priority

    def most_prefill(self, token_budget: int) -> int:
        """Return the most tokens that a batch with prompts may come to, where there is a budget."""
        return token_budget

    def most_tokens(self, token_budget: int, most_requests: int | None) -> int:
        """Return the most tokens that a batch may come to."""
        most = self.most_prefill(token_budget)
        if most_requests is None or not self.decodes_beyond:
            return most
        return max(most, most_requests)
