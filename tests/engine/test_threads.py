"""The number of threads follows what is faster now."""

import sys
import time

from engine.process import EngineProcess
from engine.threads import FIRST_TRIAL_AFTER, SPINS, TRIAL_EVERY, TRIAL_STEPS, ThreadGovernor, limit_spinning


class Machine:
    """Step times as measured on two cores: spinning threads are fast alone and terrible in company."""

    def __init__(self, most: int = 2) -> None:
        self.threads = most
        self.busy = False
        self.used: list[int] = []
        self.governor = ThreadGovernor(most, self.set_threads)

    def set_threads(self, threads: int) -> None:
        self.threads = threads

    def run(self, steps: int, batch: int = 1) -> None:
        for _ in range(steps):
            self.used.append(self.threads)
            ms = (230.0 if self.busy else 42.0) if self.threads > 1 else (70.0 if self.busy else 62.0)
            self.governor.observe(batch, ms)


def test_a_quiet_machine_stays_with_all_threads_and_trials_are_rare():
    machine = Machine()
    machine.run(1000)
    assert machine.threads == 2
    assert machine.used.count(1) < 0.06 * 1000


def test_a_busy_neighbour_leads_to_one_thread_within_twenty_steps():
    machine = Machine()
    machine.run(200)
    machine.busy = True
    machine.run(20)
    assert machine.governor.threads == 1


def test_a_machine_that_is_busy_from_the_start_is_noticed_soon():
    machine = Machine()
    machine.busy = True
    machine.run(TRIAL_STEPS + 5)
    assert machine.governor.threads == 1


def test_quick_steps_are_tried_otherwise_after_their_number():
    machine = Machine()
    for _ in range(1 + FIRST_TRIAL_AFTER):  # the first one tells the batch
        assert machine.threads == 2
        machine.governor.observe(1, 5.0)
    assert machine.threads == 1


def test_all_threads_come_back_when_the_neighbour_goes():
    machine = Machine()
    machine.busy = True
    machine.run(50)
    assert machine.governor.threads == 1
    machine.busy = False
    machine.run(TRIAL_EVERY + 10)
    assert machine.governor.threads == 2


def test_another_batch_size_is_no_slowdown_and_ends_a_trial():
    machine = Machine()
    machine.run(TRIAL_STEPS + 3)
    assert machine.threads == 1, "in the middle of a trial"
    machine.run(1, batch=4)
    assert machine.threads == machine.governor.threads == 2


def test_a_released_governor_leaves_all_threads():
    machine = Machine()
    machine.busy = True
    machine.run(50)
    machine.governor.release()
    assert machine.threads == 2


def test_a_single_core_is_left_alone():
    machine = Machine(most=1)
    machine.run(300)
    assert set(machine.used) == {1}


def test_waiting_threads_sleep_soon_unless_the_user_said_how_they_wait():
    nothing: dict[str, str] = {}
    limit_spinning(nothing)
    assert 1_000 <= int(nothing["GOMP_SPINCOUNT"]) <= 100_000
    for given in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        environment = dict(given)
        limit_spinning(environment)
        assert environment == given


def test_the_engine_process_is_started_with_threads_that_sleep_soon(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    show = "import os; print('spins', os.environ.get('GOMP_SPINCOUNT'))"
    process = EngineProcess(None, (sys.executable, "-c", show))
    while process.running:
        time.sleep(0.01)
    assert f"spins {SPINS}" in process.end_of()
