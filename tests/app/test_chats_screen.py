"""The list of all chats: finding, opening at the hit, archiving, renaming, deleting, by keys alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.app.driving import ask, pane_of, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.app.stored import chat, opened, put, rows, running_kept
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.screens.ask import Ask, Rename
from tui_infer.screens.chats import ChatsScreen
from tui_infer.screens.main import MainScreen

LONG = "\n\n".join(f"paragraph {number} of the answer" for number in range(120))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two archived chats and one that the last run had open."""
    store = opened(tmp_path)
    put(store, chat("where is 東京", LONG.replace("70 of", "70 NEEDLE of"), title="old one"), archived=True)
    put(store, chat("q", "[/red] not markup", title="[bold]odd[/] title"), archived=True)
    put(store, chat("open question", "open answer"))
    store.close()
    return tmp_path


@asynccontextmanager
async def listing(
    folder: Path, size: tuple[int, int] = (120, 36), words: str = ""
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    async with running_kept(ScriptedClient("x", rate=1e5), folder, size) as (app, pilot):
        await pilot.press("ctrl+f")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))
        await wait_until(lambda: "3 chats" in screen_text(app))
        if words:
            await pilot.press(*words)
        yield app, pilot


async def back(app: TuiInferApp) -> None:
    await wait_until(lambda: isinstance(app.screen, MainScreen), what="the main screen")


async def test_all_chats_are_listed_with_title_size_model_and_what_they_are(folder: Path) -> None:
    async with listing(folder) as (app, _):
        lines = screen_text(app).splitlines()
        archived = next(line for line in lines if "old one" in line)
        assert "▫" in archived
        assert "SmolLM2" in archived
        assert "2 msg" in archived
        assert "○ A" in next(line for line in lines if "○ A  open question" in line)
        assert "[bold]odd[/] title" in screen_text(app), "titles are no markup"


async def test_enter_opens_an_archived_chat_at_the_place_that_was_found(folder: Path) -> None:
    async with listing(folder, words="needle") as (app, pilot):
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app))
        assert "70 NEEDLE of the answer" in screen_text(app)
        await pilot.press("enter")
        await back(app)
        assert app.state.current.title == "old one"
        pane = await pane_of(app)
        await wait_until(lambda: "NEEDLE" in pane.transcript.marked_text)
        assert "paragraph 70 NEEDLE" in screen_text(app)
        await wait_until(lambda: rows(folder, "SELECT count(*) FROM chats WHERE archived") == [(1,)])
    async with running_kept(ScriptedClient("x"), folder) as (app, _):
        assert [session.title for session in app.state.sessions.values()] == ["open question", "old one"]


async def test_words_of_an_open_chat_lead_to_its_pane(folder: Path) -> None:
    async with listing(folder) as (app, pilot):
        await pilot.press("escape", "ctrl+n")
        await back(app)
        await ask(app, pilot, "/chats open answer")
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app))
        await pilot.press("enter")
        await back(app)
        assert app.state.current.title == "open question"
        assert len(app.state.sessions) == 2


async def test_an_answer_is_found_while_it_streams(tmp_path: Path) -> None:
    client = ScriptedClient("word " * 200 + "NEEDLE " + "word " * 4000, rate=400)
    async with running_kept(client, tmp_path, (120, 36)) as (app, pilot):
        await ask(app, pilot, "go")
        await wait_until(lambda: "NEEDLE" in app.state.current.turns[1].text)
        await pilot.press("ctrl+f", *"needle")
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app))
        await wait_until(lambda: "● A" in screen_text(app))
        app.state.cancel(app.state.focused)
        await wait_until(lambda: "■ A" in screen_text(app), what="the mark as it is now")


async def test_nothing_found_says_so_and_enter_does_nothing(folder: Path) -> None:
    async with listing(folder, words="nowhere") as (app, pilot):
        await wait_until(lambda: "Nothing was found" in screen_text(app))
        await pilot.press("enter", "ctrl+d", "ctrl+g", "alt+r")
        assert isinstance(app.screen, ChatsScreen)


