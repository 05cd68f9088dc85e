"""A server: one engine, how long its batches take, and how it forms them."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.system.adaptive import STARVES_DECODES
from penstock.system.batch_time import MOST_TOKENS, BatchTime, Composition
from penstock.system.engine_flags import key
from penstock.system.front_end import FrontEnd
from penstock.system.gpu_memory import Gpu, KVTokens
from penstock.system.memory import BLOCK_SIZE, BLOCKS, MOST_CACHED_BLOCKS, TOKENS, Memory
from penstock.system.policies import PolicyFunction, resolve
from penstock.system.queue_limit import QueueLimit
from penstock.system.scheduler import Holds, Scheduler

_TOO_FAST_S, _TOO_SLOW_S = 5e-4, 5.0  # a full batch, and one of a token

_BUDGET = Range(1, MOST_TOKENS, "tokens", "a batch carries at least one token")
_ALONE = "a batch serves at least one request; leave it out for no limit"
_SLOTS = Range(1, MOST_TOKENS, "requests", _ALONE)

Scope = Literal["batch", "running"]
Convention = Literal["paper", "engine"]
Order = Literal["fcfs", "priority"]


@dataclasses.dataclass(frozen=True, init=False)
class Server(Checked):
    """One engine with its limits and its policy.

    Parameters
    ----------
    batch_time
        Seconds of a batch given its tokens.
    token_budget
        Most tokens in a batch (the paper's b_max, vLLM's max_num_batched_tokens).
    max_batch_size
        Most requests (the paper's k_max, vLLM's max_num_seqs); None: no limit.
    policy
        A name in `POLICIES` (``sarathi``, ``orca``, ``maxweight`` ...), ``module:function``, a
        function, or the scheduler of an engine (``vllm``, ``sglang`` ...; a name in `ENGINES`).
    scope
        What the max batch size counts: requests in one ``batch`` (the paper), or ``running`` ones,
        admitted and unfinished, a partial prefill included (engines).
    convention
        ``engine``: the end of prefill yields the first output token, output - 1 decode iterations
        follow. ``paper``: output decode iterations, the first of which yields the first token.
    policy_params
        Numbers handed to the policy; those not given follow from batch times and limits, see
        `params`. The settings of an engine, by name: ``{"long_prefill_threshold": 256}``.
    memory
        KV memory; None: no limit. ``kv_blocks`` (with ``block_size``) or ``kv_tokens`` stand for
        one with the usual rules.
    order
        Who is served first: ``fcfs`` (order of arrival) or ``priority`` (smaller numbers first,
        then arrival).
    gpu
        The model on its GPUs, from which the KV memory of an engine follows. A ``memory`` beside it
        says its rules, and that its size is ``estimated``. A policy that takes the place of the
        engine keeps that memory.
    front_end
        What takes requests in before the engine; None: it takes no time.
    queue_limit
        Whom it refuses on arrival; None: nobody.
    """

    batch_time: BatchTime
    token_budget: Annotated[int, _BUDGET, key("token_budget")]
    max_batch_size: Annotated[int, _SLOTS, key("max_batch_size")] | None
    policy: Scheduler
    scope: Scope
    convention: Convention
    policy_params: tuple[float, ...]
    memory: Memory | None
    order: Annotated[Order, key("order")]
    gpu: Gpu | None
    front_end: FrontEnd | None
    queue_limit: QueueLimit | None

    def __init__(
        self,
        batch_time: BatchTime,
        token_budget: int,
        max_batch_size: int | None = None,
        policy: str | Scheduler | PolicyFunction = "sarathi",
        scope: Scope = "running",
        convention: Convention = "engine",
        policy_params: Sequence[float] | Mapping[str, Any] = (),
        memory: Memory | None = None,
        order: Order = "fcfs",
        *,
        gpu: Gpu | None = None,
        front_end: FrontEnd | None = None,
        queue_limit: QueueLimit | None = None,
        kv_blocks: Annotated[int, BLOCKS, key("kv_blocks")] | None = None,
        kv_tokens: Annotated[int, TOKENS, key("kv_tokens")] | None = None,
        block_size: Annotated[int, BLOCK_SIZE, key("block_size")] | None = None,
    ) -> None:
        _check_batch_time(batch_time)
        scheduler = resolve(policy)
        memory = _memory(memory, kv_blocks, kv_tokens, block_size, scheduler.memory.block_size)
        vars(self).update(
            batch_time=batch_time,
            token_budget=token_budget,
            max_batch_size=max_batch_size,
            scope=scope,
            convention=convention,
            order=order,
            front_end=front_end,
            queue_limit=queue_limit,
        )
        self.__post_init__()  # what each of these may be stands on its field
        if gpu is not None:
            if not isinstance(gpu, Gpu):
                raise InputError(
                    f"gpu is {checks.shown(gpu)}; give a Gpu, such as Gpu('Llama-3.1-8B', 80)"
                )
            gpu, memory = _memory_of_gpu(gpu, scheduler, self.token_budget, memory)
        elif memory is not None and memory.estimated:
            memory = dataclasses.replace(memory, estimated=False)
        scheduler, numbers = scheduler.configured(policy_params)
        vars(self).update(policy=scheduler, policy_params=tuple(numbers), memory=memory, gpu=gpu)
        scheduler.check(self)
        self._check_limit()
        if memory is not None and memory.prefix_caching:
            reason = _why_no_cache(self, memory)
            if reason is not None:
                raise InputError(reason)
        self._check_most_tokens()

    def _check_limit(self) -> None:
        """Refuse a limit on the queue that the engine does not have."""
        known = self.policy.queue.limits
        for name in self.queue_limit.stated if self.queue_limit else ():
            if name not in known:
                has = f"it has {' and '.join(known)}" if known else "it has none"
                raise InputError(
                    f"queue_limit.{name} is no limit of {self.policy.name}; {has}. Give it to the "
                    "router of its pool (router_limit), or leave it out"
                )

    def _check_most_tokens(self) -> None:
        """Refuse batches of more tokens than can be, or than their times are known for."""
        if self.most_tokens > MOST_TOKENS:
            raise InputError(
                f"the settings of {self.policy.name} let a batch have {self.most_tokens:,} tokens, "
                f"above {MOST_TOKENS:,}; lower them, or token_budget"
            )
        self.batch_time.table(self.most_tokens)  # a measured table may not reach so far

    @property
    def behind_front_end(self) -> "Server":
        """The server without its front end: what comes there comes at the same rate."""
        return self if self.front_end is None else dataclasses.replace(self, front_end=None)

    def with_policy(self, policy: str | Scheduler | PolicyFunction) -> "Server":
        """Return the same server under another policy, with that one's own parameters.

        A policy that takes the place of an engine whose KV memory is estimated has the same KV
        memory.
        """
        return dataclasses.replace(self, policy=policy, policy_params=())  # type: ignore[arg-type]

    @functools.cached_property
    def params(self) -> tuple[float, ...]:
        """The numbers that the policy gets: those given, then what follows for it from batch times
        and limits.
        """
        numbers = self.policy_params
        if self.policy.parameters is None:
            return numbers
        follow = self.policy.parameters(
            self.batch_time, self.token_budget, self.max_batch_size, self.scope
        )
        return (*numbers, *follow[len(numbers) :])

    @property
    def scope_warning(self) -> str | None:
        """Why the policy is out of place where the max batch size counts running requests, or
        None.
        """
        counts_running = self.scope == "running" and self.max_batch_size is not None
        if not counts_running or not self.policy.batching.back_pressure:
            return None
        return f"{self.policy.name} {STARVES_DECODES}"

    @property
    def most_tokens(self) -> int:
        """The most tokens in a batch: the token budget, except for engines that go beyond it."""
        return self.policy.most_tokens(self.token_budget, self.most_requests)

    @property
    def capacity(self) -> float:
        """The most tokens/s that batches of any size carry."""
        return self.batch_time.capacity(self.most_tokens)

    @property
    def time_doubts(self) -> list[str]:
        """What to doubt of the batch times: what their table brought up, and their unit."""
        doubts = list(getattr(self.batch_time.by_tokens, "doubts", ()))
        one, full = (float(self.batch_time(tokens)) for tokens in (1, self.token_budget))
        if full < _TOO_FAST_S:
            doubts.append(
                f"A batch of {self.token_budget:,} tokens takes {1e3 * full:.3g} ms here, as on no "
                "engine: where batch times stand in ms, give ms, not seconds."
            )
        if one > _TOO_SLOW_S:
            doubts.append(
                f"A batch of one token takes {one:,.3g} s here, as on no engine: where batch times "
                "stand in seconds, give seconds, not ms."
            )
        known = getattr(self.batch_time, "uncertainty", None)
        if known is not None and known.seen is not None:
            doubts += self._lacks(known.seen.server_limits)
        return doubts

    def _lacks(self, limits: Mapping[str, Any]) -> list[str]:
        """Say which of the limits that batch times were calibrated with are missing here."""
        places = limits.get("max_batch_size", math.inf)
        kept = {
            "kv_tokens": self.memory is not None,
            "front_end": self.front_end is not None,
            "max_batch_size": self.max_batch_size is not None and self.max_batch_size <= places,
        }
        lines = [f"`{name}: {value}`" for name, value in limits.items() if not kept[name]]
        if not lines:
            return []
        to_add = " and ".join(lines).replace("'", "")  # YAML asks for no quotes around keys
        return [
            "The server that batch times were calibrated on had limits that are missing here, so "
            f"it may carry less: add {to_add}."
        ]

    @property
    def shortest_s(self) -> float:
        """The least time of a batch, s."""
        return float(self.batch_time.table(self.most_tokens)[1:].min())

    @property
    def caches_prefixes(self) -> bool:
        """Whether it keeps what prompts begin with, for others."""
        memory = self.memory
        if memory is None or memory.prefix_caching is not None:
            return memory is not None and memory.prefix_caching is True
        useful = memory.names_known or self.policy.queue.goes_by_cache
        return useful and self.why_no_cache is None

    def serving(self, names: bool) -> "Server":
        """Return the server as it serves prompts of which it is known what they have in common
        (``names``), or is not: an engine caches their prefixes unless told otherwise.
        """
        if self.memory is None or self.memory.names_known or not names:
            return self
        return self._with_names

    @functools.cached_property
    def _with_names(self) -> "Server":
        assert self.memory is not None
        return dataclasses.replace(self, memory=dataclasses.replace(self.memory, names_known=True))

    @functools.cached_property
    def without_cache(self) -> "Server":
        """The same server with its prefix cache off; itself, where its queue needs one."""
        if self.memory is None or not self.caches_prefixes:
            return self
        try:
            return dataclasses.replace(
                self, memory=dataclasses.replace(self.memory, prefix_caching=False)
            )
        except InputError:
            return self

    @property
    def why_no_cache(self) -> str | None:
        """Why prompts that begin alike are computed anew, and what to do about it; None where they
        are not, or where that was asked for.
        """
        memory, policy = self.memory, self.policy
        if memory is not None and memory.prefix_caching is not None:
            return None
        if not policy.memory.caches_prefixes:
            return f"{policy.name} has no prefix cache here; vllm and sglang have one"
        if not policy.memory.caches_by_default:
            return (
                f"{policy.name} caches no prefixes unless asked to; give it KV memory with "
                "`prefix_caching: true`"
            )
        if memory is None:
            return (
                f"the prefix cache of {policy.name} is in KV memory, which has no size here; give "
                "kv_tokens (an engine logs them at its start)"
            )
        return _why_no_cache(self, memory)

    @property
    def full_batch_rate(self) -> float:
        """Tokens/s of batches filled to the token budget."""
        return self.batch_time.rate_of(self.token_budget)

    @property
    def most_requests(self) -> int | None:
        """The max batch size; engines that are given none run as many requests as can fill a
        batch.
        """
        if self.max_batch_size is not None or not self.policy.batching.slots_by_budget:
            return self.max_batch_size
        # Where all that run decode at once, more of them would make larger batches.
        if self.policy.batching.decodes_beyond:
            return self.token_budget
        return self.filling_requests

    @property
    def filling_requests(self) -> int:
        """The fewest running requests that can fill every batch: one for each of its tokens.

        A step ahead it takes twice as many: those who end with the batch in progress keep their
        places while the next one is composed.
        """
        return self.token_budget * (1 + self.policy.batching.ahead)

    @property
    def by_phase(self) -> bool:
        """Whether nothing but the two phases decides who is served: no engine's rule, KV memory or
        priorities.
        """
        return self.policy.by_phase and self.memory is None and self.order == "fcfs"

    @property
    def by_lines(self) -> bool:
        """Whether lines, order and policy form its batches, as in the paper, whose time follows
        from their token load; else the kernel serves it as an engine.
        """
        return self.by_phase and self.batch_time.by_load

    @property
    def limits(self) -> str:
        """The limits in words."""
        slots = self.max_batch_size
        words = [
            f"token budget {self.token_budget:,}",
            "no max batch size" if slots is None else f"max batch size {slots:,} ({self.scope})",
        ]
        if self.memory is not None:
            about = " (estimated)" if self.memory.estimated else ""
            words.append(
                f"KV memory of {self.memory.blocks:,} blocks of {self.memory.block_size:,}{about}"
            )
        if self.order != "fcfs":
            words.append("by priority")
        words += [part.words for part in (self.front_end, self.queue_limit) if part is not None]
        return ", ".join(words)

    @property
    def kv_estimate(self) -> KVTokens | None:
        """The tokens that KV memory is estimated to hold, where they follow from the GPUs."""
        if self.gpu is None or self.gpu.engine is None:
            return None
        return self.gpu.kv_tokens(self.gpu.engine, self.token_budget)

    @property
    def kv_note(self) -> str | None:
        """What to know before an answer is read: that KV memory is estimated, or that an engine has
        no limit.
        """
        estimate = self.kv_estimate
        if estimate is not None and self.gpu is not None and self.gpu.engine is not None:
            share = self.gpu.share_words(self.gpu.engine)
            logged = self.gpu.windows or (
                'Your engine logs the true number at its start ("GPU KV cache size"). Give it as '
                "kv_tokens"
            )
            return (
                f"KV memory holds about {estimate.tokens:,} tokens ({estimate.low:,} to "
                f"{estimate.high:,}): an "
                f"estimate of what the weights of {self.gpu.model} leave on "
                f"{self.gpu.words}{share}. {logged}"
            )
        if self.policy.memory.limited and self.memory is None:
            note = (
                f"KV memory has no limit here, but in {self.policy.name} it has. Give the tokens "
                "that your engine logs "
                'at its start ("GPU KV cache size") as kv_tokens'
            )
            if self.policy.memory.gpu_rule is not None:
                note += ", or model and GPU, such as gpu: {model: Qwen3-32B, memory_gib: 80}"
            return note
        return None

    @property
    def kv_notes(self) -> list[str]:
        """The `kv_note` as sentences, where there is one."""
        return [f"{self.kv_note}."] if self.kv_note else []

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that requests can hold, or None without a limit."""
        if self.memory is None:
            return None
        return self.memory.blocks - self.policy.memory.own_blocks

    @property
    def work_conserving(self) -> bool | None:
        """Whether its batches carry what waits up to the token budget, with ample memory and slots:
        not where prompts are cut to whole blocks; None: not known.
        """
        cuts_to_blocks = self.policy.memory.whole_blocks and self.memory is not None
        if cuts_to_blocks and self.memory.block_size > 1:  # type: ignore[union-attr]
            return False
        return self.policy.batching.work_conserving

    @property
    def watermark_blocks(self) -> int:
        """Blocks that an admission leaves free."""
        if self.memory is None:
            return 0
        return int((self.memory.watermark or 0.0) * self.memory.blocks)

    @property
    def spare_blocks(self) -> int:
        """Blocks that even an admission to an empty server leaves free."""
        if self.policy.memory.watermark_alone:
            return self.watermark_blocks
        return 0

    @property
    def holds(self) -> Holds:
        """For which tokens a running request surely has memory: ``computed``, its ``prefill``, to
        ``completion``.
        """
        return self.policy.holds(self.memory)

    @property
    def outputs_of_prefill(self) -> int:
        """Output tokens that the end of a prefill yields: one of engines, none in the paper."""
        return int(self.convention == "engine")

    def tokens_per_request(self, mean_prompt: float, mean_output: float) -> float:
        """Return the forward tokens that a request costs on average: prompt + output, less one for
        engines.
        """
        return mean_prompt + mean_output - self.outputs_of_prefill


