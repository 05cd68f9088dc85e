"""Hardware as a page: what is known, and one of them in full."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

from penstock.checking.command_choices import Measured as Origin
from penstock.show.answers import Meaning, plain
from penstock.show.page import Fact, Page, Section, Table
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.measured_times import Measured
from penstock.words import counted

_CONTEXT = 1_000
_LISTED = ((1, 0), (64, 0), (0, 512))
# Decodes and prefill tokens of the batches that are shown.
_IN_FULL = ((1, 0), (64, 0), (256, 0), (0, 512), (64, 448), (0, 2_048))

_CAPTION = (
    f"Milliseconds of one batch: of 1 or 64 decodes, each after {_CONTEXT:,} tokens, or of a "
    "prompt of 512. `penstock hardware NAME` shows one in full; a scenario says "
    "`server: {hardware: NAME}`."
)


IN_SCENARIOS = Meaning("As scenarios have it.", inside="as in scenarios")


class Entry(Origin):
    """What JSON has of hardware."""

    name: Annotated[str, Meaning("As scenarios call it.")]
    batch_time: Annotated[dict[str, Any], IN_SCENARIOS]
    licence: Annotated[str | None, Meaning("Of those measurements.")]
    model: Annotated[str | None, Meaning("Which language model.")]
    accelerator: Annotated[str | None, Meaning("On what.")]
    tensor_parallel: Annotated[int | None, Meaning("Over how many of them.")]
    fit: Annotated[
        dict[str, Any], Meaning("How well it fits, as a fit says it.", inside="as in scenarios")
    ]


def entry_of(entry: BatchTimeFile) -> Entry:
    """Return what JSON has of hardware, whose fit may hold what YAML knows and JSON not."""
    said = {"name": entry.name} | vars(entry) | {"batch_time": entry.batch_time.as_section()}
    return cast(Entry, plain(said))


def catalogue_page(entries: Sequence[BatchTimeFile]) -> Page:
    """List entries, a row each."""
    rows = []
    for entry in entries:
        model = entry.batch_time
        times = (f"{_milliseconds(model, decodes, prompt):,.2f}" for decodes, prompt in _LISTED)
        rows.append((entry.name, *times))
    columns = ("Hardware", "1 decode (ms)", "64 decodes (ms)", "Prompt of 512 (ms)")
    table = Table(columns, rows, _CAPTION)
    return Page("Hardware", "whose batch times are known", sections=[Section("", tables=[table])])


def hardware_page(entry: BatchTimeFile) -> Page:
    """Show one entry with its parameters, some batch times, and where it comes from."""
    model = entry.batch_time
    origin = [f"Source: {entry.source}"]
    if entry.licence:
        origin.append(f"Licence: {entry.licence}")
    fit = [Fact(name, "", str(said)) for name, said in entry.fit.items() if name != "warnings"]
    return Page(
        title=entry.name,
        heading=entry.description,
        sections=[
            Section("Parameters", facts=_parameters(model.as_section())),
            Section("Batch times", tables=[batch_times(model)]),
            Section("", origin),
            Section("Fit", facts=fit, notes=entry.fit.get("warnings", ())),
        ],
    )


def batch_times(model: BatchTime) -> Table:
    """Return the times of some batches, a row each."""
    rows = []
    for decodes, prompt in _IN_FULL:
        if decodes + prompt <= _most_tokens(model):
            ms = _milliseconds(model, decodes, prompt)
            rows.append(
                (_words(decodes, prompt), f"{ms:,.2f}", f"{(decodes + prompt) / ms * 1e3:,.0f}")
            )
    caption = "" if model.by_load else f"Decodes have {_CONTEXT:,} tokens before them."
    return Table(("Batch", "ms", "Tokens/s"), rows, caption)


def _milliseconds(model: BatchTime, decodes: int, prompt: int) -> float:
    """Return the time of a batch of so many decodes with a context, and one new prompt."""
    return 1e3 * model.of_batch([(prompt, 0)] if prompt else [], [_CONTEXT] * decodes)


def _most_tokens(model: BatchTime) -> float:
    if isinstance(model, Composition):
        return _most_tokens(model.linear)
    return model.tokens[-1] if isinstance(model, Measured) else float("inf")


def _words(decodes: int, prompt: int) -> str:
    parts = []
    if decodes:
        parts.append(counted(decodes, "decode"))
    if prompt:
        parts.append(f"a prompt of {prompt:,}")
    return " and ".join(parts)


def _parameters(section: dict[str, object], within: str = "") -> list[Fact]:
    """Return the parameters of a model, without where they lie."""
    facts: list[Fact] = []
    for name, value in section.items():
        if isinstance(value, dict):
            facts += _parameters(value, "" if name == "composition" else f"{name} ")
        elif isinstance(value, list):
            extent = f"from {value[0]:,.4g} to {value[-1]:,.4g}"
            facts.append(Fact(f"{within}{name}", f"{len(value)} values", extent))
        else:
            facts.append(Fact(f"{within}{name}", f"{value:,.5g}"))
    return facts
