"""Where the measurements of real engines are."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[3].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """Return the folder of the shared data."""
    if not DATA.exists():
        pytest.skip(f"no shared data at {DATA.parent.name}/{DATA.name} beside the repository")
    return DATA
