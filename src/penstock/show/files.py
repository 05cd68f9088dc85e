"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: what fails leaves nothing behind."""
    # A link stays one, a file keeps its mode; what is no file, such as a pipe, is written into.
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        place = Path(os.path.realpath(path))
        mode = place.stat().st_mode if place.exists() else 0o644
        handle, temporary = tempfile.mkstemp(dir=place.parent, suffix=place.suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, mode)
            os.replace(temporary, place)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        error.filename = str(path)  # and not a name that nobody gave
        raise
