"""Who runs the points: processes here, or those of a Ray or Dask cluster, all through joblib."""

import contextlib
import dataclasses
import functools
import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from importlib import metadata
from typing import Any, Generic, TypeVar

from penstock import checks
from penstock.errors import InputError, nearest

T = TypeVar("T")
R = TypeVar("R")
Wanted = Callable[[int], int]  # workers, where there are so many cores

KINDS = {
    "loky": ("sweep", "joblib"),
    "ray": ("ray", "joblib", "ray"),
    "dask": ("dask", "joblib", "distributed"),
}
"""Kinds of workers: the extra that each needs, and its modules."""
"""Backends of joblib: processes of this machine, and clusters."""

# chunks to each worker before Ray's are waited for: its backend hands results back all at once
_ROUND = 4
_PATIENCE_S = 30.0
# for the process that cleans up after loky: what an interrupt leaves behind is removed without a
# word
_NO_LEAKS = "ignore::UserWarning:joblib.externals.loky.backend.resource_tracker"

_WATCH_S = 0.1


class WorkersDied(Exception):
    """Workers ended before their work did; what was not handed back may be asked for again."""


@dataclasses.dataclass(frozen=True)
class Workers:
    """Workers that are ready."""

    kind: str  # of `KINDS`
    count: int
    options: dict[str, Any]  # what joblib needs to reach them
    died: tuple[type[BaseException], ...]  # what they raise where one of them ended

    def results(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """Yield what a function makes of each task, as it comes, in any order."""
        if self.kind == "loky" and self.count == 1:
            yield from map(function, tasks)
            return
        # Said of an interrupt, and perhaps only once this has ended: so for good.
        warnings.filterwarnings("ignore", r"\d+ tasks which were still being processed")
        try:
            with warnings.catch_warnings(), _quiet():
                # Loky renews those that grew.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs")
                yield from self._through_joblib(function, tasks)
        except self.died as error:
            raise WorkersDied(f"{type(error).__name__}: {error}") from error

    def _through_joblib(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        import joblib

        streams: dict[str, Any] = {"return_as": "generator_unordered", "pre_dispatch": "3*n_jobs"}
        with joblib.parallel_config(backend=self.kind, n_jobs=self.count, **self.options):
            parallel = joblib.Parallel(batch_size=1, **({} if self.kind == "ray" else streams))
        call = joblib.delayed(
            _OfThisProcess(function, os.getpid()) if self.kind == "loky" else function
        )
        if self.kind != "ray":
            with _ctrl_c_kept_from_workers():
                results = parallel(call(task) for task in tasks)
            yield from results
            return
        step = _ROUND * self.count
        with parallel:  # or every round would start workers of its own
            for begin in range(0, len(tasks), step):
                yield from parallel(call(task) for task in tasks[begin : begin + step])


@dataclasses.dataclass(frozen=True)
class _OfThisProcess(Generic[T, R]):
    """A function that a worker calls for one process of its machine, while that lives."""

    function: Callable[[T], R]
    process: int

    def __call__(self, task: T) -> R:
        _end_with(self.process)
        return self.function(task)


@functools.cache
def _end_with(process: int) -> None:
    """End this worker when its starter has ended; kill -9 leaves that no time to say so."""

    def watch() -> None:
        while os.getppid() == process:
            time.sleep(_WATCH_S)
        os._exit(1)

    # Ctrl-C is for that process, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _ctrl_c_kept_from_workers() -> Iterator[None]:
    """Let workers that start meanwhile never see Ctrl-C, which a terminal sends to them, too."""
    # What they import then would end in a traceback. Here it waits.
    if sys.platform == "win32":
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it lets Ctrl-C in again when it starts
    with _ctrl_c_later():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Raise what Ctrl-C raises only behind this: loky is not to be interrupted at a start."""
    # A mask alone does not keep it away, for threads of Polars and NumPy hand it on.
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if caught:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let loky's thread stumble without a word over work cancelled under it, as by Ctrl-C."""
    usual = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if failed.thread is None or failed.thread.name != "ExecutorManagerThread":
            usual(failed)

    threading.excepthook = hook
    try:
        yield
    except KeyboardInterrupt:
        raise  # it may stumble after this, so the hook stays
    except BaseException:
        threading.excepthook = usual
        raise
    else:
        threading.excepthook = usual


@contextlib.contextmanager
def gathered(backend: str, jobs: int, most: int) -> Iterator[Workers]:
    """Find or start workers, and let go of those that were started."""
    # ``loky``: processes of this machine; ``ray`` or ``dask``: a cluster started on it; with
    # ``://host:port`` one that runs. ``jobs`` -1: a process per core, and all of a cluster;
    # ``most``: no more have something to do.
    kind, address = checked(backend, jobs)
    start = {"loky": _loky, "ray": _ray, "dask": _dask}[kind]
    with start(address, lambda cores: min(cores if jobs == -1 else jobs, most)) as workers:
        yield workers


def checked(backend: str, jobs: int) -> tuple[str, str]:
    """Return kind and address of a backend, once what `gathered` takes is checked."""
    # Nothing is started.
    kind, _, address = str(backend).partition("://")
    if kind not in KINDS or (address and kind == "loky") or ("://" in str(backend) and not address):
        raise InputError(
            f"the backend is {checks.shown(backend)}, but must be one of loky, ray, dask, "
            "ray://host:port and "
            f"dask://host:port{nearest(kind, KINDS)}"
        )
    if jobs != -1:
        checks.whole(
            "jobs", jobs, 1, 100_000, "", "it is the number of workers, or -1 for one to each core"
        )
    checks.installed(f"a sweep with the backend {kind}", *KINDS[kind])
    return kind, address


@contextlib.contextmanager
def _loky(_: str, wanted: Wanted) -> Iterator[Workers]:
    from joblib import cpu_count

    usual = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (usual, _NO_LEAKS)))
    try:
        yield Workers("loky", wanted(cpu_count()), {}, (BrokenExecutor,))
    finally:
        if usual is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = usual


