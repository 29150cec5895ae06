"""The key bar: what matters now comes first, and what stands there fits."""

import pytest

from tests.app.driving import ask, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.widgets.chat.messages import Messages


def bar(app: TuiInferApp) -> str:
    return screen_text(app).splitlines()[-1]


async def test_on_a_narrow_screen_the_keys_of_chats_come_before_those_of_the_engine() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        await wait_until(lambda: "^p palette" in bar(app))
        for words in ("F1 help", "^n new", "^l copy", "Alt+p params", "Alt+c compare"):
            assert words in bar(app)
        assert "Tab" not in bar(app)
        assert "Esc" not in bar(app)
        await pilot.press("ctrl+n")
        await wait_until(lambda: "Tab next" in bar(app))


async def test_while_the_focused_chat_answers_its_stop_comes_first_and_names_it_among_others() -> None:
    async with running(ScriptedClient("word " * 400), size=(80, 24)) as (app, pilot):
        await ask(app, pilot, "hello")
        await wait_until(lambda: bar(app).startswith(" Esc stop "))
        assert "Esc stop A" not in bar(app)
        await pilot.press("ctrl+n")
        await wait_until(lambda: "Esc" not in bar(app))
        await ask(app, pilot, "hello")
        await wait_until(lambda: bar(app).startswith(" Esc stop B "))
        assert "Tab next" in bar(app)
        await pilot.press("tab")
        await wait_until(lambda: bar(app).startswith(" Esc stop A "))
        await pilot.press("escape")
        await wait_until(lambda: "Esc" not in bar(app))


@pytest.mark.parametrize("width", [80, 140])
async def test_while_all_get_what_is_sent_stop_and_the_focused_pane_are_plain_to_see(width: int) -> None:
    settings = Settings(layout="2", inspector="hidden")
    async with running(ScriptedClient("word " * 400), size=(width, 24), settings=settings) as (app, pilot):
        await pilot.press("ctrl+n", "alt+a")
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.active == 2 and "Esc stop B" in bar(app))
        assert "Tab next" in bar(app)
        assert "⇉ to all 2 shown, Alt+a ends it" in bar(app)
        await wait_until(lambda: "▶ ⇉ ● B" in screen_text(app))
        assert screen_text(app).count("▶") == 1
        await pilot.press("tab")
        await wait_until(lambda: "▶ ⇉ ● A" in screen_text(app) and "Esc stop A" in bar(app))
        await pilot.press("escape")
        await wait_until(lambda: app.state.active == 1)
        assert app.state.sessions["chat-2"].busy


async def marked(app: TuiInferApp, pilot) -> Messages:  # type: ignore[no-untyped-def]
    await ask(app, pilot, "hello")
    await settled(app)
    await pilot.press("ctrl+l")
    await pilot.pause()
    pane = app.main.visible_panes[0]
    assert pane.transcript.cursor is not None
    return pane.transcript


async def test_a_branch_and_versions_stay_in_a_narrow_bar_of_the_messages() -> None:
    async with running(ScriptedClient("one\n\ntwo\n\n```\ncode\n```\n", rate=2000), size=(80, 24)) as (
        app,
        pilot,
    ):
        await marked(app, pilot)
        await pilot.press("n")
        await wait_until(lambda: "← → version" in bar(app))
        for words in ("c copy", "e edit", "f branch", "Esc back"):
            assert words in bar(app)
        await pilot.press("up")
        await wait_until(lambda: "prompt 1" in bar(app))
        for words in ("again", "new", "go"):
            assert words not in bar(app)
        assert "e edit" in bar(app)
        assert "f branch" in bar(app)


async def test_while_lines_are_chosen_the_bar_tells_their_keys() -> None:
    async with running(ScriptedClient("one\n\ntwo\n\nthree\n", rate=2000), size=(80, 24)) as (app, pilot):
        await marked(app, pilot)
        await pilot.press("v")
        await wait_until(lambda: " 1 line " in bar(app))
        for words in ("⇧↑ ⇧↓ extend", "c copy", "Esc back"):
            assert words in bar(app)
        assert "branch" not in bar(app)
        await pilot.press("shift+down")
        await wait_until(lambda: " 2 lines " in bar(app))
        await pilot.press("escape")
        await wait_until(lambda: "f branch" in bar(app))
