"""KV: three numbers, and a map of every block: whose it is, what is cached, what is free."""

from collections import Counter
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.message import Message

from tui_infer.mirror import BlockMirror
from tui_infer.widgets.inspector.block_words import block_line, range_line
from tui_infer.widgets.inspector.cells import CellGrid
from tui_infer.widgets.inspector.cursor import MapCursor
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, joined, spread, stacked, width_of
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.view import SessionTag
from tui_infer.widgets.inspector.window import ROUND, MapMode, MapWindow, choose_window, rows_needed

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
        self.mode: MapMode = "auto"
        self.cursor = MapCursor()
        self.opened: int | None = None  # the block whose card is open
        self._grid = CellGrid()
        self._window: MapWindow | None = None
        self._mirror: BlockMirror | None = None
        self._top = 0
        self._held = False  # the reader scrolled: the map does not follow the focused chat
        self._map_y = 0  # the panel's row at which the map begins
        self._hover: int | None = None
        self._rows: list[Line] = []
        self._rows_key: tuple[object, ...] = ()
        self._overlay: dict[int, tuple[int, Style]] = {}

    @property
    def last_frame(self) -> Frame | None:
        return self._frame

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
        if frame.view.status is None:
            return []
        ink, counts = frame.ink, frame.view.mirror.counts()
        return [
            (f"{counts.used:,}", ink.strong),
            (" used  ", ink.dim),
            (f"{counts.cached:,}", ink.cached),
            (" cached  ", ink.dim),
            (f"{counts.free:,}", ink.text),
            (" free", ink.dim),
        ]

    def body(self, frame: Frame, width: int, height: int) -> list[Line]:
        ink = frame.ink
        if frame.view.status is None or not frame.view.mirror.num_blocks:
            self._window = None
            return [[(frame.waiting_text, ink.dim)]]
        lines: list[Line] = []
        if height >= 6:
            lines.append(self._capacity(frame, width))
        below: list[Line] = []
        blocks, room = frame.view.mirror.num_blocks, height - len(lines) - 2
        fits = height >= 6 and rows_needed(blocks, width, wide=True, step=ROUND[0]) <= room
        notes = (height >= 4) + (height >= 9 or fits)
        self._echoed = notes > 0
        self._map_y = 1 + len(lines)
        map_lines = self._map(frame, width, height - len(lines) - notes)
        if notes:
            told = self._echo(frame, width) or self._told(frame, width)
            below.append(told or self._owners(frame, width))
        if notes > 1:
            below.append(self._legend(frame, width))
        return [*lines, *map_lines, *below]

    def _capacity(self, frame: Frame, width: int) -> Line:
        ink, counts = frame.ink, frame.view.mirror.counts()
        every = max(1, counts.used + counts.cached + counts.free)
        percent = f"{100 * counts.used / every:3.0f} %"
        parts = [(counts.used / every, ink.load(counts.used / every)), (counts.cached / every, ink.cached)]
        bar = stacked(parts, width - len(percent) - 1, ink.free)
        return [*bar, (" ", ink.dim), (percent, ink.text)]

    # --- the map -------------------------------------------------------------------------------

    def _map(self, frame: Frame, width: int, rows: int) -> list[Line]:
        mirror, grid = frame.view.mirror, self._grid
        window = self._window
        if mirror is not self._mirror:
            # Another pool of the same size is the same place at another time: the reader stays there.
            if self._mirror is None or self._mirror.num_blocks != mirror.num_blocks:
                self._top, self._held, window = 0, False, None
                self.cursor.leave()
            self._mirror = mirror
        same = window is not None and window.num_blocks == mirror.num_blocks
        at_least = window.scale if window is not None and same and self._fits_as_before(rows, width) else 1
        if self.mode == "density" or self.mode == "blocks":
            at_least = 1
        window = choose_window(mirror, rows, width, mode=self.mode, at_least=at_least, top=self._top)
        window = self._in_view(frame, window, rows, width, at_least)
        self._window, self._top, self._area = window, window.top, (rows, width)
        grid.show(frame, window)
        lines = self._map_rows(frame, window, width)
        if window.rest:
            lines = [
                *lines,
                [(f"… and {counted(window.rest, 'block')} that were never used", frame.ink.faint)],
            ]
        return lines

    _area = (0, 0)

    def _fits_as_before(self, rows: int, width: int) -> bool:
        return self._area == (rows, width)

    def _in_view(self, frame: Frame, window: MapWindow, rows: int, width: int, at_least: int) -> MapWindow:
        """Scrolled so that the cursor shows, or, while nobody reads, the focused chat's newest block."""
        block = self.cursor.block if self._cursor_shows else None
        if block is None and not self._held and window.scrolls and frame.view.focused_request is not None:
            table = frame.view.mirror.table(frame.view.focused_request)
            block = table[-1][1] if table else None
        elif self._held:
            block = None
        if block is None or not window.scrolls:
            return window
        row = window.row_of(min(block, window.num_blocks - 1))
        if window.top <= row < window.top + window.rows:
            return window
        near = row if row < window.top else row - window.rows + 1
        far = abs(row - window.top) > 2 * window.rows
        top = row - window.rows // 2 if far or not self._cursor_shows else near
        mirror = frame.view.mirror
        return choose_window(mirror, rows, width, mode=self.mode, at_least=at_least, top=max(0, top))

    @property
    def _cursor_shows(self) -> bool:
        return self.cursor.block is not None and (self.has_focus or self.opened is not None)

    def _map_rows(self, frame: Frame, window: MapWindow, width: int) -> list[Line]:
        """Lines of the cells; those of rows in which nothing changed are the very lines of before."""
        dirty = self._grid.take_dirty()
        key = (window, frame.ink, width)
        count = -(-window.count // window.columns)
        overlay = self._overlays(frame, window)
        if key != self._rows_key or len(self._rows) != count:
            self._rows_key = key
            dirty = set(range(count))
            self._rows = [[] for _ in range(count)]
        dirty |= {row for row in self._overlay.keys() | overlay if self._overlay.get(row) != overlay.get(row)}
        self._overlay = overlay
        thumb = self._thumb(window)
        for row in dirty:
            if row < count:
                self._rows[row] = self._map_row(frame, window, row, width, row in thumb)
        return list(self._rows)

    def _overlays(self, frame: Frame, window: MapWindow) -> dict[int, tuple[int, Style]]:
        """What lies over the cells of which row: the cursor, or the mark of the block whose card is open."""
        if not self._cursor_shows or self.cursor.block is None:
            return {}
        cell = self.cursor.block // window.scale - window.first
        if not 0 <= cell < window.count:
            return {}
        style = frame.ink.cursor if self.has_focus else frame.ink.marked
        return {cell // window.columns: (cell % window.columns, style)}

    def _map_row(self, frame: Frame, window: MapWindow, row: int, width: int, thumb: bool) -> Line:
        ink = frame.ink
        start = row * window.columns
        over, style_over = self._overlay.get(row, (-1, ink.cursor))
        line: Line = []
        if window.gutter:
            number = (window.first + start) * window.scale
            line.append((f"{number:>{window.gutter - 1},} ", ink.faint))
        for column, (mark, style) in enumerate(self._grid.cells[start : start + window.columns]):
            if window.wide and len(mark) == 1:
                mark += " "
            if column == over:
                style = style_over
            if line and line[-1][1] is style:
                line[-1] = (line[-1][0] + mark, style)
            else:
                line.append((mark, style))
        if window.scrolls:
            cells = min(window.columns, len(self._grid.cells) - start)
            gap = width - window.gutter - cells - 1
            line += [(" " * gap, ink.base), ("▐" if thumb else "▕", ink.dim if thumb else ink.rule)]
        return line

    def _thumb(self, window: MapWindow) -> range:
        """Rows of the position mark at the right edge."""
        if not window.scrolls:
            return range(0)
        length = max(1, window.rows * window.rows // window.total_rows)
        first = round((window.rows - length) * window.top / max(1, window.last_top))
        return range(first, first + length)

    _echoed = False

    # --- lines below the map -------------------------------------------------------------------

    def _echo(self, frame: Frame, width: int) -> Line:
        """The number that is being typed, and the ways out; empty where none is."""
        ink, typed, last = frame.ink, self.cursor.typed, frame.view.mirror.num_blocks - 1
        if not typed:
            return []
        there = int(typed) <= last
        line: Line = [("go to block ", ink.text), (f"{typed}▏", ink.strong if there else ink.error)]
        if not there:
            line.append((f" is none: 0 to {last:,}", ink.error))
        keys: list[Line] = [[("Enter", ink.title), (" go", ink.dim)]] if there else []
        keys.append([("Esc", ink.title), (" or ", ink.dim), ("space", ink.title), (" clear", ink.dim)])
        return spread(line, joined(keys, ("  ", ink.dim), width - width_of(line) - 2), width, ink.dim)

    def _told(self, frame: Frame, width: int) -> Line:
        """What is under the mouse, or under the cursor; empty where neither is on the map."""
        block, window = self._hover, self._window
        if block is None and self.has_focus:
            block = self.cursor.block
        if block is None or window is None or block >= window.num_blocks:
            return []
        if window.scale > 1:
            line = range_line(frame, block - block % window.scale, window.scale)
        else:
            line = block_line(frame, block)
        return spread(line, self._scale_words(frame, window), width, frame.ink.dim)

    def _scale_words(self, frame: Frame, window: MapWindow) -> Line:
        """Which blocks are shown, or how many a cell stands for."""
        if window.scrolls:
            first, last = window.blocks
            return [(f"{first:,}–{last:,} of {window.num_blocks:,}", frame.ink.faint)]
        return [(f"1 cell = {counted(window.scale, 'block')}", frame.ink.faint)]

    def _owners(self, frame: Frame, width: int) -> Line:
        """Blocks of each chat, the largest first, then what is shared and what a cell stands for."""
        ink, mirror, window = frame.ink, frame.view.mirror, self._window
        held: Counter[str] = Counter()
        tags: dict[str, SessionTag] = {}
        for request in mirror.requests:
            tag = frame.tag(request)
            if tag is not None:
                held[tag.session] += mirror.num_held(request)
                tags[tag.session] = tag
        right = self._scale_words(frame, window) if window is not None else []
        groups: list[Line] = []
        if mirror.shared:
            groups.append([(f"{mirror.shared:,}", ink.text), (" shared", ink.dim)])
        for session, count in held.most_common(12):
            tag = tags[session]
            groups.append([(tag.letter, ink.letter(tag.color)), (f" {count:,}", ink.text)])
        groups = groups[1:] + groups[:1] if mirror.shared else groups
        room = width - sum(len(text) for text, _ in right) - 2
        left = joined(groups, ("  ", ink.dim), room) or [("no chat holds a block", ink.dim)]
        return spread(left, right, width, ink.dim)

    def _legend(self, frame: Frame, width: int) -> Line:
        ink = frame.ink
        color = frame.view.focused.color if frame.view.focused else 0
        wide = self._window is not None and self._window.wide
        dense = self._window is not None and self._window.scale > 1

        def tile(level: int, shared: bool = False, glow: int = 0) -> Style:
            return ink.tile(color, level, shared=shared, glow=glow, focused=0)

        few: Line = [("A▃" if wide else "A", tile(1)), (" few" if dense else " part", ink.dim)]
        shared: Line = [("A²" if wide else "A", tile(4, shared=True)), (" shared", ink.dim)]
        groups: list[Line] = [
            [("A", tile(4)), (" used", ink.dim)],
            few,
            *([] if dense else [shared]),
            [("A", tile(4, glow=2)), (" new", ink.dim)],
            [("a", ink.cached_tile(color, glow=0)), (" cached", ink.dim)],
            [("·", ink.free), (" free", ink.dim)],
            [("∅", ink.null), (" null", ink.dim)],
        ]
        return joined(groups, ("  " if width >= 60 else " ", ink.dim), width)

    # --- keys and mouse ------------------------------------------------------------------------

    def go_to(self, block: int) -> None:
        """Put the cursor on a block and bring it into view."""
        window = self._window
        if window is None:
            return
        before = self.cursor.block
        self.cursor.block = max(0, min(block, window.num_blocks - 1))
        self._held = False
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
        dense = self._window is not None and self._window.scale > 1
        self.mode = "blocks" if dense else "density"
        self._held = False
        self.redraw()

    def scroll_rows(self, rows: int) -> None:
        """Move the view; the cursor goes along while it has the focus."""
        window = self._window
        if window is None or not window.scrolls:
            return
        top = max(0, min(window.top + rows, window.last_top))
        moved = top - window.top
        self._top = top
        self._held = True
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
        return self._window.blocks[0] if self._window is not None else 0

    def on_key(self, event: events.Key) -> None:
        window = self._window
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
        window = self._window
        return window.block_at(x - 2, y - self._map_y) if window is not None else None
