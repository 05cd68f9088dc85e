"""What it costs to compile the kernel: ``python benchmarks/compile_costs.py`` prints what each
whole takes, and the dearest functions within them, each without those that it calls.

Nothing that is kept is read, and nothing is kept.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

MOST = 10  # functions that are listed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder  # before Numba is imported
        costs = _costs()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.kept"))
    print("| whole | functions | CPU, s |\n|---|--:|--:|")
    for (whole, of), functions in costs.items():
        print(f"| `{whole}` of `{of}.py` | {len(functions)} | {sum(functions.values()):.1f} |")
    print(f"\nAll of it, kept: {size / 1e6:.1f} MB. The dearest functions:\n")
    every = {name: cost for functions in costs.values() for name, cost in functions.items()}
    for name, cost in sorted(every.items(), key=lambda each: -each[1])[:MOST]:
        print(f"    {cost:6.2f} s  {name}")


def _costs() -> dict[tuple[str, str], dict[str, float]]:
    """Compile everything; return what each function took, by the whole that it is a part of."""
    from numba.core import event

    costs: dict[tuple[str, str], dict[str, float]] = {}
    begun: list[float] = []  # for each function that is being compiled, when, but for inner ones
    taken: dict[str, float] = {}

    class Costs(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            begun.append(time.process_time())

        def on_end(self, about: Any) -> None:
            function = about.data["dispatcher"].py_func
            took = time.process_time() - begun.pop()
            begun[:] = [began + took for began in begun]
            taken[f"{function.__module__}.{function.__name__} {len(taken)}"] = took
            if not begun:
                of = function.__module__.rpartition(".")[2]
                costs.setdefault((function.__name__, of), {}).update(taken)
                taken.clear()

    event.register("numba:compile", Costs())

    from penstock.kernel import apart, events, quantiles, server
    from penstock.system.engines import ENGINES

    events.compiled_advance()
    for name in [*apart.APART, *(engine.rule for engine in ENGINES.values())]:
        apart.address(name)
    quantiles.compiled_find_quantiles()
    for composed in (False, True):
        server.compiled_advance(composed)
    return costs


if __name__ == "__main__":
    main()
