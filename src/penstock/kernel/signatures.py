"""The policy seam: what a policy sees, what it returns, and the one type under which it is
compiled.

Every policy has the same explicit Numba type, so one compiled and disk-cached kernel serves them
all, a user's own included. The named tuples live here, in an importable module, because a class
defined in ``__main__`` would defeat that cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

DECODE_FIRST = 0
"""The kernel serves the decode tokens first; prefill gets the tokens and slots really left."""

PREFILL_FIRST = 1
"""The kernel serves the prefill tokens first; decode gets the tokens and slots really left."""


class Queue(NamedTuple):
    """What a policy sees of the requests that wait, and the totals from which it can learn their
    mean lengths.
    """

    prompts: int  # in prefill that may be served in this batch (the max batch size bounds them)
    prompt_tokens: int  # their unprocessed prompt tokens
    decoding: int  # in decode; each can contribute one token to a batch
    waiting: int = 0  # all in prefill, whether or not they may be served in this batch
    waiting_tokens: int = 0  # their unprocessed prompt tokens
    head_tokens: int = 0  # those of the oldest of them; 0 if there is none
    decode_tokens: int = 0  # decode iterations still to come; a server can only estimate them
    arrived: int = 0  # since the start
    arrived_tokens: int = 0  # their prompt tokens
    finished: int = 0  # since the start
    finished_decodes: int = 0  # the decode iterations that they took


BATCH_FIELDS = ("prompts", "prompt_tokens", "decoding")
"""What changes when a request that may be served arrives, moves on or finishes."""

FINISH_FIELDS = ("finished", "finished_decodes")
"""What changes when a request finishes."""

ARRIVAL_FIELDS = ("waiting", "waiting_tokens", "head_tokens", "arrived", "arrived_tokens")
"""What changes also when a request arrives that may not be served yet."""

SEES_BATCH, SEES_ARRIVALS, SEES_DECODES = range(3)
"""What a policy looks at: decides how many equal batches may be one step, by what changes between
them.

`SEES_BATCH`: `BATCH_FIELDS` and `FINISH_FIELDS` alone. `SEES_ARRIVALS`: `ARRIVAL_FIELDS` too, so
that any arrival ends a step. `SEES_DECODES`: ``decode_tokens`` too, so that every batch is a step
of its own.
"""


class Limits(NamedTuple):
    """The limits of one batch."""

    token_budget: int  # the paper's b_max
    batch_size: int  # the paper's k_max; a very large number where there is no limit


QUEUE = types.NamedUniTuple(types.int64, len(Queue._fields), Queue)
LIMITS = types.NamedUniTuple(types.int64, 2, Limits)
PARAMS = types.Array(types.float64, 1, "C", readonly=True)
COMPOSITION = types.UniTuple(types.int64, 3)
POLICY_SIGNATURE = COMPOSITION(QUEUE, LIMITS, PARAMS)
"""``policy(queue, limits, params) -> (prefill_tokens, decode_tokens, which phase is filled
first)``.
"""

POLICY = types.FunctionType(POLICY_SIGNATURE)

NOT_ASKED_FOR = (
    "a negative number of tokens, one that is no number, or another phase first than "
    "DECODE_FIRST or PREFILL_FIRST"
)
ASK_FOR = "return at least 0 tokens of each phase, and one of these two"
"""What messages say of a policy that asks for what nobody can serve, and what it is to do."""

_INTERPRETED: dict[int, Any] = {}

interpreted: Callable[[int], Any] = _INTERPRETED.__getitem__
"""The function that a number stands for, in the place of its address, where nothing is compiled."""


def call_at(context: Any, builder: Any, signature: Any, address: Any, args: Any) -> Any:
    """Call, in what is being compiled, the function at an address."""
    convention, returned = context.call_conv, signature.return_type
    kind = convention.get_function_type(returned, signature.args)
    function = builder.inttoptr(address, kind.as_pointer())
    status, value = convention.call_function(builder, function, returned, signature.args, args)
    with cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    return value


def function_at(kind: Any) -> Any:
    """Return what makes, in compiled code, a function of a kind of its address."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return interpreted

    @intrinsic
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = cgutils.create_struct_proxy(kind)(context, builder)
            function.jit_addr = builder.inttoptr(args[0], cgutils.voidptr_t)
            function.c_addr = function.jit_addr
            function.py_addr = function.jit_addr
            return function._getvalue()

        return kind(types.int64), generate

    return at


