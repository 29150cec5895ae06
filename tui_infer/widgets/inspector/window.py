"""Which part of the pool the block map shows, and at what scale."""

from dataclasses import dataclass
from typing import Literal

from tui_infer.mirror import BlockMirror

MapMode = Literal["auto", "blocks", "density"]

# Pools of which more than this many screens were used are shown whole, many blocks a cell, unless told
# otherwise: behind so many pages nobody would see what happens.
MAX_SCREENS = 6
MAX_GUTTER = 7
GUTTER_FROM = 30  # characters from which rows begin with the number of their first block
ROUND = (10, 8, 4, 1)  # rows of so many blocks, or of a multiple, are easy to count in: the first the easiest


@dataclass(frozen=True, slots=True)
class MapWindow:
    """``rows`` of ``columns`` cells from row ``top`` on; a cell stands for ``scale`` blocks.

    ``total_rows`` is what the whole map takes, ``wide`` says that a cell is two characters, ``gutter`` is the
    width of the block numbers on the left, ``rest`` counts blocks below that are told in words.
    """

    scale: int
    columns: int
    rows: int
    top: int
    total_rows: int
    num_blocks: int
    wide: bool = False
    gutter: int = 0
    rest: int = 0

    @property
    def first(self) -> int:
        """Number of the first cell that is shown."""
        return self.top * self.columns

    @property
    def count(self) -> int:
        """Cells that are shown."""
        cells = -(-self.num_blocks // self.scale)
        return max(0, min(self.rows * self.columns, cells - self.first))

    @property
    def scrolls(self) -> bool:
        return self.total_rows > self.rows and not self.rest

    @property
    def last_top(self) -> int:
        return max(0, self.total_rows - self.rows)

    @property
    def blocks(self) -> tuple[int, int]:
        """First and last block that are shown."""
        first = self.first * self.scale
        return first, min(self.num_blocks, first + self.count * self.scale) - 1

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at a place of the map's area; None beside the cells."""
        column = (x - self.gutter) // (2 if self.wide else 1)
        if not (0 <= y < self.rows and 0 <= column < self.columns and x >= self.gutter):
            return None
        block = (self.first + y * self.columns + column) * self.scale
        return block if block < self.num_blocks else None

    def row_of(self, block: int) -> int:
        """The row of the whole map in which a block is."""
        return block // self.scale // self.columns


def choose_window(
    mirror: BlockMirror, rows: int, width: int, *, mode: MapMode, at_least: int, top: int
) -> MapWindow:
    """The window for an area of ``rows`` times ``width`` characters; ``top`` is where the reader was.

    One cell a block, two characters wide where all fit, else one; rows are numbered, and longer than a round
    number of blocks only where that makes room for all. Then numbers are left out; then it scrolls; beyond
    ``MAX_SCREENS`` screens, or where ``mode`` says so, ``scale`` blocks a cell. ``at_least`` is the scale of
    before: a map that zoomed out does not jump back.
    """
    blocks, rows, width = mirror.num_blocks, max(1, rows), max(2, width)
    gutter = gutter_width(blocks, width)
    if mode != "density" and at_least == 1:
        ways = [(wide, margin) for margin in dict.fromkeys((gutter, 0)) for wide in (True, False)]
        for wide, margin in ways:
            for step in ROUND if margin else (1,):
                columns = _columns(width - margin, wide, step)
                total = -(-blocks // columns)
                if total <= rows:
                    return MapWindow(1, columns, rows, 0, total, blocks, wide, margin)
    touched = mirror.high_water + 1
    too_large = touched > MAX_SCREENS * rows * width or at_least > 1
    if mode == "density" or (mode == "auto" and too_large):
        columns = width - gutter
        scale, count = fit_cells(mirror, rows, columns, max(2, at_least))
        shown = -(-count // columns)
        rest = max(0, blocks - count * scale)
        return MapWindow(scale, columns, shown, 0, shown, blocks, gutter=gutter, rest=rest)
    # the last two columns are the position mark's
    columns = _columns(width - 2 - gutter, wide=False, step=ROUND[0] if gutter else 1)
    total = -(-blocks // columns)
    return MapWindow(1, columns, rows, max(0, min(top, total - rows)), total, blocks, gutter=gutter)


def gutter_width(blocks: int, width: int) -> int:
    """Characters of the numbers before the rows, 0 where there is no room for them."""
    return min(MAX_GUTTER, len(f"{blocks:,}") + 1) if width >= GUTTER_FROM else 0


def rows_needed(blocks: int, width: int, *, wide: bool, step: int) -> int:
    """Rows in which all blocks fit, a cell each, behind their numbers; ``step`` as in ``ROUND``."""
    return -(-blocks // _columns(width - gutter_width(blocks, width), wide, step))


def _columns(width: int, wide: bool, step: int) -> int:
    """Cells in so many characters, cut to a multiple of ``step`` where two of them fit."""
    columns = max(1, width // (1 + wide))
    return columns - columns % step if columns >= 2 * step else columns


def fit_cells(mirror: BlockMirror, rows: int, width: int, at_least: int) -> tuple[int, int]:
    """``(scale, cells)`` at which every block that was ever used fits; the rest may be left to words."""
    blocks, rows, width = mirror.num_blocks, max(1, rows), max(1, width)
    whole = fitting_scale(blocks, rows * width, at_least)
    touched = fitting_scale(mirror.high_water + 1, max(1, rows - 1) * width, at_least)
    if rows < 3 or whole < 2 * touched:
        return whole, -(-blocks // whole)
    return touched, (rows - 1) * width


def fitting_scale(blocks: int, cells: int, at_least: int = 1) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, … from ``at_least`` on at which ``blocks`` fit into ``cells``."""
    power = 1
    while True:
        for scale in (power, power * 3 // 2) if power > 1 else (1,):
            if scale >= at_least and blocks <= scale * max(1, cells):
                return scale
        power *= 2
