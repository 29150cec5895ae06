"""Partial redraws leave on the terminal what a full redraw would put there, and lines that widgets hand out
themselves are those that Textual would make of them.
"""

from collections.abc import Iterable

from rich.cells import cell_len
from rich.segment import Segment
from textual._compositor import LayoutUpdate
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Static

from tests.app.driving import running, settled
from tests.app.scripted import ScriptedClient
from tests.waiting import wait_until
from tui_infer.app import TuiInferApp
from tui_infer.config import Settings
from tui_infer.widgets.chat.wrap import graphemes
from tui_infer.widgets.direct import DirectLines
from tui_infer.widgets.painter import PlacedUpdate

ANSWER = (
    "# 見出し **bold** `code`\n\nSome words, wide 漢字 and é among them, long enough to be wrapped twice.\n\n"
    "1. one\n2. two\n   - nested\n\n```python\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 二 |\n\n"
)

Cell = tuple[str, str]


class Terminal:
    """What stands in each cell after all that was sent, by the app's main screen."""

    def __init__(self, app: TuiInferApp) -> None:
        self.app = app
        self.cells: dict[tuple[int, int], Cell] = {}
        self.partial = self.full = 0
        compositor = app.main._compositor
        render = compositor.render_update

        def render_update(*args: object, **options: object) -> object:
            update = render(*args, **options)  # type: ignore[arg-type]
            match update:
                case PlacedUpdate():
                    self.partial += 1
                    for x, y, strip in update.strips:
                        self._write(x, y, strip)
                case LayoutUpdate():
                    self.full += 1
                    for y, strips in enumerate(update.strips):
                        self._write(0, y, (segment for strip in strips for segment in strip))
                case None:
                    pass
                case _:
                    raise AssertionError(f"an unknown update: {update!r}")
            return update

        compositor.render_update = render_update  # type: ignore[method-assign,assignment]

    def _write(self, x: int, y: int, strip: Iterable[Segment]) -> None:
        for cell in cells_of(strip):
            self.cells[x, y] = cell
            x += 1

    def differences(self) -> list[tuple[tuple[int, int], Cell | None, Cell]]:
        """Cells that a full redraw would change."""
        wanted = {
            (x, y): cell
            for y, strip in enumerate(self.app.main._compositor.render_strips())
            for x, cell in enumerate(cells_of(strip))
        }
        return [(at, self.cells.get(at), cell) for at, cell in wanted.items() if self.cells.get(at) != cell]


def cells_of(strip: Strip | Iterable[Segment]) -> list[Cell]:
    """What stands in each cell and its style; the second half of a wide character is empty."""
    cells: list[Cell] = []
    for text, style, _ in strip:
        for character in graphemes(text):
            cells += [(character, str(style)), *[("", str(style))] * (cell_len(character) - 1)]
    return cells


async def same(app: TuiInferApp, pilot: Pilot[int], terminal: Terminal, what: str) -> None:
    """Wait until nothing is left to draw, and compare."""
    await settled(app)
    await pilot.pause()
    await wait_until(lambda: not (app.main._dirty_widgets or app.main._repaint_required), what=what)
    await pilot.pause(0.05)
    assert terminal.differences() == [], what
    for widget in app.main.query(DirectLines):
        if widget.size.area:
            theirs = widget._styles_cache.render_widget(widget, widget.size.region)
            ours = widget.render_lines(widget.size.region)
            assert [*map(cells_of, ours)] == [*map(cells_of, theirs)], f"{widget!r} {what}"


async def test_partial_redraws_leave_the_screen_as_a_full_one_would() -> None:
    client = ScriptedClient(ANSWER, rate=300, chars=3)
    async with running(client, size=(150, 45), settings=Settings(inspector="side", layout="4")) as (
        app,
        pilot,
    ):
        terminal = Terminal(app)
        app.main.refresh(layout=True)
        await pilot.pause(0.1)
        assert terminal.full
        for number in range(4):
            if number:
                await pilot.press("ctrl+n")
            app.state.submit(app.state.focused, f"question {number}")
            await pilot.press("h", "e", "l", "l", "o")
            await same(app, pilot, terminal, f"answer {number}")
        seen = terminal.partial
        assert seen > 20
        for key in ("f6", "f6", "f6", "f9", "left", "escape", "pageup", "pagedown", "f5", "f5", "ctrl+tab"):
            await pilot.press(key)
            await same(app, pilot, terminal, key)
        app.state.submit(app.state.focused, "again")
        await same(app, pilot, terminal, "a longer chat")
        app.notify("a toast lies over two panels", timeout=0.4)
        await pilot.pause(0.1)
        await same(app, pilot, terminal, "a toast")
        await pilot.pause(0.5)
        await same(app, pilot, terminal, "no toast")
        await pilot.press("f1")
        terminal.cells.clear()  # the dialog's screen draws over all of it
        await pilot.press("escape")
        await same(app, pilot, terminal, "behind a dialog")
        app.action_next_theme()
        await pilot.pause(0.2)
        await same(app, pilot, terminal, "another theme")
        await pilot.resize_terminal(90, 28)
        await pilot.pause(0.3)
        await same(app, pilot, terminal, "another size")
        assert terminal.partial > seen


async def test_a_widget_over_another_hides_it_in_partial_redraws_too() -> None:
    async with running(ScriptedClient("words " * 200, rate=200), size=(120, 40)) as (app, pilot):
        terminal = Terminal(app)
        cover = Static("over the transcript", markup=False)
        cover.styles.layer = "_toastrack"
        cover.styles.dock = "top"
        cover.styles.offset = (5, 6)
        cover.styles.width = 24
        await app.main.mount(cover)
        app.main.refresh(layout=True)
        await pilot.pause(0.1)
        app.state.submit(app.state.focused, "hello")
        await same(app, pilot, terminal, "under a widget")
        rows = ["".join(terminal.cells[x, y][0] for x in range(120)) for y in range(40)]
        assert sum("over the transcript" in row for row in rows) == 1
