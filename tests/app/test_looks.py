"""Themes while the app runs: a saved file is used at once, a broken one changes nothing and is told."""

import os
import time
from pathlib import Path

import pytest
from textual.color import Color

from tests.app.driving import running, screen_text
from tests.app.scripted import ScriptedClient
from tests.app.stored import opened, running_kept
from tests.budgets import most
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.looks import signature

MINE = 'name = "mine"\nbase = "deep-sea"\n[colors]\nbackground = "{color}"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder for themes."""
    monkeypatch.setenv("TUI_INFER_CONFIG_DIR", str(tmp_path))
    themes = tmp_path / "themes"
    themes.mkdir()
    return themes


def save(path: Path, text: str) -> None:
    """As an editor does it: another file takes the place."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, "utf-8")
    os.utime(beside, ns=(time.time_ns(), time.time_ns()))
    beside.replace(path)


def ground(app: TuiInferApp) -> str:
    return app.main.styles.background.hex6.lower()


def notices(app: TuiInferApp) -> str:
    return "\n".join(f"{toast.title}: {toast.message}" for toast in app._notifications)


async def test_saving_the_theme_in_use_changes_the_look_at_once(folder: Path) -> None:
    path = folder / "mine.toml"
    save(path, MINE.format(color="#101820"))
    async with running(ScriptedClient("x"), settings=Settings(theme="mine")) as (app, pilot):
        assert ground(app) == "#101820"
        save(path, MINE.format(color="#203040"))
        await wait_until(lambda: ground(app) == "#203040")
        await pilot.pause()
        drawn = {
            Color.from_rich_color(segment.style.bgcolor).hex6.lower()
            for line in app.screen._compositor.render_strips()
            for segment in line
            if segment.style and segment.style.bgcolor
        }
        assert "#203040" in drawn
        assert "#101820" not in drawn  # panels and transcript as well


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINE.format(color="blurple"), ["mine.toml", "colors.background", "'blurple'"]),
        ('name = "mine"\nbase = "deep-sea"\n[colors\n', ["mine.toml", "not valid TOML"]),
        ('name = "mine"\nbase = "atlantis"\n', ["mine.toml", "base", "'atlantis'"]),
    ],
)  # fmt: skip
async def test_a_broken_file_keeps_the_look_and_says_file_key_and_reason(
    folder: Path, text: str, words: list[str]
) -> None:
    path = folder / "mine.toml"
    save(path, MINE.format(color="#101820"))
    async with running(ScriptedClient("x"), settings=Settings(theme="mine")) as (app, _):
        save(path, text)
        await wait_until(lambda: "Theme stays as it was" in notices(app))
        assert all(word in notices(app) for word in words)
        assert (app.theme, ground(app)) == ("mine", "#101820")
        save(path, MINE.format(color="#304050"))
        await wait_until(lambda: ground(app) == "#304050")


async def test_a_users_broken_copy_of_a_shipped_theme_keeps_the_users_look(folder: Path) -> None:
    path = folder / "dark.toml"
    save(path, 'name = "dark"\nbase = "dark"\n[colors]\nbackground = "#101820"\n')
    async with running(ScriptedClient("x")) as (app, _):
        assert ground(app) == "#101820"
        save(path, 'name = "dark"\nbase = "dark"\n[colors]\nbackground = 3\n')
        await wait_until(lambda: "Theme stays as it was" in notices(app))
        assert ground(app) == "#101820"


async def test_new_themes_can_be_chosen_and_deleted_ones_stay_while_they_are_used(folder: Path) -> None:
    async with running(ScriptedClient("x")) as (app, _):
        assert "mine" not in app.theme_names
        path = folder / "mine.toml"
        save(path, MINE.format(color="#101820"))
        await wait_until(lambda: "mine" in app.theme_names)
        app.action_use_theme("mine")
        await wait_until(lambda: ground(app) == "#101820")
        path.unlink()
        save(folder / "other.toml", MINE.format(color="#203040").replace("mine", "other"))
        await wait_until(lambda: "other" in app.theme_names)
        assert (app.theme, ground(app)) == ("mine", "#101820")


async def test_a_wanted_theme_is_used_once_its_file_is_put_right(folder: Path) -> None:
    path = folder / "mine.toml"
    save(path, MINE.format(color="nothing"))
    async with running(ScriptedClient("x"), settings=Settings(theme="mine")) as (app, _):
        await wait_until(lambda: "unknown theme 'mine'" in notices(app))
        assert app.theme == "dark"
        save(path, MINE.format(color="#101820"))
        await wait_until(lambda: app.theme == "mine" and ground(app) == "#101820")


async def test_unknown_theme_broken_toml_and_a_bad_colour_give_the_built_in_one_and_a_toast(
    folder: Path,
) -> None:
    save(folder / "a.toml", "name = [")
    save(folder / "b.toml", MINE.format(color="[/red]").replace("mine", "b"))
    async with running(ScriptedClient("x"), size=(120, 40), settings=Settings(theme="gone")) as (app, pilot):
        await wait_until(lambda: "unknown theme 'gone'" in notices(app))
        await pilot.pause()
        assert app.theme == "dark"
        assert "a.toml: not valid TOML" in notices(app)
        assert "b.toml: colors.background = '[/red]'" in notices(app)
        assert "Theme not used" in screen_text(app)


async def test_going_through_the_themes_comes_round(folder: Path) -> None:
    async with running(ScriptedClient("x")) as (app, pilot):
        seen = []
        for _ in app.theme_names:
            seen.append(app.theme)
            await pilot.press("ctrl+t")
        assert sorted(seen) == sorted(app.theme_names)
        assert app.theme == "dark"


async def test_looking_at_the_folders_costs_next_to_nothing_and_ends_with_the_app(folder: Path) -> None:
    started = time.process_time()
    for _ in range(100):
        signature([folder, folder.parent])
    assert time.process_time() - started < most(1.0)  # a hundred seconds of looking
    async with running(ScriptedClient("x")) as (app, _):
        thread = app.looks._thread
        assert thread is not None
        assert thread.is_alive()
    await wait_until(lambda: not thread.is_alive())


async def test_a_folder_that_is_not_there_or_not_readable_is_no_problem(tmp_path: Path) -> None:
    assert signature([tmp_path / "none"]) == frozenset()


async def test_a_theme_that_was_chosen_is_used_again_until_the_settings_say_another(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    async with running_kept(ScriptedClient("x"), store, settings=Settings(theme="light")) as (app, pilot):
        assert app.theme == "light"
        await pilot.press("ctrl+t")
        chosen = app.theme
        assert chosen != "light"
        await wait_until(
            lambda: ("Theme", chosen) in {(one.title, one.message) for one in app._notifications}
        )
    async with running_kept(ScriptedClient("x"), store, settings=Settings(theme="light")) as (app, _):
        assert app.theme == chosen
    named = TuiInferApp(
        ScriptedClient("x"), theme="light", settings=Settings(theme="light"), store=opened(store)
    )
    assert named.theme == "light"
    assert named.archive.finish() == ""
    async with running_kept(ScriptedClient("x"), store, settings=Settings(theme="light")) as (app, _):
        assert app.theme == chosen  # what was named for one run is not kept
    async with running_kept(ScriptedClient("x"), store, settings=Settings(theme="paper")) as (app, _):
        assert app.theme == "paper"


async def test_a_theme_chosen_where_nothing_is_kept_is_said_to_be_for_this_run() -> None:
    async with running(ScriptedClient("x")) as (app, _):
        await app.run_action("use_theme('paper')")
        assert app.theme == "paper"
        await wait_until(lambda: "paper, for this run" in {toast.message for toast in app._notifications})
