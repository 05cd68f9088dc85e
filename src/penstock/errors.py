"""The one exception that means: the input, not Penstock, is at fault."""

import difflib
import errno
from collections.abc import Iterable

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What writing fails with where a disk has no room, or is broken."""

_SHORT = 6  # letters, of which one is much


class InputError(ValueError):
    """A value that cannot be used, said in one line: value, limit, consequence, remedy.

    The command line prints it and exits with status 2; any other exception is a bug.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, else the list of what is known.

    The beginning of one name alone means that name. Else a long name must be close:
    ``max_model_len`` is no slip of ``max_total_tokens``, and means something else.

    >>> nearest("sarati", ["orca", "sarathi"])
    "; did you mean 'sarathi'?"
    >>> nearest("zzz", ["orca", "sarathi"])
    '; known: orca, sarathi'
    """
    names = list(known)
    cutoff = 0.6 if len(name) < _SHORT else 0.8
    begun = [
        known_name for known_name in names if len(name) >= _SHORT and known_name.startswith(name)
    ]
    close = begun if len(begun) == 1 else difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
