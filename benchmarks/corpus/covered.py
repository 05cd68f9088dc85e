"""How many scenarios of the corpus have each feature that there was at 5856ccd: each key of YAML,
setting of an engine, policy, router, order, kind of node of a workflow, command and option.

Counted from the scenarios and the questions themselves; a scenario counts if it was answered.
Usage: ``python covered.py`` prints the table and exits with 1 where a feature has none.
"""

import collections
import fnmatch
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import inventory
import yaml

LENGTHS = "constant|geometric|uniform|lognormal|gamma|mixture"
LENGTHY = "prompt|output|declared|delay_ms|transfer_ms|length"
ANSWERED = (0, 1, 3)

NOT_ASKED = {
    "yaml batch_time file.batch_time.*": "the same section as batch_time of a server",
    "yaml batch_time file.uncertainty*": "what calibrate writes; read again by tests/measuring",
    "yaml workload.poisson.cv": "refused: of gamma alone",
    "yaml workload.deterministic.cv": "refused: of gamma alone",
    "option penstock --*-completion": "of the shell, by Typer",
    "option penstock serve*": "it serves until it is ended: tests/serving; here it only refuses",
    "option penstock * --max-gib": "a limit, which tests/inputs tries",
    "option penstock sweep --backend": "where it computes, not what: tests/sweeping",
}
"""Features that no question has, by pattern, and why."""

KINDS_OF_NODES = (
    "chain", "fork", "the same twice", "choice", "join", "loop", "most_visits", "delay",
    "delay drawn", "transfer", "nested fork", "sessions", "disaggregated", "by_length", "pool",
    "context new", "context grow", "context reuse", "several workflows", "priority",
    "lengths of the job", "outage", "servers of several kinds",
)  # fmt: skip


def expected() -> set[str]:
    """Return every feature that there was and is to stay."""
    entries = inventory.kept("yaml", "value", "option") - inventory.changes().keys()
    return {_at_one_place(entry) for entry in entries} | {f"node {kind}" for kind in KINDS_OF_NODES}


def features(document: Any, file: str) -> Iterator[str]:
    """Yield the features of one scenario."""
    prefix = "batch-time file." if file.startswith("batch-time") else ""
    for path in _paths(document, prefix):
        yield _at_one_place(f"yaml {path}")
    for section in _mappings(document):
        yield from _of_server(section)
        yield from _choice("router", section.get("router"))
        yield from _choice("order", section.get("order"))
        trace = section.get("trace")
        if isinstance(trace, str):
            yield f"value trace format {Path(trace).stem}"
    if isinstance(document, Mapping) and "network" in document:
        yield from (f"node {kind}" for kind in _nodes(document))


def _paths(document: Any, where: str) -> Iterator[str]:
    named = where.endswith(("pools.", "workflows.", "stages.")) and "by_length" not in where
    if isinstance(document, Mapping):
        for key, value in document.items():
            path = f"{where}{'*' if named else key}"
            yield path
            yield from _paths(value, f"{path}.")
    elif isinstance(document, list):
        for value in document:
            yield from _paths(value, f"{where}[].")
    else:
        yield f"{where.removesuffix('.')}={document}"


def _at_one_place(path: str) -> str:
    """Return the path of a key where a section that stands at several places stands first."""
    path = re.sub(r"network\.pools\.\*(\.servers\.\[\])?", "server", path)
    path = re.sub(
        r"network\.workflows\.\*\.(disaggregated\.|by_length\.)?workload", "workload", path
    )
    path = re.sub(r"(batch_time\.composition\.linear\.)+", "batch_time.", path)
    path = re.sub(rf".*\.({LENGTHY})\.(?=({LENGTHS})\b)", "yaml length.", path)
    return path if path.startswith("option") else _spelled(path)


def _spelled(entry: str) -> str:
    """Return an entry in one spelling: names may have dashes or underscores, and capitals."""
    return entry.replace("-", "_").lower() if entry.startswith("value") else entry.replace("-", "_")


