"""The service loop: commands in, steps, events out. Against a scripted engine, in this process."""

import time

import pytest

from engine.commands import Cancel, Load, Pause, SetMode, StepOnce
from engine.config import EngineConfig
from engine.records import (
    BlockSnapshot,
    Delta,
    Failed,
    Finished,
    ModeChanged,
    Paused,
    Progress,
    Ready,
    Rejected,
    Started,
    Steps,
)
from engine.service import EngineService
from tests.engine.fakes import FakeEngine
from tests.engine.serving import Bench
from tests.waiting import wait_until_sync


def test_an_answer_is_started_streamed_and_finished_with_its_ids(bench):
    b = bench()
    b.submit(max_tokens=12)
    done = b.wait_for(Finished)
    assert isinstance(b.events[0], Progress)
    assert b.of(Ready)[0].status.model_name == "Fake-1B"
    assert b.of(Started)[0] == Started("a", 1, 1, list(b"hello"), list("hello"), seed=0)
    assert b.text() == "one two three four five six seven eight nine ten one two "
    assert [i for delta in b.of(Delta) for i in delta.token_ids] == list(range(12))
    assert (done.reason, done.prompt_tokens, done.output_tokens, done.epoch) == ("length", 5, 12, 1)
    assert done.ttft_s is not None
    assert done.decode_tokens_per_s is not None
    assert b.events.index(done) > b.events.index(b.of(Delta)[-1])


def test_text_comes_at_most_thirty_times_a_second_but_the_first_token_at_once(bench):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=250)
    b.wait_for(Finished)
    deltas = b.of(Delta)
    assert len(deltas[0].token_ids) == 1
    span = b.times[b.events.index(deltas[-1])] - b.times[b.events.index(deltas[0])]
    assert len(deltas) <= span * 30 + 2
    assert len(deltas) >= span * 15


def test_every_step_reaches_the_reader_in_ten_batches_a_second(bench):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=250)
    b.wait_for(Finished)
    wait_until_sync(lambda: sum(len(s.records) for s in b.of(Steps)) == 250)
    assert [record.index for record in b.records()] == list(range(1, 251))
    span = b.times[b.events.index(b.of(Steps)[-1])] - b.times[b.events.index(b.of(Steps)[0])]
    assert len(b.of(Steps)) <= span * 10 + 2


def test_the_last_records_come_at_once_when_the_engine_goes_idle(bench):
    b = bench()
    b.submit(max_tokens=3)
    b.wait_for(Finished)
    wait_until_sync(lambda: b.records() and b.records()[-1].finished == (1,), timeout_s=0.09)


def test_an_idle_engine_burns_nothing(bench):
    b = bench()
    b.submit(max_tokens=3)
    b.wait_for(Finished)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.01


def test_two_sessions_share_a_step(bench):
    b = bench("fake?step_s=0.005")
    b.submit("a", max_tokens=30)
    b.submit("b", max_tokens=30)
    b.wait_for(Finished, 2)
    wait_until_sync(lambda: max(record.active for record in b.records()) == 2)


def test_a_cancelled_answer_keeps_its_text_and_gives_its_blocks_back(bench):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=10_000)
    b.wait_for(Delta, 3)
    b.post(Cancel("a", 1))
    done = b.wait_for(Finished)
    assert (done.reason, done.output_tokens) == ("cancelled", len(b.text().split()))
    snapshot = b.wait_for(BlockSnapshot)  # no step follows that could tell of the release
    assert snapshot.owners == []
    b.engine.check()


def test_a_queued_request_cancelled_is_idle_at_once(bench):
    b = bench("fake?step_s=0.002", max_batch=1)
    b.submit("a", max_tokens=10_000)
    b.wait_for(Delta, 1)
    b.submit("b")
    b.wait_for(Started, 1, "b")
    b.post(Cancel("b", 1))
    assert b.wait_for(Finished, 1, "b").reason == "cancelled"
    b.submit("b", epoch=2)
    assert b.wait_for(Started, 2, "b").epoch == 2


@pytest.mark.parametrize("session_epoch", [("a", 2), ("nobody", 1)])
def test_a_cancel_of_an_unknown_answer_is_ignored(bench, session_epoch):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=30)
    b.post(Cancel(*session_epoch))
    assert b.wait_for(Finished).reason == "length"


def test_a_refused_request_is_told_to_its_session_and_others_go_on(bench):
    b = bench("fake?max_model_len=64")
    b.submit("a", prompt="x" * 64)
    b.submit("b")
    refused = b.wait_for(Rejected)
    assert (refused.session, refused.epoch, refused.message) == (
        "a",
        1,
        "The prompt has 64 tokens; the limit is 64.",
    )
    assert b.wait_for(Finished).session == "b"


def test_a_second_answer_of_the_same_epoch_is_refused(bench):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=50)
    b.submit()
    assert "under way" in b.wait_for(Rejected).message
    assert b.wait_for(Finished).output_tokens == 50


def test_an_error_in_one_request_ends_that_request_only(bench):
    b = bench()
    b.submit("a", prompt="!error")
    b.submit("b", max_tokens=40)
    failed = b.wait_for(Finished, 1, "a")
    assert (failed.reason, failed.error) == ("error", "the sampler failed")
    assert b.wait_for(Finished, 1, "b").reason == "length"
    assert not b.of(Failed)


