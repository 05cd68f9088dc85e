"""KV memory: what it holds, and values that cannot be used."""

import numpy as np
import pytest

import penstock as ps

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
WHOLE = {"chunked_prefill": False, "max_prefill_tokens": 2**21}


def test_blocks_and_tokens_are_two_ways_to_say_the_same() -> None:
    assert ps.Memory.of_tokens(1000).blocks == 62
    assert ps.Memory(62).tokens == 992
    assert ps.Server(TP1, 512, kv_tokens=1000).memory == ps.Server(TP1, 512, kv_blocks=62).memory
    assert ps.Server(TP1, 512).memory is None


def test_a_request_needs_whole_blocks() -> None:
    assert [ps.Memory(9).blocks_of(n) for n in (1, 16, 17)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"blocks": 0}, "kv_blocks is 0"),
        ({"blocks": 1.5}, "kv_blocks is 1.5"),
        ({"blocks": 9, "block_size": 0}, "block_size is 0"),
        ({"blocks": 9, "watermark": 1.0}, "watermark is 1"),
        ({"blocks": 9, "admission": "all"}, "admission is 'all'"),
        ({"blocks": 9, "too_long": "ignore"}, "too_long is 'ignore'"),
        ({"blocks": 9, "prefix_caching": 1}, "prefix_caching is 1"),
    ],
)
def test_values_that_cannot_be_used_are_named(how, said: str) -> None:
    with pytest.raises(ps.InputError, match=said):
        ps.Memory(**how)


def test_memory_said_twice_is_refused() -> None:
    with pytest.raises(ps.InputError, match="memory and kv_blocks say the same"):
        ps.Server(TP1, 512, memory=ps.Memory(9), kv_blocks=9)


def test_less_than_a_block_holds_nothing() -> None:
    with pytest.raises(ps.InputError, match="less than one block"):
        ps.Server(TP1, 512, kv_tokens=15)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_blocks": 100, "block_size": 0}, "block_size is 0"),
        ({"block_size": 32}, "block_size is 32 without kv_blocks"),
        ({"policy": "maxweight", "policy_params": [200, 50, 300]}, "maxweight takes mean prompt tokens and"),
        ({"policy_params": [1, 2]}, "sarathi takes no parameters"),
        ({"policy": "pool-controlled", "policy_params": [80, 20]}, "not falling"),
        ({"policy_params": None}, "policy_params is None"),
        ({"policy": "vllm", "policy_params": np.array([3.0, 5.0])}, "give a mapping"),
        ({"order": np.array(["fcfs"])}, "order is"),
        ({"policy": "sglang", "kv_blocks": 100, "block_size": 4096}, "so no prompt is ever served"),
        ({"policy": "sglang", "policy_params": WHOLE}, "have 2,097,152 tokens"),
        ({"policy": "sglang", "policy_params": {"new_token_ratio": 0.1, "min_new_token_ratio": 0.9}}, "falls to it"),
    ],
)
def test_what_a_server_cannot_do_is_said_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError, match=said) as caught:
        ps.Server(ps.PiecewiseConstant(0.01, 0.03, 128), 512, **({"max_batch_size": 64} | given))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
