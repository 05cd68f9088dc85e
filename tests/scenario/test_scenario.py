"""A scenario file means what it says, or is refused in one line."""

import itertools
from pathlib import Path

import pytest
import yaml

import penstock as ps
from penstock.document import read_document
from penstock.scenario.scenario import build, read_scenario

SERVER = {"hardware": "codellama-34b-a100-tp1", "token_budget": 512}
WORKLOAD = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}


def test_the_example_is_a_scenario() -> None:
    scenario = read_scenario(Path(__file__).parents[2] / "examples" / "azure_code.yaml")
    assert scenario.workload.rate == 1.2
    assert scenario.arrivals == 20_000


@pytest.mark.parametrize(
    "key", ["token_budget", "max_num_batched_tokens", "max-num-batched-tokens", "chunked-prefill-size"]
)
def test_engine_names_for_the_token_budget_are_understood(key: str) -> None:
    server = {"hardware": "codellama-34b-a100-tp1", key: 777}
    assert build({"workload": WORKLOAD, "server": server}, Path()).server.token_budget == 777


@pytest.mark.parametrize(
    "key", ["max_batch_size", "max_num_seqs", "max-num-seqs", "max_running_requests", "max-running-requests"]
)
def test_engine_names_for_the_max_batch_size_are_understood(key: str) -> None:
    assert build({"workload": WORKLOAD, "server": SERVER | {key: 7}}, Path()).server.max_batch_size == 7


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (112, ps.Constant(112)),
        ({"constant": 9}, ps.Constant(9)),
        ({"geometric": 112}, ps.Geometric(112)),
        ({"geometric": {"mean": 112, "max": 4096}}, ps.Geometric(112, 4096)),
        ({"uniform": [1, 9]}, ps.Uniform(1, 9)),
        ({"lognormal": {"mean": 200, "cv": 1.5}}, ps.LogNormal(200, 1.5)),
        ({"gamma": {"mean": 200, "cv": 0.5, "max": 900}}, ps.Gamma(200, 0.5, 900)),
        (
            {"mixture": [{"weight": 3, "length": 10}, {"weight": 1, "length": {"geometric": 90}}]},
            ps.Mixture([ps.Constant(10), ps.Geometric(90)], [3, 1]),
        ),
    ],
)
def test_lengths_can_be_any_distribution(length: object, expected: object) -> None:
    workload = {"poisson": {"rate": 2, "prompt": length, "output": 5}}
    assert build({"workload": workload, "server": SERVER}, Path()).workload.lengths.prompt == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("batch_time", "expected"),
    [
        ({"c_ms": 11.28, "a_ms": 35.47, "b0": 128}, ps.PiecewiseConstant(0.01128, 0.03547, 128)),
        ({"affine": {"c_ms": 5, "a_ms_per_token": 0.2}}, ps.Affine(0.005, 0.0002)),
        ({"hinge": {"c_ms": 5, "a_ms_per_token": 0.2, "b0": 100}}, ps.Hinge(0.005, 0.0002, 100)),
    ],
)
def test_batch_times_can_be_any_model(batch_time: object, expected: ps.BatchTime) -> None:
    server = {"batch_time": batch_time, "token_budget": 512}
    assert build({"workload": WORKLOAD, "server": server}, Path()).server.batch_time == expected


def test_a_scenario_cannot_name_standard_input() -> None:
    with pytest.raises(ps.InputError, match="standard input, which a scenario cannot name"):
        build({"workload": {"trace": "-"}, "server": SERVER}, Path())


def test_a_table_and_a_trace_are_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text("tokens,ms\n1,10\n512,50\n")
    (tmp_path / "calls.csv").write_text("arrival_s,prompt,output\n0,10,5\n1,20,5\n4,30,5\n")
    (tmp_path / "s.yaml").write_text(
        "workload: {trace: calls.csv}\nserver: {batch_time: {table: measured.csv}, token_budget: 512}\n"
    )
    scenario = read_scenario(tmp_path / "s.yaml")
    assert scenario.arrivals == scenario.workload.rows == 3
    assert float(scenario.server.batch_time(512)) == 0.05


