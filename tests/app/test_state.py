"""The state without a screen: what a user can do, and what the engine's events make of it."""

import pytest
from msgspec.structs import replace

from engine.commands import AnyCommand, Cancel, Message, SetMode, StepOnce, Submit
from engine.records import (
    Delta,
    Failed,
    Finished,
    ModeChanged,
    Paused,
    Ready,
    Rejected,
    Started,
    StepRow,
    Steps,
)
from tests.app.scripted import NO_CUDA, engine_status, step
from tui_infer.pane_layout import grid
from tui_infer.session import letter_of
from tui_infer.state import AppState


@pytest.fixture
def sent() -> list[AnyCommand]:
    return []


@pytest.fixture
def state(sent: list[AnyCommand]) -> AppState:
    state = AppState(sent.append)
    state.apply(Ready(engine_status()))
    return state


def finished(session: str, epoch: int, reason: str = "stop", error: str = "") -> Finished:
    return Finished(session, epoch, reason, 3, 2, 0, 0.1, 50.0, error)


def answer(state: AppState, text: str, ids: list[int]) -> None:
    """The engine answers the focused chat's prompt."""
    session = state.current
    state.apply(Started(session.id, session.epoch, 7, [1, 2, 3, *session.history_ids]))
    state.apply(Delta(session.id, session.epoch, text, ids))
    state.apply(finished(session.id, session.epoch))


# --- turns -----------------------------------------------------------------------------------------


def test_a_turn_goes_from_queued_over_prefill_to_streaming_to_idle(state: AppState) -> None:
    session = state.current
    assert state.submit(session.id, "hi")
    assert session.status == "queued"
    state.apply(Started(session.id, 1, 7, [1, 2, 3]))
    assert session.status == "queued"
    state.apply(Steps([step(0, [StepRow(7, 3, 3, True)])]))
    assert session.status == "prefill"
    state.apply(Delta(session.id, 1, "He", [4]))
    assert session.status == "streaming"
    state.apply(Delta(session.id, 1, "llo", [5]))
    state.apply(finished(session.id, 1))
    assert session.status == "idle"
    assert session.turns[-1].text == "Hello"
    assert session.turns[-1].stats is not None


def test_a_preempted_chat_waits_until_it_is_computed_again(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "hi")
    state.apply(Started(session.id, 1, 7, [1, 2, 3]))
    state.apply(Delta(session.id, 1, "He", [4]))
    state.apply(Steps([replace(step(4, [StepRow(9, 4, 1, False)]), preempted=(7,))]))
    assert session.status == "queued"
    state.apply(Delta(session.id, 1, "l", [5]))  # computed before, and sent a little later
    state.apply(Steps([step(5, [StepRow(9, 5, 1, False)])]))
    assert session.status == "queued"
    assert session.turns[-1].text == "Hel"
    state.apply(Steps([step(6, [StepRow(7, 4, 4, True)])]))
    assert session.status == "prefill"
    state.apply(Delta(session.id, 1, "lo", [6]))
    assert session.status == "streaming"


def test_a_chat_that_was_preempted_and_computed_again_within_a_report_streams_on(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "hi")
    state.apply(Started(session.id, 1, 7, [1, 2, 3]))
    state.apply(Delta(session.id, 1, "Hello", [4, 5]))
    away = replace(step(4, [StepRow(9, 4, 1, False)]), preempted=(7,))
    state.apply(Steps([away, step(5, [StepRow(7, 4, 4, True)])]))
    assert session.status == "streaming"
    state.apply(finished(session.id, 1))
    state.apply(Steps([away]))  # late: the answer is done
    assert session.status == "idle"


def test_the_next_turn_sends_token_ids_and_only_the_new_message(
    state: AppState, sent: list[AnyCommand]
) -> None:
    state.submit(state.focused, "one")
    answer(state, "first", [10, 11])
    state.submit(state.focused, "two")
    first, second = [command for command in sent if isinstance(command, Submit)]
    assert first.history is None
    assert second.history == [1, 2, 3, 10, 11]
    assert second.prompt == [Message("user", "two")]
    assert second.epoch == first.epoch + 1


def test_the_system_prompt_is_sent_once(sent: list[AnyCommand]) -> None:
    state = AppState(sent.append, system="be brief")
    state.apply(Ready(engine_status()))
    state.submit(state.focused, "one")
    answer(state, "x", [9])
    state.submit(state.focused, "two")
    first, second = [command for command in sent if isinstance(command, Submit)]
    assert first.prompt == [Message("system", "be brief"), Message("user", "one")]
    assert second.prompt == [Message("user", "two")]


