"""What must be true of transfers of KV memory: their time is bytes over bandwidth."""

import pytest

from penstock.errors import InputError
from penstock.system.gpu_memory import Gpu
from penstock.system.kv_transfer import checked_link, link_ms_per_token


def test_a_token_takes_its_bytes_over_the_bandwidth() -> None:
    """Llama-3.1-8B leaves 2 x 32 layers x 8 heads x 128 x 2 bytes, on however many GPUs."""
    assert link_ms_per_token(25.0, 1e6) == pytest.approx(0.04)
    for parallel in (1, 2, 16):
        assert link_ms_per_token(10.0, gpu=Gpu("Llama-3.1-8B", 80, parallel)) == pytest.approx(131_072 / 10e6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0.0, 9), "transfer_gb_per_s is 0.0, but must be a number from 0.001 to 1,000,000 GB/s"),
        ((-1, 9), "transfer_gb_per_s is -1"),
        (("fast", 9), "transfer_gb_per_s is 'fast'"),
        ((25, 0), "kv_bytes_per_token is 0, but must be a number from 1"),
        ((25,), "transfer_gb_per_s is 25, but how much a token takes is not known without the model"),
    ],
)
def test_a_link_that_cannot_be_is_one_clear_line(given, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        link_ms_per_token(*given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_transfer_is_described_once_and_in_full() -> None:
    checked_link(0.01, None, None)
    checked_link(0.0, 25.0, 9)
    with pytest.raises(InputError, match="both say how long"):
        checked_link(0.01, 25.0, None)
    with pytest.raises(InputError, match="add transfer_gb_per_s"):
        checked_link(0.0, None, 9)
