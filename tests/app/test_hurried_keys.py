"""Keys that come faster than dialogs do: each goes where it was meant, or nowhere; nothing ends the app."""

from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from tests.app.driving import ask, focused_pane, running, settled
from tests.app.scripted import ScriptedClient
from tests.app.stored import chat, opened, put, rows, running_kept
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp

PAIRS = [
    "enter enter", "enter escape", "enter alt+r", "enter ctrl+d", "enter ctrl+g", "escape escape",
    "escape ctrl+g", "escape alt+r n n", "escape enter", "ctrl+g ctrl+g", "ctrl+g escape", "alt+r alt+r",
    "alt+r escape escape", "alt+r enter enter escape", "ctrl+d ctrl+d", "ctrl+d y y", "ctrl+d y escape",
    "ctrl+d enter escape ctrl+f",
]  # fmt: skip


def hurried(app: TuiInferApp, keys: str) -> None:
    """All of these in the app's queue at once."""
    for key in keys.split():
        app.post_message(events.Key(key, key if len(key) == 1 else None))


async def back(app: TuiInferApp, pilot: Pilot[int]) -> None:
    """Out of every dialog that is still there."""
    await pilot.pause()
    for _ in range(8):
        await pilot.press("escape")
        if app.screen is app.main:
            break
    await wait_until(lambda: app.screen is app.main and focused_pane(app), what="the prompt")


@pytest.mark.parametrize("keys", PAIRS)
async def test_hurried_keys_in_the_list_of_chats_leave_it_or_not(keys: str, tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, *(chat(f"question {number}", "answer") for number in range(3)), archived=True)
    store.close()
    async with running_kept(ScriptedClient("an answer", rate=1e5), tmp_path) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.press("ctrl+f")
        await pilot.pause()
        hurried(app, keys)
        await back(app, pilot)
        await ask(app, pilot, "still there?")
        await wait_until(lambda: ("still there?",) in rows(tmp_path, "SELECT text FROM turns"), what="a save")


@pytest.mark.parametrize(
    "opening", ["f1", "f10", "alt+m", "alt+p", "alt+r", "alt+c", "ctrl+p", "f7", "ctrl+g"]
)
@pytest.mark.parametrize(
    "keys", ["escape escape", "enter escape", "enter enter", "escape enter", "y n", "n y"]
)
async def test_hurried_keys_in_a_dialog_never_take_the_main_screen_away(opening: str, keys: str) -> None:
    async with running(ScriptedClient("an answer", rate=1e5)) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        hurried(app, f"{opening} {keys}")
        await back(app, pilot)
        await wait_until(lambda: app.state.phase == "ready")
        await ask(app, pilot, "still there?")
        await settled(app)
        assert app.state.current.turns[-1].text == "an answer"


@pytest.mark.parametrize(
    ("keys", "draft"),
    [
        ("o l d ctrl+u n e w", "new"),
        ("h e l p backspace l o", "hello"),
        ("a c left b end d", "abcd"),
        ("o n e ctrl+w t w o", "two"),
        ("a b home delete c", "cb"),
    ],
)
async def test_hurried_editing_keys_edit_what_was_typed_before_them(keys: str, draft: str) -> None:
    async with running(ScriptedClient("x")) as (app, _):
        await wait_until(lambda: focused_pane(app))
        hurried(app, keys)
        await wait_until(lambda: app.state.current.draft == draft, what=f"{draft}")


async def test_a_command_typed_in_one_piece_is_obeyed_though_its_first_letter_has_offered_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(ScriptedClient("an answer", rate=1e5)) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.press("slash")
        await pilot.pause()  # the list is there and begins with another command
        for character in "export chat chat.md":
            app.post_message(events.Key("space" if character == " " else character, character))
        app.post_message(events.Key("enter", None))
        await wait_until((tmp_path / "chat.md").exists, what="the file")
        assert len(app.state.sessions) == 1
