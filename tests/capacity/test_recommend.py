"""A recommendation names a policy and a token budget that carry the load, and leaves alone what nothing betters."""

import dataclasses
import functools
import math
import re
from pathlib import Path

import pytest

import penstock as ps
from penstock.capacity.candidates import candidates
from penstock.capacity.recommendation import prices
from penstock.checking.answer import TargetAnswer
from penstock.checking.targets import Estimate, Target
from penstock.scenario.scenario import read_scenario

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
ROUGH = {"requests": 2_000, "precision": 0.1}


@functools.cache
def at_the_middle_of_cb() -> ps.Recommendation:
    """Sarathi at .93 of the boundary of a region whose edge no fixed token budget reaches."""
    server = ps.Server(TP1, 1024, 100, scope="batch", convention="paper")
    bound = ps.region(server, prompt=290, output=990).max_rate
    prompt, output = ps.Geometric(290, max=4_000), ps.Geometric(990, max=8_000)
    return ps.recommend(ps.Workload.poisson(0.93 * bound, prompt, output), server, **ROUGH)  # type: ignore[arg-type]


@functools.cache
def of_prefill_first() -> ps.Recommendation:
    server = ps.Server(TP1, 1024, policy="vllm-vanilla")
    return ps.recommend(ps.Workload.poisson(13.5, 129, 112), server, **ROUGH)  # type: ignore[arg-type]


@functools.cache
def with_little_memory() -> ps.Recommendation:
    server = ps.Server(TP1, 128, 64, "vllm", kv_blocks=300)
    return ps.recommend(ps.Workload.poisson(3.0, 129, 112), server, policies=("sarathi", "maxweight"), **ROUGH)  # type: ignore[arg-type]


@functools.cache
def of_vllm() -> ps.Recommendation:
    """Long decodes and a token budget that steps up where they alone would fit."""
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 2_048, 256, "vllm", kv_blocks=20_000)
    workload = ps.Workload.poisson(9.0, ps.Geometric(129, max=1_000), ps.Geometric(112, max=1_000))
    return ps.recommend(workload, server, targets=["ttft_p90<60s"], **ROUGH)  # type: ignore[arg-type]


def test_for_an_engine_its_own_scheduler_is_recommended_and_others_are_named_with_the_plugin() -> None:
    found = of_vllm()
    assert found.recommended.server.policy.name == "vllm"
    tried = {candidate.server.policy.name for candidate in found.candidates}
    assert "sarathi" not in tried  # what vLLM does itself
    others = tried - {"vllm"}
    assert others
    assert found.with_plugin is None or any(f"{name} at" in found.with_plugin for name in others)


def test_beside_other_engines_no_policy_is_tried_that_they_do_not_have() -> None:
    server = ps.Server(TP1, 2_048, 64, "sglang", kv_tokens=300_000)
    found = ps.recommend(ps.Workload.poisson(2.0, 129, 112), server, **ROUGH)  # type: ignore[arg-type]
    assert {candidate.server.policy.name for candidate in found.candidates} == {"sglang"}
    assert found.with_plugin is None


@pytest.mark.slow
def test_with_drafts_the_bound_is_that_of_all_that_were_tried_and_what_carries_most_is_kept() -> None:
    """Without drafts no policy carries as much; near its limit another token budget is no better."""
    drafts = {"drafts": 3, "acceptance": 0.7, "method": "eagle3"}
    server = ps.Server(TP1, 512, 128, "vllm", policy_params=drafts, kv_tokens=41_000)
    prompt, output = ps.Geometric(400, max=4_000), ps.Geometric(250, max=3_000)
    found = ps.recommend(ps.Workload.poisson(3.7, prompt, output), server, policies=(), **ROUGH)  # type: ignore[arg-type]
    assert found.bound >= max(candidate.found.bound for candidate in found.candidates)
    assert found.objective == "stable-rate"
    assert found.recommended.server == found.candidates[0].server
    assert found.recommended.above >= max(candidate.stable_rate for candidate in found.candidates)


def test_of_those_that_meet_the_targets_one_is_recommended() -> None:
    assert not of_vllm().recommended.missed
    assert of_vllm().recommended.as_dict()["targets"] == {"ttft_p90<60s": "met"}


