"""Scripts find the recorded data beside the clone, whichever test runs them first."""

from pathlib import Path

from paper import item

DATA = Path(__file__).parents[3] / "shared" / "data"
item.DATA = DATA if DATA.is_dir() else None
