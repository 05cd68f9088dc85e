"""Meanings of the fields of answers, and what is `computed` of them, in the reference."""

import ast
from typing import Any

import griffe


class FieldsOfAnswers(griffe.Extension):
    """Describe fields by their meanings, and show what is computed as the attribute that it is."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the meaning out of an annotation."""
        kind = attr.annotation
        if not isinstance(kind, griffe.ExprSubscript) or str(kind.left) != "Annotated":
            return
        plain, *beside = getattr(kind.slice, "elements", [kind.slice])
        for part in beside:
            if isinstance(part, griffe.ExprCall) and str(part.function) == "Meaning":
                attr.annotation = plain
                text = part.arguments[0]
                if isinstance(text, griffe.ExprName):  # a constant of its module
                    text = attr.module[text.name].value
                attr.docstring = griffe.Docstring(ast.literal_eval(str(text)), parent=attr)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Turn methods that are computed into attributes."""
        for name, member in list(cls.members.items()):
            if member.is_function and any(
                str(of.value).startswith("computed(") for of in member.decorators
            ):
                made = griffe.Attribute(
                    name, lineno=member.lineno, annotation=member.returns, parent=cls,
                    docstring=member.docstring,
                )  # fmt: skip
                made.labels |= {"property"}
                cls.set_member(name, made)
