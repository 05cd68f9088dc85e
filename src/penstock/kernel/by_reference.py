"""Named tuples by reference, in compiled code.

A tuple of fifty arrays is four hundred words, and Numba hands each of them on at every call. Here a
function gets one pointer to all of them; what it reads through it is known never to change, so that
loads are as cheap as of local variables.

>>> entry(lambda world: advance(reference_to(world)), types.int64(WORLD))  # doctest: +SKIP
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

__all__ = ["reference_to"]


class Reference(types.Type):
    """The type of a reference to a named tuple."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Reference({target})")

    @property
    def mangling_args(self) -> tuple[str, tuple[str]]:
        """Return what stands for it in names of functions: its own name is as long as a page."""
        return "Reference", (self.target.instance_class.__name__,)


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    """A pointer."""

    def __init__(self, manager: Any, kind: Reference) -> None:
        pointer = manager.lookup(kind.target).get_value_type().as_pointer()
        super().__init__(manager, kind, pointer)


@infer_getattr
class _ReferenceFields(AttributeTemplate):
    """The fields of a reference are those of what it refers to."""

    key = Reference

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        if name not in kind.target.fields:
            return None
        return kind.target.types[kind.target.fields.index(name)]


@lower_getattr_generic(Reference)
def _load_field(context: Any, builder: Any, kind: Reference, pointer: Any, name: str) -> Any:
    index = kind.target.fields.index(name)
    field = cgutils.gep_inbounds(builder, pointer, 0, index)
    value = _loaded(builder, field)
    return impl_ret_borrowed(context, builder, kind.target.types[index], value)


def _loaded(builder: Any, pointer: Any) -> Any:
    """Load a value word by word, each marked as one that never changes."""
    kind = pointer.type.pointee
    if isinstance(kind, ir.Aggregate):
        value = ir.Constant(kind, ir.Undefined)
        for index in range(len(kind)):
            part = cgutils.gep_inbounds(builder, pointer, 0, index)
            value = builder.insert_value(value, _loaded(builder, part), index)
        return value
    word = builder.load(pointer)
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def _identity(target: Any) -> Any:
    """Return a named tuple itself, where nothing is compiled."""
    return target


@intrinsic
def _reference_to(_: Any, target: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once_value(builder, args[0])

    return Reference(target)(target), generate


reference_to: Any = _identity if config.DISABLE_JIT else _reference_to  # type: ignore[attr-defined]
"""Return a reference to a named tuple, for as long as the calling function runs."""
