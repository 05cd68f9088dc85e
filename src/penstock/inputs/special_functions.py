"""Special functions of SciPy, without the rest of `scipy.special`.

>>> float(ndtr(0))
0.5
"""

import importlib
import importlib.util
import sys
from typing import Any

__all__ = ["gammaincc", "ndtr", "ndtri", "stdtrit", "xlogy"]


def _compiled_functions() -> Any:
    """Return the module of `scipy.special` with the compiled functions, which loads in .01 s."""
    # The package takes .2 s, as long as a simulation: it looks at all that NumPy has, down to its
    # reader of Fortran. So something stands for it while the module is loaded.
    name = "scipy.special"
    spec = importlib.util.find_spec(name)
    if name not in sys.modules and spec is not None:
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            return importlib.import_module(f"{name}._ufuncs")
        except ImportError:  # another SciPy, which has them elsewhere
            pass
        finally:
            del sys.modules[name]
    return importlib.import_module(name)


_FUNCTIONS = _compiled_functions()
gammaincc = _FUNCTIONS.gammaincc
ndtr = _FUNCTIONS.ndtr
ndtri = _FUNCTIONS.ndtri
stdtrit = _FUNCTIONS.stdtrit
xlogy = _FUNCTIONS.xlogy
