"""One verb for a server and a network: what only the other has is refused, and nothing is loaded in vain."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps

CHAT = ps.Workload.poisson(1.0, 100, 20)
SERVER = ps.Server(ps.Affine(0.01, 1e-4), 512)
NETWORK = ps.Network.single(CHAT, SERVER)
VERBS = (ps.certify, ps.verdict, ps.check, ps.simulate)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "given", [(CHAT,), (SERVER,), (SERVER, CHAT), (NETWORK, SERVER), ("chat", "server"), (CHAT, NETWORK)]
)
def test_what_is_neither_a_workload_on_a_server_nor_a_network_is_refused_in_one_line(
    verb: Callable[..., Any], given: tuple[object, ...]
) -> None:
    with pytest.raises(ps.InputError, match="takes a Workload and a Server, or a Network alone, not") as refusal:
        verb(*given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        (ps.simulate, {"requests": 10}, "a network has jobs, not requests; give jobs="),
        (ps.check, {"requests": 10}, "a network has jobs, not requests; give jobs="),
        (ps.check, {"jobs": 10, "alpha": 0.1}, "give resolution="),
        (ps.check, {"jobs": 10, "estimate_memory": False}, "leave estimate_memory out"),
        (ps.verdict, {"alpha": 0.1}, "give resolution="),
        (ps.verdict, {"most_arrivals": 10}, "give most_jobs="),
    ],
)
def test_what_only_a_server_has_is_refused_of_a_network_with_the_right_word(
    verb: Callable[..., Any], options: dict[str, object], said: str
) -> None:
    with pytest.raises(ps.InputError, match=said):
        verb(NETWORK, **options)


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        (ps.simulate, {"jobs": 10}, "a server has requests, not jobs; give requests="),
        (ps.check, {"jobs": 10}, "a server has requests, not jobs; give requests="),
        (ps.simulate, {"requests": 10, "seed": 3}, "workload.with_seed"),
        (ps.check, {"requests": 10, "seed": 3}, "workload.with_seed"),
        (ps.verdict, {"most_jobs": 10}, "give most_arrivals="),
    ],
)
def test_what_only_a_network_has_is_refused_of_a_server_with_the_right_word(
    verb: Callable[..., Any], options: dict[str, object], said: str
) -> None:
    with pytest.raises(ps.InputError, match=said):
        verb(CHAT, SERVER, **options)


def test_a_question_about_a_server_loads_no_session_and_no_theorem_of_networks() -> None:
    """It is certified by its load alone, and run by a loop of its own."""
    asked = """
import sys
import penstock as ps
workload, server = ps.Workload.poisson(1.0, 100, 20), ps.Server(ps.Affine(0.01, 1e-4), 512)


def loaded():
    return [name for name in sys.modules if name.startswith("penstock.") and "network" in name]

ps.certify(workload, server)
print(*loaded())
ps.check(workload, server, requests=50, estimate_memory=False)
print(*loaded())
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    certified, checked = done.stdout.splitlines()
    assert certified == ""
    assert set(checked.split()) <= {"penstock.system.network", "penstock.system.network_model"}
