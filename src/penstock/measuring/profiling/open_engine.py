"""Start one of the real engines that can run here, by its name."""

from pathlib import Path

from penstock.errors import InputError, nearest
from penstock.measuring.profiling.clock import PacedClock
from penstock.measuring.profiling.driving import Episode, run_episode
from penstock.measuring.profiling.engine import RealEngine
from penstock.measuring.profiling.llama import LlamaShape

ENGINES = ("openvino", "torch")
CLOCKS = ("wall", "paced")


def open_engine(
    name: str,
    shape: LlamaShape,
    token_budget: int,
    *,
    threads: int = 1,
    clock: str = "wall",
    policy: str = "sarathi",
    max_running: int = 64,
    longest: int = 2048,
    device: str = "auto",
    folder: Path | None = None,
) -> RealEngine:
    """Start an engine.

    Parameters
    ----------
    name
        ``openvino`` or ``torch``.
    shape, token_budget, threads
        As in `OpenVinoEngine` and `TorchEngine`.
    clock
        ``wall``, or ``paced`` (`PacedClock`), which runs a second engine of the same kind.
    policy, max_running, longest, device
        As in `TorchEngine`; OpenVINO's engine has its own policy, ``sarathi``, and no such limits.
    folder
        Where OpenVINO's models are kept; None: the user's cache folder.

    Raises
    ------
    InputError
        If there is no such engine, a package is missing, or an option cannot be used.
    """
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}{nearest(name, ENGINES)}")
    if clock not in CLOCKS:
        raise InputError(f"unknown clock {clock!r}{nearest(clock, CLOCKS)}")

    def opened() -> RealEngine:
        if name == "torch":
            from penstock.measuring.profiling.torch_engine import TorchEngine

            return TorchEngine(shape, token_budget, policy, max_running, longest, device, threads)
        from penstock.measuring.profiling.openvino import OpenVinoEngine
        from penstock.system.policies import resolve

        if not resolve(policy).decode_first:
            raise InputError(
                f"policy {policy!r}: OpenVINO's engine has a scheduler of its own, which does what "
                "sarathi does; leave --policy out, or take the engine torch"
            )
        return OpenVinoEngine(shape, token_budget, threads, folder=folder)

    engine = opened()
    if clock == "paced":
        pacer, work = opened(), _typical(token_budget)
        engine.clock = PacedClock(lambda: run_episode(pacer, work))
    return engine


def _typical(token_budget: int) -> Episode:
    """Return nine batches, about half prefill: two full ones, and decodes of eight requests."""
    return Episode(((0, max(token_budget // 4, 1), 7),) * 8)
