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
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, _pass_registry, register_pass
from numba.core.postproc import PostProcessor
from numba.core.typed_passes import (
    AnnotateTypes,
    DumpParforDiagnostics,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

from penstock.kernel import kept_code

__all__ = ["allocating_nothing", "entry", "from_python", "uncounted"]


def uncounted(*, inline: bool = False) -> Callable[[Any], Any]:
    """Compile as a part of what calls it, without counting references.

    Functions of the kernel take rows of arrays, and Numba would count each of those, which costs
    more than what they do. Nothing is allocated, so nothing needs counting.
    """
    compiled: Any = functools.partial(
        numba.njit, _nrt=False, forceinline=inline, nogil=True, pipeline_class=_Part,
        no_cpython_wrapper=True, no_cfunc_wrapper=True,
    )  # fmt: skip

    def made(function: Any) -> Any:
        part = compiled(function)
        if part is not function:  # nothing is compiled where Numba is told so
            ask = part.get_call_template
            part.get_call_template = lambda args, named: ask(tuple(map(_widened, args)), named)
        return part

    return made


def _widened(kind: Any) -> Any:
    """Return as what a part takes an argument: a whole number of any kind, or one that is known, is
    as any other, so that a part is translated once.
    """
    kind = types.unliteral(kind)
    return types.int64 if kind in types.signed_domain else kind


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
        parts = [part for part in self._linking_libraries if isinstance(part, _PartLibrary)]
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

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's own passes, but for the one that translates and those that are idle."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_WholeLowering, what) if step is NativeLowering else (step, what)
            for step, what in passes.passes
            if step not in (AnnotateTypes, DumpParforDiagnostics)
        ]
        passes.finalize()
        return [passes]


class _PassesOfParts(PassManager):
    """The passes that a part needs: it has no closures, literals to unroll, or calls to be inlined
    as source.

    After each pass Numba would look at all variables anew, and before it write down in full what it
    is about to do; but only one of these takes something away.
    """

    def __init__(self) -> None:
        super().__init__("part")
        for step in (
            *(TranslateByteCode, FixupArgs, IRProcessing, RewriteSemanticConstants),
            *(DeadBranchPrune, GenericRewrites, ReconstructSSA, NopythonTypeInference),
            *(PreLowerStripPhis, IRLegalization, _PartLowering, NoPythonBackend),
        ):
            self.add_pass(step, "")
        self.finalize()

    def run(self, state: Any) -> None:
        """Run them."""
        for kind, _ in self.passes:
            step = _pass_registry.get(kind).pass_inst
            step.analysis = self._analysis
            step.run_pass(state)
            if kind is DeadBranchPrune:
                PostProcessor(state.func_ir).run()


class _Part(CompilerBase):
    """Compiles what only compiled functions call."""

    def define_pipelines(self) -> list[PassManager]:
        """Return what a part goes through."""
        return [_PassesOfParts()]


def allocating_nothing(function: Any, **options: bool) -> Any:
    """Return a whole made of a function that allocates nothing."""
    whole = numba.njit(_nrt=False, pipeline_class=_Whole, **options)(function)  # type: ignore[call-overload]
    if whole is not function:  # nothing is compiled where Numba is told so
        kept_code.keep(whole, options)
    return whole


def from_python(part: Any) -> Any:
    """Return a whole made of a part, which Python can call."""
    return allocating_nothing(getattr(part, "py_func", part), nogil=True)


def entry(function: Any, signature: Any) -> Callable[..., Any]:
    """Compile a function of the kernel under one signature; return what calls it without delay.

    A call of what `numba.njit` returns looks up the types of all arguments, which takes longer than
    many a run. Here they are known: arguments of other types are refused by Numba as it takes them
    apart, or misread. The first time takes seconds; later ones load what was kept.
    """
    compiled = allocating_nothing(function, nogil=True, no_cfunc_wrapper=True)
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return compiled  # type: ignore[no-any-return]
    compiled.compile(signature)
    call: Callable[..., Any] = compiled.overloads[signature.args].entry_point
    return call


# For all that is compiled in this process: what an operator gives for numbers never changes.
_operators = _Remembered(types.functions.BaseFunction.get_call_type)
types.functions.BaseFunction.get_call_type = (  # type: ignore[method-assign]
    lambda function, *call: _operators.answer(function, *call)
)