def _check_batch_time(batch_time: BatchTime) -> None:
    """Refuse what is no batch-time model, and one that the kernel cannot follow."""
    if not isinstance(batch_time, BatchTime):
        raise InputError(
            f"batch_time is {batch_time!r}; give a batch-time model such as PiecewiseConstant(c, "
            "a, b0)"
        )
    if not batch_time.by_load and type(batch_time) is not Composition:
        raise InputError(
            f"batch_time is {checks.shown(batch_time)}, a model of your own that goes by more "
            "than the token load, "
            "which the kernel cannot follow; give a Composition"
        )


def _memory(
    memory: Memory | None,
    kv_blocks: int | None,
    kv_tokens: int | None,
    block_size: int | None,
    usual: int,
) -> Memory | None:
    """Return the one memory that was given, in whichever form."""
    if block_size is not None and kv_blocks is None and kv_tokens is None:
        raise InputError(
            f"block_size is {checks.shown(block_size)} without kv_blocks or kv_tokens, so it "
            "divides nothing; give one of them, or the block_size in memory"
        )
    if block_size is None:
        block_size = usual
    names = [
        name
        for name, value in (("memory", memory), ("kv_blocks", kv_blocks), ("kv_tokens", kv_tokens))
        if value is not None
    ]
    if len(names) > 1:
        raise InputError(f"{' and '.join(names)} say the same thing; give one of them")
    if memory is not None and not isinstance(memory, Memory):
        raise InputError(
            f"memory is {checks.shown(memory)}; give a Memory, or kv_blocks and block_size"
        )
    if kv_blocks is not None:
        return Memory(kv_blocks, block_size)
    if kv_tokens is not None:
        return Memory.of_tokens(kv_tokens, block_size)
    return memory


