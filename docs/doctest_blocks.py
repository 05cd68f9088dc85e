"""Examples in docstrings, as sections that a page can show: ``>>>`` alone would be a quotation in
Markdown.
"""

import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^ *>>> .*\n?(?:^ *\S.*\n?)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Gather the examples of every docstring in a section at its end."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None and "\nExamples\n" not in obj.docstring.value:
            text = obj.docstring.value
            examples = [inspect.cleandoc(found[0]) for found in EXAMPLE.finditer(text)]
            if examples:
                shown = "\n\n".join(examples)
                obj.docstring.value = (
                    f"{EXAMPLE.sub('', text).rstrip()}\n\nExamples\n--------\n{shown}\n"
                )
