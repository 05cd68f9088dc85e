"""Which limit on the queue is right."""

import dataclasses

import pytest

import penstock as ps
from penstock.capacity.queue_limit import LOADS

TIMES = ps.hardware("codellama-34b-a100-tp1").batch_time
VLLM = ps.Server(TIMES, 512, 128, "vllm", kv_tokens=100_000)
CHAT = ps.Workload.poisson(4.6, 500, ps.Geometric(100))
TARGET = ["ttft_p99<5s"]


@pytest.fixture(scope="module")
def answer():
    return ps.recommend_queue(CHAT, VLLM, targets=TARGET, requests=4_000)


def test_the_limit_keeps_the_target_at_every_load_where_none_does_not(answer):
    assert [row.times for row in answer.rows] == list(LOADS)
    assert all(row.met for row in answer.rows)
    assert not answer.as_it_is[-1].met
    assert answer.best.goodput_rate > 0.97 * ps.certify(CHAT, VLLM).max_rate
    assert answer.rows[0].refused < 0.01


def test_the_rule_of_thumb_forgets_that_decodes_take_a_part_of_each_batch(answer):
    assert answer.thumb[0].limit == round(5 * VLLM.full_batch_rate)
    assert not answer.thumb[-1].met
    assert answer.thumb[-1].goodput_rate < 0.5 * answer.best.goodput_rate


def served_in_time(times, **limit):
    """Return the requests/s served within 5 s at so many times the load, and whether 99% of those served are."""
    server = dataclasses.replace(VLLM, queue_limit=ps.QueueLimit(**limit))
    run = ps.simulate(CHAT.with_rate(4.6 * times), server, requests=4_000)
    rows = run.rows.where(slice(400, None))
    good = (rows.finish >= 0) & ((rows.first_token - rows.arrival) * run.tick_s <= 5)
    return good.mean() * 4.6 * times, good.sum() >= 0.99 * (rows.finish >= 0).sum()


def test_no_other_limit_has_more_goodput_by_one_per_cent(answer):
    """Of both kinds that vLLM has, one by one, on the same requests, at all loads together."""
    best = 0.0
    for kind, limits in {"requests": range(8, 240, 8), "prompt_tokens": range(500, 20_000, 500)}.items():
        for limit in limits:
            most, kept = served_in_time(2.0, **{kind: limit})
            if kept and most > 0.8 * answer.best.goodput_rate:
                best = max(best, sum(served_in_time(times, **{kind: limit})[0] for times in LOADS))
    assert sum(row.goodput_rate for row in answer.rows) > 0.99 * best


def test_a_limit_that_is_as_good_in_overload_but_refuses_at_half_the_load_is_not_right():
    """Few prompt tokens serve as many in overload, but refuse every tenth at a load that is carried."""
    fast = ps.Affine(0.006, 3.2e-5)
    server = ps.Server(fast, 8192, 1024, "vllm", kv_tokens=400_000)
    long = ps.Workload.poisson(11.0, ps.LogNormal(2_000, 1.2), ps.Geometric(300))
    limit = ps.recommend_queue(long, server, targets=["ttft_p99<2s"], requests=4_000)
    assert limit.rows[0].refused < 0.01
    assert all(
        row.goodput_rate > 0.98 * as_it_is.goodput_rate
        for row, as_it_is in zip(limit.rows, limit.as_it_is, strict=True)
    )


def test_the_engine_is_told_by_its_own_flag(answer):
    (kind,) = answer.limit.stated
    assert answer.flags.startswith(
        {"requests": "--max-num-queued-reqs ", "prompt_tokens": "--max-num-queued-tokens "}[kind]
    )
    sglang = ps.Server(TIMES, 512, 64, "sglang", kv_tokens=60_000)
    assert ps.recommend_queue(CHAT, sglang, targets=TARGET, requests=1_500).flags.startswith("--max-queued-requests ")
    sarathi = ps.Server(TIMES, 512, 64)
    assert ps.recommend_queue(CHAT, sarathi, targets=TARGET, requests=1_500).flags.startswith("queue_limit: {")


def test_the_answer_is_shown(answer):
    document = answer.as_dict()
    assert document["limit"] == answer.limit.stated
    assert document["targets"] == ["ttft_p99<5s"]
    assert len(document["rows"]) == len(LOADS)


@pytest.mark.parametrize(
    ("server", "targets", "says"),
    [
        (VLLM, [], "a limit on the queue keeps a target; give one"),
        (ps.Server(TIMES, 512, 64, "tensorrt-llm"), TARGET, "tensorrt-llm has no limit on its queue"),
        (VLLM, ["ttft_p99<1ms"], "no limit on the queue keeps ttft_p99<0.001s"),
    ],
)
def test_what_no_limit_can_do_is_said_in_one_line(server, targets, says):
    with pytest.raises(ps.InputError) as error:
        ps.recommend_queue(CHAT, server, targets=targets, requests=1_000)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
