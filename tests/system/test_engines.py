"""Schedulers of engines: their settings, and what they cannot be told."""

from pathlib import Path

import pytest

import penstock as ps
from penstock.system.engines import ENGINES
from penstock.system.engines.sglang import QUEUE_ORDERS
from penstock.theory.load import load

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time


def server(**changed) -> ps.Server:
    return ps.Server(**({"batch_time": TP1, "token_budget": 512, "max_batch_size": 128, "policy": "vllm"} | changed))


def test_settings_have_the_engines_defaults_and_take_the_engines_names() -> None:
    usual = {"chunked_prefill": True, "async_scheduling": True, "long_prefill_threshold": 0, "reserve_prompt": True}
    assert usual.items() <= server().policy.options.items()
    told = server(policy_params={"enable-chunked-prefill": False, "long_prefill_token_threshold": 64})
    assert told.policy.options == server().policy.options | {"chunked_prefill": False, "long_prefill_threshold": 64}


def test_another_policy_of_a_server_has_its_own_settings() -> None:
    told = server(policy_params={"long_prefill_threshold": 64})
    assert told.with_policy("vllm").policy.options["long_prefill_threshold"] == 0
    assert told.with_policy("sarathi").policy.name == "sarathi"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": "vlm"}, "did you mean 'vllm'"),
        ({"policy_params": {"chunked": False}}, "vllm has no setting 'chunked'; did you mean 'chunked_prefill'"),
        ({"policy_params": {"chunked_prefill": 1}}, "must be true or false"),
        ({"policy_params": {"long_prefill_threshold": -1}}, "long_prefill_threshold is -1"),
        ({"policy_params": [1.0]}, "settings with names"),
        ({"policy": "sarathi", "policy_params": {"a": 1}}, "sarathi takes numbers"),
        ({"policy": "tensorrt-llm", "policy_params": {"capacity": "static"}}, "did you mean 'static_batch'"),
        ({"policy": "sglang", "policy_params": {"new_token_ratio": 2.0}}, "new_token_ratio is 2"),
        ({"policy_params": {"long_prefill_threshold": 1, "long_prefill_token_threshold": 2}}, "given twice"),
        ({"scope": "batch"}, "counts running requests"),
        ({"convention": "paper"}, "prefill yields the first token"),
        ({"policy": "tensorrt-llm", "order": "priority"}, "serves in order of arrival"),
        ({"policy_params": {"drafts": 2, "acceptance": [0.5, 0.5, 0.5]}}, "acceptance has 3 chances for 2 drafts"),
        ({"policy_params": {"drafts": 2, "acceptance": 1.5}}, "acceptance is 1.5"),
        (
            {"token_budget": 4, "policy_params": {"drafts": 4, "acceptance": 0.5}},
            "needs one beside its drafts",
        ),
        ({"policy_params": {"draft_lookahead": 2}}, "there are no drafts"),
        ({"policy_params": {"acceptance": 0.7}}, "there are no drafts, so it would change nothing"),
        ({"policy_params": {"method": "eagle"}}, "method is 'eagle', but there are no drafts"),
        ({"policy_params": {"parallel_drafting": True}}, "parallel_drafting is True, but there are no drafts"),
        ({"policy_params": {"mtp_modules": 2}}, "mtp_modules is 2, but there are no drafts"),
        ({"policy_params": {"drafts": 2, "acceptance": 0.5, "method": 3}}, "method is 3; known: ngram"),
        ({"policy_params": {"drafts": 2, "acceptance": 0.5, "method": ["eagle"]}}, "method is ['eagle']"),
        ({"policy_params": {"drafts": 2, "acceptance": 0.5, "method": "ngram"}}, "set async_scheduling to false"),
        ({"policy_params": {"drafts": 2, "acceptance": 0.5, "method": "egle"}}, "did you mean 'eagle'"),
        (
            {"policy_params": {"drafts": 2, "acceptance": 0.5, "method": "eagle", "draft_lookahead": 3}},
            "looks ahead as far as it drafts, 2",
        ),
        (
            {"policy_params": {"drafts": 2, "acceptance": 0.5, "parallel_drafting": True}},
            "take draft_model or eagle3",
        ),
        ({"policy_params": {"drafts": 2, "acceptance": 0.5, "mtp_modules": 2}}, "take mtp, or leave it out"),
        (
            {"token_budget": 4, "policy_params": {"drafts": 3, "acceptance": 0.5, "method": "draft_model"}},
            "1 slots to draft in",
        ),
        (
            {
                "policy_params": {"drafts": 3, "acceptance": 0.5, "method": "mtp", "mtp_modules": 2},
                "memory": ps.Memory(100, 2, prefix_caching=True),
            },
            "in blocks of at least as many tokens",
        ),
        (
            {
                "policy_params": {
                    "drafts": 3,
                    "acceptance": 0.5,
                    "method": "mtp",
                    "mtp_modules": 2,
                    "long_prefill_threshold": 2,
                }
            },
            "its end would never be served",
        ),
        ({"policy_params": {"max_loras": 4}}, "which adapters may share a batch (LoRA) is not modelled"),
        ({"policy": "sglang", "policy_params": {"enable-dp-attention": True}}, "data-parallel ranks"),
        ({"policy": "sglang", "policy_params": {"prefill_max_requests": 4}}, "when SGLang holds prompts back"),
        ({"policy_params": {"kv_transfer_config": {}}}, "other connectors are not modelled"),
        ({"policy": "sglang", "policy_params": {"schedule_policy": "random"}}, "shuffles its queue"),
        ({"policy": "sglang", "policy_params": {"schedule_policy": "routing-key"}}, "goes by keys of requests"),
        ({"policy": "sglang", "policy_params": {"schedule_policy": "priority"}}, "given as order: priority"),
        (
            {
                "policy": "sglang",
                "memory": ps.Memory(900, 1, prefix_caching=False),
                "policy_params": {"schedule_policy": "shortest-prefill-first"},
            },
            "which SGLang itself refuses without its cache of prefixes",
        ),
        (
            {"policy": "sglang", "policy_params": {"schedule_policy": "hrrn"}},
            "goes by the prefix cache, but the prefix cache of sglang is in KV memory, which has no size here",
        ),
        (
            {"policy": "sglang", "order": "priority", "policy_params": {"schedule_policy": "hrrn"}},
            "SGLang has priorities with 'fcfs' and 'lof' only",
        ),
        (
            {"policy": "sglang", "policy_params": {"retraction_policy": "priority"}},
            "which SGLang itself refuses without priorities",
        ),
        ({"policy_params": {"pipeline_parallel_size": 2}}, "several pipeline stages at once"),
        ({"policy_params": {"long_prefill_adaptive": True}}, "long_prefill_threshold is 0"),
        ({"policy": "tensorrt-llm", "max_batch_size": 513}, "max_batch_size is 513"),
        ({"memory": ps.Memory(100, admission="completion")}, "has its own"),
        ({"policy": "tensorrt-llm", "memory": ps.Memory(100, watermark=0.1)}, "has none"),
    ],
)
def test_what_an_engine_does_not_know_is_refused_in_one_line(changed, said: str) -> None:
    with pytest.raises(ps.InputError) as error:
        server(**changed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("ignore_eos", "most"), [(False, 16_384), (True, 512 + 16_383)])
