"""Before a verdict on an engine is read it is said on what KV memory it rests, and where it would turn."""

import dataclasses
import re

import penstock as ps
from penstock.checking.check import check
from penstock.checking.notes import kv_notes
from penstock.system.gpu_memory import Gpu

# Batches of 0.02 s at least: 2 requests/s of 301 decodes need some 12 running requests of up to 700 tokens.
BATCH_TIME = ps.Affine(0.02, 2e-5)
WORKLOAD = ps.Workload.poisson(2.0, ps.Geometric(300, max=1_000), ps.Geometric(300, max=1_000))
UNLIMITED = ps.Server(BATCH_TIME, 1_024, 128, policy="vllm")


def numbers(text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"with ([\d,]+)", text)]


def test_the_tokens_at_which_a_verdict_turns_are_two_that_were_tried() -> None:
    (note,), _ = kv_notes(WORKLOAD, UNLIMITED, "stable")
    assert note.startswith("KV memory has no limit here")
    stable, unstable = numbers(note.replace("it is not", "").replace(", with", "; with"))
    assert unstable < stable <= 1.3 * unstable
    for tokens, expected in ((int(1.3 * stable), "stable"), (int(0.7 * unstable), "unstable")):
        server = dataclasses.replace(UNLIMITED, memory=ps.Memory.of_tokens(tokens))
        assert ps.verdict(WORKLOAD, server, resolution=0.05).verdict == expected


def test_an_estimate_says_whether_the_verdict_hangs_on_it() -> None:
    gpu = Gpu("Llama-2-70B", 79.2, 2)
    server = dataclasses.replace(UNLIMITED, gpu=gpu)
    assert server.kv_estimate is not None
    (note,), _ = kv_notes(WORKLOAD, server, "stable")
    assert note.endswith(
        f" Give it as kv_tokens. The test below says stable, at {server.kv_estimate.low:,} tokens, too."
    )
    tight = dataclasses.replace(server, gpu=dataclasses.replace(gpu, utilization=0.865))
    assert tight.kv_estimate is not None
    assert tight.kv_estimate.low < 3_000 < tight.kv_estimate.tokens
    (note,), doubt = kv_notes(WORKLOAD, tight, "stable")
    assert f"with {tight.kv_estimate.low:,} tokens, which may be the true number, it is unstable" in doubt
    assert note.endswith(
        f"The test below says stable, but unstable at {tight.kv_estimate.low:,} tokens, so measure that number first."
    )


def test_the_policies_of_the_paper_and_a_memory_that_was_given_need_no_note() -> None:
    for server in (UNLIMITED.with_policy("sarathi"), dataclasses.replace(UNLIMITED, memory=ps.Memory(2_000))):
        assert kv_notes(WORKLOAD, server, "stable") == ((), "")


def test_an_answer_has_the_note_in_front_of_its_warnings() -> None:
    answer = check(WORKLOAD, UNLIMITED, requests=500, estimate_memory=False)
    assert answer.front == kv_notes(WORKLOAD, UNLIMITED, "stable", search=False)[0]
    assert answer.as_dict()["warnings"][0] == answer.front[0]
