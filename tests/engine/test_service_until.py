"""Run until a condition, and questions about blocks, through the service loop."""

import pytest

from engine.commands import Cancel, Inspect, Pause, RunUntil, Shutdown, StepOnce
from engine.core import Engine
from engine.records import BlockDetail, Delta, Failed, Finished, Paused, Ready, Started
from tests.engine.recorder import with_graphs
from tests.engine.serving import Bench


def stop_of(bench, count=1):
    """The ``count``-th time that the engine told what it stopped at, and the records told before."""
    from tests.waiting import wait_until_sync

    def told():
        return [e for e in bench.of(Paused) if e.reason]

    wait_until_sync(lambda: len(told()) >= count, what="the stop")
    stop = told()[count - 1]
    before = bench.events[: bench.events.index(stop)]
    return stop, [record for event in before for record in getattr(event, "records", ())]


# --- with the scripted engine --------------------------------------------------------------------------


def test_it_runs_and_pauses_exactly_behind_the_step_and_tells_the_step_first(bench):
    b = bench()
    b.pause()
    b.submit(max_tokens=100)
    b.post(RunUntil("step", step=33))
    stop, records = stop_of(b)
    assert b.of(Paused)[-2:] == [Paused(False), Paused(True, "step 33 was run")]
    assert [record.index for record in records] == list(range(1, 34))
    told = [e for e in b.events[: b.events.index(stop)] if isinstance(e, Delta)]
    assert sum(len(delta.token_ids) for delta in told) == 33
    b.post(StepOnce())
    b.wait_for(Paused)
    b.post(Pause(False))
    assert b.wait_for(Finished).output_tokens == 100


def test_a_running_engine_is_stopped_at_the_next_block_of_that_session(bench):
    b = bench("fake?step_s=0.001&block_size=8")
    b.submit("a", prompt="x" * 8, max_tokens=10_000)
    b.submit("b", prompt="x" * 12, max_tokens=10_000)
    b.wait_for(Started, 2)
    b.post(RunUntil("allocation", "b"))
    stop, records = stop_of(b)
    request = b.of(Started, "b")[0].request
    (change,) = [c for c in records[-1].block_changes if c.request == request]
    assert stop.reason == f"block {change.block} was allocated to b at step {records[-1].index}"


def test_a_second_condition_takes_the_place_of_the_first(bench):
    b = bench()
    b.pause()
    b.submit(max_tokens=60)
    b.post(RunUntil("step", step=10), RunUntil("step", step=20))
    assert stop_of(b)[0].reason == "step 20 was run"


def test_a_pause_ends_the_wait(bench):
    b = bench("fake?step_s=0.001")
    b.submit(max_tokens=120)
    b.post(RunUntil("step", step=100), Pause(True))
    b.wait_for(Paused, 2)
    b.post(Pause(False))
    assert b.wait_for(Finished).output_tokens == 120
    assert not [event for event in b.of(Paused) if event.reason]


def test_a_single_step_while_it_waits_changes_nothing(bench):
    b = bench("fake?step_s=0.001")
    b.submit(max_tokens=100)
    b.post(RunUntil("step", step=50), StepOnce())
    _, records = stop_of(b)
    assert records[-1].index == 50


def test_work_that_ends_before_pauses_with_a_reason_that_says_so(bench):
    b = bench()
    b.pause()
    b.submit(max_tokens=5)
    b.post(RunUntil("eviction"))
    stop, _ = stop_of(b)
    assert stop == Paused(True, "the work ended at step 5, before an eviction")
    assert b.events.index(b.of(Finished)[0]) < b.events.index(stop)
    b.submit(epoch=2)
    b.wait_for(Started, 2)
    assert len(b.of(Finished)) == 1  # it is paused


def test_a_cancel_that_takes_the_last_work_away_ends_the_wait(bench):
    b = bench("fake?step_s=0.001")
    b.submit(max_tokens=10_000)
    b.post(RunUntil("preemption"))
    b.wait_for(Delta, 2)
    b.post(Cancel("a", 1))
    stop, records = stop_of(b)
    assert stop.reason == f"the work ended at step {records[-1].index}, before a preemption"


def test_an_idle_engine_waits_for_work_and_stops_in_it(bench):
    b = bench()
    b.post(RunUntil("allocation"))
    b.wait_for(Paused)
    b.submit(max_tokens=50)
    stop, records = stop_of(b)
    assert (stop.reason, len(records)) == ("block 1 was allocated to a at step 1", 1)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (RunUntil("finished", "nobody"), "Session 'nobody' is unknown to the engine"),
        (RunUntil("step", step=3), "Step 3 cannot be waited for: the engine is at 5."),
        (Inspect(99_999), "There is no block 99999; the blocks are 0 to 1024."),
        (Inspect(-1), "There is no block -1"),
    ],
)
def test_nonsense_is_one_clear_line_and_a_paused_engine_stays_paused(bench, command, words):
    b = bench()
    b.submit(max_tokens=5)
    b.wait_for(Finished)
    b.pause()
    b.post(command)
    failed = b.wait_for(Failed)
    assert (failed.title, failed.fatal) == ("command ignored", False)
    assert words in failed.message
    assert b.of(Paused) == [Paused(True)]


