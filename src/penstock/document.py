"""YAML: read, checked against what its sections may hold, and refused in one line."""

import contextlib
import dataclasses
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Key, Range, key_of, parts_of, range_of
from penstock.inputs.source import Source

_MOST_VALUES = 100_000
"""In a scenario, its aliases written out: nine lines of them can stand for billions."""

_MOST_CHARACTERS = 4_000_000

_TOO_DEEP = "nests values too deeply to be read; a scenario needs few levels"


def _whole(value: Any) -> Any:
    """Let 1e3 be a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Section(BaseModel):
    """A mapping that refuses keys it does not know, and text or true where a number belongs."""

    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

    made: ClassVar[Callable[..., Any]]
    """What `with_keys_of` made it from."""
    parameters: ClassVar[Mapping[str, tuple[str, float]]] = {}
    """By key: the parameter of ``made`` that it is, and how many of its units make one of that."""

    def arguments(self) -> dict[str, Any]:
        """Return what the file says of the parameters of ``made``, by name."""
        given = {}
        for key, (name, per) in self.parameters.items():
            value = getattr(self, key)
            if value is not None:
                given[name] = value if per == 1 else value / per
        return given

    def build(self, *beside: Any, **more: Any) -> Any:
        """Return what it describes; what a file cannot say is given ``beside``."""
        return type(self).made(*beside, **self.arguments(), **more)

    @classmethod
    def unknown(cls, section: str, key: str) -> str:
        """Say that a section of that name has no such key, and which is near."""
        where = ".".join(part for part in (section, short(key)) if part)
        return f"{where} is not a key of a scenario{nearest(key, cls.known_keys())}"

    @classmethod
    def limits(cls) -> dict[str, str]:
        """Return from where to where its numbers may be, in words, by key."""
        ranges = {}
        for name, (kind, _) in _fields_of(cls.made).items():
            limits, key = range_of(kind), key_of(name, kind)
            if limits is not None and key.name in cls.parameters:
                here = key.limits(limits)
                ranges[key.name] = checks.limits(here.low, here.high, here.unit)
        return ranges

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the keys that it may have, as a file calls them."""
        own = [field for field in cls.model_fields if field not in cls.parameters]
        fields = [*own, *(key for key in cls.parameters if key in cls.model_fields)]
        return [name for field in fields for name in cls.names_of(field)]

    @classmethod
    def names_of(cls, field: str) -> list[str]:
        """Return the keys by which a file may call a field."""
        alias = cls.model_fields[field].validation_alias or field
        names = alias.choices if isinstance(alias, AliasChoices) else [alias]
        return [str(name) for name in names]


Sections = TypeVar("Sections", bound=Section)


def with_keys_of(
    made: Callable[..., Any], *, without: Collection[str] = (), optional: bool = False
) -> Callable[[type[Sections]], type[Sections]]:
    """Give a section a key for each field of a class, or for each parameter of a function.

    What the section itself has goes before, and what is ``without`` a key the code gives. Other
    values than the field takes are refused by its `Range`, in the unit of its `Key`. Where keys are
    ``optional``, what is left out follows from something else.
    """

    def decorated(section: type[Sections]) -> type[Sections]:
        keys: dict[str, Any] = {}
        parameters = {}
        for name, (kind, default) in _fields_of(made).items():
            if name in without:
                continue
            key = key_of(name, kind)
            parameters[key.name] = name, key.per
            if key.name not in section.model_fields:
                alias = AliasChoices(*key.names) if key.others else None
                usual = None if optional else default
                keys[key.name] = _read_as(kind, key, optional), Field(usual, validation_alias=alias)
        name = section.__name__ if section is not Section else f"{made.__name__}Section"
        whole = create_model(
            name, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **keys
        )
        whole.made, whole.parameters = staticmethod(made), parameters
        return whole

    return decorated


