"""The scenario that the options of ``penstock plan`` describe where there is no file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock import checks
from penstock.document import read_document
from penstock.errors import InputError
from penstock.planning.per_hardware import longest_part
from penstock.system.models.gpus import known_gpu

_PRICES = Path(__file__).with_name("prices.yaml")
_PARALLEL = (1, 2, 4, 8)
_LIMITS: dict[str, list[int | None]] = {
    "token_budget": [None, 2048, 512], "max_batch_size": [None, 256, 64],
}  # fmt: skip
"""Beside what each engine takes on its GPUs."""
_MOST_REPLICAS = 128
_APART = [None, "1:1", "1:2", "2:1"]


def described(
    model: str,
    given: Mapping[str, Any],
    apart: bool = False,
    targets: list[str] | None = None,
    prices: Path | None = None,
) -> tuple[dict[str, Any], str]:
    """Return a scenario as a document, and what its prices are; ``given`` are options by name."""
    table, said = _prices(prices)
    hardware, load = hardware_and_load(model, list(table), list(_PARALLEL), **given)
    kinds = hardware["gpu"] = [known_gpu(name).name for name in hardware["gpu"]]
    unknown = [kind for kind in kinds if longest_part(table, kind) is None]
    if unknown:
        raise InputError(
            f"no price of {unknown[0]} is known ({', '.join(table)} are), so fleets of it cannot "
            "be put beside others; give --prices FILE, such as {l4: 0.8}, money for a GPU an hour"
        )
    search = {"hardware": hardware, **_LIMITS, "replicas": {"max": _MOST_REPLICAS}}
    if apart:
        search["disaggregation"] = _APART
    priced = {longest_part(table, kind) for kind in kinds}
    price = {key: money for key, money in table.items() if key in priced}
    plan = {"targets": targets or [], "search": search, "rank": True, "price": price}
    return {"workload": _workload(load), "plan": plan}, said


def one_described(
    model: str, given: Mapping[str, Any], targets: list[str] | None = None
) -> dict[str, Any]:
    """Return a scenario of one server, with targets of its own, as a document."""
    if given.get("gpus") is None:
        raise InputError(
            "--gpus is missing; name the GPU of --model, such as h100-sxm (`penstock hardware` "
            "lists them)"
        )
    hardware, load = hardware_and_load(model, [], [1], **given)
    for option, key in (("gpus", "gpu"), ("tp", "tensor_parallel"), ("engine", "engine")):
        hardware[key], *others = hardware[key]
        if others:
            raise InputError(
                f"--{option} names {1 + len(others)}, but a page begins with one, and has the "
                "others to choose from; give one"
            )
    document = {"workload": _workload(load), "server": {"hardware": hardware}}
    return document | ({"plan": {"targets": targets}} if targets else {})


def refuse_beside(given: Mapping[str, Any], scenario: Path | None) -> None:
    """Refuse options that go with a model, where there is none."""
    if idle := [name for name, value in given.items() if value is not None]:
        instead = "give it, too" if scenario is None else f"and {scenario} says it; leave it out"
        raise InputError(f"--{idle[0]} goes with --model, {instead}")


def hardware_and_load(
    model: str,
    kinds: list[str],
    parallel: list[int],
    *,
    gpus: str | None = None,
    tp: str | None = None,
    rate: float | None = None,
    prompt: int | None = None,
    output: int | None = None,
    trace: Path | None = None,
    engine: str | None = None,
    precision: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model on GPUs, lists of each, and what is said of the load: the options beside
    --model.

    Parameters
    ----------
    kinds, parallel
        GPUs, and how many of them, where no option says it.
    gpus
        Of --model, such as h100-sxm,l40s; default: all with a price.
    tp
        GPUs of a replica; default: 1,2,4,8.
    rate
        Requests per second.
    prompt
        Tokens of a prompt.
    output
        Tokens of an output.
    trace
        Requests, in place of lengths.
    engine
        vllm (default), sglang, or both with a comma.
    precision
        Of the weights: bf16, fp8, fp4 or int4.
    """
    hardware: dict[str, Any] = {
        "model": _found(model),
        "gpu": _listed("--gpus", gpus) if gpus else kinds,
        "tensor_parallel": _numbers("--tp", tp) or parallel,
        "engine": _listed("--engine", engine or "vllm"),
    }
    if precision is not None:
        hardware["precision"] = precision
    load = {"rate": rate, "prompt": prompt, "output": output, "trace": trace}
    return hardware, {name: value for name, value in load.items() if value is not None}


def _workload(given: Mapping[str, Any]) -> dict[str, Any]:
    if "trace" in given:
        if idle := [name for name in ("prompt", "output") if name in given]:
            raise InputError(
                f"--{idle[0]} is given beside --trace, whose requests have lengths; leave one out"
            )
        at = {"rate": given["rate"], "arrivals": "poisson"} if "rate" in given else {}
        return {"trace": _found(given["trace"]), **at}
    if lacking := [f"--{name}" for name in ("rate", "prompt", "output") if name not in given]:
        raise InputError(
            f"the load lacks {' and '.join(lacking)}; give --rate (requests/s), --prompt and "
            "--output (tokens), or --trace FILE"
        )
    return {"poisson": {name: given[name] for name in ("rate", "prompt", "output")}}


def _found(name: str | Path) -> str:
    """Return a file by its whole path, so that a scenario written elsewhere names it, too."""
    return str(Path(name).resolve()) if Path(name).is_file() else str(name)


def as_text(document: Mapping[str, Any], said: str) -> str:
    """Return a scenario as a file's text."""
    text = yaml.safe_dump(dict(document), sort_keys=False, width=100)
    return f"# Prices: {said}.\n{text}"


def _prices(path: Path | None) -> tuple[dict[str, float], str]:
    """Return money for a GPU and an hour, by its name, and where it is from."""
    document = read_document(path or _PRICES, "price file")
    if path is None:
        return document["prices"], document["said"]
    table = document.get("prices", document) if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping) or not table:
        raise InputError(
            f"{path} has no prices; write money for a GPU and an hour by its name, such as "
            "{h100-sxm: 2.5, l40s: 0.9}"
        )
    reason = "it is money for a GPU and an hour"
    return {
        str(name): checks.number(f"{path}: {name}", price, 1e-9, 1e9, "", reason)
        for name, price in table.items()
    }, str(path)


def _listed(option: str, text: str) -> list[str]:
    values = [part.strip() for part in text.split(",") if part.strip()]
    if not values:
        raise InputError(f"{option} names none; give some, separated by commas")
    return values


def _numbers(option: str, text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        return [int(part) for part in _listed(option, text)]
    except ValueError:
        raise InputError(
            f"{option} is {checks.shown(text)}, but must be numbers of GPUs such as 2,4,8"
        ) from None
