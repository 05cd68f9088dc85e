"""A policy is named, imported or given, and means the same every way."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST, Limits, Queue
from penstock.system.own_functions import name_of
from penstock.system.policies import resolve

LIMITS = Limits(token_budget=512, batch_size=100)
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time


@pytest.mark.parametrize(
    ("name", "queue", "expected"),
    [
        ("fastertransformer", Queue(3, 900, 40), (0, 40, DECODE_FIRST)),
        ("fastertransformer", Queue(3, 900, 0), (512, 0, DECODE_FIRST)),
        ("vllm-vanilla", Queue(3, 900, 40), (512, 0, PREFILL_FIRST)),
        ("vllm-vanilla", Queue(0, 0, 140), (0, 100, PREFILL_FIRST)),
        ("orca", Queue(3, 500, 40), (500, 12, PREFILL_FIRST)),
        ("orca", Queue(3, 900, 40), (512, 0, PREFILL_FIRST)),
        ("sarathi", Queue(3, 900, 40), (472, 40, DECODE_FIRST)),
        ("sarathi", Queue(3, 10, 140), (10, 100, DECODE_FIRST)),
    ],
)
def test_the_four_policies_of_the_paper_compose_batches_as_section_4_says(
    name: str, queue: Queue, expected: tuple[int, int, int]
) -> None:
    assert ps.POLICIES[name](queue, LIMITS) == expected


def random_queues(seed: int, count: int) -> Iterator[Queue]:
    """Draw what a policy may see in scope ``batch``, everything consistent; at least one request is there."""
    rng = np.random.default_rng(seed)
    while count:
        waiting, decoding, finished = (int(rng.integers(0, rng.choice([1, 3, 100, 300]))) for _ in range(3))
        if waiting + decoding == 0:
            continue
        count -= 1
        prompts = rng.integers(1, rng.choice([2, 30, 800]), waiting)
        seen, arrived = prompts[: LIMITS.batch_size], waiting + decoding + finished
        yield Queue(
            int(seen.size), int(seen.sum()), decoding, waiting, int(prompts.sum()), int(prompts[:1].sum()),
            decoding * int(rng.integers(1, 400)), arrived, int(prompts.sum()) + 90 * (decoding + finished),
            finished, finished * int(rng.integers(0, 300)),
        )  # fmt: skip


@pytest.mark.parametrize("name", ps.POLICIES)
def test_the_compiled_policy_is_the_written_one(name: str) -> None:
    policy, params = ps.POLICIES[name], np.array(ps.Server(TP1, 512, 100, policy=name).params)
    for queue in random_queues(seed=1, count=300):
        assert policy(queue, LIMITS, params) == policy.compiled(queue, LIMITS, params)


def test_names_with_dashes_functions_and_files_all_resolve(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import penstock as ps\n\n\n@ps.policy(name='half', work_conserving=False)\n"
        "def f(queue, limits, params):\n    return queue.prompt_tokens // 2 + 1, queue.decoding, ps.PREFILL_FIRST\n"
    )
    assert resolve("vllm-vanilla") is ps.POLICIES["vllm-vanilla"]
    found = resolve("own:f", folder=tmp_path)
    assert (found.name, found.work_conserving) == ("half", False)
    assert resolve(found) is found
    with pytest.raises(ps.InputError, match="has no function 'g'"):
        resolve("own:g", folder=tmp_path)
    with pytest.raises(ps.InputError, match="cannot import the policy module"):
        resolve("nowhere.at_all:f", folder=tmp_path)


@pytest.mark.parametrize("name", ["random", "numpy", "called_as_no_module"])
def test_a_file_named_as_a_module_takes_the_place_of_none(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("def half(queue, limits, params):\n    return 1, 0, 0\n")
    before = sys.modules.get(name)
    for _ in range(2):
        policy = resolve(f"{name}.py:half", folder=tmp_path)
        assert resolve(name_of(policy.function), folder=tmp_path).function.__code__ == policy.function.__code__
    assert before is None or sys.modules[name] is before


def test_a_file_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ps.InputError, match=r"there is no file .*mine\.py for the policy"):
        resolve("mine.py:half", folder=tmp_path)


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.py").write_text("def half(queue, limits, params):\n    return 1, queue.decoding, 0\n")
    assert resolve("~/mine.py:half", folder=tmp_path / "elsewhere").name == "half"


def test_a_policy_file_with_a_mistake_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(queue limits):\n    pass\n")
    with pytest.raises(ps.InputError) as caught:
        resolve("broken:f", folder=tmp_path)
    assert "\n" not in str(caught.value)
