"""Hardware that has been measured: batch-time models by name, with source and licence.

Each is a batch-time file in `hardware_files/`; a new one is known by lying there.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.system.batch_time_file import BatchTimeFile, read_batch_time

_FOLDER = Path(__file__).parent / "hardware_files"


class _Catalogue(Mapping[str, BatchTimeFile]):
    """Known hardware by name; each is read when it is asked for."""

    @functools.cached_property
    def _paths(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}

    def __getitem__(self, name: str) -> BatchTimeFile:
        return _read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@functools.cache
def _read(path: Path) -> BatchTimeFile:
    return dataclasses.replace(read_batch_time(path), name=path.stem)


HARDWARE: Mapping[str, BatchTimeFile] = _Catalogue()
"""Known hardware by name."""


def hardware(name: str) -> BatchTimeFile:
    """Return the preset called ``name``.

    Raises
    ------
    InputError
        If there is none; it says which there are.
    """
    if not checks.named(name, HARDWARE):
        from penstock.system.models import gpus

        if isinstance(name, str) and gpus.sheet_of(name):
            raise InputError(
                f"{name} is a GPU, and batch times depend on the model, too: `penstock hardware "
                f"Llama-3.1-8B --gpu {name}` works them out, and so does hardware: {{model: "
                f"Llama-3.1-8B, gpu: {name}}} in a scenario, with your model"
            )
        named = matching(str(name))
        hint = (
            f"; known: {', '.join(named)}"
            if 0 < len(named) < len(HARDWARE)
            else nearest(str(name), HARDWARE)
        )
        raise InputError(
            f"unknown hardware {shown(name)} (`batch_time` may stand in its place){hint}"
        )
    return HARDWARE[name]


def matching(text: str) -> list[str]:
    """Return the names in which each word of a text occurs."""
    words = text.lower().replace("-", " ").split()
    return [name for name in HARDWARE if all(word in name for word in words)]
