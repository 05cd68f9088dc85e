"""The command line: ``penstock check``, ``compare``, ``max-rate``, ``fit`` and others."""

from penstock.show import process

# isort: split
import importlib
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Annotated, Any

import typer

from penstock.errors import DISK_FULL, InputError
from penstock.show.options import EXIT_BAD_INPUT

COMMANDS = {
    "check": "checking.command",
    "compare": "checking.command",
    "region": "capacity.command",
    "max-rate": "capacity.command",
    "recommend": "capacity.command",
    "simulate": "checking.command",
    "sweep": "sweeping.command",
    "fit": "measuring.fitting.command",
    "calibrate": "measuring.calibration.command",
    "diagnose": "measuring.diagnosis.command",
    "hardware": "measuring.hardware.command",
    "plan": "planning.command",
    "watch": "live.command",
    "serve": "serving.command",
    "traces": "traces.command",
    "warm": "checking.warm",
}
"""Commands, in the order of the help, and the module that has each."""

_NARROWEST = 20  # columns of an error; with COLUMNS=0 nothing could be read

_UsageError: Any = (
    typer.BadParameter.__base__
)  # typer does not export it, and has it from click or from within


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with some commands; to load them all takes a tenth of a short run."""
    app = typer.Typer(
        name="penstock",
        help="Is this LLM deployment stable, how much can it carry, and with which scheduler?",
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(penstock)
    for name in names:
        module = importlib.import_module(f"penstock.{COMMANDS[name]}")
        if name == "traces":
            app.add_typer(module.traces_app, name=name)
        else:
            app.command(name)(getattr(module, name.replace("-", "_")))
    return app


def penstock(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Is this LLM deployment stable, how much can it carry, and with which scheduler?"""
    if version:
        print(metadata.version("penstock-llm"))
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line: bad input is one message on standard error and status 2."""
    if sys.stderr is None:  # closed; what is printed to None goes to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _complain(
            "standard output is closed, so there is no place for an answer; to have none, send it "
            "to /dev/null"
        )
        sys.exit(EXIT_BAD_INPUT)
    try:
        asked = [name for name in sys.argv[1:2] if name in COMMANDS]
        with process.work:
            status = command_line(asked or COMMANDS)(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _complain(str(error))
        status = EXIT_BAD_INPUT
    except _UsageError as error:
        said = error.format_message()
        if "'SCENARIO'" in said:
            said = f"{said.rstrip('.')}; `penstock check --help` shows what one looks like"
        _complain(said)
        status = EXIT_BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = process.EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # whoever reads the answer has enough of it, as `head` has; typer and rich make status 1 of
        # it
        if not isinstance(error, BrokenPipeError) and not isinstance(
            error.__context__, BrokenPipeError
        ):
            raise
        _drop_output()
        status = 0
    except OSError as error:
        _drop_output()
        if error.filename is None or error.errno in DISK_FULL:
            _complain(f"cannot write {error.filename or 'the answer'}: {error.strerror}")
        else:
            _complain(f"cannot use {error.filename}: {error.strerror}")
        status = EXIT_BAD_INPUT
    if status == process.EXIT_INTERRUPTED:  # typer turns Ctrl-C into this status without a word
        process.complain()
    sys.exit(status if isinstance(status, int) else 0)


def _drop_output() -> None:
    """Send nowhere what is not written yet, so that Python does not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    text = f"penstock: {' '.join(message.split())}"
    try:
        if sys.stderr.isatty():  # what is read by a program stays one line
            text = _wrapped(text)
        print(text, file=sys.stderr, flush=True)
    except OSError:  # no room there: the status alone says it, and Python need not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _wrapped(text: str) -> str:
    """Return an error in lines of the terminal's width, the words of which stay whole."""
    import textwrap

    from rich.console import Console

    width = max(Console(stderr=True).width, _NARROWEST)
    return textwrap.fill(
        text, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
