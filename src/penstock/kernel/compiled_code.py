"""How functions of the kernel are compiled, and where that is kept between runs.

Numba optimises each function with all that it calls inside, so that one that is called twenty
calls deep is optimised, emitted and kept twenty times. Here such a function is a *part*: it is
translated, and no more. What Python calls is a *whole*: it gets its parts inside, and is optimised,
emitted and kept once.

Wholes are kept where Numba keeps code, else in a temporary folder, else nowhere. Beside the package
or in the user's cache nothing can be kept where both are read-only, as in many containers; Numba
then refuses to compile at all.
"""

import functools
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import untyped_passes
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    InlineOverloads,
    NativeLowering,
    NopythonRewrites,
    NoPythonSupportedFeatureValidation,
)

__all__ = ["allocating_nothing", "entry", "find_place", "uncounted"]


def uncounted(*, inline: bool = False, from_python: bool = False) -> Callable[[Any], Any]:
    """Compile as a part of what calls it, or as a whole for Python, without counting references.

    Functions of the kernel take rows of arrays, and Numba would count each of those, which costs
    more than what they do. Nothing is allocated, so nothing needs counting.
    """
    if from_python:
        return functools.partial(allocating_nothing, forceinline=inline, nogil=True)
    return functools.partial(
        numba.njit, _nrt=False, forceinline=inline, nogil=True, pipeline_class=_Part,
        no_cpython_wrapper=True, no_cfunc_wrapper=True,
    )  # fmt: skip


class _PartLibrary(JITCodeLibrary):
    """A function as it was translated."""

    def finalize(self) -> None:
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _get_module_for_linking(self) -> Any:
        return self._final_module


class _WholeLibrary(JITCodeLibrary):
    """A function with all its parts inside."""

    def finalize(self) -> None:
        libraries = self._linking_libraries
        for library in libraries:  # which grows by what each calls
            libraries += [part for part in library._linking_libraries if part not in libraries]
        super().finalize()

    def _optimize_final_module(self) -> None:
        parts = [each for each in self._linking_libraries if isinstance(each, _PartLibrary)]
        names = {f.name for part in parts for f in part.get_defined_functions()}
        for function in self.get_defined_functions():
            if function.name in names:
                function.linkage = "internal"  # nobody else calls it: none is kept that is inlined
        # Once: Numba's first round is for references to arrays, of which none are counted.
        passes, timed = self._codegen._module_pass_manager()
        passes.run(self._final_module, timed)


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Translates a function, and no more."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.library.finalize()
        # Numba knows a function by the built-in that Python would call: here one of its own, with
        # the arguments of a compiled function, which complains of a name that it was not given.
        refusal = f"{{{state.func_id.func_name} is called by compiled functions only}}".format
        state.targetctx.insert_user_function(refusal, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=refusal)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _WholeLowering(NativeLowering):
    """Translates, optimises and emits a function with all its parts."""

    _name = "whole_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _WholeLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class _Whole(CompilerBase):
    """Compiles what Python calls."""

    lowering: type[NativeLowering] = _WholeLowering
    idle: frozenset[Any] = frozenset({AnnotateTypes, DumpParforDiagnostics})

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's own passes, but for the one that translates and those that are idle."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (self.lowering, what) if each is NativeLowering else (each, what)
            for each, what in passes.passes
            if each not in self.idle
        ]
        passes.finalize()
        return [passes]


class _Part(_Whole):
    """Compiles what only compiled functions call."""

    lowering = _PartLowering
    # No part has closures, blocks of `with`, literals to unroll, or calls to be inlined as source.
    idle = _Whole.idle | {
        untyped_passes.FindLiterallyCalls,
        untyped_passes.InlineClosureLikes,
        untyped_passes.InlineInlinables,
        untyped_passes.LiteralPropagationSubPipelinePass,
        untyped_passes.LiteralUnroll,
        untyped_passes.MakeFunctionToJitFunction,
        untyped_passes.RewriteDynamicRaises,
        untyped_passes.WithLifting,
        InlineOverloads,
        NopythonRewrites,
        NoPythonSupportedFeatureValidation,
    }


def allocating_nothing(function: Any, **options: bool) -> Any:
    """Return a whole made of a function that allocates nothing; kept code is loaded alone.

    Numba would load all that it can compile first, which takes longer than many a run. Kept code
    calls nothing of that but what counts references; to compile, Numba loads it all the same.
    """
    compiled = numba.njit(cache=True, _nrt=False, pipeline_class=_Whole, **options)  # type: ignore[call-overload]
    dispatcher = compiled(function)
    cache = getattr(dispatcher, "_cache", None)
    if isinstance(cache, FunctionCache):
        cache.load_overload = functools.partial(_load_overload, cache)  # type: ignore[method-assign]
        # What is kept of a function has those that it calls inside: it is good as long as no file
        # of the kernel has changed, where Numba looks at the function's own only.
        kept = cache._cache_file
        kept._source_stamp = (kept._source_stamp, _STAMP)
    return dispatcher


def _load_overload(cache: FunctionCache, signature: Any, context: Any) -> Any:
    """Do what Numba's method does, but for a refresh of the context; what cannot be read is
    compiled again.
    """
    try:
        with cache._guard_against_spurious_io_errors():
            return cache._load_overload(signature, context)
    except Exception:  # a file cut short, or of something else: pickle raises what it likes
        cache._cache_file.flush()
        return None


def _stamp() -> str:
    """Return what changes with any file of the kernel."""
    files = [
        (path.name, path.stat().st_mtime_ns, path.stat().st_size)
        for path in sorted(Path(__file__).parent.glob("*.py"))
    ]
    return hashlib.sha256(repr(files).encode()).hexdigest()


_STAMP = _stamp()


def entry(function: Any, signature: Any) -> Callable[..., Any]:
    """Compile a function of the kernel under one signature; return what calls it without delay.

    A call of what `numba.njit` returns looks up the types of all arguments, which takes longer than
    many a run. Here they are known: arguments of other types are refused by Numba as it takes them
    apart, or misread. The first time takes seconds; later ones load what was kept.
    """
    compiled = allocating_nothing(function, nogil=True)
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return compiled  # type: ignore[no-any-return]
    compiled.compile(signature)
    call: Callable[..., Any] = compiled.overloads[signature.args].entry_point
    return call


def find_place() -> None:
    """Let Numba keep compiled code where it can; say so on standard error where that is not its
    usual place.
    """
    if _is_kept():
        return
    folder = private_folder()
    if folder is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(folder)  # for processes that this one starts
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
        if _is_kept():
            _note(f"goes to {folder}")
            return
    Dispatcher.enable_caching = _keep_nothing  # type: ignore[method-assign,assignment]
    _note("is not kept: every run compiles it again")


def _is_kept() -> bool:
    """Ask Numba whether it has a place for the code of this package."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """Stand for any function that is compiled."""


def _keep_nothing(_: "Dispatcher[Any]") -> None:
    """Stand for what Numba does to keep compiled code."""


def private_folder() -> Path | None:
    """Return a temporary folder that only this user can change, or nothing.

    Whoever can write there can run code as this user, for Numba unpickles what it finds. So a
    folder of another owner, one that others may open, and a link are refused.
    """
    if sys.platform == "win32":  # Numba always has a place there
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return folder if private and stat.S_ISDIR(status.st_mode) else None


def _note(what: str) -> None:
    print(
        f"Note: compiled code cannot be kept beside Penstock nor in the user's cache, and {what}. "
        "Set NUMBA_CACHE_DIR to a folder of your own to choose another place.",
        file=sys.stderr,
        flush=True,
    )


find_place()
