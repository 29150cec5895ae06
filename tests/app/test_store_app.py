"""The app over a store: what is closed is kept, what was open comes back, and starting is quick."""

import sqlite3
import time
from pathlib import Path

import pytest

from engine.commands import Cancel
from tests.app.driving import ask, pane_of, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.app.stored import chat, opened, put, rows, running_kept
from tests.budgets import most
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.screens.ask import Ask
from tui_infer.screens.main import MainScreen
from tui_infer.session import SessionState
from tui_infer.store import chat_write
from tui_infer.store.rows import Draft
from tui_infer.store.snapshot import Saved, meta_of, take

START_S = 1.5  # of computing time, after imports, with 200 chats and 2,000 turns
LINES = "\n\n".join(f"paragraph {number}" for number in range(80))


def fill(folder: Path, *sessions: SessionState, archived: bool = False) -> None:
    store = opened(folder)
    put(store, *sessions, archived=archived)
    store.close()


# --- what comes back -------------------------------------------------------------------------------


async def test_what_was_said_typed_and_looked_at_is_there_at_the_next_start(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient(LINES, rate=1e5), tmp_path, (160, 48)) as (app, pilot):
        await ask(app, pilot, "the first question")
        await settled(app)
        pane = await pane_of(app)
        await pilot.press("pageup", "pageup")
        await wait_until(lambda: not pane.transcript.following)
        top = [pane.transcript.render_line(row).text.rstrip() for row in range(3)]
        assert any(top)
        await pilot.press("ctrl+n", *"half a prom")
        await pilot.press("f6")
        await wait_until(lambda: app.main.dock.mode == "full")
        await pilot.press("escape", "f6", "f6")
        await wait_until(lambda: app.main.dock.mode == "hidden")
    async with running_kept(ScriptedClient("x"), tmp_path, (160, 48)) as (app, pilot):
        assert app.main.dock.mode == "hidden"
        first, second = app.main.visible_panes
        assert app.state.current is second.session
        assert second.prompt.text == "half a prom"
        assert second.prompt.has_focus
        assert [first.transcript.render_line(row).text.rstrip() for row in range(3)] == top
        assert not first.transcript.following
        assert "A the first question" in screen_text(app)
        await pilot.press("alt+1", "up")
        assert (await pane_of(app)).prompt.text == "the first question", "prompts are known again"


async def test_typing_is_saved_without_an_end_of_the_app(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("x"), tmp_path) as (_, pilot):
        await pilot.press(*"unsent")
        await wait_until(lambda: rows(tmp_path, "SELECT text FROM drafts") == [("unsent",)])
        await pilot.press("backspace")
        await wait_until(lambda: rows(tmp_path, "SELECT text FROM drafts") == [("unsen",)])


async def test_no_timer_runs_while_nothing_changes(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("x", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        keeper = app.keeper
        assert keeper is not None
        await wait_until(lambda: not keeper._due and not keeper._dirty)
        await wait_until(lambda: {timer.name for timer in app._timers if timer._active.is_set()} <= {"gpu"})
        assert not keeper._due


async def test_a_chat_in_which_nothing_happened_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("x"), tmp_path) as (_, pilot):
        await pilot.press("ctrl+n", "ctrl+n", "ctrl+g")
    assert rows(tmp_path, "SELECT count(*) FROM chats") == [(0,)]


async def test_a_second_app_says_that_the_chats_are_in_the_first(tmp_path: Path) -> None:
    first = opened(tmp_path)
    put(first, chat("q", "a"), chat("q", "a"))
    async with running_kept(ScriptedClient("x"), tmp_path, (120, 30)) as (app, _):
        await wait_until(lambda: "Another tui-infer has 2 open chats" in screen_text(app))
        assert [session.turns for session in app.state.sessions.values()] == [[]]
    first.close()


# --- closing ---------------------------------------------------------------------------------------


async def test_a_chat_closes_without_a_question_as_it_is_kept(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("answered", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "about rivers")
        await settled(app)
        await pilot.press("ctrl+g")
        await wait_until(lambda: "is kept; /chats finds it" in screen_text(app))
        assert isinstance(app.screen, MainScreen)
        await wait_until(lambda: rows(tmp_path, "SELECT title, archived FROM chats") == [("about rivers", 1)])
        assert not app.state.current.turns


async def test_closing_a_chat_that_answers_asks_and_says_that_its_text_is_kept(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 4000)
    async with running_kept(client, tmp_path) as (app, pilot):
        await ask(app, pilot, "go")
        session = app.state.current
        await wait_until(lambda: session.turns[1].text)
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, Ask))
        assert "are kept" in screen_text(app)
        assert "lost" not in screen_text(app)
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert session.busy
        await pilot.press("ctrl+g")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: session.id not in app.state.sessions)
        assert Cancel(session.id, 1) in client.sent
    text = session.turns[1].text
    assert text
    assert rows(tmp_path, "SELECT text, status FROM turns WHERE position = 1") == [(text, "cancelled")]


# --- deleting --------------------------------------------------------------------------------------


async def test_deleting_asks_cancels_and_leaves_nothing(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 4000)
    async with running_kept(client, tmp_path) as (app, pilot):
        await ask(app, pilot, "secret things")
        session = app.state.current
        await wait_until(lambda: rows(tmp_path, "SELECT count(*) FROM turns") == [(2,)])
        await ask(app, pilot, "/delete")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await wait_until(lambda: "Delete “secret things” with 2 messages?" in screen_text(app))
        await pilot.press("escape")
        await wait_until(lambda: isinstance(app.screen, MainScreen))
        assert session.id in app.state.sessions
        await ask(app, pilot, "/delete")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: rows(tmp_path, "SELECT count(*) FROM chats") == [(0,)])
        assert Cancel(session.id, 1) in client.sent
        assert session.id not in app.state.sessions
        await pane_of(app)
    assert rows(tmp_path, "SELECT count(*) FROM chats") == [(0,)]


