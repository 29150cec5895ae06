"""The mouse is never needed: every action has a key or an entry in the palette, and all of them run."""

from pathlib import Path

import pytest
from textual.actions import parse

from tests.app.driving import ask, pane_of, running, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.commands import Command, TuiCommands
from tui_infer.config import Settings
from tui_infer.keymap import APP, contexts, effective
from tui_infer.keys import KEYS
from tui_infer.widgets.bar import PartsBar

ENDS = {"app.quit"}


def commands(app: TuiInferApp) -> list[Command]:
    return list(TuiCommands(app.screen)._commands())


async def back_to_the_chats(app: TuiInferApp) -> None:
    """Close what a command opened."""
    while app.screen is not app.main:
        await app.pop_screen()
    if app.state.moment is not None:
        app.time.leave()


async def test_every_key_of_the_app_runs_its_action_and_has_an_entry_in_the_palette() -> None:
    async with running(ScriptedClient("x"), size=(160, 48)) as (app, pilot):
        offered = {command.action for command in commands(app)}
        ran: list[str] = []

        async def only_remember(action: str, *_: object, **__: object) -> bool:
            ran.append(action)
            return True

        run_action, app.run_action = app.run_action, only_remember  # type: ignore[method-assign, assignment]
        for key in contexts()[APP]:
            for name in effective({})[key.id].split(","):
                ran.clear()
                await pilot.press(name)
                assert ran == [key.action], key.id
        app.run_action = run_action  # type: ignore[method-assign]
        for key in KEYS:
            if key.group:  # the others go to a chat by number, which the palette has by title
                assert key.action in offered, key.id


async def test_what_can_be_clicked_in_the_bars_has_a_key_or_an_entry_in_the_palette() -> None:
    async with running(ScriptedClient("yes " * 200, graphs=True), size=(160, 48)) as (app, pilot):
        await pilot.press("ctrl+n")
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.active == 1)
        reachable = {key.action for keys in contexts().values() for key in keys}
        reachable |= {command.action for command in commands(app)}
        bars = [bar for bar in app.main.query(PartsBar) if type(bar).parts is not PartsBar.parts]
        clicked = {part.action for bar in bars for part in bar.parts(bar.size.width) if part.action}
        assert len(clicked) > 5
        assert clicked <= reachable


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_every_entry_of_the_palette_runs(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # exports and recordings go there
    client = ScriptedClient("some words " * 10, rate=1000, graphs=True)
    async with running(client, size=size, settings=Settings(inspector="side")) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        await pilot.press("ctrl+n")
        entries = commands(app)
        assert len(entries) > 60
        for command in entries:
            if command.action in ENDS or command.action not in {each.action for each in commands(app)}:
                continue
            name = parse(command.action)[1]
            assert hasattr(app, f"action_{name}"), command
            await app.run_action(command.action)
            await pilot.pause()
            await back_to_the_chats(app)
        if app.state.paused:
            app.action_toggle_pause()
        await pilot.pause()
        assert app.is_running
        app.main.show_chats()
        await pane_of(app)
        await ask(app, pilot, "still here")
        await settled(app)


async def test_the_last_entry_of_the_palette_quits() -> None:
    async with running(ScriptedClient("x")) as (app, _):
        assert commands(app)[-1].action in ENDS
        await app.run_action(commands(app)[-1].action)
        assert app.return_code == 0
