"""Policies: which tokens go into the next batch, as a pure function of a few numbers.

Inside each phase requests are served in order of arrival, so a policy only chooses how many prefill
tokens and how many decode tokens to take, and which of the two is filled first; the kernel serves
what is really there. The four policies of the paper (Section 4) are two lines each. A policy of
your own is a function of the same form:

>>> from penstock import policy, DECODE_FIRST
>>> @policy
... def cautious(queue, limits, params):
...     decode = min(queue.decoding, limits.batch_size, limits.token_budget)
...     return min(queue.prompt_tokens, limits.token_budget - decode, 64), decode, DECODE_FIRST
"""

import dataclasses
import dis
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Self, overload

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.kernel.signatures import (
    ARRIVAL_FIELDS,
    BATCH_FIELDS,
    DECODE_FIRST,
    FINISH_FIELDS,
    POLICY_SIGNATURE,
    PREFILL_FIRST,
    SEES_ARRIVALS,
    SEES_BATCH,
    SEES_DECODES,
    Limits,
    Queue,
)
from penstock.system import adaptive
from penstock.system.adaptive import Parameters
from penstock.system.engine import explained
from penstock.system.engines import ENGINES
from penstock.system.memory import Memory
from penstock.system.own_functions import OwnFunction
from penstock.system.scheduler import Batching, Holds, KVUse, Phases, Scheduler, Waiting

Composition = tuple[int, int, int]
PolicyFunction = Callable[[Queue, Limits, Floats], Composition]


@dataclasses.dataclass(frozen=True, eq=False)
class Policy(OwnFunction, Scheduler):
    """A policy, compiled when it is first needed.

    Attributes
    ----------
    name
        How tables and messages call it.
    function
        The function as written.
    work_conserving
        Whether it fills the token budget whenever what waits allows it, under no max batch size;
        None: not known. Theorem 1(b) needs it. The audit of a run can refute it.
    parameters
        ``(batch_time, token_budget, max_batch_size, scope) -> numbers``: the parameters that it
        gets where a server's ``policy_params`` gives none, or only the first of them. None: it
        gets those given.
    takes
        What ``policy_params`` may give, in order; None: anything.
    back_pressure
        Whether it weighs prefill against decode by what waits in each, as
        `penstock.system.adaptive.maxweight` does.
    phases
        Its rule, if it is one of the paper's four (Table 1): which phase is served alone while it
        has work, or first.
    own_budget
        Whether it chooses the budget of each batch, up to the token budget.
    rising
        Whether what ``policy_params`` gives must be above 0 and not fall.
    """

    name: str
    function: PolicyFunction
    work_conserving: bool | None = None
    parameters: Parameters | None = None
    takes: tuple[str, ...] | None = None
    back_pressure: bool = False
    phases: Phases | None = None
    own_budget: bool = False
    rising: bool = False
    by_phase = True
    memory = KVUse(limited=False, has_watermark=True, receives=True, caches_prefixes=True)
    queue = Waiting(("fcfs", "priority"))
    word = "policy"
    family = Scheduler
    arguments = ("queue", "limits", "params")
    signature = POLICY_SIGNATURE
    form = (
        "a policy is plain arithmetic on queue.prompts, queue.prompt_tokens, queue.decoding, "
        "limits.token_budget, limits.batch_size and the array params, and returns (prefill_tokens, "
        "decode_tokens, DECODE_FIRST or PREFILL_FIRST)"
    )

    def __call__(self, queue: Queue, limits: Limits, params: Sequence[float] = ()) -> Composition:
        """Return (prefill tokens, decode tokens, phase filled first) for one state of the queue."""
        prefill, decode, first = self.function(queue, limits, np.asarray(params, np.float64))
        return int(prefill), int(decode), int(first)

    def __post_init__(self) -> None:
        checks.word("work_conserving", self.work_conserving, (True, False, None))
        facts = (self.work_conserving, self.phases, self.own_budget, self.back_pressure)
        vars(self)["batching"] = Batching(*facts, cuts_prompts=True, slots_by_budget=False)

    @property
    def decode_first(self) -> bool:
        """Whether each batch takes all decodes that fit, then prompts, cut to fill it."""
        return self.phases == "decode-first"

    def holds(self, memory: Memory | None) -> Holds:
        """Return for which tokens a running request surely has memory."""
        if memory is None or memory.admission == "optimistic":
            return "computed"
        if memory.admission == "completion":
            return "completion"
        return "prefill"

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """The fields of `Queue` that it may look at."""
        return fields_read(self.function)

    @property
    def sees(self) -> int:
        """What it looks at, as the kernel's option: decides how many equal batches may be one
        step.
        """
        if self.reads <= {*BATCH_FIELDS, *FINISH_FIELDS}:
            return SEES_BATCH
        return (
            SEES_ARRIVALS
            if self.reads <= {*BATCH_FIELDS, *FINISH_FIELDS, *ARRIVAL_FIELDS}
            else SEES_DECODES
        )

    @property
    def keeps_queues(self) -> bool:
        """Whether long queues may be normal under it: it looks at them."""
        return self.sees != SEES_BATCH

    @property
    def is_proved(self) -> bool:
        """Whether it is work-conserving by the definition of one of Penstock's, and not by its
        author's claim.
        """
        return any(
            self.function is policy.function and policy.work_conserving
            for policy in POLICIES.values()
        )

    def configured(self, params: Any) -> tuple[Self, list[float]]:
        """Return it, and the numbers given; refuse those that one of Penstock's would ignore or
        misread.
        """
        if isinstance(params, str | Mapping) or not isinstance(params, Iterable):
            flags = params if isinstance(params, Mapping) else ()
            hint = next(filter(None, (explained(str(flag)) for flag in flags)), "give a list")
            raise InputError(
                f"policy_params is {checks.shown(params)}, but {self.name} takes numbers; {hint}"
            )
        numbers = [
            checks.number("a policy parameter", p, -1e300, 1e300, "", "policies compute with it")
            for p in params
        ]
        if self.takes is None:
            return self, numbers
        takes = " and ".join(self.takes) or "no parameters"
        if len(numbers) > len(self.takes):
            raise InputError(
                f"policy_params has {len(numbers)} numbers, but {self.name} takes {takes}; leave "
                "out the rest"
            )
        if min(numbers, default=0.0) < 0:
            raise InputError(
                f"policy_params has {min(numbers):g}, but {self.name} takes {takes}; none is "
                "below 0"
            )
        if self.rising and (0 in numbers or numbers != sorted(numbers)):
            raise InputError(
                f"policy_params is {numbers}, but must be {takes}, above 0 and not falling; mend "
                "them"
            )
        return self, numbers

    def settings(self, numbers: tuple[float, ...]) -> list[float]:
        """Return the numbers given."""
        return list(numbers)


