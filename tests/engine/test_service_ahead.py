"""Steps launched ahead through the service loop: pauses, single steps, conditions, cancels, the end."""

import pytest

from engine.commands import Cancel, Pause, RunUntil, SetMode, Shutdown, StepOnce
from engine.core import Engine
from engine.records import Delta, Finished, Paused, Steps
from tests.engine.recorder import with_graphs
from tests.waiting import wait_until_sync

PROMPT = "one two three"


@pytest.fixture
def running(bench, tiny_model_dir):
    """A service whose engine decodes as on a GPU and slowly enough to be met in the middle."""
    flights = []

    class Watched(Engine):
        def step(self, ahead=False):
            record = super().step(ahead)
            flights.append((ahead, self._flight is not None))
            return record

    def make(config, progress):
        engine = Watched(config, progress)
        with_graphs(engine)
        return engine

    made = bench(
        str(tiny_model_dir), make, device="cpu", dtype="float32", max_batch=2, num_blocks=100, block_size=4
    )
    wait_until_sync(lambda: made.engine is not None and made.service.ready, what="the engine")
    made.flights = flights
    return made


def submit(b, session="a", epoch=1, max_tokens=200, **params):
    b.submit(session, epoch, PROMPT, max_tokens, temperature=0, ignore_eos=True, **params)


def told_before(b, event):
    """Records and tokens that arrived before an event."""
    before = b.events[: b.events.index(event)]
    records = [record for event in before if isinstance(event, Steps) for record in event.records]
    return records, sum(len(event.token_ids) for event in before if isinstance(event, Delta))


def in_flight(b):
    wait_until_sync(lambda: any(out for _, out in list(b.flights)[-3:]), what="a step under way")


def test_a_pause_ends_the_step_under_way_and_tells_it_first(running):
    b = running
    submit(b)
    in_flight(b)
    b.post(Pause(True))
    paused = b.wait_for(Paused)
    assert b.engine._flight is None
    steps = len(b.flights)
    records, tokens = told_before(b, paused)
    assert [record.index for record in records] == list(range(1, len(records) + 1))
    (answer,) = b.service._answers.values()
    assert tokens == len(answer.request.output_ids) == sum(len(record.rows) for record in records)
    b.pause()  # it has taken up everything by then
    assert len(b.flights) == steps
    assert len(b.records()) == len(records)


def test_single_steps_are_single(running):
    b = running
    submit(b)
    in_flight(b)
    b.pause()
    (answer,) = b.service._answers.values()
    for _ in range(4):
        before, index = len(answer.request.output_ids), b.records()[-1].index
        b.post(StepOnce())
        wait_until_sync(lambda index=index: b.records()[-1].index > index, what="the step")
        b.pause()
        assert len(answer.request.output_ids) == before + 1
        assert b.records()[-1].index == index + 1
        assert b.engine._flight is None
        assert b.flights[-1] == (False, False)


def test_a_condition_stops_right_behind_its_step_though_a_step_was_under_way(running):
    b = running
    submit(b)
    in_flight(b)
    b.pause()
    wanted = b.records()[-1].index + 30
    b.post(Pause(False))
    in_flight(b)
    b.post(RunUntil("step", step=wanted))
    wait_until_sync(lambda: any(event.reason for event in b.of(Paused)), what="the stop")
    (stop,) = [event for event in b.of(Paused) if event.reason]
    records, _ = told_before(b, stop)
    assert records[-1].index == wanted
    assert b.engine._flight is None
    assert b.flights[-1] == (False, False)


def test_an_answer_that_is_cancelled_with_a_step_under_way_keeps_what_was_told(running):
    b = running
    submit(b, "a")
    submit(b, "b", max_tokens=60)
    in_flight(b)
    b.post(Cancel("a", 1))
    cancelled = b.wait_for(Finished, session="a")
    assert cancelled.reason == "cancelled"
    assert sum(len(delta.token_ids) for delta in b.of(Delta, "a")) == cancelled.output_tokens
    assert b.wait_for(Finished, session="b").output_tokens == 60
    submit(b, "a", epoch=2, max_tokens=5)
    assert b.wait_for(Finished, 2, session="a").output_tokens == 5
    wait_until_sync(lambda: not b.engine.has_work, what="the end")
    b.pause()
    assert b.engine.pool.counts().used == 0
    assert [record.index for record in b.records()] == list(range(1, len(b.records()) + 1))


def test_the_loop_comes_to_rest_behind_the_last_step_under_way(running):
    b = running
    submit(b, max_tokens=30, stop_token_ids=(), stop=("\ufffd",))
    b.wait_for(Finished)
    wait_until_sync(lambda: not b.engine.has_work, what="the end")
    assert b.engine._flight is None
    b.pause()
    counts = b.records()[-1].blocks
    assert counts.used == 0


def test_a_mode_that_changes_with_a_step_under_way_is_that_of_the_next_launch(running):
    b = running
    submit(b)
    in_flight(b)
    b.post(SetMode("eager"))
    b.wait_for(Finished)
    b.pause()
    modes = [record.mode for record in b.records() if record.decode_tokens]
    change = modes.index("eager")
    assert set(modes[:change]) == {"graph"}
    assert set(modes[change:]) == {"eager"}


def test_it_leaves_with_a_step_under_way(running):
    b = running
    submit(b)
    in_flight(b)
    b.post(Shutdown())
    b.thread.join(10)
    assert not b.thread.is_alive()
    assert b.healthy
    assert b.engine._flight is None
