"""What recorded prompts have in common is read, kept with their rows, and dropped where rows are drawn at random."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.workload.prefixes import Prefixes, with_answers
from penstock.workload.traces import load

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
ROWS = [(0, 20, 2, [7, 9]), (5, 40, 3, [7, 9, 8]), (9, 15, 1, [])]


def rows_of(prefixes: Prefixes) -> list[list[int]]:
    return [prefixes.ids[a:b].tolist() for a, b in zip(prefixes.bounds, prefixes.bounds[1:], strict=False)]


@given(st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(-9, 9), max_size=9)), min_size=1, max_size=9))
def test_ids_of_full_blocks_are_kept_and_are_equal_where_all_before_are(
    requests: list[tuple[int, list[int]]],
) -> None:
    prompt = np.array([tokens for tokens, _ in requests])
    counts = np.array([len(ids) for _, ids in requests])
    flat = np.array([i for _, ids in requests for i in ids], np.int64)
    prefixes = Prefixes.of(flat, counts, prompt, 8)
    found = rows_of(prefixes)
    expected = [[tuple(ids[: i + 1]) for i in range(min(len(ids), tokens // 8))] for tokens, ids in requests]
    assert [len(row) for row in found] == [len(row) for row in expected]
    old, new = (list(itertools.chain(*lists)) for lists in (expected, found))
    renamed = dict(zip(old, new, strict=True))
    assert [[renamed[i] for i in row] for row in expected] == found
    assert sorted(set(new)) == list(range(len(renamed)))
    behind = {(up_to[-1], up_to[:-1]) for up_to in old}
    assert bool(prefixes.notices) == (len({one for one, _ in behind}) < len(behind))


def test_ids_behind_different_ones_are_of_blocks_alone_and_a_notice_says_so(tmp_path: Path) -> None:
    """The second prompt begins otherwise than the first, whatever its second block is."""
    given = [[1, 2], [2, 1], [1, 1], [3, 2], [1, 2]]
    workload = ps.Workload.from_arrays([0, 1, 2, 3, 4], [8] * 5, [1] * 5, hash_ids=given, hash_block=4)
    assert workload.prefixes is not None
    first, second, third, fourth, fifth = rows_of(workload.prefixes)
    assert first == fifth
    assert third[0] == first[0]
    assert len({*first, *second, *third, *fourth}) == 7
    path = tmp_path / "mine.jsonl"
    names = ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, (0, 8, 1, ids), strict=True))) + "\n" for ids in given))
    read = ps.read_trace(path, hash_block=4)
    assert rows_of(read.prefixes) == rows_of(workload.prefixes)  # type: ignore[arg-type]
    said = "hash ids are of blocks alone, 2 of them behind different ones: prompts have in common what their ids, "
    assert workload.notices == read.notices == (f"{said}from the first on, have",)


def test_a_trace_with_hash_ids_brings_them(tmp_path: Path) -> None:
    """Mooncake's blocks have 512 tokens; a last id may stand for a part of one."""
    path = tmp_path / "mine.jsonl"
    rows = [(0, 1024, 5, [1, 2]), (1000, 1500, 7, [1, 2, 3]), (2000, 600, 9, [])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    found = ps.read_trace(path)
    assert found.prefixes is not None
    assert found.prefixes.block_size == 512
    assert rows_of(found.prefixes) == [[0, 1], [0, 1], []]
    scaled = found.with_rate(3.0)
    assert scaled.prefixes is found.prefixes
    drawn = found.with_rate(3.0, "poisson")
    assert drawn.prefixes is None
    assert any("hash ids are left out" in notice for notice in drawn.notices)


@pytest.mark.parametrize("bad", ['"1,2"', "[1, null]", "[1.5]", "[[1]]", "{}"])
def test_ids_that_are_no_list_of_whole_numbers_are_named_with_their_row(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    good = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}\n'
    path.write_text(good + good.replace("[1]", bad))
    with pytest.raises(ps.InputError, match="hash_ids"):
        ps.read_trace(path)


@pytest.mark.skipif(not TRACES.exists(), reason="the traces are not beside the repository")
def test_the_mooncake_trace_shares_what_its_ids_say() -> None:
    trace = load(TRACES / "mooncake_fast25_conversation_trace.jsonl.gz")
    assert trace.prefixes is not None
    assert trace.prefixes.rows == 12_031
    full = trace.prompt_tokens // 512
    named = np.diff(trace.prefixes.bounds)
    assert (named <= (trace.prompt_tokens + trace.output_tokens) // 512).all()
    assert (named > full).sum() == 1_962
    assert any("1,962 answers were inferred from a later prompt" in notice for notice in trace.notices)
    assert (np.bincount(trace.prefixes.ids) > 1).sum() > 10_000


TURNS = [(0, 20, 20, [1, 2]), (100, 45, 3, [1, 2, 3, 4, 5])]  # the second prompt holds the first answer


def caching_server(policy: str, **settings: object) -> ps.Server:
    memory = ps.Memory(60, 8, prefix_caching=True)
    return ps.Server(ps.Affine(0.0, 0.01), 64, policy=policy, max_batch_size=4, memory=memory, policy_params=settings)


@pytest.mark.parametrize("policy", ["vllm", "sglang", "sarathi"])
def test_a_next_prompt_finds_what_an_answer_left(policy: str) -> None:
    """Prompt and answer fill 4 blocks of 8 (the last token of an answer is never computed); without ids, 2."""
    arrival, prompt, output, ids = zip(*TURNS, strict=True)
    server = caching_server(policy) if policy != "sarathi" else ps.Server(
        ps.Affine(0.0, 0.01), 64, 4, memory=ps.Memory(60, 8, prefix_caching=True)
    )  # fmt: skip
    whole = [(1, 2, 3, 4, 9), (1, 2, 3, 4, 5, 6)]
    found = {}
    for name, told in (("hash_ids", ids), ("hash_ids_with_output", whole)):
        workload = ps.Workload.from_arrays(arrival, prompt, output, hash_block=8, **{name: told})
        found[name] = ps.simulate(workload, server).reused_tokens
    assert found == {"hash_ids": 16, "hash_ids_with_output": 32}


def test_ids_that_are_longer_than_prompts_go_on_with_the_outputs() -> None:
    arrival, prompt, output, ids = zip(*TURNS, strict=True)
    longer = [(1, 2, 3, 4, 9), ids[1]]
    workload = ps.Workload.from_arrays(arrival, prompt, output, hash_ids=longer, hash_block=8)
    same = ps.Workload.from_arrays(arrival, prompt, output, hash_ids_with_output=longer, hash_ids=ids, hash_block=8)
    assert workload.prefixes.names_outputs
    assert rows_of(workload.prefixes) == rows_of(same.prefixes) == [[0, 1, 2, 3, 5], [0, 1, 2, 3, 4]]
    with pytest.raises(ps.InputError, match=r"hash_ids\[1\] and hash_ids_with_output\[1\] begin with other ids"):
        ps.Workload.from_arrays(
            arrival, prompt, output, hash_ids_with_output=longer, hash_ids=[ids[0], (7,) * 5], hash_block=8
        )


def test_what_is_missing_or_wrong_of_several_ids_is_named() -> None:
    arrival, prompt, output, ids = zip(*TURNS, strict=True)

    def given(**told: object) -> Prefixes | None:
        return ps.Workload.from_arrays(arrival, prompt, output, **told).prefixes

    with pytest.raises(ps.InputError, match=r"^hash_ids_with_output is .* and hash_block is None"):
        given(hash_ids_with_output=ids)
    with pytest.raises(ps.InputError, match=r"^hash_ids is None and hash_block is 8"):
        given(hash_block=8)
    for wrong, said in ((ids[:1], "hash_ids is .* each of the 2 requests"), ([[1, 2], ["a"]], r"hash_ids\[1\] is")):
        with pytest.raises(ps.InputError, match=said):
            given(hash_ids=wrong, hash_ids_with_output=ids, hash_block=8)
    shorter = given(hash_ids=[ids[0][:1], ids[1][:3]], hash_ids_with_output=ids, hash_block=8)
    alone = given(hash_ids_with_output=ids, hash_block=8)
    assert shorter is not None
    assert alone is not None
    assert rows_of(shorter) == rows_of(alone)


def test_the_ids_of_an_answer_are_told_by_the_next_turn_and_said_so(tmp_path: Path) -> None:
    """Only of a prompt that nobody had before, and by a later one that is long enough for the answer."""
    path = tmp_path / "mine.csv"
    rows = [
        "0,20,20,1 2",  # goes on in the third row
        "1,21,20,1 2",  # not new: whose answer the third has, nobody knows
        "9,45,3,1 2 3 4 5",
        "10,16,90,6 7",  # the next has no room for its answer
        "20,40,1,6 7 8 9 10",
    ]
    path.write_text("arrival_s,prompt_tokens,output_tokens,hash_ids\n" + "\n".join(rows) + "\n")
    found = ps.read_trace(path, hash_block=8)
    assert rows_of(found.prefixes) == [[0, 1, 2, 3, 4], [0, 1], [0, 1, 2, 3, 4], [5, 6], [5, 6, 7, 8, 9]]
    assert found.notices == (
        "hash ids of 1 answer were inferred from a later prompt that goes on where they were given; name them with "
        "hash_ids_with_output if you know better",
    )
    for name in ("hash_ids", "hash_ids_with_output"):
        path.write_text(f"arrival_s,prompt_tokens,output_tokens,{name}\n" + "\n".join(rows) + "\n")
        assert ps.read_trace(path).notices == (f"{name} are left out: say with hash_block how many tokens an id names",)


@pytest.mark.parametrize(
    ("later", "answer"),
    [
        ([[2, 7, 8, 9, 10]], []),  # the id of the last block, elsewhere
        ([[2, 7, 8, 9, 10], [1, 2, 8, 9, 10]], [8, 9]),
        ([[7, 1, 2, 8, 9, 10], [1, 2, 3, 4, 5]], [3, 4]),
    ],
)
def test_a_next_turn_has_the_last_block_at_the_same_place(later: list[list[int]], answer: list[int]) -> None:
    requests = [[1, 2], *later]
    prompt = np.array([8 * len(ids) for ids in requests])
    ids, counts = np.concatenate(requests), np.array([len(ids) for ids in requests])
    longer, counts, found = with_answers(ids, counts, prompt, np.array([16, *[1] * len(later)]), 8)
    assert longer[: counts[0]].tolist() == [1, 2, *answer]
    assert found == bool(answer)


def test_an_id_that_was_elsewhere_before_is_new_at_its_place() -> None:
    requests = [[2, 7], [1, 2], [1, 2, 3]]
    prompt, output = np.array([16, 16, 24]), np.array([1, 8, 1])
    ids, counts = np.concatenate(requests), np.array([len(ids) for ids in requests])
    assert with_answers(ids, counts, prompt, output, 8)[0].tolist() == [2, 7, 1, 2, 3, 1, 2, 3]


def test_with_eagle_a_block_is_found_by_the_token_after_it() -> None:
    """Two prompts of 70 that share 3 blocks and then differ find 32 tokens, those that share a fourth 48."""
    for ids, found in (([1, 2, 3], 32), ([1, 2, 3, 4], 48)):
        workload = ps.Workload.from_arrays([0, 10], [70, 70], [5, 5], hash_ids=[ids, ids], hash_block=16)
        memory = ps.Memory(1000, 16, prefix_caching=True)
        for method, more in (("eagle", 0), ("draft_model", 16)):
            drafting = {"drafts": 2, "acceptance": 1.0, "method": method}
            server = ps.Server(ps.Affine(0.0, 0.01), 512, 16, policy="vllm", policy_params=drafting, memory=memory)
            assert ps.simulate(workload, server).reused_tokens == found + more


def test_requests_find_the_blocks_of_those_before_them() -> None:
    """The second prompt finds two full blocks of 8; the last token of a prompt is always computed."""
    arrival, prompt, output, ids = zip(*ROWS, strict=True)
    workload = ps.Workload.from_arrays(arrival, prompt, output, hash_ids=ids, hash_block=8)
    memory = ps.Memory(20, 8, prefix_caching=True)
    run = ps.simulate(workload, ps.Server(ps.Affine(0.0, 0.01), 64, policy="vllm", max_batch_size=4, memory=memory))
    assert run.reused_tokens == 16
    assert run.tokens == sum(prompt) + sum(output) - 3 - 16
    assert "16 tokens were found in the prefix cache" in run.memory_facts
    again = ps.Workload.from_arrays(arrival, (16, 16, 15), output, hash_ids=ids, hash_block=8)
    found = ps.simulate(again, ps.Server(ps.Affine(0.0, 0.01), 64, policy="vllm", max_batch_size=4, memory=memory))
    assert found.reused_tokens == 8


def test_verdicts_of_a_recording_with_prefixes_use_the_cache() -> None:
    """Every prompt begins alike: computed once, the load is a tenth."""
    count = 500
    alike = [list(range(10)) for _ in range(count)]
    workload = ps.Workload.from_arrays(np.arange(count) / 10, [161] * count, [4] * count, hash_ids=alike, hash_block=16)
    per_token = ps.Affine(0.0, 1 / 1000)
    plain, caching = (
        ps.verdict(workload, ps.Server(per_token, 256, 32, memory=ps.Memory(800, prefix_caching=on)))
        for on in (False, True)
    )
    assert (plain.verdict, caching.verdict) == ("unstable", "stable")


@pytest.mark.parametrize(
    ("more", "server", "said"),
    [
        ({"hash_ids": [[1]]}, {}, "give both or none"),
        ({"hash_ids": [[1]], "hash_block": 0}, {}, "hash_block is 0"),
        ({"hash_ids": [[1], [2]], "hash_block": 16}, {}, "each of the 1 requests"),
        ({"hash_ids": [["a"]], "hash_block": 16}, {}, r"hash_ids\[0\]"),
        ({"hash_ids": [[1]], "hash_block": 16}, {"policy": "tensorrt-llm"}, "tensorrt-llm has no prefix cache here"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(more: dict[str, object], server: dict[str, str], said: str) -> None:
    with pytest.raises(ps.InputError, match=said) as caught:
        ps.simulate(
            ps.Workload.from_arrays([0.0], [64], [2], **more),  # type: ignore[arg-type]
            ps.Server(ps.Affine(0.0, 1.0), 64, 4, memory=ps.Memory(20, prefix_caching=True), **server),  # type: ignore[arg-type]
        )
    assert "\n" not in str(caught.value)