def test_a_policy_of_ones_own_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from penstock import DECODE_FIRST\n\n\ndef timid(queue, limits, params):\n"
        "    decode = min(queue.decoding, limits.token_budget)\n"
        "    return min(queue.prompt_tokens, params[0], limits.token_budget - decode), decode, DECODE_FIRST\n"
    )
    for name in ("mine:timid", "mine.py:timid"):
        server = SERVER | {"policy": name, "policy_params": [64]}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"workload": WORKLOAD, "server": server}))
        scenario = read_scenario(tmp_path / "s.yaml")
        run = ps.simulate(scenario.workload, scenario.server, requests=50, record="batches")
        assert run.batches["prefill_tokens"].max() == 64


def said(
    workload: str = "{preset: azure-code}", server: str = "hardware: codellama-34b-a100-tp1, token_budget: 5"
) -> str:
    """A scenario with one part of it changed."""
    return f"workload: {workload}\nserver: {{{server}}}"


KNOWN = "hardware: codellama-34b-a100-tp1"
BAD = {
    "nothing": ("", "holds nothing"),
    "a number": ("3", "holds no keys but 3"),
    "a list": ("[1, 2]", "holds no keys but [1, 2]"),
    "no yaml": ("workload: {poisson: {rate: 1\nserver: [", "no YAML at line"),
    "an unknown key": (said(server="hardwear: x, token_budget: 5"), "did you mean 'hardware'"),
    "a misspelt section": (said().replace("server", "sever"), "did you mean 'server'"),
    "a missing budget": (said(server=KNOWN), "token_budget is missing"),
    "budget 0": (said(server=f"{KNOWN}, token_budget: 0"), "token_budget is 0"),
    "a budget in words": (said(server=f"{KNOWN}, token_budget: lots"), "'lots'"),
    "an unknown preset": (said("{preset: azure-cod}"), "did you mean 'azure-code'"),
    "unknown hardware": (
        said(server="hardware: codellama-34b-a100, token_budget: 5"),
        "known: codellama-34b-a100-tp1",
    ),
    "an unknown policy": (said(server=f"{KNOWN}, token_budget: 5, policy: sarati"), "did you mean 'sarathi'"),
    "a negative rate": (said("{preset: azure-code, rate: -1}"), "rate is -1"),
    "a NaN rate": (said("{preset: azure-code, rate: .nan}"), "rate is nan"),
    "a NaN length": (said("{poisson: {rate: 1, prompt: .nan, output: 5}}"), "nan"),
    "a negative length": (said("{poisson: {rate: 1, prompt: -4, output: 5}}"), "-4"),
    "an unknown distribution": (
        said("{poisson: {rate: 1, prompt: {geometrc: 4}, output: 5}}"),
        "did you mean 'geometric'",
    ),
    "two workloads": (said("{preset: azure-code, poisson: {rate: 1, prompt: 4, output: 5}}"), "give one of"),
    "two batch times": (said(server=f"{KNOWN}, batch_time: {{c_ms: 1, a_ms: 1, b0: 8}}, token_budget: 5"), "not both"),
    "half a batch time": (said(server="batch_time: {c_ms: 1, a_ms: 1}, token_budget: 5"), "b0 missing"),
    "a text for a section": (said("azure"), "must be a mapping"),
    "a missing trace": (said("{trace: nope.csv}"), "nope.csv"),
    "a trace not fetched": (said("{trace: burstgpt-1}"), "traces get burstgpt-1"),
    "cv for poisson": (said("{preset: azure-code, rate: 1, arrivals: poisson, cv: 2}"), "gamma arrivals need a cv"),
    "a key twice": ("workload: {preset: azure-code}\nserver: 3\nserver: 4", "line 3: the key 'server' stands twice"),
    "a merge key": ("workload: {<<: {preset: azure-code}}", "merge keys (<<) are not read"),
    "a date that is none": (said("2020-99-99"), "month must be in 1..12"),
    "thousands of digits": (said(server=f"{KNOWN}, token_budget: {'9' * 5_000}"), "cannot be read"),
    "hundreds of digits": (said(server=f"{KNOWN}, token_budget: {'9' * 400}"), "token_budget is 9"),
    "a rate of hundreds of digits": (said(f"{{preset: azure-code, rate: {'9' * 400}}}"), "must be a number"),
    "a bad tag": (said("!!int ''"), "cannot be read"),
    "deep nesting": (said("[" * 2_000), "nests values too deeply"),
    "a value in itself": (said("{poisson: {rate: 1, output: 5, prompt: &p {constant: *p}}}"), "aliases"),
    "a trace without a name": (said("{trace: ''}"), "workload.trace is ''"),
    "a trace with a long name": (said(f"{{trace: {'x' * 300}}}"), "cannot be looked for"),
    "a table without a name": (said(server="batch_time: {table: ''}, token_budget: 5"), "batch_time.table is ''"),
    "a table with a long name": (said(server=f"batch_time: {{table: {'x' * 300}}}, token_budget: 5"), "looked for"),
    "nobody's home": (said("{trace: ~nosuchuser/x}"), "nosuchuser"),
    "true for a number": (
        said() + "\nsimulate: {requests: true}",
        "simulate.requests must be a whole number, not true",
    ),
    "more requests than a run takes": (
        said() + "\nsimulate: {requests: 1000000000000}",
        "simulate.requests is 1000000000000, but must be a whole number from 1 to 10,000,000,000",
    ),
    "a number in quotes": (said(server=f"{KNOWN}, token_budget: '512'"), "write it without quotes"),
    "true for a rate": (said("{preset: azure-code, rate: true}"), "rate must be a number, not true"),
    "half a request": (said() + "\nsimulate: {requests: 1.5}", "must be a whole number, not 1.5"),
    "a negative c_ms": (
        said(server="batch_time: {c_ms: -1, a_ms: 1, b0: 8}, token_budget: 5"),
        "c_ms is -1.0, but must be a number from 0 to 1,000,000,000 ms",
    ),
    "an infinite parameter": (said(server=f"{KNOWN}, token_budget: 5, policy_params: [.inf]"), "parameter is inf"),
    "a scope that is none": (said(server=f"{KNOWN}, token_budget: 5, scope: all"), "must be 'batch' or 'running'"),
    "a giant value": (said("x" * 10_000), "must be a mapping"),
    "a giant key": (said(f"{{{'x' * 900}: 3}}"), "is not a key"),
    "a giant length": (said(f"{{poisson: {{rate: 1, prompt: {'x' * 10_000}, output: 5}}}}"), "a length is"),
    "two names of one limit": (said(server=f"{KNOWN}, token_budget: 5, max_num_batched_tokens: 6"), "says again"),
    "a policy that is nowhere": (said(server=f"{KNOWN}, token_budget: 5, policy: 'nowhere:f'"), "cannot import"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_in_one_line(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    text, complaint = BAD[what]
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ps.InputError) as caught:
        read_scenario(tmp_path / "s.yaml")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("prompt", ["*j", "{uniform: *j}", "{mixture: *j}"])
def test_aliases_that_stand_for_billions_of_values_are_refused_at_once(tmp_path: Path, prompt: str) -> None:
    names = "abcdefghij"
    bomb = "".join(f"  - &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise(names))
    text = f"bomb:\n  - &a [1]\n{bomb}{said(f'{{poisson: {{rate: 1, output: 5, prompt: {prompt}}}}}')}"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ps.InputError, match="aliases"):
        read_scenario(tmp_path / "s.yaml")


def test_a_whole_number_may_be_written_as_1e3(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(said("{preset: azure-code, rate: 1e-1}") + "\nsimulate: {requests: 1e3}")
    scenario = read_scenario(tmp_path / "s.yaml")
    assert (scenario.arrivals, scenario.workload.rate) == (1000, 0.1)


def test_random_bytes_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(bytes(range(256)) * 4)
    for path in (tmp_path / "s.yaml", tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ps.InputError) as caught:
            read_scenario(path)
        assert "\n" not in str(caught.value)


VLLM = {"hardware": "llama-2-70b-a100-tp2", "policy": "vllm", "token_budget": 2048, "max_batch_size": 256}


def server_of(**more: object) -> ps.Server:
    return build({"workload": WORKLOAD, "server": VLLM | more}, Path()).server


def test_the_kv_memory_of_an_engine_follows_from_the_preset() -> None:
    server = server_of()
    assert server.gpu == ps.hardware("llama-2-70b-a100-tp2").gpu
    assert server.memory is not None
    assert 30_000 < server.memory.tokens < 45_000
    assert server_of(gpu={"memory_gib": 80}) == server_of(gpu={}) == server
    assert server_of(policy="sarathi").memory is None


@pytest.mark.parametrize(
    "more",
    [
        {"max_total_tokens": 20_000}, {"kv_blocks": 1_250}, {"memory": {"tokens": 20_000}},
        {"memory": {"--kv-tokens": 20_000, "page_size": 16}}, {"memory": {"num_gpu_blocks_override": 1_250}},
    ],
)  # fmt: skip
def test_a_number_of_tokens_goes_before_the_gpu(more: dict[str, object]) -> None:
    server = server_of(gpu={"memory_gib": 80}, **more)
    assert server.memory == ps.Memory(1_250)
    assert server.kv_note is None


def test_kv_memory_can_be_without_limit_and_then_the_engine_says_so() -> None:
    server = server_of(memory="unlimited")
    assert server.memory is None
    assert "no limit" in str(server.kv_note)


def test_the_rules_of_a_memory_need_no_size_where_the_gpu_says_it() -> None:
    known = server_of().memory
    assert known is not None
    assert server_of(memory={"prefix_caching": True}).memory == ps.Memory(known.blocks, prefix_caching=True)
    assert server_of(block_size=32).memory == ps.Memory(known.tokens // 32, 32)


def test_an_engine_is_known_in_capitals_too() -> None:
    assert server_of(policy="vLLM") == server_of()
    assert server_of(policy="vLLM", token_budget=None, max_batch_size=None, gpu={}).max_batch_size == 256


def test_vllm_without_a_max_batch_size_is_told_its_default() -> None:
    for hardware, usual in (("llama-2-70b-a100-tp2", "256 on this GPU"), ("llama-2-70b-h100-tp2", "1,024 on this GPU")):
        server = VLLM | {"hardware": hardware, "max_batch_size": None}
        (note,) = (n for n in build({"workload": WORKLOAD, "server": server}, Path()).workload.notices if "vLLM" in n)
        assert f"by default {usual}: give yours as max_num_seqs" in note
    given = build({"workload": WORKLOAD, "server": VLLM}, Path()).workload.notices
    assert not any("max batch size" in note for note in given)


def test_a_gpu_and_a_model_are_enough_beside_measured_batch_times() -> None:
    server = {"batch_time": {"affine": {"c_ms": 5, "a_ms_per_token": 0.1}}, "policy": "sglang"}
    gpu = {"memory_gib": 80, "model": "qwen3-32b", "tensor_parallel_size": 2, "mem-fraction-static": 0.85}
    built = build({"workload": WORKLOAD, "server": server | {"gpu": gpu}}, Path()).server
    assert built.token_budget == 8192
    assert built.memory is not None
    assert built.memory.block_size == 1
    assert built.gpu is not None
    assert (built.gpu.model, built.gpu.tensor_parallel, built.gpu.utilization) == ("Qwen3-32B", 2, 0.85)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (VLLM | {"policy": "sarathi", "gpu": {"memory_gib": 80}}, "server.gpu is for the schedulers of engines"),
        ({"batch_time": {"c_ms": 1, "a_ms": 1, "b0": 1}, "policy": "vllm", "gpu": {}}, "gpu.memory_gib is missing"),
        (
            {"batch_time": {"c_ms": 1, "a_ms": 1, "b0": 1}, "policy": "vllm"}
            | {"gpu": {"memory_gib": 80, "gpu_memory_utilization": 0.9}},
            "only with the model; add `model`",
        ),
        (
            VLLM | {"hardware": {"model": "Llama-3.1-70B", "gpu": "a100-sxm"}},
            r"\(tensor_parallel: 2 has room for them\)",
        ),
        (VLLM | {"memory": "unlimted"}, "server.memory must be a mapping of keys"),
        ("vllm serve m --max-num-seqs 9", r"keys, one for each option of a command line, such as max_num_seqs: 256"),
        (VLLM | {"memory": {"unlimited": True, "blocks": 5}}, "server.memory.unlimited is not a key"),
        (VLLM | {"memory": "unlimited", "kv_blocks": 100}, "memory is unlimited, but kv_blocks, .*give one"),
        (VLLM | {"memory": "unlimited", "max_total_tokens": 9_000}, "memory is unlimited, but .*give one"),
        (
            VLLM | {"gpu": {"memory_gib": 141}},
            "memory_gib is 141, but the batch times of llama-2-70b-a100-tp2 are those of a GPU with 79.2 GiB; leave",
        ),
        (
            VLLM | {"gpu": {"tensor_parallel": 4}},
            "tensor_parallel is 4, but the batch times of llama-2-70b-a100-tp2 are those of .* parallelism of 2; leave",
        ),
        (VLLM | {"gpu": {"memory_gib": 40}}, "memory_gib is 40, but the batch times of llama-2-70b-a100-tp2"),
    ],
)
def test_a_gpu_that_says_too_little_or_holds_no_model_is_refused(server: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError, match=said) as caught:
        build({"workload": WORKLOAD, "server": server}, Path())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'': 5\n", "'' is not a key of a scenario"),
        ("server: {'': 5}\nworkload: {}\n", "server.'' is not a key"),
        ("workload: {prompt: 100, rate: 2}\n", "workload.prompt belongs to a process that draws requests, such as"),
        ("workload: {}\nplan: {targets: [ttft_p99<1s]}\n", "server is missing: the plan of this file searches for one"),
        ("a" * 4_000_001, "more than 4,000,000 characters"),
    ],
)
def test_a_scenario_with_an_empty_key_or_without_end_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ps.InputError, match=words):
        read_scenario(path)