async def test_delete_asks_and_takes_a_chat_out_for_good(folder: Path) -> None:
    async with listing(folder, words="東京") as (app, pilot):
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app))
        await pilot.press("ctrl+d")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await wait_until(lambda: "Delete “old one” with 2 messages?" in screen_text(app))
        await pilot.press("n")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))
        assert rows(folder, "SELECT count(*) FROM chats") == [(3,)]
        await pilot.press("delete")
        await wait_until(lambda: isinstance(app.screen, Ask))
        await pilot.press("y")
        await wait_until(lambda: "Nothing was found" in screen_text(app))
        assert rows(folder, "SELECT count(*) FROM chats") == [(2,)]


async def test_archive_and_back_by_one_key(folder: Path) -> None:
    async with listing(folder, words="open") as (app, pilot):
        await wait_until(lambda: "1 chat" in screen_text(app) and "○ A" in screen_text(app))
        await pilot.press("ctrl+g")
        await wait_until(lambda: "▫    open question" in screen_text(app))
        assert rows(folder, "SELECT count(*) FROM chats WHERE archived") == [(3,)]
        assert "take out of the archive" in screen_text(app)
        await pilot.press("ctrl+g")
        await wait_until(lambda: "open question" in [one.title for one in app.state.sessions.values()])
        await wait_until(lambda: rows(folder, "SELECT count(*) FROM chats WHERE archived") == [(2,)])


@pytest.mark.parametrize("words", ["old one", "open"])
async def test_a_chat_gets_another_title_open_or_not(folder: Path, words: str) -> None:
    async with listing(folder, words=words) as (app, pilot):
        await wait_until(lambda: "1 chat" in screen_text(app))
        await pilot.press("alt+r")
        await wait_until(lambda: isinstance(app.screen, Rename))
        await pilot.press("end", *" again", "enter")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))
        await wait_until(lambda: "again" in screen_text(app))
        await wait_until(lambda: len(rows(folder, "SELECT 1 FROM chats WHERE title LIKE '% again'")) == 1)


async def test_a_chat_of_another_process_is_shown_and_refused(folder: Path) -> None:
    other = opened(folder)
    try:
        async with running_kept(ScriptedClient("x"), folder, (120, 36)) as (app, pilot):
            await pilot.press("ctrl+f")
            await wait_until(lambda: "open in another tui-infer" in screen_text(app))
            await pilot.press("enter")
            await wait_until(lambda: "Not opened" in screen_text(app))
            await pilot.press("escape")
            await back(app)
            assert len(app.state.sessions) == 1
    finally:
        other.close()


async def test_without_a_store_the_list_has_the_open_chats(tmp_path: Path) -> None:
    async with running(ScriptedClient("the needle", rate=1e5), (100, 30)) as (app, pilot):
        await ask(app, pilot, "one")
        await settled(app)
        await pilot.press("ctrl+n", "ctrl+f")
        await wait_until(lambda: "1 chat" in screen_text(app), what="the chat in which something was said")
        await pilot.press(*"needle")
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app))
        await pilot.press("enter")
        await back(app)
        assert app.state.current.title == "one"


@pytest.mark.parametrize("size", [(160, 48), (100, 30), (80, 24), (44, 13)])
async def test_every_row_fits_at_every_size(folder: Path, size: tuple[int, int]) -> None:
    async with listing(folder, size) as (app, _):
        await wait_until(lambda: "old one" in screen_text(app))
        lines = screen_text(app).splitlines()
        assert len(lines) == size[1]
        row = next(line for line in lines if "old one" in line)
        assert "2 msg" in row
        assert "Enter go there" in screen_text(app)


async def test_typing_quickly_shows_what_was_typed_last(folder: Path) -> None:
    async with listing(folder) as (app, pilot):
        await pilot.press(*"open", *["backspace"] * 4, *"odd")
        await wait_until(lambda: "1 hit in 1 chat" in screen_text(app) and "odd[/]" in screen_text(app))
        screen = app.screen
        assert isinstance(screen, ChatsScreen)
        assert [entry.title for entry in screen._entries.values()] == ["[bold]odd[/] title"]
