"""What is compiled is compiled only when it is needed, and loaded without what compiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, temporary: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=environment | {"TMPDIR": str(temporary)},
    )  # fmt: skip


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_no_compiler(option: str, tmp_path: Path) -> None:
    code = f"import sys; sys.argv = ['penstock', {option!r}]\nfrom penstock.cli import main\ntry: main()\n"
    done = run(code + "finally: print('numba' in sys.modules)", tmp_path)
    assert done.stdout.splitlines()[-1] == "False"
    assert done.stderr == ""


def test_a_part_that_python_calls_says_that_it_is_none_of_its_business() -> None:
    from penstock.kernel.blocks import blocks_of

    for _ in range(2):  # compiled, and known
        with pytest.raises(KeyError, match="blocks_of is called by compiled functions only"):
            blocks_of(5, 16)


def test_kept_code_is_loaded_without_what_compiles_and_a_policy_of_ones_own_compiles_after_it(
    tmp_path: Path,
) -> None:
    source = """
import sys
import numpy as np
from penstock.kernel.counting import doubled, new_multiset
from penstock.kernel.signatures import DECODE_FIRST, Limits, Queue
from penstock.system.policies import POLICIES, policy

doubled(new_multiset())
POLICIES["orca"].compiled
print("numba.np.arraymath" in sys.modules)

def mine(queue, limits, params):
    shares = np.ones(2)  # counted, as what Penstock has of its own is not
    return int(shares.sum()), queue.decoding, DECODE_FIRST

for made in (POLICIES["orca"], policy(mine)):
    print(made.compiled(Queue(*range(len(Queue._fields))), Limits(512, 8), np.ones(1))[:2])
"""
    path = tmp_path / "source.py"
    path.write_text(source)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    cold, warm = [
        subprocess.run(
            [sys.executable, path], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert (cold[0], warm[0]) == ("True", "False")
    assert cold[1:] == warm[1:]
    assert len(warm) == 3
