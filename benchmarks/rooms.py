"""Lines and files of each room beside the table `rooms.yaml`; status 1 where a room outgrew it.

Usage: ``python benchmarks/rooms.py``. A room may be 5% over its number. To raise one is a commit
of its own that says why. Lines of the paper's scripts, YAML, tests and pages are printed beside:
moving is not removing.
"""

import sys
from collections import defaultdict
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SLACK = 1.05


def counted(files: list[Path]) -> tuple[int, int]:
    """Return lines and files."""
    return sum(len(file.read_bytes().splitlines()) for file in files), len(files)


def rooms() -> dict[str, list[Path]]:
    """Return the files of each room; those beside the rooms are ``top``."""
    package = ROOT / "src" / "penstock"
    files = defaultdict(list)
    for file in sorted(package.rglob("*.py")):
        room, *inside = file.relative_to(package).parts
        files[room if inside else "top"].append(file)
    return files


def beside() -> dict[str, list[Path]]:
    """Return what is printed without a limit."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    reference = [file for file in tests if "reference" in file.parts]
    return {
        "YAML in src": sorted((ROOT / "src").rglob("*.yaml")),
        "paper": sorted((ROOT / "paper").rglob("*.py")),
        "benchmarks": sorted((ROOT / "benchmarks").rglob("*.py")),
        "tests/reference": reference,
        "other tests": [file for file in tests if file not in reference],
        "docs": [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"],
    }


def main() -> int:
    """Print the table."""
    table = yaml.safe_load((ROOT / "benchmarks" / "rooms.yaml").read_text())
    over, lines_of_all, files_of_all = [], 0, 0
    print(f"{'room':16}{'lines':>8}{'table':>8}{'files':>7}")
    for room, files in rooms().items():
        lines, number = counted(files)
        allowed = table[room]["lines"] if room in table else 0
        lines_of_all, files_of_all = lines_of_all + lines, files_of_all + number
        if lines > SLACK * allowed:
            over.append(f"{room} has {lines:,} lines, its number is {allowed:,}")
        print(f"{room:16}{lines:8,}{allowed:8,}{number:7,}")
    allowed = sum(row["lines"] for row in table.values())
    print(f"{'src':16}{lines_of_all:8,}{allowed:8,}{files_of_all:7,}\n")
    for name, files in beside().items():
        lines, number = counted(files)
        print(f"{name:16}{lines:8,}{'':8}{number:7,}")
    for complaint in over:
        print(
            f"{complaint}: more than 5% over; make it smaller, or raise the number in "
            "benchmarks/rooms.yaml in a commit that says why",
            file=sys.stderr,
        )
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
