"""The help: where the focus is comes first, all of it can be searched, and it knows topics."""

from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Static

from tests.app.driving import ask, pane_of, running, screen_text
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.help_topics import matching, topic_of
from tui_infer.keymap import KeyNames, contexts
from tui_infer.screens.chats import ARCHIVED, ELSEWHERE
from tui_infer.screens.help import HelpScreen, all_sections
from tui_infer.slash import COMMANDS

ALL = all_sections(KeyNames())


def first_title(app: TuiInferApp) -> str:
    """The first heading in the help."""
    box = app.screen.query_one("#left", Static).region
    line = screen_text(app).splitlines()[box.y]
    return line[box.x : box.right].strip()


def test_every_key_with_an_id_and_every_command_is_in_the_help() -> None:
    rows = {(section.title, label) for section in ALL for _, label in section.rows}
    for keys in contexts().values():
        for key in keys:
            assert not key.group or (key.group, key.label) in rows, key.id
    words = {key for section in ALL for key, _ in section.rows}
    assert {f"/{name}" for name in COMMANDS} <= words


@pytest.mark.parametrize(
    ("topic", "title"),
    [("prompt", "Prompt"), ("panel kv", "Panel KV"), ("Looking back", "Looking back"), ("comm", "Commands")],
)
def test_a_topic_is_a_heading_or_its_beginning(topic: str, title: str) -> None:
    assert topic_of(topic, [section.title for section in ALL], COMMANDS) == (title, "", "")


def test_a_commands_name_is_a_topic_and_what_is_none_lists_the_topics() -> None:
    titles = [section.title for section in ALL]
    assert topic_of("/until", titles, COMMANDS) == ("Commands", "/until", "")
    title, words, problem = topic_of("weather", titles, COMMANDS)
    assert (title, words) == ("", "")
    assert "'weather'" in problem
    assert "prompt" in problem


def test_all_words_must_be_in_a_row_or_its_heading() -> None:
    found = matching(ALL, "engine RESTART")
    assert [section.title for section in found] == ["Engine"]
    assert found[0].rows == (("F7", "restart the engine"),)
    assert matching(ALL, "xyzzy") == []


@pytest.mark.parametrize(
    ("keys", "title"),
    [
        ((), "Prompt (here)"),
        (("ctrl+o", "3"), "Panel KV (here)"),
        (("ctrl+l",), "Messages (here)"),
        (("f9",), "Looking back (here)"),
    ],
)
async def test_the_help_begins_with_the_keys_of_where_the_focus_is(keys: tuple[str, ...], title: str) -> None:
    settings = Settings(inspector="side")
    client = ScriptedClient("a few words " * 2000)  # a short answer may be over before a step was told
    async with running(client, size=(160, 48), settings=settings) as (app, pilot):
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.newest_step > 0)
        await pilot.press(*keys)
        await pilot.press("f1")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        assert first_title(app) == title
        await pilot.press("f1")
        assert app.screen is app.main


@pytest.mark.parametrize("size", [(160, 48), (80, 24), (44, 13)])
async def test_typing_searches_the_help_and_escape_goes_back_by_one_step(size: tuple[int, int]) -> None:
    async with running(ScriptedClient("x"), size=size) as (app, pilot):
        await pilot.press("f1")
        await pilot.press(*"until")
        await wait_until(lambda: "/until" in screen_text(app))
        assert "F10" in screen_text(app)
        assert "Alt+r" not in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        await pilot.press(*"xyzzy")
        await wait_until(lambda: "Nothing is like this" in screen_text(app))
        await pilot.press("escape", "escape")
        assert app.screen is app.main


async def test_the_help_scrolls_by_keys_where_it_does_not_fit() -> None:
    async with running(ScriptedClient("x"), size=(80, 24)) as (app, pilot):
        await pilot.press("f1", "end")
        await wait_until(lambda: "something new to read" in screen_text(app))
        await pilot.press("home")
        await wait_until(lambda: "Prompt (here)" in screen_text(app))


async def test_help_on_a_topic_begins_with_it_and_an_unknown_one_keeps_the_prompt() -> None:
    async with running(ScriptedClient("x"), size=(100, 30)) as (app, pilot):
        pane = await pane_of(app)
        pane.prompt.insert("/help weather [/red]")
        await pilot.press("enter")
        await wait_until(lambda: "There is no help on 'weather [/red]'" in screen_text(app))
        assert pane.prompt.text == "/help weather [/red]"
        pane.prompt.text = "/help engine"
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        assert first_title(app) == "Engine"


@pytest.mark.parametrize(
    ("words", "key"), [("temp", "Alt+p"), ("seed", "Alt+p"), ("rebind", "  --keys"), ("config", "  --init")]
)
def test_words_that_people_look_for_find_the_key(words: str, key: str) -> None:
    assert key in [found for section in matching(ALL, words) for found, _ in section.rows]


@pytest.mark.parametrize(
    ("topic", "title"), [("keys", "Chats"), ("config", "Settings"), ("rebind", "Settings")]
)
def test_keys_and_config_are_topics(topic: str, title: str) -> None:
    assert topic_of(topic, [section.title for section in ALL], COMMANDS) == (title, "", "")


def test_every_mark_that_chats_have_is_in_the_help() -> None:
    marks = next(section for section in ALL if section.title == "Marks")
    assert {"○", "◌", "◐", "●", "■", "✗", "*", "⇉", "⚙", "✎", "↳", ARCHIVED, ELSEWHERE} <= {
        mark for mark, _ in marks.rows
    }


@pytest.mark.parametrize("words", ["temperature", "seed", "rebind keys", "config file"])
async def test_the_palette_finds_parameters_and_settings_by_the_words_people_use(words: str) -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        await pilot.press("ctrl+p")
        await wait_until(lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*("space" if letter == " " else letter for letter in words))
        title = "Parameters: " if words in ("temperature", "seed") else "Settings: "
        await wait_until(lambda: title in screen_text(app))


async def test_the_palette_tells_where_the_settings_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUI_INFER_CONFIG_DIR", str(tmp_path))
    async with running(ScriptedClient("x")) as (app, _):
        await app.run_action("app.chat_command('settings', '')")
        await wait_until(lambda: app._notifications)
        (toast,) = app._notifications
        assert str(tmp_path / "config.toml") in toast.message
        assert "tui-infer config --init writes it" in toast.message
