"""The block map as lines: row numbers, cells, the cursor over them, the position mark."""

from rich.style import Style

from tui_infer.widgets.inspector.cells import CellGrid
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted
from tui_infer.widgets.inspector.window import MapWindow

Marked = tuple[int, Style]  # a block, and how its cell is marked


class MapLines:
    """Keeps the lines of the cells: those of rows in which nothing changed are the very lines of before."""

    def __init__(self) -> None:
        self.grid = CellGrid()
        self._rows: list[Line] = []
        self._key: tuple[object, ...] = ()
        self._overlay: dict[int, tuple[int, Style]] = {}

    def draw(self, frame: Frame, window: MapWindow, width: int, cursor: Marked | None) -> list[Line]:
        """Lines of this window, with the cursor over its cell."""
        self.grid.show(frame, window)
        lines = self._map_rows(frame, window, width, cursor)
        if window.rest:
            lines.append([(f"… and {counted(window.rest, 'block')} that were never used", frame.ink.faint)])
        return lines

    def _map_rows(self, frame: Frame, window: MapWindow, width: int, cursor: Marked | None) -> list[Line]:
        dirty = self.grid.take_dirty()
        key = (window, frame.ink, width)
        count = -(-window.count // window.columns)
        overlay = _overlay(window, cursor)
        if key != self._key or len(self._rows) != count:
            self._key = key
            dirty = set(range(count))
            self._rows = [[] for _ in range(count)]
        dirty |= {row for row in self._overlay.keys() | overlay if self._overlay.get(row) != overlay.get(row)}
        self._overlay = overlay
        thumb = _thumb(window)
        for row in dirty:
            if row < count:
                self._rows[row] = self._map_row(frame, window, row, width, row in thumb)
        return list(self._rows)

    def _map_row(self, frame: Frame, window: MapWindow, row: int, width: int, thumb: bool) -> Line:
        ink = frame.ink
        start = row * window.columns
        over, style_over = self._overlay.get(row, (-1, ink.cursor))
        line: Line = []
        if window.gutter:
            number = (window.first + start) * window.scale
            line.append((f"{number:>{window.gutter - 1},} ", ink.faint))
        for column, (mark, style) in enumerate(self.grid.cells[start : start + window.columns]):
            if window.wide and len(mark) == 1:
                mark += " "
            if column == over:
                style = style_over
            if line and line[-1][1] is style:
                line[-1] = (line[-1][0] + mark, style)
            else:
                line.append((mark, style))
        if window.scrolls:
            cells = min(window.columns, len(self.grid.cells) - start)
            gap = width - window.gutter - cells - 1
            line += [(" " * gap, ink.base), ("▐" if thumb else "▕", ink.dim if thumb else ink.rule)]
        return line


def _overlay(window: MapWindow, cursor: Marked | None) -> dict[int, tuple[int, Style]]:
    """What lies over the cells of which row, and over which of them."""
    if cursor is None:
        return {}
    block, style = cursor
    cell = block // window.scale - window.first
    if not 0 <= cell < window.count:
        return {}
    return {cell // window.columns: (cell % window.columns, style)}


def _thumb(window: MapWindow) -> range:
    """Rows of the position mark at the right edge."""
    if not window.scrolls:
        return range(0)
    length = max(1, window.rows * window.rows // window.total_rows)
    first = round((window.rows - length) * window.top / max(1, window.last_top))
    return range(first, first + length)
