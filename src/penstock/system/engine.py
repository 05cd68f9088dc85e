"""The scheduler of an engine, in general: its settings, how a server is given it, and what it
cannot be told.

The engines themselves are entries in `penstock.system.engines`.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.signatures import SEES_DECODES, Queue
from penstock.system.engine_flags import hint, plain
from penstock.system.memory import Memory
from penstock.system.scheduler import Holds, Options, Scheduler

if TYPE_CHECKING:
    from penstock.system.server import Server

MOST_TOKENS = 2**22


class Option(NamedTuple):
    """A setting of an engine: its default, what it may be, and what the engine itself calls it.

    ``refused``: other words of the engine, with why they are refused. A tuple as default: a list of
    shares of one, or a single share. None: a share that follows from others. ``needs``: the setting
    without which it says nothing.
    """

    default: Any
    known: tuple[str, ...] | None = None  # words to choose from
    low: float = 0
    high: float = MOST_TOKENS
    alias: str = ""
    refused: Mapping[str, str] = {}
    needs: str = ""


class Engine(Scheduler, abc.ABC):
    """The scheduler of an engine: what its entry does not say otherwise.

    ``name`` is how tables and messages call it, ``rule`` the kernel's number for it, and
    ``options`` are the values of all its settings.
    """

    known: Mapping[str, Option] = {}  # the settings that it has

    def __init__(self, options: Options | None = None) -> None:
        defaults = {key: option.default for key, option in self.known.items()}
        self.options = (
            defaults if options is None else defaults | _checked(self.name, self.known, options)
        )
        if self.cut_by:
            self.cuts_prompts = self.options[self.cut_by]
        self.settle()
        # no waste means that all decodes come first, and that whoever fits comes in
        self.decode_first = self.admits_what_fits = bool(self.work_conserving)

    def settle(self) -> None:
        """Set the facts that follow from the settings."""

    def __repr__(self) -> str:
        changed = {k: v for k, v in self.options.items() if v != self.known[k].default}
        return f"Engine({self.name!r}{''.join(f', {k}={v!r}' for k, v in changed.items())})"

    def with_options(self, options: Options) -> Self:
        """Return the same scheduler with other settings."""
        return type(self)(options)

    by_phase = False
    has_kv_memory = True
    slots_by_budget = True
    orders: tuple[str, ...] = ("fcfs",)
    has_watermark = False
    caches_prefixes = False
    reads = frozenset(Queue._fields)
    sees = SEES_DECODES
    is_proved = True
    work_conserving = False
    cuts_prompts = False
    decode_first: bool = False
    # For which tokens a running request surely has memory: see `Scheduler.holds`.
    held: Holds = "computed"

    compiled = None  # there is no policy, which the kernel would ask

    def holds(self, memory: Memory | None) -> Holds:
        """Return for which tokens a running request surely has memory."""
        return self.held

    def configured(self, params: Any) -> tuple[Self, list[float]]:
        """Return it with other settings; it is given no numbers."""
        if isinstance(params, Sequence) and not params:
            return self, []
        return self.with_options(params), []

    def settings(self, numbers: tuple[float, ...]) -> dict[str, Any]:
        """Return its settings by name."""
        return dict(self.options)

    def check(self, server: "Server") -> None:
        """Refuse what an engine cannot be told."""
        scope, convention, slots = server.scope, server.convention, server.most_requests or 0
        if scope != "running" or convention != "engine":
            raise InputError(
                f"scope {scope!r} and convention {convention!r}: {self.name} counts running "
                "requests, and its prefill yields the first token; leave both out"
            )
        if server.order not in self.orders:
            raise InputError(
                f"order is {server.order!r}, but {self.name} serves in order of arrival; leave it "
                "out"
            )
        if self.decodes_at_once and slots > server.token_budget:
            raise InputError(
                f"max_batch_size is {slots:,}, but {self.name} decodes all that run in one batch "
                "of at most "
                f"{server.token_budget:,} tokens (token_budget); lower one or raise the other"
            )
        if server.memory is not None:
            self._check_memory(server.memory, server.token_budget)

    def _check_memory(self, memory: Memory, token_budget: int) -> None:
        if self.whole_blocks and memory.block_size > token_budget:
            raise InputError(
                f"block_size is {memory.block_size:,}, but a chunk of {self.name} is whole blocks "
                f"within the token budget of {token_budget:,}, so no prompt is ever served; lower "
                "the one or raise the other"
            )
        if memory.admission is not None:
            raise InputError(
                f"admission is {memory.admission!r}, but {self.name} has its own; leave it out"
            )
        if memory.watermark is not None and not self.has_watermark:
            raise InputError(
                f"watermark is {memory.watermark:g}, but {self.name} has none; leave it out"
            )


def explained(flag: str) -> str | None:
    """Say what a flag of an engine is here, or why it is nothing; None: it is no such flag."""
    name = plain(flag).removeprefix("no_")
    having = [
        (engine.name, key)
        for engine in Engine.__subclasses__()
        for key, option in engine.known.items()
        if name and name in (key, option.alias)
    ]
    said = [f"`policy: {engine}, policy_params: {{{key}: ...}}`" for engine, key in having]
    return hint(name, f"it is given as {' or '.join(said)}" if said else None)


def _checked(name: str, known: Mapping[str, Option], options: Options) -> dict[str, Any]:
    """Return the settings given, by their own names, once their values are sound."""
    if not isinstance(options, Mapping):
        raise InputError(
            f"the policy_params of {name!r} are {checks.shown(options)}, but it has settings with "
            f"names ({', '.join(known) or 'none'}); give a mapping"
        )
    aliases = {option.alias: key for key, option in known.items() if option.alias}
    settings: dict[str, Any] = {}
    for word, value in options.items():
        text = plain(str(word))
        key = aliases.get(text, text)
        if key not in known and (said := explained(text)):
            raise InputError(f"{checks.shown(word)} is no setting of {name} here; {said}")
        if key not in known:
            raise InputError(
                f"{name} has no setting {checks.shown(word)}{nearest(text, [*known, *aliases])}"
            )
        if key in settings:
            raise InputError(f"{name}: {key} is given twice; give it once")
        settings[key] = _value(f"{name}: {key}", value, known[key])
    for key, value in settings.items():
        needs = known[key].needs
        if needs and needs not in settings and value != known[key].default:
            raise InputError(
                f"{name}: {key} is {checks.shown(value)}, but there are no {needs}, so it would "
                f"change nothing; give {needs}, too, or leave it out"
            )
    return settings


def _value(what: str, value: Any, option: Option) -> Any:
    """Return the value of a setting, once it is sound."""
    if option.known is not None:
        # TensorRT-LLM writes them in capitals.
        word = str(value).lower()
        if word in option.refused:
            raise InputError(f"{what} is {word!r}, which {option.refused[word]}; take another")
        if word not in option.known:
            raise InputError(
                f"{what} is {checks.shown(value)}{nearest(str(value), filter(None, option.known))}"
            )
        return word
    if isinstance(option.default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{what} is {checks.shown(value)}, but must be true or false")
        return value
    if isinstance(option.default, tuple):
        return _shares(what, value)
    if option.default is None and value is None:
        return None
    if option.default is None or isinstance(option.default, float):
        return checks.number(what, value, option.low, option.high, "", "it is a share")
    low, high = int(option.low), int(option.high)
    return checks.whole(what, value, low, high, "", "it is a number of tokens, requests or steps")


def _shares(what: str, value: Any) -> tuple[float, ...]:
    """Return shares of one, of which one or several were given."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(checks.number(what, share, 0, 1, "", "it is a chance") for share in values)
