"""The main screens look as they were kept: at three sizes of the terminal, dark and light."""

from pathlib import Path
from typing import NamedTuple

import pytest
from textual.pilot import Pilot

from tests.app.driving import ask, running, settled
from tests.app.snapshots import KEPT, compare, drawn, read
from tests.app.still import StillClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.widgets.inspector.kvmap import KVPanel

ANSWER = """Here is **one** way, `O(√n)`:

```python
def prime(n):
    return n > 1 and all(n % i for i in range(2, int(n**0.5) + 1))
```

1. it divides by every number up to the root,
2. and stops at the first divisor.

| n | prime |
|--:|-------|
| 7 | yes |
| 91 | no, 7 × 13 |
"""
PROMPTS = ("Is 7 prime? Write a function.", "And 91?", "[/red] 日本語 🎉")
SIZES = [(160, 48), (100, 30), (80, 24)]
THEMES = ["dark", "light"]


class Screen(NamedTuple):
    """The keys that lead to it from three answered chats, and the one that leads back before the theme is
    switched: dialogs let nothing through.
    """

    name: str
    keys: tuple[str, ...]
    back: str = ""


SCREENS = [
    Screen("chats", ()),
    Screen("inspector", ("f6", "f6", "f6")),
    Screen("messages", ("ctrl+l", "up")),
    Screen("parameters", ("alt+p",), "escape"),
    Screen("compare", ("alt+c",), "escape"),
    Screen("help", ("f1",), "escape"),
    Screen("past", ("f9", "left", "left", "left")),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
async def test_a_screen_looks_as_it_was_kept(screen: Screen, size: tuple[int, int], tmp_path: Path) -> None:
    """In one theme from the start, and in the other after a switch, as nothing else changes."""
    async with running(StillClient(ANSWER, graphs=True), size, Settings(theme=THEMES[0])) as (app, pilot):
        app.state.clock = lambda: 0.0  # rates by the clock are not of this machine
        for number, prompt in enumerate(PROMPTS):
            if number:
                await pilot.press("ctrl+n")
            await ask(app, pilot, prompt)
        await calm(app)
        for theme in THEMES:
            if theme == app.theme:
                await show(app, pilot, screen)
            else:
                if screen.back:
                    await pilot.press(screen.back)
                app.theme = theme
                if screen.back:
                    await show(app, pilot, screen)
            await pilot.pause(0.3)
            await calm(app)
            app.clear_notifications()
            await pilot.pause(0.1)
            compare(app, f"{screen.name}-{size[0]}x{size[1]}-{theme}", tmp_path)


async def show(app: TuiInferApp, pilot: Pilot[int], screen: Screen) -> None:
    """Press the keys that lead to it."""
    if screen.name == "inspector":
        while app.main.dock.mode != "full":
            await pilot.press("f6")
    else:
        await pilot.press(*screen.keys)


async def calm(app: TuiInferApp) -> None:
    """Wait until all is drawn and no block glows: what glows fades by the clock."""
    await settled(app)
    if app.main.dock.visible:
        grid = app.main.inspector.query_one(KVPanel)._map_lines.grid
        await wait_until(lambda: not grid._glowing, what="new blocks to fade")


def test_a_picture_is_compared_by_text_place_and_colour() -> None:
    """What the comparison reads of a kept picture is not nothing, and a changed word or colour is seen."""
    svg = read(KEPT / "chats-80x24-dark.svgz")
    cells = drawn(svg)
    assert any("91" in text for _, _, text, _ in cells)
    assert drawn(svg.replace("91", "92")) != cells
    assert drawn(svg.replace("#67b9fb", "#67b9fa")) != cells
    assert drawn(svg.replace('class="terminal-', 'class="other-')) == cells