@contextlib.contextmanager
def _ray(address: str, wanted: Wanted) -> Iterator[Workers]:
    ray: Any = importlib.import_module("ray")
    register: Any = importlib.import_module("ray.util.joblib").register_ray
    own = not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        if address:
            options["address"] = f"ray://{address}"
        else:
            options |= {"num_cpus": wanted(os.cpu_count() or 1), "include_dashboard": False}
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise _unreached("ray", address, error) from None
    try:
        if not own or address:
            _check_installed(_looks_of_ray(ray))
        register()
        count = wanted(int(ray.cluster_resources().get("CPU", 1)))
        died = (ray.exceptions.RayError, KeyError)  # without a node left, its pool finds no "CPU"
        yield Workers("ray", count, {}, died)
    finally:
        if own:
            ray.shutdown()


@contextlib.contextmanager
def _dask(address: str, wanted: Wanted) -> Iterator[Workers]:
    distributed: Any = importlib.import_module("distributed")
    cluster = None
    if not address:
        cluster = distributed.LocalCluster(
            n_workers=wanted(os.cpu_count() or 1), threads_per_worker=1, dashboard_address=None
        )
    try:
        client = distributed.Client(
            cluster or f"tcp://{address}", timeout=_PATIENCE_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise _unreached("dask", address, error) from None
    try:
        client.wait_for_workers(1, timeout=_PATIENCE_S)
        if address:
            _check_installed(client.run(_look()))
        count = wanted(sum(client.ncores().values()))
        died = (distributed.KilledWorker, distributed.comm.CommClosedError, BrokenExecutor)
        yield Workers("dask", count, {"client": client}, died)
    except TimeoutError as error:
        raise _unreached("dask", address, error) from None
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


Installed = tuple[str | None, str | None, bool]
"""Of a worker: the distribution's version, the file imported as `penstock`, and whether that is
this package.
"""


def _look() -> Callable[[], Installed]:
    """Return a function that says what a worker has, whole: a worker may lack this module."""

    def look() -> tuple[str | None, str | None, bool]:
        import importlib
        import sys
        from importlib import metadata

        try:
            importlib.import_module("penstock.sweeping.tasks")
        except ImportError:
            ours = False
        else:
            ours = True
        try:
            version = metadata.version("penstock-llm")
        except metadata.PackageNotFoundError:
            version = None
        return version, getattr(sys.modules.get("penstock"), "__file__", None), ours

    return look


def _looks_of_ray(ray: Any) -> dict[str, Installed]:
    """Look at one worker of each node."""
    on_node = importlib.import_module(
        "ray.util.scheduling_strategies"
    ).NodeAffinitySchedulingStrategy
    look = ray.remote(_look())
    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    looks = [
        look.options(scheduling_strategy=on_node(node, soft=False)).remote()
        for node in nodes.values()
    ]
    return dict(zip(nodes, ray.get(looks), strict=True))


def _check_installed(workers: Mapping[str, Installed]) -> None:
    """Raise an `InputError` unless every worker has this package, in this version."""
    own = metadata.version("penstock-llm")
    remedy = f"install this version there: `pip install penstock-llm=={own}`"
    for name, (version, path, ours) in workers.items():
        if not ours and path is not None:
            raise InputError(
                f"the worker {name} imports another package as `penstock`, {path}: that name on "
                "PyPI is a stranger's; "
                f"run `pip uninstall penstock` there, and {remedy}"
            )
        if not ours:
            raise InputError(
                f"the worker {name} has no Penstock, so it could run no point; {remedy}"
            )
        if version != own:
            raise InputError(
                f"the worker {name} has penstock-llm {version or 'without a version'}, but this "
                f"process {own}, so its "
                f"rows could mean something else; {remedy}"
            )


def _unreached(kind: str, address: str, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(
        f"no {kind} cluster answers at {address or 'this machine'} ({reason}); start one, or "
        "leave the address out"
    )