def _fields_of(made: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return the type and the usual value of each field or parameter; ``...``: it has none."""
    kinds = {}
    if dataclasses.is_dataclass(made):
        kinds = {field.name: field.type for field in dataclasses.fields(made)}
    return {
        name: (
            kinds.get(name, parameter.annotation),
            ... if parameter.default is inspect.Parameter.empty else parameter.default,
        )
        for name, parameter in inspect.signature(made).parameters.items()
    }


_PLAIN = Key("")


def stays_in(limits: Range, key: Key = _PLAIN, *, whole: bool = True) -> AfterValidator:
    """Return what refuses other values than those of a range, under a key."""
    here = key.limits(limits)
    return AfterValidator(here.whole if whole else here.number)


def _read_as(kind: Any, key: Key, optional: bool) -> Any:
    """Return the type by which a file's value is checked, of a field's type."""
    plain, limits = parts_of(kind)[0], range_of(kind)
    if plain not in (int, float, str, bool) and typing.get_origin(plain) is not typing.Literal:
        return Any  # which the field itself checks
    read: Any = Whole if plain is int else plain
    if limits is not None:
        read = Annotated[read, stays_in(limits, key, whole=plain is int)]
    return read | None if optional or types.NoneType in typing.get_args(kind) else read


@contextlib.contextmanager
def within(where: str, section: str = "") -> Iterator[None]:
    """Say where a mistake is, in place of a section's name that the message begins with."""
    try:
        yield
    except InputError as error:
        text = str(error)
        if text.startswith(where):  # a part of it has said where
            raise
        named = bool(section) and text.startswith((f"{section}.", f"{section}:"))
        raise InputError(where + text[len(section) :] if named else f"{where}: {text}") from error


def the_one(stated: Iterable[str], known: Iterable[str]) -> str:
    """Return which of several things that exclude each other is given."""
    chosen = list(stated)
    if len(chosen) != 1:
        raise InputError(f"give one of {', '.join(known)}, not {' and '.join(chosen) or 'none'}")
    return chosen[0]


def read_document(path: Path, kind: str = "scenario") -> Any:
    """Return what a YAML file of some kind holds."""
    try:
        if not path.exists():
            hint = (
                "`penstock check --help` shows what one looks like"
                if kind == "scenario"
                else "check its name"
            )
            raise InputError(f"there is no {kind.removesuffix(' file')} file {path}; {hint}")
        if path.is_file() and not path.stat().st_size:
            return None
        with Source.at(path).text() as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise InputError(
                f"{path} holds more than {_MOST_CHARACTERS:,} characters, so it is no {kind} and "
                "would take minutes to "
                "read; name a YAML file, and keep tables in files of their own"
            )
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a name that is too long or holds a zero; no UTF-8
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot read {checks.shown(str(path))} as text: {reason}; a {kind} is a YAML file"
        ) from None
    if _holds_many(text):
        raise InputError(
            f"{path} holds more than {_MOST_VALUES:,} keys and values, and a {kind} needs few; "
            "keep tables in files of their own"
        )
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(
            f"{path} is no YAML{where}: {getattr(error, 'problem', None) or 'unreadable'}"
        ) from None
    except RecursionError:
        raise InputError(f"{path} {_TOO_DEEP}") from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # 2020-99-99, !!int ''
        reason = str(error).split("; ")[0]
        raise InputError(
            f"{path} holds a value that cannot be read ({reason}); mend it, or quote text"
        ) from None


def check_mapping(document: Any, name: str, needs: str) -> None:
    """Refuse what has no keys; ``needs`` says in words which a scenario has."""
    if not isinstance(document, Mapping):
        raise InputError(
            f"{name} holds "
            f"{'nothing' if document is None else f'no keys but {checks.shown(document)}'}, "
            f"but a scenario is a mapping with {needs}"
        )


def parsed(document: Any, model: type[Sections], name: str, needs: str) -> Sections:
    """Return a document as the sections it should have; ``needs`` says in words what it needs."""
    _every_value(document, name)
    check_mapping(document, name, needs)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError(one_line(error, model)) from None
    except RecursionError:
        raise InputError(f"{name} {_TOO_DEEP}") from None


def _holds_many(text: str) -> bool:
    """Return whether YAML has more than `_MOST_VALUES` keys and values, without composing them."""
    # Short text is not looked through, and an error ends the look: reading says what it is.
    if len(text) > _MOST_VALUES:
        fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        with contextlib.suppress(yaml.YAMLError):
            nodes = (event for event in yaml.parse(text, fast) if isinstance(event, yaml.NodeEvent))
            return any(count > _MOST_VALUES for count, _ in enumerate(nodes))
    return False