def test_a_prompt_sent_while_loading_waits_for_ready(sent: list[AnyCommand]) -> None:
    state = AppState(sent.append)
    state.submit(state.focused, "early")
    assert sent == []
    assert state.current.status == "queued"
    state.apply(Ready(engine_status()))
    assert [command.prompt for command in sent if isinstance(command, Submit)] == [[Message("user", "early")]]


def test_only_what_was_typed_is_told_to_be_refused_by_a_recording(state: AppState) -> None:
    state.read_only = "This is a recording."
    assert not state.submit(state.focused, "  ")
    assert not state.notices
    assert not state.submit(state.focused, "612")
    assert [notice.title for notice in state.notices] == ["Not sent"]


def test_empty_prompts_and_busy_chats_send_nothing(state: AppState, sent: list[AnyCommand]) -> None:
    assert not state.submit(state.focused, " \n ")
    state.submit(state.focused, "one")
    assert not state.submit(state.focused, "two")
    assert len(sent) == 1


# --- cancel and late events ------------------------------------------------------------------------


def test_a_queued_request_cancelled_is_idle_at_once_and_the_next_send_works(
    state: AppState, sent: list[AnyCommand]
) -> None:
    state.submit(state.focused, "one")
    assert state.cancel(state.focused)
    assert not state.current.busy
    assert isinstance(sent[-1], Cancel)
    assert state.submit(state.focused, "two")
    assert isinstance(sent[-1], Submit)
    assert sent[-1].epoch == 2


def test_a_prompt_cancelled_while_loading_is_never_sent(sent: list[AnyCommand]) -> None:
    state = AppState(sent.append)
    state.submit(state.focused, "early")
    state.cancel(state.focused)
    state.apply(Ready(engine_status()))
    assert sent == []


def test_a_late_token_of_a_cancelled_turn_does_not_appear_in_the_next(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "one")
    state.apply(Started(session.id, 1, 7, [1]))
    state.apply(Delta(session.id, 1, "part", [5]))
    state.cancel(session.id)
    state.apply(Delta(session.id, 1, " late", [6]))
    assert session.turns[-1].text == "part"
    assert session.history_ids == [1, 5]
    state.submit(session.id, "two")
    state.apply(Delta(session.id, 1, "LATE", [6]))
    state.apply(finished(session.id, 1, "cancelled"))
    assert session.turns[-1].text == ""
    assert session.busy
    assert state.stale_events == 2


def test_cancelled_text_is_kept_and_marked_and_gets_its_numbers(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "one")
    state.apply(Delta(session.id, 1, "part", [5]))
    state.cancel(session.id)
    state.apply(finished(session.id, 1, "cancelled"))
    turn = session.turns[-1]
    assert (turn.text, turn.status) == ("part", "cancelled")
    assert turn.stats is not None
    assert session.status == "cancelled"


def test_a_deleted_chat_is_cancelled_and_its_late_events_are_ignored(
    state: AppState, sent: list[AnyCommand]
) -> None:
    first = state.current
    state.submit(first.id, "one")
    state.new_session()
    state.close_session(first.id)
    assert isinstance(sent[-1], Cancel)
    state.apply(Delta(first.id, 1, "x", [1]))
    state.apply(finished(first.id, 1))
    assert state.unknown_events == 2


def test_events_of_sessions_that_never_were_change_nothing(state: AppState) -> None:
    for event in (Delta("x", 1, "t", [1]), Started("x", 1, 1, []), finished("x", 1), Rejected("x", 1, "no")):
        state.apply(event)
    assert state.unknown_events == 4


# --- refusals and failures -------------------------------------------------------------------------


def test_a_refused_request_leaves_its_reason_and_the_chat_usable(
    state: AppState, sent: list[AnyCommand]
) -> None:
    session = state.current
    state.submit(session.id, "x")
    state.apply(Rejected(session.id, 1, "9000 tokens do not fit in 2048 [/red].", "Shorten it."))
    assert session.status == "error"
    assert session.turns[-1].note == "9000 tokens do not fit in 2048 [/red]. Shorten it."
    assert session.history_ids == []
    assert state.submit(session.id, "y")


