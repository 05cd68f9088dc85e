"""Named tuples by reference, in compiled code.

A tuple of fifty arrays is four hundred words, and Numba hands each of them on at every call. Here a
function gets one pointer to all of them; what it reads through it is known never to change, so that
loads are as cheap as of local variables.

A field that is an array of one dimension is a *column*: a pointer to what is known of it, of which
an item takes the address alone. Its places count from 0: no index is negative.

So `events.advance` is compiled for an address, and called with that of a world:

>>> entry(advance, types.int64(types.int64))(Address().of(world))  # doctest: +SKIP
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, from_dtype, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typeconv.castgraph import Conversion
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_cast,
    lower_getattr,
    lower_getattr_generic,
    models,
    register_model,
)

__all__ = ["Address", "Reference", "item_of", "part_of_rule", "reference_at"]


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


class Column(types.Type):
    """The type of a reference to an array of one dimension."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype
        super().__init__(name=f"Column({array})")

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """Return what stands for it in names of functions, which Numba numbers besides."""
        return "Column", ()

    def can_convert_to(self, _: Any, other: Any) -> Conversion | None:
        """Return how it becomes an array where a function takes one."""
        return Conversion.safe if other == self.array else None


@register_model(Column)
class _ColumnModel(models.PrimitiveModel):
    """A pointer."""

    def __init__(self, manager: Any, kind: Column) -> None:
        super().__init__(manager, kind, manager.lookup(kind.array).get_value_type().as_pointer())


@infer_getattr
class _ReferenceFields(AttributeTemplate):
    """The fields of a reference are those of what it refers to."""

    key = Reference

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        if name not in kind.target.fields:
            return None
        field = kind.target.types[kind.target.fields.index(name)]
        return Column(field) if _is_column(field) else field


def _is_column(kind: Any) -> bool:
    return isinstance(kind, types.Array) and kind.ndim == 1 and kind.layout == "C"


@lower_getattr_generic(Reference)
def _load_field(context: Any, builder: Any, kind: Reference, pointer: Any, name: str) -> Any:
    index = kind.target.fields.index(name)
    field = cgutils.gep_inbounds(builder, pointer, 0, index)
    if _is_column(kind.target.types[index]):
        return field
    return impl_ret_borrowed(context, builder, kind.target.types[index], _loaded(builder, field))


@infer_getattr
class _ColumnSize(AttributeTemplate):
    """A column knows how many items it has."""

    key = Column

    def resolve_size(self, _: Any) -> Any:
        return types.intp


@lower_getattr(Column, "size")
def _load_size(context: Any, builder: Any, kind: Column, pointer: Any) -> Any:
    return _loaded(builder, _fields(context, builder, kind, pointer)._get_ptr_by_name("nitems"))


def _fields(context: Any, builder: Any, kind: Column, pointer: Any) -> Any:
    return cgutils.create_struct_proxy(kind.array)(context, builder, ref=pointer)


@infer_global(operator.getitem)
class _ColumnItem(AbstractTemplate):
    """An item of a column is one of its array; a slice is an array."""

    def generic(self, args: Any, _: Any) -> Any:
        column, index = args
        if isinstance(column, Column) and isinstance(index, types.Integer):
            return signature(column.dtype, column, index)
        if isinstance(column, Column) and isinstance(index, types.SliceType):
            return signature(column.array, column, index)
        return None


@infer_global(operator.setitem)
class _ColumnItemSet(AbstractTemplate):
    """A column takes what its array takes."""

    def generic(self, args: Any, _: Any) -> Any:
        column, index, _ = args
        if isinstance(column, Column) and isinstance(index, types.Integer):
            return signature(types.none, column, index, column.dtype)
        return None


@lower_builtin(operator.getitem, Column, types.Integer)
def _load_item(context: Any, builder: Any, called: Any, args: Any) -> Any:
    item = _item(context, builder, called, args)
    return context.unpack_value(builder, called.return_type, item)


