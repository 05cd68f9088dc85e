"""The one exception that means: the input, not Penstock, is at fault."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A value that cannot be used, said in one line: value, limit, consequence, remedy.

    The command line prints it and exits with status 2; any other exception is a bug.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, else the list of what is known.

    >>> nearest("sarati", ["orca", "sarathi"])
    "; did you mean 'sarathi'?"
    >>> nearest("zzz", ["orca", "sarathi"])
    '; known: orca, sarathi'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
