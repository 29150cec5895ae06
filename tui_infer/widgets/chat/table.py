"""Markdown tables, fitted to the width by wrapping inside their cells."""

from rich.style import Style

from tui_infer.widgets.chat.palette import Palette
from tui_infer.widgets.chat.wrap import Line, Span, width_of, wrap

Cell = list[Span]
MIN_COLUMN = 3


def render_table(rows: list[list[Cell]], aligns: list[str], width: int, palette: Palette) -> list[Line]:
    """Lines of a table whose first row is the header; ``aligns`` holds left, right or center."""
    columns = max(len(row) for row in rows)
    rows = [row + [[]] * (columns - len(row)) for row in rows]
    aligns = aligns + ["left"] * (columns - len(aligns))
    widths = _fit([[_natural(row[column]) for row in rows] for column in range(columns)], width)
    lines: list[Line] = []
    for index, row in enumerate(rows):
        lines += _row(row, widths, aligns, palette, bold=index == 0)
        if index == 0:
            lines.append([("─┼─".join("─" * cells for cells in widths), palette.rule)])
    return lines


def _natural(cell: Cell) -> int:
    return max((width_of(line) for line in wrap(cell, 10_000)), default=0)


def _fit(naturals: list[list[int]], width: int) -> list[int]:
    """Column widths: natural where there is room, else the widest columns give way first."""
    widths = [max(MIN_COLUMN, *column) for column in naturals]
    room = max(len(widths), width - 3 * (len(widths) - 1))
    while sum(widths) > room:
        widest = max(widths)
        if widest <= 1:
            break
        others = [cells for cells in widths if cells < widest]
        count = widths.count(widest)
        target = max(max(others, default=1), widest - -(-(sum(widths) - room) // count), 1)
        excess = sum(widths) - room
        for index, cells in enumerate(widths):
            if cells == widest and excess > 0:
                taken = min(widest - target, excess)
                widths[index] -= taken
                excess -= taken
    return widths


def _row(
    row: list[Cell], widths: list[int], aligns: list[str], palette: Palette, *, bold: bool
) -> list[Line]:
    cells = [wrap(_bold(cell) if bold else cell, cells) for cell, cells in zip(row, widths)]
    lines: list[Line] = []
    for number in range(max(len(cell) for cell in cells)):
        line: Line = []
        for column, cell in enumerate(cells):
            if column:
                line.append((" │ ", palette.rule))
            part = cell[number] if number < len(cell) else []
            line += _align(part, widths[column], aligns[column], palette.base)
        lines.append(line)
    return lines


def _bold(cell: Cell) -> Cell:
    return [(text, style + Style(bold=True)) for text, style in cell]


def _align(line: Line, width: int, align: str, fill: Style) -> Line:
    gap = width - width_of(line)
    if gap <= 0:
        return line
    left = {"right": gap, "center": gap // 2}.get(align, 0)
    return [(" " * left, fill), *line, (" " * (gap - left), fill)]