def test_when_the_engine_dies_partial_text_is_kept_and_waiting_prompts_go_to_the_next_one(
    state: AppState, sent: list[AnyCommand]
) -> None:
    first = state.current
    state.submit(first.id, "one")
    state.apply(Started(first.id, 1, 3, [1]))
    state.apply(Delta(first.id, 1, "part", [5]))
    state.apply(Failed("engine stopped", "killed by signal 9"))
    assert state.phase == "failed"
    assert first.status == "error"
    assert first.turns[-1].text == "part"
    second = state.new_session()
    state.submit(second.id, "meanwhile")
    assert second.status == "queued"
    state.restarting()
    assert state.phase == "loading"
    state.apply(Ready(engine_status()))
    assert isinstance(sent[-1], Submit)
    assert sent[-1].session == second.id
    state.submit(first.id, "go on")
    assert isinstance(sent[-1], Submit)
    assert sent[-1].history == [1, 5]


def test_another_model_gets_the_conversation_as_messages(state: AppState, sent: list[AnyCommand]) -> None:
    state.submit(state.focused, "one")
    answer(state, "first", [10])
    state.restarting()
    state.apply(Ready(engine_status(model_path="/models/other")))
    state.submit(state.focused, "two")
    command = sent[-1]
    assert isinstance(command, Submit)
    assert command.history is None
    assert command.prompt == [
        Message("user", "one"),
        Message("assistant", "first"),
        Message("user", "two"),
    ]


def test_a_failure_that_is_not_fatal_is_only_told(state: AppState) -> None:
    state.apply(Failed("sampler", "row failed", fatal=False))
    assert state.phase == "ready"
    assert state.notices[-1].message == "row failed"


def test_graph_mode_that_cannot_be_had_says_why(state: AppState) -> None:
    state.apply(ModeChanged("eager", "no CUDA device"))
    assert "no CUDA device" in state.notices[-1].message
    assert state.mode == "eager"


def test_two_quick_presses_of_the_switch_come_back_to_the_mode_before(
    state: AppState, sent: list[AnyCommand]
) -> None:
    state.apply(Ready(engine_status(mode="graph", mode_reason="", graph_sizes=(1, 2))))
    state.toggle_mode()
    state.toggle_mode()
    state.apply(ModeChanged("eager"))
    state.toggle_mode()  # the answer to the second press is still under way
    assert sent == [SetMode("eager"), SetMode("graph"), SetMode("eager")]
    state.apply(ModeChanged("graph"))
    state.apply(ModeChanged("eager"))
    state.toggle_mode()
    assert sent[-1] == SetMode("graph")


def test_a_press_without_an_answer_does_not_outlive_its_engine(
    state: AppState, sent: list[AnyCommand]
) -> None:
    state.toggle_mode()
    state.apply(Failed("engine stopped", "killed"))
    state.restarting()
    state.apply(Ready(engine_status(mode="graph", mode_reason="", graph_sizes=(1, 2))))
    state.toggle_mode()
    assert sent[-1] == SetMode("eager")


def test_eager_always_has_a_reason_and_graph_has_none(state: AppState) -> None:
    assert state.mode_reason == NO_CUDA
    state.apply(Ready(engine_status(mode="graph", mode_reason="", graph_sizes=(1, 2))))
    assert (state.mode, state.mode_reason) == ("graph", "")
    state.apply(ModeChanged("eager"))
    assert (state.mode, state.mode_reason) == ("eager", "eager mode was chosen")
    state.apply(ModeChanged("graph"))
    assert (state.mode, state.mode_reason) == ("graph", "")


def test_step_pauses_a_running_engine_first(state: AppState, sent: list[AnyCommand]) -> None:
    state.step_once()
    assert [type(command).__name__ for command in sent] == ["Pause", "StepOnce"]
    state.apply(Paused(True))
    state.step_once()
    assert isinstance(sent[-1], StepOnce)
    assert len(sent) == 3


# --- text ------------------------------------------------------------------------------------------


def test_pauses_of_a_recording_are_not_told(state: AppState) -> None:
    state.apply(Paused(True, "step 5 was run"))
    assert [notice.title for notice in state.notices] == ["Paused"]
    state.read_only = "This is a recording."
    state.apply(Paused(True, "step 9 was run"))
    assert len(state.notices) == 1
    assert state.paused
    assert state.pause_reason == "step 9 was run"