def test_the_scripted_engine_tells_what_its_blocks_hold(bench):
    b = bench("fake?block_size=8")
    b.pause()
    b.submit(prompt="hello there", max_tokens=50)
    b.post(RunUntil("step", step=3))
    stop_of(b)
    b.post(Inspect(0), Inspect(1), Inspect(2), Inspect(3))
    b.wait_for(BlockDetail, 4)
    null, first, second, free = b.of(BlockDetail)
    assert (null.references, null.token_ids) == (0, [])
    assert ("".join(first.pieces), first.references, first.step) == ("hello th", 1, 3)
    # The third answer token is not computed yet: three of the prompt and two of the answer are in the block.
    assert second.pieces == ["e", "r", "e", "one ", "two "]
    assert second.token_ids == [*b"ere", 0, 1]
    assert (free.references, free.last_used) == (0, 0)


# --- with the real engine ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tiny_model_dir):
    """A service over a small real engine with stand-ins for graphs, few blocks and a prefix cache."""

    def make(config, progress):
        engine = Engine(config, progress)
        with_graphs(engine)
        return engine

    made = Bench(
        str(tiny_model_dir), make, device="cpu", dtype="float32", num_blocks=14, block_size=16,
        max_batch=4, max_model_len=160,
    )  # fmt: skip
    made.wait_for(Ready)
    yield made
    made.post(Shutdown())
    made.thread.join(20)


FULFILLED = {
    "allocation": lambda r, before: any(c.kind in ("allocate", "copy") for c in r.block_changes),
    "eviction": lambda r, before: any(c.kind == "evict" for c in r.block_changes),
    "prefix_hit": lambda r, before: r.cached_tokens > 0 or any(c.kind == "share" for c in r.block_changes),
    "preemption": lambda r, before: bool(r.preempted),
    "finished": lambda r, before: bool(r.finished),
    "graph_change": lambda r, before: (
        bool(before) and r.decode_tokens > 0 and before[-1].graph_size != r.graph_size
    ),
}


@pytest.mark.parametrize("kind", FULFILLED)
def test_the_real_engine_stops_at_the_first_step_that_fulfils_a_condition(real, kind):
    stops = sum(bool(event.reason) for event in real.of(Paused))
    real.pause()
    for number in range(4):
        real.submit(
            f"{kind}{number}",
            prompt="once upon a time " * (1 + 3 * (number % 2)),
            max_tokens=20 + 20 * number,
            temperature=0,
            ignore_eos=True,
        )
    began = real.records()[-1].index if real.records() else 0
    real.post(RunUntil(kind))
    stop, records = stop_of(real, stops + 1)
    decoding = [record for record in records if record.decode_tokens]
    new = [record for record in records if record.index > began]

    def fulfilled(record):
        return FULFILLED[kind](record, [other for other in decoding if other.index < record.index])

    assert [fulfilled(record) for record in new] == [False] * (len(new) - 1) + [True]
    assert f"step {new[-1].index}" in stop.reason
    real.post(Pause(False))
    for number in range(4):
        real.wait_for(Finished, 1, f"{kind}{number}")


def test_pieces_and_ends_of_the_real_engine_give_the_text_of_every_token(real):
    real.submit("text", prompt="naïve café 😀", max_tokens=40, temperature=0, ignore_eos=True)
    real.wait_for(Finished, 1, "text")
    started = real.of(Started, "text")[0]
    assert len(started.pieces) == len(started.prompt_ids)
    assert "user\nna" in "".join(started.pieces)
    assert "\ufffd" in "".join(started.pieces)
    ends = [end for delta in real.of(Delta, "text") for end in delta.ends]
    assert len(ends) == 40
    assert ends == sorted(ends)
    assert ends[-1] == len(real.text("text"))


def test_a_question_while_it_runs_is_answered_between_two_steps(real):
    real.submit("ask", prompt="once upon a time " * 3, max_tokens=60, temperature=0, ignore_eos=True)
    real.wait_for(Started, 1, "ask")
    for block in range(14):
        real.post(Inspect(block))
    real.wait_for(Finished, 1, "ask")
    details = real.of(BlockDetail)
    assert [detail.block for detail in details] == list(range(14))
    assert any(detail.references for detail in details)