@pytest.mark.parametrize(
    ("prompt", "title", "words"),
    [("!device", "device failed", "fell over"), ("!bug", "device failed", "RuntimeError: a bug in a step")],
)
def test_a_failed_device_ends_every_answer_with_the_reason_and_its_text(bench, prompt, title, words):
    b = bench()
    b.submit("a", prompt=prompt)
    b.submit("b")
    failed = b.wait_for(Failed)
    assert (failed.title, failed.fatal) == (title, True)
    assert words in failed.message
    assert failed.hint
    for session in "ab":
        done = b.wait_for(Finished, 1, session)
        assert done.reason == "error"
        assert words in done.error
        assert b.text(session).startswith("one two ")
    b.thread.join(5)
    assert b.healthy is False
    assert b.engine.closed


@pytest.mark.parametrize(
    ("load", "title", "message", "hint"),
    [
        ("error", "model not loaded", "The fake model was told not to load.", "Take another one."),
        ("bug", "engine not started", "RuntimeError: a bug in loading", "The log has the traceback."),
    ],
)
def test_a_model_that_does_not_load_is_told_with_the_way_out(bench, load, title, message, hint):
    b = bench(f"fake?load={load}")
    assert b.wait_for(Failed) == Failed(title, message, hint)
    b.thread.join(5)
    assert b.healthy is False


def test_an_app_of_another_version_is_told_so(bench):
    b = Bench.__new__(Bench)
    b.events, b.times, b.congested = [], [], False
    service = EngineService(b, FakeEngine)
    service.post(Load(EngineConfig(), version=99))
    assert service.run() is False
    assert "version 99" in b.events[0].message


def test_a_paused_engine_takes_requests_and_steps_only_when_told(bench):
    b = bench()
    b.post(Pause(True))
    b.wait_for(Paused)
    b.submit(max_tokens=5)
    b.wait_for(Started)
    time.sleep(0.05)
    assert not b.of(Delta)
    for steps in (1, 2):
        b.post(StepOnce())
        wait_until_sync(lambda steps=steps: [r.index for r in b.records()] == list(range(1, steps + 1)))
    assert b.text() == "one two "
    b.post(Pause(False))
    assert b.wait_for(Finished).output_tokens == 5


def test_a_single_step_of_a_running_engine_leaves_it_running(bench):
    b = bench()
    b.post(StepOnce())
    b.submit(max_tokens=5)
    assert b.wait_for(Finished).output_tokens == 5


def test_pausing_shows_the_text_that_was_held_for_its_interval(bench):
    b = bench("fake?step_s=0.002")
    b.submit(max_tokens=10_000)
    b.wait_for(Delta, 2)
    b.post(Pause(True))
    b.wait_for(Paused)
    wait_until_sync(lambda: b.records() and len(b.text().split()) == b.records()[-1].index)


def test_the_mode_changes_between_steps_and_no_request_is_lost(bench):
    b = bench("fake?step_s=0.002&graphs=1")
    b.submit(max_tokens=60)
    b.wait_for(Delta, 1)
    b.post(SetMode("eager"))
    assert b.wait_for(ModeChanged) == ModeChanged("eager", "")
    b.wait_for(Finished)
    wait_until_sync(lambda: b.records()[-1].finished)
    modes = [record.mode for record in b.records() if record.kind == "decode"]
    assert modes == sorted(modes, reverse=True)
    assert set(modes) == {"graph", "eager"}


def test_graphs_that_cannot_be_had_are_answered_with_the_reason(bench):
    b = bench()
    b.post(SetMode("graph"))
    assert b.wait_for(ModeChanged) == ModeChanged("eager", "no CUDA device")


def test_under_pressure_records_are_counted_as_dropped_and_a_snapshot_follows(bench):
    b = bench("fake?step_s=0.002")
    b.congested = True
    b.submit("a", max_tokens=150)
    b.submit("b", max_tokens=10_000)
    b.wait_for(Finished, 1, "a")
    assert not b.records()
    b.congested = False
    wait_until_sync(lambda: b.of(BlockSnapshot))
    first = b.of(Steps)[0]
    assert first.dropped == first.records[0].index - 1 > 0
    snapshot = b.of(BlockSnapshot)[0]
    assert b.events.index(snapshot) == b.events.index(first) + 1
    assert snapshot.step == first.records[-1].index
    assert {owner.request for owner in snapshot.owners} == {2}


def test_under_pressure_no_token_and_no_finish_is_lost(bench):
    b = bench("fake?step_s=0.001")
    b.congested = True
    b.submit("a", max_tokens=100)
    b.submit("b", max_tokens=150)
    b.wait_for(Finished, 2)
    for session, count in (("a", 100), ("b", 150)):
        assert [i for d in b.of(Delta, session) for i in d.token_ids] == list(range(count))
        assert len(b.of(Delta, session)) == 1  # held together while the reader is behind


def test_dropped_records_are_owned_up_to_when_the_engine_goes_idle(bench):
    b = bench("fake?step_s=0.001")
    b.congested = True
    b.submit(max_tokens=50)
    b.wait_for(Finished)
    snapshot = b.wait_for(BlockSnapshot)
    assert (b.of(Steps)[-1].dropped, b.of(Steps)[-1].records) == (50, [])
    assert (snapshot.step, snapshot.owners) == (50, [])
