"""Special functions are SciPy's own, and SciPy is whole afterwards."""

import subprocess
import sys

SOURCE = """
import sys
from penstock.inputs import special_functions
print("scipy.special" in sys.modules)
from scipy import special, stats
print(all(getattr(special, name) is getattr(special_functions, name) for name in special_functions.__all__))
print(round(stats.t(3).ppf(0.975), 3))
"""


def test_functions_load_without_their_package_which_loads_after_them() -> None:
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "3.182"]
