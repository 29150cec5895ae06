"""Sixteen colours and none: what goes to the terminal, and that nothing is lost that only colour said."""

import re

import pytest
from rich.color import Color as RichColor
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from tests.app.driving import ask, running, screen_text, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.color_depth import ANSI, FewerColors
from tui_infer.config import Settings
from tui_infer.config_sources import load_config
from tui_infer.locations import bundled_themes_dir
from tui_infer.themes import AppTheme, load_themes, session_colors

THEMES = {
    theme.name: theme for theme in load_themes([bundled_themes_dir()])[0] if isinstance(theme, AppTheme)
}
SIXTEEN, NONE = FewerColors("16", "#000000"), FewerColors("none", "#000000")


def reduced(kind: FewerColors, style: Style) -> Style:
    (segment,) = kind.apply([Segment("x", style)], Color.parse("#000000"))
    assert segment.style is not None
    return segment.style


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number, name in enumerate(ANSI) if number % 8 not in (0, 7)]
)
def test_each_of_the_terminals_colours_stays_itself(number: int, name: str) -> None:
    assert reduced(SIXTEEN, Style(color=ANSI[name], bgcolor="#000000")).color == RichColor.from_ansi(number)


def test_mixed_colours_become_the_one_of_their_hue() -> None:
    orange_red = reduced(SIXTEEN, Style(color="#d04a3a", bgcolor="#000000")).color
    assert orange_red == RichColor.from_ansi(1)
    assert reduced(SIXTEEN, Style(color="#9af5c0", bgcolor="#000000")).color == RichColor.from_ansi(10)


def test_text_and_ground_are_the_terminals_own_and_greys_are_dimmed() -> None:
    plain = reduced(SIXTEEN, Style(color="#e5e5e5", bgcolor="#101010", bold=True))
    assert plain.color is not None
    assert plain.bgcolor is not None
    assert plain.color.is_default
    assert plain.bgcolor.is_default
    assert (plain.bold, plain.dim) == (True, False)
    assert reduced(SIXTEEN, Style(color="#707070", bgcolor="#000000")).dim


def test_what_stands_on_a_colour_is_reversed_so_that_the_ground_is_seen() -> None:
    lit = reduced(SIXTEEN, Style(color="#000000", bgcolor=ANSI["ansi_green"]))
    assert (lit.reverse, lit.color) == (True, RichColor.from_ansi(2))
    mono = reduced(NONE, Style(color="#000000", bgcolor="#e5e5e5"))
    assert mono.reverse
    assert mono.color is not None
    assert mono.color.is_default
    again = reduced(NONE, Style(color="#e5e5e5", bgcolor="#000000", reverse=True))
    assert again.reverse


def test_actions_and_links_of_a_style_are_kept() -> None:
    style = Style(color="#ff0000", meta={"@click": "x"}, link="http://a.b")
    assert reduced(NONE, style).meta == {"@click": "x"}
    assert reduced(NONE, style).link == "http://a.b"


def test_twelve_chats_have_the_twelve_colours_that_are_no_greys() -> None:
    palette = session_colors(THEMES["16-colors"])
    numbers = [reduced(SIXTEEN, Style(color=color, bgcolor="#000000")).color for color in palette]
    assert len(set(numbers)) == 12


def colors_of(app: TuiInferApp) -> set[RichColor]:
    """All colours on the screen."""
    found: set[RichColor] = set()
    for line in app.screen._compositor.render_strips():
        for segment in line:
            for color in (segment.style and segment.style.color, segment.style and segment.style.bgcolor):
                if color is not None:
                    found.add(color)
    return found


ANSWER = "Some **bold** text, `code`.\n\n```python\ndef f(): return 1  # one\n```\n"


async def test_the_theme_of_sixteen_colours_sends_no_other_on_any_screen() -> None:
    client = ScriptedClient(ANSWER, rate=2000, graphs=True)
    async with running(client, size=(160, 48), settings=Settings(theme="16-colors")) as (app, pilot):
        await ask(app, pilot, "hello")
        await settled(app)
        for keys in ((), ("f1",), ("escape", "ctrl+p"), ("escape", "f10"), ("escape", "f9")):
            await pilot.press(*keys)
            await pilot.pause()
            colors = colors_of(app)
            assert all(color.type in (ColorType.DEFAULT, ColorType.STANDARD) for color in colors)
        await pilot.press("escape")
        assert len(colors_of(app)) > 3


async def test_without_colours_nothing_but_the_terminals_own_is_sent_and_states_are_told_apart() -> None:
    client = ScriptedClient(ANSWER * 20, rate=100)
    async with running(client, size=(160, 48), settings=Settings(theme="no-color")) as (app, pilot):
        await ask(app, pilot, "hello")
        await pilot.press("ctrl+n")
        await ask(app, pilot, "hello")
        await wait_until(lambda: app.state.active == 2)
        await pilot.pause()
        assert all(color.is_default for color in colors_of(app))
        for tab in (r"1 [●◐] A", r"2 [●◐] B"):
            await wait_until(lambda tab=tab: re.search(tab, screen_text(app)), what=tab)
        await settled(app)
        assert re.search(r"1 ○ A", screen_text(app))


async def test_changing_the_theme_brings_all_colours_back() -> None:
    async with running(ScriptedClient("x"), settings=Settings(theme="no-color")) as (app, pilot):
        app.action_use_theme("dark")
        await wait_until(lambda: any(color.type == ColorType.TRUECOLOR for color in colors_of(app)))
        await pilot.pause()
        assert not any(color.is_default for color in colors_of(app))


async def test_no_color_in_the_environment_gives_no_colour_and_a_named_theme_gives_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TUI_INFER_CONFIG_DIR", str(tmp_path))
    async with running(ScriptedClient("x"), settings=load_config().settings) as (app, pilot):
        await pilot.pause()
        assert app.theme == "no-color"
        assert all(color.is_default for color in colors_of(app))
    monkeypatch.setenv("TUI_INFER_THEME", "dark")
    async with running(ScriptedClient("x"), settings=load_config().settings) as (app, pilot):
        await pilot.pause()
        assert any(
            color.type == ColorType.TRUECOLOR and len(set(color.triplet or ())) > 1
            for color in colors_of(app)
        )
