"""Meanings of the fields of answers, and what is `computed` of them, in the reference."""

import pydoc
from typing import Any

import griffe

from penstock.fields import parts_of
from penstock.show.answers import Meaning


class FieldsOfAnswers(griffe.Extension):
    """Describe fields by their meanings, and show what is computed as the attribute that it is."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Describe fields, and turn methods that are computed into attributes."""
        for name, member in list(cls.members.items()):
            if not (is_annotated(member) or is_computed(member)):
                continue
            meaning = meaning_of(pydoc.locate(cls.path), name)
            if meaning is not None:
                shown = griffe.Attribute(
                    name, lineno=member.lineno, annotation=type_of(member), parent=cls,
                    value=getattr(member, "value", None), docstring=griffe.Docstring(meaning.text),
                )  # fmt: skip
                shown.labels |= {"property"} if member.is_function else member.labels
                cls.set_member(name, shown)


def is_annotated(member: Any) -> bool:
    """Whether something stands beside the type of a field."""
    kind = member.annotation if member.is_attribute else None
    return isinstance(kind, griffe.ExprSubscript) and str(kind.left) == "Annotated"


def is_computed(member: Any) -> bool:
    """Whether a method is computed of fields."""
    decorators = member.decorators if member.is_function else ()
    return any(str(of.value).startswith("computed(") for of in decorators)


def meaning_of(made: Any, name: str) -> Meaning | None:
    """Return what a field of a class means, or what is computed."""
    meaning: Meaning | None = getattr(getattr(vars(made).get(name), "fget", None), "meaning", None)
    beside = parts_of(getattr(made, "__annotations__", {}).get(name))
    return meaning or next((part for part in beside if isinstance(part, Meaning)), None)


def type_of(member: Any) -> Any:
    """Return the type of a field, without what stands beside it, or of what a method returns."""
    return member.annotation.slice.elements[0] if is_annotated(member) else member.returns
