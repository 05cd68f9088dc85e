"""The command ``penstock hardware``: batch times that have been measured."""

import json
from typing import Annotated, Any

import typer

from penstock.show.options import Json, show_page


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Show this one in full, or list those that match."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the hardware whose batch times are known, or show one: its model, its source, how well
    it fits.
    """
    from penstock.measuring.view import catalogue_page, hardware_page
    from penstock.system import presets

    names = list(presets.HARDWARE)
    if name is not None and name not in names:
        names = presets.matching(name)
    elif name is not None:
        names = [name]
    # Which says that there is none.
    shown = [presets.hardware(each) for each in names] or [presets.hardware(str(name))]
    page = catalogue_page(shown) if name is None or len(shown) > 1 else hardware_page(shown[0])
    show_page(page, {"hardware": [_as_dict(entry) for entry in shown]}, None, as_json)


def _as_dict(entry: Any) -> dict[str, Any]:
    from penstock.system.batch_time_file import section_of

    said = {"name": entry.name} | vars(entry) | {"batch_time": section_of(entry.batch_time)}
    # A fit may hold what YAML knows and JSON not.
    document: dict[str, Any] = json.loads(json.dumps(said, default=str))
    return document
