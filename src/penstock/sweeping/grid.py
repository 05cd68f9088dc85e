"""Which scenarios a sweep runs: dotted fields, their values, grids and random samples of them.

A field is a path into the scenario file: ``server.token_budget``,
``workload.poisson.output.geometric``. Its values are written as ``128,512,1024`` (each of them),
``1:10:0.5`` (from, to, step; the end belongs to it), ``64:1024:x2`` (each so many times the one
before), or, to be drawn at random, ``1:10`` and ``1:10:log``.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from penstock import checks
from penstock.errors import InputError
from penstock.sweeping.fields import resolved, takes_numbers, takes_whole

MOST_POINTS = 1_000_000
"""Of a sweep."""

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_ENDLESS = r"[-+]?\.(?i:inf|nan)"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(log|x{_NUMBER}|{_NUMBER}))?")
_SHORT_OF_A_STEP = 1e-9  # 1:10:0.1 ends with 10, whatever floats make of 90 tenths
_FARTHEST = 1e300  # ends to draw between: their distance must be a number, too
_FARTHEST_WHOLE = 2**53  # beyond it floats skip whole numbers


@dataclasses.dataclass(frozen=True)
class Values:
    """Values that a field takes one after the other; a random sample draws among them."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator, count: int) -> list[Any]:
        """Return so many of them, each as likely as the others."""
        return [self.values[index] for index in rng.integers(len(self.values), size=count)]


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval to draw from."""

    # Both included.
    low: float
    high: float
    log: bool = False  # the logarithm is uniform instead of the value
    whole: bool = False  # only whole numbers between the ends are drawn

    def __post_init__(self) -> None:
        name = f"the range {self.low:g}:{self.high:g}"
        limit = _FARTHEST_WHOLE if self.whole else _FARTHEST
        if not (abs(self.low) <= limit and abs(self.high) <= limit):
            raise InputError(
                f"{name} goes beyond {limit:g}, so not all of it could be drawn; narrow it"
            )
        if not self.low < self.high:
            raise InputError(f"{name} is empty; give the lower end first")
        if self.log and self.low <= 0:
            raise InputError(f"{name}:log has no logarithm at its lower end; raise it")
        if self.whole and math.ceil(self.low) > math.floor(self.high):
            raise InputError(
                f"{name} holds no whole number, and the field takes no others; widen it"
            )

    def draw(self, rng: np.random.Generator, count: int) -> list[Any]:
        """Return so many numbers."""
        low, high = (
            (math.ceil(self.low), math.floor(self.high)) if self.whole else (self.low, self.high)
        )
        reach = 0.5 if self.whole else 0.0  # so that the ends are as likely as the others
        least, most = low - reach, high + reach
        if self.log:
            drawn = np.exp(rng.uniform(np.log(least), np.log(most), count))
        else:
            drawn = rng.uniform(least, most, count)
        kept = np.clip(np.rint(drawn) if self.whole else drawn, low, high).tolist()
        return [int(value) for value in kept] if self.whole else kept


Axis = Values | Range


@dataclasses.dataclass(frozen=True)
class Point:
    """One scenario of a sweep: its index, what its fields are, and its seed."""

    index: int
    values: tuple[Any, ...]
    seed: int


def axis(field: str, values: Any) -> Axis:
    """Return what a field takes: text as on the command line, values, or (low, high) to draw."""
    whole = takes_whole(field)
    if isinstance(values, str):
        return _parsed(field, values, whole)
    if isinstance(values, tuple) and len(values) == 2:
        low, high = (
            checks.number(f"an end of {field}", end, -1e300, 1e300, "", "it is drawn from")
            for end in values
        )
        both = all(isinstance(end, int | np.integer) for end in values)
        return Range(low, high, whole=both if whole is None else whole)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, bool | int | float | np.generic) or values is None:
        values = [values]
    if isinstance(values, Sequence) and values:
        return _values(field, values)
    raise InputError(
        f"{field} varies over {checks.shown(values)}, which gives no values; give a list such as "
        "[128, 512], or text "
        "such as '1:10:0.5'"
    )


def axes(vary: Any) -> dict[str, Axis]:
    """Return what each field takes; all names are checked."""
    if not isinstance(vary, Mapping) or not vary:
        raise InputError(
            f"a sweep varies {checks.shown(vary)}, but needs fields of the scenario with their "
            "values; give "
            "server.token_budget=128,512 or the like"
        )
    fields: dict[tuple[str, ...], str] = {}
    for field in vary:
        keys = resolved(field)
        for before, name in fields.items():
            if before[: len(keys)] == keys or keys[: len(before)] == before:
                raise InputError(
                    f"{field} and {name} are one field, or one lies in the other; vary one of them"
                )
        fields[keys] = field
    return {field: axis(field, values) for field, values in vary.items()}


def points(
    chosen: Mapping[str, Axis], sample: int | None, seeds: Sequence[int], seed: int
) -> list[Point]:
    """Return the points: the grid of all values, or a random sample; each with every seed."""
    combinations: Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]
    # all combinations of listed values, or a draw of each field from a stream of its own
    if sample is None:
        for field, values in chosen.items():
            if isinstance(values, Range):
                ends = f"{values.low:g}:{values.high:g}"
                step = (values.high - values.low) / 10
                if values.whole:
                    step = max(1, round(step))
                raise InputError(
                    f"{field}={ends} has no step, so it is no grid; add one ({ends}:{step:.2g}), "
                    "or draw from it with "
                    "--sample"
                )
        lists = [axis.values for axis in chosen.values() if isinstance(axis, Values)]
        count = math.prod(len(values) for values in lists)
        combinations = itertools.product(*lists)
    else:
        count = checks.whole(
            "sample", sample, 1, MOST_POINTS, "points", "so many are drawn at random"
        )
        streams = np.random.SeedSequence([seed, 0]).spawn(len(chosen))
        columns = [
            axis.draw(np.random.default_rng(stream), count)
            for axis, stream in zip(chosen.values(), streams, strict=True)
        ]
        combinations = list(zip(*columns, strict=True))
    if count * len(seeds) > MOST_POINTS:
        raise InputError(
            f"the sweep has {count * len(seeds):,} points, but at most {MOST_POINTS:,} are run; "
            "vary less, or draw "
            "some of them with --sample"
        )
    every = itertools.product(combinations, seeds)
    return [Point(index, *values_and_seed) for index, values_and_seed in enumerate(every)]


def _parsed(field: str, text: str, whole: bool | None) -> Axis:
    """Read the values of a field as they stand on the command line."""
    match = _RANGE.fullmatch(text.strip())
    if not match:
        return _values(field, _listed(field, text))
    low, high = (_number(end) for end in match.group(1, 2))
    step = match[3]
    if step is None or step == "log":
        both = isinstance(low, int) and isinstance(high, int)
        return Range(low, high, log=step == "log", whole=both if whole is None else whole)
    by = _number(step.removeprefix("x"))
    times = step.startswith("x")
    count = 0.0
    if not times and by > 0:
        count = (high - low) / by
    elif times and by > 1 and low > 0 and high > 0:
        count = math.log(high / low) / math.log(by)
    if not 0 < count <= MOST_POINTS:
        raise InputError(
            f"{field}={text} never gets from {low:g} to {high:g} in up to {MOST_POINTS:,} steps; "
            "give from, to and a "
            "step above 0, or x and a factor above 1"
        )
    last = math.floor(count + _SHORT_OF_A_STEP * max(count, 1.0))
    made = [low * by**i if times else low + i * by for i in range(last + 1)]
    return Values(tuple(_tidy(value, whole) for value in made))


class _Loader(yaml.SafeLoader):
    """YAML where only a `_NUMBER` is a number, no text is a date, and nothing contains itself."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in kinds if tag.endswith((":bool", ":null"))]
        for first, kinds in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise InputError(
                "anchors (&), aliases (*) and tags (!) are not read among values; quote such text"
            )
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{_NUMBER}|{_ENDLESS})\Z"), list("-+.0123456789")
)
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: _number(node.value))