def test_where_sglang_cuts_no_prompt_the_token_budget_limits_a_prompt_and_not_a_batch(ignore_eos, most) -> None:
    settings = {"chunked_prefill": False, "ignore_eos": ignore_eos}
    whole = server(policy="sglang", token_budget=512, policy_params=settings)
    assert whole.most_tokens == most
    found = ps.simulate(ps.Workload.from_arrays([0, 0, 0], [512, 500, 512], [5, 5, 5]), whole, record="batches")
    assert found.batches["prefill_tokens"].to_list()[0] == 1_524


@pytest.mark.parametrize("name", QUEUE_ORDERS)
def test_an_order_of_the_queue_is_told_sglang_if_it_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it lacks is said in words, and is no option that it would refuse."""
    engine = ENGINES["sglang"].with_options({"schedule_policy": name})
    order = QUEUE_ORDERS[name]
    assert (name in engine.flags()) == (order.in_sglang and name != "fcfs")
    assert any("has no schedule_policy" in note for note in engine.notes()) != order.in_sglang
    monkeypatch.setitem(QUEUE_ORDERS, name, order._replace(in_sglang=False))
    assert name not in engine.flags()
    assert any(f"SGLang has no schedule_policy {name!r}" in note for note in engine.notes())


def test_the_page_about_engines_has_each_order_of_the_queue_once() -> None:
    """With what it goes with: priorities, and no cache of prefixes."""
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    table = page.split("`schedule_policy` is the order")[1].split("\n\n")[1].splitlines()[2:]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    without = {True: "refused, as by SGLang", False: "the same"}
    assert [(name.strip("`"), priorities, told_off) for name, _, priorities, told_off in rows] == [
        (
            name,
            "yes" if order.takes_priorities else "no",
            without[order.needs_cache] if order.needs_cache or not order.sorts else "`fcfs`",
        )
        for name, order in QUEUE_ORDERS.items()
    ]


@pytest.mark.parametrize(("policy", "order"), [("shortest-prefill-first", [0, 2, 1]), ("lpm", [0, 1, 2])])
def test_an_order_that_goes_by_the_cache_needs_no_prompts_that_begin_alike(policy, order) -> None:
    """SGLang's cache is on by default, and the shortest of prompts that share nothing is the first."""
    one = server(policy="sglang", max_batch_size=1, kv_tokens=5_000, policy_params={"schedule_policy": policy})
    run = ps.simulate(ps.Workload.from_arrays([0, 0.1, 0.1], [400, 300, 10], [9, 9, 9]), one)
    assert run.requests["finish_ns"].arg_sort().to_list() == order