def test_escape_sequences_of_the_model_do_not_enter_the_state(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "x")
    state.apply(Delta(session.id, 1, "a\x1b", [1]))
    state.apply(Delta(session.id, 1, "]52;c;xx\x07b", [2]))
    assert session.turns[-1].text == "a␛]52;c;xx␇b"


def test_the_rate_is_decode_tokens_over_decode_time(state: AppState) -> None:
    session = state.current
    session.begin("x")
    session.receive("a", [1], 10.0)
    assert session.live_tokens_per_s is None
    session.receive("bc", [2, 3], 10.5)
    assert session.live_tokens_per_s == pytest.approx(4.0)


def test_the_rate_of_an_answer_does_not_count_the_time_of_a_pause(
    state: AppState,
) -> None:
    now = 100.0
    state.clock = lambda: now
    session = state.current
    state.submit(session.id, "x")
    state.apply(Started(session.id, 1, 7, [1]))
    state.apply(Delta(session.id, 1, "a", [1]))
    now = 101.0
    state.apply(Delta(session.id, 1, "bc", [2, 3]))
    state.apply(Paused(True))
    now = 161.0
    assert session.live_tokens_per_s == pytest.approx(2.0)
    state.apply(Paused(False))
    now = 162.0
    state.apply(Delta(session.id, 1, "de", [4, 5]))
    assert session.live_tokens_per_s == pytest.approx(2.0)
    state.apply(Finished(session.id, 1, "stop", 1, 5, 0, 0.1, 4 / 62))
    stats = session.turns[-1].stats
    assert stats is not None
    assert stats.decode_tokens_per_s == pytest.approx(2.0)


def test_tokens_of_steps_made_by_hand_are_in_no_rate(state: AppState) -> None:
    now = 100.0
    state.clock = lambda: now
    session = state.current
    state.submit(session.id, "x")
    state.apply(Started(session.id, 1, 7, [1]))
    state.apply(Delta(session.id, 1, "a", [1]))
    now = 101.0
    state.apply(Delta(session.id, 1, "bc", [2, 3]))
    state.step_once()  # of an engine that runs: it is paused first
    state.apply(Paused(True))
    for token in range(4, 40):
        now += 0.5
        state.apply(Delta(session.id, 1, "x", [token]))
    assert session.live_tokens_per_s == pytest.approx(2.0)
    state.apply(Paused(False))
    now += 1.0
    state.apply(Delta(session.id, 1, "yz", [40, 41]))
    assert session.live_tokens_per_s == pytest.approx(2.0)


def test_the_rate_of_an_answer_without_a_pause_is_the_engines(state: AppState) -> None:
    session = state.current
    state.apply(Paused(True))
    state.apply(Paused(False))
    state.submit(session.id, "x")
    answer(state, "ab", [1, 2])
    stats = session.turns[-1].stats
    assert stats is not None
    assert stats.decode_tokens_per_s == 50.0


# --- sessions and panes ----------------------------------------------------------------------------


def test_letters_go_on_after_z() -> None:
    assert [letter_of(index) for index in (0, 25, 26, 51, 52)] == ["A", "Z", "AA", "AZ", "BA"]


def test_a_closed_chats_letter_is_free_again(state: AppState) -> None:
    first = state.current
    second = state.new_session()
    third = state.new_session()
    assert [session.letter for session in (first, second, third)] == ["A", "B", "C"]
    state.close_session(second.id)
    assert state.new_session().letter == "B"


def test_a_closed_chats_letter_is_not_given_again_while_its_blocks_may_be_cached(state: AppState) -> None:
    second = state.new_session()
    state.apply(Ready(engine_status()))
    state.submit(second.id, "x")
    state.apply(Started(second.id, second.epoch, 7, [1, 2], ["a", "b"]))
    state.close_session(second.id)
    assert [state.new_session().letter for _ in range(2)] == ["C", "D"]
    state.restarting()  # nothing is cached any more
    assert state.new_session().letter == "B"


def test_closing_the_last_chat_leaves_a_new_one(state: AppState) -> None:
    state.submit(state.focused, "x")
    state.close_session(state.focused)
    assert len(state.sessions) == 1
    assert state.current.turns == []


def test_closing_the_focused_chat_focuses_its_neighbour(state: AppState) -> None:
    first = state.current
    second, third = state.new_session(), state.new_session()
    state.focus(second.id)
    state.close_session(second.id)
    assert state.focused == third.id
    state.close_session(third.id)
    assert state.focused == first.id


