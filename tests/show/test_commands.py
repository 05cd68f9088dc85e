"""A command has the keywords of its function, with what the function says of them for help."""

import ast
import inspect
import subprocess
import sys

import pytest
from typer.main import get_command

import penstock as ps
from penstock.cli import COMMANDS, command_line
from penstock.errors import InputError
from penstock.show.commands import _keywords, _kind, pairs

ASKED = ("check", "compare_networks", "max_rate", "recommend", "simulate", "sweep", "fit", "calibrate", "read_batches")
PROGRAMS_ALONE = {"progress", "stability", "certified", "outages", "server"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_in_words_what_it_is(name: str) -> None:
    line = get_command(command_line([name]))
    command = line.commands[name]  # type: ignore[attr-defined]
    for one in (*command.params, *(p for inner in getattr(command, "commands", {}).values() for p in inner.params)):
        assert one.help[-1:] in (".", "?"), (name, one.name)
        assert "``" not in one.help
        assert "None:" not in one.help


@pytest.mark.parametrize("name", ASKED)
def test_options_are_the_keywords_that_a_function_has_with_their_defaults(name: str) -> None:
    """They are read from its source, which is not imported."""
    keywords = {
        one.name: one.default
        for one in inspect.signature(getattr(ps, name)).parameters.values()
        if one.default is not one.empty and one.name not in PROGRAMS_ALONE
    }
    read = {option.name: option.default for option in _keywords(name)}
    assert list(read) == list(keywords)
    left_to_it = {"targets": (), "tick_s": 1e-9}  # a list begins empty, and no number is a constant's name
    assert read == {name: None if left_to_it.get(name) == of else of for name, of in keywords.items()}


def test_an_option_of_a_type_that_is_not_known_is_no_option_left_out() -> None:
    with pytest.raises(KeyError, match="Mystery"):
        _kind(ast.parse("str | Mystery[int] | None", mode="eval").body)
    assert _kind(ast.parse("Progress | None", mode="eval").body) is None


def test_pairs_are_read_and_what_is_none_is_refused_with_what_to_give() -> None:
    assert pairs("--where COLUMN=VALUE", ["a = b=c", "d="], "a=1") == {"a": "b=c", "d": ""}
    for texts, said in (
        (["a"], "--where is 'a', which names no column and value; give --where a=1"),
        (["a=1", "a=2"], "--where a stands twice"),
    ):
        with pytest.raises(InputError, match=said):
            pairs("--where COLUMN=VALUE", texts, "a=1")


@pytest.mark.parametrize("name", ["check", "max-rate", "sweep", "calibrate", "watch"])
def test_help_is_said_before_anything_that_answers_need_is_loaded(name: str) -> None:
    code = f"""
import sys
from penstock.cli import main
sys.argv = ["penstock", {name!r}, "--help"]
try:
    main()
finally:
    print(*{{"numpy", "numba", "scipy", "polars", "altair", "yaml"}} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--" in done.stdout
    assert done.stderr.strip() == ""