async def test_deleting_tells_of_messages_in_other_versions_too(tmp_path: Path) -> None:
    async with running_kept(ScriptedClient("word", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "secret things")
        await settled(app)
        for _ in range(2):
            await ask(app, pilot, "/retry new")
            await settled(app)
        await ask(app, pilot, "/delete")
        await wait_until(lambda: "with 2 messages and 2 of" in screen_text(app))
        await pilot.press("escape")
        await pilot.press("ctrl+g")
        await wait_until(lambda: not app.state.current.turns)
        await pilot.press("ctrl+f")
        await wait_until(lambda: "secret things" in screen_text(app))
        await pilot.press("ctrl+d")
        await wait_until(lambda: "with 2 messages and 2 of" in screen_text(app))
        await pilot.press("escape", "escape")


# --- models that are gone --------------------------------------------------------------------------


async def test_a_chat_whose_model_is_gone_says_so_and_how_it_goes_on(tmp_path: Path) -> None:
    fill(tmp_path, chat("q", "an old answer", model="/no/such/folder"))
    client = ScriptedClient("new words", rate=1e5)
    async with running_kept(client, tmp_path, (120, 30)) as (app, pilot):
        await wait_until(lambda: "read only" in screen_text(app))
        assert "an old answer" in screen_text(app)
        assert "Its model is gone" in screen_text(app)
        await ask(app, pilot, "more")
        await wait_until(lambda: "Not sent" in screen_text(app))
        assert (await pane_of(app)).prompt.text == "more", "the draft stays"
        await pilot.press("ctrl+u")
        await ask(app, pilot, "/adopt")
        await wait_until(lambda: "read only" not in screen_text(app))
        await ask(app, pilot, "more")
        await settled(app)
        assert app.state.current.turns[-1].text == "new words"
        assert len(client.sent[-1].prompt) == 3  # type: ignore[union-attr]


# --- trouble ---------------------------------------------------------------------------------------


async def test_a_full_disk_is_told_and_the_chat_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, error = chat_write.write_chat, sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(chat_write, "write_chat", fails)
    async with running_kept(ScriptedClient("the answer", rate=1e5), tmp_path, (120, 30)) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await wait_until(lambda: "The disk is full" in screen_text(app))
        assert "the answer" in screen_text(app)
        await pilot.press("ctrl+c")  # a second one would quit, and what was said would be gone
        await wait_until(lambda: "/export chat FILE.json all" in screen_text(app))
        assert "again to quit" in screen_text(app)
        monkeypatch.setattr(chat_write, "write_chat", write)
    assert rows(tmp_path, "SELECT text FROM turns ORDER BY position") == [("hello",), ("the answer",)]


def test_without_a_store_nothing_is_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUI_INFER_DATA_DIR", str(tmp_path / "data"))
    app = TuiInferApp(ScriptedClient("x"), settings=Settings())
    assert app.keeper is None
    assert app.archive.finish() == ""
    assert not (tmp_path / "data").exists()


# --- budgets ---------------------------------------------------------------------------------------


async def test_a_start_with_200_chats_and_2000_turns_takes_little_time(tmp_path: Path) -> None:
    text = "an answer of some length, as they are, with words in it. " * 20
    fill(tmp_path, *[chat(*[f"{number} {text}" for _ in range(10)]) for number in range(200)])
    assert rows(tmp_path, "SELECT count(*) FROM turns") == [(2000,)]
    started = time.process_time()
    async with running_kept(ScriptedClient("x"), tmp_path, (160, 48)) as (app, _):
        await pane_of(app)
        took = time.process_time() - started
        assert len(app.state.sessions) == 200
        loaded = [session for session in app.state.sessions.values() if session.loaded]  # type: ignore[attr-defined]
        assert len(loaded) <= 4, "only what is shown is read"
    print(f"start: {took:.2f} s of computing")
    assert took < most(START_S)


def test_saving_four_streams_costs_little(tmp_path: Path) -> None:
    """Four answers of 30,000 tokens each, saved twice a second for a minute, on the loop's side."""
    sessions = [chat("q") for _ in range(4)]
    known = [Saved() for _ in sessions]
    for session in sessions:
        session.begin_answer()
        session.turns[-1].append("word " * 30_000, list(range(30_000)))
        session.history_ids = list(range(30_000))
    known = [take(one, had, meta_of(one, None, ""), Draft())[1] for one, had in zip(sessions, known)]
    started = time.process_time()
    for second in range(120):
        for at, session in enumerate(sessions):
            session.turns[-1].append("word " * 30, list(range(second, second + 30)))
            write, known[at] = take(session, known[at], meta_of(session, None, ""), Draft())
            assert write is not None
            assert len(write.pieces[0].text) == 150
    took = time.process_time() - started
    assert took < most(1.0), f"{took:.2f} s of 60 s"


async def test_a_reader_who_comes_back_is_not_told_of_new_text_where_there_is_none(tmp_path: Path) -> None:
    client = ScriptedClient("\n\n".join(f"paragraph {number}" for number in range(60)), rate=4000)
    async with running_kept(client, tmp_path) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.press("pageup", "pageup")
        assert not app.main.visible_panes[0].transcript.following
    async with running_kept(ScriptedClient("x"), tmp_path, size=(70, 24)) as (app, pilot):
        await wait_until(lambda: "paragraph" in screen_text(app))
        assert not app.main.visible_panes[0].transcript.following
        assert "new text below" not in screen_text(app)
        await pilot.resize_terminal(50, 24)
        await pilot.pause()
        assert "new text below" not in screen_text(app)