@lower_builtin(operator.setitem, Column, types.Integer, types.Any)
def _store_item(context: Any, builder: Any, called: Any, args: Any) -> Any:
    item = _item(context, builder, called, args)
    context.pack_value(builder, called.args[2], args[2], item)
    return context.get_dummy_value()


def _item(context: Any, builder: Any, called: Any, args: Any) -> Any:
    """Return the address of an item."""
    kind = called.args[0]
    data = _loaded(builder, _fields(context, builder, kind, args[0])._get_ptr_by_name("data"))
    place = context.cast(builder, args[1], called.args[1], types.intp)
    return builder.gep(data, [place], inbounds=True)


@lower_builtin(operator.getitem, Column, types.SliceType)
def _load_slice(context: Any, builder: Any, called: Any, args: Any) -> Any:
    array = called.args[0].array
    of_array = signature(called.return_type, array, called.args[1])
    take = context.get_function(operator.getitem, of_array)
    return take(builder, [_loaded(builder, args[0]), args[1]])


@lower_cast(Column, types.Array)
def _load_array(_: Any, builder: Any, _kind: Any, _array: Any, pointer: Any) -> Any:
    return _loaded(builder, pointer)


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


def item_of(context: Any, builder: Any, kind: Any, pointer: Any, field: str, place: int) -> Any:
    """Load an item of a column of what a reference is to."""
    column = Column(kind.target.types[kind.target.fields.index(field)])
    called = signature(column.dtype, column, types.intp)
    args = (
        _load_field(context, builder, kind, pointer, field),
        context.get_constant(types.intp, place),
    )
    return _load_item(context, builder, called, args)


def part_of_rule(kind: np.dtype[np.void]) -> Any:
    """Return what gives, in compiled code, the field ``of_rule`` of a record as a record itself: a
    rule says what of, the others only that there is room for it.
    """
    words = kind.itemsize // np.dtype(np.int64).itemsize
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return lambda record: record["of_rule"][:words].view(kind).view(np.recarray)[0]
    part = from_dtype(kind)

    @intrinsic
    def of(_: Any, record: Any) -> Any:
        room = record.typeof("of_rule").nitems
        if words > room:
            raise ValueError(f"{kind} is {words} words, but there is room for {room}; raise that")

        def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
            offset = record.offset("of_rule")
            place = cgutils.get_record_member(builder, args[0], offset, cgutils.int8_t)
            return builder.bitcast(place, context.get_value_type(part))

        return part(record), generate

    return of


def reference_at(target: Any) -> Any:
    """Return what makes, in compiled code, a reference of the address that `Address` gives."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return lambda arrays: arrays
    kind = Reference(target)

    @intrinsic
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), generate

    return at


class Address:
    """Where compiled code finds a named tuple of arrays, which it is given at each call.

    Numba would take each array apart at every call, in code that costs a tenth of the loop. Here
    what is known of an array is written down once.
    """

    def __init__(self) -> None:
        self._arrays: tuple[Any, ...] = ()
        self._words = np.zeros(0, np.int64)

    def of(self, arrays: Any) -> Any:
        """Return the address, good until the next call; the arrays where nothing is compiled."""
        if config.DISABLE_JIT:  # type: ignore[attr-defined]
            return arrays
        if not self._arrays:
            self._arrays = (None,) * len(arrays)
            self._words = np.zeros(sum(5 + 2 * array.ndim for array in arrays), np.int64)
        place = 0
        for array, known in zip(arrays, self._arrays, strict=True):
            end = place + 5 + 2 * array.ndim
            if array is not known:  # nobody to count references for, items, bytes of each, ...
                shape, strides = array.shape, array.strides
                words = 0, 0, array.size, array.itemsize, array.ctypes.data, *shape, *strides
                self._words[place:end] = words
            place = end
        self._arrays = tuple(arrays)
        return self._words.ctypes.data
