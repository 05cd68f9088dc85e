"""The program that compares the corpus names what differs, and refuses what nobody listed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "corpus"))
import corpus
import covered

BEFORE = {"check a.yaml": {"status": 0, "refusal": "", "answer": {
    "load": {"rho": 0.5}, "pools": {"large": {"replicas": 2}}, "bounds": [1.0, 2.0]}}}  # fmt: skip


def answers(status: int = 0, **answer: object) -> corpus.Answers:
    """Return what BEFORE holds, with some of it changed."""
    old = BEFORE["check a.yaml"]["answer"]
    assert isinstance(old, dict)
    return {"check a.yaml": {"status": status, "refusal": "", "answer": old | answer}}


def purpose(folder: Path, *entries: dict[str, object]) -> corpus.OnPurpose:
    (folder / "a.yaml").write_text("server: {policy: vllm}")
    return corpus.OnPurpose([{"reason": "mended"} | entry for entry in entries], folder)


@pytest.mark.parametrize(
    ("after", "place"),
    [
        (answers(load={"rho": 0.5001}), "load.rho: 0.5 is now 0.5001"),
        (answers(load={}), "load.rho: 0.5 is gone"),
        (answers(more=1), "more: 1 is new"),
        (answers(bounds=[1.0, 2.5]), "bounds[1]: 2.0 is now 2.5"),
        (answers(bounds=[1.0]), "bounds: [1.0, 2.0] is now [1.0]"),
        (answers(status=2), "status: 0 is now 2"),
        (answers(load={"rho": None}), "load.rho: 0.5 is now null"),
    ],
)
def test_every_difference_is_named_by_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: corpus.Answers, place: str
) -> None:
    assert corpus.unlisted(BEFORE, after, purpose(tmp_path)) == 1
    assert place in capsys.readouterr().out


def test_the_same_answers_but_for_the_last_digits_are_no_difference(tmp_path: Path) -> None:
    after = answers(load={"rho": 0.5 * (1 + 1e-13)})
    assert corpus.unlisted(BEFORE, after, purpose(tmp_path)) == 0


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ({"keys": ["load.*"]}, 0),
        ({"keys": ["bounds", "load.rho"], "question": "check *", "scenario": "policy: vllm"}, 0),
        ({"keys": ["load.*"], "question": "compare *"}, 1),
        ({"keys": ["load.*"], "scenario": "policy: sglang"}, 1),
        ({"keys": ["bounds*"]}, 1),
    ],
)
def test_a_difference_is_on_purpose_only_where_question_scenario_and_key_are_listed(
    tmp_path: Path, entry: dict[str, object], left: int
) -> None:
    listed = purpose(tmp_path, entry)
    assert corpus.unlisted(BEFORE, answers(load={"rho": 0.7}), listed) == left
    assert listed.met[0] == 1 - left


def test_a_key_that_no_answer_has_any_more_is_lost(tmp_path: Path) -> None:
    """Names that a scenario gives are no keys, and so are not missed."""
    (tmp_path / "a.yaml").write_text("network: {pools: {large: {}, small: {}}}")
    after = answers(load={}, pools={"small": {"replicas": 2}})
    lost = corpus.lost_keys(BEFORE, after, tmp_path)
    assert len(lost) == 1
    assert lost[0].startswith("json check load.rho: ")


def test_a_pattern_says_of_all_keys_of_a_command_that_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "on_purpose.yaml"
    listed.write_text("inventory: {json check *: gone (nobody asked)}")
    monkeypatch.setattr(corpus.inventory, "ON_PURPOSE", listed)
    assert corpus.lost_keys(BEFORE, {"check a.yaml": {"answer": ""}}, tmp_path) == []


def test_every_feature_of_the_old_version_has_a_scenario_or_a_reason(tmp_path: Path) -> None:
    """Counted from the scenarios and questions that are kept."""
    corpus.unpack(tmp_path)
    assert covered.report(corpus.read(corpus.ANSWERS), tmp_path) == 0
