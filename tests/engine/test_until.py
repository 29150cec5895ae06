"""Behind which step ``RunUntil`` stops, and how that is told: every condition over given records."""

import pytest

from engine.commands import RunUntil
from engine.errors import RequestError
from engine.records import BlockChange, BlockCounts, StepRecord, StepTimes
from engine.until import REMEMBERED, StepWatch


def record(index, changes=(), decode=1, graph=None, **fields):
    return StepRecord(
        index=index,
        t=0.0,
        kind="decode",
        mode="graph" if graph else "eager",
        reason="" if graph else "mode is eager",
        graph_size=graph,
        active=decode,
        waiting=0,
        prefill_tokens=0,
        cached_tokens=fields.pop("cached", 0),
        decode_tokens=decode,
        ms=StepTimes(1, 0, 1, None, 0),
        blocks=BlockCounts(0, 0, 9),
        block_changes=tuple(BlockChange(*change) for change in changes),
        **fields,
    )


def watch(*command):
    """A watch that knows request 1 of session a and request 2 of session b."""
    made = StepWatch()
    made.submitted(1, "a")
    made.submitted(2, "b")
    if command:
        made.start(RunUntil(*command))
    return made


EVENTS = {
    "allocation": (record(7, [("allocate", 3, 2, 0)]), "block 3 was allocated to b at step 7"),
    "prefix_hit": (
        record(7, [("share", 3, 2, 0), ("share", 4, 2, 1)], cached=32),
        "b shares block 3 and 1 more, a prefix hit at step 7",
    ),
    "preemption": (record(7, preempted=(2,)), "b was preempted at step 7"),
    "finished": (record(7, finished=(2,)), "b finished at step 7"),
}


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_stops_the_watch_of_its_session_and_of_any_and_of_no_other(kind):
    event, reason = EVENTS[kind]
    for session, expected in (("", reason), ("b", reason), ("a", "")):
        made = watch(kind, session)
        assert made.observe(record(6, [("publish", 9, 1, 0), ("release", 8, 1, 0)])) == ""
        assert made.observe(event) == expected
        assert made.waiting is not bool(expected)


def test_a_copy_on_write_is_an_allocation():
    changes = [("release", 5, 1, 0), ("copy", 6, 1, 0)]
    assert watch("allocation").observe(record(1, changes)) == "block 6 was allocated to a at step 1"


def test_cached_tokens_are_a_prefix_hit_also_where_no_block_was_shared():
    words = "16 prompt tokens were found in the cache at step 1"
    assert watch("prefix_hit").observe(record(1, cached=16)) == words


def test_an_evicted_block_belongs_to_the_session_that_held_it_last():
    for session, found in (("a", False), ("b", True), ("", True)):
        made = watch("eviction", session)
        made.observe(record(1, [("allocate", 3, 1, 0), ("share", 3, 2, 0)]))
        made.observe(record(2, [("release", 3, 1, 0), ("release", 3, 2, 0)]))
        # Evicted for request 1, which takes the block in the same step.
        reason = made.observe(record(3, [("evict", 3), ("allocate", 3, 1, 1)]))
        assert reason == ("block 3 of b was evicted at step 3" if found else "")


def test_an_eviction_in_the_step_of_the_release_is_seen_in_order():
    made = watch("eviction", "a")
    changes = [("allocate", 3, 1, 0), ("release", 3, 1, 0), ("evict", 3), ("allocate", 3, 2, 0)]
    assert made.observe(record(1, changes)) == "block 3 of a was evicted at step 1"


def test_an_evicted_block_of_a_session_that_is_long_forgotten_has_no_name():
    assert (
        watch("eviction").observe(record(1, [("evict", 3)]))
        == "block 3 of nobody known was evicted at step 1"
    )


def test_a_cancelled_answer_has_not_finished():
    made = watch("finished")
    made.ended(1)
    assert made.observe(record(1, finished=(1,))) == ""
    assert made.observe(record(2, finished=(2,))) == "b finished at step 2"


def test_a_change_of_graph_is_between_decode_steps_and_the_first_is_none():
    made = watch("graph_change")
    assert made.observe(record(1, graph=4)) == ""
    assert made.observe(record(2, decode=0)) == ""  # a prefill between them is no decode step
    assert made.observe(record(3, graph=4)) == ""
    words = "step 4 replayed the graph of 8, the decode step before it replayed the graph of 4"
    assert made.observe(record(4, graph=8)) == words
    made.start(RunUntil("graph_change"))
    assert made.observe(record(5)) == "step 5 ran eager, the decode step before it replayed the graph of 8"


def test_the_graph_before_the_watch_began_counts():
    made = watch()
    made.observe(record(1, graph=2))
    made.start(RunUntil("graph_change"))
    assert made.observe(record(2, graph=1)).startswith("step 2 replayed the graph of 1")


def test_eager_means_a_decode_step_and_no_prefill():
    made = watch("eager")
    assert made.observe(record(1, decode=0)) == ""
    assert made.observe(record(2, graph=1)) == ""
    assert made.observe(record(3)) == "step 3 decoded eager: mode is eager"


def test_a_step_by_number_is_stopped_behind():
    made = watch("step", "", 1_412)
    assert [made.observe(record(index)) for index in (10, 1_411, 1_412)] == ["", "", "step 1,412 was run"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("step", "", 5), "Step 5 cannot be waited for: the engine is at 5."),
        (("step", "", -1), "Step -1 cannot"),
        (("allocation", "c"), "Session 'c' is unknown"),
    ],
)
def test_what_can_never_happen_is_refused_and_the_wait_before_stays(command, words):
    made = watch("step", "", 7)
    made.observe(record(5))
    with pytest.raises(RequestError, match=words):
        made.start(RunUntil(*command))
    assert made.observe(record(6)) == ""
    assert made.observe(record(7)) == "step 7 was run"


def test_the_end_of_the_work_ends_a_wait_that_had_begun_and_no_other():
    made = watch("eviction", "a")
    assert made.out_of_work() == ""  # nothing ran yet: it waits for work
    made.observe(record(9))
    assert made.out_of_work() == "the work ended at step 9, before an eviction of a"
    assert made.out_of_work() == ""


def test_sessions_of_old_requests_are_forgotten_but_never_those_under_way():
    made = watch()
    for request in range(3, REMEMBERED + 50):
        made.submitted(request, f"s{request}")
        made.ended(request)
    assert len(made._sessions) == REMEMBERED
    made.start(RunUntil("preemption", "a"))
    assert made.observe(record(1, preempted=(1,))) == "a was preempted at step 1"
