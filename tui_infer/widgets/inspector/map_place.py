"""Where in the block map its reader is: at which scale, and from which row on."""

from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.window import MapMode, MapWindow, choose_window


class MapPlace:
    """``window`` is what was shown last, None while there is no pool. ``held`` says that the reader scrolled:
    the map does not follow the focused chat then.
    """

    def __init__(self) -> None:
        self.mode: MapMode = "auto"
        self.window: MapWindow | None = None
        self.held = False
        self._top = 0
        self._area = (0, 0)

    def start_over(self) -> None:
        """Another pool is shown, from its first row on."""
        self._top, self.held, self.window = 0, False, None

    def choose(self, frame: Frame, rows: int, width: int, cursor: int | None) -> MapWindow:
        """The window for an area of ``rows`` times ``width`` characters, in which the block of the cursor
        shows, or, without a cursor, the focused chat's newest one.
        """
        mirror, window = frame.view.mirror, self.window
        same = window is not None and window.num_blocks == mirror.num_blocks
        at_least = window.scale if window is not None and same and self._area == (rows, width) else 1
        if self.mode == "density" or self.mode == "blocks":
            at_least = 1
        window = choose_window(mirror, rows, width, mode=self.mode, at_least=at_least, top=self._top)
        top = self._top_in_view(frame, window, cursor)
        if top is not None:
            window = choose_window(mirror, rows, width, mode=self.mode, at_least=at_least, top=top)
        self.window, self._top, self._area = window, window.top, (rows, width)
        return window

    def _top_in_view(self, frame: Frame, window: MapWindow, cursor: int | None) -> int | None:
        """The row from which on what is to be seen shows; None where the window is right as it is."""
        block = cursor
        if block is None and not self.held and window.scrolls and frame.view.focused_request is not None:
            table = frame.view.mirror.table(frame.view.focused_request)
            block = table[-1][1] if table else None
        elif self.held:
            block = None
        if block is None or not window.scrolls:
            return None
        row = window.row_of(min(block, window.num_blocks - 1))
        if window.top <= row < window.top + window.rows:
            return None
        near = row if row < window.top else row - window.rows + 1
        far = abs(row - window.top) > 2 * window.rows
        return max(0, row - window.rows // 2 if far or cursor is None else near)

    def toggle_density(self) -> None:
        """Many blocks a cell, or one."""
        dense = self.window is not None and self.window.scale > 1
        self.mode = "blocks" if dense else "density"
        self.held = False

    def scroll(self, rows: int) -> int | None:
        """Move by so many rows, and stay there; how many it was, None where all is shown."""
        window = self.window
        if window is None or not window.scrolls:
            return None
        self._top = max(0, min(window.top + rows, window.last_top))
        self.held = True
        return self._top - window.top
