"""Every item that can be reproduced: its name, where it stands in the paper, and how it is run."""

import importlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock import checks
from penstock.document import read_document
from penstock.errors import InputError, nearest
from penstock.reproducing.item import Item, Reproduction, Setup

ITEMS = (
    Item("table1", "Which schedulers are work-conserving, by audit",
         "Table 1", "work_conserving.table"),
    Item("fig-instable-left", "Two schedulers lose 14 requests/s, two carry them",
         "Figure 1, left", "instable.left"),
    Item("fig-instable-right", "Requests in the system while a code trace is served",
         "Figure 1, right", "instable.right"),
    Item("fig-work-conserving", "Batches that leave waiting tokens out",
         "Section 4", "short_batches.run"),
    Item("fig-rs", "Work-conserving priorities that lose a stable load",
         "Section 5.4", "rybko_stolyar.figure"),
    Item("fig-hull", "The stability region under a max batch size",
         "Section 6.1", "hull.run"),
    Item("fig-kmax", "At vertex C one scheduler is stable, at one token budget",
         "Section 6.2", "max_batch_size.run"),
    Item("table-latency", "Latency of four schedulers on code",
         "Section 7", "latency_table.run"),
    Item("fig-ablation", "Latency by token budget on conversations",
         "Section 7", "ablation.run"),
    Item("rs-thresholds", "Where each priority of the crossed servers fails",
         "beyond the paper", "rybko_stolyar_thresholds.run", ("simulate.jobs",)),
    Item("adaptive-policies", "Policies that adapt, along the region's boundary",
         "beyond the paper", "adaptive.run"),
    Item("verdict-errors", "How often a verdict from simulation is wrong",
         "beyond the paper", "verdict_errors.run", ("reproduce.seeds",)),
    Item("lemma-overtaking", "Counter-examples to bounded overtaking",
         "corrects the paper", "lemmas.overtaking", ("simulate.requests",)),
    Item("lemma-join", "A counter-example to the bound on join buffers",
         "corrects the paper", "join_buffers.run", ("simulate.requests",)),
)  # fmt: skip
"""In the order of the paper. Its figure 2, the demand for offline inference at a cloud provider,
rests on data that are not public.
"""


def item(name: Any) -> Item:
    """Return the item of a name.

    Raises
    ------
    InputError
        If there is none, with the nearest.
    """
    names = [item.name for item in ITEMS]
    if name not in names:
        raise InputError(
            f"there is no item {checks.shown(name)} to reproduce (an item, `all` or a scenario "
            f"file){nearest(str(name), names)}"
        )
    return ITEMS[names.index(name)]


def is_file(what: str | Path) -> bool:
    """Return whether a scenario file is meant, and not the name of an item."""
    return isinstance(what, Path) or str(what).lower().endswith((".yaml", ".yml"))


def item_of(what: str | Path) -> Item:
    """Return the item that a name or a scenario file asks for.

    Raises
    ------
    InputError
        If there is none.
    """
    return _read(what)[0]


def _read(what: str | Path) -> tuple[Item, Mapping[str, Any], Path]:
    """Return an item, its scenario, and the folder where the paths in that begin."""
    folder = Path.cwd()
    if is_file(what):
        path = checks.path("the scenario to reproduce", what)
        if not path.exists():
            raise InputError(
                f"there is no scenario file {path}; `penstock reproduce NAME` writes that of an "
                "item beside its results"
            )
        document, folder = read_document(path), path.resolve().parent
    else:
        document = yaml.safe_load(item(what).text)
    section = document.get("reproduce") if isinstance(document, Mapping) else None
    if not isinstance(section, Mapping) or "item" not in section:
        raise InputError(
            f"{what} has no section `reproduce` with an `item`; such as reproduce: {{item: "
            "fig-kmax}"
        )
    return item(section["item"]), document, folder


def reproduce(
    what: str | Path,
    *,
    data: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Reproduction:
    """Measure an item of the paper again.

    Parameters
    ----------
    what
        A name in `ITEMS`, or a scenario file with ``reproduce: {item: NAME}``.
    data
        A folder with recorded traces and profiles. Without it, or where it lacks one, look-alikes
        stand for traces and presets for profiles, which ``assumed`` says.
    progress
        Called with the share that is done.

    Raises
    ------
    InputError
        If there is no such item, or a value in the file cannot be used.
    """
    chosen, document, folder = _read(what)
    if data is not None:
        data = checks.path("--data", data)
        if not data.is_dir():
            raise InputError(
                f"--data {data} is no folder; give one with recorded traces, or leave it out"
            )
    answer = measure(Setup(chosen, document, folder, data, progress or (lambda share: None)))
    changed = _changed(yaml.safe_load(chosen.text), document, chosen.samples)
    return answer.of_changed(changed) if changed else answer


def measure(setup: Setup) -> Reproduction:
    """Measure an item with its scenario, or a changed one: the claims are judged all the same."""
    module, function = setup.item.function.split(".")
    answer: Reproduction = getattr(
        importlib.import_module(f"penstock.reproducing.{module}"), function
    )(setup)
    return answer


def _changed(own: Any, document: Any, samples: Collection[str], key: str = "") -> list[str]:
    """Return the keys of a scenario whose values are others than the item's own; a larger sample is
    none.
    """
    if isinstance(own, Mapping) and isinstance(document, Mapping):
        below = [(f"{key}.{name}".lstrip("."), name) for name in dict.fromkeys([*own, *document])]
        return [
            changed
            for path, name in below
            for changed in _changed(own.get(name), document.get(name), samples, path)
        ]
    if own == document:
        return []
    larger = isinstance(own, int) and isinstance(document, int) and document > own
    return [] if larger and key in samples else [key]
