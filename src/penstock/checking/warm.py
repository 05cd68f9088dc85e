"""The command ``penstock warm``: compile beforehand what answers need."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.show.commands import command

_LENGTHS = {
    "prompt": {"lognormal": {"mean": 200, "cv": 1, "max": 1000}},
    "output": {"geometric": {"mean": 50, "max": 100}},
}
_A100 = {"hardware": "codellama-34b-a100-tp1", "token_budget": 512}
_H100 = {"model": "Llama-3.1-8B", "gpu": "h100-sxm"}


@command()
def warm(*, names: str | None = None, folder: Path | None = None, any_cpu: bool = False) -> None:
    """Compile the simulator beforehand.

    For images and machines that are to answer at once.

    Parameters
    ----------
    names : --for NAMES
        Of vllm, sglang, tensorrt-llm, policies and networks those to compile for, separated by
        commas (default: all).
    folder : DIR
        Keep all in this folder, to be shipped or mounted (default: the one that PENSTOCK_COMPILED
        names, else your cache).
    any_cpu
        Compile for all processors of this kind, not for this one.
    """
    if any_cpu:  # Numba looks when it is imported
        os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    from penstock.kernel import kept_code
    from penstock.show.compiling import simulating

    parts = _parts()
    chosen = list(parts) if names is None else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in parts:
            raise InputError(
                f"--for {name}: there is nothing of that name to compile. Choose among "
                f"{', '.join(parts)}"
            )
    place = kept_code.keep_in(folder)
    size = kept_code.size(place)
    with simulating("Warming") as show:
        for number, name in enumerate(chosen):
            show(number / len(chosen), name)
            began = time.monotonic()
            for prepare in parts[name]:
                prepare()
            more = kept_code.size(place) - size
            size += more
            made = f"{more / 1e6:,.1f} MB in {time.monotonic() - began:,.0f} s"
            print(f"{name}: {made if more else 'was there'}", flush=True)
    print(f"All that {place} has: {size / 1e6:,.1f} MB")


def _parts() -> dict[str, list[Callable[[], object]]]:
    """Return what has to be done for each name."""
    from penstock.kernel import apart
    from penstock.kernel.events import compiled_advance
    from penstock.kernel.quantiles import compiled_find_quantiles
    from penstock.kernel.records import BY_POLICY
    from penstock.system.engines import ENGINES
    from penstock.system.orders import ORDERS
    from penstock.system.policies import POLICIES
    from penstock.system.routing import ROUTERS
    from penstock.theory.drift import compiled_form

    def compiled(*of: dict[str, Any]) -> Callable[[], object]:
        return lambda: [made.compiled for named in of for made in named.values()]

    def addresses(names: tuple[str, ...]) -> Callable[[], object]:
        return lambda: (compiled_advance(), [apart.address(name) for name in names])

    with_memory = (*apart.OF_CACHES, *apart.OF_CLIENTS, "note_allocations", "choose", "report")

    def engine(name: str) -> list[Callable[[], object]]:
        trees = apart.OF_TREES if ENGINES[name].memory.caches_in_tree else ()
        server = {"hardware": _H100 | {"engine": name}, "token_budget": 2048}
        needed = (ENGINES[name].rule, *with_memory, *apart.OF_DRAFTS, *trees)
        return [compiled_find_quantiles, lambda: _check(server), addresses(needed)]

    of_networks = (
        *(*apart.OF_LINES, *apart.OF_WORKFLOWS, *apart.OF_FRONT_ENDS),
        *(*apart.OF_OUTAGES, *apart.OF_TRANSFERS),
    )
    return {
        "policies": [
            compiled_find_quantiles,
            compiled_form,
            compiled(POLICIES),
            lambda: _check(_A100 | {"policy": "sarathi"}),
            addresses((BY_POLICY, *with_memory)),
        ],
        **{name: engine(name) for name in ENGINES},
        "networks": [
            compiled_find_quantiles,
            compiled(ORDERS, ROUTERS),
            _check_network,
            addresses(of_networks),
        ],
    }


def _check(server: dict[str, Any]) -> None:
    """Ask of a small server what `penstock check` asks, and what searches do."""
    from penstock.checking.check import check
    from penstock.scenario.scenario import build
    from penstock.simulation.simulate import simulate

    load = {"poisson": {"rate": 1} | _LENGTHS}
    scenario = build({"workload": load, "server": server}, Path(), "warm")
    check(scenario.workload, scenario.server, requests=500)
    simulate(scenario.workload, scenario.server, requests=500, record="summary")


def _check_network() -> None:
    """Ask of a small network what `penstock check` asks."""
    from penstock.checking.check import check
    from penstock.scenario.scenario import build

    document = {
        "network": {
            "pools": {"pool": _A100 | {"replicas": 2}},
            "workflows": {
                "job": {
                    "arrivals": {"poisson": 0.5},
                    "first": "one",
                    "stages": {
                        "one": {"pool": "pool", "then": "two"} | _LENGTHS,
                        "two": {"pool": "pool"} | _LENGTHS,
                    },
                }
            },
        }
    }
    check(build(document, Path(), "warm").network, jobs=200)
