"""Table 1 by audit, and the batches that are not work-conserving."""

import pytest
import yaml

import penstock as ps
from penstock.auditing.audit import audit
from penstock.reproducing.catalogue import item, reproduce
from penstock.reproducing.small_systems import Random, Small, count_small, random_systems, small_systems, waiting
from penstock.system.policies import resolve

POLICIES = ("fastertransformer", "vllm-vanilla", "orca", "sarathi")


def changed(tmp_path, name, *, server=None, sections=None, **settings):
    """Return the scenario of an item with other settings, as a file."""
    document = yaml.safe_load(item(name).text) | (sections or {})
    document["reproduce"] |= settings
    if server:
        document["server"] |= server
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_table_is_as_published_and_an_audit_refutes_two() -> None:
    found = reproduce("table1")
    assert not found.differing
    measured = {claim.what: claim.measured for claim in found.claims}
    kept = {name: measured[f"{name}: work-conserving"] for name in ("FasterTransformer", "vanilla vLLM", "Orca")}
    assert kept == {"FasterTransformer": "No", "vanilla vLLM": "No", "Orca": "Yes"}
    rows = {row["policy"]: row for row in found.rows.to_dicts()}
    assert [rows[name]["paper"] for name in POLICIES] == ["No", "No", "Yes", "Yes"]
    assert [rows[name]["strong"] for name in POLICIES] == ["No", "No", "Yes", "Yes"]
    assert [rows[name]["left_short"] > 0 for name in POLICIES] == [True, True, False, False]
    assert rows["orca"]["systems"] > 1_000


def test_an_own_policy_is_judged_by_its_batches_and_not_by_a_name(tmp_path) -> None:
    """One that leaves out a token of each prompt batch is found out; it decodes first and mixes."""
    code = (
        "import penstock as ps\n"
        "def cautious(queue, limits, params):\n"
        "    decode = min(queue.decoding, limits.token_budget)\n"
        "    return min(queue.prompt_tokens, limits.token_budget - decode, 3), decode, ps.DECODE_FIRST\n"
    )
    (tmp_path / "mine.py").write_text(code)
    few = {"small": {"tokens": 4}, "random": {"systems": 40}}
    found = reproduce(changed(tmp_path, "table1", policies=["mine.py:cautious", "orca"], **few))
    row = found.rows.to_dicts()[0]
    assert (row["paper"], row["strong"]) == ("No", "No")
    assert row["mixed"] > 0
    assert all(claim.what.startswith("Orca") for claim in found.claims)


def test_engines_can_be_audited_under_their_own_token_convention(tmp_path) -> None:
    few = {"small": {"tokens": 4}, "random": {"systems": 20}}
    found = reproduce(changed(tmp_path, "table1", policies=["vllm", "vidur-vllm"], convention="engine", **few))
    assert found.rows["paper"].to_list() == ["Yes", "No"]  # docs/engines.md
    assert found.claims == ()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_waited_agrees_with_the_audit(policy: str) -> None:
    for convention in ("paper", "engine"):
        for system in random_systems(Random(systems=40, seed=5)):
            run = system.run(resolve(policy), convention)
            short = waiting(run, system.arrival, system.prompt, system.output).short(system.budget)
            assert int(short.sum()) == audit(run).paper.breaches


def test_small_systems_come_smallest_first_and_once() -> None:
    systems = list(small_systems(Small(requests=3, tokens=6, gap=1)))
    assert len(set(systems)) == len(systems)
    sizes = [(len(s.arrival), sum(s.prompt) + sum(s.output)) for s in systems]
    assert sizes == sorted(sizes)
    assert sizes[-1] == (3, 6)


@pytest.mark.parametrize("most", [Small(), Small(requests=2, tokens=6, gap=3), Small(requests=30, tokens=5)])
def test_small_systems_are_counted_before_they_are_made(most: Small) -> None:
    assert count_small(most) == len(list(small_systems(most)))


def test_the_figure_names_the_batches_of_the_paper() -> None:
    found = reproduce("fig-work-conserving")
    assert [(claim.measured, claim.same) for claim in found.claims] == [("2", True), ("2, 3, 4", True), ("none", True)]
    short = found.rows.filter("short")
    load = (short["prefill_tokens"] + short["decode_tokens"]).to_numpy()
    assert load.tolist() == [6, 2, 2, 2]
    assert (load < short["token_budget"].to_numpy()).all()
    assert ((short["prompt_tokens_waiting"] + short["decodes_waiting"]).to_numpy() >= 8).all()


def test_another_token_budget_changes_which_batches_are_short(tmp_path) -> None:
    found = reproduce(changed(tmp_path, "fig-work-conserving", server={"token_budget": 20}))
    assert [claim.measured for claim in found.claims] == ["none"] * 3  # so few tokens never fill it
    assert found.verdict == "changed"


def test_a_max_batch_size_is_refused_since_the_definition_has_none(tmp_path) -> None:
    with pytest.raises(ps.InputError, match="max_batch_size is 3"):
        reproduce(changed(tmp_path, "fig-work-conserving", server={"max_batch_size": 3}))
    with pytest.raises(ps.InputError, match="policies is empty"):
        reproduce(changed(tmp_path, "table1", policies=[]))


REQUEST = {"at_s": 0, "prompt": 4, "output": 3}


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("table1", {"sections": {"server": {"foo": 3}}}, "server is no section that table1 reads"),
        ("table1", {"sections": {"blah": 3}}, "blah is no section"),
        ("table1", {"sections": {"server": 1e308}}, "server is no section"),
        ("table1", {"policies": ["orca", "sarathi", "orca"]}, "orca. stands twice"),
        ("table1", {"small": {"requests": 30, "tokens": 70}}, "lower small.requests"),
        ("table1", {"small": {"requests": 10**9}}, "small.requests"),
        ("table1", {"random": {"seed": -1}}, "random.seed"),
        (
            "table1",
            {"small": {"requests": 1, "tokens": 2}, "random": {"systems": 1, "requests": 1}},
            "raise random.systems",
        ),
        ("fig-work-conserving", {"sections": {"workload": {}}}, "workload is no section"),
        ("fig-work-conserving", {"sections": {"server": 1e308}}, "server holds"),
        ("fig-work-conserving", {"requests": [REQUEST | {"at_s": -1}]}, "at_s"),
        ("fig-work-conserving", {"requests": [REQUEST | {"at_s": 1e30}]}, "at_s"),
        ("fig-work-conserving", {"requests": [REQUEST | {"at_s": float("nan")}]}, "at_s"),
        ("fig-work-conserving", {"requests": [REQUEST | {"prompt": 10**9}]}, "prompt"),
        ("fig-work-conserving", {"policies": ["sarathi", "sarathi"]}, "sarathi. stands twice"),
        ("fig-work-conserving", {"server": {"convention": "engine"}}, "give convention: paper"),
    ],
)
def test_what_cannot_be_audited_or_drawn_is_refused_in_one_line(tmp_path, name, given, said) -> None:
    with pytest.raises(ps.InputError, match=said) as refused:
        reproduce(changed(tmp_path, name, **given))
    assert "\n" not in str(refused.value)


def test_a_scheduler_that_the_figure_lacks_is_said_to_be_of_the_table(tmp_path) -> None:
    claims = reproduce(changed(tmp_path, "fig-work-conserving", policies=["orca", "vllm-vanilla"])).claims
    assert [claim.published for claim in claims] == ["none (by Table 1; not in the figure)", "2"]