def test_numbers_are_decimal_and_a_time_of_day_is_none(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    values = "[0512, -007, 0, 1e3, 1_000, 0x10, .5, 1.5e-3, -1.0, .inf, 00.5, 1:30, 1:30.5]"
    path.write_text(f"a: {values}\n")
    expected = [512, -7, 0, 1e3, 1000, 16, 0.5, 1.5e-3, -1.0, float("inf"), 0.5, "1:30", "1:30.5"]
    assert read_document(path) == {"a": expected}


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"memory_gib": float("nan")}, "memory_gib is nan"),
        ({"memory_gib": 80, "model": ""}, "the model '' is not known"),
        ({"memory_gib": 80, "tensor_parallel": 0}, "tensor_parallel is 0"),
    ],
)
def test_no_key_of_a_gpu_is_passed_over(gpu: dict[str, object], words: str) -> None:
    server = SERVER | {"policy": "vllm", "gpu": gpu}
    with pytest.raises(ps.InputError, match=words):
        build({"workload": WORKLOAD, "server": server}, Path())
    with pytest.raises(ps.InputError, match="gpu is 'x'; give a Gpu"):
        ps.Server(ps.Affine(0.01, 1e-4), 512, gpu="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "windows"), [("gpt-oss-20b", True), ("Qwen3-8B", False)])
def test_that_layers_with_a_sliding_window_are_left_out_of_kv_memory_is_said(model: str, windows: bool) -> None:
    """An engine keeps a list of blocks for each kind of layer, which is not modelled."""
    hardware = {"model": model, "gpu": "H100-SXM", "engine": "vllm"}
    server = build({"workload": WORKLOAD, "server": {"hardware": hardware}}, Path()).server
    assert server.kv_estimate is not None
    assert ("sliding window" in str(server.kv_note)) == windows


def test_a_trace_that_was_read_stands_for_no_other_choice_of_its_rows(tmp_path: Path) -> None:
    """True equals 1 in Python, and not in a table."""
    (tmp_path / "t.csv").write_text("prompt_tokens,output_tokens,ok\n5,6,True\n7,8,1\n9,9,1\n")

    def read(ok: object) -> int:
        workload = {"trace": "t.csv", "where": {"ok": ok}, "rate": 1, "arrivals": "poisson"}
        return round(build({"workload": workload, "server": SERVER}, tmp_path).workload.mean_prompt)

    assert [read(1), read(True), read(1)] == [8, 5, 8]
