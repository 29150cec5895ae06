"""What the app changes is on the disk soon, also where the disk is full, locked, or the app is killed."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from engine.commands import Cancel
from engine.records import Delta, Finished, Ready, Started
from tests.app.scripted import engine_status
from tests.app.stored import MODEL, NoScreen, chat, kept, opened, put, rows, saved
from tui_infer.parameters import set_system
from tui_infer.state import AppState
from tui_infer.store import chat_write
from tui_infer.store.keeper import Keeper
from tui_infer.store.lazy import StoredSession
from tui_infer.store.lease import is_held
from tui_infer.store.restore import adopt


def killed(keeper: Keeper) -> None:
    """What SIGKILL leaves: no last save, and a lock that nobody holds."""
    keeper.store.settle().result(10)
    keeper.store._lease.release()


def stream(state: AppState, session: str, text: str, first: int = 0) -> None:
    epoch = state.sessions[session].epoch
    state.apply(Delta(session, epoch, text, list(range(first, first + len(text)))))


def start(state: AppState, session: str, prompt: str = "q") -> None:
    """A prompt that the engine has taken, with ten tokens."""
    assert state.submit(session, prompt)
    state.apply(Started(session, state.sessions[session].epoch, 1, list(range(100, 110)), []))


# --- killed ----------------------------------------------------------------------------------------


def test_an_answer_that_was_under_way_comes_back_cut_off_with_its_tokens_in_the_history(
    tmp_path: Path,
) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status(model_path=str(tmp_path))))
        start(state, state.focused)
        for number in range(5):
            stream(state, state.focused, f"part {number} 東", 10 * number)
            saved(keeper)
        whole, ids = state.current.turns[1].text, state.current.turns[1].token_ids
        killed(keeper)
    with kept(tmp_path) as (state, keeper, _):
        session = state.current
        assert not session.busy
        assert session.status == "idle"
        answer = session.turns[1]
        assert (answer.status, answer.note) == ("cancelled", chat_write.INTERRUPTED)
        assert answer.text == whole
        assert answer.token_ids == ids
        assert session.history_ids == [*range(100, 110), *ids]
        assert (answer.asked, answer.end) == (10, len(session.history_ids))
        assert keeper.store.search(["part", "4"])[0].position == 1, "it can be found"
        assert rows(tmp_path, "SELECT count(*) FROM pieces") == [(0,)]


def test_a_system_prompt_set_while_the_answer_streamed_is_read_with_the_conversation_after_a_kill(
    tmp_path: Path,
) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status(model_path=str(tmp_path))))
        start(state, state.focused)
        stream(state, state.focused, "part")
        saved(keeper)
        assert set_system(state.current, "Be brief.")
        state.announce("sessions", state.focused)
        saved(keeper)
        stream(state, state.focused, " two", 4)
        saved(keeper)
        killed(keeper)
    for _ in range(2):  # nothing is said before the second start
        with kept(tmp_path) as (state, keeper, sent):
            state.apply(Ready(engine_status(model_path=str(tmp_path))))
            session = state.current
            assert (session.system, session.turns[1].text) == ("Be brief.", "part two")
            assert session.history_ids == []
            assert all(turn.asked is None and turn.end is None for turn in session.turns)
            saved(keeper)
            killed(keeper)
    with kept(tmp_path) as (state, keeper, sent):
        state.apply(Ready(engine_status(model_path=str(tmp_path))))
        start(state, state.focused, "and now?")
        assert sent[-1].history is None
        assert [message.role for message in sent[-1].prompt] == ["system", "user", "assistant", "user"]
        saved(keeper)
        killed(keeper)
    with kept(tmp_path) as (state, _, _):
        assert state.current.history_ids == list(range(100, 110)), "those of the new request are of use"


@pytest.mark.parametrize("what", ["system", "adopt"])
def test_token_ids_that_begin_with_something_else_are_forgotten_on_the_disk_too(
    tmp_path: Path, what: str
) -> None:
    with_model(tmp_path, MODEL if what == "system" else str(tmp_path / "no-such-model"))
    with kept(tmp_path) as (state, keeper, _):
        assert state.current.history_ids
        if what == "system":
            set_system(state.current, "Be brief.")
        else:
            assert adopt(state.current)
        state.announce("sessions", state.focused)
        saved(keeper)
        killed(keeper)
    with kept(tmp_path) as (state, _, _):
        state.apply(Ready(engine_status(model_path=MODEL)))
        assert state.current.history_ids == []


def test_drafts_queue_layout_focus_and_order_come_back(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        first = state.current
        first.draft = "unsent"
        for title in ("two", "three"):
            state.rename(state.new_session().id, title)
        second, third = list(state.sessions.values())[1:]
        second.queue = ["next"]
        third.unread = True
        state.layout.name = "2"
        state.layout.slots = [third.id, first.id]
        state.focus(first.id)
        state.arrangement.toggle("gpu")
        state.arrangement.order.reverse()
        order = list(state.arrangement.order)
        state.sessions = {one.id: one for one in (third, first, second)}
        saved(keeper)
        killed(keeper)
    with kept(tmp_path) as (state, keeper, _):
        chats = list(state.sessions.values())
        assert [one.title for one in chats] == ["three", "new chat", "two"]
        assert [one.letter for one in chats] == ["C", "A", "B"]
        assert state.current is chats[1]
        assert state.current.draft == "unsent"
        assert chats[2].queue == ["next"]
        assert chats[2].queue_paused
        assert chats[0].unread
        assert state.layout.name == "2"
        assert state.layout.slots == [chats[0].id, chats[1].id]
        assert state.arrangement.hidden == {"gpu"}
        assert state.arrangement.order == order


def test_a_layout_that_was_changed_in_the_settings_wins_over_the_last_one(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.current.draft = "x"
        state.layout.name = "2"
        saved(keeper)
        killed(keeper)
    store = opened(tmp_path)
    state = AppState(lambda _: None)
    state.layout.name = "1"
    Keeper(store, state, NoScreen(), lambda delay, call: None).restore(("1", "auto"))
    assert state.layout.name == "1"
    store.close()


def test_a_draft_from_before_an_earlier_prompt_was_recalled_is_what_is_kept(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.prompts[:] = ["an old prompt"]
        session = state.current
        session.recall, session.stash, session.draft = 0, "my own words", "an old prompt"
        saved(keeper)
        killed(keeper)
    with kept(tmp_path) as (state, _, _):
        assert state.current.draft == "my own words"


def test_an_edit_of_a_prompt_goes_on_where_it_was(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.current.turns = chat("q", "a").turns
        state.current.draft, state.current.editing, state.current.edit_stash = "q, better", 0, "before"
        saved(keeper)
        killed(keeper)
    with kept(tmp_path) as (state, _, _):
        session = state.current
        assert (session.draft, session.editing, session.edit_stash) == ("q, better", 0, "before")


def test_a_new_chat_that_nobody_touched_is_not_kept(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.new_session()
        saved(keeper)
        assert rows(tmp_path, "SELECT count(*) FROM chats") == [(0,)]
        state.current.draft = "x"
        saved(keeper)
        assert rows(tmp_path, "SELECT count(*) FROM chats") == [(1,)]


# --- an orderly end --------------------------------------------------------------------------------


def test_an_orderly_end_saves_what_was_not_saved_yet_and_lets_the_chats_go(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status()))
        start(state, state.focused)
        stream(state, state.focused, "never saved before")
        assert keeper.finish() == ""
    assert rows(tmp_path, "SELECT run FROM chats") == [(None,)]
    assert list((tmp_path / "runs").iterdir()) == []
    with kept(tmp_path) as (state, _, _):
        answer = state.current.turns[1]
        assert (answer.text, answer.status) == ("never saved before", "cancelled")


# --- closed and deleted ----------------------------------------------------------------------------


def test_a_closed_chat_is_archived_and_is_not_opened_by_the_next_start(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, sent):
        state.apply(Ready(engine_status()))
        first = state.current
        start(state, first.id, "about rivers")
        stream(state, first.id, "they flow")
        saved(keeper)
        state.close_session(first.id)
        assert Cancel(first.id, 1) in sent
        stream_late = Delta(first.id, 1, " and a late word", [9])
        state.apply(stream_late)
        saved(keeper)
        saved(keeper)
        assert rows(tmp_path, "SELECT archived, run FROM chats") == [(1, None)]
        assert keeper.store.body(first.key).turns[1].text == "they flow"
        assert keeper.store.search(["flow"])[0].key == first.key
        killed(keeper)
    with kept(tmp_path) as (state, _, _):
        assert [one.turns for one in state.sessions.values()] == [[]]


def test_a_deleted_chat_is_cancelled_its_late_events_are_ignored_and_nothing_brings_it_back(
    tmp_path: Path,
) -> None:
    with kept(tmp_path) as (state, keeper, sent):
        state.apply(Ready(engine_status()))
        gone = state.current
        start(state, gone.id)
        stream(state, gone.id, "text")
        saved(keeper)
        stream(state, gone.id, "more")
        keeper.save()  # a write that is on its way
        keeper.forget(gone.key)
        state.close_session(gone.id)
        keeper.store.delete(gone.key).result(10)
        assert Cancel(gone.id, 1) in sent
        before = state.unknown_events
        state.apply(Delta(gone.id, 1, "late", [5]))
        state.apply(Finished(gone.id, 1, "cancelled", 10, 5, 0, 0.1, None))
        assert state.unknown_events == before + 2
        saved(keeper)
        saved(keeper)
        assert rows(tmp_path, "SELECT count(*) FROM chats") == [(0,)]
        assert rows(tmp_path, "SELECT count(*) FROM turns") == [(0,)]


def test_a_late_token_of_a_cancelled_turn_is_in_no_saved_answer(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status()))
        session = state.current
        start(state, session.id, "one")
        stream(state, session.id, "first")
        state.cancel(session.id)
        start(state, session.id, "two")
        state.apply(Delta(session.id, 1, " LATE", [9]))
        stream(state, session.id, "second")
        saved(keeper)
        assert [turn.text for turn in keeper.store.body(session.key).turns] == [
            "one",
            "first",
            "two",
            "second",
        ]


# --- trouble with the disk -------------------------------------------------------------------------


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Error]:
    """Writes of chats raise what is put into this list, while there is something."""
    errors: list[sqlite3.Error] = []
    write = chat_write.write_chat

    def maybe(*arguments: Any) -> None:
        write(*arguments)
        if errors:
            raise errors[0]

    monkeypatch.setattr(chat_write, "write_chat", maybe)
    return errors


def full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def test_a_full_disk_is_told_once_and_all_is_saved_when_there_is_room_again(
    tmp_path: Path, fails: list[sqlite3.Error]
) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status()))
        start(state, state.focused)
        stream(state, state.focused, "kept ")
        saved(keeper)
        fails.append(full())
        for number in range(4):
            stream(state, state.focused, f"while full {number} ")
            saved(keeper)
        notices = [notice for notice in state.notices if notice.title == "Chats are not saved"]
        assert len(notices) == 1
        assert "disk is full" in notices[0].message
        assert keeper.store.body(state.current.key).turns[1].text == "kept ", "the writes before it hold"
        fails.clear()
        saved(keeper)
        assert keeper.store.body(state.current.key).turns[1].text == state.current.turns[1].text
        assert any(notice.title == "Chats are saved again" for notice in state.notices)


def test_a_disk_that_is_full_to_the_end_is_said_at_the_end(
    tmp_path: Path, fails: list[sqlite3.Error]
) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.current.draft = "x"
        fails.append(full())
        saved(keeper)
        assert "disk is full" in keeper.finish()


def test_a_database_that_really_is_full_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.current.turns = chat("q", "small").turns
        saved(keeper)
        limit = "PRAGMA max_page_count = {}"
        keeper.store._submit(lambda db: db.execute(limit.format(60)).fetchone()).result(10)
        state.current.turns = chat("q", "large " * 100_000).turns
        state.announce("turns", state.focused)
        saved(keeper)
        assert any("disk is full" in notice.message for notice in state.notices)
        assert keeper.store.body(state.current.key).turns[1].text == "small"
        keeper.store._submit(lambda db: db.execute(limit.format(10**6)).fetchone()).result(10)
        saved(keeper)
        assert keeper.store.body(state.current.key).turns[1].text == "large " * 100_000


def test_a_write_waits_for_the_lock_of_another_process_and_is_not_lost(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.current.draft = "typed meanwhile"
        other = sqlite3.connect(tmp_path / "chats.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        keeper.save()
        assert keeper.store.chats() == [], "readers do not wait"
        other.execute("COMMIT")
        other.close()
        saved(keeper)
        assert keeper.store.chats()[0].draft.text == "typed meanwhile"
        assert state.notices == []


# --- reading when it is needed ---------------------------------------------------------------------


def test_turns_are_read_when_somebody_looks_and_saving_reads_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, *[chat(f"q{number}", "a") for number in range(6)])
    store.close()
    with kept(tmp_path) as (state, keeper, _):
        keeper.touch()
        saved(keeper)
        chats = [one for one in state.sessions.values() if isinstance(one, StoredSession)]
        assert len(chats) == 6
        assert not any(one.loaded for one in chats)
        assert chats[3].turns[0].text.startswith("q")
        assert [one.loaded for one in chats] == [False, False, False, True, False, False]
        saved(keeper)
        assert rows(tmp_path, "SELECT count(*) FROM turns") == [(12,)]
        state.rename(chats[5].id, "other title")
        saved(keeper)
        assert rows(tmp_path, "SELECT turns FROM chats WHERE title = 'other title'") == [(2,)]


# --- models ----------------------------------------------------------------------------------------


def with_model(folder: Path, model: str) -> None:
    store = opened(folder)
    put(store, chat("q", "a", model=model))
    store.close()


def test_a_chat_of_a_model_that_is_gone_is_read_only_until_it_is_adopted(tmp_path: Path) -> None:
    with_model(tmp_path, str(tmp_path / "no-such-model"))
    with kept(tmp_path) as (state, _, sent):
        session = state.current
        state.apply(Ready(engine_status()))
        assert "no-such-model" in session.read_only
        assert "/adopt" in session.read_only
        assert not state.submit(session.id, "more")
        assert sent == []
        assert adopt(session)
        assert state.submit(session.id, "more")
        assert [(message.role, message.content) for message in sent[0].prompt] == [  # type: ignore[union-attr]
            ("user", "q"),
            ("assistant", "a"),
            ("user", "more"),
        ]
        assert sent[0].history is None  # type: ignore[union-attr]
        assert not adopt(session)


def test_a_chat_of_another_model_that_is_there_goes_on_with_the_present_one(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with_model(tmp_path, str(tmp_path / "other"))
    with kept(tmp_path) as (state, keeper, sent):
        state.apply(Ready(engine_status()))
        session = state.current
        assert session.read_only == ""
        assert session.history_ids == []
        saved(keeper)
        assert len(rows(tmp_path, "SELECT ids FROM histories")[0][0]) == 4 * 5, (
            "its own model can still use them"
        )
        assert state.submit(session.id, "more")
        assert len(sent[0].prompt) == 3  # type: ignore[union-attr]
        saved(keeper)
        turns = keeper.store.body(session.key).turns
        assert [turn.asked for turn in turns] == [None] * 4, "places in another history mean nothing"


def test_the_same_model_goes_on_behind_the_token_ids_that_it_knows(tmp_path: Path) -> None:
    with_model(tmp_path, MODEL)
    with kept(tmp_path) as (state, _, sent):
        state.apply(Ready(engine_status(model_path=MODEL)))
        assert state.current.read_only == "", "the model that runs is there, wherever its files went"
        state.submit(state.focused, "more")
        assert sent[0].history == [7, 8, 1, 2, 70_000]  # type: ignore[union-attr]
        assert len(sent[0].prompt) == 1  # type: ignore[union-attr]


def test_a_system_prompt_changed_under_way_is_read_after_a_kill_too(tmp_path: Path) -> None:
    with kept(tmp_path) as (state, keeper, _):
        state.apply(Ready(engine_status(model_path=str(tmp_path))))
        start(state, state.focused)
        stream(state, state.focused, "said so far")
        state.current.system, state.current.reread = "Be brief.", True
        saved(keeper)
        killed(keeper)
    for _ in range(2):
        with kept(tmp_path) as (state, keeper, sent):
            state.apply(Ready(engine_status(model_path=str(tmp_path))))
            saved(keeper)
            killed(keeper)
    with kept(tmp_path) as (state, _, sent):
        state.apply(Ready(engine_status(model_path=str(tmp_path))))
        state.submit(state.focused, "more")
        roles = [message.role for message in sent[0].prompt]  # type: ignore[union-attr]
        assert roles == ["system", "user", "assistant", "user"]
        assert sent[0].history is None  # type: ignore[union-attr]


def test_nothing_is_sent_to_a_chat_whose_text_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_model(tmp_path, MODEL)
    with kept(tmp_path) as (state, keeper, sent):
        state.apply(Ready(engine_status(model_path=MODEL)))
        broken = sqlite3.DatabaseError("database disk image is malformed")
        monkeypatch.setattr(keeper.store._bodies, "read", lambda job: (_ for _ in ()).throw(broken))
        assert not state.submit(state.focused, "more")
        assert sent == []
        assert any("could not be read" in notice.message for notice in state.notices)
        state.rename(state.focused, "another title")
        saved(keeper)
        assert rows(tmp_path, "SELECT title, turns FROM chats") == [("another title", 2)]
        assert rows(tmp_path, "SELECT text FROM turns ORDER BY position") == [("q",), ("a",)]


# --- two processes ---------------------------------------------------------------------------------


def test_a_second_app_begins_without_the_chats_of_the_first_and_takes_them_when_that_is_gone(
    tmp_path: Path,
) -> None:
    with kept(tmp_path) as (first, one, _):
        first.current.draft = "of the first"
        saved(one)
        with kept(tmp_path) as (second, two, _):
            assert two.store.claimed.elsewhere == 1
            assert second.current.draft == ""
            assert [row.held for row in two.store.chats()] == [True]
            for act in (two.store.open, two.store.delete):
                with pytest.raises(Exception, match="has this chat open"):
                    act(first.current.key).result(10)
            second.current.draft = "of the second"
            saved(two)
            saved(one)
        killed(one)
    with kept(tmp_path) as (third, _, _):
        assert sorted(one.draft for one in third.sessions.values()) == ["of the first", "of the second"]


def test_a_chat_of_a_process_that_died_meanwhile_can_be_opened(tmp_path: Path) -> None:
    with kept(tmp_path) as (first, one, _):
        first.apply(Ready(engine_status()))
        start(first, first.focused)
        stream(first, first.focused, "under way")
        saved(one)
        key = first.current.key
        with kept(tmp_path) as (_, two, _):
            killed(one)
            row = two.store.open(key).result(10)
            assert not row.held
            assert two.store.body(key).turns[1].status == "cancelled"
            assert two.store.body(key).turns[1].text == "under way"


def test_a_lock_is_free_as_soon_as_its_process_is_gone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert is_held(tmp_path / "runs", store.run)
    store.close()
    assert not is_held(tmp_path / "runs", store.run)
    assert not is_held(tmp_path / "runs", "never-there")