def test_where_nothing_meets_a_target_the_nearest_is_recommended_and_said_so() -> None:
    server = ps.Server(TP1, 1_024, 128)
    workload = ps.Workload.poisson(4.0, 129, 112)
    found = ps.recommend(workload, server, policies=(), targets=["tbt_p99<1ms"], **ROUGH)  # type: ignore[arg-type]
    assert found.recommended.missed
    assert found.recommended.overshoot == min(c.overshoot for c in found.candidates)
    assert found.reason.startswith("tbt_p99<0.001s: nothing that was tried meets it on one server; nearest is ")
    assert re.search(r"token budget \d+: [0-9.]+ ms \([0-9.]+ ms now\); ", found.reason)
    (target,) = found.recommended.targets
    for estimate, said in (
        (Estimate(0.0008, 0.0007), ": nothing that was tried is known to meet it on one server; nearest is "),
        (Estimate(0.0008, 0.0007), ", as now: 0.8 ms, 0.7 ms to ?; "),
        (None, " on one server, as nothing has a steady state; "),
        (Estimate(None), ", as now: not known; "),
    ):
        undecided = dataclasses.replace(target, estimate=estimate, judgement="undecided")
        only = dataclasses.replace(found.recommended, targets=(undecided,))
        reason = dataclasses.replace(found, candidates=(only,), recommended=only).reason
        assert said in reason
        assert "inf" not in reason


def test_a_target_chooses_among_token_budgets_by_itself() -> None:
    server = ps.Server(TP1, 1_024, 128)
    workload = ps.Workload.poisson(4.0, ps.Geometric(400, max=2_000), 112)
    free = ps.recommend(workload, server, policies=(), **ROUGH)  # type: ignore[arg-type]
    worst = {c.server.token_budget: c.answer.latency.estimates["tbt_s"]["p99"].high for c in free.candidates}  # type: ignore[union-attr]
    limit = 1.05 * min(high for high in worst.values() if high)
    found = ps.recommend(workload, server, policies=(), targets=[f"tbt_p99<{limit}s"], **ROUGH)  # type: ignore[arg-type]
    assert not found.recommended.missed
    assert found.recommended.answer.latency.estimates["tbt_s"]["p99"].high < limit  # type: ignore[union-attr, operator]


def test_where_gaps_between_tokens_matter_smaller_token_budgets_are_tried_or_named_as_ruled_out() -> None:
    server = ps.Server(TP1, 8_192, 64)
    workload = ps.Workload.poisson(2.0, 129, 112)
    usual, more = (candidates(workload, server, (), short_gaps=short) for short in (False, True))
    looked_at = {s.token_budget for s in more.servers} | {p.token_budget for p in more.pruned}
    assert not {256, 512, 1_024} & {s.token_budget for s in usual.servers}
    assert {64, 128, 256, 512, 1_024} <= looked_at
    assert {256, 512} <= {s.token_budget for s in more.servers}


def test_a_load_that_nothing_carries_is_said_first_with_the_replicas_that_it_takes() -> None:
    server = ps.Server(TP1, 512, 64, "vllm", kv_blocks=2_000)
    found = ps.recommend(ps.Workload.poisson(30.0, 129, 112), server, policies=(), **ROUGH)  # type: ignore[arg-type]
    assert found.overload is not None
    best = max(candidate.stable_rate for candidate in found.candidates)
    replicas = math.ceil(30 / best)
    assert "nothing that was tried is known to carry 30 requests/s on one server; nearest is vllm, " in found.overload
    assert f"at least {replicas} replicas; see `penstock plan`" in found.overload
    assert found.as_dict()["warnings"][0] == found.overload
    assert of_vllm().overload is None


CASES = Path(__file__).parents[3] / "shared" / "data" / "user_cases"


@functools.cache
def of_seventy_b(*targets: str) -> ps.Recommendation:
    """Llama-3.1-70B on four H100, whose KV memory is full at some 290 requests, where 1,024 may run."""
    scenario = read_scenario(CASES / "recommend.yaml")
    return ps.recommend(scenario.workload, scenario.server, targets=targets)


def test_what_carries_clearly_more_at_no_price_is_recommended_and_a_change_names_no_other_reason() -> None:
    found = of_seventy_b()
    now, best = found.current, found.recommended
    assert found.change
    assert found.gains["stable_rate"] > 0.05  # type: ignore[operator]
    assert not prices(now, best)
    assert found.why == f"it carries {found.gains['stable_rate']:.0%} more than {now.name}"
    assert best.stable_rate > 0.95 * max(c.stable_rate for c in found.candidates if not prices(now, c))


