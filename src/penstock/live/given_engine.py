"""What the user says of each engine: its batch times and its limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock import checks
from penstock.document import one_line, read_document
from penstock.errors import InputError
from penstock.scenario.server import ServerSection
from penstock.system.engine_flags import ENGINE_NAMES
from penstock.system.server import Server

_OPTIONS = {
    "token_budget": "--token-budget",
    "max_batch_size": "--max-batch-size",
    "kv_tokens": "--kv-tokens",
}


def described_engine(
    server: Path | None,
    batch_time: Path | None,
    hardware: str | None,
    limits: Mapping[str, int | None],
    *,
    is_told: bool = False,
) -> Server | None:
    """Return what each engine is, None where nothing is said of it."""
    # ``server``: a scenario's, or a batch-time file; the limits go over the scenario's.
    # ``is_told``: the engine itself tells how long batches take.
    named = {"--server": server, "--batch-time": batch_time, "--hardware": hardware}
    chosen = [option for option, value in named.items() if value is not None]
    given = {name: value for name, value in limits.items() if value is not None}
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(chosen)} each say how long a batch takes; give one of them"
        )
    for name, value in given.items():
        at_least = "an engine has one at least; give another, or leave it out"
        checks.whole(_OPTIONS[name], value, 1, 2**40, "", at_least)
    if not chosen:
        if given and not is_told:
            option = _OPTIONS[next(iter(given))]
            raise InputError(
                f"{option} is given, but no batch times, without which a limit says nothing of "
                "the load; add --hardware, --batch-time, --server or --iterations"
            )
        return None
    folder, section = _section(server, batch_time, hardware)
    for name in given:
        section = {key: value for key, value in section.items() if key not in ENGINE_NAMES[name]}
    if "kv_tokens" in given:
        section = {key: v for key, v in section.items() if key not in ENGINE_NAMES["kv_blocks"]}
    section |= given
    if batch_time or hardware:
        _need_budget(section, chosen[0])
    try:
        parsed = ServerSection.model_validate(section)
    except ValidationError as error:
        raise InputError(one_line(error, ServerSection)) from None
    return parsed.build(folder)


def _need_budget(section: Mapping[str, Any], option: str) -> None:
    if "token_budget" not in section:
        raise InputError(
            f"{option} is given without --token-budget, so it is not known how many tokens a "
            "batch may have; give the engine's max_num_batched_tokens"
        )


def _section(
    server: Path | None, batch_time: Path | None, hardware: str | None
) -> tuple[Path, dict[str, Any]]:
    """Return the section of a scenario that says so, and where its files are."""
    engine = {"policy": "vllm"}
    if hardware is not None:
        return Path(), {"hardware": hardware, **engine}
    file = batch_time or server
    assert file is not None
    if batch_time is None:
        document = read_document(file)
        section = document.get("server") if isinstance(document, dict) else None
        if isinstance(section, dict):
            return file.parent, section
        if not isinstance(document, dict) or "batch_time" not in document:
            raise InputError(
                f"{file} has neither `server` nor `batch_time`, so it does not say how long a "
                "batch takes; give a scenario or a batch-time file"
            )
    return file.parent, {"batch_time": {"file": file.name}, **engine}
