"""KV: three numbers, and a map of every block: whose it is, what is cached, what is free."""

from collections import Counter

from tui_infer.widgets.inspector.cells import CellGrid
from tui_infer.widgets.inspector.frame import Frame
from tui_infer.widgets.inspector.lines import Line, counted, joined, spread, stacked
from tui_infer.widgets.inspector.panel import Panel
from tui_infer.widgets.inspector.view import SessionTag

# Rows around the map when there is room: what is full, who holds how much, what the marks mean.
MAP_NOTES = 3


class KVPanel(Panel):
    NAME = "KV"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._grid = CellGrid()

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
            return [[(frame.waiting_text, ink.dim)]]
        lines: list[Line] = []
        if height >= 6:
            lines.append(self._capacity(frame, width))
        below: list[Line] = []
        if height >= 4:
            below.append(self._owners(frame, width))
        if height >= 9:
            below.append(self._legend(frame, width))
        room = height - len(lines) - len(below)
        return [*lines, *self._map(frame, width, room), *below]

    def _capacity(self, frame: Frame, width: int) -> Line:
        ink, counts = frame.ink, frame.view.mirror.counts()
        every = max(1, counts.used + counts.cached + counts.free)
        percent = f"{100 * counts.used / every:3.0f} %"
        parts = [(counts.used / every, ink.load(counts.used / every)), (counts.cached / every, ink.cached)]
        bar = stacked(parts, width - len(percent) - 1, ink.free)
        return [*bar, (" ", ink.dim), (percent, ink.text)]

    def _map(self, frame: Frame, width: int, rows: int) -> list[Line]:
        ink, grid = frame.ink, self._grid
        # Where there is room a block takes two cells: tiles become square, and easier to tell apart.
        wide = frame.view.mirror.num_blocks <= rows * (width // 2)
        columns = width // 2 if wide else width
        grid.update(frame, rows, columns)
        lines: list[Line] = []
        for start in range(0, len(grid.cells), columns):
            line: Line = []
            for mark, style in grid.cells[start : start + columns]:
                mark = mark + " " if wide else mark
                if line and line[-1][1] is style:
                    line[-1] = (line[-1][0] + mark, style)
                else:
                    line.append((mark, style))
            lines.append(line)
        if grid.hidden:
            lines.append([(f"… and {counted(grid.hidden, 'block')} that were never used", ink.faint)])
        return lines

    def _owners(self, frame: Frame, width: int) -> Line:
        """Blocks of each chat, the largest first, then what is shared and what a cell stands for."""
        ink, mirror = frame.ink, frame.view.mirror
        held: Counter[str] = Counter()
        tags: dict[str, SessionTag] = {}
        for request in mirror.requests:
            tag = frame.tag(request)
            if tag is not None:
                held[tag.session] += mirror.num_held(request)
                tags[tag.session] = tag
        right: Line = [(f"1 cell = {counted(self._grid.scale, 'block')}", ink.faint)]
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
        tile = {"shared": False, "glow": False, "focused": False}
        groups: list[Line] = [
            [("A", ink.tile(color, 4, **tile)), (" used", ink.dim)],
            [("A", ink.tile(color, 1, **tile)), (" part", ink.dim)],
            [("A", ink.tile(color, 4, shared=True, glow=False, focused=False)), (" shared", ink.dim)],
            [("A", ink.tile(color, 4, shared=False, glow=True, focused=False)), (" new", ink.dim)],
            [("a", ink.cached_tile(color, glow=False)), (" cached", ink.dim)],
            [("·", ink.free), (" free", ink.dim)],
            [("∅", ink.null), (" null", ink.dim)],
        ]
        return joined(groups, ("  " if width >= 60 else " ", ink.dim), width)
