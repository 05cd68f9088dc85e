"""A certificate says no more than a theorem whose hypotheses hold."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.certificate import DRIFT, Certificate
from penstock.theory.load import load
from penstock.theory.region import region
from penstock.workload.arrivals import BLOCK, Arrivals
from penstock.workload.lengths import Independent
from tests.own_policies import own_policy

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
STABLE_WORKLOAD = ps.Workload.poisson(rate=10.0, prompt=129, output=112)
STABLE_SERVER = ps.Server(TP1, 1024)
LIMITED_SERVER = ps.Server(TP1, 1024, 100)
"""For 129/112 its region reaches to 12.6 requests/s, the drift certificate to 10.7."""


def test_where_every_hypothesis_holds_it_says_stable() -> None:
    certificate = ps.certify(STABLE_WORKLOAD, STABLE_SERVER)
    assert certificate.verdict == "stable"
    assert certificate.theorem == "Theorem 1(b)"
    assert all(h.held and h.checked for h in certificate.hypotheses)
    assert certificate.certified_rate == pytest.approx(certificate.max_rate)


def test_under_a_max_batch_size_weights_that_drain_every_batch_say_stable() -> None:
    certificate = ps.certify(STABLE_WORKLOAD.with_rate(5.0), LIMITED_SERVER)
    assert certificate.verdict == "stable"
    assert certificate.theorem == DRIFT
    assert [h.name for h in certificate.hypotheses] == [
        "i.i.d. arrivals", "i.i.d. lengths", "bounded lengths", "work-conserving policy",
        "every batch under a backlog drains",
    ]  # fmt: skip
    assert all(h.held and h.checked for h in certificate.hypotheses)


@own_policy
def unlabelled(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


@own_policy(work_conserving=True)
def claimed(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


def _recorded() -> ps.Workload:
    requests = STABLE_WORKLOAD.requests(1000)
    return ps.Workload.from_arrays(*requests)


BROKEN = {
    "i.i.d. arrivals": (ps.Workload.preset("azure-conv").with_rate(1.0), STABLE_SERVER),
    "i.i.d. lengths": (_recorded(), STABLE_SERVER),
    "bounded lengths": (ps.Workload.poisson(10.0, 129, ps.Geometric(112)), STABLE_SERVER),
    "work-conserving policy": (STABLE_WORKLOAD, STABLE_SERVER.with_policy("vllm-vanilla")),
    "max batch size never binds": (STABLE_WORKLOAD.with_rate(11.5), LIMITED_SERVER),
    "full batches carry the load": (STABLE_WORKLOAD.with_rate(8.0), ps.Server(TP1, 129)),
    "every batch under a backlog drains": (STABLE_WORKLOAD.with_rate(11.5), LIMITED_SERVER),
}


@pytest.mark.parametrize("name", BROKEN)
def test_where_a_hypothesis_of_stability_fails_it_says_unknown_and_names_it(name: str) -> None:
    certificate = ps.certify(*BROKEN[name])
    assert certificate.rho < 1
    assert certificate.verdict == "unknown"
    assert certificate.theorem is None
    assert name in {h.name for h in certificate.hypotheses if not h.held}
    assert name in certificate.reason
    assert f"{certificate.margin:.1%} below what the {certificate.binding.name} can carry" in certificate.reason


@own_policy
def lasting_prefill(queue, limits, params):  # type: ignore[no-untyped-def]
    """Serve no decode while there are prompts, and half a budget of them at a time."""
    decode = 0 if queue.prompts > 0 else queue.decoding
    return min(queue.prompt_tokens, limits.token_budget // 2 + 1), decode, ps.PREFILL_FIRST


BREAKERS: dict[str, Callable[[ps.Workload, ps.Server, float], tuple[ps.Workload, ps.Server]]] = {
    "i.i.d. arrivals": lambda w, s, _: (
        dataclasses.replace(ps.Workload.preset("azure-conv").with_rate(w.rate), lengths=w.lengths), s
    ),
    "i.i.d. lengths": lambda w, s, _: (ps.Workload.from_arrays(*w.requests(50)).with_rate(w.rate), s),
    "bounded lengths": lambda w, s, _: (
        dataclasses.replace(w, lengths=Independent(w.lengths.prompt, ps.Geometric(w.mean_output))), s  # type: ignore[attr-defined]
    ),
    "work-conserving policy": lambda w, s, certified: (w.with_rate(0.999 * certified), s.with_policy(lasting_prefill)),
    "max batch size never binds": lambda w, s, _: _between(
        w, dataclasses.replace(s, max_batch_size=s.token_budget // 8)
    ),
    "full batches carry the load": lambda w, s, certified: (
        w.with_rate(1.01 * certified), dataclasses.replace(s, batch_time=_slow_last(s))
    ),
    "every batch under a backlog drains": lambda w, s, _: _between(
        w, dataclasses.replace(s, max_batch_size=s.token_budget // 2, policy="orca", scope="batch")
    ),
}  # fmt: skip
"""Each takes a workload that a server is certified to carry, and the certified rate, and breaks one hypothesis."""


def _between(workload: ps.Workload, server: ps.Server) -> tuple[ps.Workload, ps.Server]:
    """Offer more than is certified, but less than is impossible."""
    certificate = ps.certify(workload, server)
    assert certificate.certified_rate is not None
    return workload.with_rate((certificate.certified_rate + certificate.max_rate) / 2), server


def _slow_last(server: ps.Server) -> ps.Measured:
    """Batches one token short of the budget are faster by a tenth than full ones are per token."""
    budget = server.token_budget
    times = server.batch_time([1, budget - 1, budget]).tolist()
    return ps.Measured((1, budget - 1, budget), (times[0], times[1] / 1.1, times[2]))


@pytest.mark.parametrize("name", BREAKERS)
@settings(max_examples=25, deadline=None)
@given(
    budget=st.integers(16, 1024), prompt=st.integers(1, 500), output=st.integers(2, 500), share=st.floats(0.05, 0.99)
)
def test_no_certified_server_stays_certified_when_a_hypothesis_is_broken(
    name: str, budget: int, prompt: int, output: int, share: float
) -> None:
    server = ps.Server(ps.Affine(0.01, 1e-4), budget)
    workload = ps.Workload.poisson(1.0, prompt, output)
    certified = ps.certify(workload, server).certified_rate
    assert certified is not None
    workload = workload.with_rate(share * certified)
    assert ps.certify(workload, server).verdict == "stable"
    broken = ps.certify(*BREAKERS[name](workload, server, certified))
    assert broken.verdict != "stable"
    assume(broken.load.arrival_rate < broken.max_rate * (1 - 1e-9))
    assert broken.verdict == "unknown"
    assert name in {h.name for h in broken.hypotheses if not h.held}
    assert name in broken.reason


def test_a_policy_of_which_nothing_is_known_is_not_taken_for_work_conserving() -> None:
    certificate = ps.certify(STABLE_WORKLOAD, STABLE_SERVER.with_policy(unlabelled))
    assert certificate.verdict == "unknown"
    assert certificate.certified_rate is None


def test_a_claim_that_a_policy_is_work_conserving_is_taken_and_marked_as_unchecked() -> None:
    certificate = ps.certify(STABLE_WORKLOAD, STABLE_SERVER.with_policy(claimed))
    assert certificate.verdict == "stable"
    assert [h.name for h in certificate.hypotheses if not h.checked] == ["work-conserving policy"]


def test_the_drift_certificate_needs_no_claim_about_a_users_policy() -> None:
    workload = STABLE_WORKLOAD.with_rate(5.0)
    certificate = ps.certify(workload, LIMITED_SERVER.with_policy(unlabelled))
    assert certificate.verdict == "stable"
    assert all(h.checked for h in certificate.hypotheses)
    known = ps.certify(workload, LIMITED_SERVER).certified_rate
    assert certificate.certified_rate is not None
    assert known is not None
    assert (
        0.7 * known < certificate.certified_rate < known
    )  # which ends more prompts than those that nothing is known of


def test_arrivals_of_the_users_own_are_i_i_d_on_the_users_word() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Arrivals):
        rate: float = 1.0
        iid = True

        def blocks(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
            yield np.arange(BLOCK) / self.rate

        def with_rate(self, rate: float) -> "Own":
            return Own(rate)

        def describe(self) -> str:
            return "own arrivals"

    certificate = ps.certify(dataclasses.replace(STABLE_WORKLOAD, arrivals=Own()), STABLE_SERVER)
    assert certificate.verdict == "stable"
    assert [h.name for h in certificate.hypotheses if not h.checked] == ["i.i.d. arrivals"]


def test_a_max_batch_size_that_reaches_the_token_budget_does_no_harm() -> None:
    assert ps.certify(STABLE_WORKLOAD, ps.Server(TP1, 1024, 1024)).theorem == "Theorem 1(b)"


@pytest.mark.parametrize("name", BROKEN)
def test_above_the_capacity_no_failed_hypothesis_of_stability_saves_it(name: str) -> None:
    workload, server = BROKEN[name]
    certificate = ps.certify(workload.with_rate(100.0), server)
    assert certificate.verdict == "unstable"
    assert certificate.theorem == "Theorem 1(a)"


def test_above_what_the_max_batch_size_can_carry_it_says_unstable_though_the_load_is_below_1() -> None:
    most = region(LIMITED_SERVER, prompt=129, output=112).max_rate
    above = ps.certify(STABLE_WORKLOAD.with_rate(1.001 * most), LIMITED_SERVER)
    assert (above.verdict, above.binding.name) == ("unstable", "max batch size")
    assert above.rho < 1
    assert above.margin == pytest.approx(-0.001)
    assert "Section 6" in str(above.theorem)
    assert "max batch size lets no policy carry more than" in above.reason
    assert ps.certify(STABLE_WORKLOAD.with_rate(0.999 * most), LIMITED_SERVER).verdict == "unknown"
    assert ps.certify(STABLE_WORKLOAD.with_rate(most), LIMITED_SERVER).verdict == "critical"


def test_above_what_the_kv_memory_can_carry_it_says_unstable_though_the_load_is_below_1() -> None:
    small = ps.certify(STABLE_WORKLOAD, ps.Server(TP1, 1024, kv_tokens=5_000))
    assert (small.verdict, small.binding.name) == ("unstable", "KV memory")
    assert small.rho < 1
    assert "KV memory lets no policy carry more than" in small.reason


def test_a_kv_cache_that_may_fill_leaves_stability_open() -> None:
    """The theorems know no memory, so it must hold whatever may run at once."""
    light = STABLE_WORKLOAD.with_rate(5.0)
    fits = ps.certify(light, with_blocks(LIMITED_SERVER, 100 * 15))
    assert fits.verdict == "stable"
    assert fits.certified_rate == ps.certify(light, LIMITED_SERVER).certified_rate
    for server in (LIMITED_SERVER, STABLE_SERVER, dataclasses.replace(LIMITED_SERVER, scope="batch")):
        may_fill = ps.certify(light, with_blocks(server, 100 * 15 - 1))
        assert may_fill.verdict == "unknown"
        assert may_fill.certified_rate is None
        assert "KV memory never binds" in may_fill.reason


def with_blocks(server: ps.Server, blocks: int, **rules: Any) -> ps.Server:
    return dataclasses.replace(server, memory=ps.Memory(blocks, **rules))


@pytest.mark.parametrize("admission", [None, "input", "completion", "optimistic"])
def test_memory_that_never_fills_changes_no_certificate(admission: Any) -> None:
    light = STABLE_WORKLOAD.with_rate(5.0)
    ample = with_blocks(LIMITED_SERVER, 1_500, admission=admission)
    assert ps.certify(light, ample).certified_rate == ps.certify(light, LIMITED_SERVER).certified_rate
    watermark = with_blocks(LIMITED_SERVER, 1_500, admission=admission, watermark=0.01)
    assert ps.certify(light, watermark).verdict == "unknown"
    assert "beside a watermark of 15" in ps.certify(light, watermark).reason


@pytest.mark.parametrize(("ahead", "requests"), [(True, 40), (False, 20)])
def test_vllm_is_certified_where_its_slots_fill_every_batch_and_its_memory_holds_them_all(
    ahead: bool, requests: int
) -> None:
    """Requests of 15 blocks, and the block that vLLM keeps for itself."""
    light = STABLE_WORKLOAD.with_rate(0.1)
    for slots in (None, requests):
        vllm = ps.Server(TP1, 20, slots, "vllm", policy_params={"async_scheduling": ahead})
        assert ps.certify(light, vllm).theorem == "Theorem 1(b)"
        assert ps.certify(light, with_blocks(vllm, 15 * requests + 1)).verdict == "stable"
        assert ps.certify(light, with_blocks(vllm, 15 * requests)).verdict == "unknown"


def test_vllm_is_not_certified_where_whole_prompts_leave_room() -> None:
    cut_off = ps.Server(TP1, 512, 512, "vllm", policy_params={"chunked_prefill": False})
    assert "work-conserving policy" in ps.certify(STABLE_WORKLOAD.with_rate(0.1), cut_off).reason


@pytest.mark.parametrize(
    ("slots", "certified", "found"),
    [(64, "unknown", "unstable"), (127, "unknown", "stable"), (128, "stable", "stable"), (None, "stable", "stable")],
)
def test_a_step_ahead_slots_must_be_twice_the_token_budget(slots: int | None, certified: str, found: str) -> None:
    """Those who end with a batch keep their places while the next is composed: of two batches each a third is lost."""
    workload = ps.Workload.poisson(0.8 * 32, 1, 2)
    server = ps.Server(ps.Affine(c=1.0, a=0.0), 64, slots, "vllm")
    certificate = ps.certify(workload, server)
    assert certificate.verdict == certified
    assert ps.verdict(workload, server).verdict == found
    if certified == "unknown":
        assert "below twice the token budget of 64" in certificate.reason


def test_memory_that_is_short_says_with_which_max_batch_size_how_much_is_proved() -> None:
    """And nothing of a scheduler that is not work-conserving, which may not even run without memory."""
    workload = STABLE_WORKLOAD.with_rate(1.0)
    short = ps.certify(workload, ps.Server(TP1, 1024, 100, "vllm", kv_blocks=1_000))
    fewer = ps.certify(workload, ps.Server(TP1, 1024, 66, "vllm", kv_blocks=1_000))
    (why,) = [h.why for h in short.hypotheses if h.name == "KV memory never binds"]
    assert short.certified_rate is None
    assert (
        f"up to 66 at once surely fit, and with that max batch size each is proved stable to {fewer.certified_rate:.4g}"
        in why
    )
    by_cache = {"schedule_policy": "shortest-prefill-first"}
    server = ps.Server(TP1, 1024, 100, "sglang", kv_tokens=16_000, policy_params=by_cache)
    assert all("proved" not in h.why for h in ps.certify(workload, server).hypotheses)


@pytest.mark.parametrize("engine", [name for name, found in ps.ENGINES.items() if not found.batching.work_conserving])
def test_an_engine_that_leaves_room_in_its_batches_is_never_certified(engine: str) -> None:
    certificate = ps.certify(STABLE_WORKLOAD.with_rate(0.01), ps.Server(TP1, 512, 64, engine, kv_blocks=10**6))
    assert certificate.verdict == "unknown"
    assert certificate.certified_rate is None
    assert "work-conserving policy" in certificate.reason


def test_requests_that_are_dropped_do_not_count() -> None:
    """Of prompts of 100 and of 10,000 tokens only the short ones fit."""
    mixed = ps.Workload.from_arrays(None, [100, 10_000], [50, 50]).with_rate(10.0, arrivals="poisson")
    short = ps.Workload.poisson(5.0, 100, 50)
    server = with_blocks(ps.Server(TP1, 1024, 100), 200, too_long="drop")
    kept, alone = ps.certify(mixed, server), ps.certify(short, server)
    assert kept.rho == pytest.approx(alone.rho)
    assert [bound.max_rate for bound in kept.bounds] == pytest.approx([2 * bound.max_rate for bound in alone.bounds])
    assert kept.verdict == alone.verdict


def test_a_share_of_dropped_requests_that_a_sample_tells_is_told_as_unchecked() -> None:
    lengths = {"prompt": ps.Geometric(129, max=10_000), "output": ps.Geometric(112, max=10_000)}
    server = ps.Server(TP1, 1, 1, memory=ps.Memory(30, too_long="drop"))
    for rate, verdict in ((0.01, "stable"), (1_000.0, "unstable")):
        certificate = ps.certify(ps.Workload.poisson(rate, **lengths), server)  # type: ignore[arg-type]
        assert certificate.verdict == verdict
        unchecked = [h.name for h in certificate.hypotheses if not h.checked]
        assert unchecked == ["share of the requests that are dropped"]
    with pytest.raises(ps.InputError, match="every request of workload is too long"):
        ps.certify(STABLE_WORKLOAD, ps.Server(TP1, 512, memory=ps.Memory(3, too_long="drop")))


def test_what_recorded_prompts_have_in_common_counts_once_where_it_may_be_cached() -> None:
    """One of 100 equal prompts is computed, and the last token of each of the others."""
    ids = {"hash_ids": [list(range(125))] * 100, "hash_block": 16}
    recorded = ps.Workload.from_arrays(np.arange(100) / 50, np.full(100, 2_000), np.full(100, 10), **ids)  # type: ignore[arg-type]
    plain, caching = (
        ps.certify(recorded, ps.Server(TP1, 512, 64, "vllm", memory=ps.Memory(2_000, prefix_caching=on)))
        for on in (False, True)
    )
    assert plain.verdict == "unstable"
    assert caching.verdict == "unknown"
    assert [bound.name for bound in caching.bounds] == ["token budget", "max batch size", "KV memory"]
    tokens = (2_000 + 99) / 100
    one = ps.certify(ps.Workload.poisson(1.0, ps.Geometric(tokens), 10), ps.Server(TP1, 512, 64, "vllm"))
    assert [bound.max_rate for bound in caching.bounds[:2]] == pytest.approx([bound.max_rate for bound in one.bounds])
    # Of the blocks that requests hold only one of outputs is surely their own.
    assert caching.bounds[2].max_rate == pytest.approx(1_999 / (9 * float(TP1(1))))
    assert caching.rho_without_cache == plain.rho
    assert caching.rho == pytest.approx(recorded.rate / one.bounds[0].max_rate)
    # Without ids nothing is in common, so nothing is found.
    unnamed = ps.Workload.from_arrays(np.arange(100) / 50, np.full(100, 2_000), np.full(100, 10))
    alone = ps.certify(unnamed, ps.Server(TP1, 512, 64, "vllm", memory=ps.Memory(2_000, prefix_caching=True)))
    assert alone.verdict == "unstable"
    assert alone.rho == plain.rho


def test_load_one_is_critical() -> None:
    server = ps.Server(ps.Affine(c=0.0, a=1 / 1024), 512, convention="paper")
    certificate = ps.certify(ps.Workload.deterministic(rate=4.0, prompt=128, output=128), server)
    assert certificate.rho == 1.0
    assert certificate.verdict == "critical"


@given(rate=st.floats(0.1, 50), budget=st.integers(1, 4096), prompt=st.integers(1, 500), output=st.integers(1, 500))
def test_margin_load_and_largest_rate_are_one_fact(rate: float, budget: int, prompt: int, output: int) -> None:
    certificate = ps.certify(ps.Workload.poisson(rate, prompt, output), ps.Server(TP1, budget))
    assert certificate.binding.name == "token budget"
    assert certificate.margin == pytest.approx(1 - certificate.rho, rel=1e-12, abs=1e-12)
    assert certificate.max_rate * certificate.rho == pytest.approx(rate)
    assert (certificate.verdict == "unstable") == (certificate.rho > 1 + 1e-9)


def test_no_server_is_certified_for_more_than_it_can_carry() -> None:
    """1,000 servers of every kind; nor is one certified at a rate of which another is certified to be unstable."""
    rng = np.random.default_rng(0)
    certified = {name: [] for name in ps.POLICIES}
    for _ in range(1_000):
        workload, server = _any(rng)
        certificate = ps.certify(workload, server)
        most = certificate.certified_rate
        certified[server.policy.name].append(most is not None)
        if most is not None:
            assert most <= certificate.max_rate * (1 + 1e-9)
            assert (certificate.verdict == "stable") == (certificate.load.arrival_rate < most * (1 - 1e-9))
    assert all(np.mean(certified[name]) > 0.9 for name in ("fastertransformer", "vllm-vanilla", "orca", "sarathi"))


def _any(rng: np.random.Generator) -> tuple[ps.Workload, ps.Server]:
    budget = int(rng.integers(1, 200))
    batch_time = [
        ps.PiecewiseConstant(rng.exponential(0.01), rng.exponential(0.01) + 1e-5, int(rng.integers(1, 64))),
        ps.Affine(rng.exponential(0.01), rng.exponential(1e-3) + 1e-6),
        ps.Measured(range(1, budget + 1), rng.uniform(0.01, 0.1, budget)),
    ][rng.integers(3)]
    server = ps.Server(
        batch_time,
        budget,
        None if rng.random() < 0.1 else int(rng.integers(1, 1.2 * budget + 2)),
        policy=str(rng.choice(list(ps.POLICIES))),
        scope=str(rng.choice(["batch", "running"])),  # type: ignore[arg-type]
        convention=str(rng.choice(["paper", "engine"])),  # type: ignore[arg-type]
    )
    prompt, output = (
        int(rng.integers(1, 300)) if rng.random() < 0.5 else ps.Geometric(rng.uniform(1, 100), max=300)
        for _ in range(2)
    )
    return ps.Workload.poisson(rng.exponential(5) + 0.01, prompt, output), server


def test_the_json_form_tells_everything_in_plain_values() -> None:
    certificate = ps.certify(STABLE_WORKLOAD.with_rate(9.0), with_blocks(LIMITED_SERVER, 62_500))
    told = certificate.as_dict()
    assert json.loads(json.dumps(told)) == told
    assert list(told) == [
        "margin", "certified_rate", "bounds", "mean_backlog", "verdict", "theorem", "reason", "hypotheses",
        "certified_load", "any_policy", "virtual_station", "order", "joins",
    ]  # fmt: skip
    assert told["margin"] == certificate.margin
    assert [list(h) for h in told["hypotheses"]] == [["name", "held", "why", "checked"]] * len(certificate.hypotheses)
    assert [bound["name"] for bound in told["bounds"]] == ["token budget", "max batch size", "KV memory"]
    assert told["bounds"][1]["max_rate"] == certificate.max_rate


def test_every_sentence_is_one_line() -> None:
    rng = np.random.default_rng(1)
    certificates: list[Certificate] = [ps.certify(*BROKEN[name]) for name in BROKEN]
    certificates += [ps.certify(*_any(rng)) for _ in range(50)]
    for certificate in certificates:
        texts = (certificate.reason, *(h.why for h in certificate.hypotheses), *(b.why for b in certificate.bounds))
        assert all(text and "\n" not in text and "nan" not in text.split() for text in texts)


def test_a_budget_that_is_no_multiple_of_a_block_is_shown_to_lose() -> None:
    asked = load(STABLE_WORKLOAD, ps.Server(TP1, 129))
    assert asked.best_token_load == 128
    assert asked.capacity_tokens_per_s == pytest.approx(2738, abs=0.5)
    assert asked.full_batch_tokens_per_s == pytest.approx(1569, abs=0.5)


def test_the_engine_convention_costs_one_token_less() -> None:
    engine = load(STABLE_WORKLOAD, STABLE_SERVER)
    paper = load(STABLE_WORKLOAD, dataclasses.replace(STABLE_SERVER, convention="paper"))
    assert (paper.tokens_per_request, engine.tokens_per_request) == (241, 240)


def test_requests_that_span_no_time_have_no_load() -> None:
    workload = ps.Workload.from_arrays(np.zeros(3), [5, 5, 5], [5, 5, 5])
    with pytest.raises(ps.InputError, match="no arrival rate"):
        ps.certify(workload, STABLE_SERVER)


def test_requests_that_span_next_to_no_time_have_no_load() -> None:
    workload = ps.Workload.from_arrays([0, 5e-324], [1, 1], [1, 1])
    with pytest.raises(ps.InputError, match="no arrival rate"):
        ps.certify(workload, STABLE_SERVER)
