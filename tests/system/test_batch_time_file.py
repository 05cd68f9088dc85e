"""What must be true of batch times as YAML."""

import pytest

from penstock.errors import InputError
from penstock.system.batch_time import Affine, BatchTime, Composition, Hinge, PiecewiseConstant
from penstock.system.batch_time_file import BatchTimeFile, read_batch_time, write_batch_time
from penstock.system.measured_times import Measured

MODELS = [
    PiecewiseConstant(11.28e-3, 35.47e-3, 128),
    Affine(0.01, 1e-4),
    Hinge(0.02, 1e-4, 100.5),
    Measured([1, 64, 128], [0.01, 0.0125, 0.02]),
    Composition(Affine(0.01, 1e-4), 1e-10, 2e-10),
    Composition(Measured([1, 64], [0.01, 0.02]), 0, 3e-10, 4e-8, 6e-8, 2e-5),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_what_is_written_is_read_again(model, tmp_path):
    path = tmp_path / "model.yaml"
    written = BatchTimeFile("a model", model, "a test", "CC0", "Llama", "A100", 2, fit={"r2": 0.99, "batches": 12})
    write_batch_time(path, written)
    read = read_batch_time(path)
    assert {**vars(read), "batch_time": None} == {**vars(written), "batch_time": None}
    batches = ([(64, 0)], [30, 40]), ([], [1_000] * 8)
    if not isinstance(model, Measured) and not isinstance(getattr(model, "linear", None), Measured):
        assert [read.batch_time.of_batch(*b) for b in batches] == pytest.approx([model.of_batch(*b) for b in batches])
    assert read.batch_time.of_batch([(8, 5)], [30]) == pytest.approx(model.of_batch([(8, 5)], [30]), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "holds nothing"),
        ("[1, 2]", "mapping"),
        ("description: a\nsource: b\n", "batch_time is missing"),
        ("description: a\nsource: b\nbatch_time: {}\n", "give one of"),
        ("description: a\nsource: b\nbatch_time: {c_ms: 1, a_ms: 2}\n", "b0 missing"),
        ("description: a\nsource: b\nbatch_time: {composition: {self_attention_ns: 1}}\n", "linear is missing"),
        ("description: a\nsource: b\nbatch_time: {composition: {linear: {}, cross: 1}}\n", "cross"),
        ("description: a\nsource: b\nbatch_time: {measured: {tokens: [1, 2], ms: [1]}}\n", "one time per load"),
        ("description: a\nsource: b\nbatch_time: {measured: {tokens: [1], ms: [-1]}}\n", "negative"),
        ("description: a\nbatch_time: {affine: {c_ms: 1, a_ms_per_token: 1}}\n", "source is missing"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(text, part, tmp_path):
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_batch_time(path)
    assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_and_one_that_names_itself_are_refused(tmp_path):
    with pytest.raises(InputError, match="no batch-time file"):
        read_batch_time(tmp_path / "none.yaml")
    path = tmp_path / "itself.yaml"
    path.write_text("description: a\nsource: b\nbatch_time: {file: itself.yaml}\n")
    with pytest.raises(InputError, match="names another file"):
        read_batch_time(path)


def test_a_model_of_ones_own_cannot_be_written(tmp_path):
    class Mine(BatchTime):
        def _seconds(self, tokens):
            return tokens

    with pytest.raises(InputError, match="of your own"):
        write_batch_time(tmp_path / "x.yaml", BatchTimeFile("a", Mine(), "b"))
    with pytest.raises(InputError, match="cannot write"):
        write_batch_time(tmp_path / "none" / "x.yaml", BatchTimeFile("a", MODELS[0], "b"))