def with_kv_tokens(server: Server, tokens: int) -> Server:
    """Return a server with KV memory of so many tokens, its rules and blocks as they are."""
    rules = server.memory or Memory(1, server.policy.memory.block_size)
    blocks = Memory.of_tokens(tokens, rules.block_size).blocks
    return dataclasses.replace(server, memory=dataclasses.replace(rules, blocks=blocks), gpu=None)


def _memory_of_gpu(
    gpu: Gpu, policy: Scheduler, token_budget: int, rules: Memory | None
) -> tuple[Gpu, Memory | None]:
    """Return the GPU with its engine, and the memory that it leaves to that one, by the rules."""
    if rules is not None and not rules.estimated:
        raise InputError(
            f"gpu and a memory of {rules.blocks:,} blocks (memory, kv_blocks or kv_tokens) both "
            "say how large KV memory is; give one of them"
        )
    engine = gpu.engine if policy.memory.gpu_rule is None else policy
    if engine is None:
        return gpu, None
    size = engine.memory.block_size if rules is None else rules.block_size
    if gpu.engine is not None and size == gpu.engine.memory.block_size:
        size = engine.memory.block_size  # not one that was chosen
    memory = Memory.of_tokens(gpu.kv_tokens(engine, token_budget).tokens, size)
    rules = dataclasses.replace(
        rules or memory, blocks=memory.blocks, block_size=size, estimated=True
    )
    return dataclasses.replace(gpu, engine=engine), rules


def _why_no_cache(server: Server, memory: Memory) -> str | None:
    """Return why a server cannot cache prefixes, and what to do about it; None where it can."""
    policy, usable = server.policy, server.usable_blocks or 0
    if not policy.memory.caches_prefixes:
        return (
            f"prefix_caching is on, but {policy.name} has no prefix cache here; take vllm, or a "
            "policy such as sarathi, or leave it out"
        )
    if memory.admission not in (None, "input"):
        return (
            f"admission is {memory.admission!r} beside prefix_caching, which is known for "
            "admission 'input' only; leave one out"
        )
    if usable > MOST_CACHED_BLOCKS:
        return (
            f"kv_blocks is {usable:,}, but with prefix caching each is kept account of, and "
            f"{MOST_CACHED_BLOCKS:,} fit here; lower it, or set prefix_caching to false"
        )
    return policy.why_no_cache(server)
