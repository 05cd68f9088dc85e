"""What users write stays, or is said to be renamed or gone: YAML keys, values, options, names."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "corpus" / "inventory.py"
_spec = importlib.util.spec_from_file_location("inventory", FILE)
assert _spec is not None
assert _spec.loader is not None
inventory = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(inventory)


def test_nothing_that_users_write_is_lost() -> None:
    """Each key, value, option and public name of 5856ccd is there, or listed with its heir or the
    reason.
    """
    kept = inventory.kept("yaml", "value", "option", "name")
    said = {entry: change for entry, change in inventory.changes().items()
            if not entry.startswith("json ")}  # fmt: skip
    assert inventory.lost(kept, inventory.present(), said) == []


def test_the_inventory_sees_every_kind_of_thing() -> None:
    """Keys under engines' names, words of a key, settings, options, attributes and parameters."""
    assert {
        "yaml server.max_num_seqs", "yaml server.scope=batch", "yaml plan.search.replicas.max",
        "yaml network.workflows.*.stages.*.most_visits", "value engine vllm num_speculative_tokens",
        "value router scored cached", "value hardware codellama-34b-a100-tp1",
        "option penstock check --requests", "option penstock traces get --url",
        "name Server.capacity", "name simulate(record=)", "name Target.parse",
    } <= inventory.present()  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (None, "neither"),
        ("renamed to option check --width", "which there is not"),
        ("gone", "neither"),
        ("renamed to option check --size", None),
        ("gone (nobody used it)", None),
    ],
)
def test_an_option_that_is_gone_needs_an_heir_that_is_there_or_a_reason(change: str | None, fault: str | None) -> None:
    changes = {} if change is None else {"option check --budget": change}
    before, after = {"option check --budget"}, {"option check --size"}
    told = inventory.lost(before, after, changes)
    assert told == [] if fault is None else fault in told[0]


def test_what_is_said_to_be_gone_and_is_there_is_named() -> None:
    entry = "option check --budget"
    assert "is there" in inventory.lost({entry}, {entry}, {entry: "gone (nobody used it)"})[0]