class _Loader(yaml.SafeLoader):
    """YAML in which no key of a mapping stands twice, and 1e3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    problem="merge keys (<<) are not read; write the keys out",
                    problem_mark=key.start_mark,
                )
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {checks.shown(name)} stands twice, so which value counts is "
                    "unclear; drop one",
                    problem_mark=key.start_mark,
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    """Return a whole number; 0512 is 512, and not octal."""
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text), 0)


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS = {
    _INT: re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$"),
    _FLOAT: re.compile(
        r"""[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?
        |[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.[0-9][0-9_]*([eE][-+]?[0-9]+)?
        |\.(inf|Inf|INF))$
        |\.(nan|NaN|NAN)$""",
        re.VERBOSE,
    ),
}
"""What is a number, as in YAML 1.2: 1.1 wants 1.0e+3, takes 1:30 for 90, and 0512 for 330."""

_Loader.add_constructor(_INT, _whole_number)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def files_named(document: Any, folder: Path) -> dict[str, Path]:
    """Return the files that are named anywhere in a document, by their names in it."""
    texts = [value for value in _every_value(document, "scenario") if isinstance(value, str)]
    paths = {text: folder / os.path.expanduser(text) for text in texts}
    return {text: path for text, path in paths.items() if os.path.isfile(path)}


def _every_value(document: Any, name: str) -> list[Any]:
    """Return all values; refuse a document that holds itself, or one part endlessly often."""
    left, values = [document], []
    while left:
        value = left.pop()
        values.append(value)
        if len(values) + len(left) > _MOST_VALUES:
            raise InputError(
                f"{name} holds more than {_MOST_VALUES:,} values with its aliases (*) written "
                "out, or one within "
                "itself, so reading would not end; write the values themselves"
            )
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)
    return values


def one_line(error: ValidationError, model: type[Section]) -> str:
    """Say the first thing that is wrong in a document of such sections, and where."""
    problems = error.errors()
    # An unknown key is the cause where the key it was meant to be is missing too.
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    places = _places(problem)
    where = _path(places) or "the scenario"
    value = problem.get("input")
    shown = f", not {_in_yaml(value)}"
    quoted = isinstance(value, str) and re.fullmatch(
        r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", value[:100]
    )
    bare = "; write it without quotes" if quoted else "; give one"
    if places[-1:] == ["[key]"]:
        return (
            f"{_path(problem['loc'][:-2])} has the name {checks.shown(value)}, but a name is "
            "text; put it in quotes"
        )
    match problem["type"]:
        case "extra_forbidden":
            *section, key = places
            found = _section_at(model, section)
            return (
                found.unknown(_path(section), str(key))
                if found
                else f"{where} is not a key of a scenario; leave it out"
            )
        case "missing":
            if where == "server" and "plan" in value:
                return (
                    "server is missing: the plan of this file searches for one; name the one to "
                    "ask about, such as server: {hardware: {model: Llama-3.1-8B, gpu: h100-sxm}}"
                )
            return f"{where} is missing; add it"
        case "value_error" | "assertion_error":
            text = str(problem["ctx"]["error"]) if "ctx" in problem else problem["msg"]
            # What a `Range` says of a value lacks its name.
            return f"{where}{text}" if text.startswith(" is ") else f"{where}: {text}"
        case "model_type" | "dict_type" | "model_attributes_type":
            found = _section_at(model, places)
            keys = f" ({', '.join(found.known_keys())})" if found else ""
            if isinstance(value, str) and "--" in value:
                keys = (
                    ", one for each option of a command line, such as max_num_seqs: 256, and "
                    "hardware: {model: ..., gpu: ...}"
                )
            return f"{where} must be a mapping of keys{keys}{shown}"
        case "int_type" | "int_from_float":
            return f"{where} must be a whole number{shown}{bare}"
        case "float_type":
            return f"{where} must be a number{shown}{bare}"
        case "bool_type" | "bool_parsing":
            return f"{where} must be true or false{shown}"
        case "string_type":
            return f"{where} must be text{shown}; if it is meant as text, put it in quotes"
        case "list_type":
            return f"{where} must be a list such as [1, 2]{shown}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
            word = next(
                f"{words[key]} {limit:g}" for key, limit in problem["ctx"].items() if key in words
            )
            return f"{where} must be {word}{shown}"
        case "finite_number":
            return f"{where} must be a finite number{shown}"
        case "literal_error":
            return f"{where} must be {problem['ctx']['expected']}{shown}"
        case _:
            return f"{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}"


def _in_yaml(value: object) -> str:
    """Show a value as the file has it: null, and true."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return checks.shown(value)


def _places(problem: Any) -> list[int | str]:
    """Return where a problem is, without the class that pydantic names where there is a choice."""
    if not problem["loc"]:
        return []
    *places, last = problem["loc"]
    choices = {"str", *_names(Section)}
    kept = [place for place in places if place not in choices]
    is_choice = last in choices and problem["type"] != "extra_forbidden"
    return kept if is_choice else [*kept, last]


def _names(section: type[Section]) -> set[str]:
    """Return the names of the classes that come of one."""
    return {n for sub in section.__subclasses__() for n in (sub.__name__, *_names(sub))}


def _path(places: Sequence[object]) -> str:
    return ".".join(short(place) for place in places)


def short(part: object) -> str:
    """Put a key on one line; a known one as it is."""
    text = str(part)
    return text if text.isidentifier() and len(text) <= 40 else checks.shown(part)


def _section_at(model: type[Section], places: Sequence[int | str]) -> type[Section] | None:
    """Return the section of a document at some place, or None where it has none there."""
    found: Any = model
    for place in places:
        if typing.get_origin(found) in (dict, list):
            found = typing.get_args(found)[-1]
        elif place in found.model_fields:
            found = found.model_fields[place].annotation
        else:
            return None
        choices = (found, *typing.get_args(found))  # a section, or one or None
        found = next(
            (c for c in choices if typing.get_origin(c) in (dict, list) or _is_section(c)), None
        )
        if found is None:
            return None
    return found if _is_section(found) else None


def _is_section(choice: Any) -> bool:
    return isinstance(choice, type) and issubclass(choice, Section)