def test_max_batch_sizes_are_tried_below_where_memory_binds_and_above_where_they_bind_themselves() -> None:
    """With 256 at once, of which memory holds 290, nobody is preempted."""
    found = of_seventy_b()
    sizes = {c.slots: c for c in found.candidates if c.slots}
    assert list(sizes) == [512, 256, 128]
    assert max(sizes.values(), key=lambda c: c.stable_rate) is sizes[256]
    assert sizes[256].stable_rate > 1.08 * found.current.stable_rate
    assert {c.slots for c in at_the_middle_of_cb().candidates if c.slots} == {200, 400}


def test_a_target_with_room_is_decided_by_a_longer_run_of_the_best() -> None:
    """A p99 of .8 s is not known to be below .9 s after 20,000 requests, but after some more it is."""
    best = of_seventy_b("ttft_p99<900ms").recommended
    assert best.as_dict()["targets"] == {"ttft_p99<0.9s": "met"}
    assert best.longer is not None
    assert best.longer.run.arrived > best.answer.run.arrived


def test_nothing_gets_clearly_worse_that_no_target_limits_where_the_target_can_be_met_without() -> None:
    found = of_seventy_b("tbt_p99<200ms")
    assert found.current.missed
    assert not found.recommended.missed
    assert found.price == ""


def test_no_engine_is_recommended_that_does_not_start() -> None:
    """vLLM runs no more requests at once than a batch has tokens."""
    tried = candidates(ps.Workload.poisson(1.0, 129, 112), ps.Server(TP1, 1_024, 1_024, "vllm", kv_blocks=20_000))
    sizes = {s.token_budget: s.max_batch_size for s in tried.servers if s.policy.name == "vllm"}
    assert sizes[256] == 256
    assert sizes[1_024] == sizes[4_096] == 1_024


def test_after_a_missed_target_the_plan_section_to_add_is_said() -> None:
    target = Target.parse("tbt_p99<1ms")
    (met, missed, undecided) = (TargetAnswer(target, Estimate(0.002), word) for word in ("met", "missed", "undecided"))

    found = of_prefill_first()
    usual = found.current.answer.workload

    def said(*targets: TargetAnswer, rows: int = 0) -> str | None:
        workload = ps.Workload.from_arrays(range(rows), [9] * rows, [9] * rows) if rows else usual
        answer = dataclasses.replace(found.current.answer, system=(workload, found.current.answer.server))
        best = dataclasses.replace(found.current, answer=answer, targets=targets)
        return dataclasses.replace(found, recommended=best).next_step("x.yaml")

    assert said(met) is None
    plan = said(met, missed) or ""
    assert "`plan: {targets: [tbt_p99<0.001s, tbt_p99<0.001s]}`" in plan
    assert "`penstock plan x.yaml`" in plan
    assert "--requests 32000" in (said(undecided) or "")
    assert "no longer run is kept" in (said(undecided, rows=2_000) or "")


everywhere = pytest.mark.parametrize("found", [at_the_middle_of_cb, of_prefill_first, with_little_memory])


def test_a_policy_is_found_that_carries_what_the_current_one_does_not() -> None:
    found = at_the_middle_of_cb()
    assert found.current.answer.verdict == "unstable"
    assert found.current.mean("e2e_s") is None
    assert found.change
    assert found.recommended.answer.verdict == "stable"
    assert found.gains["stable_rate"] > 0.1  # type: ignore[operator]
    assert found.gains["e2e_s"] is None
    assert found.recommended.slots == 200
    in_no_engine = found.recommended.server.policy.batching.own_budget
    assert in_no_engine == any("penstock.vllm_plugin" in warning for warning in found.warnings)


def test_prefill_first_is_left_for_a_policy_that_carries_the_load() -> None:
    found = of_prefill_first()
    assert found.recommended.server.policy.name == "sarathi"
    assert found.recommended.server.token_budget > 1024
    assert "Theorem 1(b): sarathi carries all that any policy can" in {pruned.why for pruned in found.pruned}


def test_what_binds_is_memory_where_the_server_carries_more_without_its_limit() -> None:
    found = with_little_memory()
    assert found.binding == ("KV memory",)
    assert found.current.answer.run.server.memory == ps.Memory(300)
    assert not found.change or found.recommended.server.token_budget < 128


@everywhere
def test_no_candidate_exceeds_the_bound_and_every_one_keeps_the_limits(found) -> None:  # type: ignore[no-untyped-def]
    recommended = found()
    for candidate in recommended.candidates:
        assert candidate.stable_rate <= recommended.bound * (1 + 1e-9)
        server, current = candidate.server, recommended.current.server
        assert (server.memory, server.batch_time) == (current.memory, current.batch_time)
        assert candidate.slots == (None if server.max_batch_size == current.max_batch_size else server.max_batch_size)


