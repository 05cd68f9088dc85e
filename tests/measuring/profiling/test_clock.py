"""A paced clock goes by work: a machine of half the speed has half as many seconds to the hour."""

import pytest

from penstock.measuring.profiling.clock import EVERY_S, PacedClock


class Machine:
    """Real time passes only as told; its work takes a tenth of a second, times how slow it is."""

    def __init__(self) -> None:
        self.now = 5.0
        self.slowness = 1.0

    def work(self) -> None:
        self.now += 0.1 * self.slowness

    def compute(self, clock: PacedClock, seconds: float) -> None:
        """Run batches of 10 ms of work until they are done."""
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01 * self.slowness
            clock.between_batches()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> PacedClock:
    return PacedClock(machine.work, lambda: machine.now)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_the_same_work_takes_the_same_time_however_slow_the_machine(machine, clock, slowness):
    machine.slowness = slowness
    machine.compute(clock, 1.0)  # the clock notices within a look
    begin = clock()
    machine.compute(clock, 10.0)
    assert clock() - begin == pytest.approx(10.0, rel=1e-9)


def test_the_clock_stands_still_while_it_looks_at_the_pace(machine, clock):
    machine.now += EVERY_S
    begin, real = clock(), machine.now
    clock.between_batches()
    assert machine.now > real
    assert clock() == begin


def test_a_change_of_pace_is_missed_for_one_look_at_most(machine, clock):
    machine.compute(clock, 1.0)
    begin = clock()
    machine.slowness = 1.5
    machine.compute(clock, 20.0)
    assert abs(clock() - begin - 20.0) <= EVERY_S
    assert clock.paces[0] == 1.0
    assert clock.paces[-1] == pytest.approx(1.5)


def test_between_looks_the_clock_goes_on(machine, clock):
    looks = len(clock.paces)
    machine.now += EVERY_S / 2
    clock.between_batches()
    assert len(clock.paces) == looks
    assert clock() > 0
