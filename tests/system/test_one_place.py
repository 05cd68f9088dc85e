"""What a scheduler is stands in one place: nobody else asks for its name or its class."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.system.engines import ENGINES
from penstock.system.policies import POLICIES

SOURCES = Path(penstock.__file__).parent
OF_SCHEDULERS = ("system/engines/", "system/policies.py", "kernel/")
"""Where a scheduler may be asked which it is."""

TABLES = ("measuring/fitting/readers.py",)
"""Where tables may go by names: formats of logs."""

NAMES = {*ENGINES, *POLICIES}
CLASSES = {"Engine", "Policy", "Scheduler", *(type(engine).__name__ for engine in ENGINES.values())}


def is_named(node: ast.AST, constants: set[str]) -> bool:
    """Whether an expression is a name of a scheduler, or holds one."""
    if isinstance(node, ast.Name):
        return node.id in constants
    if isinstance(node, ast.Dict):
        return any(key is not None and is_named(key, constants) for key in node.keys)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(is_named(element, constants) for element in node.elts)
    return isinstance(node, ast.Constant) and node.value in NAMES


def named_constants(tree: ast.Module) -> set[str]:
    """Names of the module that stand for names of schedulers."""
    targets: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and is_named(node.value, targets):
            written = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets |= {target.id for target in written if isinstance(target, ast.Name)}
    return targets


def asks_for_class(node: ast.AST) -> bool:
    """Whether a call looks whether something is an engine's scheduler, or a policy."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
        return False
    asked = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
    return bool(asked & CLASSES)


def questions(text: str, has_table: bool = False) -> Iterator[tuple[int, str]]:
    """Yield where a module asks which scheduler it has: line and what it asks."""
    tree = ast.parse(text)
    constants = set() if has_table else named_constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(is_named(part, constants) for part in (node.left, *node.comparators)):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.MatchValue) and is_named(node.value, constants):
            yield node.lineno, f"case {ast.unparse(node)}"
        elif asks_for_class(node):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Dict) and not has_table and is_named(node, constants):
            yield node.lineno, "a table by name"


def test_nobody_asks_a_scheduler_for_its_name_or_class_but_the_entries_themselves() -> None:
    asked = []
    for path in sorted(SOURCES.rglob("*.py")):
        place = path.relative_to(SOURCES).as_posix()
        if not place.startswith(OF_SCHEDULERS):
            found = questions(path.read_text(), place.startswith(TABLES))
            asked += [f"src/penstock/{place}:{line}: {question}" for line, question in found]
    assert not asked, "\n".join(["make it a fact of `system/scheduler.py`, and say it in the entries:", *asked])


@pytest.mark.parametrize(
    "asked",
    [
        'policy.name == "sglang"',
        'engine.name in ("vllm", "sglang")',
        "_LARGE = ('sglang',)\nname not in _LARGE",
        'match name:\n    case "orca":\n        pass',
        "isinstance(policy, Engine)",
        "isinstance(server.policy, Policy | int)",
        '_PORTS = {"vllm": 8000}',
    ],
)
def test_each_way_to_ask_is_seen(asked: str) -> None:
    assert len(list(questions(asked))) == 1


def test_other_words_and_other_classes_may_be_compared() -> None:
    assert not list(questions('bound.name == "token budget" or isinstance(batch_time, Composition)'))
