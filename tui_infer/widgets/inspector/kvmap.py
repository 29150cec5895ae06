"""KV: three numbers, and a map of every block: whose it is, what is cached, what is free."""

from typing import ClassVar

from textual import events
from textual.message import Message

from tui_infer.mirror import BlockMirror
from tui_infer.widgets.inspector.cursor import MapCursor
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line
from tui_infer.widgets.inspector.map_lines import MapLines, Marked
from tui_infer.widgets.inspector.map_place import MapPlace
from tui_infer.widgets.inspector.map_words import (
    capacity_line,
    count_line,
    legend_line,
    owners_line,
    told_line,
    typed_line,
)
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.window import ROUND, MapWindow, rows_needed

# Rows around the map when there is room: what is full, who holds how much, what the marks mean.
MAP_NOTES = 3
WHEEL_ROWS = 3


class KVPanel(Panel):
    """The map has a cursor while it has the focus, or while the card of a block is open. Digits are a block's
    number here, where in other panels they pick a panel; what was typed stands below the map.

    Its scale, place and cursor are the reader's; what it draws comes from the frame alone.
    """

    NAME = "KV"
    HINTS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("←↑↓→", "move"),
        ("0-9", "block number"),
        ("Enter", "open"),
        ("g", "its chat"),
        ("d", "density"),
    )

    class Chosen(Message):
        """A block is to be opened; with ``again`` its card is closed where it is open."""

        def __init__(self, block: int, again: bool = False) -> None:
            super().__init__()
            self.block = block
            self.again = again

    class Moved(Message):
        """The cursor went to another block."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    class ChatWanted(Message):
        """The text of this block is to be shown in its chat."""

        def __init__(self, block: int) -> None:
            super().__init__()
            self.block = block

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = MapCursor()
        self.opened: int | None = None  # the block whose card is open
        self._place = MapPlace()
        self._map_lines = MapLines()
        self._mirror: BlockMirror | None = None
        self._map_y = 0  # the panel's row at which the map begins
        self._hover: int | None = None
        self._echoed = False  # there is a line for the number that is being typed

    @property
    def last_frame(self) -> Frame | None:
        return self._frame

    @property
    def window(self) -> MapWindow | None:
        """The part of the pool that is shown; None while there is no pool."""
        return self._place.window

    # --- drawing -------------------------------------------------------------------------------

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        if not self.cursor.typed:
            return self.HINTS
        return (
            ("Enter", f"go to block {self.cursor.typed}"),
            ("0-9", "more of it"),
            ("Esc Space", "clear it"),
        )

    def caption(self, frame: Frame, width: int) -> Line:
        if self.cursor.typed and not self._echoed:
            return [("go to block ", frame.ink.text), (f"{self.cursor.typed}▏", frame.ink.strong)]
        return []

    def headline(self, frame: Frame, width: int) -> Line:
        return count_line(frame) if frame.view.status is not None else []

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        if frame.view.status is None or not frame.view.mirror.num_blocks:
            self._place.window = None
            return [[(frame.waiting_text, frame.ink.dim)]]
        lines: list[Line] = []
        if height >= 6:
            lines.append(capacity_line(frame, width))
        below: list[Line] = []
        blocks, room = frame.view.mirror.num_blocks, height - len(lines) - 2
        fits = height >= 6 and rows_needed(blocks, width, wide=True, step=ROUND[0]) <= room
        notes = (height >= 4) + (height >= 9 or fits)
        self._echoed = notes > 0
        self._map_y = 1 + len(lines)
        map_lines = self._map(frame, width, height - len(lines) - notes)
        if notes:
            told = typed_line(frame, self.cursor.typed, width) or self._told(frame, width)
            below.append(told or owners_line(frame, self.window, width))
        if notes > 1:
            below.append(legend_line(frame, self.window, width))
        return [*lines, *map_lines, *below]

    def _map(self, frame: Frame, width: int, rows: int) -> list[Line]:
        mirror = frame.view.mirror
        if mirror is not self._mirror:
            # Another pool of the same size is the same place at another time: the reader stays there.
            if self._mirror is None or self._mirror.num_blocks != mirror.num_blocks:
                self._place.start_over()
                self.cursor.leave()
            self._mirror = mirror
        cursor = self._shown_cursor(frame)
        window = self._place.choose(frame, rows, width, cursor[0] if cursor is not None else None)
        return self._map_lines.draw(frame, window, width, cursor)

    def _shown_cursor(self, frame: Frame) -> Marked | None:
        """The block of the cursor, or the one whose card is open, and how it is marked."""
        if self.cursor.block is None or not (self.has_focus or self.opened is not None):
            return None
        return self.cursor.block, frame.ink.cursor if self.has_focus else frame.ink.marked

    def _told(self, frame: Frame, width: int) -> Line:
        """What is under the mouse, or under the cursor; empty where neither is on the map."""
        block = self._hover
        if block is None and self.has_focus:
            block = self.cursor.block
        return told_line(frame, self.window, block, width)

    # --- keys and mouse ------------------------------------------------------------------------

    def go_to(self, block: int) -> None:
        """Put the cursor on a block and bring it into view."""
        window = self.window
        if window is None:
            return
        before = self.cursor.block
        self.cursor.block = max(0, min(block, window.num_blocks - 1))
        self._place.held = False
        self.redraw()
        if self.cursor.block != before:
            self.post_message(self.Moved(self.cursor.block))

    def _go_to_typed(self, block: int, num_blocks: int) -> None:
        """Go to the block of that number; where there is none, another one would mislead."""
        if block < num_blocks:
            self.go_to(block)
            return
        self.redraw()
        text = f"There is no block {block:,}: they are 0 to {num_blocks - 1:,}."
        self.app.notify(text, title="Block", timeout=3, markup=False)

    def forget_typed(self) -> bool:
        """Give up the number that is being typed; False where there is none."""
        if not self.cursor.typed:
            return False
        self.cursor.typed = ""
        self._typed_changed()
        return True

    def _typed_changed(self) -> None:
        self.redraw()
        self.post_message(self.HintsChanged())

    def toggle_density(self) -> None:
        """Many blocks a cell, or one."""
        self._place.toggle_density()
        self.redraw()

    def scroll_rows(self, rows: int) -> None:
        """Move the view; the cursor goes along while it has the focus."""
        moved = self._place.scroll(rows)
        if moved is None:
            return
        self.redraw()
        if moved and self._hover is not None:
            self._hover = None

    def on_focus(self) -> None:
        if self.cursor.block is None:
            self.cursor.block = self._start_block()
        self.redraw()

    def on_blur(self) -> None:
        self.cursor.typed = ""
        self.redraw()

    def _start_block(self) -> int:
        """Where the cursor begins: at the focused chat's newest block."""
        if self._frame is not None and self._frame.view.focused_request is not None:
            table = self._frame.view.mirror.table(self._frame.view.focused_request)
            if table:
                return table[-1][1]
        return self.window.blocks[0] if self.window is not None else 0

    def on_key(self, event: events.Key) -> None:
        window = self.window
        if window is None:
            return
        if self.cursor.block is None:
            self.cursor.block = self._start_block()
        if self._take_key(event.key, event.character, window):
            event.stop()
            event.prevent_default()

    def _take_key(self, key: str, character: str | None, window: MapWindow) -> bool:
        cursor = self.cursor
        assert cursor.block is not None
        if cursor.type(key, character):
            self._typed_changed()
            return True
        if key == "enter" and cursor.typed:
            self._go_to_typed(cursor.take_typed(), window.num_blocks)
            self.post_message(self.HintsChanged())
            return True
        if self.forget_typed() and key in ("escape", "space"):
            return True
        moved = cursor.moved(key, window)
        if moved is not None:
            self.go_to(moved)
        elif key in ("enter", "space"):
            self.post_message(self.Chosen(cursor.block, again=True))
        elif key == "g":
            self.post_message(self.ChatWanted(cursor.block))
        elif key == "d":
            self.toggle_density()
        else:
            return False
        return True

    def on_mouse_move(self, event: events.MouseMove) -> None:
        block = self._block_at(event.x, event.y)
        if block != self._hover:
            self._hover = block
            self.redraw()

    def on_leave(self, event: events.Leave) -> None:
        if self._hover is not None:
            self._hover = None
            self.redraw()

    def on_click(self, event: events.Click) -> None:
        block = self._block_at(event.x, event.y)
        if block is not None:
            event.stop()
            self.focus(scroll_visible=False)
            self.go_to(block)
            self.post_message(self.Chosen(block))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-WHEEL_ROWS)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(WHEEL_ROWS)

    def _block_at(self, x: int, y: int) -> int | None:
        window = self.window
        return window.block_at(x - 2, y - self._map_y) if window is not None else None
