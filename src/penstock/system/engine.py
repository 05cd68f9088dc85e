"""The scheduler of an engine, in general: its settings, how a server is given it, and what it
cannot be told.

Each engine is a dataclass in `penstock.system.engines`.
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Checked, Range, parts_of
from penstock.kernel.signatures import SEES_DECODES, Queue
from penstock.system.engine_flags import hint, plain
from penstock.system.memory import Memory
from penstock.system.scheduler import Batching, KVUse, Scheduler, Waiting

if TYPE_CHECKING:
    from penstock.system.server import Server

SHARE = Range(0, 1, "", "it is a share")


def count(low: int = 0, high: int = 2**22) -> Range:
    """Return what a number of tokens, requests or steps may be."""
    return Range(low, high, "", "it is a number of tokens, requests or steps")


class Setting(NamedTuple):
    """What is to be said of a setting of an engine beside its type."""

    alias: str = ""  # what the engine itself calls it
    needs: str = ""  # the setting without which it says nothing
    # Other words of the engine, each with why it is refused.
    refused: tuple[tuple[str, str], ...] = ()


class Engine(Checked, Scheduler):
    """The scheduler of an engine: a dataclass whose fields are its settings.

    ``name`` is how tables and messages call it, ``rule`` the function of the kernel that forms its
    batches, in `penstock.kernel.engines`. The rule is told each attribute that it has a setting of
    that name for.
    """

    place: ClassVar[int] = 99  # in lists of engines: those that are used the most come first
    reads = frozenset(Queue._fields)
    sees = SEES_DECODES
    is_proved = True
    compiled = None  # there is no policy, which the kernel would ask

    batching = Batching()
    memory = KVUse()
    queue = Waiting()

    @classmethod
    def called(cls, field: str) -> str:
        """Return how messages call a setting."""
        return f"{cls.name}: {field}"

    @classmethod
    def known(cls) -> dict[str, Setting]:
        """Return what is to be said of its settings, by name."""
        return {
            field.name: next(
                (part for part in parts_of(field.type) if isinstance(part, Setting)), Setting()
            )
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        }

    def __repr__(self) -> str:
        usual = type(self)
        changed = {k: value for k, value in self.options.items() if value != getattr(usual, k)}
        return f"Engine({self.name!r}{''.join(f', {k}={v!r}' for k, v in changed.items())})"

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(self.options.values())

    @property
    def options(self) -> dict[str, Any]:
        """Its settings by name."""
        return {name: getattr(self, name) for name in self.known()}

    def state(self, batching: Batching, memory: KVUse, queue: Waiting | None = None) -> None:
        """State the facts that follow from the settings."""
        vars(self).update(batching=batching, memory=memory, queue=queue or self.queue)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """Return the same scheduler with other settings."""
        return type(self)(**_by_name(type(self), options))

    def configured(self, params: Any) -> tuple[Self, list[float]]:
        """Return it with other settings; it is given no numbers."""
        if isinstance(params, Sequence) and not params:
            return self, []
        return self.with_options(params), []

    def settings(self, numbers: tuple[float, ...]) -> dict[str, Any]:
        """Return its settings by name."""
        return self.options

    @property
    def decode_first(self) -> bool:
        """Whether each batch takes all decodes that fit: no waste means that these come first."""
        return bool(self.batching.work_conserving)

    @property
    def admits_what_fits(self) -> bool:
        """Whether nobody waits for memory that is free: no waste means that whoever fits comes."""
        return bool(self.batching.work_conserving)

    def check(self, server: "Server") -> None:
        """Refuse what an engine cannot be told."""
        scope, convention, slots = server.scope, server.convention, server.most_requests or 0
        if scope != "running" or convention != "engine":
            raise InputError(
                f"scope {scope!r} and convention {convention!r}: {self.name} counts running "
                "requests, and its prefill yields the first token; leave both out"
            )
        if server.order not in self.queue.orders:
            raise InputError(
                f"order is {server.order!r}, but {self.name} serves in order of arrival; leave it "
                "out"
            )
        if self.batching.decodes_at_once and slots > server.token_budget:
            raise InputError(
                f"max_batch_size is {slots:,}, but {self.name} decodes all that run in one batch "
                f"of at most {server.token_budget:,} tokens (token_budget); lower one or raise the "
                "other"
            )
        if server.memory is not None:
            self._check_memory(server.memory, server.token_budget)

    def _check_memory(self, memory: Memory, token_budget: int) -> None:
        if self.memory.whole_blocks and memory.block_size > token_budget:
            raise InputError(
                f"block_size is {memory.block_size:,}, but a chunk of {self.name} is whole blocks "
                f"within the token budget of {token_budget:,}, so no prompt is ever served; lower "
                "the one or raise the other"
            )
        if memory.admission is not None:
            raise InputError(
                f"admission is {memory.admission!r}, but {self.name} has its own; leave it out"
            )
        if memory.watermark is not None and not self.memory.has_watermark:
            raise InputError(
                f"watermark is {memory.watermark:g}, but {self.name} has none; leave it out"
            )


def kinds() -> list[type[Engine]]:
    """Return the engines of `penstock.system.engines`, those that are used the most first."""
    package = f"{__package__}.engines."
    known = [kind for kind in Engine.__subclasses__() if kind.__module__.startswith(package)]
    return sorted(known, key=lambda kind: kind.place)


def explained(flag: str) -> str | None:
    """Say what a flag of an engine is here, or why it is nothing; None: it is no such flag."""
    name = plain(flag).removeprefix("no_")
    places = [
        f"`policy: {engine.name}, policy_params: {{{key}: ...}}`"
        for engine in kinds()
        for key, setting in engine.known().items()
        if name and name in (key, setting.alias)
    ]
    return hint(name, f"it is given as {' or '.join(places)}" if places else None)


def _by_name(engine: type[Engine], options: Any) -> dict[str, Any]:
    """Return settings by their own names, of which each is known, and says something."""
    known, name = engine.known(), engine.name
    if not isinstance(options, Mapping):
        raise InputError(
            f"the policy_params of {name!r} are {checks.shown(options)}, but it has settings with "
            f"names ({', '.join(known) or 'none'}); give a mapping"
        )
    aliases = {setting.alias: key for key, setting in known.items() if setting.alias}
    settings: dict[str, Any] = {}
    for word, value in options.items():
        text = plain(str(word))
        key = aliases.get(text, text)
        if key not in known and (hint := explained(text)):
            raise InputError(f"{checks.shown(word)} is no setting of {name} here; {hint}")
        if key not in known:
            raise InputError(
                f"{name} has no setting {checks.shown(word)}{nearest(text, [*known, *aliases])}"
            )
        if key in settings:
            raise InputError(f"{name}: {key} is given twice; give it once")
        settings[key] = value
    settings |= dict(_in_words(engine, settings))
    for key, value in settings.items():
        needs = known[key].needs
        if needs and needs not in settings and value != getattr(engine, key):
            raise InputError(
                f"{name}: {key} is {checks.shown(value)}, but there are no {needs}, so it would "
                f"change nothing; give {needs}, too, or leave it out"
            )
    return settings


def _in_words(engine: type[Engine], settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that are words, in small letters: TensorRT-LLM writes them in capitals."""
    for field in dataclasses.fields(engine):  # type: ignore[arg-type]
        plainest, *extras = parts_of(field.type)
        if field.name in settings and typing.get_origin(plainest) is Literal:
            word = str(settings[field.name]).lower()
            for setting in extras:
                why = dict(setting.refused).get(word) if isinstance(setting, Setting) else None
                if why:
                    what = f"{engine.called(field.name)} is {word!r}"
                    raise InputError(f"{what}, which {why}; take another")
            if word in typing.get_args(plainest):
                yield field.name, word
