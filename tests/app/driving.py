"""Running the app against a scripted client in tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.widgets.chat.pane import Pane


@asynccontextmanager
async def running(
    client: ScriptedClient, size: tuple[int, int] = (100, 30), settings: Settings | None = None
) -> AsyncIterator[tuple[TuiInferApp, Pilot[int]]]:
    """The app, mounted, with its prompt focused."""
    app = TuiInferApp(client, settings=settings or Settings())
    async with app.run_test(size=size, notifications=True) as pilot:
        await wait_until(lambda: focused_pane(app) is not None, what="the first pane")
        try:
            yield app, pilot
        finally:
            await client.close()


def focused_pane(app: TuiInferApp) -> Pane | None:
    """The pane whose prompt has the focus, once it shows the focused chat."""
    for pane in app.main.visible_panes:
        if pane.prompt.has_focus and pane.session is app.state.current:
            return pane
    return None


async def pane_of(app: TuiInferApp) -> Pane:
    """Wait until the focused chat's prompt has the focus."""
    pane = await wait_until(lambda: focused_pane(app), what="the focused pane")
    assert isinstance(pane, Pane)
    return pane


async def ask(app: TuiInferApp, pilot: Pilot[int], text: str) -> None:
    """Type a prompt into the focused pane and send it."""
    pane = await pane_of(app)
    pane.prompt.insert(text)
    await pilot.press("enter")


async def settled(app: TuiInferApp) -> None:
    """Wait until all answers are over and their last frame was drawn."""
    timer = app.frames._timer
    assert timer is not None
    await wait_until(lambda: not app.state.active and not app.frames._dirty and not timer._active.is_set())


def screen_text(app: TuiInferApp) -> str:
    """What the terminal would show, line by line."""
    return "\n".join(
        "".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()
    )