def test_the_title_comes_from_the_first_prompt_until_it_is_set(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "What is\nthe capital [/red]?")
    assert session.title == "What is the capital [/red]?"
    state.rename(session.id, "  geo\x1b ")
    assert session.title == "geo␛"
    state.rename(session.id, "")
    assert session.title == "What is the capital [/red]?"


def test_a_new_title_reaches_the_tags_of_earlier_requests(state: AppState) -> None:
    session = state.current
    state.submit(session.id, "x")
    state.apply(Started(session.id, 1, 7, [1]))
    state.rename(session.id, "geo")
    assert state.tags[7].title == "geo"


def test_panes_follow_the_number_of_chats_and_keep_their_places(state: AppState) -> None:
    first = state.current
    assert state.panes(4) == [first.id]
    second = state.new_session()
    third = state.new_session()
    assert state.panes(4) == [first.id, second.id, third.id]
    state.focus(second.id)
    assert state.panes(4) == [first.id, second.id, third.id]


def test_a_chat_without_a_pane_takes_the_focused_ones_place(state: AppState) -> None:
    chats = [state.current, *(state.new_session() for _ in range(4))]
    ids = [chat.id for chat in chats]
    assert state.panes(4) == [*ids[:3], ids[4]]
    state.focus(ids[1])
    state.focus(ids[3])
    assert state.panes(4) == [ids[0], ids[3], ids[2], ids[4]]


def test_the_focused_chat_is_shown_whatever_the_room(state: AppState) -> None:
    for _ in range(5):
        state.new_session()
    for session in list(state.sessions):
        state.focus(session)
        for room in (1, 2, 4):
            assert session in state.panes(room)


def test_zoom_shows_one_pane_and_gives_the_others_back(state: AppState) -> None:
    second = state.new_session()
    before = state.panes(4)
    state.toggle_zoom()
    assert state.panes(4) == [second.id]
    state.toggle_zoom()
    assert state.panes(4) == before


def test_layouts_cycle(state: AppState) -> None:
    names = []
    for _ in range(4):
        state.cycle_layout()
        names.append(state.layout.name)
    assert names == ["2", "4", "1", "2"]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (1, (160, 48), (1, 1)),
        (2, (100, 40), (2, 1)),
        (2, (62, 26), (1, 2)),
        (4, (100, 40), (2, 2)),
        (4, (80, 21), (2, 2)),
        (4, (42, 21), (1, 2)),
        (4, (42, 10), (1, 1)),
    ],
)
def test_only_what_stays_readable_is_shown(
    count: int, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert grid(count, *size) == expected


def test_panes_come_back_as_they_were_when_a_window_grows_again(state: AppState) -> None:
    first, *others = [state.focused, *(state.new_session().id for _ in range(5))]
    second, third, _, fifth, sixth = others
    state.layout.slots = before = [first, second, third, sixth]
    state.focus(sixth)
    assert state.panes(4) == before
    assert state.panes(2) == [first, sixth]
    assert state.panes(1) == [sixth]
    assert state.panes(4) == before
    state.focus(third)  # hidden in a small window
    assert state.panes(2) == [first, third]
    assert state.panes(4) == before
    state.panes(2)
    state.focus(fifth)  # without a pane: it takes that of the chat which was looked at
    assert state.panes(2) == [first, fifth]
    assert state.panes(4) == [first, second, fifth, sixth]
    state.toggle_zoom()
    assert state.panes(4) == [fifth]
    state.toggle_zoom()
    assert state.panes(4) == [first, second, fifth, sixth]


def test_a_hidden_chat_that_finished_is_marked_until_it_is_looked_at(state: AppState) -> None:
    first = state.current
    state.submit(first.id, "x")
    state.new_session()
    state.layout.name = "1"
    state.panes(1)
    state.apply(Delta(first.id, 1, "x", [1]))
    assert not first.unread
    state.apply(finished(first.id, 1))
    assert first.unread
    state.focus(first.id)
    assert not first.unread


def test_subscribers_hear_of_the_topic_and_session_that_changed(state: AppState) -> None:
    heard: list[str] = []
    state.subscribe("turns", heard.append)
    state.submit(state.focused, "x")
    state.apply(Delta(state.focused, 1, "x", [1]))
    assert heard == [state.focused, state.focused]