@pytest.mark.parametrize(
    ("name", "gib", "how", "expected"),
    [
        ("vllm", 180, {}, (16384, 1024)),
        ("vllm", 80, {}, (8192, 1024)),
        ("vllm", 80, {"offline": True}, (16384, 1024)),
        ("vllm", 80, {"a100": True}, (2048, 256)),
        ("vllm", 24, {"offline": True}, (8192, 256)),
        ("sglang", 16, {}, (2048, None)),
        ("sglang", 24, {}, (4096, None)),
        ("sglang", 80, {}, (8192, None)),
        ("sglang", 180, {}, (16384, None)),
    ],
)
def test_engines_choose_their_limits_by_the_memory_of_the_gpu(name, gib, how, expected) -> None:
    found = ps.engine_defaults(name, gib, **how)
    assert (found.token_budget, found.max_batch_size) == expected


def test_an_engine_without_known_defaults_says_so() -> None:
    with pytest.raises(ps.InputError, match="no default limits are known for 'tensorrt-llm'"):
        ps.engine_defaults("tensorrt-llm", 80)


def test_sglang_counts_single_tokens_and_vllm_keeps_a_block_for_itself() -> None:
    assert server(policy="sglang", kv_tokens=1000).memory == ps.Memory(1000, 1)
    assert server(kv_blocks=900).usable_blocks == 899
    assert server(policy="sarathi", kv_blocks=900).usable_blocks == 900


@pytest.mark.parametrize(
    ("drafting", "slots"),
    [
        ({"method": "eagle"}, 0),
        ({"method": "draft_model"}, 1),
        ({"method": "eagle3", "parallel_drafting": True}, 2),
        ({"method": "draft_model", "parallel_drafting": True}, 3),
    ],
)
def test_slots_of_who_drafts_leave_fewer_tokens_to_a_batch(drafting, slots: int) -> None:
    """The most that a batch has is what a single request leaves of the budget, for bounds as for the simulation."""
    settings = {"drafts": 3, "acceptance": 0.5, **drafting}
    drafts = ps.Server(ps.Affine(0.01, 1e-4), 64, 8, policy="vllm", policy_params=settings)
    assert drafts.most_tokens == 64 - slots
    workload = ps.Workload.from_arrays([0.0, 0.0], [200, 200], [9, 9])
    batches = ps.simulate(workload, drafts, record="batches").batches
    tokens = batches["prefill_tokens"] + batches["decode_tokens"]
    assert tokens[0] == tokens.max() == 64 - slots
    assert load(ps.Workload.poisson(1.0, 200, 9), drafts).best_token_load == 64 - slots
