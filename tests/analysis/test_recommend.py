"""A recommendation names a policy and a token budget that carry the load, and leaves alone what nothing betters."""

import functools

import pytest

import penstock as ps
from penstock.analysis.candidates import OWN_BUDGET

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
ROUGH = {"requests": 2_000, "precision": 0.05}


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


everywhere = pytest.mark.parametrize("found", [at_the_middle_of_cb, of_prefill_first, with_little_memory])


def test_a_policy_is_found_that_carries_what_the_current_one_does_not() -> None:
    found = at_the_middle_of_cb()
    assert found.current.answer.verdict == "unstable"
    assert found.current.mean("e2e_s") is None
    assert found.change
    assert found.recommended.answer.verdict == "stable"
    assert found.gains["stable_rate"] > 0.1  # type: ignore[operator]
    assert found.gains["e2e_s"] is None
    assert "max batch size" in found.binding
    assert found.step is not None
    assert found.step.max_batch_size == 125
    in_no_engine = found.recommended.server.policy.name in OWN_BUDGET
    assert in_no_engine == any("penstock.vllm_plugin" in warning for warning in found.warnings)


def test_prefill_first_is_left_for_a_policy_that_carries_the_load() -> None:
    found = of_prefill_first()
    assert found.recommended.server.policy.name == "sarathi"
    assert found.recommended.server.token_budget > 1024
    assert found.step is None
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
        assert (server.max_batch_size, server.memory, server.batch_time) == (
            current.max_batch_size, current.memory, current.batch_time,
        )  # fmt: skip


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


def test_what_nothing_betters_is_kept() -> None:
    """One token at a time in batches of one: no budget and no policy can do anything else."""
    found = ps.recommend(ps.Workload.poisson(1.0, 1, 3), ps.Server(ps.Affine(0.0, 0.1), 1, 1), **ROUGH)  # type: ignore[arg-type]
    assert not found.change
    assert "nothing that was tried" in found.reason
    assert found.gains["stable_rate"] == 0.0


def test_with_the_stable_rate_as_objective_the_highest_is_taken() -> None:
    workload, server = ps.Workload.poisson(1.0, 129, 112), ps.Server(TP1, 256)
    found = ps.recommend(workload, server, objective="stable-rate", policies=("sarathi",), **ROUGH)  # type: ignore[arg-type]
    assert found.recommended.server.token_budget == 1024
    assert found.recommended.stable_rate == max(candidate.stable_rate for candidate in found.candidates)


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
