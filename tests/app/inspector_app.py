"""The inspector alone in an app, for tests and for looking at it: ``python -m tests.app.inspector_app``."""

import argparse
import asyncio
from pathlib import Path

from textual.app import App, ComposeResult

from scripts.pictures import write
from tests.app.simulation import Simulation, loading_view
from tui_infer.themes import load_themes
from tui_infer.widgets.inspector.inspector import Inspector


class InspectorApp(App[None]):
    """Nothing but the inspector, in one of the shipped themes."""

    CSS = "Screen { background: $background; }"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = ""

    def __init__(self, theme: str = "dark") -> None:
        super().__init__()
        themes, problems = load_themes()
        assert not problems, problems
        for item in themes:
            self.register_theme(item)
        self.theme = theme

    def compose(self) -> ComposeResult:
        yield Inspector()

    @property
    def inspector(self) -> Inspector:
        return self.query_one(Inspector)

    def lines(self) -> list[str]:
        """What is on the screen, as text."""
        rows = self.screen._compositor.render_strips()
        return [row.text for row in rows]


async def picture(width: int, height: int, theme: str, scene: str) -> str:
    """The scene as SVG."""
    app = InspectorApp(theme)
    async with app.run_test(size=(width, height)) as pilot:
        view = make_view(scene)
        app.inspector.show(view)
        await pilot.pause()
        app.inspector.show(view)
        await pilot.pause()
        return app.export_screenshot(title=f"{scene} {width}x{height} {theme}")


def make_view(scene: str):  # type: ignore[no-untyped-def]
    if scene == "loading":
        return loading_view()
    if scene == "cpu":
        sim = Simulation(cuda=False, num_blocks=700, chats=3, max_batch=8)
        sim.run(600)
    elif scene == "big":
        sim = Simulation(num_blocks=100_000, chats=24, seed=3)
        sim.run(4000)
    elif scene == "ready":
        sim = Simulation(num_blocks=700)
    else:
        sim = Simulation(num_blocks=420 if scene == "full" else 1025, chats=5)
        sim.mode = "eager"
        sim.run(1500)
        sim.mode = "graph"
        sim.run(3800)
        while sim.history.latest is None or sim.history.latest.kind != "decode":
            sim.run(1)
    return sim.view(paused=scene == "paused", dead=scene == "dead")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="60x45")
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--scene", default="gpu")
    options = parser.parse_args()
    columns, rows = (int(part) for part in options.size.split("x"))
    write(asyncio.run(picture(columns, rows, options.theme, options.scene)), options.out)