def _listed(field: str, text: str) -> list[Any]:
    """Read values that stand side by side on the command line."""
    try:
        values = yaml.load(f"[{text}]", _Loader)
    except InputError as error:
        raise InputError(f"{field}={checks.shown(text)}: {error}") from None
    except (
        yaml.YAMLError,
        ArithmeticError,
        ValueError,
        RecursionError,
    ):  # "\Uffffffff"; brackets without end
        values = None
    if not values or not isinstance(values, list):
        raise InputError(
            f"{field}={checks.shown(text)} gives no values; give 128,512 or 1:10:0.5 (from, to, "
            "step), or with "
            "--sample 1:10 or 1:10:log"
        )
    return values


def _values(field: str, values: Sequence[Any]) -> Values:
    """Return values as given, none twice; where numbers belong, none that only looks like one."""
    kept = tuple(_kept(field, value) for value in values)
    numeric = takes_numbers(field)
    before = set()
    for value in kept:
        if numeric and isinstance(value, str) and re.match(r"\s*[-+.]?[0-9]", value):
            raise InputError(
                f"{field} takes {checks.shown(value)}, which is text, but only numbers belong "
                "there; write it as "
                "1000, 0.5 or 1e3, without quotes or other signs"
            )
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        same = float(value) if plain else json.dumps(value, sort_keys=True)
        if same in before:
            raise InputError(
                f"{field} takes {checks.shown(value)} twice, so points would be run twice; give "
                "it once, or repeat "
                "every point with --seeds 5"
            )
        before.add(same)
    return Values(kept)


def _kept(field: str, value: Any) -> Any:
    """Return a value as the files of a sweep keep it, plain where it is NumPy's."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=np.generic.item)
        return json.loads(text.encode(), parse_int=_number)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"{field} takes {checks.shown(value)}, which no table can hold; give a finite number, "
            "text, true, false, "
            "null, or a list or mapping of these"
        ) from None


def _number(text: str) -> int | float:
    """Read a number; without point and exponent it is whole, as far as floats tell those."""
    number = math.nan if re.fullmatch(_ENDLESS, text) else float(text)
    if not math.isfinite(number):
        raise InputError(
            f"{checks.shown(text)} is no finite number that fits; give one up to 1.8e308"
        )
    return (
        int(number)
        if re.fullmatch(r"[-+]?[0-9]+", text) and abs(number) < _FARTHEST_WHOLE
        else number
    )


def _tidy(value: float, whole: bool | None) -> float:
    """Drop what floats add to a tenth, 0.30000000000000004, and to a whole number."""
    if whole and abs(value - round(value)) < 1e-9:
        return round(value)
    return value if isinstance(value, int) else float(f"{value:.12g}")


def as_text(value: Any) -> str:
    """Return a value as a cell of a table."""
    return value if isinstance(value, str) else json.dumps(value)
