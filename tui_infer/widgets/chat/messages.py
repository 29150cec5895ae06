"""A transcript in which the keyboard goes from message to message, and the mouse selects text."""

from collections.abc import Callable, Iterator
from textwrap import dedent

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from tui_infer.keys import MESSAGE_KEYS, bindings_of
from tui_infer.session import SessionState, Turn
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.spot import marked
from tui_infer.widgets.chat.transcript import Transcript

MARGIN = 2  # cells before the text of every row
BAR = "█"

Spot = tuple[int, int]  # row of the document, cell of the row

# (id of the key, what the key bar calls it, what it does with the message)
HINTS = [
    ("message-copy", "copy", "copy"),
    ("message-code", "code", "code"),
    ("message-lines", "lines", "lines"),
    ("message-quote", "quote", "quote"),
    ("message-edit", "edit", "edit"),
    ("message-again", "again", "again"),
    ("message-new", "new seed", "new"),
    ("message-branch", "branch", "branch"),
    ("message-on", "go on", "go_on"),
    ("message-earlier", "version", "earlier"),
    ("message-later", "version", "later"),
]
OF_ANSWERS = ("again", "new", "go_on")


class Messages(Transcript, can_focus=True):
    """While it has the focus, ``cursor`` is the marked message, and ``lines`` the rows chosen in it."""

    BINDINGS = bindings_of(MESSAGE_KEYS)
    HELP = "Messages"  # of the help
    FOCUS_ON_CLICK = False
    ALLOW_SELECT = False  # Textual's own selection knows nothing of rows that scroll

    class Act(Message):
        """Something is to be done with a message; ``text`` is what of it is chosen, or empty for all."""

        def __init__(self, session: SessionState, position: int, what: str, text: str, number: int) -> None:
            super().__init__()
            self.session, self.position, self.what = session, position, what
            self.text, self.number = text, number

    class Moved(Message):
        """Another message, or other lines of it, are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.why_not: Callable[[SessionState, int, str], str] = lambda session, position, act: ""
        self.cursor: int | None = None
        self.lines: tuple[int, int] | None = None
        self._from: Spot | None = None
        self._to: Spot | None = None
        self._selecting = False

    # --- the marked message ------------------------------------------------------------------------

    @property
    def session(self) -> SessionState | None:
        return self._session

    @property
    def turn(self) -> Turn | None:
        """The marked message."""
        turns = self._session.turns if self._session is not None else []
        return turns[self.cursor] if self.cursor is not None and self.cursor < len(turns) else None

    def enter(self) -> bool:
        """Take the keys, with the last message marked; False where there is none."""
        if self._session is None or not self._session.turns:
            return False
        self.focus(scroll_visible=False)
        self.move_to(len(self._session.turns) - 1)
        return True

    def on_blur(self) -> None:
        self.cursor = self.lines = None
        self.refresh()

    def action_move(self, step: int) -> None:
        """To another message; while lines are chosen, to another line."""
        if self.lines is not None:
            self._choose(self.lines[1] + step, self.lines[1] + step)
        elif self.cursor is not None:
            self.move_to(self.cursor + step)

    def action_go(self, where: str) -> None:
        self.lines = None
        self.move_to(0 if where == "first" else 1 << 30)

    def move_to(self, position: int) -> None:
        """Mark a message and bring it into view."""
        if self._session is None or not self._session.turns:
            return
        last = len(self._session.turns) - 1
        self.cursor = max(0, min(last, position))
        self.update()
        rows = self._rows()
        if self.cursor == last:
            self.to_end()  # of what is taller than the view, the newest lines
        if self.cursor < last or len(rows) < self.size.height:
            self._bring(rows.start, rows.stop - 1)
        self.refresh()
        self.post_message(self.Moved())

    def _rows(self) -> range:
        """The rows of the marked message, without the empty one behind it."""
        if self.turn is None or self.cursor is None:
            return range(0)
        first, strips = self._document.turn_strips(self.cursor)
        return range(first, first + max(1, len(strips) - 1)) if strips else range(0)

    def _bring(self, first: int, last: int) -> None:
        """Scroll no further than is needed; of what is taller than the view its beginning is shown."""
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if first >= top and last < top + height:
            return
        self._leave_end()
        target = first if first < top or last - first >= height else last - height + 1
        self.scroll_to(y=target, animate=False, immediate=True)
        self._follow_near_end()

    def action_page(self, direction: int) -> None:
        self.page(direction)

    # --- lines of it -------------------------------------------------------------------------------

    def action_lines(self) -> None:
        """Choose lines, from the first that is in view; again, choose none."""
        rows = self._rows()
        if self.lines is not None or not rows:
            self.leave_lines()
            return
        first = max(rows.start, min(rows.stop - 1, self.scroll_offset.y))
        self._choose(first, first)

    def action_extend(self, step: int) -> None:
        if self.lines is None:
            self.action_lines()
        elif self.lines is not None:
            self._choose(self.lines[0], self.lines[1] + step)

    def leave_lines(self) -> bool:
        """Choose no lines; False where none are."""
        chosen, self.lines = self.lines, None
        self.refresh()
        self.post_message(self.Moved())
        return chosen is not None

    def _choose(self, anchor: int, head: int) -> None:
        rows = self._rows()
        if not rows:
            return
        anchor, head = (max(rows.start, min(rows.stop - 1, row)) for row in (anchor, head))
        self.lines = (anchor, head)
        self._bring(head, head)
        self.refresh()
        self.post_message(self.Moved())

    @property
    def chosen_text(self) -> str:
        """The chosen lines as they are drawn, less what they are all indented by."""
        if self.lines is None:
            return ""
        first, last = sorted(self.lines)
        strips = [self._document.strip(row) for row in range(first, last + 1)]
        return dedent("\n".join(_text(strip, MARGIN, None) for strip in strips if strip is not None))

    # --- what is to be done ------------------------------------------------------------------------

    def action_act(self, what: str) -> None:
        if what == "lines":
            self.action_lines()
        else:
            self._act(what, 0)

    def _act(self, what: str, number: int) -> None:
        if self._session is not None and self.cursor is not None and self.turn is not None:
            self.post_message(self.Act(self._session, self.cursor, what, self.chosen_text, number))

    def on_key(self, event: events.Key) -> None:
        """A digit is the number of a block of code."""
        if event.character and event.character in "123456789" and self.cursor is not None:
            event.stop()
            self._act("code", int(event.character))

    def hints(self) -> list[tuple[str, str, str, bool]]:
        """Id of a key, its label, what it does, and whether that can be done with the marked message."""
        session, at = self._session, self.cursor
        if session is None or at is None:
            return []
        offered = [hint for hint in HINTS if at % 2 or hint[2] not in OF_ANSWERS]
        return [(id, label, what, not self.why_not(session, at, what)) for id, label, what in offered]

    # --- the mouse ---------------------------------------------------------------------------------

    def update(self, everything: bool = False) -> None:
        if everything:
            self.lines = None
            self.unselect()
        super().update(everything)
        if self._session is not None and self.cursor is not None and self.turn is None:
            self.move_to(len(self._session.turns) - 1)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1 and event.x < self.size.width - 1 and self._document.height:
            self.unselect()
            self._from, self._selecting = self._spot(event), True
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if not self._selecting:
            return
        event.prevent_default()  # the transcript would drag its scroll bar
        if not 0 <= event.y < self.size.height:
            self.scroll_by(-1 if event.y < 0 else 1)
        self._to = self._spot(event)
        self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._selecting = False

    def _spot(self, event: events.MouseEvent) -> Spot:
        row = self.scroll_offset.y + max(0, min(self.size.height - 1, event.y))
        return row, max(0, min(self.size.width - 1, event.x))

    def unselect(self) -> None:
        if self._from is not None:
            self._from = self._to = None
            self.refresh()

    def _selected(self, row: int) -> tuple[int, int] | None:
        """The cells of a row that the mouse selected."""
        if self._from is None or self._to is None or self._from == self._to:
            return None
        (first, left), (last, right) = sorted((self._from, self._to))
        if not first <= row <= last:
            return None
        start = max(MARGIN, left) if row == first else MARGIN
        end = right + 1 if row == last else self.text_width
        return (start, end) if start < end else None

    @property
    def selected_text(self) -> str:
        """What the mouse selected, row by row."""
        if self._from is None or self._to is None:
            return ""
        first, last = sorted((self._from[0], self._to[0]))
        rows: list[str] = []
        for row in range(first, last + 1):
            strip, span = self._document.strip(row), self._selected(row)
            if strip is not None:
                rows.append(_text(strip, *span) if span is not None else "")
        return "\n".join(rows).strip("\n")

    # --- drawing -----------------------------------------------------------------------------------

    def _lines(self, rows: range) -> Iterator[Strip]:
        lines, palette = super()._lines(rows), self._palette
        dressed = self.cursor is not None or self.lines is not None or self._from is not None
        if not dressed or palette is None or self._document.height == 0:
            return lines
        return (self._dressed(y, strip, palette) for y, strip in zip(rows, lines))

    def _dressed(self, y: int, strip: Strip, palette: Palette) -> Strip:
        """With what is selected, and the bar beside the marked message."""
        row = self.scroll_offset.y + y
        chosen = self._selected(row)
        if self.lines is not None and min(self.lines) <= row <= max(self.lines):
            chosen = (MARGIN, self.text_width)
        if chosen is not None:
            strip = marked(strip, chosen, palette.marker)
        if self.cursor is not None and row in self._rows():
            bar = Segment(BAR, palette.base + Style(color=palette.marker.bgcolor))
            strip = Strip([bar, *strip.crop(1)], strip.cell_length)
        return strip


def _text(strip: Strip, start: int, end: int | None) -> str:
    return strip.crop(start, strip.cell_length if end is None else end).text.rstrip()
