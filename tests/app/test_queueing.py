"""The queue of a chat without a screen: order, and that no prompt is lost, sent twice or sent by surprise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands import AnyCommand, Submit
from engine.records import Delta, Failed, Finished, Ready, Rejected, Started
from tests.app.scripted import engine_status
from tui_infer.broadcast import addressed, broadcast, deliver
from tui_infer.queueing import FULL, MOST_QUEUED, clear, enqueue, send_next, take, waiting
from tui_infer.session import SessionState
from tui_infer.state import AppState

DEAD = Failed("engine stopped", "killed", "restart it")


@pytest.fixture
def sent() -> list[AnyCommand]:
    return []


@pytest.fixture
def state(sent: list[AnyCommand]) -> AppState:
    state = AppState(sent.append)
    state.apply(Ready(engine_status()))
    return state


def texts(sent: list[AnyCommand]) -> list[str]:
    """Prompts that went to the engine."""
    return [command.prompt[-1].content for command in sent if isinstance(command, Submit)]  # type: ignore[union-attr]


def finish(state: AppState, session: SessionState, reason: str = "stop") -> None:
    """The answer under way ends; one that ended before changes nothing."""
    state.apply(Started(session.id, session.epoch, 7, [1, 2]))
    state.apply(Delta(session.id, session.epoch, "ok", [3]))
    state.apply(Finished(session.id, session.epoch, reason, 2, 1, 0, 0.1, 50.0))


def test_queued_prompts_go_out_one_after_the_other_in_their_order(
    state: AppState, sent: list[AnyCommand]
) -> None:
    session = state.current
    for text in ("one", "two", "three"):
        deliver(state, session, text)
    assert session.queue == ["two", "three"]
    assert texts(sent) == ["one"]
    finish(state, session)
    assert texts(sent) == ["one", "two"]
    finish(state, session, "length")
    assert texts(sent) == ["one", "two", "three"]
    finish(state, session)
    assert texts(sent) == ["one", "two", "three"]
    assert session.queue == []
    assert not session.busy
    assert [turn.stats is not None for turn in session.turns[1::2]] == [True] * 3
    assert state.prompts == ["one", "two", "three"]


def test_a_stopped_answer_pauses_the_queue_until_the_user_goes_on(
    state: AppState, sent: list[AnyCommand]
) -> None:
    session = state.current
    for text in ("one", "two", "three"):
        deliver(state, session, text)
    state.cancel(session.id)
    assert waiting(session)
    assert texts(sent) == ["one"]
    assert send_next(state, session)
    assert texts(sent) == ["one", "two"]
    assert not waiting(session)
    finish(state, session)
    assert texts(sent) == ["one", "two", "three"]


def test_a_prompt_sent_past_a_paused_queue_does_not_set_it_going(
    state: AppState, sent: list[AnyCommand]
) -> None:
    session = state.current
    for text in ("one", "two"):
        deliver(state, session, text)
    state.cancel(session.id)
    deliver(state, session, "something else")
    assert waiting(session)
    finish(state, session)
    assert texts(sent) == ["one", "something else"]
    assert session.queue == ["two"]
    deliver(state, session, "more")
    assert send_next(state, session)  # while it answers: the queue goes on behind the answer
    assert texts(sent)[-1] == "more"
    finish(state, session)
    assert texts(sent) == ["one", "something else", "more", "two"]


def test_a_dead_engine_leaves_the_queue_and_its_restart_sends_none_of_it(
    state: AppState, sent: list[AnyCommand]
) -> None:
    session = state.current
    for text in ("one", "two"):
        deliver(state, session, text)
    state.apply(DEAD)
    assert session.status == "error"
    assert waiting(session)
    state.restarting()
    state.apply(Ready(engine_status()))
    assert texts(sent) == ["one"]
    assert session.queue == ["two"]
    assert send_next(state, session)
    assert texts(sent) == ["one", "two"]


def test_what_is_sent_on_while_the_engine_loads_goes_out_when_it_is_ready(sent: list[AnyCommand]) -> None:
    state = AppState(sent.append)
    session = state.current
    for text in ("one", "two"):
        deliver(state, session, text)
    assert sent == []
    state.apply(Ready(engine_status()))
    assert texts(sent) == ["one"]
    finish(state, session)
    assert texts(sent) == ["one", "two"]


def test_a_refused_prompt_pauses_what_is_behind_it(state: AppState, sent: list[AnyCommand]) -> None:
    session = state.current
    for text in ("one", "two"):
        deliver(state, session, text)
    state.apply(Rejected(session.id, session.epoch, "too long", "Send less."))
    assert waiting(session)
    assert texts(sent) == ["one"]


def test_a_queue_out_of_the_store_waits_for_the_user(state: AppState, sent: list[AnyCommand]) -> None:
    session = state.current
    session.queue = ["from yesterday"]
    assert waiting(session)
    deliver(state, session, "today")
    finish(state, session)
    assert texts(sent) == ["today"]


def test_a_chat_that_cannot_send_keeps_its_queue(state: AppState, sent: list[AnyCommand]) -> None:
    session = state.current
    session.queue = ["one"]
    session.read_only = "its model is gone"
    assert not send_next(state, session)
    assert session.queue == ["one"]
    assert sent == []


def test_a_queue_is_bounded_and_says_so(state: AppState) -> None:
    session = state.current
    deliver(state, session, "go")
    for number in range(MOST_QUEUED):
        assert deliver(state, session, f"{number}") == "queued"
    assert deliver(state, session, "one more") == FULL
    assert len(session.queue) == MOST_QUEUED
    assert enqueue(state, session, "  \n") == "There is no text."


def test_the_history_has_a_queued_prompt_as_it_has_to_be_typed(state: AppState) -> None:
    session = state.current
    deliver(state, session, "go")
    deliver(state, session, "/help", typed="//help")
    finish(state, session)
    assert state.prompts == ["go", " /help"]


Action = st.sampled_from(
    ["say", "finish", "length", "stop", "next", "take", "reject", "die", "restart", "late"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(Action, max_size=60))
def test_no_interleaving_loses_doubles_or_reorders_a_prompt(actions: list[str]) -> None:
    sent: list[AnyCommand] = []
    state = AppState(sent.append)
    state.apply(Ready(engine_status()))
    session = state.current
    said: list[str] = []
    taken: list[str] = []
    for action in actions:
        waits = waiting(session)
        before = len(texts(sent)) + len(state.pending)
        match action:
            case "say":
                said.append(f"{len(said)}")
                assert deliver(state, session, said[-1]) in ("sent", "queued")
            case "finish" | "length":
                finish(state, session, "stop" if action == "finish" else action)
            case "late":  # the end of an answer that is over
                state.apply(Finished(session.id, session.epoch - 1, "stop", 2, 1, 0, 0.1, 50.0))
            case "stop":
                state.cancel(session.id)
            case "next":
                send_next(state, session)
            case "take":
                if text := take(state, session):
                    taken.append(text)
            case "reject":
                state.apply(Rejected(session.id, session.epoch, "no", ""))
            case "die":
                state.apply(DEAD)
            case "restart":
                state.cancel(session.id)
                state.restarting()
                state.apply(Ready(engine_status()))
        if waits and action not in ("say", "next"):
            assert len(texts(sent)) + len(state.pending) <= before  # nothing by surprise
    asked = [turn.text for turn in session.turns if turn.role == "user"]
    assert sorted([*asked, *taken, *session.queue], key=int) == said
    assert len(texts(sent)) == len(set(texts(sent)))
    left = [text for text in said if text in session.queue]
    assert session.queue == left  # in their order


# --- several chats ---------------------------------------------------------------------------------


def test_each_chat_gets_a_broadcast_once_and_a_busy_one_queues_it(
    state: AppState, sent: list[AnyCommand]
) -> None:
    first, second, third = state.current, state.new_session(), state.new_session()
    deliver(state, second, "long story")
    done = broadcast(state, [first.id, second.id, first.id, third.id, "gone"], "hello")
    assert (done.sent, done.queued, done.refused) == (["A", "C"], ["B"], [])
    assert done.words() == "sent to A and C, queued in B"
    assert texts(sent) == ["long story", "hello", "hello"]
    assert second.queue == ["hello"]
    assert state.prompts == ["long story", "hello"]


def test_a_chat_that_cannot_take_a_broadcast_is_named_and_the_others_get_it(
    state: AppState, sent: list[AnyCommand]
) -> None:
    first, second = state.current, state.new_session()
    first.read_only = "Its model is gone."
    done = broadcast(state, [first.id, second.id], "hello")
    assert done.problem() == "A: Its model is gone."
    assert done.sent == ["B"]
    assert [command.session for command in sent if isinstance(command, Submit)] == [second.id]


@pytest.mark.parametrize(
    ("said", "letters", "text"),
    [
        ("A,C hello", "AC", "hello"),
        ("c, a  two\nlines", "CA", "two\nlines"),
        ("B what, then?", "B", "what, then?"),
        ("A A,B is a list", "A", "A,B is a list"),
    ],
)
def test_letters_and_text_are_told_apart(state: AppState, said: str, letters: str, text: str) -> None:
    for _ in range(2):
        state.new_session()
    by_letter = {session.letter: session.id for session in state.sessions.values()}
    assert addressed(state, said) == ([by_letter[letter] for letter in letters], text)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "letters of chats and a text"),
        ("A", "letters of chats and a text"),
        ("A,X,Y hello", "no chat X and Y; open are A and B"),
        ("1,2 hello", "letters of chats"),
    ],
)
def test_an_address_that_means_nothing_says_what_there_is(state: AppState, said: str, words: str) -> None:
    state.new_session()
    problem = addressed(state, said)
    assert isinstance(problem, str)
    assert words in problem


def test_an_emptied_queue_is_not_paused(state: AppState, sent: list[AnyCommand]) -> None:
    session = state.current
    for text in ("one", "two", "three"):
        deliver(state, session, text)
    state.cancel(session.id)
    assert take(state, session) == "three"
    assert take(state, session, 0) == "two"
    assert take(state, session) == ""
    for text in ("four", "five"):
        deliver(state, session, text)
    assert clear(state, session) == 1
    deliver(state, session, "six")
    finish(state, session)
    assert texts(sent) == ["one", "four", "six"]
