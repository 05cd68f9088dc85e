"""The paper, measured again: a script for each table, figure and lemma, read from top to bottom.

``python -m paper`` lists them, ``python -m paper NAME ... --out DIR`` measures some again, ``all`` all.
Change a number at the top of a script, and run it again. Importing a script measures.
"""

import importlib

ITEMS = (
    "table1",
    "fig-instable-left",
    "fig-instable-right",
    "fig-batch-time-composition",
    "fig-batch-time-fit",
    "fig-work-conserving",
    "fig-rs",
    "fig-hull",
    "fig-kmax",
    "table-latency",
    "fig-ablation",
    "rs-thresholds",
    "adaptive-policies",
    "open-problem",
    "verdict-errors",
    "lemma-overtaking",
    "lemma-join",
)
"""In the order of the paper. Its figure 2, the demand for offline inference at a cloud provider, rests on data that
are not public.
"""


def module(name):
    """Return the name of an item's script."""
    return name.replace("-", "_")


def measured(name):
    """Run a script from top to bottom, once, and return what it collected."""
    return importlib.import_module(f"paper.{module(name)}").item