def fields_read(function: PolicyFunction) -> frozenset[str]:
    """Return the fields of `Queue` that a function reads; all, where that cannot be told."""
    # It can where the function does nothing with its first argument but take attributes of it.
    everything = frozenset(Queue._fields)
    if not isinstance(function, FunctionType) or function.__code__.co_argcount == 0:
        return everything
    queue = function.__code__.co_varnames[0]
    instructions = list(dis.get_instructions(function))
    read = set()
    for instruction, following in itertools.pairwise(instructions):
        names = (
            instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        )
        if queue in names and "FAST" not in instruction.opname:
            return everything  # an inner function has it
        if queue in names:
            alone = (
                names[-1] == queue and names.count(queue) == 1 and following.opname == "LOAD_ATTR"
            )
            if not alone or following.argval not in everything:
                return everything
            read.add(following.argval)
    return frozenset(read)


@overload
def policy(function: PolicyFunction) -> Policy: ...
@overload
def policy(
    *, name: str | None = None, work_conserving: bool | None = None
) -> Callable[[PolicyFunction], Policy]: ...
def policy(
    function: PolicyFunction | None = None,
    *,
    name: str | None = None,
    work_conserving: bool | None = None,
) -> Policy | Callable[[PolicyFunction], Policy]:
    """Make a policy of a function ``(queue, limits, params) -> (prefill, decode, first)``.

    Parameters
    ----------
    function
        Plain arithmetic on ``queue.prompts``, ``queue.prompt_tokens``, ``queue.decoding``,
        ``limits.token_budget``, ``limits.batch_size`` and the float64 array ``params``; returns
        prefill tokens, decode tokens and `DECODE_FIRST` or `PREFILL_FIRST`. More than there is, or
        than fits, is cut by the kernel.
    name
        Default: the function's name.
    work_conserving
        Claim that the policy fills the token budget whenever it can; certificates rely on it and
        say so.

    Raises
    ------
    InputError
        If the function cannot be compiled to the policy type.
    """
    made: Policy | Callable[[PolicyFunction], Policy]
    made = Policy.of(function, name, work_conserving=work_conserving)
    return made


