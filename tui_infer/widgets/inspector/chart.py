"""Chart of milliseconds a step: graph and eager in different marks, spikes kept, prefill apart."""

from collections.abc import Sequence
from math import floor, log10

from rich.style import Style

from tui_infer.widgets.inspector.ink import Ink
from tui_infer.widgets.inspector.lines import EIGHTHS_UP, Line, milliseconds, sparkline
from tui_infer.widgets.inspector.series import Column

AXIS_WIDTH = 5
HATCHING = "░▒▓"  # of eager steps, in the legend
_SHADES_UP = f" {HATCHING}"
_NICE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def nice_ceiling(value: float) -> float:
    """The next round number at or above ``value``."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in _NICE if step * power >= value * 0.9999), 10 * power)


def scale_of(columns: Sequence[Column]) -> float:
    """Top of the axis: high enough for nearly all spikes, not so high that one of them flattens the rest."""
    decoding = [column for column in columns if column.decode_steps]
    if not decoding:
        return 1.0
    nearly_all = int((len(decoding) - 1) * 0.95)
    typical = sorted(column.mean_ms for column in decoding)[nearly_all]
    spike = sorted(column.slowest_ms for column in decoding)[nearly_all]
    return nice_ceiling(min(max(typical * 1.15, spike * 1.05), typical * 3))


def decode_chart(
    columns: Sequence[Column], width: int, height: int, ink: Ink, cursor: int | None = None
) -> list[Line]:
    """``height`` rows: bars reach the mean of their steps, a thin line on top reaches the slowest one.

    Graph steps are solid, eager steps hatched. ``▲`` marks a spike that goes beyond the axis. The column
    whose number is ``cursor`` stands out.
    """
    room = max(1, width - AXIS_WIDTH)
    columns = columns[-room:]
    top = scale_of(columns)
    pad = " " * (room - len(columns))
    lines: list[Line] = []
    for row in range(height - 1, -1, -1):
        lines.append(
            [
                *_axis(row, height, top, ink),
                (pad, ink.dim),
                *_merge_row(columns, row, height, top, ink, cursor),
            ]
        )
    return lines


def _axis(row: int, height: int, top: float, ink: Ink) -> Line:
    if row == height - 1:
        return [(f"{_label(top):>4}", ink.dim), ("┤", ink.rule)]
    if row == 0 and height > 1:
        return [("   0", ink.dim), ("┤", ink.rule)]
    if height >= 5 and height % 2 and row == height // 2 and len(_label(top / 2)) <= 3:
        return [(f"{_label(top / 2):>4}", ink.faint), ("┤", ink.rule)]
    return [("    ", ink.dim), ("│", ink.rule)]


def _label(ms: float) -> str:
    return f"{ms / 1000:g}k" if ms >= 10_000 else f"{ms:.4g}".removeprefix("0")


def _merge_row(
    columns: Sequence[Column], row: int, height: int, top: float, ink: Ink, cursor: int | None
) -> Line:
    line: Line = []
    for column in columns:
        mark, style = _mark(column, row, height, top, ink)
        if column.number == cursor:
            mark, style = mark if mark.strip() else "┊", ink.strong
        if line and line[-1][1] is style:
            line[-1] = (line[-1][0] + mark, style)
        else:
            line.append((mark, style))
    return line


def _mark(column: Column, row: int, height: int, top: float, ink: Ink) -> tuple[str, Style]:
    if not column.decode_steps:
        return " ", ink.dim
    graph = column.mode == "graph"
    style = ink.graph if graph else ink.eager
    bar = column.mean_ms / top * height - row
    if row == height - 1 and column.slowest_ms > top:
        return "▲", ink.error
    if bar >= 1:
        # A bright edge over a calmer body: the eye follows the edge.
        if bar <= 1:
            return "█", style
        return ("█", ink.shade(style, 55)) if graph else ("░", ink.shade(style, 85))
    if bar > 0 or row == 0:
        # In the lowest row the hatching has to tell the modes apart; higher up the body below does.
        marks = _SHADES_UP if row == 0 and not graph else EIGHTHS_UP
        return marks[max(1, round(bar * (len(marks) - 1)))], style
    spike = column.slowest_ms / top * height - row
    if spike >= 0.75:
        return "│", ink.shade(style, 60)
    return ("╷" if spike > 0.15 else " "), ink.shade(style, 60)


def flat_chart(columns: Sequence[Column], ink: Ink, cursor: int | None = None) -> Line:
    """The chart in one row, one character a column: eighths for graph steps, hatching for eager ones."""
    top = scale_of(columns)
    line: Line = []
    for column in columns:
        mark = sparkline([column.mean_ms], top)
        if column.mode == "eager" and column.decode_steps:
            level = round(column.mean_ms / top * len(HATCHING))
            mark = _SHADES_UP[max(1, min(len(HATCHING), level))]
        style = ink.strong if column.number == cursor else ink.shade(ink.mode(column.mode), 70)
        line.append((mark, style))
    return line


def prefill_lane(columns: Sequence[Column], width: int, ink: Ink, cursor: int | None = None) -> Line:
    """One row: the slowest step with prefill in each column, on a scale of its own."""
    room = max(1, width - AXIS_WIDTH)
    columns = columns[-room:]
    top = max([column.prefill_ms for column in columns], default=0.0)
    marks = sparkline([column.prefill_ms for column in columns], top).rjust(room)
    line: Line = [("pre ", ink.prefill if top else ink.faint), ("│", ink.rule)]
    place = next((i for i, column in enumerate(columns) if column.number == cursor), None)
    if place is None:
        return [*line, (marks, ink.prefill)]
    place += room - len(columns)
    at = marks[place] if marks[place].strip() else "┊"
    return [*line, (marks[:place], ink.prefill), (at, ink.strong), (marks[place + 1 :], ink.prefill)]


def chart_notes(
    columns: Sequence[Column], steps_per_column: int, ink: Ink, *, flat: bool = False
) -> list[Line]:
    """The legend in groups, most important first; ``flat`` is for the chart in one row, without spikes."""
    groups: list[Line] = []
    modes = {column.mode for column in columns if column.decode_steps}
    if "graph" in modes:
        groups.append([("█", ink.graph), (" graph", ink.dim)])
    if "eager" in modes:
        groups.append([(HATCHING, ink.eager), (" eager", ink.dim)])
    slowest = max([column.slowest_ms for column in columns], default=0.0)
    if not flat and slowest > scale_of(columns):
        groups.append([("▲", ink.error), (" off scale", ink.dim)])
    prefill = max([column.prefill_ms for column in columns], default=0.0)
    if prefill:
        groups.append([("▆", ink.prefill), (f" prefill ≤ {milliseconds(prefill)} ms", ink.dim)])
    if slowest:
        spike: Line = [] if flat else [("│ ", ink.dim)]
        groups.append([*spike, (f"slowest {milliseconds(slowest)} ms", ink.dim)])
    groups.append([(f"1 column = {steps_per_column} step{'s' if steps_per_column > 1 else ''}", ink.faint)])
    return groups
