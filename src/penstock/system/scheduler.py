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
    """What forms batches.

    Attributes
    ----------
    name
        How tables and messages call it.
    options
        Its settings that have names.
    rule
        The kernel's number for it.
    kernel_options, kernel_numbers
        What the kernel's rule is told of the settings: fields of `penstock.kernel.records.POOL`,
        and numbers of which the first is one that it changes.
    work_conserving
        Whether batches carry what waits up to the token budget and no more, with ample memory and
        slots; None: not known.
    by_phase
        Whether it says how many tokens each phase gets, and the requests of a phase are served in
        order.
    phases
        Which phase is served alone while it has work, or first, by a rule of the paper's Table 1;
        None: by another.
    own_budget
        Whether it chooses the budget of each batch, up to the token budget.
    back_pressure
        Whether it weighs prefill against decode by what waits in each, as
        `penstock.system.adaptive.maxweight` does.
    cuts_prompts, cut_by
        Whether a prompt may be spread over batches, and the setting that says so; empty: none does.
    decodes_beyond
        Whether all that run decode in one batch, even beyond the token budget.
    decodes_at_once
        Whether all that run decode in one batch, so that no more may run than the token budget.
    slots_by_budget
        Whether no more requests run than the token budget, without a max batch size too.
    orders
        Orders of the queue that it knows.
    has_kv_memory
        Whether it comes with KV memory that ends, so that a server without a limit is not what it
        is.
    block_size
        Tokens in a block of KV memory, unless told otherwise.
    own_blocks
        Blocks that no request ever gets.
    whole_blocks
        Whether it cuts prompts to whole blocks.
    has_watermark
        Whether its admissions can be told to leave a share of the blocks free.
    watermark_alone
        Whether they do where nobody runs, too.
    admits_what_fits
        Whether nobody waits for memory while enough of it is free.
    longest_context
        Tokens that a request may come to, prompt and outputs, which are cut to it; 0: any.
    drafted_tokens
        Tokens beyond its own that a request needs memory for: drafts, until they are verified.
    reserves_last_token
        Whether memory reserved to completion has room for the last output, which is never computed.
    outputs_per_decode
        Outputs that a decode brings on average, with all its drafts.
    ahead
        Whether a batch is composed when the one before it starts.
    sorts_queue
        Whether its queue goes by rank in every order, longest declared outputs first.
    reads_declared, knows_outputs
        Whether its admission goes by the outputs that requests declare; and takes them for those
        that they make.
    beside_prompt
        Tokens of the budget that a batch keeps beside each prompt.
    loses_in_flight
        Whether a preempted request loses the token that the batch in progress brings.
    receives
        Whether requests that were prefilled elsewhere may go on here with their KV memory.
    caches_prefixes
        Whether prompts that begin alike may share blocks.
    caches_by_default
        Whether it shares them unless told otherwise.
    goes_by_cache
        Whether its queue goes by what the cache lacks, also where no two prompts begin alike.
    caches_in_tree
        Whether what it caches is a tree of prefixes (SGLang), in place of blocks by name.
    limit_rule
        How it chooses token budget and max batch size by itself; None: it wants to be told, or it
        is not known.
    gpu_rule
        How it divides the memory of a GPU; None: not known.
    program
        How it is started; None: not known.
    """

    name: str
    options: Mapping[str, Any] = {}
    rule: int = records.SEAM
    kernel_options: Mapping[str, int] = {}
    kernel_numbers: tuple[float, ...] = (0.0,)

    work_conserving: bool | None = None
    by_phase: bool = True
    phases: Phases | None = None
    own_budget: bool = False
    back_pressure: bool = False

    cuts_prompts: bool = True
    cut_by: str = ""
    decodes_beyond: bool = False
    decodes_at_once: bool = False
    slots_by_budget: bool = False
    orders: tuple[str, ...] = ("fcfs", "priority")

    has_kv_memory: bool = False
    block_size: int = 16
    own_blocks: int = 0
    whole_blocks: bool = False
    has_watermark: bool = True
    watermark_alone: bool = True
    admits_what_fits: bool = True
    longest_context: int = 0
    drafted_tokens: int = 0
    outputs_per_decode: float = 1.0
    reserves_last_token: bool = False
    ahead: bool = False
    sorts_queue: bool = False
    reads_declared: bool = False
    knows_outputs: bool = False
    beside_prompt: int = 0
    loses_in_flight: bool = False
    receives: bool = False
    caches_prefixes: bool = True
    caches_by_default: bool = False
    goes_by_cache: bool = False
    caches_in_tree: bool = False

    limit_rule: LimitRule | None = None
    gpu_rule: GpuRule | None = None
    program: Program | None = None

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
