"""A row of text parts, some of which can be clicked; base of the title, session and key bars."""

from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.strip import Strip
from textual.widget import Widget

from tui_infer.contrast import readable

TEXT_SHARE = 0.45  # of a colour from which it is for text, and not for rules and meters


class Part(NamedTuple):
    """A piece of a bar; ``action`` is run by the app when it is clicked."""

    text: str
    style: Style
    action: str = ""


class PartsBar(Widget):
    """One row, drawn from ``parts``; subclasses say what they are and call ``refresh`` when they change.

    Not called ``Bar``: style sheets go by the names of classes, and Textual's progress bar has such a part.
    """

    DEFAULT_CSS = """
    PartsBar { height: 1; width: 1fr; }
    """

    def parts(self, width: int) -> list[Part]:
        """The row from left to right; what is wider than ``width`` is cropped."""
        raise NotImplementedError

    def ink(self, name: str, share: float = 1.0, **attributes: Any) -> Style:
        """A foreground style from a theme variable, mixed with the bar's background by ``share``."""
        _, background = self.background_colors
        try:
            color = Color.parse(self.app.theme_variables[name])
        except Exception:  # "auto" colours have no value of their own
            color = self.colors[-1]
        share *= color.a
        mixed = background.blend(color, share, alpha=1.0)
        if share >= TEXT_SHARE:
            mixed = readable(mixed, background)
        return Style(color=mixed.rich_color, bgcolor=background.rich_color, **attributes)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.ink("foreground")
        if y:
            return Strip.blank(width, base)
        segments = [Segment(text, base + style) for text, style, _ in self.parts(width)]
        return Strip(segments).crop_extend(0, width, base)

    async def on_click(self, event: events.Click) -> None:
        x = event.x
        for text, _, action in self.parts(self.size.width):
            x -= cell_len(text)
            if x < 0:
                if action:
                    event.stop()
                    await self.app.run_action(action)
                return


def fit(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells, with an ellipsis where it was cut."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + "…" if width > 0 else ""
