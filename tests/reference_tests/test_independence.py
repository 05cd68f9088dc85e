"""The reference is a witness of its own: a mistake that it shared with the kernel or with theory would stay unseen."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"
WORDS_FOR_USERS = {"penstock.checks", "penstock.errors"}


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield file and module of each import of a folder, inside functions too; a relative one stays inside."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((str(path), alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                of_package = node.module in {"penstock", "tests"}
                yield from (
                    (str(path), f"{node.module}.{a.name}" if of_package else str(node.module)) for a in node.names
                )


def test_the_reference_imports_only_itself_the_standard_library_and_how_errors_are_worded() -> None:
    foreign = {
        (file, module)
        for file, module in imported(REFERENCE)
        if module.partition(".")[0] not in sys.stdlib_module_names
        and not module.startswith("tests.reference")
        and module not in WORDS_FOR_USERS
    }
    assert not foreign