def fastertransformer(queue, limits, params):  # type: ignore[no-untyped-def]
    """Decodes alone while there are any, else prompts (FasterTransformer; paper, Section 4)."""
    decode = min(queue.decoding, limits.batch_size, limits.token_budget)
    prefill = 0 if queue.decoding > 0 else min(queue.prompt_tokens, limits.token_budget)
    return prefill, decode, DECODE_FIRST


def vllm_vanilla(queue, limits, params):  # type: ignore[no-untyped-def]
    """Prompts alone while there are any, else decodes: vLLM without chunks (paper, Section 4)."""
    prefill = min(queue.prompt_tokens, limits.token_budget)
    decode = 0 if queue.prompts > 0 else min(queue.decoding, limits.batch_size, limits.token_budget)
    return prefill, decode, PREFILL_FIRST


def orca(queue, limits, params):  # type: ignore[no-untyped-def]
    """Prompts first, then as many decodes as still fit (Orca; paper, Section 4)."""
    prefill = min(queue.prompt_tokens, limits.token_budget)
    decode = min(queue.decoding, limits.token_budget - prefill)
    return prefill, decode, PREFILL_FIRST


def sarathi(queue, limits, params):  # type: ignore[no-untyped-def]
    """Decodes first, then the oldest prompts, cut to fit (Sarathi-Serve; paper, Section 4)."""
    decode = min(queue.decoding, limits.batch_size, limits.token_budget)
    prefill = min(queue.prompt_tokens, limits.token_budget - decode)
    return prefill, decode, DECODE_FIRST


_MEANS = ("mean prompt tokens", "mean decode tokens")
_POOL = ("L (requests in decode from which on batches shrink)", "U (from which on none is let in)")

POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy("fastertransformer", fastertransformer, work_conserving=False, takes=(),
        phases="decode-alone"),
        Policy("vllm-vanilla", vllm_vanilla, work_conserving=False, takes=(),
        phases="prefill-alone"),
        Policy("orca", orca, work_conserving=True, takes=(), phases="prefill-first"),
        Policy("sarathi", sarathi, work_conserving=True, takes=(), phases="decode-first"),
        Policy("maxweight", adaptive.maxweight, False, adaptive.maxweight_parameters, _MEANS, True,
        own_budget=True),
        Policy("maxweight-tokens", adaptive.maxweight_tokens, False, adaptive.maxweight_parameters,
        (), True,
               own_budget=True),
        Policy("pool-controlled", adaptive.pool_controlled, True, adaptive.pool_parameters, _POOL,
        own_budget=True,
               rising=True),
        Policy("priced", adaptive.priced, False, adaptive.priced_parameters, _MEANS,
        own_budget=True),
    )
}  # fmt: skip
"""The policies that have a name: those of the paper's Table 1 in its order, then the adaptive ones.
"""


Policy.known = {**POLICIES, **ENGINES}


def resolve(choice: str | Scheduler | PolicyFunction, *, folder: Path | None = None) -> Scheduler:
    """Return the policy that a name, a ``module:function`` or a function stands for."""
    # ``folder``: where ``module`` and ``file.py`` are looked for first, the scenario's own.
    if isinstance(choice, str) and choice.lower() in Policy.known:
        choice = choice.lower()
    scheduler: Scheduler = Policy.named(choice, folder)
    return scheduler


def beside(own: Scheduler) -> list[Scheduler]:
    """Return what a server is compared with unless told otherwise, after its own policy."""
    others = [*ENGINES.values(), POLICIES["pool-controlled"]]
    return [own, *(other for other in others if other.name != own.name)]