@everywhere
def test_candidates_are_compared_on_the_same_requests(found) -> None:  # type: ignore[no-untyped-def]
    rows = [candidate.answer.run.rows for candidate in found().candidates]
    assert len({(r.arrival.tobytes(), r.prompt_tokens.tobytes(), r.output_tokens.tobytes()) for r in rows}) == 1


@everywhere
def test_what_is_recommended_is_stable_where_anything_is(found) -> None:  # type: ignore[no-untyped-def]
    recommended = found()
    verdicts = {candidate.answer.verdict for candidate in recommended.candidates}
    assert recommended.recommended.answer.verdict == "stable" or "stable" not in verdicts


@everywhere
def test_the_json_form_says_the_same(found) -> None:  # type: ignore[no-untyped-def]
    recommended = found()
    told = recommended.as_dict()
    assert told["change"] == (recommended.recommended is not recommended.current)
    assert told["recommended"]["token_budget"] == recommended.recommended.server.token_budget
    assert told["current"] == told["candidates"][0]
    assert {pruned["why"] for pruned in told["pruned"]} == {pruned.why for pruned in recommended.pruned}
    assert recommended.reason == told["reason"]


def test_back_pressure_is_not_recommended_where_the_limit_counts_running_requests() -> None:
    found = with_little_memory()
    assert {candidate.server.policy.name for candidate in found.candidates} == {"vllm", "sarathi"}
    assert {pruned.policy for pruned in found.pruned if "starves decodes" in pruned.why} == {"maxweight"}


def test_what_nothing_betters_is_kept() -> None:
    """One token at a time in batches of one: no budget and no policy can do anything else."""
    found = ps.recommend(ps.Workload.poisson(1.0, 1, 3), ps.Server(ps.Affine(0.0, 0.1), 1, 1), **ROUGH)  # type: ignore[arg-type]
    assert not found.change
    assert found.reason.startswith("no setting tried shortens the mean whole call by over 2% or carries over 5% more ")
    assert found.gains["stable_rate"] == 0.0


def test_with_the_stable_rate_as_objective_the_highest_is_taken() -> None:
    workload, server = ps.Workload.poisson(1.0, 129, 112), ps.Server(TP1, 256)
    found = ps.recommend(workload, server, objective="stable-rate", policies=("sarathi",), **ROUGH)  # type: ignore[arg-type]
    assert found.recommended.server.token_budget == 1024
    assert found.recommended.stable_rate == max(candidate.stable_rate for candidate in found.candidates)


@pytest.mark.slow
def test_the_same_call_gives_the_same_recommendation() -> None:
    server = ps.Server(TP1, 1024, policy="vllm-vanilla")
    again = ps.recommend(ps.Workload.poisson(13.5, 129, 112), server, **ROUGH)  # type: ignore[arg-type]
    assert again.as_dict() == of_prefill_first().as_dict()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"policies": ("sarati",)}, "sarathi"),
        ({"requests": 0}, "requests is 0"),
        ({"precision": 0.0}, "precision is 0"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(more: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError, match=said) as caught:
        ps.recommend(ps.Workload.poisson(1.0, 129, 112), ps.Server(TP1, 512), **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_server_is_kept_where_a_change_costs_more_than_it_gains_and_the_trade_is_named() -> None:
    """Half the token budget lets decodes wait less, and prompts longer; it carries less, too."""
    workload, server = ps.Workload.poisson(1.2, 1_964, 28), ps.Server(TP1, 512)
    kept = ps.recommend(workload, server, policies=(), **ROUGH)  # type: ignore[arg-type]
    assert not kept.change
    assert kept.trade is not None
    faster, more = kept.trade.split("; ")
    assert re.match(r"sarathi at 2,048 has a stable rate \d+% higher .*, at the price of .*a p99 time per token", more)
    gain, price = faster.split(", at the price of ")
    assert re.match(r"sarathi at 256 has .*a mean whole call \d+% shorter than sarathi at 512", gain)
    assert "a mean time to first token" in price
    asked = ps.recommend(workload, server, policies=(), objective="e2e", **ROUGH)  # type: ignore[arg-type]
    assert asked.recommended.server.token_budget == 256
    worse = {name for name, gain in asked.gains.items() if gain is not None and gain < -0.02}
    assert all(word in asked.reason.split("; the price is ")[1] for word in ("stable rate", "time to first token"))
    assert worse == {"stable_rate", "ttft_s"}