def _mappings(document: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(document, Mapping):
        yield document
        document = list(document.values())
    for value in document if isinstance(document, list) else ():
        yield from _mappings(value)


def _of_server(section: Mapping[str, Any]) -> Iterator[str]:
    hardware = section.get("hardware")
    policy = section.get("policy")
    if isinstance(hardware, Mapping):
        policy = policy or hardware.get("engine", "vllm")
        yield _spelled(f"value gpu {hardware['gpu']}")
        yield _spelled(f"value model {hardware['model']}")
    elif isinstance(hardware, str):
        yield _spelled(f"value hardware {hardware}")
    if not isinstance(policy, str):
        return
    params = section.get("policy_params") or {}
    for kind in ("policy", "engine"):
        name = _spelled(f"value {kind} {policy}")
        yield name
        if isinstance(params, Mapping):
            for key, value in params.items():
                yield f"{name} {key}"
                yield _spelled(f"{name} {key}={value}")


def _choice(kind: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        settings = each if isinstance(each, Mapping) else {each: {}}
        for name, numbers in settings.items():
            yield _spelled(f"value {kind} {name}")
            if isinstance(numbers, Mapping):
                yield from (_spelled(f"value {kind} {name} {key}") for key in numbers)


def _nodes(document: Mapping[str, Any]) -> Iterator[str]:
    network = document["network"]
    flows = network.get("workflows", {})
    if len(flows) > 1:
        yield "several workflows"
    if any("servers" in pool for pool in network.get("pools", {}).values()):
        yield "servers of several kinds"
    if (document.get("simulate") or {}).get("outages"):
        yield "outage"
    for flow in flows.values():
        kinds = ("sessions", "disaggregated", "by_length", "priority")
        yield from (kind for kind in kinds if flow.get(kind) is not None)
        if "pool" in flow and "sessions" not in flow:
            yield "pool"
        if "context" in flow:
            yield f"context {flow['context']}"
        yield from _stages(flow.get("stages") or {})


def _stages(stages: Mapping[str, Any]) -> Iterator[str]:
    follows = {}
    for name, stage in stages.items():
        then = stage.get("then")
        follows[name] = [then] if isinstance(then, str) else list(then or ())
        yield {str: "chain", list: "fork", dict: "choice"}.get(type(then), "chain")
        if isinstance(then, list) and len(set(then)) < len(then):
            yield "the same twice"
        if "delay_ms" in stage:
            yield "delay drawn" if isinstance(stage["delay_ms"], Mapping) else "delay"
        if stage.get("transfer_ms_per_token"):
            yield "transfer"
        if "job" in (stage.get("prompt"), stage.get("output")) or stage.get("output") == "rest":
            yield "lengths of the job"
        yield from (kind for kind in ("join", "most_visits") if kind in stage)
    if sum(isinstance(stage.get("then"), list) for stage in stages.values()) > 1:
        yield "nested fork"
    for name in stages:
        seen: set[str] = set()
        left = list(follows[name])
        while left:
            reached = left.pop()
            if reached not in seen:
                seen.add(reached)
                left += follows.get(reached, [])
        if name in seen:
            yield "loop"


def asked(question: str) -> Iterator[str]:
    """Yield the command and the options of a question, and what it names."""
    words = shlex.split(question)
    command = "traces get" if words[:2] == ["traces", "get"] else words[0]
    yield "option penstock"
    yield f"option penstock {command}"
    for word in words:
        where = "option penstock" if word == "--version" else f"option penstock {command}"
        if word.startswith("--"):
            yield f"{where} {word}"
    for name in ("scenario", "files", "results", "out", "name", "places", "what"):
        if len(words) > 1 and not words[1].startswith("-"):
            yield f"option penstock {command} {name}"
    if command == "hardware" and len(words) > 1:
        kind = "model" if "--gpu" in words else "hardware"
        yield _spelled(f"value {kind} {words[1]}")
        if "--gpu" in words:
            yield _spelled(f"value gpu {words[words.index('--gpu') + 1]}")
    for option in ("--policies", "--policy"):
        if option in words:
            for policy in words[words.index(option) + 1].split(","):
                yield _spelled(f"value engine {policy}")
                yield _spelled(f"value policy {policy}")


def count(answers: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, int]:
    """Return how many scenarios, and for commands and options how many questions, have each."""
    counts = collections.Counter[str]()
    answered: set[str] = set()
    for question, answer in answers.items():
        counts.update(set(asked(question)))
        if answer["status"] in ANSWERED:
            answered |= {word for word in shlex.split(question) if word.endswith(".yaml")}
    for file in sorted(answered | {"batch-time.yaml"}):
        if (folder / file).exists():
            document = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
            counts.update(set(features(document, file)))
    return {feature: counts[feature] for feature in sorted(expected())}


def names_in(folder: Path) -> set[str]:
    """Return the names that scenarios give, and those of policies, routers and the like."""
    names = {entry.split()[-1] for entry in inventory.kept("value") if "trace" not in entry}
    for file in folder.rglob("*.yaml"):
        try:
            document = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError:
            continue
        for section in _mappings(document):
            for key in ("pools", "workflows", "stages"):
                if isinstance(section.get(key), Mapping):
                    names |= {str(name) for name in section[key]}
    return names


def report(answers: Mapping[str, Mapping[str, Any]], folder: Path, table: bool = False) -> int:
    """Print what no scenario has, or the whole table, and return how many such features there
    are.
    """
    counts = count(answers, folder)
    missing = []
    for feature, number in counts.items():
        reason = next((NOT_ASKED[p] for p in NOT_ASKED if fnmatch.fnmatch(feature, p)), "")
        if not number and not reason:
            missing.append(feature)
        if table:
            print(f"{number:6}  {feature}{f'  ({reason})' if not number else ''}")
    print("".join(f"no scenario has: {feature}\n" for feature in missing), end="")
    print(f"coverage: {len(counts)} features, {len(missing)} of them without a scenario")
    return len(missing)


if __name__ == "__main__":
    import sys
    import tempfile

    import corpus

    with tempfile.TemporaryDirectory() as name:
        corpus.unpack(Path(name))
        sys.exit(bool(report(corpus.read(corpus.ANSWERS), Path(name), table=True)))
