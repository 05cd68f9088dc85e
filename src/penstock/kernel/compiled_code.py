"""How functions of the kernel are compiled.

Numba optimises each function with all that it calls inside, so that one that is called twenty
calls deep is optimised, emitted and kept twenty times. Here such a function is a *part*: it is
translated, and no more. What Python calls is a *whole*: it gets its parts inside, and is optimised,
emitted and kept once (`kept_code.py`).
"""

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core import types, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    InlineOverloads,
    NativeLowering,
    NopythonRewrites,
    NoPythonSupportedFeatureValidation,
)

from penstock.kernel import kept_code

__all__ = ["allocating_nothing", "entry", "uncounted"]


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


class _Remembered:
    """What Numba answered for an operator on numbers: it tries all that it knows, at each place."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self.ask = ask
        self.answers: dict[Any, Any] = {}

    def answer(self, function: Any, context: Any, args: Any, keywords: Any) -> Any:
        """Return the signature of a call."""
        if keywords or not all(isinstance(kind, types.Number | types.Boolean) for kind in args):
            return self.ask(function, context, args, keywords)
        key = function, args
        if key not in self.answers:
            self.answers[key] = self.ask(function, context, args, keywords)
        return self.answers[key]


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
    """Return a whole made of a function that allocates nothing."""
    whole = numba.njit(_nrt=False, pipeline_class=_Whole, **options)(function)  # type: ignore[call-overload]
    if whole is not function:  # nothing is compiled where Numba is told so
        kept_code.keep(whole, options)
    return whole


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


_numbers = _Remembered(types.functions.BaseFunction.get_call_type)
types.functions.BaseFunction.get_call_type = (  # type: ignore[method-assign]
    lambda function, *call: _numbers.answer(function, *call)
)
