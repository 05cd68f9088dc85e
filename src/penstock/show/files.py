"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, so that what fails leaves nothing behind."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        error.filename = str(path)  # and not a name that nobody gave
        raise
