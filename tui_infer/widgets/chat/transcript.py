"""The transcript of one chat, drawn line by line."""

from collections.abc import Iterator
from time import perf_counter

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from tui_infer.session import SessionState, Turn
from tui_infer.widgets.chat.document import ChatDocument, Look
from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.spot import Spans, find_spans, marked
from tui_infer.widgets.direct import DirectLines, LineStrip

NEW_TEXT = " ↓ new text below "
NEAR_END = 2  # rows from the end within which scrolling down follows again
SLOW_S = 0.008  # a render above this is put off for a while, so that it never takes the loop for itself
REST = 4
RESIZE_REST_S = 0.12
MARKED_S = 4.0


class Transcript(DirectLines, ScrollView, can_focus=False):
    """Shows a ``ChatDocument``. It has no text of its own: ``bind`` points it to a chat, ``update`` draws
    what is new.
    """

    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 0;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._session: SessionState | None = None
        self._then: list[Turn] | None = None
        self._document = ChatDocument()
        self._palette: Palette | None = None
        self._color = "white"
        self._hint: list[str] = []
        self._rest_until = 0.0
        self._timer: Timer | None = None
        self._whole_s = 0.0
        self._drawn_size = Size(0, 0)
        self._placing = False  # the view is being put where the reader was
        self._whole_due = False
        self._marks: Spans = {}
        self._marks_timer: Timer | None = None

    def bind(
        self,
        session: SessionState,
        document: ChatDocument,
        palette: Palette,
        color: str,
        turns: list[Turn] | None = None,
    ) -> None:
        """Show another chat, theme or colour; the reader's place in the chat is kept. With ``turns`` these
        are shown in place of what the chat says now.
        """
        then, self._then = self._then, turns
        if (self._session, self._document, self._palette, self._color) == (session, document, palette, color):
            if then is not turns:
                self.update()
            return
        self._session, self._document = session, document
        self._palette, self._color = palette, color
        self._rest_until = 0.0
        self._marks = {}
        self.update(everything=True)

    def set_hint(self, lines: list[str]) -> None:
        """What an empty transcript says."""
        if lines != self._hint:
            self._hint = lines
            if self._document.height == 0:
                self.refresh()

    @property
    def text_width(self) -> int:
        """Cells of a line; the last column is the scroll bar's."""
        return max(0, self.size.width - 1)

    def update(self, everything: bool = False) -> None:
        """Draw what changed. A chat whose last block has become slow to render is drawn less often while
        it streams; its last text is always drawn.
        """
        session, palette = self._session, self._palette
        if session is None or palette is None or self.text_width <= 0:
            return
        started = perf_counter()
        turns = session.turns if self._then is None else self._then
        streams = self._then is None and session.answer is not None
        if not everything and streams and started < self._rest_until:
            self._update_later(self._rest_until - started)
            return
        document = self._document
        anchor, top = document.reader, document.line_of(document.reader)
        newest, thumb = document.newest, self._thumb()
        changed = document.sync(turns, Look(self.text_width, palette, self._color))
        took = perf_counter() - started
        self._rest_until = perf_counter() + REST * took if took > SLOW_S else 0.0
        if everything:
            self._whole_s = took
        self._drawn_size = self.size
        if changed is None and not everything:
            return
        self._resize_to(document.height)
        if document.follow:
            top = self.max_scroll_y
        else:
            # Not where the view is: a taller window may have pushed it down, and this one has room again.
            top = document.line_of(anchor) if changed == 0 else top
            # by the text: another width, or a start that brings a chat back, has other rows but nothing new
            document.unseen = document.unseen or (newest is not None and (document.newest or newest) > newest)
        moved = round(top) != round(self.scroll_y)
        if moved:
            self._placing = True
            self.scroll_to(y=top, animate=False, immediate=True)
            self._placing = False
            document.scroll_y = round(self.scroll_y)
        if not everything or changed:
            document.hold(top)
        if everything or moved or document.unseen:
            self.refresh()
        elif changed is not None:
            first = 0 if self._thumb() != thumb else max(0, changed - self.scroll_offset.y)
            self.refresh(Region(0, first, self.size.width, max(0, self.size.height - first)))

    def _update_later(self, delay: float, everything: bool = False) -> None:
        self._whole_due = self._whole_due or everything
        if self._timer is None:
            self._timer = self.set_timer(delay, self._update_now, name="transcript")

    def _update_now(self) -> None:
        self._timer = None
        everything, self._whole_due = self._whole_due, False
        self.update(everything)

    def _resize_to(self, height: int) -> None:
        """Set the virtual size; through the reactive each new line would lay out the whole screen."""
        size = Size(self.text_width, height)
        if size != self.virtual_size:
            self.set_reactive(Widget.virtual_size, size)
            self._scroll_update(size)

    # --- the reader's place ------------------------------------------------------------------------

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        # Not ScrollView's: the bar that it moves has no cells, and its redraw would lay out the screen anew.
        if round(old_value) != round(new_value):
            self.refresh(self.size.region)
        self._document.scroll_y = round(new_value)
        if self._placing or self.size != self._drawn_size:
            return  # another size moved it, not the reader
        self._document.hold(round(new_value))
        if new_value >= old_value:
            self._follow_near_end()

    def _follow_near_end(self) -> None:
        document = self._document
        near = self.scroll_offset.y >= self.max_scroll_y - NEAR_END
        if near and (document.unseen or not document.follow):
            document.follow, document.unseen = True, False
            self.refresh()

    def _leave_end(self) -> None:
        if self.max_scroll_y > 0:
            self._document.follow = False

    def _go(self, top: float) -> None:
        """The reader goes there, even before the lines for a new size are made."""
        self.scroll_to(y=top, animate=False, immediate=True)
        self._document.hold(round(self.scroll_y))

    def scroll_by(self, rows: int) -> None:
        """Move the view; upwards leaves the end, downwards near the end follows again."""
        if rows < 0:
            self._leave_end()
        self._go(self.scroll_y + rows)
        if rows > 0:
            self._follow_near_end()

    def page(self, direction: int) -> None:
        """One screen up (-1) or down (1), with two rows in common."""
        self.scroll_by(direction * max(1, self.size.height - 2))

    def to_start(self) -> None:
        self._leave_end()
        self._go(0)

    def to_end(self) -> None:
        """Go to the end and follow it."""
        self._document.follow, self._document.unseen = True, False
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
        self.refresh()

    def show_text(self, turn: int, start: int, end: int) -> bool:
        """Bring characters ``[start, end)`` of a turn into view and mark them for a moment; False where they
        are not drawn.
        """
        session = self._session
        self.update()
        first, strips = self._document.turn_strips(turn)
        turns = session.turns if session is not None and self._then is None else self._then or []
        if turn >= len(turns) or not strips:
            return False
        spans = find_spans(strips, turns[turn].text, start, end)
        if not spans:
            return False
        self._marks = {first + row: span for row, span in spans.items()}
        top = min(self._marks)
        if not self.scroll_offset.y <= top <= max(self._marks) < self.scroll_offset.y + self.size.height:
            self._leave_end()
            self.scroll_to(y=max(0, top - self.size.height // 3), animate=False, immediate=True)
        if self._marks_timer is not None:
            self._marks_timer.stop()
        self._marks_timer = self.set_timer(MARKED_S, self._unmark, name="marks")
        self.refresh()
        return True

    def _unmark(self) -> None:
        self._marks = {}
        self.refresh()

    @property
    def marked_text(self) -> str:
        """What is marked, row by row."""
        rows = [(self._document.strip(row), span) for row, span in sorted(self._marks.items())]
        return "\n".join(strip.crop(*span).text for strip, span in rows if strip is not None)

    @property
    def following(self) -> bool:
        return self._document.follow

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        event.prevent_default()
        self.scroll_by(-3)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        event.prevent_default()
        self.scroll_by(3)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.x == self.size.width - 1 and self.max_scroll_y > 0:
            self.capture_mouse()
            self._drag_to(event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._drag_to(event.y)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self.app.mouse_captured is self:
            self.release_mouse()

    def _drag_to(self, row: int) -> None:
        """The scroll bar was grabbed at ``row``; at its end, the end is followed again."""
        share = row / max(1, self.size.height - 1)
        top = round(min(1.0, max(0.0, share)) * self.max_scroll_y)
        self._leave_end()
        self._go(top)
        self._follow_near_end()

    # --- drawing -----------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Render for the new width; a long chat waits a moment, so that dragging an edge stays smooth."""
        self._rest_until = 0.0
        if self._whole_s > SLOW_S:
            self._update_later(RESIZE_REST_S, everything=True)
        else:
            self.update(everything=True)

    def render_line(self, y: int) -> Strip:
        return next(self._lines(range(y, y + 1)))

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.finish(self._lines(crop.line_range), crop)

    def _lines(self, rows: range) -> Iterator[Strip]:
        """The lines of these rows of the view."""
        palette, document = self._palette, self._document
        width, height = self.size
        if palette is None:
            yield from (Strip.blank(width, self.rich_style) for _ in rows)
            return
        if document.height == 0:
            yield from (self._hint_line(y, width, palette) for y in rows)
            return
        top = self.scroll_offset.y
        news = height - 1 if document.unseen and not document.follow else -1
        first, last = self._thumb()
        for y in rows:
            if y == news:
                yield _centred(NEW_TEXT, palette.marker, width, palette.base)
                continue
            strip = document.strip(top + y)
            if strip is None:
                yield Strip.blank(width, palette.base)
                continue
            if (span := self._marks.get(top + y)) is not None:
                strip = marked(strip, span, palette.marker)
            if first <= y < last:
                line = [*strip.crop_extend(0, width - 1, palette.base), Segment("▐", palette.thumb)]
                yield LineStrip(line, width)
            else:
                yield strip.crop_extend(0, width, palette.base)

    def _thumb(self) -> tuple[int, int]:
        """Rows of the scroll bar's thumb; none where everything fits.

        Drawn here and not by Textual's ScrollBar, which costs more than the text beside it.
        """
        rows, total = self.size.height, self._document.height
        if total <= rows:
            return 0, 0
        length = max(1, rows * rows // total)
        first = round((rows - length) * self.scroll_offset.y / max(1, self.max_scroll_y))
        return first, first + length

    def _hint_line(self, y: int, width: int, palette: Palette) -> Strip:
        first = max(0, (self.size.height - len(self._hint)) // 2)
        index = y - first
        if not 0 <= index < len(self._hint):
            return Strip.blank(width, palette.base)
        style = palette.muted if index == 0 else palette.faint
        return _centred(self._hint[index], style, width, palette.base)


def _centred(text: str, style: Style, width: int, ground: Style) -> Strip:
    left = Segment(" " * max(0, (width - cell_len(text)) // 2), ground)
    return Strip([left, Segment(text, style)]).crop_extend(0, width, ground)
