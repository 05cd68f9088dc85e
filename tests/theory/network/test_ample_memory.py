"""When the KV memory of a pool surely never binds."""

import pytest

import penstock as ps
from penstock.theory.hypotheses import AMPLE


def ample(slots: int, most_prompt: int) -> tuple[bool, str]:
    server = ps.Server(ps.Affine(0.02, 2e-4), 512, slots, policy="vllm", memory=ps.Memory(41, 16))
    workload = ps.Workload.poisson(0.2, ps.Uniform(1, most_prompt), ps.Uniform(1, 100))
    network = ps.Network.single(workload, server, replicas=2, router="random")
    (found,) = (h for h in ps.certify(network).hypotheses if h.name == AMPLE)
    return found.held, found.why


@pytest.mark.parametrize("slots", [1, 2, 64])
def test_a_request_that_never_fits_binds_the_memory_whatever_the_max_batch_size(slots: int) -> None:
    """One server drops it or refuses the workload; in a network it waits for ever."""
    held, why = ample(slots, most_prompt=900)
    assert not held
    assert "900 tokens with an output of 100 never fits" in why
    assert "surely fit" not in why


def test_a_max_batch_size_that_is_sure_to_fit_is_so() -> None:
    held, why = ample(64, most_prompt=100)
    assert not held
    slots = int(why.split("; up to ")[1].split()[0])
    assert ample(slots, most_prompt=100)[0]
    assert not ample(slots + 1, most_prompt=100)[0]
