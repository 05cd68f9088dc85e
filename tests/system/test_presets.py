"""What must be true of the presets: the numbers of the paper, by a name."""

import pytest

from penstock.errors import InputError
from penstock.system.presets import HARDWARE, hardware


@pytest.mark.parametrize(("budget", "rate"), [(128, 2_738), (256, 3_114), (512, 3_343), (1_024, 3_471)])
def test_one_a100_carries_what_the_paper_says(budget, rate):
    batch_time = hardware("codellama-34b-a100-tp1").batch_time
    assert budget / float(batch_time(budget)) == pytest.approx(rate, abs=0.5)
    assert batch_time.best_load(budget) == (budget, pytest.approx(rate, abs=0.5))


def test_a_token_budget_of_129_loses_almost_half_of_every_full_batch():
    batch_time = hardware("codellama-34b-a100-tp1").batch_time
    assert 129 / float(batch_time(129)) == pytest.approx(1_569, abs=0.5)
    assert batch_time.capacity(129) == pytest.approx(2_738, abs=0.5)


@pytest.mark.parametrize(("degree", "c_ms", "a_ms"), [(1, 11.28, 35.47), (2, 7.24, 18.03), (4, 6.96, 8.69)])
def test_the_numbers_are_those_of_the_paper(degree, c_ms, a_ms):
    batch_time = hardware(f"codellama-34b-a100-tp{degree}").batch_time
    assert float(batch_time(128)) * 1e3 == pytest.approx(c_ms + a_ms)
    assert float(batch_time(129)) * 1e3 == pytest.approx(c_ms + 2 * a_ms)


@pytest.mark.parametrize("name", HARDWARE)
def test_every_preset_is_found_by_its_name_and_says_where_it_comes_from(name):
    found = hardware(name)
    assert found.name == name
    assert found.source
    assert found.batch_time.capacity(512) > 0


def test_more_accelerators_carry_more():
    capacities = [hardware(f"codellama-34b-a100-tp{degree}").batch_time.capacity(512) for degree in (1, 2, 4)]
    assert capacities == sorted(set(capacities))


@pytest.mark.parametrize("name", ["codellama-34b-a100-tp3", "", None, 3, [], {"a": 1}, "x" * 1_000, "a\nb"])
def test_unknown_hardware_is_refused_in_one_line_with_the_names_there_are(name):
    with pytest.raises(InputError, match=r"unknown hardware .*may stand in its place\).*codellama-34b-a100") as caught:
        hardware(name)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["h100-sxm", "H100", "l40s"])
def test_a_gpu_is_no_hardware_and_the_message_says_what_to_write(name):
    with pytest.raises(InputError, match=rf"{name} is a GPU.*\{{model: Llama-3.1-8B, gpu: {name}\}}"):
        hardware(name)
