"""What both figures of batch times need: the numbers they accept, and where profiles lie."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from penstock import checks
from penstock.document import Whole
from penstock.errors import InputError

Some = Annotated[Whole, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


def profile_in(folder: Path | None, file: str, key: str, *, of_files: bool = False) -> Path | None:
    """Return the file of a folder, or folder ``of_files``, that a key of the scenario names; None if it is not here.

    Raises
    ------
    InputError
        If the name is none of a file.
    """
    if folder is None:
        return None
    path = folder / file
    try:
        if path.is_dir() and not of_files:
            raise InputError(f"{key} is {checks.shown(file)}, which is a folder; give the path of a file in {folder}")
        return path if path.exists() else None
    except OSError as error:  # a name that is too long
        raise InputError(
            f"{key} is {checks.shown(file)}, which names no file ({error.strerror}); give the path of one in {folder}"
        ) from None