def address_of(compiled: Any, signature: Any) -> int:
    """Return where a compiled function begins; it must be kept alive while it may be called.

    A kernel gets addresses in its records: handed over as an argument, a function costs tens of
    microseconds at every call, and its type decides how many different ones there can be.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        _INTERPRETED[id(compiled)] = compiled
        return id(compiled)
    result = compiled.get_compile_result(signature)
    address: int = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    return address


policy_at: Callable[[int], Any] = function_at(POLICY)
"""In compiled code: the policy at an address."""

LINE_FIELDS = 8

(
    LINE_PROMPTS,
    LINE_PROMPT_TOKENS,
    LINE_DECODING,
    LINE_PREFILL_MEAN,
    LINE_DECODE_MEAN,
    LINE_NEXT,
    LINE_NEXT_PROMPTS,
    LINE_BATCHES,
) = range(LINE_FIELDS)
"""What an order sees of each line of a replica, as columns of ``lines``.

Requests in prefill, their unprocessed prompt tokens and requests in decode, at this replica; mean
prefill and mean decode tokens of the stage; requests of the stages that come next, in both phases
and in prefill only, by the mean number of them that a finished request releases, for each replica
of their pool; batches that this replica has formed.
"""

BY_LINE = 0
"""Lines by falling ``weights[:, 0]``; each is offered what is left, and the pool's policy chooses
its tokens.
"""

BY_PHASE = 1
"""Prefill and decode of each line by falling ``weights[line, phase]``; each takes what it has of
what is left.
"""

SPLIT = 2
"""The budget in proportion to ``weights[:, 0]``, the policy choosing within each share; then what
is left is filled.
"""

LINES = types.Array(types.float64, 2, "C")
ORDER_SIGNATURE = types.int64(LINES, PARAMS, LINES)
"""``order(lines, params, weights) -> mode``: fills ``weights``, shape (lines, 2); ``lines`` is
(lines, `LINE_FIELDS`).
"""

ORDER = types.FunctionType(ORDER_SIGNATURE)

order_at: Callable[[int], Any] = function_at(ORDER)
"""In compiled code: the order at an address."""

(
    ROUTE_RANDOM,
    ROUTE_ROUND_ROBIN,
    ROUTE_REQUESTS,
    ROUTE_TOKENS,
    ROUTE_WORK,
    ROUTE_POWER_OF_TWO,
    ROUTE_BY_FUNCTION,
) = range(7)
"""How a router chooses a replica; the codes that a kernel gets."""

SEEN_FIELDS = 8

(
    SEEN_REQUESTS,
    SEEN_WAITING,
    SEEN_TOKENS,
    SEEN_WORK,
    SEEN_MEMORY,
    SEEN_CACHED,
    SEEN_SPEED,
    SEEN_SENT,
) = range(SEEN_FIELDS)
"""What a router sees of each replica, as columns of ``replicas``.

Unfinished requests; of these, those that an engine has not admitted yet (at a server of the paper,
which admits nobody: all); tokens that have not gone into a batch; work (requests by the weights of
their stages and phases); the share of the KV memory in use (0 without a limit). Then what a router
knows by itself: tokens of this request's prompt that the replica has computed before (0 unless it
looks them up); tokens/s of a full batch; requests that it has sent there since the last report (0
where it sees replicas as they are).
"""

ASKED_FIELDS = 4

ASKED_PROMPT, ASKED_HOME, ASKED_COIN, ASKED_TURN = range(ASKED_FIELDS)
"""What it sees of the request: prompt tokens; the replica that the first request of its job here
went to (-1: this is the first); a number drawn uniformly from [0, 1), a multiple of 2^-32; how many
requests the pool has got before.
"""

ROUTER_SIGNATURE = types.int64(LINES, types.Array(types.float64, 1, "C"), PARAMS)
"""``router(replicas, request, params) -> place``: a row of ``replicas``, shape (replicas,
`SEEN_FIELDS`).
"""

router_at: Callable[[int], Any] = function_at(types.FunctionType(ROUTER_SIGNATURE))
"""In compiled code: the router at an address."""
