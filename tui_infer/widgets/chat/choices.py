"""The list above a prompt: what can follow what is typed, or earlier prompts that fit a search."""

from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from tui_infer.widgets.bar import Part, PartsBar, fit

MOST_ROWS = 8
SHARE = 3  # of the pane's height, as a divisor
LEAST_ROWS = 2
GAP = 2


class Row(NamedTuple):
    """A label and what is said of it; ``hit`` are the characters of the label that are marked."""

    label: str
    help: str = ""
    hit: tuple[int, int] = (0, 0)


class Choices(PartsBar):
    """Rows of which one is chosen, and a last line of words; it is not there while it has nothing to show."""

    DEFAULT_CSS = """
    Choices { display: none; background: $surface; }
    """

    class Clicked(Message):
        """The user clicked on a row."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Row, ...] = ()
        self._at = 0
        self._footer = ""
        self._room = MOST_ROWS

    def show(self, rows: tuple[Row, ...], at: int, footer: str, height: int) -> None:
        """Show these rows, ``at`` chosen (-1 none), in a pane of this height."""
        shown = (rows, at, footer, max(LEAST_ROWS, min(MOST_ROWS, height // SHARE)))
        if shown == (self._rows, self._at, self._footer, self._room) and self.display:
            return
        self._rows, self._at, self._footer, self._room = shown
        self.styles.height = min(len(rows), self._room) + bool(footer)
        self.display = bool(rows or footer)
        self.refresh()

    def hide(self) -> None:
        if self.display:
            self.display = False

    @property
    def first(self) -> int:
        """The row on top: the chosen one stays in view."""
        return max(0, min(self._at - self._room // 2, len(self._rows) - self._room))

    def parts(self, width: int) -> list[Part]:
        return []

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.ink("foreground")
        shown = self._rows[self.first : self.first + self._room]
        if y < len(shown):
            chosen = self.first + y == self._at
            return self._row(shown[y], width, chosen)
        style = base + self.ink("foreground", 0.6)
        count = f"{self._at + 1}/{len(self._rows)} · " if len(self._rows) > self._room else ""
        return Strip([Segment(fit(f" {count}{self._footer}", width), style)]).crop_extend(0, width, base)

    def _row(self, row: Row, width: int, chosen: bool) -> Strip:
        ground = self.ink("foreground", bold=chosen, reverse=chosen)
        label = fit(row.label, width - 3)
        start, end = row.hit
        mark = Style(underline=True, bold=True)
        segments = [
            Segment(" › " if chosen else "   ", ground),
            Segment(label[:start], ground),
            Segment(label[start:end], ground + mark),
            Segment(label[end:], ground),
        ]
        if row.help:
            column = min(max(cell_len(other.label) for other in self._rows) + GAP, max(12, width // 3)) + 3
            used = 3 + cell_len(label)
            help_style = ground if chosen else self.ink("foreground", 0.65)
            words = " " * max(GAP, column - used) + row.help
            segments.append(Segment(fit(words, max(0, width - used - 1)), help_style))
        return Strip(segments).crop_extend(0, width, ground)

    async def on_click(self, event: events.Click) -> None:
        event.stop()
        if event.y < min(len(self._rows), self._room):
            self.post_message(self.Clicked(self.first + event.y))
