"""Hardware in the terminal: what is known, and one of them in full."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from penstock.show.terminal import make_console
from penstock.system.batch_time import BatchTime, Composition, Measured
from penstock.system.batch_time_file import section_of
from penstock.system.presets import Hardware
from penstock.words import counted

_CONTEXT = 1_000
LOADS = ((1, 0), (64, 0), (256, 0), (0, 512), (64, 448), (0, 2_048))
"""Decodes and prefill tokens of the batches that are shown."""


def print_catalogue(entries: Sequence[Hardware]) -> None:
    """Print each entry in a line."""
    console = make_console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Hardware", overflow="fold")
    for name in ("1 decode\nms", "64 decodes\nms", "512-token\nprompt, ms", "share of\ncontext"):
        table.add_column(name, justify="right")
    for entry in entries:
        model = entry.batch_time
        shown = [milliseconds(model, decodes, prompt) for decodes, prompt in ((1, 0), (64, 0), (0, 512))]
        table.add_row(entry.name, *(f"{ms:,.2f}" for ms in shown), "-" if model.by_load else f"{_share(model):.0%}")
    console.print(table)
    console.print(
        f"Decodes have {_CONTEXT:,} tokens before them. The last column is the share of 64 decodes' time that those "
        "cost; - where token load alone decides. Entries named `linear` have the linear layers only: no attention, no "
        "exchange between GPUs.\n"
        "`penstock hardware NAME` shows one in full; a scenario says `server: {hardware: NAME}`.",
        highlight=False,
    )


def print_hardware(entry: Hardware) -> None:
    """Print one entry with its parameters, some batch times, and where it comes from."""
    console = make_console()
    console.print(f"[bold]{entry.name}[/bold]\n{entry.description}\n", highlight=False)
    for name, value in _parameters(section_of(entry.batch_time)):
        console.print(f"  {name:32} {value}", highlight=False)
    table = Table("Batch", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("tokens/s", justify="right")
    for decodes, prompt in LOADS:
        if decodes + prompt <= _most_tokens(entry.batch_time):
            ms = milliseconds(entry.batch_time, decodes, prompt)
            table.add_row(_words(decodes, prompt), f"{ms:,.2f}", f"{(decodes + prompt) / ms * 1e3:,.0f}")
    console.print(table)
    context = "" if entry.batch_time.by_load else f"Decodes have {_CONTEXT:,} tokens before them. "
    console.print(f"{context}Source: {entry.source}", highlight=False)
    if entry.licence:
        console.print(f"Licence: {entry.licence}", highlight=False)
    if entry.fit:
        console.print("Fit:")
    for name, value in entry.fit.items():
        console.print(f"  {name}: {value}", highlight=False)


def milliseconds(model: BatchTime, decodes: int, prompt: int) -> float:
    """Return the time of a batch of so many decodes with a context, and one new prompt."""
    return 1e3 * model.of_batch([(prompt, 0)] if prompt else [], [_CONTEXT] * decodes)


def _share(model: BatchTime) -> float:
    bare = model.of_batch(decode=[0] * 64)
    return 1 - bare / model.of_batch(decode=[_CONTEXT] * 64)


def _most_tokens(model: BatchTime) -> float:
    if isinstance(model, Composition):
        return _most_tokens(model.linear)
    return model.tokens[-1] if isinstance(model, Measured) else float("inf")


def _words(decodes: int, prompt: int) -> str:
    said = [counted(decodes, "decode")] if decodes else []
    return " and ".join([*said, f"a prompt of {prompt:,}"] if prompt else said)


def _parameters(section: dict[str, object], within: str = "") -> list[tuple[str, str]]:
    """Return the parameters of a model line by line, without where they lie."""
    found: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            found += _parameters(value, "" if name == "composition" else f"{name} ")
        elif isinstance(value, list):
            found.append((f"{within}{name}", f"{len(value)} values from {value[0]:,.4g} to {value[-1]:,.4g}"))
        else:
            found.append((f"{within}{name}", f"{value:,.5g}"))
    return found
