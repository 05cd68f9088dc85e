"""A command is its function's signature: options are its keywords, their help is its docstring.

Options are the keywords of the command's function and, besides, those of the functions that it
asks, of which the source is read: `--help` has no time to import them. Help is the first sentence
that is said of a parameter, and its default. Where numpydoc allows a type (``name : TYPE``) stands
how the command line calls the value, or the option.
"""

import ast
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.show.options import Form

_OF_MANY = {
    "scenario": ("SCENARIO", "A YAML file: workload, server, simulate."),
    "policy": ("", "Policy, instead of the scenario's."),
    "seed": ("", "Seed, instead of the scenario's."),
    "as_json": ("--json", "Print one JSON document and nothing else."),
    "figures": ("DIR", "Write figures as SVG and PNG."),
    "report": ("FILE", "Write a page that stands alone (HTML)."),
    "strict": ("", "Exit with status 1 if it is not known to be stable, or a target to be met."),
    "why": ("", "Say besides what explains it: hypotheses, limits, assumptions."),
    "everything": ("--all", "Say everything: every table, every statistic with its interval."),
}
"""What many commands have, and do not describe: how it is called, and its help."""

_FORM = inspect.signature(Form).parameters
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_PACKAGE = Path(__file__).parents[1]
_PARAMETERS = re.compile(r"\n*Parameters\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", re.DOTALL)
_ENTRY = re.compile(r"^(\S.*)\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_SENTENCE = r".+?[.?](?= [A-Z]|$)"
_HELP = re.compile(rf"{_SENTENCE}(?: Default: {_SENTENCE})?")
_TYPED: dict[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, Path)},
    **dict.fromkeys(("Objective", "Record"), str),  # one of some words
    **dict.fromkeys(("Sequence[bool]", "Sequence[str]", "Sequence[str | Scheduler]"), str),
    **dict.fromkeys(("Mapping", "Sequence[Target | str]"), list[str]),
    **dict.fromkeys(("Progress", "Callable", "Stability", "Sequence[Outage]", "Server"), None),
    "None": NoneType,
}
"""What is typed for a type, by its name, or with what its brackets hold; None: programs alone have
it. A parameter of another type is an error, so that none is left out in silence.
"""


class Option(NamedTuple):
    """An option of a command, or an argument."""

    name: str
    kind: Any
    default: Any  # `inspect.Parameter.empty`: it must be given
    called: str = ""
    help: str = ""
    is_argument: bool = False

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return list[str] in (self.kind, *get_args(self.kind))

    @property
    def flag(self) -> str:
        """What is typed."""
        if self.called.startswith("--"):
            return self.called.split()[0]
        flag = f"--{self.name.replace('_', '-')}"
        return flag.removesuffix("s") if self.is_list else flag

    @property
    def metavar(self) -> str | None:
        """What stands for the value; None: its type."""
        if named := self.called.split()[self.called.startswith("--") :]:
            return named[0]
        if self.is_argument or self.is_list:
            return (self.name if self.is_argument else self.flag[2:]).upper()
        return "FILE" if Path in (self.kind, *get_args(self.kind)) else None

    def parameter(self, flags: Mapping[str, str]) -> inspect.Parameter:
        """Return what typer reads; what help says of other options names them as they are typed."""
        if self.kind is typer.Context:
            return inspect.Parameter(self.name, _KEYWORD, annotation=self.kind)
        text = re.sub("``(.+?)``", lambda name: flags.get(name[1], name[1]), self.help)
        if bool in (self.kind, *get_args(self.kind)) and text.startswith("Whether to "):
            text = text.removeprefix("Whether to ")
            text = text[0].upper() + text[1:]
        if self.is_list and not self.is_argument:
            first, default, last = text.partition(" Default: ")
            text = f"{first.removesuffix('.')}; repeatable.{default}{last}"
        flag = f"{self.flag}/--no-{self.flag[2:]}" if self.default is True else self.flag
        declared = (
            typer.Argument(metavar=self.metavar, help=text)
            if self.is_argument
            else typer.Option(flag, metavar=self.metavar, help=text)
        )
        annotation: Any = Annotated[self.kind, declared]
        return inspect.Parameter(self.name, _KEYWORD, default=self.default, annotation=annotation)


