"""Keys by id: what is bound acts and is shown, what it was does not; what cannot work is told."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.command import CommandPalette

from engine.errors import ConfigError
from tests.app.driving import pane_of, running, screen_text
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.config import Settings, load_settings
from tui_infer.keymap import (
    APP,
    KeymapProblem,
    KeyNames,
    all_keys,
    check_keymap,
    contexts,
    effective,
    short_key,
)

PREFIXES = {"ctrl+b", "ctrl+a", "ctrl+s", "ctrl+q", "ctrl+z"}  # of multiplexers, and the terminal's own
SAME_BYTE = {"ctrl+i", "ctrl+m", "ctrl+h", "ctrl+left_square_bracket"}


def test_default_keys_are_neither_ambiguous_nor_a_multiplexers_prefix_and_each_can_be_bound() -> None:
    for id, keys in effective({}).items():
        assert not set(keys.split(",")) & (PREFIXES | SAME_BYTE), id
        assert check_keymap({id: "ctrl+f12"}) == {id: "ctrl+f12"}


def test_ids_are_unique_and_all_defaults_are_keys_that_could_be_bound() -> None:
    ids = [key.id for key in all_keys()]
    assert len(ids) == len(set(ids))
    for key in contexts()[APP]:
        assert check_keymap({key.id: key.keys}) == {key.id: key.keys}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("^y", "ctrl+y"), ("Ctrl+Y", "ctrl+y"), ("control+y", "ctrl+y"), ("shift+alt+up", "alt+shift+up"),
        ("F11", "f11"), ("f11, ctrl+y", "f11,ctrl+y"), ("ctrl+?", "ctrl+question_mark"),
        ("alt+pgup", "alt+pageup"), ("alt++", "alt+plus"), ("ctrl+del", "ctrl+delete"),
    ],
)  # fmt: skip
def test_keys_are_understood_as_people_write_them(written: str, name: str) -> None:
    assert check_keymap({"new": written}) == {"new": name}


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ({"new": "ctrl+i"}, ["'ctrl+i'", "Tab"]),
        ({"new": "ctrl+m"}, ["'ctrl+m'", "Enter"]),
        ({"new": "ctrl+h"}, ["'ctrl+h'", "Backspace"]),
        ({"new": "ctrl+["}, ["'ctrl+['", "Esc"]),
        ({"new": "a"}, ["prompt", "'a'", "typed"]),
        ({"new": "?"}, ["prompt", "'?'"]),
        ({"new": "shift+k"}, ["prompt", "typed"]),
        ({"new": "enter"}, ["prompt", "'enter'", "sends"]),
        ({"new": "ctrl+j"}, ["prompt", "new line"]),
        ({"new": "left"}, ["prompt", "moves"]),
        ({"new": "f5"}, ["F5", "'layout'"]),
        ({"new": "f12", "close": "f12"}, ["F12", "'new'"]),
        ({"new": "ctrl+p"}, ["^p", "'palette'"]),
        ({"neww": "f12"}, ["'neww'", "no id"]),
        ({"new": "f25"}, ["'f25'", "no key"]),
        ({"new": "hyperspace"}, ["'hyperspace'", "no key"]),
        ({"new": "ctrl+ctrl+x"}, ["no key"]),
        ({"new": ""}, ["names no key"]),
        ({"new": "f12,"}, ["names no key"]),
        ({"panel-hide": "k"}, ["panels", "'k'"]),
        ({"panel-hide": "z"}, ["z", "'panel-enlarge'"]),
        ({"panel-hide": "ctrl+t"}, ["^t", "'theme'"]),
        ({"panel-hide": "["}, ["[", "'jump-eager-back'"]),
        ({"jump-eager-back": "z"}, ["z", "'panel-enlarge'"]),
        ({"jump-eager-back": "left"}, ["panels", "'left'"]),
        ({"past-back": "["}, ["[", "'jump-eager-back'"]),
        ({"past-back": "end"}, ["End", "'past-newest'"]),
        ({"past-back": "f5"}, ["F5", "'layout'"]),
        ({"zoom": "shift+left"}, ["⇧←", "'past-back-10'"]),
        ({"past-back": "4"}, ["timeline", "'4'"]),
        ({"past-on": "enter"}, ["timeline", "'enter'"]),
    ],
)
def test_clashes_unknown_ids_and_keys_that_cannot_work_are_told(
    bound: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(KeymapProblem) as caught:
        check_keymap(bound)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint
    assert caught.value.id in bound


def test_a_clash_names_both_ids_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[keys]\nclose = 'f12'\nnew = 'f12'\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    for word in (f"{path}:", "keys.", "F12", "'close'", "'new'"):
        assert word in str(caught.value)


def test_an_unknown_id_lists_those_that_may_be_meant() -> None:
    with pytest.raises(KeymapProblem) as caught:
        check_keymap({"inspektor": "f12"})
    assert "inspector" in caught.value.hint


def test_two_ids_may_change_their_keys() -> None:
    assert check_keymap({"new": "f5", "layout": "ctrl+n"}) == {"new": "f5", "layout": "ctrl+n"}


def test_keys_of_another_screen_are_no_clash() -> None:
    assert check_keymap({"new": "ctrl+d"}) == {"new": "ctrl+d"}  # deletes in the list of chats
    with pytest.raises(KeymapProblem, match="'quit'"):
        check_keymap({"chats-delete": "ctrl+c"})


@given(st.text(max_size=12))
def test_any_text_is_a_key_or_a_problem(text: str) -> None:
    try:
        checked = check_keymap({"new": text})["new"]
    except KeymapProblem:
        return
    assert check_keymap({"new": checked})["new"] == checked


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("f1", "F1"), ("ctrl+n", "^n"), ("escape", "Esc"), ("alt+1", "Alt+1"), ("shift+tab", "⇧Tab"),
        ("shift+up", "⇧↑"), ("tab", "Tab"), ("question_mark", "?"), ("alt+ctrl+delete", "Alt+Ctrl+Delete"),
        ("ctrl+question_mark", "^?"), ("K", "K"), ("pageup", "PgUp"),
    ],
)  # fmt: skip
def test_keys_are_shown_as_people_write_them(key: str, shown: str) -> None:
    assert short_key(key) == shown


def test_hints_name_the_first_key_of_several() -> None:
    names = KeyNames({"past": "alt+z,f9"})
    assert names["past"] == "Alt+z"
    assert names["help"] == "F1"


# --- in the app ------------------------------------------------------------------------------------


async def test_a_rebound_key_acts_and_the_one_before_does_not() -> None:
    settings = Settings(keys={"new": "ctrl+y,f12"})
    async with running(ScriptedClient("x"), settings=settings) as (app, pilot):
        await pilot.press("ctrl+n")
        assert len(app.state.sessions) == 1
        await pilot.press("ctrl+y")
        assert len(app.state.sessions) == 2
        await pilot.press("f12")
        assert len(app.state.sessions) == 3


async def test_keys_that_were_swapped_do_what_the_other_did() -> None:
    settings = Settings(keys={"new": "f5", "layout": "ctrl+n"})
    async with running(ScriptedClient("x"), settings=settings) as (app, pilot):
        await pilot.press("f5")
        assert len(app.state.sessions) == 2
        layout = app.state.layout.name
        await pilot.press("ctrl+n")
        assert (len(app.state.sessions), app.state.layout.name == layout) == (2, False)


async def test_the_palettes_and_the_quit_key_are_bound_by_id_on_every_screen() -> None:
    settings = Settings(keys={"palette": "f12", "quit": "ctrl+x"})
    async with running(ScriptedClient("x"), settings=settings) as (app, pilot):
        await pilot.press("ctrl+p")
        assert app.screen is app.main
        await pilot.press("f12")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press("escape")
        await pilot.press("f1")
        await pilot.press("ctrl+x")
        await wait_until(lambda: "Press ^x again" in screen_text(app))


async def test_a_panels_key_acts_as_it_is_bound_and_stands_in_the_key_bar() -> None:
    settings = Settings(keys={"panel-enlarge": "e"}, inspector="side")
    async with running(ScriptedClient("x"), size=(160, 48), settings=settings) as (app, pilot):
        await pilot.press("ctrl+o")
        await wait_until(lambda: " e enlarge" in screen_text(app))
        await pilot.press("z")
        assert not app.state.arrangement.enlarged
        await pilot.press("e")
        assert app.state.arrangement.enlarged


async def test_hints_help_key_bar_and_palette_show_the_effective_keys() -> None:
    settings = Settings(keys={"new": "ctrl+y", "help": "f12", "past": "f11"})
    async with running(ScriptedClient("x"), size=(160, 48), settings=settings) as (app, pilot):
        await pane_of(app)
        await wait_until(lambda: "^y another chat   F12 all keys" in screen_text(app))
        assert "^y new" in screen_text(app).splitlines()[-1]
        assert "^n" not in screen_text(app)
        await pilot.press("f12")
        await wait_until(lambda: "new chat" in screen_text(app))
        text = screen_text(app)
        assert "^y" in text
        assert "^n " not in text
        assert "F11" in text
        assert "F9" not in text
        await pilot.press("f12")
        assert app.screen is app.main
        await pilot.press("ctrl+p")
        await pilot.press(*"new chat")
        await wait_until(lambda: "^y · new chat" in screen_text(app))