def command(
    *asks: str, only: str = "", but: str = "", form: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options: its own, all of the functions that it asks (public names, or
    ``module:name``) or ``only`` some or all ``but`` some, and of the ``form`` of its answer.
    """

    def with_options(function: Callable[..., None]) -> Callable[..., None]:
        docstring = inspect.getdoc(function) or ""
        texts = _texts(docstring, whole=True)
        of_form = f"as_json why everything {form}".split()
        keywords = {one.name: one for question in reversed(asks) for one in _keywords(question)}
        own: dict[str, Option] = {}
        declared: dict[str, Option] = {}
        form_options: dict[str, Option] = {}
        for one in inspect.signature(function).parameters.values():
            if one.name == "form":
                form_options = {
                    name: _option(its) for name, its in _FORM.items() if name in of_form
                }
            if one.name == "form" or one.kind is one.VAR_KEYWORD:  # the place of what is asked
                declared |= {n: o for n, o in keywords.items() if _is_taken(n, only, but)}
            else:
                own[one.name] = declared[one.name] = _option(one)
        options = {
            name: _with_help(option, texts, keywords, "scenario" in own)
            for name, option in (declared | own | form_options).items()
        }
        flags = {name: option.flag for name, option in options.items()}

        @functools.wraps(function)
        def run(**values: Any) -> None:
            # what is not typed is left to the function that is asked, which has a default
            arguments = {
                name: value
                for name, value in values.items()
                if name not in form_options and (name in own or value is not None)
            }
            if form_options:
                arguments["form"] = Form(**{name: values[name] for name in form_options})
            function(**arguments)

        parameters = [option.parameter(flags) for option in options.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__doc__ = _summary(docstring)
        return run

    return with_options


def _is_taken(name: str, only: str, but: str) -> bool:
    return name not in but.split() and (not only or name in only.split())


def _option(one: inspect.Parameter) -> Option:
    """Return what a parameter is on the command line: before the star they are arguments."""
    is_argument = one.kind is one.POSITIONAL_OR_KEYWORD and one.name not in _FORM
    return Option(one.name, one.annotation, one.default, is_argument=is_argument)


def pairs(option: str, texts: list[str] | None, example: str) -> dict[str, str]:
    """Return what is typed for an option such as ``--where COLUMN=VALUE`` as pairs."""
    flag, form = option.split()
    named: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not (name and equals):
            parts = " and ".join(form.lower().split("="))
            raise InputError(
                f"{flag} is {checks.shown(text)}, which names no {parts}; give {flag} {example}"
            )
        if name in named:
            raise InputError(f"{flag} {name} stands twice; give it once")
        named[name] = value.strip()
    return named


@functools.cache
def _keywords(question: str) -> tuple[Option, ...]:
    """Return the keywords of a function that can be typed, as its source declares them."""
    function = _source(question)
    texts = _texts(ast.get_docstring(function) or "", whole=False)
    arguments = function.args
    optional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    defaults = [*zip(optional, arguments.defaults, strict=True)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults += [(argument, default) for argument, default in keywords if default]
    options = []
    for argument, default in defaults:
        kind = _kind(argument.annotation)
        if kind is None:
            continue
        called, text = texts.get(argument.arg, ("", ""))
        if elsewhere := re.match(r"As in `(?:penstock\.)?(\w+)`", text):
            there = next(one for one in _keywords(elsewhere[1]) if one.name == argument.arg)
            called, text = there.called, there.help
        try:
            value = ast.literal_eval(default)
        except ValueError:  # a constant, which the function has
            value = None
        if value == ():
            value = None
        if "Mapping" in _joined(argument.annotation)[0]:
            called = "NAME=VALUE"
        options.append(Option(argument.arg, kind, value, called, text))
    return tuple(options)


@functools.cache
def _parsed(path: str) -> list[ast.stmt]:
    return ast.parse(_PACKAGE.joinpath(path).read_text(encoding="utf-8")).body


def _source(question: str) -> ast.FunctionDef:
    """Return a function as it stands in its module, the last after overloads."""
    module, _, name = question.rpartition(":")
    if not module:
        public = (one for one in _parsed("__init__.pyi") if isinstance(one, ast.ImportFrom))
        module = next(str(one.module) for one in public if name in (of.name for of in one.names))
    source = _parsed(f"{module.replace('.', '/')}.py")
    return [one for one in source if isinstance(one, ast.FunctionDef) and one.name == name][-1]


def _kind(annotation: ast.expr | None) -> Any:
    """Return what is typed for an annotation; None: programs alone have it."""
    types = _joined(annotation)
    kinds = [_TYPED[one] if one in _TYPED else _TYPED[one.partition("[")[0]] for one in types]
    if None in kinds:
        return None
    kind = next((one for one in kinds if one not in (str, NoneType)), str)
    return kind | None if NoneType in kinds or kind == list[str] else kind


def _joined(annotation: ast.expr | None) -> list[str]:
    """Return the types that a union joins, or the one that it is."""
    if isinstance(annotation, ast.BinOp):
        return [*_joined(annotation.left), *_joined(annotation.right)]
    return [ast.unparse(annotation)] if annotation else [""]


def _texts(docstring: str, *, whole: bool) -> dict[str, tuple[str, str]]:
    """Return how each parameter is called on the command line, and what is said of it: the whole,
    or its first sentence.
    """
    section = _PARAMETERS.search(docstring)
    texts = {}
    for head, body in _ENTRY.findall(f"{section[1]}\n") if section else []:
        names, _, called = head.partition(" : ")
        text = " ".join(body.split())
        first = None if whole else _HELP.match(text)
        for name in names.split(", "):
            texts[name] = (called, first[0] if first else text)
    return texts


def _with_help(
    option: Option,
    texts: Mapping[str, tuple[str, str]],
    keywords: Mapping[str, Option],
    of_scenario: bool,
) -> Option:
    """Return an option as its command describes it, else as the function does that is asked."""
    called, text = texts.get(option.name, ("", ""))
    many = _OF_MANY.get(option.name, ("", ""))
    there = keywords.get(option.name, option)
    called = called or there.called or many[0]
    text = text or (many[1] if of_scenario else "") or there.help or many[1]
    if of_scenario and option.name in ("requests", "jobs") and option.default is None:
        text = f"{text.partition(' Default: ')[0]} Default: the scenario's."
    return option._replace(called=called, help=text)


def _summary(docstring: str) -> str:
    """Return what a docstring says before its parameters; what is indented stays as it is."""
    paragraphs = _PARAMETERS.sub("", docstring).split("\n\n")
    return "\n\n".join(f"\b\n{text}" if text.startswith(" ") else text for text in paragraphs)
